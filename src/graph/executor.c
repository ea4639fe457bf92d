/* graph/executor.c: a framework's executor: a call of it, the pool of threads that runs what is
 * ready, and its return when all is done.
 *
 * Which thread runs an op, and after which other one, is chance. An op that is ready waits until
 * one of the threads is free, which is when some op of the pool ends: of the waiting only what
 * follows is the op's own gap. In a replay the template's thread stands for the one that it waits
 * for. */
#include <stdlib.h>

#include "graph/build.h"
#include "graph/local.h"

bool local_has_executor(const struct rank_build *rank)
{
    for (uint32_t l = 0; l < rank->n_lanes; l++)
        if (build_is_pool(rank, &rank->lanes[l]))
            return true;
    return false;
}

static int compare_times(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* The latest of the ascending times that is not after `ns`; ABSENT: none. */
static int64_t latest_until(const int64_t *times, size_t n, int64_t ns)
{
    size_t low = 0, high = n;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (times[mid] <= ns)
            low = mid + 1;
        else
            high = mid;
    }
    return low > 0 ? times[low - 1] : ABSENT;
}

int local_free_threads(struct rank_build *rank, const uint32_t *op_of_item)
{
    size_t total = (size_t)rank->n_timed * rank->steps.n;
    if (!local_has_executor(rank))
        return 0;
    int64_t *ends = malloc((rank->items.n + 1) * sizeof *ends);
    rank->free_ns = malloc((total + 1) * sizeof *rank->free_ns);
    if (!rank->free_ns || !ends) {
        free(ends);
        return -1;
    }
    for (size_t i = 0; i < total; i++)
        rank->free_ns[i] = ABSENT;
    for (uint32_t s = 0; s < rank->steps.n; s++) {
        size_t n = 0;
        for (uint32_t l = 0; l < rank->n_lanes; l++)
            for (uint32_t i = rank->lanes[l].first[s];
                 build_is_pool(rank, &rank->lanes[l]) && i < rank->lanes[l].first[s + 1]; i++)
                ends[n++] = rank->items.at[i].end_ns;
        qsort(ends, n, sizeof *ends, compare_times);
        for (uint32_t l = 0; l < rank->n_lanes; l++)
            for (uint32_t i = rank->lanes[l].first[s];
                 build_is_pool(rank, &rank->lanes[l]) && i < rank->lanes[l].first[s + 1]; i++)
                if (op_of_item[i] != NO_ID)
                    rank->free_ns[(size_t)s * rank->n_timed + op_of_item[i]] =
                        latest_until(ends, n, rank->items.at[i].start_ns);
    }
    free(ends);
    return 0;
}

int local_add_usual_order(struct rank_build *rank, uint32_t before, uint32_t after)
{
    uint32_t seen = 0, held = 0;
    for (uint32_t i = 0; i < rank->n_samples; i++) {
        size_t base = (size_t)rank->sample_step[i] * rank->n_timed;
        int64_t end = rank->end_ns[base + before], start = rank->start_ns[base + after];
        if (end == ABSENT || start == ABSENT)
            continue;
        seen++;
        held += start >= end - LOCAL_ROUNDING_NS;
    }
    return held * 2 > seen ? local_add_edge(rank, before, after, false, true) : 0;
}

static bool is_call(const struct rank_build *rank, uint32_t op)
{
    return rank->ops.at[op].item != NO_ID &&
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
    bool *has_successor = calloc(rank->ops.n * 2 + 1, sizeof *has_successor);
    bool *has_predecessor = has_successor + rank->ops.n;
    uint32_t *calls = malloc((rank->ops.n + 1) * sizeof *calls);
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
    free(has_successor);
    free(calls);
    return status;
}
