/* Which node of a framework's graph takes what another one makes. */
#include "graph/ops/framework_graph.h"

uint32_t *dfg_find_senders(const struct rank_build *rank, struct arena *arena)
{
    const struct trace_rank *trace = rank->trace;
    uint32_t *senders = arena_array(arena, trace->n_dfg_nodes, sizeof *senders);
    SCRATCH struct map sends = {0}; /* key -> node */
    uint64_t node;
    for (uint32_t n = 0; n < trace->n_dfg_nodes; n++)
        if (trace->dfg_nodes[n].key && strstr(dfg_type(rank, n), "Send"))
            map_set(&sends, trace->dfg_nodes[n].key, n);
    for (uint32_t n = 0; n < trace->n_dfg_nodes; n++) {
        bool receives = trace->dfg_nodes[n].key && strstr(dfg_type(rank, n), "Recv");
        senders[n] = receives && map_get(&sends, trace->dfg_nodes[n].key, &node) && node != n
                         ? (uint32_t)node
                         : NO_ID;
    }
    return senders;
}

struct dfg_uses dfg_find_uses(const struct rank_build *rank, const uint32_t *senders,
                              struct arena *arena)
{
    const struct trace_rank *trace = rank->trace;
    uint32_t n = trace->n_dfg_nodes;
    struct dfg_uses uses = {arena_array(arena, n + (size_t)2, sizeof(uint32_t)),
                            arena_alloc(arena, (trace->n_dfg_inputs + (size_t)n + 1) * 4)};
    for (int pass = 0; pass < 2; pass++) { /* count, then fill in */
        for (uint32_t to = 0; to < n; to++)
            for (uint32_t i = 0; i <= trace->dfg_nodes[to].n_inputs; i++) {
                uint32_t from = dfg_source(rank, senders, to, i);
                if (from >= n)
                    continue;
                if (pass == 0)
                    uses.row[from + 2]++;
                else
                    uses.nodes[uses.row[from + 1]++] = to;
            }
        for (uint32_t i = 2; pass == 0 && i < n + 2; i++)
            uses.row[i] += uses.row[i - 1];
    }
    return uses;
}
