/* Edges between spans that the trace itself gives.
 *
 * The profiler links forward ops with their backward ones. The execution trace lists storages.
 * Tensors that share one are views of the same bytes, so a node depends on the node that last wrote
 * one of its inputs' storages. Node ids grow in order of start, an op's children after it, and
 * children write last: the innermost writer wins. Storage ids hold within one recording. */
#include "graph/local/local_edges.h"

void rule_links(struct rank_build *rank)
{
    SCRATCH span_ops pairs = {0};
    local_add_span_ops(rank, rank->steps.reference, &pairs);
    sort_u64(pairs.at, pairs.n);
    for (uint32_t i = 0; i < rank->trace->n_links; i++) {
        uint32_t from = local_op_of_span(&pairs, rank->trace->links[i].from, true);
        uint32_t to = local_op_of_span(&pairs, rank->trace->links[i].to, false);
        if (from != NO_ID && to != NO_ID)
            local_add_if_holds(rank, from, to, false);
    }
}

ORDER_OF_POINTERS(compare_nodes, struct et_node, ASCENDING(id));

void rule_storages(struct rank_build *rank)
{
    const struct trace_rank *trace = rank->trace;
    SCRATCH ARRAY(const struct et_node *) nodes = {0};
    SCRATCH span_ops pairs = {0};     /* of all steps in which execution traces were recorded */
    SCRATCH struct map writers = {0}; /* storage -> op */
    for (uint32_t s = 0; s < rank->steps.n; s++)
        if (trace->windows[rank->steps.at[s].window].has_execution_trace)
            local_add_span_ops(rank, s, &pairs);
    sort_u64(pairs.at, pairs.n);
    for (uint32_t i = 0; i < trace->n_et_nodes; i++)
        array_push(&nodes, &trace->et_nodes[i]);
    array_sort(&nodes, compare_nodes);
    for (size_t i = 0; i < nodes.n; i++) {
        const struct et_node *node = nodes.at[i];
        if (node->span == NO_ID)
            continue;
        uint32_t first = local_op_of_span(&pairs, node->span, false);
        uint32_t last = local_op_of_span(&pairs, node->span, true);
        for (uint32_t t = 0; first != NO_ID && t < node->n_inputs; t++) {
            uint64_t writer;
            const struct et_tensor *tensor = &trace->et_tensors[node->first_input + t];
            if (!map_get(&writers, map_mix(tensor->storage + 1), &writer))
                continue;
            /* written later in an iteration than read: it is the iteration before that wrote it */
            bool next = !local_holds(rank, (uint32_t)writer, first, false, false);
            local_add_if_holds(rank, (uint32_t)writer, first, next);
        }
        for (uint32_t t = 0; last != NO_ID && t < node->n_outputs; t++) {
            uint64_t key = map_mix(trace->et_tensors[node->first_output + t].storage + 1);
            if (key)
                map_set(&writers, key, last);
        }
    }
}
