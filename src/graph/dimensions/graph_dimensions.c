/* The public functions that read a graph's dimensions. */
#include <dpro/dimensions.h>

#include "graph/graph.h"

const char *dpro_parallelism_name(enum dpro_parallelism parallelism)
{
    static const char *const names[DPRO_N_PARALLELISMS] = {"dp", "fsdp", "cp", "ep", "tp", "pp"};
    return (unsigned)parallelism < DPRO_N_PARALLELISMS ? names[parallelism] : NULL;
}

uint32_t dpro_graph_n_dimensions(const struct dpro_graph *graph)
{
    return graph->n_dimensions;
}

struct dpro_dimension dpro_graph_dimension(const struct dpro_graph *graph, uint32_t dimension)
{
    if (dimension >= graph->n_dimensions)
        return (struct dpro_dimension){.name = "", .evidence = ""};
    const struct graph_dimension *d = &graph->dimensions[dimension];
    return (struct dpro_dimension){
        .parallelism = (enum dpro_parallelism)d->parallelism,
        .name = dpro_parallelism_name((enum dpro_parallelism)d->parallelism),
        .size = d->size,
        .n_groups = d->n_groups,
        .lies_over = d->lies_over,
        .n_per_rank = d->n_per_rank,
        .bytes_per_rank = d->bytes_per_rank,
        .evidence = d->evidence,
    };
}

const int *dpro_graph_dimension_group(const struct dpro_graph *graph, uint32_t dimension,
                                      uint32_t group)
{
    if (dimension >= graph->n_dimensions || group >= graph->dimensions[dimension].n_groups)
        return NULL;
    const struct graph_dimension *d = &graph->dimensions[dimension];
    return d->ranks + (size_t)group * d->size;
}

uint32_t dpro_graph_op_dimension(const struct dpro_graph *graph, dpro_op_id op)
{
    bool is_known = op < graph->n_ops && graph->dimension && graph->dimension[op] > 0;
    return is_known ? graph->dimension[op] - UINT32_C(1) : DPRO_NO_DIMENSION;
}

uint32_t dpro_graph_collective_dimension(const struct dpro_graph *graph, uint32_t collective)
{
    bool is_known = collective < graph->n_collectives && graph->n_dimensions > 0;
    return is_known ? graph->collectives[collective].dimension : DPRO_NO_DIMENSION;
}

const char *dpro_graph_dimensions_note(const struct dpro_graph *graph)
{
    return graph->dimensions_note ? graph->dimensions_note : "";
}
