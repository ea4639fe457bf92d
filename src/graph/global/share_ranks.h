/* Ranks that other processes build. They tell what their iterations hold, learn which are chosen,
 * and give what joining ranks needs. */
#pragma once

#include "base/processes.h"
#include "graph/collectives/match_collectives.h"

/* What of struct rank_build travels once the rank is built, but for its times, parts in collectives
 * and memory; and all arrays of its local DFG. */
extern const struct packed shared_of_rank[];

/* Of the first process, in this order. What is not of the ranks' own memory goes to the arena. */
void shared_hear_steps(struct join *join, struct dpro_processes *processes);
void shared_answer_steps(struct join *join, struct dpro_processes *processes);
void shared_hear_ranks(struct join *join, struct dpro_processes *processes, struct arena *arena);

/* Of another one; false: the first process wants nothing more. */
bool shared_tell_steps(struct join *join, struct dpro_processes *processes);
void shared_tell_ranks(struct join *join, struct dpro_processes *processes);
