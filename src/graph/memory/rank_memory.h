/* A rank's memory between its own build and the graph. Op ids are the rank's own, string ids the
 * trace's. */
#pragma once

#include "graph/memory/graph_memory.h"

struct rank_build;
struct dpro_graph;

/* autocast_rules.c: whether the job itself computes ops under autocast. */
bool build_computes_in_16_bits(const struct rank_build *rank);
/* build_memory.c: NULL where nothing is known. Needs slices and ops. 0: there is no last step. */
struct graph_memory *build_memory(const struct rank_build *rank, int64_t last_step);
void rank_memory_destroy(struct graph_memory *memory); /* NULL is fine */

/* Writes it into the graph, whose ops have their times; the rank's begin with first_op. */
void rank_memory_fill(const struct rank_build *rank, struct dpro_graph *graph, uint32_t first_op,
                      struct graph_memory *to);
