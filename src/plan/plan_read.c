/* plan/plan_read.c: reads plans. Keys come in any order; unknown ones are passed over. */
#include "plan/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/json.h"
#include "base/memory.h"

enum { MS_IN_NS = 6 }; /* decimals */

struct reader {
    struct json js;
    struct plan_file *plan;
    bool has_schema, no_memory;
    struct dpro_error why; /* the first failure, where its code is not 0 */
};

/* Ends reading with a message. */
#define stop(r, ...)                                                                               \
    (dpro_error_set(&(r)->why, DPRO_EFORMAT, __VA_ARGS__), json_stop(&(r)->js, JSON_BAD))

uint32_t plan_file_intern(struct plan_file *plan, const char *text, size_t len, bool *no_memory)
{
    uint32_t id = strtab_add(&plan->strings, text, len);
    *no_memory |= id == STRTAB_FULL;
    return id == STRTAB_FULL ? 0 : id;
}

static uint32_t intern(struct reader *r, const char *text, size_t len)
{
    return plan_file_intern(r->plan, text, len, &r->no_memory);
}

static uint32_t read_string(struct reader *r)
{
    const char *text;
    size_t len;
    if (json_peek(&r->js) != '"')
        return json_skip(&r->js), 0;
    return json_string(&r->js, &text, &len) ? intern(r, text, len) : 0;
}

static uint64_t read_whole(struct reader *r)
{
    uint64_t value;
    return json_read_unsigned(&r->js, &value) == JSON_VALUE ? value : UINT64_MAX;
}

/* The objects of a list; what else stands there is an object without keys. */
static bool next_object(struct reader *r, bool *is_object)
{
    if (r->no_memory || !json_array_next(&r->js))
        return false;
    *is_object = json_open(&r->js, '{');
    return true;
}

static bool next_key(struct reader *r, bool is_object, const char **key, size_t *len)
{
    return is_object && !r->no_memory && json_object_next(&r->js, key, len);
}

/* ---- the job, and what is expected ---- */

static void read_parameters(struct reader *r)
{
    const char *key;
    size_t len;
    bool is_object;
    if (!json_open(&r->js, '['))
        return;
    while (next_object(r, &is_object)) {
        struct plan_file_parameter parameter = {.model = (uint32_t)r->plan->models.n,
                                                .size_bytes = PLAN_NO_SIZE};
        while (next_key(r, is_object, &key, &len)) {
            if (json_is(key, len, "name"))
                parameter.name = read_string(r);
            else if (json_is(key, len, "size_bytes"))
                parameter.size_bytes = read_whole(r);
            else
                json_skip(&r->js);
        }
        r->no_memory |= array_push(&r->plan->parameters, parameter) < 0;
    }
}

static void read_models(struct reader *r)
{
    const char *key;
    size_t len;
    bool is_object, is_list = json_open(&r->js, '[');
    while (is_list && next_object(r, &is_object)) {
        uint32_t name = 0;
        while (next_key(r, is_object, &key, &len)) {
            if (json_is(key, len, "parameters"))
                read_parameters(r);
            else if (json_is(key, len, "name"))
                name = read_string(r);
            else
                json_skip(&r->js);
        }
        r->no_memory |= array_push(&r->plan->models, name) < 0;
    }
}

/* A number of 0 or more with `scale` decimals, as an integer; what is none leaves *to as it is. */
static void read_number(struct reader *r, int scale, int64_t *to)
{
    int64_t value;
    if (json_read_decimal(&r->js, scale, &value) == JSON_VALUE && value >= 0)
        *to = value;
}

static void read_job(struct reader *r)
{
    const char *key;
    size_t len;
    bool is_object = json_open(&r->js, '{');
    while (next_key(r, is_object, &key, &len)) {
        if (json_is(key, len, "framework"))
            r->plan->framework = read_string(r);
        else if (json_is(key, len, "stack"))
            r->plan->stack = read_string(r);
        else if (json_is(key, len, "world_size"))
            read_number(r, 0, &r->plan->world_size);
        else if (json_is(key, len, "models"))
            read_models(r);
        else
            json_skip(&r->js);
    }
}

static void read_expected(struct reader *r)
{
    const char *key;
    size_t len;
    int64_t millionths = 0;
    bool is_object = json_open(&r->js, '{');
    while (next_key(r, is_object, &key, &len)) {
        if (json_is(key, len, "baseline_ms"))
            read_number(r, MS_IN_NS, &r->plan->baseline_ns);
        else if (json_is(key, len, "iteration_ms"))
            read_number(r, MS_IN_NS, &r->plan->iteration_ns);
        else if (json_is(key, len, "uncertainty_pct"))
            read_number(r, 6, &millionths);
        else
            json_skip(&r->js);
    }
    r->plan->uncertainty_pct = (double)millionths / 1e6;
}

