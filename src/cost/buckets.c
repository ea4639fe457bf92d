/* cost/buckets.c: which tensors travel together, by DDP's rule or as a file says. */
#include "cost/buckets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/json.h"

int buckets_init(const struct dpro_model *model, struct arena *arena,
                 struct dpro_strategy *strategy)
{
    size_t n_ops = 0;
    *strategy = (struct dpro_strategy){.n_buckets = model->n_tensors};
    for (uint32_t p = 0; p < model->n_programs; p++)
        n_ops += model->programs[p].n_ops;
    strategy->fused = arena_array(arena, n_ops / 2 + 1, sizeof *strategy->fused);
    strategy->order = arena_array(arena, (size_t)model->n_tensors + 1, sizeof *strategy->order);
    strategy->buckets = arena_array(arena, (size_t)model->n_tensors + 1, sizeof *strategy->buckets);
    if (!strategy->order || !strategy->buckets || !strategy->fused)
        return -1;
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        strategy->order[t] = t;
        strategy->buckets[t] = (struct strategy_bucket){.first = t, .n = 1, .partitions = 1};
    }
    return 0;
}

void buckets_assign(const struct dpro_model *model, const struct dpro_strategy *from,
                    struct dpro_strategy *strategy)
{
    strategy->n_buckets = from->n_buckets;
    strategy->compression = from->compression;
    strategy->n_fused = from->n_fused;
    memcpy(strategy->order, from->order, model->n_tensors * sizeof *from->order);
    memcpy(strategy->buckets, from->buckets, from->n_buckets * sizeof *from->buckets);
    if (from->n_fused) /* a job's own strategy has no array of them */
        memcpy(strategy->fused, from->fused, from->n_fused * sizeof *from->fused);
}

int buckets_copy(const struct dpro_model *model, const struct dpro_strategy *from,
                 struct arena *arena, struct dpro_strategy *strategy)
{
    if (buckets_init(model, arena, strategy) < 0)
        return -1;
    buckets_assign(model, from, strategy);
    return 0;
}

uint64_t bucket_size_bytes(const struct dpro_model *model, const struct dpro_strategy *strategy,
                           uint32_t bucket)
{
    const struct strategy_bucket *b = &strategy->buckets[bucket];
    uint64_t bytes = 0;
    for (uint32_t i = b->first; i < b->first + b->n; i++)
        bytes += model->tensors[strategy->order[i]].size_bytes;
    return bytes;
}

void buckets_by_cap(const struct dpro_model *model, uint64_t first_bytes, uint64_t cap_bytes,
                    struct dpro_strategy *strategy)
{
    uint64_t bytes = 0;
    strategy->n_buckets = strategy->n_fused = 0;
    strategy->compression = DPRO_COMPRESSION_NONE;
    for (uint32_t t = 0, first = 0; t < model->n_tensors; t++) {
        strategy->order[t] = t;
        bytes += model->tensors[t].size_bytes;
        uint64_t cap = strategy->n_buckets == 0 ? first_bytes : cap_bytes;
        if (bytes < cap && t + 1 < model->n_tensors)
            continue;
        strategy->buckets[strategy->n_buckets++] =
            (struct strategy_bucket){.first = first, .n = t + 1 - first, .partitions = 1};
        first = t + 1;
        bytes = 0;
    }
}

void buckets_partition(const struct dpro_model *model, uint64_t partition_bytes,
                       struct dpro_strategy *strategy)
{
    for (uint32_t b = 0; b < strategy->n_buckets; b++) {
        uint64_t bytes = bucket_size_bytes(model, strategy, b);
        uint64_t parts = bytes / partition_bytes + (bytes % partition_bytes != 0);
        uint64_t most = bytes / 4 > 1 ? bytes / 4 : 1; /* an element each */
        parts = parts > most ? most : parts;
        strategy->buckets[b].partitions = parts > 1 ? (uint32_t)parts : 1;
    }
}

/* ---- from a file ---- */

struct reader {
    struct json js;
    const struct dpro_model *model;
    const char *path;
    struct dpro_strategy *strategy;
    bool *taken; /* by tensor */
    uint32_t n_taken;
    bool found; /* a list of buckets */
    int rc;     /* first failure, err is set */
    struct dpro_error *err;
};

