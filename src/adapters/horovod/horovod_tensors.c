/* Edges of Horovod's tensors: op -> In -> negotiation ... copy out -> Out -> op.
 *
 * Ops on Horovod's thread keep their order. Before them is the op that hands a tensor over, which
 * ingest found. After them are the ops that use that op's output by the framework's graph, or
 * without a graph what goes on when the thread falls idle. */

#include "graph/local/local_edges.h"

typedef ARRAY(uint32_t) id_array;

struct tensors_planned {
    struct local_tensor tensor; /* in and out are still missing */
    uint32_t from;              /* hands it over; NO_ID: not known */
    uint32_t arrival;           /* of the negotiation */
    uint32_t waits_for;         /* whose tensor its group waits for: usually its own; NO_ID */
    uint32_t done;              /* the last op with the group */
    uint32_t first_to, n_to;
};

struct tensors_maker {
    struct rank_build *rank;
    const struct fusion *fusion;
    struct arena scratch;
    struct dfg_uses uses; /* of the framework's graph */
    uint32_t *op_of;      /* by node: its first op in the reference iteration; NO_ID */
    uint32_t *seen;       /* by node: the walk that saw it last */
    uint32_t n_walks;
    id_array open; /* nodes to look at */
    span_ops pairs;
    ARRAY(struct tensors_planned) plan;
    id_array to;
    bool guesses;     /* what uses the tensors of some group is not known */
    uint32_t thread;  /* Horovod's, a device; NO_ID: it did nothing */
    uint8_t *follows; /* by timed op: it uses what a group brings, as far as is known */
};

/* An op that uses the tensor at hand. */
static void add_to(struct tensors_maker *m, uint32_t op)
{
    array_push(&m->to, op);
    m->follows[op] = 1;
}

static void tensors_prepare(struct tensors_maker *m)
{
    const struct rank_build *rank = m->rank;
    uint32_t n = rank->trace->n_dfg_nodes;
    m->uses = dfg_find_uses(rank, NULL, &m->scratch);
    m->op_of = arena_alloc(&m->scratch, n * sizeof *m->op_of);
    m->seen = arena_array(&m->scratch, n, sizeof *m->seen);
    m->follows = arena_array(&m->scratch, rank->ops.n, sizeof *m->follows);
    memset(m->op_of, 0xFF, n * sizeof *m->op_of);
    for (uint32_t o = (uint32_t)rank->ops.n; o-- > 0;)
        if (dfg_node_of(rank, o) < n)
            m->op_of[dfg_node_of(rank, o)] = o;
    local_add_span_ops(rank, rank->steps.reference, &m->pairs);
    sort_u64(m->pairs.at, m->pairs.n);
}

/* Adds the ops that use a node's output, seen through nodes that no span ran. */
static void add_users(struct tensors_maker *m, uint32_t node)
{
    m->n_walks++;
    m->open.n = 0;
    array_push(&m->open, node);
    while (m->open.n > 0) {
        uint32_t at = m->open.at[--m->open.n];
        for (uint32_t i = m->uses.row[at]; i < m->uses.row[at + 1]; i++) {
            uint32_t next = m->uses.nodes[i];
            if (m->seen[next] == m->n_walks)
                continue;
            m->seen[next] = m->n_walks;
            if (m->op_of[next] == NO_ID)
                array_push(&m->open, next);
            else
                add_to(m, m->op_of[next]);
        }
    }
}

/* What follows the transfer on its thread and still belongs to the group: the copy out. */
static uint32_t last_op(const struct rank_build *rank, uint32_t transfer)
{
    for (uint32_t o = transfer + 1; o < rank->ops.n; o++) {
        const struct local_op *op = &rank->ops.at[o];
        if (op->device != rank->ops.at[transfer].device)
            continue;
        return op->kind == DPRO_OP_COPY ? o : transfer;
    }
    return transfer;
}

/* An op of the optimizer's work, which may use a tensor that Horovod reduced. */
static bool is_update(const struct rank_build *rank, uint32_t op)
{
    const struct local_op *o = &rank->ops.at[op];
    return o->slice != NO_ID && o->phase == DPRO_OP_UPDATE && o->kind != DPRO_OP_LAUNCH &&
           !strcasestr(strtab_get(rank->names, o->name), "horovod");
}

/* Where the graph does not tell what uses the tensors: the first work of the optimizer that starts
 * after the group's last op has begun. It may not need all of them, and have begun before in an
 * iteration that fused otherwise; its iteration ended no earlier for that. NO_ID: there is none. */
static uint32_t find_update(const struct rank_build *rank, uint32_t done)
{
    for (uint32_t o = done + 1; o < rank->n_timed; o++)
        if (is_update(rank, o) && local_start(rank, o) > local_start(rank, done))
            return o;
    return NO_ID;
}

/* What takes the tensor that was handed over with a span, in Horovod's optimizer for PyTorch;
 * NO_ID: it is not that which the iteration did. */
