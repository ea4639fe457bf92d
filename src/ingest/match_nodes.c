/* Which node of the framework's graph each span ran, where spans bear the nodes' names. */

#include "ingest/rank_job.h"

static bool runs_a_node(const struct trace_rank *rank, const struct trace_span *span)
{
    return (span->kind == SPAN_CPU_OP && rank->tracks[span->track].pool) ||
           span->kind == SPAN_COLLECTIVE || span->kind == SPAN_TRANSFER;
}

/* A kernel runs for the node whose span its launch is in. */
static void match_kernels(struct trace_rank *rank)
{
    SCRATCH struct map launches = {0}; /* correlation and window -> node */
    EACH_OF (const struct trace_span, span, rank->spans, rank->n_spans) {
        uint32_t at = span->parent;
        if (span->kind != SPAN_RUNTIME || !span->correlation)
            continue;
        while (at != NO_ID && rank->spans[at].node == NO_ID)
            at = rank->spans[at].parent;
        if (at != NO_ID)
            map_set(&launches, map_mix(map_mix(span->correlation) + span->window) | 1,
                    rank->spans[at].node);
    }
    for (uint32_t s = 0; s < rank->n_spans && launches.n > 0; s++) {
        struct trace_span *span = &rank->spans[s];
        uint64_t key = map_mix(map_mix(span->correlation) + span->window) | 1;
        if (rank->tracks[span->track].gpu && span->correlation)
            span->node = (uint32_t)map_or(&launches, key, span->node);
    }
}

/* The name of the node that a span runs. "BytePSPushPull.w~PART1" runs a part of the node's tensor.
 */
static uint32_t name_of_node(const struct rank_job *job, const struct trace_span *span)
{
    const char *name = strtab_get(job->names, span->name);
    const char *part = span->kind == SPAN_COLLECTIVE ? strstr(name, "~PART") : NULL;
    uint32_t id = part ? strtab_find(job->names, name, (size_t)(part - name)) : STRTAB_NONE;
    return id == STRTAB_NONE ? span->name : id;
}

void rank_match_graph(struct rank_job *job)
{
    struct trace_rank *rank = job->rank;
    SCRATCH struct map nodes = {0}; /* name -> node; of equal names the first */
    uint64_t node;
    for (uint32_t n = 0; n < rank->n_dfg_nodes; n++)
        if (rank->dfg_nodes[n].name)
            map_insert(&nodes, rank->dfg_nodes[n].name, n);
    EACH_OF (struct trace_span, span, rank->spans, rank->n_spans) {
        if (!runs_a_node(rank, span) || !span->name)
            continue;
        job->n_node_spans++;
        if (!map_get(&nodes, name_of_node(job, span), &node)) {
            if (!job->n_unmatched++)
                job->first_unmatched = span->name;
            continue;
        }
        span->node = (uint32_t)node;
    }
    if (rank->n_dfg_nodes > 0)
        match_kernels(rank);
}
