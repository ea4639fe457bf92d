/* The logs of the NCCL profiler plugin: their records, what each event is a part of, and which span
 * of the profile called each operation. */

#include "ingest/sources.h"
#include "tracer/record.h"

struct nccl_proxy_op {
    uint64_t event, parent, size_bytes;
    int32_t peer, channel, n_steps;
    uint32_t flags; /* NCCL_OP_... */
};

static uint32_t string_of(const struct nccl_log *log, uint32_t number)
{
    return number < log->strings.n ? log->strings.at[number] : 0;
}

static bool read_string(struct nccl_log *log, const struct record_string *s)
{
    enum { MAX_STRINGS = 1 << 20 };
    if (s->string == 0 || s->string > MAX_STRINGS)
        return false;
    while (log->strings.n <= s->string)
        array_push(&log->strings, 0);
    log->strings.at[s->string] = strtab_add(&log->names, s->text, strnlen(s->text, sizeof s->text));
    return true;
}

/* The last one of a number counts. */
static bool read_comm(struct nccl_log *log, const struct record_nccl_comm *c)
{
    array_add(&log->comms, .number = c->comm, .rank = c->rank, .hash = c->hash);
    return true;
}

static void add_operation(struct nccl_log *log, const struct record_nccl_event *e)
{
    bool p2p = e->type == NCCL_P2P;
    array_add(&log->operations, .event = e->event, .start_ns = e->start_ns,
              .sequence = p2p ? 0 : e->coll.sequence, .comm = e->comm, .thread = e->head.thread,
              .func = string_of(log, p2p ? e->p2p.func : e->coll.func),
              .algorithm = p2p ? 0 : string_of(log, e->coll.algorithm), .point_to_point = p2p,
              .span = NO_ID);
}

static void add_proxy_op(struct nccl_log *log, const struct record_nccl_event *e)
{
    array_add(&log->proxy_ops, e->event, e->parent, e->proxy_op.size_bytes, e->proxy_op.peer,
              e->proxy_op.channel, e->proxy_op.n_steps, e->flags);
}

static void add_step(struct nccl_log *log, const struct record_nccl_event *e)
{
    int64_t used_ns = e->proxy_step.gpu_wait_ns ? e->proxy_step.gpu_wait_ns : e->stop_ns;
    array_add(&log->steps, .parent = e->parent, .operation = NO_ID, .step = e->proxy_step.step,
              .size_bytes = e->proxy_step.size_bytes, .start_ns = e->start_ns,
              .stop_ns = e->stop_ns,
              .sent_ns = e->proxy_step.net_wait_ns ? e->proxy_step.net_wait_ns : e->start_ns,
              .there_ns = e->proxy_step.flush_wait_ns ? e->proxy_step.flush_wait_ns : used_ns);
}

/* Events that are kept, and how many bytes follow the head of each at least. */
#define BYTES(member) sizeof((struct record_nccl_event *)0)->member
static const struct {
    uint8_t type;
    size_t size;
    void (*add)(struct nccl_log *log, const struct record_nccl_event *e);
} events[] = {{NCCL_COLL, BYTES(coll), add_operation},
              {NCCL_P2P, BYTES(p2p), add_operation},
              {NCCL_PROXY_OP, BYTES(proxy_op), add_proxy_op},
              {NCCL_PROXY_STEP, BYTES(proxy_step), add_step}};

static bool read_event(struct nccl_log *log, const struct record_nccl_event *e, size_t size)
{
    size_t i = 0;
    while (i < sizeof events / sizeof *events && events[i].type != e->type)
        i++;
    bool known = i < sizeof events / sizeof *events;
    if ((known && size < offsetof(struct record_nccl_event, coll) + events[i].size) ||
        !net_time_fits(e->start_ns) || !net_time_fits(e->stop_ns) ||
        (e->stop_ns && e->stop_ns < e->start_ns))
        return false;
    if (known)
        events[i].add(log, e);
    else
        log->n_others++;
    return true;
}

