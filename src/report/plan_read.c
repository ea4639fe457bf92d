/* report/plan_read.c: plan.json (doc/formats/plan.md), checked as far as can be told without the
 * job. Keys come in any order, so that everything is read before it is compared. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <dpro/verify.h>

#include "base/array.h"
#include "base/error.h"
#include "base/json.h"
#include "base/map.h"
#include "base/strtab.h"

enum { MOST_PARTITIONS = 1024 };

struct plan_parameter {
    uint32_t name, model;
    uint64_t size_bytes;
};

struct plan_bucket {
    size_t first, n; /* into names */
    uint64_t model, size_bytes, partitions;
    bool has_size;
};

struct plan_reader {
    struct json js;
    const char *path;
    struct dpro_error *err;
    struct strtab strings;
    ARRAY(struct plan_parameter) parameters;
    ARRAY(struct plan_bucket) buckets;
    ARRAY(uint32_t) names;
    uint32_t n_models;
    uint32_t schema, version, framework, compression; /* 0: not there */
    int64_t world_size;
    struct dpro_plan_summary *out;
    bool no_memory;
};

static uint32_t read_string(struct plan_reader *r)
{
    const char *text;
    size_t len;
    if (json_peek(&r->js) != '"')
        return json_skip(&r->js), 0;
    if (!json_string(&r->js, &text, &len))
        return 0;
    uint32_t id = strtab_add(&r->strings, text, len);
    r->no_memory |= id == STRTAB_FULL;
    return id == STRTAB_FULL ? 0 : id;
}

static uint64_t read_whole(struct plan_reader *r, uint64_t otherwise)
{
    uint64_t value;
    return json_read_unsigned(&r->js, &value) == JSON_VALUE ? value : otherwise;
}

static bool enter(struct plan_reader *r, char bracket)
{
    if (json_peek(&r->js) != bracket)
        return json_skip(&r->js), false;
    r->js.p++;
    return true;
}

/* The objects of a list; what else stands there is an object without keys. */
static bool next_object(struct plan_reader *r, bool *is_object)
{
    if (r->no_memory || !json_array_next(&r->js))
        return false;
    *is_object = enter(r, '{');
    return true;
}

static bool next_key(struct plan_reader *r, bool is_object, const char **key, size_t *len)
{
    return is_object && !r->no_memory && json_object_next(&r->js, key, len);
}

static void read_parameters(struct plan_reader *r)
{
    const char *key;
    size_t len;
    bool is_object;
    if (!enter(r, '['))
        return;
    while (next_object(r, &is_object)) {
        struct plan_parameter parameter = {.model = r->n_models, .size_bytes = UINT64_MAX};
        while (next_key(r, is_object, &key, &len)) {
            if (json_is(key, len, "name"))
                parameter.name = read_string(r);
            else if (json_is(key, len, "size_bytes"))
                parameter.size_bytes = read_whole(r, UINT64_MAX);
            else
                json_skip(&r->js);
        }
        r->no_memory |= array_push(&r->parameters, parameter) < 0;
    }
}

static void read_job(struct plan_reader *r)
{
    const char *key;
    size_t len;
    bool is_object;
    if (!enter(r, '{'))
        return;
    while (json_object_next(&r->js, &key, &len)) {
        if (json_is(key, len, "framework")) {
            r->framework = read_string(r);
        } else if (json_is(key, len, "world_size")) {
            if (json_read_decimal(&r->js, 0, &r->world_size) != JSON_VALUE)
                r->world_size = 0;
        } else if (json_is(key, len, "models") && enter(r, '[')) {
            for (r->n_models = 0; next_object(r, &is_object); r->n_models++)
                while (next_key(r, is_object, &key, &len)) {
                    if (json_is(key, len, "parameters"))
                        read_parameters(r);
                    else
                        json_skip(&r->js);
                }
        } else {
            json_skip(&r->js);
        }
    }
}

static void read_expected(struct plan_reader *r)
{
    const char *key;
    size_t len;
    int64_t value;
    if (!enter(r, '{'))
        return;
    while (json_object_next(&r->js, &key, &len)) {
        bool baseline = json_is(key, len, "baseline_ms"), percent;
        percent = json_is(key, len, "uncertainty_pct");
        if (!baseline && !percent && !json_is(key, len, "iteration_ms")) {
            json_skip(&r->js);
            continue;
        }
        if (json_read_decimal(&r->js, 6, &value) != JSON_VALUE || value < 0)
            continue;
        if (percent)
            r->out->uncertainty_pct = (double)value / 1e6;
        else if (baseline)
            r->out->baseline_ns = value;
        else
            r->out->iteration_ns = value;
    }
}

