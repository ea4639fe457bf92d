/* optimize/promise.h: what strategies are expected to bring, and which is worth it. */
#ifndef OPTIMIZE_PROMISE_H
#define OPTIMIZE_PROMISE_H

#include "cost/model.h"

/* A strategy that might be the result, and what it takes in each job that the recording allows. */
struct finalist {
    const struct dpro_strategy *strategy;
    double *shares;  /* [n_draws] of what the job's own strategy takes there */
    double expected; /* mean of them all */
};

/* The jobs that the recording allows: the model; the model with each learnt number a standard error
 * lower and higher; the model with each measured iteration's computation. */
struct promise {
    struct arena arena;
    const struct dpro_model *model;
    uint32_t n_numbers, n_samples, n_draws;
    size_t *numbers; /* [n_numbers] those that have an error */
    struct finalist *finalists;
    uint32_t n_finalists;
};

/* Room for so many finalists. -1: out of memory. */
int promise_init(struct promise *promise, const struct dpro_model *model, uint32_t most);
void promise_fini(struct promise *promise);
/* Returns its number. The strategy is copied. UINT32_MAX: out of memory. */
uint32_t promise_add(struct promise *promise, const struct dpro_strategy *strategy);
/* Evaluates them all; the first is the job's own, which the others are compared with. */
int promise_evaluate(struct promise *promise);
/* One standard error of what `a` is expected to take less than `b`, as a share of an iteration. */
double promise_doubt(const struct promise *promise, uint32_t a, uint32_t b);

#endif
