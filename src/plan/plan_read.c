/* Reads plans. Keys come in any order; unknown ones are passed over. */
#include "plan/plan.h"

#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/json_members.h"
#include "base/memory.h"

enum { MS_IN_NS = 6 }; /* decimals */

/* The argument of the reader; `out` is the plan where nothing else is said. */
struct reading {
    struct plan_file *plan;
    bool has_schema;
    struct dpro_error why; /* the first failure, where its code is not 0 */
};

static struct reading *reading_of(struct json_reader *r)
{
    return r->arg;
}

static struct plan_file *plan_of(struct json_reader *r)
{
    return reading_of(r)->plan;
}

/* Ends reading with a message. */
#define stop(r, ...)                                                                               \
    (dpro_error_set(&reading_of(r)->why, DPRO_EFORMAT, __VA_ARGS__), json_stop((r)->js, JSON_BAD))

/* A number without a fraction or exponent; false: the value is anything else. */
static bool read_whole(struct json_reader *r, int64_t *value)
{
    const char *text;
    size_t len;
    if (json_peek(r->js) == '"') {
        json_skip(r->js);
        return false;
    }
    return json_scalar(r->js, &text, &len) && !memchr(text, '.', len) && !memchr(text, 'e', len) &&
           !memchr(text, 'E', len) && json_decimal(text, len, 0, value) == JSON_VALUE;
}

/* ---- the job, and what is expected ---- */

/* The objects of a list; what else stands there is an object without keys. */
static void read_parameters(struct json_reader *r, void *out UNUSED, size_t offset UNUSED)
{
    static const struct json_member members[] = {
        MEMBER(struct plan_file_parameter, "name", TEXT, name),
        MEMBER(struct plan_file_parameter, "size_bytes", SIZE, size_bytes),
        {NULL}};
    JSON_EACH (r->js) {
        struct plan_file_parameter parameter = {.model = (uint32_t)plan_of(r)->models.n,
                                                .size_bytes = PLAN_NO_SIZE};
        json_read_object(r, members, &parameter);
        array_push(&plan_of(r)->parameters, parameter);
    }
}

static void read_models(struct json_reader *r, void *out UNUSED, size_t offset UNUSED)
{
    static const struct json_member members[] = {
        {"name", JSON_TEXT, 0, NULL, NULL}, MEMBER_BY("parameters", read_parameters, 0), {NULL}};
    JSON_EACH (r->js) {
        uint32_t name = 0;
        json_read_object(r, members, &name);
        array_push(&plan_of(r)->models, name);
    }
}

static void read_world_size(struct json_reader *r, void *out, size_t offset UNUSED)
{
    int64_t value = 0;
    ((struct plan_file *)out)->world_size = read_whole(r, &value) ? value : 0;
}

static void read_job(struct json_reader *r, void *out, size_t offset UNUSED)
{
    static const struct json_member members[] = {
        MEMBER(struct plan_file, "framework", TEXT, framework),
        MEMBER(struct plan_file, "stack", TEXT, stack),
        MEMBER(struct plan_file, "device", TEXT, device),
        MEMBER_BY("world_size", read_world_size, 0),
        MEMBER_BY("models", read_models, 0),
        {NULL}};
    json_read_object(r, members, out);
}

static void read_ms(struct json_reader *r, void *out, size_t offset)
{
    int64_t ns;
    if (json_read_decimal(r->js, MS_IN_NS, &ns) == JSON_VALUE && ns >= 0)
        *(int64_t *)((char *)out + offset) = ns;
}

static void read_expected(struct json_reader *r, void *out, size_t offset UNUSED)
{
    static const struct json_member members[] = {
        MEMBER_BY("baseline_ms", read_ms, offsetof(struct plan_file, baseline_ns)),
        MEMBER_BY("iteration_ms", read_ms, offsetof(struct plan_file, iteration_ns)),
        MEMBER(struct plan_file, "uncertainty_pct", NUMBER, uncertainty_pct),
        {NULL}};
    struct plan_file *plan = out;
    json_read_object(r, members, plan);
    if (plan->uncertainty_pct < 0)
        plan->uncertainty_pct = 0;
}

/* ---- buckets ---- */

