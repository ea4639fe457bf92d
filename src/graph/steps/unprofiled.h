/* Iterations that the transport logs show and no profile does. */
#pragma once

#include "graph/rank_build.h"

/* Needs the ranks' steps and samples, on their own clocks. */
void unprofiled_iterations_find(const struct rank_build *ranks, uint32_t n_ranks,
                                const struct dpro_trace *trace,
                                struct dpro_unprofiled_iterations *out);
