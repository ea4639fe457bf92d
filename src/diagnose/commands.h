/* What-ifs of the causes that a diagnosis tells of. */
#pragma once

#include "diagnose/pieces.h"

#include <dpro/model.h>

/* Gives a cause the command of the what-if that wins most of those that are about it, and its gain.
 * `trace`: what the command is told to read. */
void command_find(struct dpro_cause *cause, const struct dpro_graph *graph,
                  const struct dpro_model *model, const char *trace, struct arena *arena);
