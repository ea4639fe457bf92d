/* graph/dfg.h: what a framework's own graph tells of a rank. */
#ifndef GRAPH_DFG_H
#define GRAPH_DFG_H

#include "graph/build.h"

/* The phase (DPRO_OP_FW, ...) of each node, which the caller frees. -1: no memory. */
int dfg_find_phases(const struct rank_build *rank, uint8_t **phases);

/* Whether the ops of the rank's pools are tied by the framework's graph; else what tells is their
 * order in time. */
static inline bool dfg_is_known(const struct rank_build *rank)
{
    return rank->trace->n_dfg_nodes > 0;
}

#endif
