/* graph/local/engine_edges.c: programs that only ask for work and then wait for it, as MXNet's do.
 *
 * An engine runs the work on threads of its own. A call that waits for it is no work: of its time
 * remains what follows the last op that it waited for, in every iteration. And what a worker
 * exchanges with its servers begins when a gradient is there: after the op before it that always
 * came before, on each thread. Where servers update, the next iteration's ops wait for the
 * parameters that they take; where workers do: update_edges.c. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/sort.h"
#include "graph/local/framework_graph.h"
#include "graph/local/local_edges.h"
#include "graph/names/span_names.h"
#include "graph/rank_build.h"

enum { LOOK_BACK = 64 };

static size_t at(const struct rank_build *rank, uint32_t step, uint32_t op)
{
    return (size_t)step * rank->n_timed + op;
}

/* The first of a track's slices in the reference iteration that starts after `ns`. */
static uint32_t first_after(const struct rank_build *rank, const struct track *track, int64_t ns)
{
    uint32_t low =
        LOWER_BOUND(i, track->first[rank->steps.reference], track->first[rank->steps.reference + 1],
                    rank->slices.at[i].start_ns <= ns);
    return low;
}

/* ---- calls that wait ---- */

static void wait_until(struct rank_build *rank, uint32_t wait, uint32_t awaited)
{
    for (uint32_t s = 0; s < rank->steps.n; s++) {
        int64_t over = rank->end_ns[at(rank, s, awaited)], end = rank->end_ns[at(rank, s, wait)];
        int64_t *start = &rank->start_ns[at(rank, s, wait)];
        if (over != ABSENT && *start != ABSENT && over > *start)
            *start = over < end ? over : end;
    }
}

/* The track's ops that were over when the call returned, and began no earlier than `since`: of a
 * thread the last one; of exchanges, which have no order, each. */
static int add_awaited(struct rank_build *rank, const uint32_t *op_of_slice,
                       const struct track *track, uint32_t wait, int64_t start, int64_t end)
{
    bool ordered = track->kind == DPRO_DEVICE_CPU_THREAD;
    uint32_t first = track->first[rank->steps.reference], n_looked = 0;
    for (uint32_t i = first_after(rank, track, end); i-- > first;) {
        if (op_of_slice[i] == NO_ID || rank->slices.at[i].end_ns <= start)
            continue;
        if (ordered && n_looked++ == LOOK_BACK)
            return 0;
        uint32_t op = local_end_op(rank, op_of_slice[i]);
        if (!local_holds(rank, op, wait, false, true))
            continue;
        if (local_add_edge(rank, op, wait, false, true) < 0)
            return -1;
        if (ordered)
            return 0;
    }
    return 0;
}

static int add_waits(struct rank_build *rank, const uint32_t *op_of_slice)
{
    for (uint32_t o = 0; o < rank->ops.n; o++) {
        const struct local_op *op = &rank->ops.at[o];
        if (op->slice == NO_ID || !(rank->classes[op->name] & NAME_HOST_WAIT) || op->track == NO_ID)
            continue;
        int64_t start = rank->start_ns[at(rank, rank->steps.reference, o)];
        int64_t end = rank->end_ns[at(rank, rank->steps.reference, o)];
        size_t first = rank->edges.n;
        for (uint32_t l = 0; l < rank->tracks.n; l++)
            if (l != op->track && rank->tracks.at[l].kind != DPRO_DEVICE_GPU_STREAM &&
                add_awaited(rank, op_of_slice, &rank->tracks.at[l], o, start, end) < 0)
                return -1;
        for (size_t e = first; e < rank->edges.n; e++)
            wait_until(rank, o, rank->edges.at[e].from);
    }
    return 0;
}

/* ---- exchanges ---- */

static int add_before(struct rank_build *rank, const uint32_t *op_of_slice,
                      const struct track *track, uint32_t arrival)
{
    int64_t start = rank->start_ns[at(rank, rank->steps.reference, arrival)];
    uint32_t first = track->first[rank->steps.reference], n_looked = 0;
    for (uint32_t i = first_after(rank, track, start); i-- > first && n_looked < LOOK_BACK;) {
        size_t n_before = rank->edges.n;
        if (op_of_slice[i] == NO_ID || rank->slices.at[i].end_ns > start + LOCAL_ROUNDING_NS)
            continue;
        n_looked++;
        if (local_add_if_holds(rank, local_end_op(rank, op_of_slice[i]), arrival, false) < 0)
            return -1;
        if (rank->edges.n > n_before)
            return 0;
    }
    return 0;
}

static int add_exchanges(struct rank_build *rank, const uint32_t *op_of_slice)
{
    for (size_t c = 0; c < rank->collectives.n; c++) {
        uint32_t arrival = rank->collectives.at[c].arrival;
        if (!build_is_exchange(rank, arrival))
            continue;
        for (uint32_t l = 0; l < rank->tracks.n; l++)
            if (rank->tracks.at[l].kind == DPRO_DEVICE_CPU_THREAD &&
                add_before(rank, op_of_slice, &rank->tracks.at[l], arrival) < 0)
                return -1;
    }
    return 0;
}

/* ---- parameters that were pulled ---- */