bool nccl_log_add(struct nccl_log *log, const unsigned char *at, size_t size)
{
    union {
        struct record head;
        struct record_string string;
        struct record_nccl_comm comm;
        struct record_nccl_event event;
    } u = {0};
    memcpy(&u, at, size < sizeof u ? size : sizeof u);
    switch (u.head.type) {
    case RECORD_STRING:
        return size >= sizeof u.string && read_string(log, &u.string);
    case RECORD_NCCL_COMM:
        return size >= sizeof u.comm && read_comm(log, &u.comm);
    case RECORD_NCCL_EVENT:
        return size >= offsetof(struct record_nccl_event, coll) && read_event(log, &u.event, size);
    default:
        log->n_others++;
        return true;
    }
}

static void nccl_log_fini(void *payload)
{
    struct nccl_log *log = payload;
    strtab_fini(&log->names);
    FREE_ALL(&log->strings, &log->comms, &log->operations, &log->proxy_ops, &log->steps);
}

const struct payload_kind nccl_payload = {sizeof(struct nccl_log), .fini = nccl_log_fini};

/* ---- parents ---- */

static uint32_t look_up(const struct map *map, uint64_t event)
{
    return (uint32_t)map_or(map, event, NO_ID);
}

void nccl_log_join(struct nccl_log *log)
{
    SCRATCH struct map operations = {0}, proxy_ops = {0}, comms = {0};
    for (size_t i = 0; i < log->comms.n; i++)
        map_set(&comms, (uint64_t)log->comms.at[i].number + 1, i);
    for (size_t i = 0; i < log->operations.n; i++) {
        struct nccl_operation *operation = &log->operations.at[i];
        operation->comm = look_up(&comms, (uint64_t)operation->comm + 1);
        if (operation->event)
            map_set(&operations, operation->event, i);
    }
    for (size_t i = 0; i < log->proxy_ops.n; i++)
        if (log->proxy_ops.at[i].event)
            map_set(&proxy_ops, log->proxy_ops.at[i].event, i);
    EACH (struct nccl_step, step, log->steps) {
        uint32_t index = look_up(&proxy_ops, step->parent);
        if (index == NO_ID || (log->proxy_ops.at[index].flags & NCCL_OP_FOREIGN))
            continue;
        const struct nccl_proxy_op *op = &log->proxy_ops.at[index];
        step->operation = look_up(&operations, op->parent);
        step->peer = op->peer;
        step->channel = op->channel;
        step->flags = op->flags;
        if (step->size_bytes == 0 && op->n_steps > 0) /* before 2.27 of all together only */
            step->size_bytes = op->size_bytes / (uint64_t)op->n_steps;
    }
    array_fini(&log->proxy_ops);
}

/* ---- in the trace ---- */

static void find_spans(const struct trace_rank *rank, struct nccl_log *log)
{
    EACH (struct nccl_operation, operation, log->operations) {
        const struct comm_run *run =
            runs_at(&rank->runs.nccl, operation->thread, operation->start_ns);
        operation->span = run ? run->span : NO_ID;
    }
}

void nccl_build(struct trace_build *build)
{
    struct dpro_trace *trace = build->trace;
    const struct nccl_log *worst = NULL;
    trace->nccl_logs = mem_array(build->list.n, sizeof *trace->nccl_logs);
    EACH (struct source, source, build->list) {
        struct nccl_log *log = source_payload(source, &nccl_payload);
        if (!log || source->rank < 0)
            continue;
        (void)part_take_payload(&source->part, &nccl_payload);
        log->rank = source->rank;
        trace->nccl_logs[trace->n_nccl_logs++] = log;
        if (!worst || log->n_lost > worst->n_lost)
            worst = log;
        const struct trace_rank *rank = trace_rank_of(trace, log->rank);
        if (rank)
            find_spans(rank, log);
    }
    if (worst && worst->n_lost > 0)
        build_warn(build,
                   "the NCCL log of rank %d lost %" PRIu64 " records, no other one more: raise "
                   "DPRO_NET_MAX_MB, or record fewer iterations",
                   worst->rank, worst->n_lost);
}