static void read_names(struct json_reader *r, void *out, size_t offset UNUSED)
{
    struct plan_file_bucket *bucket = out;
    struct plan_file *plan = plan_of(r);
    if (!json_open(r->js, '['))
        stop(r, "bucket %zu: its parameters are no list of names", plan->buckets.n);
    bucket->first = plan->names.n;
    while (json_array_next(r->js)) {
        if (json_peek(r->js) != '"')
            stop(r, "bucket %zu: a parameter's name is a text in quotes", plan->buckets.n);
        else
            array_push(&plan->names, json_read_text(r));
    }
    bucket->n = plan->names.n - bucket->first;
}

static void read_model(struct json_reader *r, void *out, size_t offset UNUSED)
{
    struct plan_file_bucket *bucket = out;
    if (json_read_unsigned(r->js, &bucket->model) != JSON_VALUE)
        bucket->model = UINT64_MAX;
}

static const struct limited {
    const char *key;
    int64_t least, most;
    size_t offset; /* of a bucket's 32 bits */
} limited[] = {
    {"partitions", 1, PLAN_MOST_PARTITIONS, offsetof(struct plan_file_bucket, partitions)},
    {"server", 0, INT32_MAX, offsetof(struct plan_file_bucket, server)},
    {"priority", INT32_MIN, INT32_MAX, offsetof(struct plan_file_bucket, priority)},
};

static void read_limited(struct json_reader *r, void *out, size_t index)
{
    const struct limited *to = &limited[index];
    int64_t value = 0;
    if (!read_whole(r, &value) || value < to->least || value > to->most)
        stop(r, "bucket %zu: %s is not between %lld and %lld", plan_of(r)->buckets.n, to->key,
             (long long)to->least, (long long)to->most);
    *(int32_t *)((char *)out + to->offset) = (int32_t)value;
}

/* An object, or a plain list of names. */
static void read_bucket(struct json_reader *r)
{
    static const struct json_member members[] = {
        MEMBER_BY("parameters", read_names, 0),
        MEMBER_BY("model", read_model, 0),
        MEMBER(struct plan_file_bucket, "size_bytes", SIZE, size_bytes),
        MEMBER_BY("partitions", read_limited, 0),
        MEMBER_BY("server", read_limited, 1),
        MEMBER_BY("priority", read_limited, 2),
        {NULL}};
    struct plan_file_bucket bucket = {.partitions = 1, .size_bytes = PLAN_NO_SIZE, .server = -1};
    if (json_peek(r->js) == '{')
        json_read_object(r, members, &bucket);
    else
        read_names(r, &bucket, 0);
    if (r->js->fail == JSON_OK && bucket.n == 0)
        stop(r, "bucket %zu is empty", plan_of(r)->buckets.n);
    array_push(&plan_of(r)->buckets, bucket);
}

static void read_module(struct json_reader *r, name_array *list)
{
    if (json_peek(r->js) != '"')
        stop(r, "a module's name is a text in quotes");
    else
        array_push(list, json_read_text(r));
}

/* Into one of a plan's lists of names. */
static void read_modules(struct json_reader *r, void *out, size_t offset)
{
    if (!json_open(r->js, '['))
        stop(r, "a list of modules is no list");
    while (json_array_next(r->js))
        read_module(r, (name_array *)((char *)out + offset));
}

#define MODULES(key, member) MEMBER_BY(key, read_modules, offsetof(struct plan_file, member))

static void read_buckets(struct json_reader *r, void *out, size_t offset UNUSED)
{
    const struct plan_file *plan = out;
    if (plan->buckets.n > 0)
        stop(r, "two lists of buckets");
    else if (!json_open(r->js, '['))
        stop(r, "buckets are no list");
    while (json_array_next(r->js)) {
        if (plan->is_list && plan->buckets.n == 0 && json_peek(r->js) == '"')
            read_module(r, &plan_of(r)->recomputed);
        else
            read_bucket(r);
    }
}

