/* Tiny graphs from text.
 *
 * a:10@d0 -> c:5; b:30@d1 -> c => a
 *
 * Statements end at ';'. An op is NAME and, where it first appears, in any order: ":DUR" in ns
 * (with samples ":S1/S2/...", then the duration is their mean), "+GAP", "@DEVICE" (d*: CPU thread,
 * g*: GPU stream, l*: link; a device belongs to the rank of the op that names it first; none: no
 * device), "#RANK" (default 0), "!KIND" as in dpro_op_kind_name (default FW), "*": the rank's
 * boundary. "->" leads to an op of the same iteration, "=>" into the next. */
#pragma once

#include "graph/graph.h"

/* Kept (case.h). Never fails: a mistake in the text stops the program. */
struct dpro_graph *graph_of(const char *text);
uint32_t op_named(const struct dpro_graph *graph, const char *name);
/* Registers a collective; members: "arrival transfer arrival transfer ...". */
void add_collective(struct dpro_graph *graph, const char *barrier, uint64_t size_bytes,
                    const char *members);

/* Room for the memory of the graph's ranks, of which nothing is known yet. */
struct graph_memory *add_memory(struct dpro_graph *graph);
/* A block that is there before the iteration and after it; its moments come in their order. */
uint32_t add_block(struct graph_memory *memory, uint64_t bytes, uint8_t category);
void add_moment(struct graph_memory *memory, uint32_t block, bool gives, uint32_t op,
                uint16_t share);
/* Of the first rank's. */
void take_in_op(struct dpro_graph *graph, uint32_t block, const char *op, uint16_t share);
void give_in_op(struct dpro_graph *graph, uint32_t block, const char *op, uint16_t share);

/* A small graph of up to 3 ranks and 24 ops, the same for the same seed, until the next one; pick()
 * then goes on drawing from [0, n). */
struct dpro_graph *random_graph(uint64_t seed);
uint32_t pick(uint32_t n);
