/* ingest/dfg.c: which node of the framework's graph each span ran, where spans bear the nodes'
 * names. */
#include "base/map.h"
#include "ingest/load.h"

static bool runs_a_node(const struct trace_rank *rank, const struct trace_span *span)
{
    return (span->kind == SPAN_CPU_OP && rank->tracks[span->track].pool) ||
           span->kind == SPAN_COLLECTIVE || span->kind == SPAN_TRANSFER;
}

void rank_match_graph(struct rank_job *job)
{
    struct trace_rank *rank = job->rank;
    struct map nodes = {0}; /* name -> node; of equal names the first */
    uint64_t node;
    for (uint32_t n = 0; n < rank->n_dfg_nodes && !job->no_memory; n++)
        if (rank->dfg_nodes[n].name && !map_get(&nodes, rank->dfg_nodes[n].name, NULL))
            job->no_memory = map_set(&nodes, rank->dfg_nodes[n].name, n) < 0;
    for (uint32_t s = 0; s < rank->n_spans && !job->no_memory; s++) {
        struct trace_span *span = &rank->spans[s];
        if (!runs_a_node(rank, span) || !span->name)
            continue;
        job->n_node_spans++;
        if (!map_get(&nodes, span->name, &node)) {
            if (!job->n_unmatched++)
                job->first_unmatched = span->name;
            continue;
        }
        span->node = (uint32_t)node;
    }
    map_fini(&nodes);
}
