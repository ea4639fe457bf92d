/* Reads plans. Keys come in any order; unknown ones are passed over. */
#include "plan/plan.h"

#include <dpro/model.h>
#include <sys/stat.h>

#include "base/json_members.h"

/* The argument of the reader. */
static struct plan_file *plan_of(struct json_reader *r)
{
    return r->arg;
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
        {.key = "name", .type = JSON_TEXT}, MEMBER_BY("parameters", read_parameters, 0), {NULL}};
    JSON_EACH (r->js) {
        uint32_t name = 0;
        json_read_object(r, members, &name);
        array_push(&plan_of(r)->models, name);
    }
}

static const struct json_member job[] = {
    MEMBER(struct plan_file, "framework", TEXT, framework),
    MEMBER(struct plan_file, "stack", TEXT, stack),
    MEMBER(struct plan_file, "device", TEXT, device),
    MEMBER(struct plan_file, "world_size", WHOLE, world_size, FROM_TO(1, INT32_MAX)),
    MEMBER_BY("models", read_models, 0),
    {NULL}};

static const struct json_member expected[] = {
    MEMBER(struct plan_file, "baseline_ms", MS, baseline_ns),
    MEMBER(struct plan_file, "iteration_ms", MS, iteration_ns),
    MEMBER(struct plan_file, "uncertainty_pct", NUMBER, uncertainty_pct),
    {NULL}};

/* ---- communication ---- */

static void read_names(struct json_reader *r, void *out, size_t offset UNUSED)
{
    struct plan_file_bucket *bucket = out;
    struct plan_file *plan = plan_of(r);
    bucket->first = plan->names.n;
    json_read_names(r, &plan->names);
    bucket->n = plan->names.n - bucket->first;
}

/* An object, or a plain list of names. */
static void read_bucket(struct json_reader *r)
{
    static const struct json_member members[] = {
        MEMBER_BY("parameters", read_names, 0),
        MEMBER(struct plan_file_bucket, "model", WHOLE, model, FROM_TO(0, INT32_MAX)),
        MEMBER(struct plan_file_bucket, "size_bytes", SIZE, size_bytes),
        MEMBER(struct plan_file_bucket, "partitions", WHOLE, partitions,
               FROM_TO(1, PLAN_MOST_PARTITIONS)),
        MEMBER(struct plan_file_bucket, "server", WHOLE, server, FROM_TO(0, INT32_MAX)),
        MEMBER(struct plan_file_bucket, "priority", WHOLE, priority, FROM_TO(INT32_MIN, INT32_MAX)),
        {NULL}};
    struct plan_file_bucket bucket = {.partitions = 1, .size_bytes = PLAN_NO_SIZE, .server = -1};
    if (json_peek(r->js) == '{')
        json_read_object(r, members, &bucket);
    else
        read_names(r, &bucket, 0);
    if (bucket.n == 0)
        json_refuse(r, "is empty");
    array_push(&plan_of(r)->buckets, bucket);
}

static void read_buckets(struct json_reader *r, void *out, size_t offset UNUSED)
{
    struct plan_file *plan = out;
    bool is_list = json_must_open(r);
    while (is_list && json_next_item(r)) {
        if (plan->is_list && plan->buckets.n == 0 && json_peek(r->js) == '"')
            array_push(&plan->recomputed, json_read_text(r));
        else
            read_bucket(r);
    }
}

static void read_compression(struct json_reader *r, void *out, size_t offset UNUSED)
{
    struct plan_file *plan = out;
    const char *text = strtab_get(&plan->strings, json_read_text(r));
    for (int c = DPRO_COMPRESSION_NONE; c <= DPRO_COMPRESSION_BF16; c++)
        if (strcmp(dpro_compression_name((enum dpro_compression)c), text) == 0) {
            plan->compression = (enum dpro_compression)c;
            return;
        }
    json_refuse(r, "is '%.80s', not none, fp16 or bf16", text);
}

static void read_cycle(struct json_reader *r, void *out, size_t offset UNUSED)
{
    struct plan_file *plan = out;
    if (json_read_decimal(r->js, 6, &plan->cycle_ns) != JSON_VALUE || plan->cycle_ns <= 0)
        json_refuse(r, "has to be a time above 0");
}

static void read_threshold(struct json_reader *r, void *out, size_t offset UNUSED)
{
    struct plan_file *plan = out;
    plan->fuses = true;
    if (json_read_unsigned(r->js, &plan->fusion_bytes) != JSON_VALUE)
        json_refuse(r, "has to be a number of bytes");
}

static const struct json_member communication[] = {
    {.key = "buckets", .type = JSON_BY_READING, .read = read_buckets, .once = true},
    MEMBER_BY("compression", read_compression, 0),
    MEMBER_BY("cycle_time_ms", read_cycle, 0),
    MEMBER_BY("fusion_threshold_bytes", read_threshold, 0),
    MEMBER(struct plan_file, "servers", WHOLE, n_servers, FROM_TO(1, PLAN_MOST_SERVERS)),
    {NULL}};

/* ---- computation, memory, FSDP ---- */

static const struct json_member computation[] = {
    MEMBER(struct plan_file, "compile", NAMES, compiled),
    MEMBER(struct plan_file, "bf16", NAMES, in_bf16),
    MEMBER(struct plan_file, "changes_numerics", TRUE, changes_numerics),
    {NULL}};

