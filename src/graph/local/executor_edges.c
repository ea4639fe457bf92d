/* graph/local/executor_edges.c: a framework's executor: a call of it, the pool of threads that runs
 * what is ready, and its return when all is done.
 *
 * Which thread runs an op, and after which other one, is chance, and what of the ready ones it
 * takes first is the executor's own affair: the time from when an op is ready until it starts is
 * its gap, waiting for a thread included. In a replay (event.c) ops start after that, if no more
 * run then than ever ran at once in the job. */
#include <stdlib.h>

#include "base/memory.h"
#include "base/sort.h"
#include "graph/local/local_edges.h"
#include "graph/rank_build.h"

bool local_has_executor(const struct rank_build *rank)
{
    for (uint32_t l = 0; l < rank->tracks.n; l++)
        if (build_is_pool(rank, &rank->tracks.at[l]))
            return true;
    return false;
}

ORDER_OF_INDICES(by_start, struct slice, ASCENDING(start_ns));

/* The slices of a step on the pool's threads, in order of start. */
static uint32_t list_slices(struct rank_build *rank, uint32_t step, uint32_t *slices)
{
    uint32_t n = 0;
    for (uint32_t l = 0; l < rank->tracks.n; l++)
        for (uint32_t i = rank->tracks.at[l].first[step];
             build_is_pool(rank, &rank->tracks.at[l]) && i < rank->tracks.at[l].first[step + 1];
             i++)
            slices[n++] = i;
    qsort_r(slices, n, sizeof *slices, by_start, rank->slices.at);
    return n;
}

static uint32_t earliest(const int64_t *ends, uint32_t n)
{
    uint32_t first = 0;
    for (uint32_t i = 1; i < n; i++)
        if (ends[i] < ends[first])
            first = i;
    return first;
}

int local_count_slots(struct rank_build *rank)
{
    if (!local_has_executor(rank))
        return 0;
    uint32_t *slices = mem_alloc((rank->slices.n + 1) * sizeof *slices);
    int64_t *ends = mem_alloc((rank->slices.n + 1) * sizeof *ends); /* of what ran last on each */
    for (uint32_t s = 0; slices && ends && s < rank->steps.n; s++) {
        uint32_t n = list_slices(rank, s, slices);
        for (uint32_t i = 0; i < n; i++) {
            const struct slice *slice = &rank->slices.at[slices[i]];
            uint32_t slot = earliest(ends, rank->n_slots);
            if (rank->n_slots == 0 || ends[slot] > slice->start_ns)
                slot = rank->n_slots++;
            ends[slot] = slice->end_ns;
        }
    }
    bool ready = slices && ends;
    mem_free(slices);
    mem_free(ends);
    return ready ? 0 : -1;
}

static bool is_call(const struct rank_build *rank, uint32_t op)
{
    return rank->ops.at[op].slice != NO_ID &&
           (rank->classes[rank->ops.at[op].name] & NAME_EXECUTOR_CALL);
}

/* The call that an op without predecessor waits for: the last one before it. It hands over at the
 * latest when the op starts. NO_ID: none was recorded. */
static uint32_t call_before(struct rank_build *rank, const uint32_t *calls, size_t n, uint32_t op)
{
    uint32_t call = NO_ID;
    for (size_t i = 0; i < n && calls[i] < op; i++) /* ops are in order of start */
        call = calls[i];
    for (uint32_t s = 0; s < rank->steps.n && call != NO_ID; s++) {
        size_t base = (size_t)s * rank->n_timed;
        int64_t start = rank->start_ns[base + op], *end = &rank->end_ns[base + call];
        if (start == ABSENT || *end == ABSENT || *end <= start)
            continue;
        *end = start > rank->start_ns[base + call] ? start : rank->start_ns[base + call];
    }
    return call;
}

/* A call returns when all that it was asked for is done: every op is before the boundary, and
 * nothing of the next iteration begins before it. */
int local_add_executor_boundary(struct rank_build *rank)
{
    bool *has_successor = mem_array(rank->ops.n * 2 + 1, sizeof *has_successor);
    bool *has_predecessor = has_successor + rank->ops.n;
    uint32_t *calls = mem_alloc((rank->ops.n + 1) * sizeof *calls);
    size_t n_calls = 0;
    int status = has_successor && calls ? 0 : -1;
    for (size_t e = 0; e < rank->edges.n && status == 0; e++)
        if (!rank->edges.at[e].next) {
            has_successor[rank->edges.at[e].from] = true;
            has_predecessor[rank->edges.at[e].to] = true;
        }
    for (uint32_t o = 0; o < rank->ops.n && status == 0; o++)
        if (is_call(rank, o))
            calls[n_calls++] = o;
    for (uint32_t o = 0; o < rank->ops.n && status == 0; o++) {
        if (o == rank->boundary)
            continue;
        uint32_t call =
            has_predecessor[o] || is_call(rank, o) ? NO_ID : call_before(rank, calls, n_calls, o);
        if (call != NO_ID) {
            status = local_add_edge(rank, call, o, false, true);
            has_predecessor[o] = has_successor[call] = true;
        }
        if (!has_predecessor[o] && status == 0)
            status = local_add_edge(rank, rank->boundary, o, true, false);
    }
    for (uint32_t o = 0; o < rank->ops.n && status == 0; o++)
        if (o != rank->boundary && !has_successor[o])
            status = local_add_edge(rank, o, rank->boundary, false, false);
    mem_free(has_successor);
    mem_free(calls);
    return status;
}
