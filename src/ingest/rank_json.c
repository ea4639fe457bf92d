/* rank.json (dpro.rank/1) and job.json (dpro.job/1), as described in
 * doc/formats/trace-directory.md. Keys come in any order; what is not known is skipped. */
#include "ingest/rank_json.h"

#include "ingest/rank_job.h"

#define AT(member) offsetof(struct recording, member)
const struct payload_kind recording_payload = {
    sizeof(struct recording),
    .arrays = {AT(models), AT(parameters), AT(buckets), AT(members), AT(steps), AT(warnings)}};

static void rename_texts(struct recording *is, const uint32_t *names)
{
    EACH (struct recorded_model, model, is->models)
        RENAME(names, &model->name, &model->parallel);
    EACH (struct recorded_parameter, parameter, is->parameters)
        RENAME(names, &parameter->name);
    EACH (struct recorded_bucket, bucket, is->buckets)
        RENAME(names, &bucket->name);
    RENAME(names, &is->device, &is->device_name, &is->torch, &is->tensorflow, &is->plan.path,
           &is->plan.reason);
}

/* What a document says; the argument of its reader. */
struct facts {
    struct recording is;
    struct trace_part *part;
    struct part_process process;
    int64_t rank, world_size, batch_size, threads;
    uint32_t schema;
};

static struct recording *recording_of(struct json_reader *r)
{
    return &((struct facts *)r->arg)->is;
}

/* Whether the next value of a list is an object; what is none is counted and skipped. */
static bool is_object(struct json_reader *r)
{
    if (json_peek(r->js) == '{')
        return true;
    recording_of(r)->n_broken++;
    return json_skip(r->js), false;
}

/* ---- models ---- */

static void read_shape(struct json_reader *r, void *out, size_t offset UNUSED)
{
    struct recorded_parameter *p = out;
    p->numel = json_peek(r->js) == '[';
    JSON_EACH (r->js)
        if (__builtin_mul_overflow(p->numel, json_u64(r->js), &p->numel))
            p->numel = UINT64_MAX;
}

static void read_parameters(struct json_reader *r, void *out UNUSED, size_t offset UNUSED)
{
    static const struct json_member members[] = {
        MEMBER(struct recorded_parameter, "name", TEXT, name),
        MEMBER_BY("shape", read_shape, 0),
        MEMBER(struct recorded_parameter, "size_bytes", SIZE, size_bytes),
        MEMBER(struct recorded_parameter, "whole_bytes", SIZE, whole_bytes),
        {NULL}};
    JSON_EACH (r->js) {
        struct recorded_parameter p = {0};
        if (is_object(r) && json_read_object(r, members, &p) && r->js->fail == JSON_OK)
            array_push(&recording_of(r)->parameters, p);
    }
}

static void read_bucket_members(struct json_reader *r, void *out, size_t offset UNUSED)
{
    struct recorded_bucket *bucket = out;
    struct recording *recording = recording_of(r);
    JSON_EACH (r->js) {
        uint64_t index = json_u64(r->js);
        uint32_t member = index < UINT32_MAX ? (uint32_t)index : UINT32_MAX;
        array_push(&recording->members, member);
        bucket->n++;
    }
}

/* buckets or fsdp.units: indices of parameters, which may be listed further on. *(out + offset) is
 * the list's first index and, behind it, its length. */
