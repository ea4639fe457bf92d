/* Every rank's clock on one axis. */
#pragma once

#include "graph/collectives/match_collectives.h"

/* Estimates the clocks of a joined job into join->clocks, from what its ranks, and servers
 * between them, sent each other. */
void clocks_align(struct join *join, const struct dpro_trace *trace,
                  const struct dpro_job_options *options);

/* Moves all times of all ranks onto the common axis. */
void clocks_move(struct join *join, int threads);
