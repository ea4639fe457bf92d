/* The paper's baseline (Daydream, USENIX ATC 2020): it replays the graph of one rank, where the
 * communication of a bucket is one op of size / bandwidth and never waits for other ranks. */

#include "graph/builder.h"
#include "replay/chain.h"

static uint32_t lowest_rank(const struct dpro_graph *g)
{
    uint32_t lowest = 0;
    for (uint32_t r = 1; r < g->n_ranks; r++)
        if (g->ranks[r].rank < g->ranks[lowest].rank)
            lowest = r;
    return lowest;
}

/* Of the fastest transfer in the graph; 0: none has a size and a duration. */
static double best_bandwidth(const struct dpro_graph *g)
{
    double best = 0;
    for (uint32_t c = 0; c < g->n_collectives; c++)
        for (uint32_t i = 0; i < g->collectives[c].n_members; i++) {
            const struct graph_member *member = &g->members[g->collectives[c].first_member + i];
            if (member->transfer == DPRO_NO_OP)
                continue;
            double ns = (double)member->exchange_ns + (double)g->dur_ns[member->transfer];
            if (ns > 0)
                best = fmax(best, (double)g->collectives[c].size_bytes / (ns * 1e-9));
        }
    return best;
}

/* Messages come last and stay behind. */
static uint32_t n_local_ops(const struct graph_rank *rank)
{
    return rank->n_ops - rank->n_message_ops;
}

static bool is_local(const struct graph_rank *rank, uint32_t op)
{
    return op != DPRO_NO_OP && op >= rank->first_op && op - rank->first_op < n_local_ops(rank);
}

static void copy_ops(const struct dpro_graph *g, const struct graph_rank *rank,
                     struct graph_builder *b)
{
    for (uint32_t d = 0; d < g->n_devices; d++)
        graph_builder_add_device(b, g->devices[d].kind, g->devices[d].rank, "");
    for (uint32_t op = rank->first_op; op < rank->first_op + n_local_ops(rank); op++) {
        struct graph_op copy = {.kind = g->kind[op],
                                .phase = g->phase[op],
                                .flags = g->flags[op],
                                .spare = g->spare[op],
                                .device = g->device[op],
                                .dur_ns = g->dur_ns[op],
                                .gap_ns = g->gap_ns[op]};
        graph_builder_add(b, rank->rank, &copy);
    }
}

static void copy_edges(const struct dpro_graph *g, const struct graph_rank *rank,
                       struct graph_builder *b)
{
    uint32_t first = rank->first_op, n;
    for (uint32_t op = first; op < first + n_local_ops(rank); op++)
        for (int next = 0; next < 2; next++) {
            const uint32_t *succ = dpro_graph_successors(g, op, next, &n);
            for (uint32_t i = 0; i < n; i++)
                if (is_local(rank, succ[i]))
                    graph_builder_add_edge(b, op - first, succ[i] - first, next);
        }
    /* the barrier of a collective is another rank's op */
    for (uint32_t i = 0; i < g->n_members; i++)
        if (is_local(rank, g->members[i].arrival) && is_local(rank, g->members[i].transfer) &&
            g->members[i].arrival != g->members[i].transfer)
            graph_builder_add_edge(b, g->members[i].arrival - first, g->members[i].transfer - first,
                                   0);
}

static void time_transfers(const struct dpro_graph *g, const struct graph_rank *rank,
                           double bandwidth, struct dpro_graph *local)
{
    for (uint32_t c = 0; bandwidth > 0 && c < g->n_collectives; c++)
        for (uint32_t i = 0; i < g->collectives[c].n_members; i++) {
            uint32_t transfer = g->members[g->collectives[c].first_member + i].transfer;
            if (!is_local(rank, transfer) || g->collectives[c].size_bytes == 0)
                continue;
            double ns = (double)g->collectives[c].size_bytes / bandwidth * 1e9;
            local->dur_ns[transfer - rank->first_op] =
                ns < (double)GRAPH_TIME_MAX ? llround(ns) : GRAPH_TIME_MAX;
        }
}

/* The rank's own graph. */
static struct dpro_graph *make_local(const struct dpro_graph *graph, const struct graph_rank *rank)
{
    struct graph_builder *b = graph_builder_create();
    copy_ops(graph, rank, b);
    copy_edges(graph, rank, b);
    struct dpro_graph *local = graph_builder_finish(b);
    local->single_iteration = graph->single_iteration;
    local->ranks[0].on_device = rank->on_device;
    local->ranks[0].first_work = rank->first_work - rank->first_op;
    local->ranks[0].last_work = rank->last_work - rank->first_op;
    for (uint32_t d = 0; d < graph->n_devices; d++) {
        local->devices[d].pool = graph->devices[d].pool;
        local->devices[d].n_slots = graph->devices[d].n_slots;
    }
    return local;
}

static struct dpro_daydream predict_daydream(const struct dpro_graph *graph,
                                             double bandwidth_bytes_per_s)
{
    if (!(bandwidth_bytes_per_s >= 0) || !isfinite(bandwidth_bytes_per_s))
        fail_with(DPRO_EUSAGE, "daydream: the bandwidth must be positive, in bytes per second");
    if (graph->n_collectives == 0)
        fail_with(DPRO_EEMPTY, "daydream: the job does not communicate");
    struct dpro_daydream result = {.bandwidth_bytes_per_s = bandwidth_bytes_per_s,
                                   .bandwidth_was_given = bandwidth_bytes_per_s > 0};
    if (!result.bandwidth_was_given)
        result.bandwidth_bytes_per_s = best_bandwidth(graph);
    const struct graph_rank *rank = &graph->ranks[lowest_rank(graph)];
    static const struct dpro_replay_options options;
    struct dpro_graph *local = make_local(graph, rank);
    time_transfers(graph, rank, result.bandwidth_bytes_per_s, local);
    result.iteration_ns = replay_predict(local, &options, NULL);
    dpro_graph_destroy(local);
    return result;
}

int dpro_replay_daydream(const struct dpro_graph *graph, double bandwidth_bytes_per_s,
                         struct dpro_daydream *daydream, struct dpro_error *err)
{
    return OUTCOME(err, *daydream = predict_daydream(graph, bandwidth_bytes_per_s));
}
