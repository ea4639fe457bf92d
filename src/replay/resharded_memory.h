/* A rank's memory in an FSDP job with other units resharded, or asked for elsewhere. */
#pragma once

#include "replay/prefetched_graph.h"
#include "replay/resharded_graph.h"

/* `new_op`: by op, its number in the changed graph. The result is in `arena`, or borrowed from
 * `memory`. */
struct graph_memory resharded_memory(const struct graph_memory *memory,
                                     const struct resharding *resharding, const uint32_t *new_op,
                                     struct arena *arena);
struct graph_memory prefetched_memory(const struct graph_memory *memory,
                                      const struct unit_move *moves, uint32_t n_moves,
                                      const uint32_t *new_op, struct arena *arena);
