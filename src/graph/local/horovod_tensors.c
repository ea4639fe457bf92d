/* graph/local/horovod_tensors.c: Horovod's tensors: op -> In -> negotiation ... copy out -> Out ->
 * op.
 *
 * What happens on Horovod's thread is in its order there. What leads to it is the op that hands a
 * tensor over, which the ingest stage found; what follows are the ops that use that op's output in
 * the framework's graph, where there is one, and else what goes on when the thread falls idle. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/sort.h"
#include "graph/local/local_edges.h"
#include "graph/names/span_names.h"
#include "graph/rank_build.h"

typedef ARRAY(uint32_t) id_array;

/* The framework's graph, from producer to consumer, and the op of each node. */
struct consumers {
    const struct rank_build *rank;
    uint32_t *first, *nodes; /* consumers of node n: nodes[first[n] .. first[n + 1]) */
    uint32_t *op_of;         /* by node: its first op in the reference iteration; NO_ID */
    uint32_t *seen;          /* by node: the walk that saw it last */
    uint32_t n_walks;
    id_array stack;
};

static void consumers_fini(struct consumers *c)
{
    mem_free(c->first);
    mem_free(c->nodes);
    mem_free(c->op_of);
    mem_free(c->seen);
    array_fini(&c->stack);
}

static int find_consumers(const struct rank_build *rank, struct consumers *c)
{
    const struct trace_rank *trace = rank->trace;
    uint32_t n = trace->n_dfg_nodes;
    *c = (struct consumers){.rank = rank};
    c->first = mem_array(n + (size_t)2, sizeof *c->first);
    c->nodes = mem_alloc((trace->n_dfg_inputs + (size_t)1) * sizeof *c->nodes);
    c->op_of = mem_alloc((n + (size_t)1) * sizeof *c->op_of);
    c->seen = mem_array(n + (size_t)1, sizeof *c->seen);
    if (!c->first || !c->nodes || !c->op_of || !c->seen)
        return -1;
    for (uint32_t i = 0; i < trace->n_dfg_inputs; i++)
        if (trace->dfg_inputs[i].node < n)
            c->first[trace->dfg_inputs[i].node + 2]++;
    for (uint32_t i = 2; i < n + 2; i++)
        c->first[i] += c->first[i - 1];
    for (uint32_t node = 0; node < n; node++) {
        const struct dfg_node *at = &trace->dfg_nodes[node];
        c->op_of[node] = NO_ID;
        for (uint32_t i = at->first_input; i < at->first_input + at->n_inputs; i++)
            if (trace->dfg_inputs[i].node < n)
                c->nodes[c->first[trace->dfg_inputs[i].node + 1]++] = node;
    }
    for (uint32_t o = (uint32_t)rank->ops.n; o-- > 0;) {
        uint32_t slice = rank->ops.at[o].slice;
        uint32_t node = slice == NO_ID ? NO_ID : slice_span(rank, slice)->node;
        if (node < n)
            c->op_of[node] = o;
    }
    return 0;
}

/* The ops that use a node's output, seen through nodes that no span ran. */
static int walk(struct consumers *c, uint32_t node, id_array *ops)
{
    ops->n = 0;
    c->stack.n = 0;
    c->n_walks++;
    if (array_push(&c->stack, node) < 0)
        return -1;
    while (c->stack.n > 0) {
        uint32_t at = c->stack.at[--c->stack.n];
        for (uint32_t i = c->first[at]; i < c->first[at + 1]; i++) {
            uint32_t next = c->nodes[i];
            if (c->seen[next] == c->n_walks)
                continue;
            c->seen[next] = c->n_walks;
            uint32_t op = c->op_of[next];
            if (op == NO_ID ? array_push(&c->stack, next) < 0 : array_push(ops, op) < 0)
                return -1;
        }
    }
    return 0;
}

struct planned {
    struct local_tensor tensor; /* in and out are still missing */
    uint32_t from;              /* hands it over; NO_ID: not known */
    uint32_t arrival;           /* of the negotiation */
    uint32_t waits_for;         /* whose tensor its group waits for: usually its own; NO_ID */
    uint32_t done;              /* the last op with the group */
    uint32_t first_to, n_to;
};

