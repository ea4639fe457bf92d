/* optimize/computation.h: a job's computation, as if nothing slowed it down, and what follows from
 * that for every strategy. */
#ifndef OPTIMIZE_COMPUTATION_H
#define OPTIMIZE_COMPUTATION_H

#include "base/arena.h"
#include "cost/model.h"

/* Times are from when a rank has all that it waits for at once (MODEL_ALL), else from the
 * iteration's start; a round goes from there to there. */
struct computation_class { /* ranks of one program, or the slowest of them */
    double *ready_ns;      /* [tensor] its gradient is ready */
    double total_ns;       /* of a round's computation */
    double scale;          /* negative: no rank runs the program */
};
struct computation {
    struct computation_class *classes;
    uint32_t n_classes;
    bool drains;         /* every rank waits for all tensors at once */
    double min_cycle_ns; /* no round is shorter: from where a tensor is waited for to where it is
                            ready again, and to communicate it */
};
/* Of the model under a strategy, as far as that fuses ops. -1: out of memory. */
int computation_of(const struct dpro_model *model, const struct dpro_strategy *strategy,
                   struct arena *arena, struct computation *computation);
/* Of another strategy: when tensors are ready, and how long a round is. */
void computation_set(const struct dpro_model *model, const struct dpro_strategy *strategy,
                     struct computation *computation);
/* When a tensor is ready on its last rank. */
double computation_ready_ns(const struct computation *computation, uint32_t tensor);

/* No strategy without compression that fuses the ops that this computation is of makes an iteration
 * shorter. -1: out of memory. */
int lower_bound(const struct dpro_model *model, const struct computation *computation,
                int64_t *bound_ns);

#endif
