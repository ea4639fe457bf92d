/* ingest/horovod/timeline_runs.c: from the events of a communication timeline to its runs.
 *
 * What nests, and in which order, differs between versions, so a run is put together from whatever
 * stages come: the next one of its tensor begins with a stage that this one has been through. */
#include <stdlib.h>
#include <string.h>

#include "base/sort.h"
#include "ingest/horovod/timeline_building.h"

enum { MAX_TENSORS = 1 << 22, MAX_RANKS = 1 << 20 };
static const int64_t NEVER = INT64_MIN;
static const struct timeline_interval nothing = {INT64_MIN, INT64_MIN};

static bool starts(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

/* What Horovod calls an operation as a whole. */
static bool is_operation(const char *name)
{
    static const char *const names[] = {"ALLREDUCE", "ALLGATHER",     "BROADCAST",
                                        "ALLTOALL",  "REDUCESCATTER", "ADASUM"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* Names of stages. The first that fits counts; N_TIMELINE_STAGES is none, such as the making of a
 * buffer. */
struct stage_name {
    const char *name;
    bool begins_so; /* more may follow */
    enum timeline_stage stage;
};

static const struct stage_name horovod_stages[] = {
    {"NEGOTIATE_", true, STAGE_NEGOTIATE},
    {"QUEUE", false, STAGE_QUEUE},
    {"WAIT_FOR_", true, STAGE_QUEUE},
    {"MEMCPY_IN_", true, STAGE_COPY_IN},
    {"MEMCPY_OUT_", true, STAGE_COPY_OUT},
    {"INIT_", true, N_TIMELINE_STAGES},
    {"Sync", false, N_TIMELINE_STAGES},
    {"", true, STAGE_TRANSFER}, /* GLOO_ALLREDUCE, NCCL_ALLREDUCE, MPI_ALLGATHER, ... */
};

static const struct stage_name byteps_stages[] = {
    {"PUSH", false, STAGE_PUSH},       {"PULL", false, STAGE_PULL},
    {"COPYD2H", false, STAGE_COPY_IN}, {"COPYH2D", false, STAGE_COPY_OUT},
    {"", true, N_TIMELINE_STAGES},
};

static enum timeline_stage stage_of(const char *name, enum timeline_writer writer)
{
    const struct stage_name *at = horovod_stages;
    if (writer == TIMELINE_BYTEPS) { /* "Comm.byteps.gradient_0.PUSH" */
        const char *dot = strrchr(name, '.');
        name = dot ? dot + 1 : name;
        at = byteps_stages;
    }
    while (!(at->begins_so ? starts(name, at->name) : strcmp(name, at->name) == 0))
        at++;
    return at->stage;
}

/* ---- runs ---- */

static void widen(struct timeline_interval *interval, int64_t start_ns, int64_t end_ns)
{
    if (interval->start_ns == NEVER)
        interval->start_ns = start_ns;
    interval->start_ns = MIN(interval->start_ns, start_ns);
    interval->end_ns = MAX(interval->end_ns, end_ns); /* NEVER is the least */
}

static void begin_run(struct timeline_writing *w, uint32_t tensor)
{
    w->run = (struct timeline_run){.tensor = tensor, .whole = nothing};
    for (int s = 0; s < N_TIMELINE_STAGES; s++)
        w->run.stages[s] = nothing;
    w->any = false;
}

/* A run with nothing but a negotiation was not communicated yet. */
static void end_run(struct timeline_building *b, uint32_t tensor)
{
    struct timeline_writing *w = &b->writing.at[tensor];
    struct timeline *timeline = b->timeline;
    if (!w->any)
        return;
    if (w->run.whole.start_ns == NEVER) {
        timeline->n_open++;
    } else if (timeline->runs.n >= NO_ID - 1 || array_push(&timeline->runs, w->run) < 0) {
        b->no_memory = true;
    } else {
        timeline->tensors.at[tensor].n_runs++;
    }
    begin_run(w, tensor);
}

/* A stage that ends a run that has been through it, or through a later one. It may have waited
 * several times. */
static bool begins_again(const struct timeline_run *run, enum timeline_stage stage)
{
    for (int s = (int)stage + 1; s < N_TIMELINE_STAGES; s++)
        if (timeline_has(run, (enum timeline_stage)s))
            return true;
    return timeline_has(run, stage) && stage != STAGE_QUEUE;
}

static void add_stage(struct timeline_building *b, uint32_t tensor, enum timeline_stage stage,
                      uint32_t name, int64_t start_ns, int64_t end_ns)
{
    struct timeline_writing *w = &b->writing.at[tensor];
    widen(&w->run.stages[stage], start_ns, end_ns);
    /* Horovod waits in the queue for the tensor's data: no work of its thread */
    bool waits = stage == STAGE_NEGOTIATE ||
                 (stage == STAGE_QUEUE && b->timeline->writer == TIMELINE_HOROVOD);
    if (!waits)
        widen(&w->run.whole, start_ns, end_ns);
    if (stage == STAGE_TRANSFER && b->timeline->tensors.at[tensor].backend == 0)
        b->timeline->tensors.at[tensor].backend = name;
    w->any = true;
}

/* ---- events ---- */

/* The tensor of a pid (and partition); a new one where there is none yet. NO_ID: no memory, or too
 * many. */
static uint32_t find_tensor(struct timeline_building *b, const struct timeline_event *e)
{
    uint64_t key = map_mix(e->pid + 1);
    if (b->timeline->writer == TIMELINE_BYTEPS)
        key = map_mix(key + e->tid * 2 + (e->tid_name != 0));
    int64_t number = map_number(&b->tensors, key | 1);
    if (number >= 0 && (size_t)number < b->timeline->tensors.n)
        return (uint32_t)number;
    struct timeline_tensor tensor = {.name = e->pid_name, .partition = -1};
    struct timeline_writing writing = {.n_open = 0};
    begin_run(&writing, (uint32_t)number);
    if (number < 0 || number >= MAX_TENSORS || array_push(&b->timeline->tensors, tensor) < 0 ||
        array_push(&b->writing, writing) < 0) {
        b->no_memory = true;
        return NO_ID;
    }
    return (uint32_t)number;
}

static const char *name_of(const struct timeline_building *b, uint32_t id)
{
    return strtab_get(&b->part->names, id);
}

static void begin_stage(struct timeline_building *b, const struct timeline_event *e)
{
    uint32_t tensor = find_tensor(b, e);
    if (tensor == NO_ID)
        return;
    struct timeline_writing *w = &b->writing.at[tensor];
    const char *name = name_of(b, e->name);
    if (w->n_open == UINT8_MAX) {
        b->part->losses.n_broken++;
        return;
    }
    unsigned depth = w->n_open++;
    bool operation = b->timeline->writer == TIMELINE_HOROVOD && is_operation(name);
    enum timeline_stage stage = operation ? N_TIMELINE_STAGES : stage_of(name, b->timeline->writer);
    if (strcmp(name_of(b, b->timeline->tensors.at[tensor].name), "Sync") == 0)
        stage = N_TIMELINE_STAGES; /* a process of its own, whose events are named by tensors */
    if (depth == 0) {
        w->outer = 0;
        if ((operation && w->run.whole.start_ns != NEVER) ||
            (stage != N_TIMELINE_STAGES && begins_again(&w->run, stage)))
            end_run(b, tensor);
    }
    if (operation && depth == 0) {
        w->outer = 1;
        w->run.op = e->name;
        w->any = true;
        widen(&w->run.whole, e->ts_ns, e->ts_ns);
    }
    if (depth >= MAX_NESTED)
        return;
    w->stages[depth] = (uint8_t)stage;
    if (stage == N_TIMELINE_STAGES)
        return;
    add_stage(b, tensor, stage, e->name, e->ts_ns, e->ts_ns);
    if (stage == STAGE_NEGOTIATE && w->run.op == 0)
        w->run.op = part_intern(b->part, name + strlen("NEGOTIATE_"),
                                strlen(name) - strlen("NEGOTIATE_"), &b->no_memory);
}

/* "[512, 10]": the product. */
static uint64_t numel_of(const char *shape)
{
    uint64_t numel = 1, dim = 0;
    bool digits = false, any = false;
    for (const char *at = shape;; at++) {
        if (*at >= '0' && *at <= '9') {
            if (__builtin_mul_overflow(dim, 10, &dim) ||
                __builtin_add_overflow(dim, (uint64_t)(*at - '0'), &dim))
                return 0;
            digits = any = true;
            continue;
        }
        if (digits && __builtin_mul_overflow(numel, dim, &numel))
            return 0;
        digits = false;
        dim = 0;
        if (!*at)
            break;
    }
    return any || strcmp(shape, "[]") == 0 ? numel : 0;
}

static void end_stage(struct timeline_building *b, const struct timeline_event *e)
{
    uint32_t tensor = find_tensor(b, e);
    if (tensor == NO_ID)
        return;
    struct timeline_writing *w = &b->writing.at[tensor];
    struct timeline_tensor *t = &b->timeline->tensors.at[tensor];
    if (w->n_open == 0) {
        b->part->losses.n_unpaired++;
        return;
    }
    unsigned depth = --w->n_open;
    if (e->dtype)
        t->dtype = e->dtype;
    if (e->shape)
        t->numel = numel_of(name_of(b, e->shape));
    enum timeline_stage stage = depth < MAX_NESTED ? w->stages[depth] : N_TIMELINE_STAGES;
    if (stage != N_TIMELINE_STAGES)
        add_stage(b, tensor, stage, 0, e->ts_ns, e->ts_ns);
    if (depth == 0 && w->outer) {
        widen(&w->run.whole, e->ts_ns, e->ts_ns);
        w->outer = 0;
        end_run(b, tensor);
    }
}

static void name_tensor(struct timeline_building *b, const struct timeline_event *e)
{
    uint32_t tensor = find_tensor(b, e);
    if (tensor != NO_ID && e->args_name)
        b->timeline->tensors.at[tensor].name = e->args_name;
}

/* "0", "1": the instant at which that rank was ready, in a tensor's negotiation. */
static void read_ready(struct timeline_building *b, const struct timeline_event *e)
{
    const char *name = name_of(b, e->name);
    uint64_t rank;
    uint32_t tensor;
    if (!e->has_pid || json_unsigned(name, strlen(name), &rank) != JSON_VALUE ||
        rank >= MAX_RANKS || (tensor = find_tensor(b, e)) == NO_ID)
        return;
    const struct timeline_writing *w = &b->writing.at[tensor];
    if (w->n_open != 1 || w->stages[0] != STAGE_NEGOTIATE)
        return;
    struct timeline_ready ready = {tensor, b->timeline->tensors.at[tensor].n_runs, (int)rank,
                                   e->ts_ns};
    b->no_memory |= array_push(&b->timeline->ready, ready) < 0;
}

/* BytePS: "Comm.byteps.gradient_0", and the partition's key, (number << 16) + part. */
static void read_whole_stage(struct timeline_building *b, const struct timeline_event *e)
{
    const char *name = name_of(b, e->name);
    enum timeline_stage stage = stage_of(name, TIMELINE_BYTEPS);
    int64_t end_ns;
    if (stage == N_TIMELINE_STAGES)
        return; /* among them the sum of all, without a stage */
    if (!e->has_dur || e->dur_ns < 0 || __builtin_add_overflow(e->ts_ns, e->dur_ns, &end_ns)) {
        b->part->losses.n_no_dur += !e->has_dur;
        b->part->losses.n_negative += e->has_dur;
        return;
    }
    uint32_t tensor = find_tensor(b, e);
    if (tensor == NO_ID)
        return;
    struct timeline_tensor *t = &b->timeline->tensors.at[tensor];
    const char *plain = name_of(b, e->pid_name);
    if (starts(plain, "Comm."))
        t->name = part_intern(b->part, plain + strlen("Comm."), strlen(plain) - strlen("Comm."),
                              &b->no_memory);
    uint64_t part_key = e->tid;
    if (e->tid_name && json_unsigned(name_of(b, e->tid_name), strlen(name_of(b, e->tid_name)),
                                     &part_key) != JSON_VALUE)
        part_key = UINT64_MAX;
    b->timeline->tensors.at[tensor].partition =
        part_key == UINT64_MAX ? -1 : (int32_t)(part_key & 0xFFFF);
    struct timeline_whole_stage whole = {e->ts_ns, end_ns, tensor, e->name, stage};
    b->no_memory |= array_push(&b->whole_stages, whole) < 0;
}

/* Who writes: BytePS's names are its own. */
static void learn_writer(struct timeline_building *b, const struct timeline_event *e)
{
    const char *name = name_of(b, e->name);
    if (b->known_writer || (e->ph != 'B' && e->ph != 'X'))
        return;
    b->known_writer = true;
    if (e->ph == 'X' && starts(name, "Comm.")) {
        b->timeline->writer = TIMELINE_BYTEPS;
        b->timeline->on_epoch = true;
    }
}

void timeline_take_event(struct timeline_building *b, const struct timeline_event *e)
{
    learn_writer(b, e);
    b->part->n_events++;
    if (e->ph == 'M') {
        if (e->has_anchor) {
            b->timeline->on_epoch = true;
            if (__builtin_mul_overflow(e->anchor_us, 1000, &b->part->base_ns))
                b->part->base_ns = 0;
        } else if (e->has_pid && strcmp(name_of(b, e->name), "process_name") == 0) {
            name_tensor(b, e);
        }
        return;
    }
    if (e->ph != 'B' && e->ph != 'E' && e->ph != 'X' && e->ph != 'i')
        return;
    if (!e->has_ts) {
        b->part->losses.n_no_time++;
    } else if (e->ph == 'i') {
        if (strcmp(name_of(b, e->name), "CYCLE_START") == 0 &&
            array_push(&b->timeline->cycles, e->ts_ns) < 0)
            b->no_memory = true;
        read_ready(b, e);
    } else if (e->ph == 'B') {
        begin_stage(b, e);
    } else if (e->ph == 'E') {
        end_stage(b, e);
    } else if (b->timeline->writer == TIMELINE_BYTEPS) {
        read_whole_stage(b, e);
    } else {
        read_ready(b, e);
    }
}

/* ---- what it gives ---- */

ORDER(by_end, struct timeline_run, ASCENDING(whole.end_ns) ?: ASCENDING(tensor));

ORDER(by_start, struct timeline_whole_stage, ASCENDING(tensor) ?: ASCENDING(start_ns) ?: ASCENDING(stage));

static void add_whole_stages(struct timeline_building *b)
{
    array_sort(&b->whole_stages, by_start);
    for (size_t i = 0; i < b->whole_stages.n && !b->no_memory; i++) {
        const struct timeline_whole_stage *s = &b->whole_stages.at[i];
        if (begins_again(&b->writing.at[s->tensor].run, s->stage))
            end_run(b, s->tensor);
        add_stage(b, s->tensor, s->stage, s->name, s->start_ns, s->end_ns);
    }
}

static bool shift(struct timeline_interval *interval, int64_t by_ns)
{
    if (interval->start_ns == NEVER)
        return true;
    return !__builtin_add_overflow(interval->start_ns, by_ns, &interval->start_ns) &&
           !__builtin_add_overflow(interval->end_ns, by_ns, &interval->end_ns) &&
           trace_time_fits(interval->start_ns) && trace_time_fits(interval->end_ns);
}

/* From the file's times to those since the epoch; what does not fit is left out. */
static void add_base(struct timeline *timeline, struct trace_part *part)
{
    size_t kept = 0;
    for (size_t i = 0; i < timeline->runs.n; i++) {
        struct timeline_run run = timeline->runs.at[i];
        bool fits = shift(&run.whole, part->base_ns);
        for (int s = 0; s < N_TIMELINE_STAGES; s++)
            fits &= shift(&run.stages[s], part->base_ns);
        if (fits)
            timeline->runs.at[kept++] = run;
        part->losses.n_overflow += !fits;
    }
    timeline->runs.n = kept;
    kept = 0;
    for (size_t i = 0; i < timeline->cycles.n; i++) {
        int64_t time_ns;
        if (!__builtin_add_overflow(timeline->cycles.at[i], part->base_ns, &time_ns))
            timeline->cycles.at[kept++] = time_ns;
    }
    timeline->cycles.n = kept;
    kept = 0;
    for (size_t i = 0; i < timeline->ready.n; i++) {
        struct timeline_ready ready = timeline->ready.at[i];
        if (!__builtin_add_overflow(ready.ns, part->base_ns, &ready.ns) &&
            trace_time_fits(ready.ns))
            timeline->ready.at[kept++] = ready;
    }
    timeline->ready.n = kept;
}

void timeline_finish(struct timeline_building *b)
{
    struct timeline *timeline = b->timeline;
    add_whole_stages(b);
    for (uint32_t t = 0; t < timeline->tensors.n && !b->no_memory; t++) {
        struct timeline_writing *w = &b->writing.at[t];
        if (w->n_open > 0) { /* its end is not in the file */
            timeline->n_open += w->any;
            continue;
        }
        end_run(b, t);
    }
    add_base(timeline, b->part);
    array_sort(&timeline->runs, by_end);
    sort_i64(timeline->cycles.at, timeline->cycles.n);
    if (timeline->runs.n > 0) {
        b->part->start_ns = INT64_MAX;
        for (size_t i = 0; i < timeline->runs.n; i++)
            b->part->start_ns = MIN(b->part->start_ns, timeline->runs.at[i].whole.start_ns);
        b->part->end_ns = timeline->runs.at[timeline->runs.n - 1].whole.end_ns;
    }
}
