/* Reads communication layers' timelines, and puts their runs together from the events.
 *
 * Horovod gives each tensor a process of its own, named by a process_name event, in which B and E
 * events nest (an E has no name). BytePS writes one X event for each stage. What nests, and in
 * which order, differs between versions, so a run is put together from whatever stages come: the
 * next run of its tensor begins with a stage that this one has been through. */

#include "ingest/reader.h"

enum { MAX_NESTED = 8, MAX_TENSORS = 1 << 22, MAX_RANKS = 1 << 20 };

/* A tensor's B events that wait for their E, and the run that is being put together. */
struct timeline_writing {
    struct timeline_run run;
    bool any;       /* the run has a stage */
    uint8_t n_open; /* may pass MAX_NESTED: deeper ones are counted only */
    uint8_t outer;  /* how deep the event is that stands for the whole run, from 1; 0: none */
    uint8_t stages[MAX_NESTED]; /* enum timeline_stage; N_TIMELINE_STAGES: none of them */
};

/* BytePS: a stage of a partition; a file lists all of one stage before those of the next. */
struct whole_stage {
    int64_t start_ns, end_ns;
    uint32_t tensor, name;
    enum timeline_stage stage;
};

struct timeline_id {
    bool known;
    uint32_t name;   /* where it is one */
    uint64_t number; /* or that of the name */
};

/* An event of the file. */
struct timeline_event {
    char ph;
    uint32_t name, args_name, dtype, shape; /* string ids */
    struct timeline_id pid, tid;
    struct part_time start, dur, epoch; /* epoch: what the file's times count from */
};

/* A timeline that is being read; all but `part` zeroed at first. */
struct timeline_reading {
    struct trace_part *part;
    struct timeline *timeline;
    struct map tensors;                     /* numbers by pid (and BytePS's tid) */
    ARRAY(struct timeline_writing) writing; /* by tensor */
    ARRAY(struct whole_stage) whole_stages;
    bool known_writer;
};

#define AT(member) offsetof(struct timeline, member)
const struct payload_kind timeline_payload = {
    sizeof(struct timeline), .n_at = AT(runs.n),
    .arrays = {AT(tensors), AT(runs), AT(cycles), AT(ready)}};

static const int64_t NEVER = INT64_MIN;
static const struct timeline_interval nothing = {INT64_MIN, INT64_MIN};

/* ---- names ---- */

/* What Horovod calls an operation as a whole. */
static bool is_operation(const char *name)
{
    return text_is_one(name, "ALLREDUCE", "ALLGATHER", "BROADCAST", "ALLTOALL", "REDUCESCATTER",
                       "ADASUM");
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
    while (!(at->begins_so ? text_begins(name, at->name) : strcmp(name, at->name) == 0))
        at++;
    return at->stage;
}

/* ---- runs ---- */

