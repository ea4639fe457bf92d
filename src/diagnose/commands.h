/* What-ifs of the causes that a diagnosis tells of. */
#pragma once

#include "diagnose/pieces.h"

#include <dpro/model.h>

/* Gives a cause the command of the what-if that wins most of those that are about it, and its gain;
 * without a model that of a replay, which says what changed computing wins. `before_ns`: the
 * replayed iteration. */
void command_find(struct dpro_cause *cause, const struct dpro_graph *graph,
                  const struct dpro_diagnose_options *options, int64_t before_ns,
                  struct arena *arena);