static void read_buckets(struct json_reader *r, void *out, size_t offset)
{
    static const struct json_member members[] = {
        MEMBER_BY("parameters", read_bucket_members, 0),
        MEMBER(struct recorded_bucket, "size_bytes", SIZE, size_bytes),
        MEMBER(struct recorded_bucket, "name", TEXT, name),
        {NULL}};
    struct recording *recording = recording_of(r);
    uint32_t *list = (uint32_t *)((char *)out + offset);
    list[0] = (uint32_t)recording->buckets.n;
    list[1] = 0;
    JSON_EACH (r->js) {
        struct recorded_bucket bucket = {.model = (uint32_t)recording->models.n,
                                         .first = (uint32_t)recording->members.n};
        if (!is_object(r) || !json_read_object(r, members, &bucket) || r->js->fail != JSON_OK)
            continue;
        array_push(&recording->buckets, bucket);
        list[1]++;
    }
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

static void read_models(struct json_reader *r, void *ignored UNUSED, size_t offset UNUSED)
{
    static const struct json_member fsdp[] = {
        MEMBER_BY("units", read_buckets, offsetof(struct recorded_model, first_unit)), {NULL}};
    static const struct json_member members[] = {
        MEMBER(struct recorded_model, "name", TEXT, name),
        MEMBER(struct recorded_model, "parallel", TEXT, parallel),
        MEMBER_BY("parameters", read_parameters, 0),
        MEMBER_BY("buckets", read_buckets, offsetof(struct recorded_model, first_bucket)),
        MEMBER_IN("fsdp", fsdp),
        {NULL}};
    struct recording *out = recording_of(r);
    JSON_EACH (r->js) {
        struct recorded_model model = {.first_parameter = (uint32_t)out->parameters.n};
        size_t bucket = out->buckets.n; /* a file may have a list twice, all are checked */
        if (!is_object(r))
            continue;
        json_read_object(r, members, &model);
        model.n_parameters = (uint32_t)out->parameters.n - model.first_parameter;
        for (; bucket < out->buckets.n; bucket++)
            check_bucket(&out->buckets.at[bucket], &model, out);
        array_push(&out->models, model);
    }
}

/* ---- steps ---- */

static void read_step_list(struct json_reader *r, void *ignored UNUSED, size_t window)
{
    static const struct json_member members[] = {
        MEMBER(struct recorded_step, "step", INT, number),
        MEMBER(struct recorded_step, "start_ns", INT, start_ns),
        MEMBER(struct recorded_step, "end_ns", INT, end_ns),
        MEMBER(struct recorded_step, "page_faults", INT, page_faults),
        MEMBER(struct recorded_step, "cpu_ns", INT, cpu_ns),
        {NULL}};
    struct recording *out = recording_of(r);
    if (window == RECORDED_TIMING)
        out->n_timing = 0; /* of an earlier list */
    JSON_EACH (r->js) {
        struct recorded_step step = {.page_faults = -1, .cpu_ns = -1, .window = (uint8_t)window};
        if (!is_object(r))
            continue;
        out->n_timing += window == RECORDED_TIMING;
        if (!json_read_object(r, members, &step) || r->js->fail != JSON_OK)
            return;
        if (!trace_time_fits(step.start_ns) || !trace_time_fits(step.end_ns) ||
            step.end_ns <= step.start_ns)
            out->n_broken++;
        else
            array_push(&out->steps, step);
    }
}

/* ---- the rest ---- */

static const struct json_member expected[] = {
    MEMBER(struct recorded_plan, "baseline_ms", MS, baseline_ns),
    MEMBER(struct recorded_plan, "iteration_ms", MS, iteration_ns),
    MEMBER(struct recorded_plan, "uncertainty_pct", NUMBER, uncertainty_pct),
    {NULL}};

static void read_plan(struct json_reader *r, void *out UNUSED, size_t offset UNUSED)
{
    static const struct json_member members[] = {
        MEMBER(struct recorded_plan, "path", TEXT, path),
        MEMBER(struct recorded_plan, "applied", TRUE, applied),
        MEMBER(struct recorded_plan, "reason", TEXT, reason),
        MEMBER_IN("expected", expected),
        {NULL}};
    struct recorded_plan *plan = &recording_of(r)->plan;
    plan->asked |= json_read_object(r, members, plan);
}

static void read_fusion(struct json_reader *r, void *out UNUSED, size_t offset UNUSED)
{
    static const struct json_member members[] = {
        MEMBER(struct recorded_fusion, "fusion_threshold_bytes", SIZE, most_bytes),
        MEMBER(struct recorded_fusion, "in_groups", TRUE, in_groups),
        {NULL}};
    struct recorded_fusion *fusion = &recording_of(r)->fusion;
    fusion->is_set |= json_read_object(r, members, fusion);
}

static void read_groups(struct json_reader *r, void *out UNUSED, size_t offset UNUSED)
{
    JSON_EACH (r->js)
        if (is_object(r))
            part_read_group(((struct facts *)r->arg)->part, r->js, "name", "description");
}

/* A CPU's flags, as Linux lists them: those of bf16 instructions. */
static void read_cpu_flags(struct json_reader *r, void *out UNUSED, size_t offset UNUSED)
{
    struct recording *recording = recording_of(r);
    bool is_list = json_peek(r->js) == '[';
    recording->bf16_cpu = is_list ? BF16_CPU_LACKS : BF16_CPU_UNKNOWN;
    JSON_EACH (r->js) {
        const char *flag = strtab_get(r->strings, json_read_text(r));
        if (text_is_one(flag, "avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"))
            recording->bf16_cpu = BF16_CPU_HAS;
    }
}

static void read_warnings(struct json_reader *r, void *out UNUSED, size_t offset UNUSED)
{
    struct recording *recording = recording_of(r);
    recording->warnings.n = 0; /* of an earlier key of this name */
    JSON_EACH (r->js) {
        uint32_t text = json_read_text(r);
        if (text)
            array_push(&recording->warnings, text);
    }
}

/* A cost of the profiler; 0: it was not measured with care. */
static int64_t json_credible(int64_t cost_ns)
{
    return cost_ns >= 0 && cost_ns <= 1000000 ? cost_ns : 0;
}

static int read_document(struct json *js, struct trace_part *part, struct dpro_error *err UNUSED)
{
    static const struct json_member versions[] = {
        MEMBER(struct facts, "torch", TEXT, is.torch),
        MEMBER(struct facts, "tensorflow", TEXT, is.tensorflow),
        {NULL}};
    static const struct json_member profiler[] = {
        MEMBER(struct facts, "op_ns", INT, is.profiler.op_ns),
        MEMBER(struct facts, "launch_ns", INT, is.profiler.launch_ns),
        MEMBER(struct facts, "call_ns", INT, is.profiler.call_ns),
        {NULL}};
    static const struct json_member memory[] = {
        MEMBER(struct facts, "gradient_bytes", SIZE, is.gradient_bytes),
        MEMBER(struct facts, "optimizer_bytes", SIZE, is.optimizer_bytes),
        {NULL}};
    static const struct json_member steps[] = {
        MEMBER_BY("before", read_step_list, RECORDED_BEFORE),
        MEMBER_BY("timing", read_step_list, RECORDED_TIMING),
        MEMBER_BY("structure", read_step_list, RECORDED_STRUCTURE),
        MEMBER_BY("after", read_step_list, RECORDED_AFTER),
        {NULL}};
    static const struct json_member members[] = {
        MEMBER(struct facts, "rank", INT, rank),
        MEMBER(struct facts, "world_size", INT, world_size),
        MEMBER(struct facts, "schema", TEXT, schema),
        MEMBER(struct facts, "complete", TRUE, is.complete),
        MEMBER(struct facts, "batch_size", INT, batch_size),
        MEMBER(struct facts, "threads", INT, threads),
        MEMBER(struct facts, "pid", SIZE, process.pid),
        MEMBER(struct facts, "host_name", TEXT, process.host),
        MEMBER(struct facts, "backend", TEXT, process.backend),
        MEMBER(struct facts, "boot_id", TEXT, is.boot_id),
        MEMBER(struct facts, "device", TEXT, is.device),
        MEMBER(struct facts, "device_name", TEXT, is.device_name),
        MEMBER_IN("versions", versions),
        MEMBER_BY("warnings", read_warnings, 0),
        MEMBER_BY("cpu_flags", read_cpu_flags, 0),
        MEMBER_BY("process_groups", read_groups, 0),
        MEMBER_IN("profiler", profiler),
        MEMBER_IN("memory", memory),
        MEMBER_BY("models", read_models, 0),
        MEMBER_BY("plan", read_plan, 0),
        MEMBER_BY("horovod", read_fusion, 0),
        MEMBER_IN("steps", steps),
        {NULL}};
    struct facts facts = {.part = part, .rank = -1};
    struct recording *is = &facts.is;
    struct json_reader r = {.js = js, .strings = &part->names, .arg = &facts};
    struct recording *recording = part_make_payload(part, &recording_payload);
    if (!json_open_document(js))
        return 0;
    JSON_KEYS (js, true, key, len) {
        json_read_member(&r, members, key, len, &facts);
        part->n_events++;
    }
    part->process = facts.process;
    part_set_rank(part, facts.rank, facts.world_size);
    part->process.of_job = text_begins(strtab_get(&part->names, facts.schema), "dpro.job/");
    is->profiler = (struct profiler_cost){json_credible(is->profiler.op_ns),
                                          json_credible(is->profiler.launch_ns),
                                          json_credible(is->profiler.call_ns)};
    if (facts.batch_size > 0 && facts.batch_size <= UINT32_MAX)
        is->batch_size = (uint32_t)facts.batch_size;
    is->one_thread = facts.threads == 1;
    is->complete &= js->fail == JSON_OK;
    *recording = *is;
    return 0;
}

/* What a rank's recorder says of it goes to the rank. */
static void json_describe(struct trace_build *build, struct rank_job *job)
{
    struct trace_rank *rank = job->rank;
    EACH (struct source, source, build->list) {
        if (rank->recording || source->rank != rank->rank ||
            !source_payload(source, &recording_payload))
            continue;
        rank->recording = part_take_payload(&source->part, &recording_payload);
        rename_texts(rank->recording, source->names);
        rank_describe(rank, source, &build->trace->arena);
    }
}

/* ---- all ranks together ---- */

/* What the recorders say was left out. */
static void warn_unfinished(struct trace_build *build)
{
    const struct dpro_trace *trace = build->trace;
    uint64_t n_recorded = 0, n_bad = 0, n_unfinished = 0;
    for (uint32_t r = 0; r < trace->n_ranks; r++) {
        const struct recording *recording = trace->ranks[r].recording;
        n_recorded += recording != NULL;
        n_unfinished += recording && !recording->complete;
        n_bad += recording ? recording->n_broken : 0;
    }
    if (n_unfinished > 0)
        build_warn(build,
                   "%" PRIu64 " of %" PRIu64 " ranks had not ended their recording (the job still "
                   "runs, or ended before the last window): what there is is used",
                   n_unfinished, n_recorded);
    if (n_bad > 0)
        build_warn(build, "rank.json: %" PRIu64 " entries make no sense, skipped", n_bad);
}

/* The job's steps without a profiler: those that all ranks timed, each the mean over the ranks. */
static void sum_unprofiled(struct dpro_trace *trace)
{
    SCRATCH ARRAY(int64_t) times = {0}, numbers = {0}, faults = {0}, cpu = {0};
    struct slow_ones one = {0}; /* of the first rank */
    for (uint32_t r = 0; r < trace->n_ranks; r++) {
        const struct recording *recording = trace->ranks[r].recording;
        for (size_t s = 0; recording && s < recording->steps.n; s++) {
            const struct recorded_step *step = &recording->steps.at[s];
            if (step->window != RECORDED_TIMING && step->window != RECORDED_STRUCTURE) {
                array_push(&times, step->end_ns - step->start_ns);
                array_push(&numbers, step->number);
                if (step->page_faults >= 0)
                    array_push(&faults, step->page_faults);
                if (step->cpu_ns >= 0)
                    array_push(&cpu, step->cpu_ns);
            }
        }
        if (one.n_all == 0)
            one = stats_slow_ones(times.at, numbers.at, (uint32_t)times.n);
    }
    struct dpro_unprofiled *out = &trace->unprofiled;
    out->page_faults = faults.n > 0 ? stats_median_i64(faults.at, faults.n) : -1;
    out->cpu_ns = cpu.n > 0 ? stats_median_i64(cpu.at, cpu.n) : -1;
    if (times.n > 0) {
        struct mean_std of = stats_mean_std_i64(times.at, times.n);
        trace->unprofiled_ones =
            one.every > 0 ? one : stats_slow_ones(times.at, NULL, (uint32_t)times.n);
        trace->unprofiled_ones.in_a_row = one.in_a_row;
        out->n_steps = times.n < UINT32_MAX ? (uint32_t)times.n : UINT32_MAX;
        out->mean_ns = llround(of.mean);
        out->median_ns = stats_median_i64(times.at, times.n);
        out->std_ns = times.n > 1 ? llround(of.std) : -1;
    }
}

static void recordings_join(struct trace_build *build)
{
    warn_unfinished(build);
    sum_unprofiled(build->trace);
}

const struct reader recording_reader = {
    .name = "recording",
    .word = "recording",
    .encoding = "JSON",
    .flags = READER_COPIED,
    .missing = {.alone = "no profile was recorded: the job ended or failed before the steps to be "
                         "profiled, as 'dpro profile' said; let it run longer, or choose fewer "
                         "steps by --warmup and --iterations"},
    .schemas = {"dpro.rank/", "dpro.job/"},
    .read_json = read_document,
    .describe = json_describe,
    .join = recordings_join,
};

uint32_t recorded_namesake(const struct recording *recording, uint32_t model, uint32_t name)
{
    uint32_t number = 0;
    bool found = false;
    EACH_OF (const struct recorded_model, other, recording->models.at, model) {
        number += other->n_buckets > 0;
        for (uint32_t p = 0; other->n_buckets > 0 && !found && p < other->n_parameters; p++)
            found = recording->parameters.at[other->first_parameter + p].name == name;
    }
    return found ? number : 0;
}

static bool json_fits(const struct recorded_bucket *bucket, uint64_t numel, uint64_t size_bytes)
{
    return bucket->n > 0 && (numel        ? numel == bucket->numel
                             : size_bytes ? size_bytes == bucket->size_bytes
                                          : true);
}

/* Of the models with the same buckets, the next one behind `model`, in a circle; itself: none. */
static uint32_t next_twin(const struct recording *recording, uint32_t model, bool backwards)
{
    const struct recorded_model *models = recording->models.at, *own = &models[model];
    uint32_t n = (uint32_t)recording->models.n;
    for (uint32_t m = 1; m < n; m++) {
        uint32_t twin = (model + (backwards ? n - m : m)) % n, b = 0;
        while (models[twin].n_buckets == own->n_buckets && b < own->n_buckets &&
               json_fits(&recording->buckets.at[models[twin].first_bucket + b],
                         recording->buckets.at[own->first_bucket + b].numel, 0))
            b++;
        if (b == own->n_buckets)
            return twin;
    }
    return model;
}

static bool starts_with(const struct strtab *names, const struct trace_span *span, const char *text)
{
    return strncmp(strtab_get(names, span->name), text, strlen(text)) == 0;
}

/* Whether two models' forward passes follow each other without a backward pass between them. */
static bool calls_models_in_a_row(const struct trace_rank *rank, const struct strtab *names)
{
    const struct trace_span *calls[2] = {NULL, NULL};
    uint32_t n = 0;
    EACH_OF (const struct trace_span, span, rank->spans, rank->n_spans)
        if (n < 2 && starts_with(names, span, "DistributedDataParallel.forward"))
            calls[n++] = span;
    EACH_OF (const struct trace_span, span, rank->spans, n == 2 ? rank->n_spans : 0)
        if (span->start_ns > calls[0]->start_ns && span->start_ns < calls[1]->start_ns &&
            starts_with(names, span, "autograd::engine"))
            return false;
    return n == 2;
}

struct recorded_walk recorded_walk_begin(const struct trace_rank *rank, const struct strtab *names)
{
    struct recorded_walk walk = {.recording = rank->recording};
    if (!walk.recording || walk.recording->models.n == 0 ||
        next_twin(walk.recording, 0, false) == 0)
        return walk;
    walk.backwards = calls_models_in_a_row(rank, names);
    walk.model = walk.backwards ? next_twin(walk.recording, 0, true) : 0;
    return walk;
}

uint32_t recorded_walk_next(struct recorded_walk *walk, uint64_t numel, uint64_t size_bytes)
{
    const struct recording *recording = walk->recording;
    if (walk->model < recording->models.n) {
        const struct recorded_model *model = &recording->models.at[walk->model];
        uint32_t bucket = model->first_bucket + walk->next;
        if (walk->next < model->n_buckets &&
            json_fits(&recording->buckets.at[bucket], numel, size_bytes)) {
            walk->next++;
            return bucket;
        }
        if (walk->next == model->n_buckets) /* of those with the same buckets each has its turn */
            walk->model = next_twin(recording, walk->model, walk->backwards);
    }
    /* another backward pass, of this model or of another one, begins with the first bucket */
    for (size_t m = 0; m < recording->models.n; m++) {
        const struct recorded_model *model =
            &recording->models.at[(walk->model + m) % recording->models.n];
        if (model->n_buckets > 0 &&
            json_fits(&recording->buckets.at[model->first_bucket], numel, size_bytes)) {
            walk->model = (uint32_t)((walk->model + m) % recording->models.n);
            walk->next = 1;
            return model->first_bucket;
        }
    }
    return UINT32_MAX;
}
