/* graph/collectives/session_steps.h: steps of one session that several processes run together. */
#ifndef GRAPH_SESSION_STEPS_H
#define GRAPH_SESSION_STEPS_H

#include "graph/collectives/match_collectives.h"

/* Ties what is received to what made it, on other ranks, and gives all ranks the session's bounds
 * of each step. Times are on the common axis. Does nothing where there is no session. */
void session_join(struct join *join);

#endif
