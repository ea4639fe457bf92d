/* The steps of a TensorFlow session that several processes run together. */
#pragma once

#include "graph/collectives/match_collectives.h"

/* Ties what is received to what made it, on other ranks, and gives all ranks the session's bounds
 * of each step. Times are on the common axis. Does nothing where there is no session. */
void session_join(struct join *join);
