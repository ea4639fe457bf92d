/* What the ranks of a job with FSDP compute and hold, and the job's graph with other
 * computation. */
#pragma once

#include "cost/model.h"
#include "graph/graph.h"

struct measured_replay;

/* A model of what each rank computes and holds, its whole iteration as one op. It knows nothing of
 * what is communicated. */
void graph_model(const struct measured_replay *replay, const struct dpro_probes *probes,
                 struct dpro_model *model);
/* Ratio of a micro-batch of the model's own strategy to the recorded batch. */
double graph_batch_ratio(const struct dpro_model *model);
/* What a rank has of what ranks share out, against what it had; 1: as much. */
struct rank_share {
    double shards;  /* of the sharded model */
    double tensors; /* of split tensors */
    bool whole;     /* which are split no longer */
};

/* Makes *to: `graph`, which `model` is of, with the batch that a micro-batch of the model's own
 * strategy has, and its modules recomputed and computed as that says. `passes_alone`: without what
 * a step does once. What changes is in `arena`, all else is borrowed, and *to must not be
 * destroyed. */
void graph_with_work(const struct dpro_graph *graph, const struct dpro_model *model,
                     bool passes_alone, struct rank_share share, struct arena *arena,
                     struct dpro_graph *to);