static const struct json_member memory[] = {
    MEMBER(struct plan_file, "recompute", NAMES, recomputed),
    MEMBER(struct plan_file, "micro_batches", WHOLE, micro_batches,
           FROM_TO(1, PLAN_MOST_MICRO_BATCHES)),
    MEMBER(struct plan_file, "budget_bytes", SIZE, budget_bytes),
    MEMBER(struct plan_file, "baseline_peak_bytes", SIZE, baseline_peak_bytes),
    MEMBER(struct plan_file, "peak_bytes", SIZE, peak_bytes),
    {NULL}};

static void read_units(struct json_reader *r, void *out, size_t offset UNUSED)
{
    static const struct json_member members[] = {
        MEMBER(struct plan_file_unit, "name", TEXT, name),
        MEMBER(struct plan_file_unit, "reshard_after_forward", TRUE, reshards),
        {NULL}};
    bool is_list = json_must_open(r);
    while (is_list && json_next_item(r)) {
        struct plan_file_unit unit = {.name = 0};
        if (!json_read_object(r, members, &unit))
            json_refuse(r, "has to be an object");
        array_push(&((struct plan_file *)out)->units, unit);
    }
}

static const struct json_member sharding[] = {
    MEMBER_BY("units", read_units, 0),
    MEMBER(struct plan_file, "prefetch", WHOLE, prefetch, FROM_TO(0, PLAN_MOST_PREFETCH)),
    {NULL}};

/* ---- all of it ---- */

/* Each version is the one before with more: 2 had fused ops, 3 memory, 4 how modules are computed,
 * 5 units of FSDP. */
static void read_schema(struct json_reader *r, void *out, size_t offset UNUSED)
{
    const char *text = strtab_get(r->strings, json_read_text(r));
    ((struct plan_file *)out)->has_schema = true;
    if (strncmp(text, "dpro.plan/", 10) != 0)
        json_refuse(r, "is '%.80s', not a plan's (dpro.plan/1 to dpro.plan/5)", text);
    else if (text[10] < '1' || text[10] > '5' || text[11] != '\0')
        json_refuse(r,
                    "is '%.80s', of another version of dpro: this one reads dpro.plan/1 to "
                    "dpro.plan/5",
                    text);
}

static const struct json_member members_of_plan[] = {
    MEMBER_BY("schema", read_schema, 0),
    MEMBER_IN("job", job),
    MEMBER_IN("expected", expected),
    MEMBER_IN("communication", communication, .must = true),
    MEMBER_IN("computation", computation),
    MEMBER_IN("memory", memory, .must = true),
    MEMBER_IN("sharding", sharding, .must = true),
    {NULL}};

void plan_file_read_within(struct json_reader *reader, struct plan_file *plan)
{
    *plan = (struct plan_file){.path = mem_copy_string(reader->js->in->path)};
    struct json_reader r = {.js = reader->js, .strings = &plan->strings, .arg = plan};
    json_read_object(&r, members_of_plan, plan);
    if (r.why.code < 0)
        reader->why = r.why;
}

static void read_input(struct plan_file *plan, struct input *in)
{
    struct dpro_error why;
    struct json js;
    struct json_reader r = {.js = &js, .strings = &plan->strings, .arg = plan};
    json_init(&js, in, 0, &why);
    json_skip_mark(&js);
    int c = json_peek(&js);
    plan->is_list = c == '[';
    if (c == '{')
        json_read_object(&r, members_of_plan, plan);
    else if (c == '[')
        read_buckets(&r, plan, 0);
    else
        json_stop(&js, c < 0 ? JSON_ENDED : JSON_BAD);
    if (c == '{' && !plan->has_schema)
        json_refuse(&r, "not a plan: its schema is none of dpro.plan/1 to dpro.plan/5");
    plan->uncertainty_pct = plan->uncertainty_pct > 0 ? plan->uncertainty_pct : 0;
    fail_on(json_reader_result(&r, "not a list of buckets, nor a plan"), &why);
    json_fini(&js);
}

void plan_file_read(const char *path, struct plan_file *plan)
{
    struct dpro_error why;
    struct stat info;
    struct input in;
    bool is_folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    *plan = (struct plan_file){.path = mem_format(is_folder ? "%s/plan.json" : "%s", path)};
    int rc = input_open(&in, plan->path, &why);
    if (rc == DPRO_EIO) /* what was named can't be read: bad input */
        fail_with(DPRO_EFORMAT, "%s; 'dpro optimize TRACE -o DIR' makes a plan", why.text);
    fail_on(rc, &why);
    read_input(plan, &in);
    input_close(&in);
}

void plan_file_fini(struct plan_file *plan)
{
    mem_free(plan->path);
    strtab_fini(&plan->strings);
    FREE_ALL(&plan->models, &plan->parameters, &plan->buckets, &plan->names, &plan->compiled,
             &plan->in_bf16, &plan->recomputed, &plan->units, &plan->members);
}

/* ---- what stacks and precisions are called in plans and reports ---- */

const char *dpro_stack_name(enum dpro_stack stack)
{
    static const char *const names[] = {[DPRO_STACK_DDP] = "ddp",
                                        [DPRO_STACK_HOROVOD] = "horovod",
                                        [DPRO_STACK_TENSORFLOW_RING] = "tensorflow-ring",
                                        [DPRO_STACK_TENSORFLOW_PS] = "tensorflow-ps",
                                        [DPRO_STACK_MXNET_PS] = "mxnet-ps",
                                        [DPRO_STACK_BYTEPS] = "byteps"};
    return names[stack];
}

const char *dpro_compression_name(enum dpro_compression compression)
{
    static const char *const names[] = {"none", "fp16", "bf16"};
    return names[compression];
}
