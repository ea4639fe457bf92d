/* How long an iteration of a model takes under a strategy.
 *
 * Each rank runs its program's ops one after the other. Fused ops run as one, and their gradients
 * are ready when it ends. A bucket is launched on a rank once all its tensors are ready there and,
 * with in_order, the buckets before it are launched. When all ranks have launched it and one of the
 * n_streams is free, it transfers: first latency, then its bytes, with the link shared equally by
 * the transfers under way. While bytes transfer, computation runs at 1 - cpu_ns / byte_ns of its
 * rate; while a rank computes, transfers run at 1 - held_share of theirs. Iterations follow each
 * other until their period is steady.
 *
 * With cycles (Horovod), what all ranks have launched waits for the next cycle. Then one collective
 * after the other transfers: each bucket, or where the strategy fuses, what is ready, up to
 * fusion_bytes each. A cycle begins cycle_ns after the one before, or when that one has nothing
 * left to do, whichever is later. */
#pragma once

#include "cost/program/model.h"

struct evaluator;

struct bucket_times {
    int64_t launched_ns; /* by the last rank */
    int64_t start_ns, end_ns;
};

struct evaluation {
    int64_t iteration_ns;
    /* of the last iteration, from its start */
    struct bucket_times *buckets;
    uint32_t last_rank; /* that was done last */
    int64_t wire_ns;    /* in which bytes are transferred */
};

/* Borrows the model, which must not change. */
struct evaluator *evaluator_create(const struct dpro_model *model);
void evaluator_destroy(struct evaluator *evaluator); /* NULL is fine */

/* The steady iteration, ns; INT64_MAX where it never ends. */
int64_t evaluate_strategy(struct evaluator *evaluator, const struct dpro_strategy *strategy);
/* The iteration time of the model's own strategy. Creates an evaluator for it. */
int64_t evaluate_once(const struct dpro_model *model);
/* After the evaluation of a strategy that fuses: makes buckets of what travelled together in the
 * last iteration. */
void evaluated_groups(const struct evaluator *evaluator, struct dpro_strategy *strategy);
/* Borrowed, until the next call. */
const struct evaluation *evaluate_detail(struct evaluator *evaluator,
                                         const struct dpro_strategy *strategy);
