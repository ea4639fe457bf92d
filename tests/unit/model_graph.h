/* A model under a strategy as a global DFG with all its SENDs and RECVs. Its replay is slow beside
 * evaluate() and independent of it, so tests compare the two. */
#pragma once

#include "cost/program/model.h"

/* Makes the graph of the job under a strategy. `turns` has the buckets in the order in which they
 * begin (NULL: the strategy's). Collectives follow it, at most n_streams at a time; with parameter
 * servers, messages in one direction do. The slowing of computation is not in the graph. */
struct dpro_graph *cost_graph_job(const struct dpro_model *model,
                                  const struct dpro_strategy *strategy, const uint32_t *turns);
