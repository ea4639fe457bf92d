/* An FSDP job whose units free their gathered parameters after the forward pass, or keep them for
 * the backward pass, other than recorded. */
#pragma once

#include "base/error.h"
#include "graph/graph.h"

struct resharding {
    bool *before, *after; /* by unit: its parameters are freed and gathered again */
    uint32_t n_changed;
};

/* Makes *to: the units in `names` ("all", "none", or names or patterns with commas between them)
 * free their parameters, all others keep them. What changes is in `arena`, all else is borrowed
 * from `graph`, and *to must not be destroyed. Fails with DPRO_EUSAGE when the graph has no such
 * unit, or none at all. */
int resharded_graph(const struct dpro_graph *graph, const char *names, struct arena *arena,
                    struct dpro_graph *to, struct resharding *resharding, struct dpro_error *err);
