/* ingest/rank_json.c: rank.json (dpro.rank/1) and job.json (dpro.job/1), as described in
 * doc/formats/trace-directory.md. Keys come in any order; what is not known is skipped. */
#include "ingest/rank_json.h"

#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "ingest/rank_job.h"

static void fini(void *payload)
{
    struct recording *recording = payload;
    array_fini(&recording->models);
    array_fini(&recording->parameters);
    array_fini(&recording->buckets);
    array_fini(&recording->members);
    array_fini(&recording->steps);
    array_fini(&recording->warnings);
}

const struct payload_kind recording_payload = {sizeof(struct recording), fini, NULL};

void recording_destroy(struct recording *recording)
{
    if (recording)
        fini(recording);
    mem_free(recording);
}

void recording_rename(struct recording *recording, const uint32_t *names)
{
    for (size_t i = 0; i < recording->models.n; i++) {
        recording->models.at[i].name = names[recording->models.at[i].name];
        recording->models.at[i].parallel = names[recording->models.at[i].parallel];
    }
    for (size_t i = 0; i < recording->parameters.n; i++)
        recording->parameters.at[i].name = names[recording->parameters.at[i].name];
    for (size_t i = 0; i < recording->buckets.n; i++)
        recording->buckets.at[i].name = names[recording->buckets.at[i].name];
    recording->plan.path = names[recording->plan.path];
    recording->plan.reason = names[recording->plan.reason];
}

struct reading {
    struct part_reader r;
    struct recording *out;
};

static struct reading *reading_of(struct part_reader *r)
{
    return (struct reading *)r; /* its first member */
}

static int64_t read_int(struct part_reader *r, int64_t none)
{
    int64_t v;
    return json_read_decimal(r->js, 0, &v) == JSON_VALUE ? v : none;
}

static uint64_t read_size(struct part_reader *r)
{
    uint64_t v;
    return json_read_unsigned(r->js, &v) == JSON_VALUE ? v : 0;
}

/* The next element of a list that is an object; others are counted and skipped. */
static bool next_object(struct part_reader *r)
{
    while (json_array_next(r->js)) {
        if (json_peek(r->js) == '{')
            return true;
        reading_of(r)->out->n_broken++;
        json_skip(r->js);
    }
    return false;
}

/* ---- models ---- */

static void read_shape(struct part_reader *r, void *out, size_t offset UNUSED)
{
    struct recorded_parameter *p = out;
    p->numel = 0;
    if (!json_open(r->js, '['))
        return;
    p->numel = 1;
    while (json_array_next(r->js))
        if (__builtin_mul_overflow(p->numel, read_size(r), &p->numel))
            p->numel = UINT64_MAX;
}

static void read_parameters(struct part_reader *r, void *out UNUSED, size_t offset UNUSED)
{
    static const struct part_member members[] = {
        MEMBER(struct recorded_parameter, "name", TEXT, name),
        MEMBER_BY("shape", read_shape, 0),
        MEMBER(struct recorded_parameter, "size_bytes", SIZE, size_bytes),
        {NULL}};
    if (!json_open(r->js, '['))
        return;
    while (next_object(r)) {
        struct recorded_parameter p = {0};
        part_read_object(r, members, &p);
        if (r->js->fail == JSON_OK)
            array_push(&reading_of(r)->out->parameters, p);
    }
}

static void read_bucket_members(struct part_reader *r, void *out, size_t offset UNUSED)
{
    struct recorded_bucket *bucket = out;
    struct recording *recording = reading_of(r)->out;
    if (!json_open(r->js, '['))
        return;
    while (json_array_next(r->js)) {
        uint64_t index = read_size(r);
        uint32_t member = index < UINT32_MAX ? (uint32_t)index : UINT32_MAX;
        if (recording->members.n >= UINT32_MAX - 1)
            mem_fail();
        array_push(&recording->members, member);
        bucket->n++;
    }
}

/* buckets or fsdp.units: indices of parameters, which may be listed further on. *(out + offset) is
 * the list's first index and, behind it, its length. */
