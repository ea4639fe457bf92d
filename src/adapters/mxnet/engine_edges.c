/* Edges of programs that ask an engine for work and then wait for it, as MXNet's do.
 *
 * The engine works on threads of its own. A call that waits is no work: it keeps only what follows
 * the last op that it waited for in every iteration. An exchange with servers begins when a
 * gradient is there, that is, on each thread after the last op that always came before. Where
 * servers update, the next iteration's ops wait for the parameters that they take; where workers
 * do, see update_edges.c. */
#include "graph/local/local_edges.h"

enum { LOOK_BACK = 64 };

/* ---- calls that wait ---- */

/* The track's ops that were over when the call returned, and began no earlier than `since`: of a
 * thread the last one; of exchanges, which have no order, each. */
static void add_awaited(struct rank_build *rank, const struct track *track, uint32_t wait,
                        int64_t start, int64_t end)
{
    bool ordered = track->kind == DPRO_DEVICE_CPU_THREAD;
    uint32_t first = track->first[rank->steps.reference], n_looked = 0;
    for (uint32_t i = local_first_from(rank, track, rank->steps.reference, end + 1); i-- > first;) {
        if (rank->op_of_slice[i] == NO_ID || rank->slices.at[i].end_ns <= start)
            continue;
        if (ordered && n_looked++ == LOOK_BACK)
            return;
        uint32_t op = local_end_op(rank, rank->op_of_slice[i]);
        if (!local_holds(rank, op, wait, false, true))
            continue;
        local_add_edge(rank, op, wait, false, true);
        if (ordered)
            return;
    }
}

void rule_host_waits(struct rank_build *rank)
{
    for (uint32_t o = 0; o < rank->ops.n; o++) {
        const struct local_op *op = &rank->ops.at[o];
        if (op->slice == NO_ID || !(rank->classes[op->name] & NAME_HOST_WAIT))
            continue;
        int64_t start = local_start(rank, o);
        int64_t end = rank->end_ns[build_at(rank, rank->steps.reference, o)];
        size_t first = rank->edges.n;
        for (uint32_t l = 0; l < rank->tracks.n; l++)
            if (l != op->track && rank->tracks.at[l].kind != DPRO_DEVICE_GPU_STREAM)
                add_awaited(rank, &rank->tracks.at[l], o, start, end);
        for (size_t e = first; e < rank->edges.n; e++)
            local_cut_waiting(rank, o, rank->edges.at[e].from, false);
    }
}

/* ---- exchanges ---- */

static void add_before(struct rank_build *rank, const struct track *track, uint32_t arrival)
{
    int64_t start = local_start(rank, arrival);
    uint32_t first = track->first[rank->steps.reference], n_looked = 0;
    for (uint32_t i = local_first_from(rank, track, rank->steps.reference, start + 1);
         i-- > first && n_looked < LOOK_BACK;) {
        if (rank->op_of_slice[i] == NO_ID || rank->slices.at[i].end_ns > start + CLOCK_ROUNDING_NS)
            continue;
        n_looked++;
        if (local_add_if_holds(rank, local_end_op(rank, rank->op_of_slice[i]), arrival, false))
            return;
    }
}

void rule_exchanges(struct rank_build *rank)
{
    for (size_t c = 0; c < rank->collectives.n; c++) {
        uint32_t arrival = rank->collectives.at[c].arrival;
        for (uint32_t l = 0; build_is_exchange(rank, arrival) && l < rank->tracks.n; l++)
            if (rank->tracks.at[l].kind == DPRO_DEVICE_CPU_THREAD)
                add_before(rank, &rank->tracks.at[l], arrival);
    }
}

void rule_exchange_boundary(struct rank_build *rank)
{
    for (size_t c = 0; c < rank->collectives.n; c++)
        if (build_is_exchange(rank, rank->collectives.at[c].arrival))
            local_add_edge(rank, rank->collectives.at[c].arrival, rank->boundary, false, false);
}

/* ---- parameters that were pulled ---- */

static bool edges_takes(const struct rank_build *rank, uint32_t op, uint32_t parameter)
{
    const struct trace_rank *trace = rank->trace;
    const struct dfg_node *node = &trace->dfg_nodes[slice_span(rank, rank->ops.at[op].slice)->node];
    for (uint32_t i = 0; i < node->n_inputs; i++)
        if (trace->dfg_nodes[trace->dfg_inputs[node->first_input + i].node].name == parameter)
            return true;
    return false;
}

/* Nodes that ran, in order of start. */
typedef ARRAY(uint32_t) node_list;

static node_list list_nodes(const struct rank_build *rank)
{
    node_list nodes = {0};
    for (uint32_t o = 0; o < rank->n_timed; o++)
        if (local_on_thread(rank, o) && slice_span(rank, rank->ops.at[o].slice)->node != NO_ID)
            array_push(&nodes, o);
    return nodes;
}

/* The first node that takes it; of those in a bulk only the last is known: then the first that
 * always came after. */
static void add_taker(struct rank_build *rank, const node_list *nodes,
                      const struct local_collective *c)
{
    size_t first = 0, end;
    while (first < nodes->n && !edges_takes(rank, nodes->at[first], c->group))
        first++;
    end = first + 1;
    if (first == nodes->n) {
        first = 0;
        end = MIN(nodes->n, LOOK_BACK);
    }
    for (size_t i = first; i < end; i++)
        if (local_add_if_holds(rank, c->transfer, nodes->at[i], nodes->at[i] < c->arrival))
            return;
}

void rule_takers(struct rank_build *rank)
{
    SCRATCH node_list nodes = list_nodes(rank);
    for (size_t c = 0; c < rank->collectives.n; c++)
        if (build_is_exchange(rank, rank->collectives.at[c].arrival))
            add_taker(rank, &nodes, &rank->collectives.at[c]);
}