/* ---- buckets ---- */

static void read_names(struct reader *r, struct plan_file_bucket *bucket)
{
    const char *name;
    size_t len;
    if (json_peek(&r->js) != '[') {
        stop(r, "bucket %zu: its parameters are no list of names", r->plan->buckets.n);
        return;
    }
    r->js.p++;
    bucket->first = r->plan->names.n;
    while (!r->no_memory && json_array_next(&r->js)) {
        if (json_peek(&r->js) != '"') {
            stop(r, "bucket %zu: a parameter's name is a text in quotes", r->plan->buckets.n);
            return;
        }
        if (!json_string(&r->js, &name, &len))
            return;
        r->no_memory |= array_push(&r->plan->names, intern(r, name, len)) < 0;
    }
    bucket->n = r->plan->names.n - bucket->first;
}

static int64_t read_between(struct reader *r, const char *what, int64_t least, int64_t most)
{
    int64_t value = 0;
    if (json_read_decimal(&r->js, 0, &value) != JSON_VALUE || value < least || value > most)
        stop(r, "bucket %zu: %s is not between %lld and %lld", r->plan->buckets.n, what,
             (long long)least, (long long)most);
    return value;
}

/* An object, or a plain list of names. */
static void read_bucket(struct reader *r)
{
    struct plan_file_bucket bucket = {.partitions = 1, .size_bytes = PLAN_NO_SIZE, .server = -1};
    const char *key;
    size_t len;
    bool is_object = json_peek(&r->js) == '{';
    if (is_object)
        r->js.p++;
    else
        read_names(r, &bucket);
    while (next_key(r, is_object, &key, &len)) {
        if (json_is(key, len, "parameters"))
            read_names(r, &bucket);
        else if (json_is(key, len, "model"))
            bucket.model = read_whole(r);
        else if (json_is(key, len, "size_bytes"))
            bucket.size_bytes = read_whole(r);
        else if (json_is(key, len, "partitions"))
            bucket.partitions = (uint32_t)read_between(r, "partitions", 1, PLAN_MOST_PARTITIONS);
        else if (json_is(key, len, "server"))
            bucket.server = (int32_t)read_between(r, "server", 0, INT32_MAX);
        else if (json_is(key, len, "priority"))
            bucket.priority = (int32_t)read_between(r, "priority", INT32_MIN, INT32_MAX);
        else
            json_skip(&r->js);
    }
    if (r->js.fail == JSON_OK && !r->no_memory && bucket.n == 0)
        stop(r, "bucket %zu is empty", r->plan->buckets.n);
    r->no_memory |= array_push(&r->plan->buckets, bucket) < 0;
}

static void read_buckets(struct reader *r)
{
    if (json_peek(&r->js) != '[' || r->plan->buckets.n > 0) {
        stop(r, "%s", r->plan->buckets.n > 0 ? "two lists of buckets" : "buckets are no list");
        return;
    }
    r->js.p++;
    while (!r->no_memory && json_array_next(&r->js))
        read_bucket(r);
}

static void read_compression(struct reader *r)
{
    const char *text = "no text";
    size_t len = strlen(text);
    if (json_peek(&r->js) == '"' && json_string(&r->js, &text, &len))
        for (int c = DPRO_COMPRESSION_NONE; c <= DPRO_COMPRESSION_BF16; c++) {
            const char *name = dpro_compression_name((enum dpro_compression)c);
            if (strlen(name) == len && memcmp(name, text, len) == 0) {
                r->plan->compression = (enum dpro_compression)c;
                return;
            }
        }
    stop(r, "compression is %.*s, not none, fp16 or bf16", (int)(len < 80 ? len : 80), text);
}

static void read_cycle(struct reader *r)
{
    if (json_read_decimal(&r->js, MS_IN_NS, &r->plan->cycle_ns) != JSON_VALUE ||
        r->plan->cycle_ns <= 0)
        stop(r, "cycle_time_ms is no time above 0");
}

static void read_threshold(struct reader *r)
{
    r->plan->fuses = true;
    if (json_read_unsigned(&r->js, &r->plan->fusion_bytes) != JSON_VALUE)
        stop(r, "fusion_threshold_bytes is no number of bytes");
}

static void read_servers(struct reader *r)
{
    int64_t value = 0;
    if (json_read_decimal(&r->js, 0, &value) != JSON_VALUE || value < 1 ||
        value > PLAN_MOST_SERVERS)
        stop(r, "servers is not between 1 and %d", PLAN_MOST_SERVERS);
    r->plan->n_servers = (uint32_t)value;
}

