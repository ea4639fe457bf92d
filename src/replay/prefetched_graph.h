/* An FSDP job whose units ask ahead for the parameters of those that come after them. */
#pragma once

#include "base/error.h"
#include "graph/graph.h"

/* A unit's all-gather for one of its passes, behind where another unit has its own parameters. */
struct unit_move {
    uint32_t gather, behind; /* GATHER() */
};

/* Makes *to: each unit asks for the `distance` units after it as soon as it has its own parameters,
 * in the forward pass and, in reverse order, in the backward pass; the model as a whole asks as it
 * did. What changes is in `arena`, all else is borrowed from `graph`, and *to must not be
 * destroyed. *n_moved: how many all-gathers of a rank are asked for elsewhere; *n_in_row: units of
 * which one comes after the other. Fails with DPRO_EUSAGE where the graph does not tell when units
 * gather. */
int prefetched_graph(const struct dpro_graph *graph, uint32_t distance, struct arena *arena,
                     struct dpro_graph *to, uint32_t *n_moved, uint32_t *n_in_row,
                     struct dpro_error *err);
