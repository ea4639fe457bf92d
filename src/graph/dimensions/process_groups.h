/* Which ranks take part in each collective, and in which phase it was asked for. */
#pragma once

#include "graph/collectives/match_collectives.h"

/* Sets in which phase of training each of a rank's collectives was asked for, and what the calls
 * were that one kernel carries together. Before the rank's slices are forgotten. */
void build_learn_calls(struct rank_build *rank);

/* Sets the members of all ranks' collectives as far as they are known, and the peers of sends and
 * receives. Before collectives are matched. */
void join_find_groups(struct join *join, const struct dpro_trace *trace);