static void widen_interval(struct timeline_interval *interval, int64_t start_ns, int64_t end_ns)
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
static void end_run(struct timeline_reading *r, uint32_t tensor)
{
    struct timeline_writing *w = &r->writing.at[tensor];
    struct timeline *timeline = r->timeline;
    if (!w->any)
        return;
    if (w->run.whole.start_ns == NEVER) {
        timeline->n_open++;
    } else {
        array_push(&timeline->runs, w->run);
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

static void add_stage(struct timeline_reading *r, uint32_t tensor, enum timeline_stage stage,
                      uint32_t name, int64_t start_ns, int64_t end_ns)
{
    struct timeline_writing *w = &r->writing.at[tensor];
    widen_interval(&w->run.stages[stage], start_ns, end_ns);
    /* Horovod waits in the queue for the tensor's data: no work of its thread */
    bool waits = stage == STAGE_NEGOTIATE ||
                 (stage == STAGE_QUEUE && r->timeline->writer == TIMELINE_HOROVOD);
    if (!waits)
        widen_interval(&w->run.whole, start_ns, end_ns);
    if (stage == STAGE_TRANSFER && r->timeline->tensors.at[tensor].backend == 0)
        r->timeline->tensors.at[tensor].backend = name;
    w->any = true;
}

/* ---- events ---- */

static const char *name_of(const struct timeline_reading *r, uint32_t id)
{
    return strtab_get(&r->part->names, id);
}

/* The tensor of a pid (and partition); a new one where there is none yet. */
static uint32_t find_tensor(struct timeline_reading *r, const struct timeline_event *e)
{
    uint64_t key = map_mix(e->pid.number + 1);
    if (r->timeline->writer == TIMELINE_BYTEPS)
        key = map_mix(key + e->tid.number * 2 + (e->tid.name != 0));
    uint32_t number = (uint32_t)map_number(&r->tensors, key | 1);
    if (number < r->timeline->tensors.n)
        return number;
    if (number >= MAX_TENSORS)
        mem_fail();
    struct timeline_tensor tensor = {.name = e->pid.name, .partition = -1};
    struct timeline_writing writing = {.n_open = 0};
    begin_run(&writing, number);
    array_push(&r->timeline->tensors, tensor);
    array_push(&r->writing, writing);
    return number;
}

static void begin_stage(struct timeline_reading *r, const struct timeline_event *e)
{
    uint32_t tensor = find_tensor(r, e);
    struct timeline_writing *w = &r->writing.at[tensor];
    const char *name = name_of(r, e->name);
    if (w->n_open == UINT8_MAX) {
        r->part->losses.n_broken++;
        return;
    }
    unsigned depth = w->n_open++;
    bool operation = r->timeline->writer == TIMELINE_HOROVOD && is_operation(name);
    enum timeline_stage stage = operation ? N_TIMELINE_STAGES : stage_of(name, r->timeline->writer);
    if (strcmp(name_of(r, r->timeline->tensors.at[tensor].name), "Sync") == 0)
        stage = N_TIMELINE_STAGES; /* a process of its own, whose events are named by tensors */
    if (depth == 0) {
        w->outer = 0;
        if ((operation && w->run.whole.start_ns != NEVER) ||
            (stage != N_TIMELINE_STAGES && begins_again(&w->run, stage)))
            end_run(r, tensor);
    }
    if (operation && depth == 0) {
        w->outer = 1;
        w->run.op = e->name;
        w->any = true;
        widen_interval(&w->run.whole, e->start.ns, e->start.ns);
    }
    if (depth >= MAX_NESTED)
        return;
    w->stages[depth] = (uint8_t)stage;
    if (stage == N_TIMELINE_STAGES)
        return;
    add_stage(r, tensor, stage, e->name, e->start.ns, e->start.ns);
    if (stage == STAGE_NEGOTIATE && w->run.op == 0) {
        const char *op = name + strlen("NEGOTIATE_");
        w->run.op = part_intern(r->part, op, strlen(op));
    }
}

/* "[512, 10]": the product. */
static uint64_t numel_of(const char *shape)
{
    static const char digits[] = "0123456789";
    uint64_t numel = 1, dim;
    bool any = strcmp(shape, "[]") == 0;
    for (const char *at = shape; *(at += strcspn(at, digits)); any = true) {
        size_t n = strspn(at, digits);
        if (!net_parse_number(at, n, 10, UINT64_MAX, &dim) ||
            __builtin_mul_overflow(numel, dim, &numel))
            return 0;
        at += n;
    }
    return any ? numel : 0;
}

static void end_stage(struct timeline_reading *r, const struct timeline_event *e)
{
    uint32_t tensor = find_tensor(r, e);
    struct timeline_writing *w = &r->writing.at[tensor];
    struct timeline_tensor *t = &r->timeline->tensors.at[tensor];
    if (w->n_open == 0) {
        r->part->losses.n_unpaired++;
        return;
    }
    unsigned depth = --w->n_open;
    if (e->dtype)
        t->dtype = e->dtype;
    if (e->shape)
        t->numel = numel_of(name_of(r, e->shape));
    enum timeline_stage stage = depth < MAX_NESTED ? w->stages[depth] : N_TIMELINE_STAGES;
    if (stage != N_TIMELINE_STAGES)
        add_stage(r, tensor, stage, 0, e->start.ns, e->start.ns);
    if (depth == 0 && w->outer) {
        widen_interval(&w->run.whole, e->start.ns, e->start.ns);
        w->outer = 0;
        end_run(r, tensor);
    }
}

/* "0", "1": the instant at which that rank was ready, in a tensor's negotiation. */
static void read_ready(struct timeline_reading *r, const struct timeline_event *e)
{
    const char *name = name_of(r, e->name);
    uint64_t rank;
    if (!e->pid.known || json_unsigned(name, strlen(name), &rank) != JSON_VALUE ||
        rank >= MAX_RANKS)
        return;
    uint32_t tensor = find_tensor(r, e);
    const struct timeline_writing *w = &r->writing.at[tensor];
    if (w->n_open == 1 && w->stages[0] == STAGE_NEGOTIATE)
        array_add(&r->timeline->ready, tensor, r->timeline->tensors.at[tensor].n_runs, (int)rank,
                  e->start.ns);
}

/* BytePS: "Comm.byteps.gradient_0", and the partition's key, (number << 16) + part. */
static void read_whole_stage(struct timeline_reading *r, const struct timeline_event *e)
{
    enum timeline_stage stage = stage_of(name_of(r, e->name), TIMELINE_BYTEPS);
    if (stage == N_TIMELINE_STAGES) /* among them the sum of all, without a stage */
        return;
    if (!part_times_fit(r->part, e->start, e->dur))
        return;
    uint32_t tensor = find_tensor(r, e);
    struct timeline_tensor *t = &r->timeline->tensors.at[tensor];
    const char *plain = name_of(r, e->pid.name), *key = name_of(r, e->tid.name);
    if (text_begins(plain, "Comm."))
        t->name = part_intern(r->part, plain + strlen("Comm."), strlen(plain) - strlen("Comm."));
    uint64_t part_key = e->tid.number;
    bool has_key = !e->tid.name || json_unsigned(key, strlen(key), &part_key) == JSON_VALUE;
    t->partition = !has_key || part_key == UINT64_MAX ? -1 : (int32_t)(part_key & 0xFFFF);
    array_add(&r->whole_stages, e->start.ns, e->start.ns + e->dur.ns, tensor, e->name, stage);
}

/* Who writes: BytePS's names are its own. */
static void learn_writer(struct timeline_reading *r, const struct timeline_event *e)
{
    if (r->known_writer || (e->ph != 'B' && e->ph != 'X'))
        return;
    r->known_writer = true;
    if (e->ph == 'X' && text_begins(name_of(r, e->name), "Comm.")) {
        r->timeline->writer = TIMELINE_BYTEPS;
        r->timeline->on_epoch = true;
    }
}

/* What the file counts times from, which stands before them, or the name of a tensor. */
static void take_metadata(struct timeline_reading *r, const struct timeline_event *e)
{
    if (e->epoch.is == JSON_VALUE && trace_time_fits(e->epoch.ns) && !r->known_writer) {
        r->timeline->on_epoch = true;
        r->part->base_ns = e->epoch.ns;
    } else if (e->pid.known && strcmp(name_of(r, e->name), "process_name") == 0) {
        uint32_t tensor = find_tensor(r, e);
        if (e->args_name)
            r->timeline->tensors.at[tensor].name = e->args_name;
    }
}

static void timeline_take_event(void *reading, const void *event)
{
    struct timeline_reading *r = reading;
    struct timeline_event own = *(const struct timeline_event *)event, *e = &own;
    learn_writer(r, e);
    r->part->n_events++;
    if (e->ph == 'M') {
        take_metadata(r, e);
    } else if (e->ph != 'B' && e->ph != 'E' && e->ph != 'X' && e->ph != 'i') {
        return;
    } else if (e->start.is != JSON_VALUE ||
               __builtin_add_overflow(e->start.ns, r->part->base_ns, &e->start.ns) ||
               !trace_time_fits(e->start.ns)) {
        r->part->losses.n_broken++;
    } else if (e->ph == 'B') {
        begin_stage(r, e);
    } else if (e->ph == 'E') {
        end_stage(r, e);
    } else if (e->ph == 'X' && r->timeline->writer == TIMELINE_BYTEPS) {
        read_whole_stage(r, e);
    } else {
        if (e->ph == 'i' && strcmp(name_of(r, e->name), "CYCLE_START") == 0)
            array_push(&r->timeline->cycles, e->start.ns);
        read_ready(r, e);
    }
}

/* ---- what it gives ---- */

ORDER(by_end, struct timeline_run, ASCENDING(whole.end_ns) ?: ASCENDING(tensor));

ORDER(by_start, struct whole_stage, ASCENDING(tensor) ?: ASCENDING(start_ns) ?: ASCENDING(stage));

static void add_whole_stages(struct timeline_reading *r)
{
    array_sort(&r->whole_stages, by_start);
    EACH (const struct whole_stage, s, r->whole_stages) {
        if (begins_again(&r->writing.at[s->tensor].run, s->stage))
            end_run(r, s->tensor);
        add_stage(r, s->tensor, s->stage, s->name, s->start_ns, s->end_ns);
    }
}

static void timeline_finish(struct timeline_reading *r)
{
    struct timeline *timeline = r->timeline;
    add_whole_stages(r);
    for (uint32_t t = 0; t < timeline->tensors.n; t++) {
        if (r->writing.at[t].n_open > 0) /* its end is not in the file */
            timeline->n_open += r->writing.at[t].any;
        else
            end_run(r, t);
    }
    FREE_ALL(&r->tensors, &r->writing, &r->whole_stages);
    array_sort(&timeline->runs, by_end);
    sort_i64(timeline->cycles.at, timeline->cycles.n);
    if (timeline->runs.n > 0) {
        r->part->start_ns = INT64_MAX;
        for (size_t i = 0; i < timeline->runs.n; i++)
            r->part->start_ns = MIN(r->part->start_ns, timeline->runs.at[i].whole.start_ns);
        r->part->end_ns = timeline->runs.at[timeline->runs.n - 1].whole.end_ns;
    }
}

/* ---- the file ---- */

/* A number, or a name. */
static void read_id(struct json_reader *r, void *out, size_t offset)
{
    struct timeline_id *id = (struct timeline_id *)((char *)out + offset);
    id->known = true;
    if (json_peek(r->js) == '"')
        id->number = id->name = json_read_text(r);
    else if (json_read_unsigned(r->js, &id->number) != JSON_VALUE)
        id->number = 0;
}

#define EVENT_BY(key, function, member)                                                            \
    MEMBER_BY(key, function, offsetof(struct timeline_event, member))
static const struct json_member args_members[] = {
    MEMBER(struct timeline_event, "name", TEXT, args_name),
    MEMBER(struct timeline_event, "dtype", TEXT, dtype),
    MEMBER(struct timeline_event, "shape", TEXT, shape),
    EVENT_BY("start_time_since_epoch_in_micros", part_read_time, epoch),
    {NULL}};
static const struct json_member event_members[] = {
    EVENT_BY("ph", part_read_phase, ph),   MEMBER(struct timeline_event, "name", TEXT, name),
    EVENT_BY("ts", part_read_time, start), EVENT_BY("dur", part_read_time, dur),
    EVENT_BY("pid", read_id, pid),         EVENT_BY("tid", read_id, tid),
    MEMBER_IN("args", args_members),       {NULL}};

int timeline_read(struct json *js, struct trace_part *part, struct dpro_error *err UNUSED)
{
    struct timeline_reading r = {.part = part,
                                 .timeline = part_make_payload(part, &timeline_payload)};
    struct timeline_event event = {.ph = 0};
    part_read_events(
        part, js,
        &(struct part_events){event_members, &event, sizeof event, true, timeline_take_event}, &r);
    timeline_finish(&r);
    return 0;
}

/* Names that only a communication layer's timeline has. */
bool timeline_recognise(const struct head *head)
{
    if (head->piece != HEAD_EVENT)
        return false;
    const char *name = head_field(head, "name"), *label = head_field(head, "args.name");
    return (name &&
            (text_begins(name, "NEGOTIATE_") || text_begins(name, "CYCLE_START") ||
             text_begins(name, "MEMCPY_IN_FUSION_BUFFER") || text_begins(name, "Comm.byteps"))) ||
           (label && strstr(label, "HorovodAllreduce")) ||
           head_field(head, "args.start_time_since_epoch_in_micros");
}
