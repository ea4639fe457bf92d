/* ingest/horovod/comm_timeline.c: reads the timelines of communication layers.
 *
 * Horovod gives each tensor a process of its own, named by a process_name event, in which B and E
 * events nest (an E has no name). BytePS writes one X event for each stage. What nests, and in
 * which order, differs between versions, so a run is put together from whatever stages come: the
 * next run of its tensor begins with a stage that this one has been through. The array is often
 * open: the writer adds to it until its process ends. */
#include "ingest/horovod/timeline.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/map.h"
#include "base/memory.h"
#include "base/sort.h"
#include "ingest/reader.h"

enum { MAX_NESTED = 8, MAX_TENSORS = 1 << 22, MAX_RANKS = 1 << 20 };

/* An event of the file. */
struct event {
    uint64_t pid; /* a number, or the hash of a name */
    uint64_t tid;
    char ph;
    bool has_pid, has_ts, has_dur, has_anchor;
    uint32_t pid_name; /* where it is one */
    uint32_t tid_name;
    uint32_t name, args_name, dtype, shape;
    int64_t ts_ns, dur_ns, anchor_us;
};

/* A tensor's B events that wait for their E, and the run that is being put together. */
struct writing {
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

struct reader_state {
    struct json *js;
    struct trace_part *part;
    struct timeline *timeline;
    struct map tensors;            /* numbers by pid (and BytePS's tid) */
    ARRAY(struct writing) writing; /* by tensor */
    ARRAY(struct whole_stage) whole_stages;
    bool known_writer;
    bool no_memory;
};

static const int64_t NEVER = INT64_MIN;
static const struct timeline_interval nothing = {INT64_MIN, INT64_MIN};

static void fini(void *payload)
{
    struct timeline *timeline = payload;
    array_fini(&timeline->tensors);
    array_fini(&timeline->runs);
    array_fini(&timeline->cycles);
    array_fini(&timeline->ready);
}

static bool is_empty(const void *payload)
{
    return ((const struct timeline *)payload)->runs.n == 0;
}

const struct payload_kind timeline_payload = {sizeof(struct timeline), fini, is_empty};

void timeline_destroy(struct timeline *timeline)
{
    if (timeline)
        fini(timeline);
    mem_free(timeline);
}

/* ---- names ---- */

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

static void begin_run(struct writing *w, uint32_t tensor)
{
    w->run = (struct timeline_run){.tensor = tensor, .whole = nothing};
    for (int s = 0; s < N_TIMELINE_STAGES; s++)
        w->run.stages[s] = nothing;
    w->any = false;
}

/* A run with nothing but a negotiation was not communicated yet. */
static void end_run(struct reader_state *r, uint32_t tensor)
{
    struct writing *w = &r->writing.at[tensor];
    struct timeline *timeline = r->timeline;
    if (!w->any)
        return;
    if (w->run.whole.start_ns == NEVER) {
        timeline->n_open++;
    } else if (timeline->runs.n >= NO_ID - 1 || array_push(&timeline->runs, w->run) < 0) {
        r->no_memory = true;
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

static void add_stage(struct reader_state *r, uint32_t tensor, enum timeline_stage stage,
                      uint32_t name, int64_t start_ns, int64_t end_ns)
{
    struct writing *w = &r->writing.at[tensor];
    widen(&w->run.stages[stage], start_ns, end_ns);
    /* Horovod waits in the queue for the tensor's data: no work of its thread */
    bool waits = stage == STAGE_NEGOTIATE ||
                 (stage == STAGE_QUEUE && r->timeline->writer == TIMELINE_HOROVOD);
    if (!waits)
        widen(&w->run.whole, start_ns, end_ns);
    if (stage == STAGE_TRANSFER && r->timeline->tensors.at[tensor].backend == 0)
        r->timeline->tensors.at[tensor].backend = name;
    w->any = true;
}

/* ---- events ---- */

/* The tensor of a pid (and partition); a new one where there is none yet. NO_ID: no memory, or too
 * many. */
static uint32_t find_tensor(struct reader_state *r, const struct event *e)
{
    uint64_t key = map_mix(e->pid + 1);
    if (r->timeline->writer == TIMELINE_BYTEPS)
        key = map_mix(key + e->tid * 2 + (e->tid_name != 0));
    int64_t number = map_number(&r->tensors, key | 1);
    if (number >= 0 && (size_t)number < r->timeline->tensors.n)
        return (uint32_t)number;
    struct timeline_tensor tensor = {.name = e->pid_name, .partition = -1};
    struct writing writing = {.n_open = 0};
    begin_run(&writing, (uint32_t)number);
    if (number < 0 || number >= MAX_TENSORS || array_push(&r->timeline->tensors, tensor) < 0 ||
        array_push(&r->writing, writing) < 0) {
        r->no_memory = true;
        return NO_ID;
    }
    return (uint32_t)number;
}

static const char *name_of(const struct reader_state *r, uint32_t id)
{
    return strtab_get(&r->part->names, id);
}

static void begin_stage(struct reader_state *r, const struct event *e)
{
    uint32_t tensor = find_tensor(r, e);
    if (tensor == NO_ID)
        return;
    struct writing *w = &r->writing.at[tensor];
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
        widen(&w->run.whole, e->ts_ns, e->ts_ns);
    }
    if (depth >= MAX_NESTED)
        return;
    w->stages[depth] = (uint8_t)stage;
    if (stage == N_TIMELINE_STAGES)
        return;
    add_stage(r, tensor, stage, e->name, e->ts_ns, e->ts_ns);
    if (stage == STAGE_NEGOTIATE && w->run.op == 0)
        w->run.op =
            part_intern(r->part, name + strlen("NEGOTIATE_"), strlen(name) - strlen("NEGOTIATE_"));
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

static void end_stage(struct reader_state *r, const struct event *e)
{
    uint32_t tensor = find_tensor(r, e);
    if (tensor == NO_ID)
        return;
    struct writing *w = &r->writing.at[tensor];
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
        add_stage(r, tensor, stage, 0, e->ts_ns, e->ts_ns);
    if (depth == 0 && w->outer) {
        widen(&w->run.whole, e->ts_ns, e->ts_ns);
        w->outer = 0;
        end_run(r, tensor);
    }
}

static void name_tensor(struct reader_state *r, const struct event *e)
{
    uint32_t tensor = find_tensor(r, e);
    if (tensor != NO_ID && e->args_name)
        r->timeline->tensors.at[tensor].name = e->args_name;
}

/* "0", "1": the instant at which that rank was ready, in a tensor's negotiation. */
static void read_ready(struct reader_state *r, const struct event *e)
{
    const char *name = name_of(r, e->name);
    uint64_t rank;
    uint32_t tensor;
    if (!e->has_pid || json_unsigned(name, strlen(name), &rank) != JSON_VALUE ||
        rank >= MAX_RANKS || (tensor = find_tensor(r, e)) == NO_ID)
        return;
    const struct writing *w = &r->writing.at[tensor];
    if (w->n_open != 1 || w->stages[0] != STAGE_NEGOTIATE)
        return;
    struct timeline_ready ready = {tensor, r->timeline->tensors.at[tensor].n_runs, (int)rank,
                                   e->ts_ns};
    r->no_memory |= array_push(&r->timeline->ready, ready) < 0;
}

/* BytePS: "Comm.byteps.gradient_0", and the partition's key, (number << 16) + part. */
static void read_whole_stage(struct reader_state *r, const struct event *e)
{
    const char *name = name_of(r, e->name);
    enum timeline_stage stage = stage_of(name, TIMELINE_BYTEPS);
    int64_t end_ns;
    if (stage == N_TIMELINE_STAGES)
        return; /* among them the sum of all, without a stage */
    if (!e->has_dur || e->dur_ns < 0 || __builtin_add_overflow(e->ts_ns, e->dur_ns, &end_ns)) {
        r->part->losses.n_no_dur += !e->has_dur;
        r->part->losses.n_negative += e->has_dur;
        return;
    }
    uint32_t tensor = find_tensor(r, e);
    if (tensor == NO_ID)
        return;
    struct timeline_tensor *t = &r->timeline->tensors.at[tensor];
    const char *plain = name_of(r, e->pid_name);
    if (starts(plain, "Comm."))
        t->name = part_intern(r->part, plain + strlen("Comm."), strlen(plain) - strlen("Comm."));
    uint64_t part_key = e->tid;
    if (e->tid_name && json_unsigned(name_of(r, e->tid_name), strlen(name_of(r, e->tid_name)),
                                     &part_key) != JSON_VALUE)
        part_key = UINT64_MAX;
    r->timeline->tensors.at[tensor].partition =
        part_key == UINT64_MAX ? -1 : (int32_t)(part_key & 0xFFFF);
    struct whole_stage whole = {e->ts_ns, end_ns, tensor, e->name, stage};
    r->no_memory |= array_push(&r->whole_stages, whole) < 0;
}

/* Who writes: BytePS's names are its own. */
static void learn_writer(struct reader_state *r, const struct event *e)
{
    const char *name = name_of(r, e->name);
    if (r->known_writer || (e->ph != 'B' && e->ph != 'X'))
        return;
    r->known_writer = true;
    if (e->ph == 'X' && starts(name, "Comm.")) {
        r->timeline->writer = TIMELINE_BYTEPS;
        r->timeline->on_epoch = true;
    }
}

static void take_event(struct reader_state *r, const struct event *e)
{
    learn_writer(r, e);
    r->part->n_events++;
    if (e->ph == 'M') {
        if (e->has_anchor) {
            r->timeline->on_epoch = true;
            if (__builtin_mul_overflow(e->anchor_us, 1000, &r->part->base_ns))
                r->part->base_ns = 0;
        } else if (e->has_pid && strcmp(name_of(r, e->name), "process_name") == 0) {
            name_tensor(r, e);
        }
        return;
    }
    if (e->ph != 'B' && e->ph != 'E' && e->ph != 'X' && e->ph != 'i')
        return;
    if (!e->has_ts) {
        r->part->losses.n_no_time++;
    } else if (e->ph == 'i') {
        if (strcmp(name_of(r, e->name), "CYCLE_START") == 0 &&
            array_push(&r->timeline->cycles, e->ts_ns) < 0)
            r->no_memory = true;
        read_ready(r, e);
    } else if (e->ph == 'B') {
        begin_stage(r, e);
    } else if (e->ph == 'E') {
        end_stage(r, e);
    } else if (r->timeline->writer == TIMELINE_BYTEPS) {
        read_whole_stage(r, e);
    } else {
        read_ready(r, e);
    }
}

/* ---- what it gives ---- */

ORDER(by_end, struct timeline_run, ASCENDING(whole.end_ns) ?: ASCENDING(tensor));

ORDER(by_start, struct whole_stage, ASCENDING(tensor) ?: ASCENDING(start_ns) ?: ASCENDING(stage));

static void add_whole_stages(struct reader_state *r)
{
    array_sort(&r->whole_stages, by_start);
    for (size_t i = 0; i < r->whole_stages.n && !r->no_memory; i++) {
        const struct whole_stage *s = &r->whole_stages.at[i];
        if (begins_again(&r->writing.at[s->tensor].run, s->stage))
            end_run(r, s->tensor);
        add_stage(r, s->tensor, s->stage, s->name, s->start_ns, s->end_ns);
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

static void finish(struct reader_state *r)
{
    struct timeline *timeline = r->timeline;
    add_whole_stages(r);
    for (uint32_t t = 0; t < timeline->tensors.n && !r->no_memory; t++) {
        struct writing *w = &r->writing.at[t];
        if (w->n_open > 0) { /* its end is not in the file */
            timeline->n_open += w->any;
            continue;
        }
        end_run(r, t);
    }
    add_base(timeline, r->part);
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

static uint32_t read_text(struct reader_state *r)
{
    return part_read_text(r->part, r->js);
}

/* A number, or a name, which is hashed. */
static uint64_t read_id(struct reader_state *r, uint32_t *name)
{
    uint64_t id = 0;
    if (json_peek(r->js) != '"')
        return json_read_unsigned(r->js, &id) == JSON_VALUE ? id : 0;
    *name = read_text(r);
    return *name;
}

static void read_args(struct reader_state *r, struct event *e)
{
    struct json *js = r->js;
    const char *key;
    size_t len;
    if (!json_open(js, '{'))
        return;
    while (json_object_next(js, &key, &len)) {
        if (json_is(key, len, "name"))
            e->args_name = read_text(r);
        else if (json_is(key, len, "dtype"))
            e->dtype = read_text(r);
        else if (json_is(key, len, "shape"))
            e->shape = read_text(r);
        else if (json_is(key, len, "start_time_since_epoch_in_micros"))
            e->has_anchor = json_read_decimal(js, 0, &e->anchor_us) == JSON_VALUE;
        else
            json_skip(js);
    }
}

static bool read_event(struct reader_state *r, struct event *e)
{
    struct json *js = r->js;
    const char *key, *text;
    size_t len;
    *e = (struct event){.ph = 0};
    js->p++;
    while (json_object_next(js, &key, &len)) {
        if (json_is(key, len, "ph")) {
            if (json_scalar(js, &text, &len) && len == 1)
                e->ph = *text;
        } else if (json_is(key, len, "name")) {
            e->name = read_text(r);
        } else if (json_is(key, len, "ts")) {
            e->has_ts =
                json_read_decimal(js, 3, &e->ts_ns) == JSON_VALUE && trace_time_fits(e->ts_ns);
        } else if (json_is(key, len, "dur")) {
            e->has_dur =
                json_read_decimal(js, 3, &e->dur_ns) == JSON_VALUE && trace_time_fits(e->dur_ns);
        } else if (json_is(key, len, "pid")) {
            e->pid = read_id(r, &e->pid_name);
            e->has_pid = true;
        } else if (json_is(key, len, "tid")) {
            e->tid = read_id(r, &e->tid_name);
        } else if (json_is(key, len, "args")) {
            read_args(r, e);
        } else {
            json_skip(js);
        }
    }
    return js->fail == JSON_OK && !r->no_memory;
}

/* The array is the writer's to close, which it does only when it is told to stop: that it ends
 * between two elements is no damage. */
static bool next_element(struct json *js)
{
    int c = json_peek(js);
    while (c == ',') {
        js->p++;
        c = json_peek(js);
    }
    return c >= 0 && json_array_next(js);
}

static void read_events(struct reader_state *r)
{
    struct json *js = r->js;
    struct event event;
    js->p++;
    while (!r->no_memory && next_element(js)) {
        if (json_peek(js) != '{') {
            r->part->losses.n_broken++;
            json_skip(js);
        } else if (read_event(r, &event)) {
            take_event(r, &event);
        }
    }
}

int timeline_read(struct json *js, struct trace_part *part, struct dpro_error *err)
{
    struct reader_state r = {.js = js, .part = part};
    const char *key;
    size_t len;
    r.timeline = part_make_payload(part, &timeline_payload);
    if (!r.timeline || strtab_add(&part->names, "", 0) == STRTAB_FULL)
        return dpro_error_nomem(err);
    json_skip_mark(js);
    int c = json_peek(js);
    if (c == '[') {
        read_events(&r);
    } else if (c == '{') {
        js->p++;
        while (!r.no_memory && json_object_next(js, &key, &len)) {
            if (json_is(key, len, "traceEvents") && json_peek(js) == '[')
                read_events(&r);
            else
                json_skip(js);
        }
    } else {
        json_stop(js, c < 0 ? JSON_ENDED : JSON_BAD);
    }
    if (!r.no_memory)
        finish(&r);
    map_fini(&r.tensors);
    array_fini(&r.writing);
    array_fini(&r.whole_stages);
    return r.no_memory ? dpro_error_nomem(err) : 0;
}

/* Names that only a communication layer's timeline has. */
bool timeline_recognise(const struct head *head)
{
    static const char *const names[] = {"NEGOTIATE_", "CYCLE_START", "MEMCPY_IN_FUSION_BUFFER",
                                        "Comm.byteps"};
    if (head->piece != HEAD_EVENT)
        return false;
    const char *name = head_field(head, "name"), *label = head_field(head, "args.name");
    for (size_t i = 0; name && i < sizeof names / sizeof *names; i++)
        if (strncmp(name, names[i], strlen(names[i])) == 0)
            return true;
    return (label && strstr(label, "HorovodAllreduce")) ||
           head_field(head, "args.start_time_since_epoch_in_micros");
}