struct maker {
    struct rank_build *rank;
    const struct fusion *fusion;
    struct consumers consumers;
    uint64_t *pairs; /* local_span_ops */
    size_t n_pairs;
    ARRAY(struct planned) plan;
    id_array to, found;
    bool guesses;     /* what uses the tensors of some group is not known */
    uint32_t thread;  /* Horovod's, a device; NO_ID: it did nothing */
    uint8_t *follows; /* by timed op: it uses what a group brings, as far as is known */
};

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

static int64_t seen_start(const struct rank_build *rank, uint32_t op)
{
    return rank->start_ns[(size_t)rank->steps.reference * rank->n_timed + op];
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
        if (is_update(rank, o) && seen_start(rank, o) > seen_start(rank, done))
            return o;
    return NO_ID;
}

/* What takes the tensor that was handed over with a span, in Horovod's optimizer for PyTorch;
 * NO_ID: it is not that which the iteration did. */
static uint32_t find_set(const struct maker *m, const uint32_t *enqueues, uint32_t span)
{
    const struct trace_span *spans = m->rank->trace->spans;
    uint32_t n_before = 0, n_tensors = 0;
    for (uint32_t i = 0; i < m->fusion->n_tensors; i++) {
        n_tensors += enqueues[i] != NO_ID;
        n_before += enqueues[i] != NO_ID && spans[enqueues[i]].start_ns < spans[span].start_ns;
    }
    return local_nth_taken(m->rank, n_before, n_tensors);
}

static int plan_group(struct maker *m, uint32_t collective, uint32_t negotiation)
{
    struct rank_build *rank = m->rank;
    const struct local_collective *coll = &rank->collectives.at[collective];
    const struct fused_group *group = &m->fusion->groups[fusion_group(m->fusion, coll->sequence)];
    const uint32_t *enqueues =
        rank->trace->fused.enqueues +
        (size_t)fusion_round(m->fusion, coll->sequence) * m->fusion->n_tensors;
    uint32_t done = last_op(rank, coll->transfer);
    size_t n_before = m->to.n, first_planned = m->plan.n;
    for (uint32_t i = group->first; i < group->first + group->n; i++) {
        const struct timeline_tensor *tensor =
            &m->fusion->timeline->tensors.at[m->fusion->tensors[i]];
        uint32_t span = enqueues[i];
        struct planned one = {.tensor = {.name = tensor->name, .collective = collective},
                              .from = NO_ID,
                              .arrival = rank->collectives.at[negotiation].arrival,
                              .waits_for = (uint32_t)m->plan.n,
                              .done = done,
                              .first_to = (uint32_t)m->to.n};
        one.tensor.size_bytes =
            group->numel ? tensor->numel * (group->size_bytes / group->numel) : 0;
        if (span != NO_ID)
            one.from = local_op_of_span(m->pairs, m->n_pairs, span, true);
        uint32_t node = span == NO_ID ? NO_ID : rank->trace->spans[span].node;
        if (node < rank->trace->n_dfg_nodes) {
            if (walk(&m->consumers, node, &m->found) < 0)
                return -1;
            for (size_t k = 0; k < m->found.n; k++) {
                if (array_push(&m->to, m->found.at[k]) < 0)
                    return -1;
                m->follows[m->found.at[k]] = 1;
            }
        }
        uint32_t set = span == NO_ID ? NO_ID : find_set(m, enqueues, span);
        if (set != NO_ID) {
            if (array_push(&m->to, set) < 0)
                return -1;
            m->follows[set] = 1;
        }
        one.n_to = (uint32_t)m->to.n - one.first_to;
        if (array_push(&m->plan, one) < 0)
            return -1;
    }
    /* without any graph, what goes on when a thread falls idle tells better */
    bool unknown = m->to.n == n_before && rank->trace->n_dfg_nodes > 0;
    uint32_t update = unknown ? find_update(rank, done) : NO_ID;
    m->guesses |= m->to.n == n_before;
    if (update == NO_ID)
        return 0;
    for (size_t i = first_planned; i < m->plan.n; i++) {
        m->plan.at[i].first_to = (uint32_t)m->to.n;
        m->plan.at[i].n_to = 1;
    }
    return array_push(&m->to, update);
}

static uint32_t virtual_op(struct rank_build *rank, uint8_t kind, uint64_t bytes)
{
    struct local_op op = {.slice = NO_ID,
                          .track = NO_ID,
                          .device = NO_ID,
                          .kind = kind,
                          .phase = DPRO_OP_BARRIER,
                          .size_bytes = bytes,
                          .collective = NO_ID};
    if (array_push(&rank->ops, op) < 0)
        return NO_ID;
    return (uint32_t)rank->ops.n - 1;
}