static bool takes(const struct rank_build *rank, uint32_t op, uint32_t parameter)
{
    const struct trace_rank *trace = rank->trace;
    const struct dfg_node *node = &trace->dfg_nodes[slice_span(rank, rank->ops.at[op].slice)->node];
    for (uint32_t i = 0; i < node->n_inputs; i++)
        if (trace->dfg_nodes[trace->dfg_inputs[node->first_input + i].node].name == parameter)
            return true;
    return false;
}

/* Nodes that ran, in order of start. */
static uint32_t list_nodes(const struct rank_build *rank, uint32_t *nodes)
{
    uint32_t n = 0;
    for (uint32_t o = 0; o < rank->n_timed; o++) {
        const struct local_op *op = &rank->ops.at[o];
        if (op->slice != NO_ID && op->track != NO_ID &&
            rank->tracks.at[op->track].kind == DPRO_DEVICE_CPU_THREAD &&
            slice_span(rank, op->slice)->node != NO_ID)
            nodes[n++] = o;
    }
    return n;
}

/* The first node that takes it; of those in a bulk only the last is known: then the first that
 * always came after. */
static int add_taker(struct rank_build *rank, const uint32_t *nodes, uint32_t n,
                     const struct local_collective *c)
{
    uint32_t first = 0;
    while (first < n && !takes(rank, nodes[first], c->group))
        first++;
    uint32_t end = first == n ? (n < LOOK_BACK ? n : LOOK_BACK) : first + 1;
    for (uint32_t i = first == n ? 0 : first; i < end; i++) {
        size_t n_before = rank->edges.n;
        bool next = nodes[i] < c->arrival;
        if (local_add_if_holds(rank, c->transfer, nodes[i], next) < 0)
            return -1;
        if (rank->edges.n > n_before)
            return 0;
    }
    return 0;
}

static int add_takers(struct rank_build *rank)
{
    uint32_t *nodes = mem_alloc((rank->ops.n + 1) * sizeof *nodes);
    uint32_t n = nodes ? list_nodes(rank, nodes) : 0;
    int status = nodes ? 0 : -1;
    for (size_t c = 0; c < rank->collectives.n && status == 0; c++)
        if (build_is_exchange(rank, rank->collectives.at[c].arrival))
            status = add_taker(rank, nodes, n, &rank->collectives.at[c]);
    mem_free(nodes);
    return status;
}

int local_add_engine_edges(struct rank_build *rank, const uint32_t *op_of_slice)
{
    if (add_waits(rank, op_of_slice) < 0 || add_exchanges(rank, op_of_slice) < 0)
        return -1;
    return rank->updates.n > 0 ? local_add_update_edges(rank) : add_takers(rank);
}

int local_add_exchange_boundary(struct rank_build *rank)
{
    for (size_t c = 0; c < rank->collectives.n; c++) {
        uint32_t arrival = rank->collectives.at[c].arrival;
        if (build_is_exchange(rank, arrival) &&
            local_add_edge(rank, arrival, rank->boundary, false, false) < 0)
            return -1;
    }
    return 0;
}

/* ---- what is pulled and then copied ---- */

typedef ARRAY(uint32_t) span_list;

ORDER_OF_INDICES(by_end, struct trace_span,
                 COMPARE(x->start_ns + x->dur_ns, y->start_ns + y->dur_ns));

ORDER_OF_INDICES(by_start, struct trace_span, ASCENDING(start_ns));

/* The engine copies in the order in which answers come, between its other copies, of which there
 * are few: those take part in an iteration as ops. */
int build_find_stores(const struct rank_build *rank, struct map *stored_ns)
{
    const struct trace_rank *trace = rank->trace;
    span_list pulls = {0}, copies = {0};
    int status = 0;
    for (uint32_t i = 0; i < trace->n_spans && status == 0; i++) {
        const struct trace_span *span = &trace->spans[i];
        const char *name = strtab_get(rank->names, span->name);
        if ((rank->classes[span->name] & NAME_EXCHANGE) && strstr(name, "Pull"))
            status = array_push(&pulls, i);
        else if (span->kind == SPAN_CPU_OP && strncmp(name, "Copy", 4) == 0)
            status = array_push(&copies, i);
    }
    if (status == 0 && pulls.n > 0 && copies.n >= pulls.n) {
        qsort_r(pulls.at, pulls.n, sizeof *pulls.at, by_end, trace->spans);
        qsort_r(copies.at, copies.n, sizeof *copies.at, by_start, trace->spans);
        for (size_t c = 0, p = 0; c < copies.n && p < pulls.n && status == 0; c++) {
            const struct trace_span *copy = &trace->spans[copies.at[c]];
            const struct trace_span *pull = &trace->spans[pulls.at[p]];
            if (copy->start_ns + LOCAL_ROUNDING_NS < pull->start_ns + pull->dur_ns)
                continue;
            uint64_t stored = (uint64_t)(copy->start_ns + copy->dur_ns);
            if (map_set(stored_ns, copies.at[c] + UINT64_C(1), stored) < 0 ||
                map_set(stored_ns, pulls.at[p++] + UINT64_C(1), stored) < 0)
                status = -1;
        }
    }
    array_fini(&pulls);
    array_fini(&copies);
    return status;
}