static uint32_t find_tensor(const struct dpro_model *model, const char *name, size_t len)
{
    for (uint32_t t = 0; t < model->n_tensors; t++)
        if (strlen(model->tensors[t].name) == len && memcmp(model->tensors[t].name, name, len) == 0)
            return t;
    return MODEL_NONE;
}

/* Ends reading with a message. */
#define stop(r, ...)                                                                               \
    ((r)->rc = dpro_error_set((r)->err, DPRO_EFORMAT, __VA_ARGS__), json_stop(&(r)->js, JSON_BAD))

static void read_names(struct reader *r)
{
    struct dpro_strategy *s = r->strategy;
    struct strategy_bucket *bucket = &s->buckets[s->n_buckets - 1];
    const char *name;
    size_t len;
    if (json_peek(&r->js) != '[') {
        stop(r, "%s: bucket %u: its parameters are no list of names", r->path, s->n_buckets - 1);
        return;
    }
    r->js.p++;
    while (json_array_next(&r->js)) {
        if (json_peek(&r->js) != '"') {
            stop(r, "%s: bucket %u: a parameter's name is a text in quotes", r->path,
                 s->n_buckets - 1);
            return;
        }
        if (!json_string(&r->js, &name, &len))
            return;
        uint32_t t = find_tensor(r->model, name, len);
        if (t == MODEL_NONE || r->taken[t]) {
            stop(r, "%s: bucket %u: '%.*s' %s", r->path, s->n_buckets - 1,
                 (int)(len < 200 ? len : 200), name,
                 t == MODEL_NONE ? "is no gradient of this trace; a plan fits the model that it "
                                   "was made for"
                                 : "is in another bucket or twice in this one");
            return;
        }
        r->taken[t] = true;
        s->order[r->n_taken++] = t;
        bucket->n++;
    }
}

static int32_t read_int(struct reader *r, const char *what, int64_t least, int64_t most)
{
    int64_t value = 0;
    if (json_read_decimal(&r->js, 0, &value) != JSON_VALUE || value < least || value > most)
        stop(r, "%s: bucket %u: %s is not between %lld and %lld", r->path,
             r->strategy->n_buckets - 1, what, (long long)least, (long long)most);
    return (int32_t)value;
}

/* An object of a plan, or a plain list of names. */
static void read_bucket(struct reader *r)
{
    struct dpro_strategy *s = r->strategy;
    const char *key;
    size_t len;
    if (s->n_buckets == r->model->n_tensors) {
        stop(r, "%s: more buckets than the model has gradients (%u)", r->path, s->n_buckets);
        return;
    }
    struct strategy_bucket *bucket = &s->buckets[s->n_buckets++];
    *bucket = (struct strategy_bucket){.first = r->n_taken, .partitions = 1};
    if (json_peek(&r->js) == '{') {
        r->js.p++;
        while (json_object_next(&r->js, &key, &len)) {
            if (json_is(key, len, "parameters") && bucket->n == 0)
                read_names(r);
            else if (json_is(key, len, "partitions"))
                bucket->partitions =
                    (uint32_t)read_int(r, "partitions", 1, BUCKETS_MOST_PARTITIONS);
            else if (json_is(key, len, "priority"))
                bucket->priority = read_int(r, "priority", INT32_MIN, INT32_MAX);
            else
                json_skip(&r->js);
        }
    } else {
        read_names(r);
    }
    if (r->js.fail == JSON_OK && bucket->n == 0)
        stop(r, "%s: bucket %u is empty", r->path, s->n_buckets - 1);
}

static void read_buckets(struct reader *r)
{
    if (json_peek(&r->js) != '[' || r->found) {
        stop(r, "%s: %s", r->path, r->found ? "two lists of buckets" : "buckets are no list");
        return;
    }
    r->found = true;
    r->js.p++;
    while (json_array_next(&r->js))
        read_bucket(r);
}