static uint32_t find_set(const struct tensors_maker *m, const uint32_t *enqueues, uint32_t span)
{
    const struct trace_span *spans = m->rank->trace->spans;
    uint32_t n_before = 0, n_tensors = 0;
    for (uint32_t i = 0; i < m->fusion->n_tensors; i++) {
        n_tensors += enqueues[i] != NO_ID;
        n_before += enqueues[i] != NO_ID && spans[enqueues[i]].start_ns < spans[span].start_ns;
    }
    return local_nth_taken(m->rank, n_before, n_tensors);
}

/* Plans a tensor of a group, which was handed over with a span; NO_ID: it is not known. */
static void plan_tensor(struct tensors_maker *m, struct tensors_planned one,
                        const uint32_t *enqueues, uint32_t span)
{
    const struct trace_rank *trace = m->rank->trace;
    one.waits_for = (uint32_t)m->plan.n;
    one.first_to = (uint32_t)m->to.n;
    one.from = NO_ID;
    if (span != NO_ID) {
        uint32_t set = find_set(m, enqueues, span);
        one.from = local_op_of_span(&m->pairs, span, true);
        if (trace->spans[span].node < trace->n_dfg_nodes)
            add_users(m, trace->spans[span].node);
        if (set != NO_ID)
            add_to(m, set);
    }
    one.n_to = (uint32_t)m->to.n - one.first_to;
    array_push(&m->plan, one);
}

static void plan_group(struct tensors_maker *m, uint32_t collective, uint32_t negotiation)
{
    struct rank_build *rank = m->rank;
    const struct fusion *fusion = m->fusion;
    const struct local_collective *coll = &rank->collectives.at[collective];
    const struct fused_group *group = &fusion->groups[fusion_group(fusion, coll->sequence)];
    const uint32_t *enqueues = rank->trace->fused.enqueues +
                               (size_t)fusion_round(fusion, coll->sequence) * fusion->n_tensors;
    uint64_t item_bytes = group->numel ? group->size_bytes / group->numel : 0;
    struct tensors_planned one = {.tensor = {.collective = collective},
                                  .arrival = rank->collectives.at[negotiation].arrival,
                                  .done = last_op(rank, coll->transfer)};
    size_t n_before = m->to.n, first_planned = m->plan.n;
    for (uint32_t i = group->first; i < group->first + group->n; i++) {
        const struct timeline_tensor *tensor = &fusion->timeline->tensors.at[fusion->tensors[i]];
        one.tensor.name = tensor->name;
        one.tensor.size_bytes = tensor->numel * item_bytes;
        plan_tensor(m, one, enqueues, enqueues[i]);
    }
    /* without any graph, what goes on when a thread falls idle tells better */
    bool unknown = m->to.n == n_before && rank->trace->n_dfg_nodes > 0;
    uint32_t update = unknown ? find_update(rank, one.done) : NO_ID;
    m->guesses |= m->to.n == n_before;
    if (update == NO_ID)
        return;
    for (size_t i = first_planned; i < m->plan.n; i++) {
        m->plan.at[i].first_to = (uint32_t)m->to.n;
        m->plan.at[i].n_to = 1;
    }
    array_push(&m->to, update);
}

/* Whether an op had begun in every iteration when the negotiation of a group began. */
static bool always_begun(const struct rank_build *rank, uint32_t op, uint32_t arrival)
{
    bool begun = true;
    for (uint32_t i = 0; i < rank->n_samples && begun; i++) {
        int64_t from = rank->start_ns[build_sample_at(rank, i, op)];
        int64_t to = rank->start_ns[build_sample_at(rank, i, arrival)];
        begun = from == ABSENT || to == ABSENT || from < to;
    }
    return begun;
}

/* Where an iteration fused otherwise, or in another order, what the thread did first there may have
 * been before a tensor of the graph's first group was handed over. Nothing waits for that tensor
 * then: only for the last of those that were always handed over before. */
static void relax_arrivals(const struct tensors_maker *m)
{
    const struct rank_build *rank = m->rank;
    EACH (struct tensors_planned, one, m->plan) {
        uint32_t last = NO_ID;
        if (one->from >= rank->n_timed || one->arrival >= rank->n_timed ||
            always_begun(rank, one->from, one->arrival))
            continue;
        for (uint32_t k = 0; k < m->plan.n; k++) {
            uint32_t from = m->plan.at[k].from;
            if (from < rank->n_timed && always_begun(rank, from, one->arrival) &&
                (last == NO_ID ||
                 local_start(rank, from) > local_start(rank, m->plan.at[last].from)))
                last = k;
        }
        one->waits_for = last;
    }
}

static void add_tensor(struct tensors_maker *m, const struct tensors_planned *planned)
{
    struct rank_build *rank = m->rank;
    const struct local_tensor *tensor =
        local_add_tensor(rank, planned->tensor, planned->from, planned->done);
    for (uint32_t i = 0; i < planned->n_to; i++)
        local_add_edge(rank, tensor->out, m->to.at[planned->first_to + i], false, true);
}