/* Whether an op had begun in every iteration when the negotiation of a group began. */
static bool always_begun(const struct rank_build *rank, uint32_t op, uint32_t arrival)
{
    bool begun = true;
    for (uint32_t i = 0; i < rank->n_samples && begun; i++) {
        size_t first = (size_t)rank->sample_step[i] * rank->n_timed;
        int64_t from = rank->start_ns[first + op], to = rank->start_ns[first + arrival];
        begun = from == ABSENT || to == ABSENT || from < to;
    }
    return begun;
}

/* Where an iteration fused otherwise, or in another order, what the thread did first there may have
 * been before a tensor of the graph's first group was handed over. Nothing waits for that tensor
 * then: only for the last of those that were always handed over before. */
static void relax_arrivals(const struct maker *m)
{
    const struct rank_build *rank = m->rank;
    for (size_t i = 0; i < m->plan.n; i++) {
        struct planned *one = &m->plan.at[i];
        uint32_t last = NO_ID;
        if (one->from >= rank->n_timed || one->arrival >= rank->n_timed ||
            always_begun(rank, one->from, one->arrival))
            continue;
        for (uint32_t k = 0; k < m->plan.n; k++) {
            uint32_t from = m->plan.at[k].from;
            if (from < rank->n_timed && always_begun(rank, from, one->arrival) &&
                (last == NO_ID || seen_start(rank, from) > seen_start(rank, m->plan.at[last].from)))
                last = k;
        }
        one->waits_for = last;
    }
}

static int add_tensor(struct maker *m, const struct planned *planned)
{
    struct rank_build *rank = m->rank;
    struct local_tensor tensor = planned->tensor;
    tensor.in = virtual_op(rank, DPRO_OP_IN, tensor.size_bytes);
    tensor.out = virtual_op(rank, DPRO_OP_OUT, tensor.size_bytes);
    if (tensor.in == NO_ID || tensor.out == NO_ID || array_push(&rank->tensors, tensor) < 0)
        return -1;
    if ((planned->from != NO_ID &&
         local_add_edge(rank, planned->from, tensor.in, false, true) < 0) ||
        local_add_edge(rank, planned->done, tensor.out, false, false) < 0)
        return -1;
    for (uint32_t i = 0; i < planned->n_to; i++)
        if (local_add_edge(rank, tensor.out, m->to.at[planned->first_to + i], false, true) < 0)
            return -1;
    return 0;
}

/* An op of Horovod's thread in an iteration. */
struct turn {
    int64_t start_ns, end_ns;
    uint32_t op;
};

ORDER(compare_turns, struct turn, ASCENDING(start_ns) ?: ASCENDING(op));

/* What the thread did in a step, in order. *alike: tensors were fused there as in the graph. */
static uint32_t list_turns(const struct maker *m, uint32_t step, struct turn *turns, bool *alike)
{
    const struct rank_build *rank = m->rank;
    size_t first = (size_t)step * rank->n_timed;
    uint32_t n = 0;
    *alike = true;
    for (uint32_t o = 0; o < rank->n_timed; o++) {
        uint32_t slice = rank->match[first + o];
        if (rank->ops.at[o].device != m->thread || rank->start_ns[first + o] == ABSENT)
            continue;
        uint32_t detail = slice == NO_ID ? NO_ID : slice_span(rank, slice)->detail;
        if (detail != NO_ID)
            *alike &=
                m->fusion
                    ->alike[fusion_round(m->fusion, rank->trace->details[detail].comm_sequence)];
        turns[n++] = (struct turn){rank->start_ns[first + o], rank->end_ns[first + o], o};
    }
    qsort(turns, n, sizeof *turns, compare_turns);
    return n;
}

/* What waits for Horovod's thread, by the framework's graph or as the timeline has it. */
static void mark_followers(const struct maker *m)
{
    const struct rank_build *rank = m->rank;
    for (uint32_t o = 0; o < rank->n_timed && m->guesses; o++)
        m->follows[o] = is_update(rank, o);
    for (size_t e = 0; e < rank->edges.n; e++) {
        const struct local_edge *edge = &rank->edges.at[e];
        if (rank->ops.at[edge->from].device == m->thread && !edge->next &&
            edge->to < rank->n_timed && rank->ops.at[edge->to].device != m->thread)
            m->follows[edge->to] = 1;
    }
}

