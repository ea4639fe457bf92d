#include "graph_ask.h"

#include <string.h>

#include "case.h"

dpro_op_id nth_op(const struct dpro_graph *graph, int rank, const char *name, int n)
{
    for (dpro_op_id op = 0; op < dpro_graph_n_ops(graph); op++) {
        struct dpro_op it = dpro_graph_op(graph, op);
        if (it.rank == rank && strcmp(it.name, name) == 0 && n-- == 0)
            return op;
    }
    fail_msg("rank %d has no op %s", rank, name);
    return DPRO_NO_OP;
}

bool edge_to(const struct dpro_graph *graph, dpro_op_id from, dpro_op_id to, int next)
{
    uint32_t n;
    const dpro_op_id *successors = dpro_graph_successors(graph, from, next, &n);
    for (uint32_t i = 0; i < n; i++)
        if (successors[i] == to)
            return true;
    return false;
}

bool has_warning(const struct dpro_graph *graph, const char *word)
{
    for (size_t i = 0; i < dpro_graph_n_warnings(graph); i++)
        if (strstr(dpro_graph_warning(graph, i), word))
            return true;
    return false;
}