/* An op of Horovod's thread in an iteration. */
struct tensors_turn {
    int64_t start_ns, end_ns;
    uint32_t op;
};

typedef ARRAY(struct tensors_turn) turn_array;

ORDER(compare_turns, struct tensors_turn, ASCENDING(start_ns) ?: ASCENDING(op));

/* What the thread did in a step, in order. *alike: tensors were fused there as in the graph. */
static void list_turns(const struct tensors_maker *m, uint32_t step, turn_array *turns, bool *alike)
{
    const struct rank_build *rank = m->rank;
    turns->n = 0;
    *alike = true;
    for (uint32_t o = 0; o < rank->n_timed; o++) {
        size_t at = build_at(rank, step, o);
        if (rank->ops.at[o].device != m->thread || rank->start_ns[at] == ABSENT)
            continue;
        uint32_t slice = rank->match[at];
        uint32_t detail = slice == NO_ID ? NO_ID : slice_span(rank, slice)->detail;
        if (detail != NO_ID) {
            int64_t sequence = rank->trace->details[detail].comm_sequence;
            *alike &= m->fusion->alike[fusion_round(m->fusion, sequence)];
        }
        array_add(turns, rank->start_ns[at], rank->end_ns[at], o);
    }
    array_sort(turns, compare_turns);
}

/* What waits for Horovod's thread, by the framework's graph or as the timeline has it. */
static void mark_followers(const struct tensors_maker *m)
{
    const struct rank_build *rank = m->rank;
    for (uint32_t o = 0; o < rank->n_timed && m->guesses; o++)
        m->follows[o] = is_update(rank, o);
    EACH (const struct local_edge, edge, rank->edges)
        if (rank->ops.at[edge->from].device == m->thread && !edge->next &&
            edge->to < rank->n_timed && rank->ops.at[edge->to].device != m->thread)
            m->follows[edge->to] = 1;
}

/* Until when the thread was busy before that time, or that time where it still was. */
static int64_t busy_until(const turn_array *turns, int64_t time_ns)
{
    int64_t until = ABSENT;
    for (size_t t = 0; t < turns->n && turns->at[t].start_ns < time_ns; t++)
        until = MAX(until, MIN(turns->at[t].end_ns, time_ns));
    return until;
}

/* When the thread was free for each of its ops, and had what each op after a group waits for: where
 * an iteration took the groups in another order, or fused otherwise, what the thread did meanwhile
 * is no gap. */
static void note_turns(const struct tensors_maker *m)
{
    struct rank_build *rank = m->rank;
    SCRATCH turn_array turns = {0};
    build_alloc_free_ns(rank);
    for (uint32_t i = 0; i < rank->n_samples; i++) {
        int64_t *free_of = &rank->free_ns[build_sample_at(rank, i, 0)];
        const int64_t *starts = &rank->start_ns[build_sample_at(rank, i, 0)];
        int64_t free_ns = ABSENT;
        bool alike;
        list_turns(m, rank->sample_step[i], &turns, &alike);
        for (size_t t = 0; t < turns.n; t++) {
            free_of[turns.at[t].op] = free_ns;
            free_ns = MAX(free_ns, turns.at[t].end_ns);
        }
        for (uint32_t o = 0; o < rank->n_timed && (!alike || m->guesses); o++)
            if (m->follows[o] && starts[o] != ABSENT)
                free_of[o] = busy_until(&turns, starts[o]);
    }
}

void build_fused_tensors(struct rank_build *rank, const struct fusion *fusion)
{
    struct tensors_maker m = {.rank = rank, .fusion = fusion, .thread = NO_ID};
    uint32_t negotiation = NO_ID;
    tensors_prepare(&m);
    for (uint32_t c = 0; c < rank->collectives.n; c++) {
        const struct local_op *op = &rank->ops.at[rank->collectives.at[c].arrival];
        uint32_t track = op->slice == NO_ID ? NO_ID : slice_span(rank, op->slice)->track;
        if (track != rank->trace->fused.track)
            continue;
        m.thread = op->device;
        if (rank->classes[op->name] & NAME_NEGOTIATE)
            negotiation = c;
        else if (negotiation != NO_ID)
            plan_group(&m, c, negotiation);
    }
    if (m.thread != NO_ID) {
        mark_followers(&m);
        note_turns(&m);
    }
    relax_arrivals(&m);
    /* virtual ops change the number of ops: only now that nobody looks at times by op any more */
    size_t first = rank->tensors.n;
    for (size_t i = 0; i < m.plan.n; i++)
        add_tensor(&m, &m.plan.at[i]);
    for (size_t i = 0; i < m.plan.n; i++)
        if (m.plan.at[i].waits_for != NO_ID)
            local_add_edge(rank, rank->tensors.at[first + m.plan.at[i].waits_for].in,
                           m.plan.at[i].arrival, false, true);
    FREE_ALL(&m.pairs, &m.plan, &m.open, &m.to);
    arena_fini(&m.scratch);
}
