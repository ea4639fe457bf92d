/* Every rank's clock on one axis. */
#pragma once

#include "align/transport_constraints.h"
#include "graph/collectives/match_collectives.h"

/* align_ranks.c: estimates the clocks of a joined job into join->clocks, from what its ranks, and
 * servers between them, sent each other. */
void clocks_align(struct join *join, const struct dpro_trace *trace,
                  const struct dpro_job_options *options);

/* Moves all times of all ranks onto the common axis. */
void clocks_move(struct join *join, int threads);

/* collective_constraints.c: no rank leaves a collective before the last one entered. */
void constraints_visit_collectives(const struct join *join, const clock_nodes *nodes,
                                   const struct constraint_visitor *visitor);