static void read_compression(struct json_reader *r, void *out, size_t offset UNUSED)
{
    struct plan_file *plan = out;
    const char *text = "no text";
    if (json_peek(r->js) == '"')
        text = strtab_get(&plan->strings, json_read_text(r));
    for (int c = DPRO_COMPRESSION_NONE; c <= DPRO_COMPRESSION_BF16; c++)
        if (strcmp(dpro_compression_name((enum dpro_compression)c), text) == 0) {
            plan->compression = (enum dpro_compression)c;
            return;
        }
    stop(r, "compression is %.80s, not none, fp16 or bf16", text);
}

static void read_cycle(struct json_reader *r, void *out, size_t offset UNUSED)
{
    struct plan_file *plan = out;
    if (json_read_decimal(r->js, MS_IN_NS, &plan->cycle_ns) != JSON_VALUE || plan->cycle_ns <= 0)
        stop(r, "cycle_time_ms is no time above 0");
}

static void read_threshold(struct json_reader *r, void *out, size_t offset UNUSED)
{
    struct plan_file *plan = out;
    plan->fuses = true;
    if (json_read_unsigned(r->js, &plan->fusion_bytes) != JSON_VALUE)
        stop(r, "fusion_threshold_bytes is no number of bytes");
}

static void read_servers(struct json_reader *r, void *out, size_t offset UNUSED)
{
    int64_t value = 0;
    if (!read_whole(r, &value) || value < 1 || value > PLAN_MOST_SERVERS)
        stop(r, "servers is not between 1 and %d", PLAN_MOST_SERVERS);
    ((struct plan_file *)out)->n_servers = (uint32_t)value;
}

static void read_communication(struct json_reader *r, void *out, size_t offset UNUSED)
{
    static const struct json_member members[] = {
        MEMBER_BY("buckets", read_buckets, 0),
        MEMBER_BY("compression", read_compression, 0),
        MEMBER_BY("cycle_time_ms", read_cycle, 0),
        MEMBER_BY("fusion_threshold_bytes", read_threshold, 0),
        MEMBER_BY("servers", read_servers, 0),
        {NULL}};
    if (!json_read_object(r, members, out))
        stop(r, "communication is no object");
}

/* ---- computation ---- */

/* Nothing here can use more of them than that they are there. */
static void read_fused_ops(struct json_reader *r, void *out, size_t offset UNUSED)
{
    JSON_EACH (r->js) {
        json_skip(r->js);
        ((struct plan_file *)out)->n_fused_ops++;
    }
}

static void read_computation(struct json_reader *r, void *out, size_t offset UNUSED)
{
    static const struct json_member members[] = {
        MEMBER_BY("fused_ops", read_fused_ops, 0),
        MODULES("compile", compiled),
        MODULES("bf16", in_bf16),
        MEMBER(struct plan_file, "changes_numerics", TRUE, changes_numerics),
        {NULL}};
    json_read_object(r, members, out);
}

/* ---- memory ---- */

static void read_micro_batches(struct json_reader *r, void *out, size_t offset UNUSED)
{
    int64_t value = 0;
    if (!read_whole(r, &value) || value < 1 || value > PLAN_MOST_MICRO_BATCHES)
        stop(r, "micro_batches is not between 1 and %d", PLAN_MOST_MICRO_BATCHES);
    ((struct plan_file *)out)->micro_batches = (uint32_t)value;
}

#define BYTES(key, member) MEMBER(struct plan_file, key, SIZE, member)

static void read_memory(struct json_reader *r, void *out, size_t offset UNUSED)
{
    static const struct json_member members[] = {
        MODULES("recompute", recomputed),    MEMBER_BY("micro_batches", read_micro_batches, 0),
        BYTES("budget_bytes", budget_bytes), BYTES("baseline_peak_bytes", baseline_peak_bytes),
        BYTES("peak_bytes", peak_bytes),     {NULL}};
    if (!json_read_object(r, members, out))
        stop(r, "memory is no object");
}

/* ---- FSDP ---- */

static void read_units(struct json_reader *r, void *out UNUSED, size_t offset UNUSED)
{
    static const struct json_member members[] = {
        MEMBER(struct plan_file_unit, "name", TEXT, name),
        MEMBER(struct plan_file_unit, "reshard_after_forward", TRUE, reshards),
        {NULL}};
    if (!json_open(r->js, '['))
        stop(r, "sharding: units are no list");
    while (json_array_next(r->js)) {
        struct plan_file_unit unit = {.name = 0};
        if (!json_read_object(r, members, &unit))
            stop(r, "unit %zu is no object", plan_of(r)->units.n);
        array_push(&plan_of(r)->units, unit);
    }
}

