/* What the ops of a job take that computes otherwise: another batch, modules that are recomputed or
 * computed in other ways, other parts of what ranks share out. */
#pragma once

#include "cost/program/model.h"
#include "graph/graph.h"

/* Ratio of a micro-batch of the model's own strategy to the recorded batch. */
double micro_batch_ratio(const struct dpro_model *model);

/* A rank's part of what all ranks divide among them, after a change over before; 1: the same. */
struct rank_share {
    double shards;  /* of the sharded model */
    double tensors; /* of split tensors */
    bool whole;     /* which are split no longer */
};

/* By op of a graph. */
struct op_work {
    double *ns;
    bool *has_gap; /* it has the gap before it */
    double pace; /* what a program does in an op's time goes with it up to so many times that time,
                    as it may wait there, too; 0: all of it */
};

/* Of `graph`, which `model` is of, with the batch that a micro-batch of the model's own strategy
 * has, and its modules recomputed and computed as that says. `passes_alone`: without what a step
 * does once. In the arena. */
const struct op_work *op_work_of(const struct dpro_graph *graph, const struct dpro_model *model,
                                 bool passes_alone, struct rank_share share, struct arena *arena);
/* As the ops of the graph take. In the arena. */
struct op_work *op_work_as_in(const struct dpro_graph *graph, double pace, struct arena *arena);
/* Makes *to: `graph` with these times (NULL: its own), and ops that take none where `gone` (by op,
 * or NULL) says so. What changes is in `arena`, all else is borrowed, and *to must not be
 * destroyed. */
void op_work_graph(const struct op_work *work, const struct dpro_graph *graph, const bool *gone,
                   struct arena *arena, struct dpro_graph *to);

/* ---- repeat_calls.c: communication within modules that are recomputed ---- */

/* Repeats in the programs of `model`, which can be written to, what ranks exchange within the
 * modules that the strategy of `modules` (what the same ranks compute and hold) recomputes. Returns
 * the standard error of an iteration from that. */
double calls_communicate_again(const struct dpro_graph *graph, const struct dpro_model *modules,
                               struct arena *arena, struct dpro_model *model);
