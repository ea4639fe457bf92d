/* cost/graph.h: a job of the cost model as a global DFG, with all its SENDs and RECVs. Slow beside
 * evaluate(), and independent of it. */
#ifndef COST_GRAPH_H
#define COST_GRAPH_H

#include "cost/model.h"

/* One collective of all ranks by itself. */
int cost_graph_collective(const struct model_net *net, uint64_t size_bytes,
                          struct dpro_graph **graph, struct dpro_error *err);

/* The job under a strategy. Collectives start in the order of its buckets, whatever their
 * priorities; what they take from computation they overlap with is not in it. */
int cost_graph_job(const struct dpro_model *model, const struct dpro_strategy *strategy,
                   struct dpro_graph **graph, struct dpro_error *err);

#endif
