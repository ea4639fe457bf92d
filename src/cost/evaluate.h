/* cost/evaluate.h: how long an iteration of a model takes under a strategy.
 *
 * Each rank runs its program's ops one after the other, those that the strategy fuses as one: the
 * gradients of all of them are ready when it ends. A bucket is launched on a rank once all its
 * tensors are ready there and, in_order, those before it are launched; when all ranks have launched
 * it and one of the n_streams is free, it transfers: latency, then its bytes on the wires, which
 * those under way share equally. While bytes are on the wires, computation goes on at
 * 1 - cpu_ns / byte_ns of its rate, and while a rank computes, they at 1 - held_share. Iterations
 * follow each other until their period is steady.
 *
 * Where a strategy has cycles (Horovod), what all ranks have launched waits for the next one to
 * begin. Then it transfers, one collective after the other: each bucket, or where the strategy
 * fuses, what is ready together as long as it is not more than fusion_bytes. A cycle begins
 * cycle_ns after the one before, or when that has nothing left to do, whichever is later. */
#pragma once

#include "cost/model.h"

struct evaluator;

struct bucket_times {
    int64_t launched_ns; /* by the last rank */
    int64_t start_ns, end_ns;
};

struct evaluation {
    int64_t iteration_ns;
    /* of the last iteration, from its start */
    struct bucket_times *buckets;
    int64_t *done_ns;   /* [rank]: all its ops have run */
    uint32_t last_rank; /* that was done last */
    int64_t wire_ns;    /* with bytes on the wires */
};

/* Borrows the model, which must not change. */
struct evaluator *evaluator_create(const struct dpro_model *model);
void evaluator_destroy(struct evaluator *evaluator); /* NULL is fine */

/* The steady iteration, ns; INT64_MAX where it never ends. */
int64_t evaluate(struct evaluator *evaluator, const struct dpro_strategy *strategy);
/* An iteration of the model's own strategy, by an evaluator of its own. */
int64_t evaluate_once(const struct dpro_model *model);
/* Of a strategy that fuses, after its evaluation: puts what travelled together in the last
 * iteration into its buckets. */
void evaluated_groups(const struct evaluator *evaluator, struct dpro_strategy *strategy);
/* Borrowed, until the next call. */
const struct evaluation *evaluate_detail(struct evaluator *evaluator,
                                         const struct dpro_strategy *strategy);
