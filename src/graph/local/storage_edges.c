/* graph/local/storage_edges.c: data edges from the execution trace.
 *
 * Tensors that share a storage are views of the same bytes, so a node depends on the node that last
 * wrote one of its inputs' storages. Node ids grow in order of start, an op's children after it,
 * and children write last: the innermost writer wins. Storage ids hold within one recording. */
#include <stdlib.h>

#include "base/map.h"
#include "base/memory.h"
#include "base/sort.h"
#include "graph/local/local_edges.h"
#include "graph/rank_build.h"

ORDER_OF_POINTERS(compare_nodes, struct et_node, ASCENDING(id));

/* Span -> op over all steps in which execution traces were recorded, as sorted pairs. */
static int pairs_of_all_steps(const struct rank_build *rank, uint64_t **pairs, size_t *n_pairs)
{
    ARRAY(uint64_t) all = {0};
    int status = 0;
    for (uint32_t s = 0; s < rank->steps.n && status == 0; s++) {
        uint64_t *list;
        size_t n;
        if (!rank->trace->windows[rank->steps.at[s].window].has_execution_trace)
            continue;
        if (local_span_ops(rank, s, &list, &n) < 0) {
            status = -1;
            break;
        }
        for (size_t i = 0; i < n && status == 0; i++)
            status = array_push(&all, list[i]);
        mem_free(list);
    }
    *pairs = all.at;
    *n_pairs = all.n;
    return status;
}

int local_add_data_edges(struct rank_build *rank)
{
    const struct trace_rank *trace = rank->trace;
    if (trace->n_et_nodes == 0)
        return 0;
    uint64_t *pairs = NULL;
    size_t n_pairs = 0;
    const struct et_node **nodes = mem_alloc((trace->n_et_nodes + 1) * sizeof *nodes);
    struct map writers = {0}; /* storage + 1 -> op << 32 | step */
    int status = nodes ? pairs_of_all_steps(rank, &pairs, &n_pairs) : -1;
    if (status == 0) {
        for (uint32_t i = 0; i < trace->n_et_nodes; i++)
            nodes[i] = &trace->et_nodes[i];
        qsort(nodes, trace->n_et_nodes, sizeof *nodes, compare_nodes);
        sort_u64(pairs, n_pairs);
    }
    for (uint32_t i = 0; i < trace->n_et_nodes && status == 0; i++) {
        const struct et_node *node = nodes[i];
        uint32_t first, last;
        if (node->span == NO_ID)
            continue;
        first = local_op_of_span(pairs, n_pairs, node->span, false);
        last = local_op_of_span(pairs, n_pairs, node->span, true);
        for (uint32_t t = 0; first != NO_ID && t < node->n_inputs && status == 0; t++) {
            uint64_t writer;
            const struct et_tensor *tensor = &trace->et_tensors[node->first_input + t];
            if (!map_get(&writers, map_mix(tensor->storage + 1), &writer))
                continue;
            /* written later in an iteration than read: it is the iteration before that wrote it */
            bool next = !local_holds(rank, (uint32_t)writer, first, false, false);
            status = local_add_if_holds(rank, (uint32_t)writer, first, next);
        }
        for (uint32_t t = 0; last != NO_ID && t < node->n_outputs && status == 0; t++) {
            const struct et_tensor *tensor = &trace->et_tensors[node->first_output + t];
            if (map_mix(tensor->storage + 1))
                status = map_set(&writers, map_mix(tensor->storage + 1), last);
        }
    }
    map_fini(&writers);
    mem_free(nodes);
    mem_free(pairs);
    return status;
}