/* Until when the thread was busy before that time, or that time where it still was. */
static int64_t busy_until(const struct turn *turns, uint32_t n, int64_t time_ns)
{
    int64_t until = ABSENT;
    for (uint32_t t = 0; t < n && turns[t].start_ns < time_ns; t++) {
        int64_t end = turns[t].end_ns < time_ns ? turns[t].end_ns : time_ns;
        until = end > until ? end : until;
    }
    return until;
}

/* When the thread was free for each of its ops, and had what each op after a group waits for: where
 * an iteration took the groups in another order, or fused otherwise, what the thread did meanwhile
 * is no gap. */
static int note_turns(const struct maker *m)
{
    struct rank_build *rank = m->rank;
    size_t n_times = (size_t)rank->n_timed * rank->steps.n;
    struct turn *turns = mem_alloc((rank->n_timed + (size_t)1) * sizeof *turns);
    rank->free_ns = mem_alloc((n_times + 1) * sizeof *rank->free_ns);
    if (!turns || !rank->free_ns) {
        mem_free(turns);
        return -1;
    }
    for (size_t i = 0; i < n_times; i++)
        rank->free_ns[i] = ABSENT;
    for (uint32_t i = 0; i < rank->n_samples; i++) {
        size_t first = (size_t)rank->sample_step[i] * rank->n_timed;
        bool alike;
        uint32_t n = list_turns(m, rank->sample_step[i], turns, &alike);
        int64_t free_ns = ABSENT;
        for (uint32_t t = 0; t < n; t++) {
            rank->free_ns[first + turns[t].op] = free_ns;
            free_ns = turns[t].end_ns > free_ns ? turns[t].end_ns : free_ns;
        }
        bool unsure = !alike || m->guesses;
        for (uint32_t o = 0; o < rank->n_timed && unsure; o++)
            if (m->follows[o] && rank->start_ns[first + o] != ABSENT)
                rank->free_ns[first + o] = busy_until(turns, n, rank->start_ns[first + o]);
    }
    mem_free(turns);
    return 0;
}

int build_fused_tensors(struct rank_build *rank, const struct fusion *fusion,
                        struct dpro_error *err)
{
    struct maker m = {
        .rank = rank, .fusion = fusion, .follows = mem_array(rank->ops.n + 1, sizeof *m.follows)};
    uint32_t negotiation = NO_ID;
    int status = m.follows ? find_consumers(rank, &m.consumers) : -1;
    if (status == 0)
        status = local_span_ops(rank, rank->steps.reference, &m.pairs, &m.n_pairs);
    for (uint32_t c = 0; c < rank->collectives.n && status == 0; c++) {
        const struct local_collective *coll = &rank->collectives.at[c];
        const struct local_op *op = &rank->ops.at[coll->arrival];
        uint32_t track = op->slice == NO_ID ? NO_ID : slice_span(rank, op->slice)->track;
        if (track != rank->trace->fused.track)
            continue;
        m.thread = op->device;
        if (rank->classes[op->name] & NAME_NEGOTIATE)
            negotiation = c;
        else if (negotiation != NO_ID)
            status = plan_group(&m, c, negotiation);
    }
    if (status == 0 && m.thread != NO_ID)
        mark_followers(&m);
    if (status == 0 && m.thread != NO_ID)
        status = note_turns(&m);
    relax_arrivals(&m);
    /* virtual ops change the number of ops: only now that nobody looks at times by op any more */
    size_t first = rank->tensors.n;
    for (size_t i = 0; i < m.plan.n && status == 0; i++)
        status = add_tensor(&m, &m.plan.at[i]);
    for (size_t i = 0; i < m.plan.n && status == 0; i++)
        if (m.plan.at[i].waits_for != NO_ID)
            status = local_add_edge(rank, rank->tensors.at[first + m.plan.at[i].waits_for].in,
                                    m.plan.at[i].arrival, false, true);
    consumers_fini(&m.consumers);
    mem_free(m.pairs);
    array_fini(&m.plan);
    array_fini(&m.to);
    array_fini(&m.found);
    mem_free(m.follows);
    return status < 0 ? dpro_error_nomem(err) : 0;
}