static void read_compression(struct reader *r)
{
    const char *text;
    size_t len;
    if (json_peek(&r->js) == '"' && json_string(&r->js, &text, &len))
        for (int c = DPRO_COMPRESSION_NONE; c <= DPRO_COMPRESSION_BF16; c++) {
            const char *name = dpro_compression_name((enum dpro_compression)c);
            if (strlen(name) == len && memcmp(name, text, len) == 0) {
                r->strategy->compression = (enum dpro_compression)c;
                return;
            }
        }
    stop(r, "%s: compression is none of \"none\", \"fp16\", \"bf16\"", r->path);
}

static void read_communication(struct reader *r)
{
    const char *key;
    size_t len;
    if (json_peek(&r->js) != '{') {
        stop(r, "%s: communication is no object", r->path);
        return;
    }
    r->js.p++;
    while (json_object_next(&r->js, &key, &len)) {
        if (json_is(key, len, "buckets"))
            read_buckets(r);
        else if (json_is(key, len, "compression"))
            read_compression(r);
        else
            json_skip(&r->js);
    }
}

static void read_schema(struct reader *r)
{
    static const char known[] = "dpro.plan/1";
    const char *text;
    size_t len;
    if (json_peek(&r->js) != '"' || !json_string(&r->js, &text, &len) || len != sizeof known - 1 ||
        memcmp(text, known, len) != 0)
        stop(r, "%s: its schema is not %s; was it written by another version of dpro?", r->path,
             known);
}

static void read_plan(struct reader *r)
{
    const char *key;
    size_t len;
    r->js.p++;
    while (json_object_next(&r->js, &key, &len)) {
        if (json_is(key, len, "schema"))
            read_schema(r);
        else if (json_is(key, len, "communication"))
            read_communication(r);
        else
            json_skip(&r->js);
    }
}

static void check_all_taken(struct reader *r)
{
    const struct dpro_model *m = r->model;
    uint32_t first = 0;
    if (r->n_taken == m->n_tensors)
        return;
    while (r->taken[first])
        first++;
    r->rc =
        dpro_error_set(r->err, DPRO_EFORMAT,
                       "%s: %u of the %u gradients of this trace are in no bucket, '%.200s' "
                       "among them",
                       r->path, m->n_tensors - r->n_taken, m->n_tensors, m->tensors[first].name);
}

static int read_input(struct reader *r, struct input *in)
{
    int rc = json_init(&r->js, in, 0, r->err);
    if (rc < 0)
        return rc;
    json_skip_mark(&r->js);
    int c = json_peek(&r->js);
    if (c == '{')
        read_plan(r);
    else if (c == '[')
        read_buckets(r);
    else
        json_stop(&r->js, c < 0 ? JSON_ENDED : JSON_BAD);
    if (r->rc == 0 && r->js.fail == JSON_IO)
        r->rc = r->err->code;
    else if (r->rc == 0 && r->js.fail == JSON_MEMORY)
        r->rc = dpro_error_nomem(r->err);
    else if (r->rc == 0 && r->js.fail != JSON_OK)
        r->rc = dpro_error_set(r->err, DPRO_EFORMAT, "%s: byte %llu: %s", r->path,
                               (unsigned long long)json_offset(&r->js),
                               r->js.fail == JSON_ENDED ? "the file ends too early"
                                                        : "not a list of buckets, nor a plan");
    else if (r->rc == 0 && !r->found)
        r->rc = dpro_error_set(r->err, DPRO_EFORMAT, "%s: no buckets in it", r->path);
    if (r->rc == 0)
        check_all_taken(r);
    json_fini(&r->js);
    return r->rc;
}

int buckets_read(const struct dpro_model *model, const char *path, struct dpro_strategy *strategy,
                 struct dpro_error *err)
{
    struct reader r = {.model = model, .strategy = strategy, .err = err};
    struct stat st;
    struct input in;
    char *file;
    bool folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    if (asprintf(&file, folder ? "%s/plan.json" : "%s", path) < 0)
        return dpro_error_nomem(err);
    r.path = file;
    r.taken = calloc((size_t)model->n_tensors + 1, sizeof *r.taken);
    strategy->n_buckets = strategy->n_fused = 0;
    strategy->compression = DPRO_COMPRESSION_NONE;
    int rc = r.taken ? input_open(&in, file, err) : dpro_error_nomem(err);
    if (rc == 0) {
        rc = read_input(&r, &in);
        input_close(&in);
    }
    free(r.taken);
    free(file);
    return rc;
}
