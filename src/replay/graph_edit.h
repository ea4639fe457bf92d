/* A copy of a graph with some ops removed and others repeated. */
#pragma once

#include "base/arena.h"
#include "graph/graph.h"

/* Ops that are repeated, with their edges among them. On a rank they begin after an op of it, and
 * what followed that op on its device waits for them. */
struct op_copies {
    const uint32_t *ops;
    uint32_t n;
    const uint32_t *after; /* by rank index; an op that stays, DPRO_NO_OP where none is copied */
};

struct graph_edit {
    const struct dpro_graph *graph;
    const bool *gone;               /* by op */
    const struct op_copies *copies; /* of several after one op, the first comes first */
    uint32_t n_copies;
};

/* Makes *edited: what changes is in `arena`, all else is borrowed from the edit's graph, and it
 * must not be destroyed. *from: by new op, the old one; *to: by old op, the new one, DPRO_NO_OP if
 * it is gone. */
void graph_edited(const struct graph_edit *edit, struct arena *arena, struct dpro_graph *edited,
                  const uint32_t **from, const uint32_t **to);
