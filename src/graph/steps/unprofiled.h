/* graph/steps/unprofiled.h: iterations that the transport logs show and no profile does. */
#ifndef GRAPH_UNPROFILED_H
#define GRAPH_UNPROFILED_H

#include <dpro/graph.h>

struct join;

/* Needs the ranks' steps and samples, on their own clocks. -1: no memory. */
int unprofiled_iterations_find(const struct join *join, const struct dpro_trace *trace,
                               struct dpro_unprofiled_iterations *out);

#endif