static void read_buckets(struct part_reader *r, void *out, size_t offset)
{
    static const struct part_member members[] = {
        MEMBER_BY("parameters", read_bucket_members, 0),
        MEMBER(struct recorded_bucket, "size_bytes", SIZE, size_bytes),
        MEMBER(struct recorded_bucket, "name", TEXT, name),
        {NULL}};
    struct recording *recording = reading_of(r)->out;
    uint32_t *list = (uint32_t *)((char *)out + offset);
    list[0] = (uint32_t)recording->buckets.n;
    list[1] = 0;
    if (!json_open(r->js, '['))
        return;
    while (next_object(r)) {
        struct recorded_bucket bucket = {.model = (uint32_t)recording->models.n,
                                         .first = (uint32_t)recording->members.n};
        part_read_object(r, members, &bucket);
        if (r->js->fail != JSON_OK)
            return;
        array_push(&recording->buckets, bucket);
        list[1]++;
    }
}

static void read_fsdp(struct part_reader *r, void *out, size_t offset UNUSED)
{
    static const struct part_member members[] = {
        MEMBER_BY("units", read_buckets, offsetof(struct recorded_model, first_unit)), {NULL}};
    part_read_object(r, members, out);
}

/* Sums a bucket's elements; one with a member that is no parameter has none. */
static void check_bucket(struct recorded_bucket *bucket, const struct recorded_model *model,
                         struct recording *out)
{
    uint64_t size_bytes = 0;
    for (uint32_t i = bucket->first; i < bucket->first + bucket->n; i++) {
        if (out->members.at[i] >= model->n_parameters) {
            bucket->n = 0;
            bucket->numel = 0;
            out->n_broken++;
            return;
        }
        out->members.at[i] += model->first_parameter;
        const struct recorded_parameter *p = &out->parameters.at[out->members.at[i]];
        if (__builtin_add_overflow(bucket->numel, p->numel, &bucket->numel))
            bucket->numel = UINT64_MAX;
        if (__builtin_add_overflow(size_bytes, p->size_bytes, &size_bytes))
            size_bytes = UINT64_MAX;
    }
    if (bucket->size_bytes == 0)
        bucket->size_bytes = size_bytes;
}

static void read_models(struct part_reader *r, void *ignored UNUSED, size_t offset UNUSED)
{
    static const struct part_member members[] = {
        MEMBER(struct recorded_model, "name", TEXT, name),
        MEMBER(struct recorded_model, "parallel", TEXT, parallel),
        MEMBER_BY("parameters", read_parameters, 0),
        MEMBER_BY("buckets", read_buckets, offsetof(struct recorded_model, first_bucket)),
        MEMBER_BY("fsdp", read_fsdp, 0),
        {NULL}};
    struct recording *out = reading_of(r)->out;
    if (!json_open(r->js, '['))
        return;
    while (next_object(r)) {
        struct recorded_model model = {.first_parameter = (uint32_t)out->parameters.n};
        size_t bucket = out->buckets.n; /* a file may have a list twice, all are checked */
        part_read_object(r, members, &model);
        model.n_parameters = (uint32_t)out->parameters.n - model.first_parameter;
        for (; bucket < out->buckets.n; bucket++)
            check_bucket(&out->buckets.at[bucket], &model, out);
        array_push(&out->models, model);
    }
}

/* ---- steps ---- */

static void read_step_list(struct part_reader *r, void *ignored, size_t window)
{
    static const struct part_member members[] = {
        MEMBER(struct recorded_step, "step", INT, number),
        MEMBER(struct recorded_step, "start_ns", INT, start_ns),
        MEMBER(struct recorded_step, "end_ns", INT, end_ns),
        {NULL}};
    struct recording *out = reading_of(r)->out;
    (void)ignored;
    if (window == RECORDED_TIMING)
        out->n_timing = 0; /* of an earlier list */
    if (!json_open(r->js, '['))
        return;
    while (next_object(r)) {
        out->n_timing += window == RECORDED_TIMING;
        struct recorded_step step = {.window = (uint8_t)window};
        part_read_object(r, members, &step);
        if (r->js->fail != JSON_OK)
            return;
        if (!trace_time_fits(step.start_ns) || !trace_time_fits(step.end_ns) ||
            step.end_ns <= step.start_ns)
            out->n_broken++;
        else
            array_push(&out->steps, step);
    }
}

static void read_steps(struct part_reader *r, void *out, size_t offset UNUSED)
{
    static const struct part_member members[] = {
        MEMBER_BY("before", read_step_list, RECORDED_BEFORE),
        MEMBER_BY("timing", read_step_list, RECORDED_TIMING),
        MEMBER_BY("structure", read_step_list, RECORDED_STRUCTURE),
        MEMBER_BY("after", read_step_list, RECORDED_AFTER),
        {NULL}};
    part_read_object(r, members, out);
}

