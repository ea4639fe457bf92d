/* Which op of a rank waits for which.
 *
 * Order on a thread or stream, launch -> device work, and recorded synchronization are facts. All
 * other edges are inferred from the timeline. They are kept only if they hold in nine of ten
 * measured iterations and are never violated by more than a thousandth of the iteration, which
 * allows for clock errors. So they never delay the replay of what was measured; they matter when
 * something else changes. */
#include "graph/local/local_edges.h"

/* What a rank has, on which rules depend. */
enum trait {
    STREAMS = 1 << 0,
    COMM_THREADS = 1 << 1,
    EXECUTOR = 1 << 2, /* a pool of threads that runs what is ready */
    EXCHANGES = 1 << 3,
    OWN_UPDATES = 1 << 4,        /* it updates parameters that servers added up */
    ENDS_WITH_EXCHANGE = 1 << 5, /* its iterations */
    LINKS = 1 << 6,
    STORAGES = 1 << 7,
    NODES = 1 << 8,    /* of a framework's graph */
    ALL_TOLD = 1 << 9, /* by links */
};

static unsigned traits_of(const struct rank_build *rank)
{
    const struct trace_rank *trace = rank->trace;
    unsigned traits = (rank->updates.n > 0 ? OWN_UPDATES : 0) |
                      (rank->steps.end_with_exchange ? ENDS_WITH_EXCHANGE : 0) |
                      (trace->n_links > 0 ? LINKS : 0) | (trace->links_tell_all ? ALL_TOLD : 0) |
                      (trace->n_et_nodes > 0 ? STORAGES : 0) | (dfg_is_known(rank) ? NODES : 0);
    EACH (const struct track, track, rank->tracks)
        traits |= track->kind == DPRO_DEVICE_GPU_STREAM    ? STREAMS
                  : track->kind == DPRO_DEVICE_COMM_THREAD ? COMM_THREADS
                  : build_is_pool(rank, track)             ? EXECUTOR
                                                           : 0;
    for (size_t c = 0; c < rank->collectives.n; c++)
        traits |= build_is_exchange(rank, rank->collectives.at[c].arrival) ? EXCHANGES : 0;
    return traits;
}

/* In the order in which they run: later ones see the edges and times of earlier ones. */
static const struct {
    unsigned needs, excludes; /* traits */
    void (*run)(struct rank_build *rank);
} rules[] = {
    {EXCHANGES, 0, rule_sort_updates},
    {0, 0, rule_index_slices},
    {STREAMS, 0, rule_trim_launches},
    {STREAMS, 0, rule_trim_copies},
    {EXECUTOR, 0, rule_count_slots},
    {COMM_THREADS, 0, rule_comm_launches},
    {0, 0, rule_device_order},
    {COMM_THREADS, 0, rule_transfers},
    {COMM_THREADS, 0, rule_comm_waits},
    {STREAMS, 0, rule_gpu},
    {0, 0, rule_host_waits},
    {EXCHANGES, 0, rule_exchanges},
    {OWN_UPDATES, 0, rule_updates},
    {EXCHANGES, OWN_UPDATES, rule_takers},
    {0, ALL_TOLD, rule_handovers},
    {LINKS, 0, rule_links},
    {STORAGES, 0, rule_storages},
    {NODES, 0, rule_nodes},
    {EXECUTOR, 0, rule_executor_boundary},
    {ENDS_WITH_EXCHANGE, EXECUTOR, rule_exchange_boundary},
    {0, EXECUTOR | ENDS_WITH_EXCHANGE, rule_thread_boundary},
};

void build_local_edges(struct rank_build *rank)
{
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++) {
        unsigned traits = traits_of(rank); /* what one rule finds another may need */
        if ((traits & rules[r].needs) == rules[r].needs && !(traits & rules[r].excludes))
            rules[r].run(rank);
    }
    mem_free(rank->op_of_slice);
    rank->op_of_slice = NULL;
}
