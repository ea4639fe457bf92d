/* cost/whatif_result.h: the result of a what-if. */
#pragma once

#include <dpro/whatif.h>

#include "cost/change.h"
#include "cost/model.h"

struct dpro_whatif {
    struct arena arena;
    bool by_graph;           /* there is no model */
    struct dpro_model model; /* changed */
    struct dpro_unit *units; /* of a sharded job */
    uint32_t n_units;
    struct dpro_prediction baseline, predicted;
    struct dpro_estimate speedup;
    struct dpro_uncertainty_part parts[DPRO_N_UNCERTAINTY_PARTS];
    struct dpro_memory_peak memory[2]; /* before, after */
    struct notes notes;
};

/* graph_whatif.c: of a job without a model, by replaying its changed graph. */
int whatif_by_graph(const struct dpro_graph *graph, const struct dpro_changes *changes,
                    struct dpro_whatif *w, struct dpro_error *err);