/* ---- the rest ---- */

static void read_op_ns(struct part_reader *r, void *out, size_t offset UNUSED)
{
    enum { MOST_NS = 1000000 }; /* more was not measured with care */
    int64_t ns = read_int(r, -1);
    ((struct recording *)out)->profiler_op_ns = ns >= 0 && ns <= MOST_NS ? ns : -1;
}

static void read_profiler(struct part_reader *r, void *out, size_t offset UNUSED)
{
    static const struct part_member members[] = {MEMBER_BY("op_ns", read_op_ns, 0), {NULL}};
    part_read_object(r, members, out);
}

static void read_expected(struct part_reader *r, void *out, size_t offset UNUSED)
{
    struct {
        double baseline_ms, iteration_ms, uncertainty_pct;
    } expected = {0};
    const struct part_member members[] = {
        MEMBER(__typeof__(expected), "baseline_ms", NUMBER, baseline_ms),
        MEMBER(__typeof__(expected), "iteration_ms", NUMBER, iteration_ms),
        MEMBER(__typeof__(expected), "uncertainty_pct", NUMBER, uncertainty_pct),
        {NULL}};
    struct recorded_plan *plan = out;
    part_read_object(r, members, &expected);
    plan->baseline_ns = (int64_t)(1e6 * expected.baseline_ms);
    plan->iteration_ns = (int64_t)(1e6 * expected.iteration_ms);
    plan->uncertainty_pct = expected.uncertainty_pct;
}

static void read_plan(struct part_reader *r, void *out, size_t offset UNUSED)
{
    static const struct part_member members[] = {
        MEMBER(struct recorded_plan, "path", TEXT, path),
        MEMBER(struct recorded_plan, "applied", BOOL, applied),
        MEMBER(struct recorded_plan, "reason", TEXT, reason),
        MEMBER_BY("expected", read_expected, 0),
        {NULL}};
    struct recorded_plan *plan = &((struct recording *)out)->plan;
    plan->asked |= part_read_object(r, members, plan);
}

static void read_fusion(struct part_reader *r, void *out, size_t offset UNUSED)
{
    static const struct part_member members[] = {
        MEMBER(struct recorded_fusion, "fusion_threshold_bytes", SIZE, most_bytes),
        MEMBER(struct recorded_fusion, "in_groups", BOOL, in_groups),
        {NULL}};
    struct recorded_fusion *fusion = &((struct recording *)out)->fusion;
    fusion->is_set |= part_read_object(r, members, fusion);
}

static void read_groups(struct part_reader *r, void *out UNUSED, size_t offset UNUSED)
{
    if (!json_open(r->js, '['))
        return;
    while (next_object(r))
        part_read_group(r, "name", "description");
}

static void read_rank(struct part_reader *r, void *out UNUSED, size_t offset UNUSED)
{
    int64_t rank = read_int(r, -1);
    r->part->has_rank = rank >= 0 && rank <= INT32_MAX;
    r->part->rank = r->part->has_rank ? (int)rank : 0;
}

static void read_world_size(struct part_reader *r, void *out UNUSED, size_t offset UNUSED)
{
    int64_t size = read_int(r, 0);
    r->part->world_size = size > 0 && size <= INT32_MAX ? (int)size : 0;
}

static void read_pid(struct part_reader *r, void *out UNUSED, size_t offset UNUSED)
{
    r->part->pid = read_size(r);
}

/* A text of the part's. */
static void read_name(struct part_reader *r, void *out UNUSED, size_t offset)
{
    *(uint32_t *)((char *)r->part + offset) = part_read_text(r->part, r->js);
}

static void read_schema(struct part_reader *r, void *out UNUSED, size_t offset UNUSED)
{
    const char *schema = strtab_get(&r->part->names, part_read_text(r->part, r->js));
    r->part->of_job = strncmp(schema, "dpro.job/", 9) == 0;
}

static void read_warnings(struct part_reader *r, void *out, size_t offset UNUSED)
{
    struct recording *recording = out;
    recording->warnings.n = 0; /* of an earlier key of this name */
    if (!json_open(r->js, '['))
        return;
    while (json_array_next(r->js)) {
        uint32_t text = part_read_text(r->part, r->js);
        if (text)
            array_push(&recording->warnings, text);
    }
}

