/* graph/local/framework_graph.h: what a framework's own graph tells of a rank. */
#ifndef GRAPH_FRAMEWORK_GRAPH_H
#define GRAPH_FRAMEWORK_GRAPH_H

#include "graph/rank_build.h"

/* The phase (DPRO_OP_FW, ...) of each node, which the caller frees. -1: no memory. */
int dfg_find_phases(const struct rank_build *rank, uint8_t **phases);

/* A tensor that an op communicates, by the framework's graph. */
struct dfg_tensor {
    uint32_t name;       /* string id: of the node that made it */
    uint16_t output;     /* which of that node's */
    uint32_t from;       /* the op that made it; NO_ID: no op did */
    uint64_t size_bytes; /* 0: not known */
};
typedef ARRAY(struct dfg_tensor) dfg_tensors;

/* What a collective's node takes, and what was packed into that; none where the graph does not say
 * it. -1: no memory. */
int dfg_find_tensors(const struct rank_build *rank, uint32_t op, dfg_tensors *tensors);

/* Whether the ops of the rank's pools are tied by the framework's graph; else what tells is their
 * order in time. */
static inline bool dfg_is_known(const struct rank_build *rank)
{
    return rank->trace->n_dfg_nodes > 0;
}

#endif
