/* cost/model_graph.h: a model under a strategy as a global DFG with all its SENDs and RECVs. Its
 * replay is slow beside evaluate() and independent of it, so tests compare the two. */
#pragma once

#include "cost/model.h"

/* The job under a strategy. Collectives follow one another in the order of `turns`, the buckets by
 * when they begin (NULL: as the strategy has them); at most n_streams are under way; of parameter
 * servers, what goes one way goes in that order. What they take from computation that goes on
 * meanwhile is not in it. */
int cost_graph_job(const struct dpro_model *model, const struct dpro_strategy *strategy,
                   const uint32_t *turns, struct dpro_graph **graph, struct dpro_error *err);
