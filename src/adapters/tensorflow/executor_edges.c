/* Edges of a framework's executor: a call of it, the pool of threads that runs what is ready, and
 * its return when all is done.
 *
 * Which thread runs an op, and which ready op it takes first, is chance. So the time from ready to
 * start is the op's gap, waiting for a thread included. In a replay (event_engine.c) an op starts
 * after its gap, if no more ops run then than ever did in the job. */
#include "graph/local/local_edges.h"
#include "graph/ops/match_slices.h"

void rule_count_slots(struct rank_build *rank)
{
    SCRATCH ARRAY(int64_t) ends = {0}; /* of what ran last in each slot */
    for (uint32_t s = 0; s < rank->steps.n; s++) {
        SCRATCH slice_list slices = slices_by_start(rank, s, build_is_pool);
        for (size_t i = 0; i < slices.n; i++) {
            const struct slice *slice = &rank->slices.at[slices.at[i]];
            size_t first = 0; /* to be free */
            for (size_t k = 1; k < ends.n; k++)
                if (ends.at[k] < ends.at[first])
                    first = k;
            if (ends.n > 0 && ends.at[first] <= slice->start_ns)
                ends.at[first] = slice->end_ns;
            else
                array_push(&ends, slice->end_ns);
        }
    }
    rank->n_slots = (uint32_t)ends.n;
}

/* A call returns when all that it was asked for is done: every op is before the boundary, and
 * nothing of the next iteration begins before it. An op without predecessor waits for the last call
 * before it, which hands over at the latest when the op starts. */
void rule_executor_boundary(struct rank_build *rank)
{
    uint32_t n = (uint32_t)rank->ops.n, call = NO_ID;
    SCRATCH bool *has_successor = mem_array(n * (size_t)2, sizeof *has_successor);
    bool *has_predecessor = has_successor + n;
    for (size_t e = 0; e < rank->edges.n; e++)
        if (!rank->edges.at[e].next) {
            has_successor[rank->edges.at[e].from] = true;
            has_predecessor[rank->edges.at[e].to] = true;
        }
    for (uint32_t o = 0; o < n; o++) {
        const struct local_op *op = &rank->ops.at[o];
        if (o == rank->boundary)
            continue;
        if (op->slice != NO_ID && (rank->classes[op->name] & NAME_EXECUTOR_CALL)) {
            call = o;
        } else if (!has_predecessor[o] && call != NO_ID) {
            local_cut_end(rank, call, o);
            local_add_edge(rank, call, o, false, true);
            has_predecessor[o] = has_successor[call] = true;
        }
        if (!has_predecessor[o])
            local_add_edge(rank, rank->boundary, o, true, false);
    }
    for (uint32_t o = 0; o < n; o++)
        if (o != rank->boundary && !has_successor[o])
            local_add_edge(rank, o, rank->boundary, false, false);
}
