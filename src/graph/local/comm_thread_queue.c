/* graph/local/comm_thread_queue.c: the queue of a pool of communication threads.
 *
 * gloo's k threads take collectives in the order in which they were asked for. So a collective
 * starts when all but k - 1 of those before it are over, whichever they are. An op without device
 * or duration stands for "a thread is free" and leaves out its k - 1 latest predecessors. */

#include "graph/local/local_edges.h"

enum { LOOK_BACK = 16 }; /* older ones are over */

struct queued {
    uint32_t transfers[LOOK_BACK];
    uint32_t n;
};

/* When a thread was free in a step: the end of all but the `spare` latest. ABSENT: not measured. */
static int64_t free_at(const struct rank_build *rank, const struct queued *before, uint32_t spare,
                       uint32_t step)
{
    int64_t ends[LOOK_BACK];
    uint32_t n = before->n < LOOK_BACK ? before->n : LOOK_BACK;
    for (uint32_t i = 0; i < n; i++) {
        ends[i] = rank->end_ns[build_at(rank, step, before->transfers[i])];
        if (ends[i] == ABSENT)
            return ABSENT;
    }
    return graph_all_but_latest(ends, n, spare);
}

/* Whether each measured iteration bears it out, as in local_holds. */
static bool bears_out(const struct rank_build *rank, const struct queued *before, uint32_t spare,
                      uint32_t arrival)
{
    uint32_t seen = 0, held = 0;
    for (uint32_t i = 0; i < rank->n_samples; i++) {
        uint32_t s = rank->sample_step[i];
        int64_t start = rank->start_ns[build_at(rank, s, arrival)];
        int64_t free = free_at(rank, before, spare, s);
        if (start == ABSENT || free == ABSENT)
            continue;
        seen++;
        held += start >= free;
        if (start < free - (rank->steps.at[s].end_ns - rank->steps.at[s].start_ns) / 1000)
            return false;
    }
    return seen > 0 && held * 10 >= seen * 9;
}

static void add_wait(struct rank_build *rank, const struct queued *before, uint32_t spare,
                     uint32_t arrival)
{
    uint32_t free_op = build_push_virtual(rank, DPRO_OP_BARRIER, 0);
    rank->ops.at[free_op].spare = (uint8_t)spare;
    for (uint32_t i = 0; i < before->n && i < LOOK_BACK; i++)
        local_add_edge(rank, before->transfers[i], free_op, false, true);
    local_add_edge(rank, free_op, arrival, false, true);
}

void build_pool(struct rank_build *rank)
{
    uint32_t n_threads = 0;
    struct queued before = {.n = 0};
    for (uint32_t d = 0; d < rank->devices.n; d++)
        n_threads += local_in_pool(rank, d);
    if (n_threads == 0 || n_threads > LOOK_BACK)
        return;
    for (uint32_t o = 0; o < rank->n_timed; o++) {
        const struct local_op *op = &rank->ops.at[o];
        if (op->device == NO_ID || !local_in_pool(rank, op->device) ||
            !(op->flags & GRAPH_OP_ARRIVAL))
            continue;
        if (before.n >= n_threads && bears_out(rank, &before, n_threads - 1, o))
            add_wait(rank, &before, n_threads - 1, o);
        before.transfers[before.n++ % LOOK_BACK] = o + 1;
    }
}
