/* Communication within modules that are recomputed. */
#pragma once

#include "cost/program/model.h"
#include "graph/graph.h"

/* Repeats in the programs of `model`, which can be written to, what ranks exchange within the
 * modules that the strategy of `modules` (what the same ranks compute and hold) recomputes. Returns
 * the standard error of an iteration from that. */
double calls_communicate_again(const struct dpro_graph *graph, const struct dpro_model *modules,
                               struct arena *arena, struct dpro_model *model);
