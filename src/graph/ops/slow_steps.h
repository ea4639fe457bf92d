/* Iterations that take longer than the others, and what takes longer in them. */
#pragma once

#include "graph/rank_build.h"

/* Fills rank->grown. Before ops are forgotten. */
void slow_steps_find(struct rank_build *rank);