static void read_buckets(struct plan_reader *r)
{
    const char *key;
    size_t len;
    bool is_object;
    if (!enter(r, '['))
        return;
    while (next_object(r, &is_object)) {
        struct plan_bucket bucket = {.first = r->names.n, .partitions = 1};
        while (next_key(r, is_object, &key, &len)) {
            if (json_is(key, len, "model")) {
                bucket.model = read_whole(r, UINT64_MAX);
            } else if (json_is(key, len, "size_bytes")) {
                bucket.size_bytes = read_whole(r, UINT64_MAX);
            } else if (json_is(key, len, "partitions")) {
                bucket.partitions = read_whole(r, 0);
            } else if (json_is(key, len, "parameters") && enter(r, '[')) {
                bucket.first = r->names.n;
                while (!r->no_memory && json_array_next(&r->js))
                    r->no_memory |= array_push(&r->names, read_string(r)) < 0;
                bucket.n = r->names.n - bucket.first;
            } else if (!json_is(key, len, "parameters")) {
                json_skip(&r->js);
            }
        }
        r->no_memory |= array_push(&r->buckets, bucket) < 0;
    }
}

static void read_communication(struct plan_reader *r)
{
    const char *key;
    size_t len;
    if (!enter(r, '{'))
        return;
    while (json_object_next(&r->js, &key, &len)) {
        if (json_is(key, len, "compression"))
            r->compression = read_string(r);
        else if (json_is(key, len, "buckets"))
            read_buckets(r);
        else
            json_skip(&r->js);
    }
}

static int read_all(struct plan_reader *r)
{
    const char *key;
    size_t len;
    json_skip_mark(&r->js);
    if (json_peek(&r->js) != '{')
        json_stop(&r->js, json_peek(&r->js) < 0 ? JSON_ENDED : JSON_BAD);
    else
        r->js.p++;
    while (!r->no_memory && r->js.fail == JSON_OK && json_object_next(&r->js, &key, &len)) {
        if (json_is(key, len, "schema"))
            r->schema = read_string(r);
        else if (json_is(key, len, "dpro"))
            r->version = read_string(r);
        else if (json_is(key, len, "job"))
            read_job(r);
        else if (json_is(key, len, "expected"))
            read_expected(r);
        else if (json_is(key, len, "communication"))
            read_communication(r);
        else
            json_skip(&r->js);
    }
    if (r->no_memory || r->js.fail == JSON_MEMORY)
        return dpro_error_nomem(r->err);
    if (r->js.fail == JSON_IO)
        return DPRO_EIO;
    if (r->js.fail != JSON_OK)
        return dpro_error_set(r->err, DPRO_EFORMAT, "%s: byte %llu: %s", r->path,
                              (unsigned long long)json_offset(&r->js),
                              r->js.fail == JSON_ENDED ? "the file ends too early"
                                                       : "is not JSON as dpro optimize writes it");
    return 0;
}

static int bad(struct plan_reader *r, const char *what, size_t n, const char *problem,
               uint32_t name)
{
    return dpro_error_set(r->err, DPRO_EFORMAT, "%s: %s %zu: %s%s", r->path, what, n, problem,
                          strtab_get(&r->strings, name));
}

/* Interned names are compared by id; a parameter is found by its model and name. */
static uint64_t key_of(uint64_t model, uint32_t name)
{
    return model << 32 | ((uint64_t)name + 1);
}

static int check_bucket(struct plan_reader *r, size_t n, struct map *left)
{
    const struct plan_bucket *bucket = &r->buckets.at[n];
    uint64_t size = 0;
    if (bucket->model >= r->n_models)
        return bad(r, "bucket", n, "its model is not in job.models", 0);
    if (bucket->n == 0)
        return bad(r, "bucket", n, "it is empty", 0);
    if (bucket->partitions < 1 || bucket->partitions > MOST_PARTITIONS)
        return bad(r, "bucket", n, "partitions must be 1 to 1024", 0);
    for (size_t i = bucket->first; i < bucket->first + bucket->n; i++) {
        uint64_t at, key = key_of(bucket->model, r->names.at[i]);
        if (!map_get(left, key, &at))
            return bad(r, "bucket", n, "no parameter of its model is called ", r->names.at[i]);
        if (at == UINT64_MAX)
            return bad(r, "bucket", n, "a bucket has it already: ", r->names.at[i]);
        size += r->parameters.at[at].size_bytes;
        if (map_set(left, key, UINT64_MAX) < 0)
            return dpro_error_nomem(r->err);
    }
    if (size != bucket->size_bytes)
        return bad(r, "bucket", n, "size_bytes is not its parameters' sum", 0);
    return 0;
}