static int read_document(struct json *js, struct trace_part *part, struct dpro_error *err UNUSED)
{
    static const struct part_member members[] = {
        MEMBER_BY("rank", read_rank, 0),
        MEMBER_BY("world_size", read_world_size, 0),
        MEMBER_BY("schema", read_schema, 0),
        MEMBER(struct recording, "complete", BOOL, complete),
        MEMBER_BY("pid", read_pid, 0),
        MEMBER_BY("host_name", read_name, offsetof(struct trace_part, host)),
        MEMBER_BY("backend", read_name, offsetof(struct trace_part, backend)),
        MEMBER(struct recording, "boot_id", TEXT, boot_id),
        MEMBER_BY("warnings", read_warnings, 0),
        MEMBER_BY("process_groups", read_groups, 0),
        MEMBER_BY("profiler", read_profiler, 0),
        MEMBER_BY("models", read_models, 0),
        MEMBER_BY("plan", read_plan, 0),
        MEMBER_BY("horovod", read_fusion, 0),
        MEMBER_BY("steps", read_steps, 0),
        {NULL}};
    struct reading reading = {.r = {.js = js, .part = part}};
    const char *key;
    size_t len;
    reading.out = part_make_payload(part, &recording_payload);
    strtab_add(&part->names, "", 0);
    reading.out->profiler_op_ns = -1;
    if (!json_open_document(js))
        return 0;
    while (json_object_next(js, &key, &len)) {
        part_read_member(&reading.r, members, key, len, reading.out);
        part->n_events++;
    }
    if (js->fail != JSON_OK)
        reading.out->complete = false;
    return 0;
}

static bool recognise(const struct head *head)
{
    return head->piece == HEAD_MEMBER && strcmp(head->key, "schema") == 0 &&
           (strncmp(head->text, "dpro.rank/", 10) == 0 || strncmp(head->text, "dpro.job/", 9) == 0);
}

/* What a rank's recorder says of it goes to the rank. */
static void reserve(struct trace_build *build, struct rank_job *job, struct rank_room *room UNUSED)
{
    struct trace_rank *rank = job->rank;
    for (size_t i = 0; i < build->list.n && !rank->recording; i++) {
        struct source *source = &build->list.at[i];
        if (source->rank != rank->rank || !source_payload(source, &recording_payload))
            continue;
        rank->recording = part_take_payload(&source->part, &recording_payload);
        recording_rename(rank->recording, source->names);
        rank_describe(rank, source, &build->trace->arena);
    }
}

const struct reader recording_reader = {
    .name = "recording",
    .word = "recording",
    .one = "entry",
    .many = "entries",
    .encoding = "JSON",
    .missing = {.alone = "no profile was recorded: the job ended or failed before the steps to be "
                         "profiled, as 'dpro profile' said; let it run longer, or choose fewer "
                         "steps by --warmup and --iterations"},
    .recognise = recognise,
    .read_json = read_document,
    .reserve = reserve,
    .join = recordings_join,
};

static bool fits(const struct recorded_bucket *bucket, uint64_t numel, uint64_t size_bytes)
{
    return bucket->n > 0 && (numel ? numel == bucket->numel : size_bytes == bucket->size_bytes);
}

uint32_t recorded_walk_next(struct recorded_walk *walk, uint64_t numel, uint64_t size_bytes)
{
    const struct recording *recording = walk->recording;
    if (walk->model < recording->models.n) {
        const struct recorded_model *model = &recording->models.at[walk->model];
        uint32_t bucket = model->first_bucket + walk->next;
        if (walk->next < model->n_buckets &&
            fits(&recording->buckets.at[bucket], numel, size_bytes)) {
            walk->next++;
            return bucket;
        }
    }
    /* another backward pass, of this model or of another one, begins with the first bucket */
    for (size_t m = 0; m < recording->models.n; m++) {
        const struct recorded_model *model =
            &recording->models.at[(walk->model + m) % recording->models.n];
        if (model->n_buckets > 0 &&
            fits(&recording->buckets.at[model->first_bucket], numel, size_bytes)) {
            walk->model = (uint32_t)((walk->model + m) % recording->models.n);
            walk->next = 1;
            return model->first_bucket;
        }
    }
    return UINT32_MAX;
}