static void read_prefetch(struct json_reader *r, void *out, size_t offset UNUSED)
{
    int64_t value = 0;
    if (!read_whole(r, &value) || value < 0 || value > PLAN_MOST_PREFETCH)
        stop(r, "sharding: prefetch is not between 0 and %d", PLAN_MOST_PREFETCH);
    ((struct plan_file *)out)->prefetch = (uint32_t)value;
}

static void read_sharding(struct json_reader *r, void *out, size_t offset UNUSED)
{
    static const struct json_member members[] = {
        MEMBER_BY("units", read_units, 0), MEMBER_BY("prefetch", read_prefetch, 0), {NULL}};
    if (!json_read_object(r, members, out))
        stop(r, "sharding is no object");
}

/* ---- all of it ---- */

static const char no_schema[] = "no plan: its schema is none of dpro.plan/1 to dpro.plan/5";

/* Each version is the one before with more: 2 has fused ops, 3 memory, 4 how modules are computed,
 * 5 units of FSDP. */
static void read_schema(struct json_reader *r, void *out UNUSED, size_t offset UNUSED)
{
    const char *text = strtab_get(r->strings, json_read_text(r));
    reading_of(r)->has_schema = true;
    if (strncmp(text, "dpro.plan/", 10) != 0)
        stop(r, "%s", no_schema);
    else if (text[10] < '1' || text[10] > '5' || text[11] != '\0')
        stop(r,
             "written as %.80s by another version of dpro, this one reads dpro.plan/1 to "
             "dpro.plan/5",
             text);
}

static void read_plan(struct json_reader *r)
{
    static const struct json_member members[] = {MEMBER_BY("schema", read_schema, 0),
                                                 MEMBER_BY("job", read_job, 0),
                                                 MEMBER_BY("expected", read_expected, 0),
                                                 MEMBER_BY("communication", read_communication, 0),
                                                 MEMBER_BY("computation", read_computation, 0),
                                                 MEMBER_BY("memory", read_memory, 0),
                                                 MEMBER_BY("sharding", read_sharding, 0),
                                                 {NULL}};
    json_read_object(r, members, plan_of(r));
    if (r->js->fail == JSON_OK && !reading_of(r)->has_schema)
        stop(r, "%s", no_schema);
}

static int read_input(struct plan_file *plan, struct input *in, struct dpro_error *err)
{
    struct json js;
    struct reading reading = {.plan = plan};
    struct json_reader r = {&js, &plan->strings, &reading};
    json_init(&js, in, 0, err);
    strtab_add(&plan->strings, "", 0);
    json_skip_mark(&js);
    int c = json_peek(&js);
    plan->is_list = c == '[';
    if (c == '{')
        read_plan(&r);
    else if (c == '[')
        read_buckets(&r, plan, 0);
    else
        json_stop(&js, c < 0 ? JSON_ENDED : JSON_BAD);
    int rc = reading.why.code
                 ? dpro_error_set(err, DPRO_EFORMAT, "%s: %s", plan->path, reading.why.text)
                 : json_result(&js, "not a list of buckets, nor a plan");
    json_fini(&js);
    return rc;
}

int plan_file_read(const char *path, struct plan_file *plan, struct dpro_error *err)
{
    struct stat info;
    struct input in;
    bool is_folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    *plan = (struct plan_file){.path = mem_format(is_folder ? "%s/plan.json" : "%s", path)};
    int rc = input_open(&in, plan->path, err);
    if (rc == DPRO_EIO) { /* what was named can't be read: bad input */
        struct dpro_error why = *err;
        return dpro_error_set(err, DPRO_EFORMAT, "%s; 'dpro optimize TRACE -o DIR' makes a plan",
                              why.text);
    }
    if (rc == 0) {
        rc = read_input(plan, &in, err);
        input_close(&in);
    }
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
    array_fini(&plan->compiled);
    array_fini(&plan->in_bf16);
    array_fini(&plan->recomputed);
    array_fini(&plan->units);
    array_fini(&plan->members);
}