static int check_parameters(struct plan_reader *r, struct map *left)
{
    for (size_t i = 0; i < r->parameters.n; i++) {
        const struct plan_parameter *p = &r->parameters.at[i];
        uint64_t key = key_of(p->model, p->name);
        if (p->name == 0 || p->size_bytes >= UINT64_MAX >> 20)
            return bad(r, "parameter", i, "it has no name or no size_bytes", 0);
        if (map_get(left, key, NULL))
            return bad(r, "parameter", i, "it is there twice: ", p->name);
        if (map_set(left, key, i) < 0)
            return dpro_error_nomem(r->err);
    }
    for (size_t n = 0; n < r->buckets.n; n++) {
        int rc = check_bucket(r, n, left);
        if (rc < 0)
            return rc;
    }
    for (size_t i = 0; i < r->parameters.n; i++) {
        const struct plan_parameter *p = &r->parameters.at[i];
        uint64_t at;
        if (map_get(left, key_of(p->model, p->name), &at) && at != UINT64_MAX)
            return bad(r, "parameter", i, "it is in no bucket: ", p->name);
    }
    return 0;
}

static int check(struct plan_reader *r)
{
    const char *schema = strtab_get(&r->strings, r->schema);
    const char *compression = strtab_get(&r->strings, r->compression);
    struct map left = {NULL, 0, 0}; /* parameter: its index, UINT64_MAX when it is in a bucket */
    int rc;
    if (strncmp(schema, "dpro.plan/", 10) != 0)
        return dpro_error_set(r->err, DPRO_EFORMAT, "%s: no plan: its schema is not dpro.plan/1",
                              r->path);
    if (strcmp(schema, "dpro.plan/1") != 0)
        return dpro_error_set(r->err, DPRO_EFORMAT,
                              "%s: written as %s by dpro %s, this one reads dpro.plan/1", r->path,
                              schema, strtab_get(&r->strings, r->version));
    if (strcmp(strtab_get(&r->strings, r->framework), "pytorch") != 0)
        return dpro_error_set(r->err, DPRO_EFORMAT, "%s: its job's framework is not pytorch",
                              r->path);
    if (r->world_size < 1 || r->world_size > INT32_MAX)
        return dpro_error_set(r->err, DPRO_EFORMAT, "%s: job.world_size is not a number of ranks",
                              r->path);
    if (compression[0] != '\0' && strcmp(compression, "none") != 0 &&
        strcmp(compression, "fp16") != 0 && strcmp(compression, "bf16") != 0)
        return dpro_error_set(r->err, DPRO_EFORMAT, "%s: compression is %s, not none, fp16 or bf16",
                              r->path, compression);
    if (r->parameters.n == 0)
        return dpro_error_set(r->err, DPRO_EFORMAT, "%s: job.models has no parameters", r->path);
    rc = check_parameters(r, &left);
    map_fini(&left);
    return rc;
}

int dpro_plan_read(const char *path, struct dpro_plan_summary *summary, struct dpro_error *err)
{
    struct plan_reader r = {.err = err};
    struct dpro_plan_summary out = {0};
    struct stat info;
    struct input in;
    char *file = NULL;
    int rc;
    bool is_folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    if (asprintf(&file, is_folder ? "%s/plan.json" : "%s", path) < 0)
        return dpro_error_nomem(err);
    rc = input_open(&in, file, err);
    if (rc < 0) {
        if (rc == DPRO_EIO) { /* what was named can't be read: bad input */
            struct dpro_error why = *err;
            rc = dpro_error_set(err, DPRO_EFORMAT, "%s; 'dpro optimize TRACE -o DIR' makes a plan",
                                why.text);
        }
        free(file);
        return rc;
    }
    r.path = file;
    r.out = &out;
    rc = json_init(&r.js, &in, 0, err);
    if (rc == 0) {
        if (strtab_add(&r.strings, "", 0) == STRTAB_FULL)
            rc = dpro_error_nomem(err);
        if (rc == 0)
            rc = read_all(&r);
        if (rc == 0)
            rc = check(&r);
        json_fini(&r.js);
    }
    if (rc == 0) {
        out.world_size = (int)r.world_size;
        out.n_buckets = (uint32_t)r.buckets.n;
        *summary = out;
    }
    strtab_fini(&r.strings);
    array_fini(&r.parameters);
    array_fini(&r.buckets);
    array_fini(&r.names);
    input_close(&in);
    free(file);
    return rc;
}
