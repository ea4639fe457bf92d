/* What tests ask of a graph. */
#pragma once

#include <stdbool.h>

#include <dpro/dpro.h>

/* The n-th op (from 0) of that name on that rank; fails the test when there is none. */
dpro_op_id nth_op(const struct dpro_graph *graph, int rank, const char *name, int n);
/* Whether there is an edge, in the same iteration (next 0) or into the next (1). */
bool edge_to(const struct dpro_graph *graph, dpro_op_id from, dpro_op_id to, int next);
/* Whether a warning holds the word. */
bool has_warning(const struct dpro_graph *graph, const char *word);
