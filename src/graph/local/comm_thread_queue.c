/* The queues of pools of communication threads.
 *
 * Each process group of gloo has k threads, which take its collectives in the order in which they
 * were asked for. So a collective starts when all but k - 1 of those before it are over, whichever
 * they are. An op without device or duration stands for "a thread is free" and leaves out its k - 1
 * latest predecessors. */

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
        ends[i] = *step_end(rank, step, before->transfers[i]);
        if (ends[i] == ABSENT)
            return ABSENT;
    }
    return graph_all_but_latest(ends, n, spare);
}

static bool bears_out(const struct rank_build *rank, const struct queued *before, uint32_t spare,
                      uint32_t arrival)
{
    struct agreement a = {0};
    for (uint32_t i = 0; i < rank->n_samples && !a.is_broken; i++) {
        uint32_t s = rank->sample_step[i];
        agreement_see(&a, free_at(rank, before, spare, s), *step_start(rank, s, arrival),
                      step_trifle(rank, s));
    }
    return agreement_holds(&a);
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

/* Whether a thread of the pool of this group runs the collective. */
static bool runs_for(const struct rank_build *rank, const struct local_collective *coll,
                     uint32_t group)
{
    uint32_t device = rank->ops.at[coll->arrival].device;
    return coll->group == group && device != NO_ID && local_in_pool(rank, device) &&
           !rank->trace->tracks[rank->devices.at[device].name].posted;
}

static uint32_t count_threads(const struct rank_build *rank, uint32_t group)
{
    SCRATCH bool *seen = mem_array(rank->devices.n + 1, sizeof *seen);
    uint32_t n = 0;
    EACH (const struct local_collective, coll, rank->collectives)
        if (runs_for(rank, coll, group) && !seen[rank->ops.at[coll->arrival].device]) {
            seen[rank->ops.at[coll->arrival].device] = true;
            n++;
        }
    return n;
}

static void queue_group(struct rank_build *rank, uint32_t group)
{
    uint32_t n_threads = count_threads(rank, group);
    struct queued before = {.n = 0};
    if (n_threads == 0 || n_threads > LOOK_BACK)
        return;
    EACH (const struct local_collective, coll, rank->collectives) {
        if (!runs_for(rank, coll, group))
            continue;
        if (before.n >= n_threads && bears_out(rank, &before, n_threads - 1, coll->arrival))
            add_wait(rank, &before, n_threads - 1, coll->arrival);
        before.transfers[before.n++ % LOOK_BACK] = coll->transfer;
    }
}

void build_pool(struct rank_build *rank)
{
    SCRATCH struct map done = {0};
    EACH (const struct local_collective, coll, rank->collectives)
        if (map_insert(&done, coll->group + UINT64_C(1), 1))
            queue_group(rank, coll->group);
}