static void read_communication(struct reader *r)
{
    const char *key;
    size_t len;
    if (json_peek(&r->js) != '{') {
        stop(r, "communication is no object");
        return;
    }
    r->js.p++;
    while (next_key(r, true, &key, &len)) {
        if (json_is(key, len, "buckets"))
            read_buckets(r);
        else if (json_is(key, len, "compression"))
            read_compression(r);
        else if (json_is(key, len, "cycle_time_ms"))
            read_cycle(r);
        else if (json_is(key, len, "fusion_threshold_bytes"))
            read_threshold(r);
        else if (json_is(key, len, "servers"))
            read_servers(r);
        else
            json_skip(&r->js);
    }
}

/* ---- computation ---- */

/* Nothing here can use more of it than that it is there. */
static void read_computation(struct reader *r)
{
    const char *key;
    size_t len;
    bool is_object = json_open(&r->js, '{');
    while (next_key(r, is_object, &key, &len)) {
        bool counts = json_is(key, len, "fused_ops") && json_peek(&r->js) == '[';
        if (!counts)
            json_skip(&r->js);
        else
            for (r->js.p++; json_array_next(&r->js); r->plan->n_fused_ops++)
                json_skip(&r->js);
    }
}

/* ---- all of it ---- */

static const char no_schema[] = "no plan: its schema is not dpro.plan/1 or dpro.plan/2";

/* Version 2 has fused ops, and is 1 otherwise. */
static void read_schema(struct reader *r)
{
    const char *text;
    size_t len;
    r->has_schema = true;
    if (json_peek(&r->js) != '"' || !json_string(&r->js, &text, &len) || len < 10 ||
        memcmp(text, "dpro.plan/", 10) != 0)
        stop(r, "%s", no_schema);
    else if (len != 11 || (text[10] != '1' && text[10] != '2'))
        stop(r,
             "written as %.*s by another version of dpro, this one reads dpro.plan/1 and "
             "dpro.plan/2",
             (int)(len < 80 ? len : 80), text);
}

static void read_plan(struct reader *r)
{
    const char *key;
    size_t len;
    r->js.p++;
    while (next_key(r, true, &key, &len)) {
        if (json_is(key, len, "schema"))
            read_schema(r);
        else if (json_is(key, len, "job"))
            read_job(r);
        else if (json_is(key, len, "expected"))
            read_expected(r);
        else if (json_is(key, len, "communication"))
            read_communication(r);
        else if (json_is(key, len, "computation"))
            read_computation(r);
        else
            json_skip(&r->js);
    }
    if (r->js.fail == JSON_OK && !r->has_schema)
        stop(r, "%s", no_schema);
}

static int read_input(struct reader *r, struct input *in, struct dpro_error *err)
{
    int rc = json_init(&r->js, in, 0, err);
    if (rc < 0)
        return rc;
    intern(r, "", 0);
    json_skip_mark(&r->js);
    int c = json_peek(&r->js);
    r->plan->is_list = c == '[';
    if (c == '{')
        read_plan(r);
    else if (c == '[')
        read_buckets(r);
    else
        json_stop(&r->js, c < 0 ? JSON_ENDED : JSON_BAD);
    if (!r->no_memory && r->why.code)
        rc = dpro_error_set(err, DPRO_EFORMAT, "%s: %s", r->plan->path, r->why.text);
    else
        rc = json_result(&r->js, r->no_memory, "not a list of buckets, nor a plan");
    json_fini(&r->js);
    return rc;
}

int plan_file_read(const char *path, struct plan_file *plan, struct dpro_error *err)
{
    struct reader r = {.plan = plan};
    struct stat info;
    struct input in;
    bool is_folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    *plan = (struct plan_file){.is_list = false};
    if (!(plan->path = mem_format(is_folder ? "%s/plan.json" : "%s", path)))
        return dpro_error_nomem(err);
    int rc = input_open(&in, plan->path, err);
    if (rc == DPRO_EIO) { /* what was named can't be read: bad input */
        struct dpro_error why = *err;
        rc = dpro_error_set(err, DPRO_EFORMAT, "%s; 'dpro optimize TRACE -o DIR' makes a plan",
                            why.text);
    } else if (rc == 0) {
        rc = read_input(&r, &in, err);
        input_close(&in);
    }
    if (rc < 0)
        plan_file_fini(plan);
    return rc;
}

void plan_file_fini(struct plan_file *plan)
{
    mem_free(plan->path);
    strtab_fini(&plan->strings);
    array_fini(&plan->models);
    array_fini(&plan->parameters);
    array_fini(&plan->buckets);
    array_fini(&plan->names);
    array_fini(&plan->members);
}
