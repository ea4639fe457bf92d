/* graph/local/edge_rules.c: what must wait for what within one rank.
 *
 * Order on a thread or stream, launch -> device work, and recorded synchronization are facts. The
 * rest is read off the timeline and kept only where it holds in every measured iteration (nine in
 * ten, and never off by more than a thousandth of the iteration, to survive the clocks): an edge
 * that holds never delays the replay of what was measured, it decides what happens when something
 * else changes. */
#include "graph/local/edge_rules.h"

#include <string.h>

#include "graph/ops/framework_graph.h"

static bool has_track(const struct rank_build *rank, enum dpro_device_kind kind)
{
    for (uint32_t l = 0; l < rank->tracks.n; l++)
        if (rank->tracks.at[l].kind == kind)
            return true;
    return false;
}

static bool has_streams(const struct rank_build *rank)
{
    return has_track(rank, DPRO_DEVICE_GPU_STREAM);
}

static bool has_comm_threads(const struct rank_build *rank)
{
    return has_track(rank, DPRO_DEVICE_COMM_THREAD);
}

static bool has_executor(const struct rank_build *rank)
{
    for (uint32_t l = 0; l < rank->tracks.n; l++)
        if (build_is_pool(rank, &rank->tracks.at[l]))
            return true;
    return false;
}

static bool has_exchanges(const struct rank_build *rank)
{
    for (size_t c = 0; c < rank->collectives.n; c++)
        if (build_is_exchange(rank, rank->collectives.at[c].arrival))
            return true;
    return false;
}

static bool updates_itself(const struct rank_build *rank)
{
    return rank->updates.n > 0;
}

static bool servers_update(const struct rank_build *rank)
{
    return has_exchanges(rank) && !updates_itself(rank);
}

static bool has_links(const struct rank_build *rank)
{
    return rank->trace->n_links > 0;
}

static bool has_storages(const struct rank_build *rank)
{
    return rank->trace->n_et_nodes > 0;
}

static bool ends_with_exchange(const struct rank_build *rank)
{
    return rank->steps.end_with_exchange && !has_executor(rank);
}

static bool ends_with_thread(const struct rank_build *rank)
{
    return !rank->steps.end_with_exchange && !has_executor(rank);
}

/* In the order in which they run: later ones see the edges and times of earlier ones. */
static const struct {
    bool (*applies)(const struct rank_build *rank); /* NULL: always */
    void (*run)(struct rank_build *rank);
} rules[] = {
    {NULL, rule_trim_launches},
    {has_streams, rule_trim_copies},
    {has_executor, rule_count_slots},
    {has_comm_threads, rule_comm_launches},
    {NULL, rule_device_order},
    {NULL, rule_transfers},
    {has_streams, rule_gpu},
    {NULL, rule_host_waits},
    {has_exchanges, rule_exchanges},
    {updates_itself, rule_updates},
    {servers_update, rule_takers},
    {NULL, rule_handovers},
    {has_links, rule_links},
    {has_storages, rule_storages},
    {dfg_is_known, rule_nodes},
    {has_executor, rule_executor_boundary},
    {ends_with_exchange, rule_exchange_boundary},
    {ends_with_thread, rule_thread_boundary},
};

void build_local_edges(struct rank_build *rank)
{
    if (has_exchanges(rank))
        rule_sort_updates(rank);
    rank->op_of_slice = mem_alloc((rank->slices.n + 1) * sizeof *rank->op_of_slice);
    memset(rank->op_of_slice, 0xFF, (rank->slices.n + 1) * sizeof *rank->op_of_slice);
    for (uint32_t s = 0; s < rank->steps.n; s++)
        for (uint32_t o = (uint32_t)rank->ops.n; o-- > 0;) { /* a collective's: its arrival */
            uint32_t slice = rank->match[build_at(rank, s, o)];
            if (slice != NO_ID)
                rank->op_of_slice[slice] = o;
        }
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++)
        if (!rules[r].applies || rules[r].applies(rank))
            rules[r].run(rank);
    mem_free(rank->op_of_slice);
    rank->op_of_slice = NULL;
}
