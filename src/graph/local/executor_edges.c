/* graph/local/executor_edges.c: a framework's executor: a call of it, the pool of threads that runs
 * what is ready, and its return when all is done.
 *
 * Which thread runs an op, and after which other one, is chance, and what of the ready ones it
 * takes first is the executor's own affair: the time from when an op is ready until it starts is
 * its gap, waiting for a thread included. In a replay (event.c) ops start after that, if no more
 * run then than ever ran at once in the job. */
#include "base/sort.h"
#include "graph/local/edge_rules.h"
#include "graph/local/local_edges.h"

typedef ARRAY(uint32_t) id_list;

ORDER_OF_INDICES(by_start, struct slice, ASCENDING(start_ns));

/* The slices of a step on the pool's threads, in order of start. */
static void list_slices(const struct rank_build *rank, uint32_t step, id_list *slices)
{
    slices->n = 0;
    for (uint32_t l = 0; l < rank->tracks.n; l++) {
        const struct track *track = &rank->tracks.at[l];
        for (uint32_t i = track->first[step];
             build_is_pool(rank, track) && i < track->first[step + 1]; i++)
            array_push(slices, i);
    }
    if (slices->n > 1)
        qsort_r(slices->at, slices->n, sizeof *slices->at, by_start, rank->slices.at);
}

void rule_count_slots(struct rank_build *rank)
{
    id_list slices = {0};
    ARRAY(int64_t) ends = {0}; /* of what ran last in each slot */
    for (uint32_t s = 0; s < rank->steps.n; s++) {
        list_slices(rank, s, &slices);
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
    array_fini(&slices);
    array_fini(&ends);
}

static bool is_call(const struct rank_build *rank, uint32_t op)
{
    return rank->ops.at[op].slice != NO_ID &&
           (rank->classes[rank->ops.at[op].name] & NAME_EXECUTOR_CALL);
}

/* The call that an op without predecessor waits for: the last one before it. It hands over at the
 * latest when the op starts. NO_ID: none was recorded. */
static uint32_t call_before(struct rank_build *rank, const id_list *calls, uint32_t op)
{
    size_t n = LOWER_BOUND(i, 0, calls->n, calls->at[i] < op); /* ops are in order of start */
    if (n == 0)
        return NO_ID;
    local_cut_end(rank, calls->at[n - 1], op);
    return calls->at[n - 1];
}

/* A call returns when all that it was asked for is done: every op is before the boundary, and
 * nothing of the next iteration begins before it. */
void rule_executor_boundary(struct rank_build *rank)
{
    uint32_t n = (uint32_t)rank->ops.n;
    bool *has_successor = mem_array(n * (size_t)2, sizeof *has_successor);
    bool *has_predecessor = has_successor + n;
    id_list calls = {0};
    for (size_t e = 0; e < rank->edges.n; e++)
        if (!rank->edges.at[e].next) {
            has_successor[rank->edges.at[e].from] = true;
            has_predecessor[rank->edges.at[e].to] = true;
        }
    for (uint32_t o = 0; o < n; o++)
        if (is_call(rank, o))
            array_push(&calls, o);
    for (uint32_t o = 0; o < n; o++) {
        if (o == rank->boundary)
            continue;
        uint32_t call =
            has_predecessor[o] || is_call(rank, o) ? NO_ID : call_before(rank, &calls, o);
        if (call != NO_ID) {
            local_add_edge(rank, call, o, false, true);
            has_predecessor[o] = has_successor[call] = true;
        }
        if (!has_predecessor[o])
            local_add_edge(rank, rank->boundary, o, true, false);
    }
    for (uint32_t o = 0; o < n; o++)
        if (o != rank->boundary && !has_successor[o])
            local_add_edge(rank, o, rank->boundary, false, false);
    mem_free(has_successor);
    array_fini(&calls);
}
