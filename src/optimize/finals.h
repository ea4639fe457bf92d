/* What a search may choose, judged by expected time: strategies of one model, or jobs that programs
 * of their own make different. */
#pragma once

#include "cost/change/turns.h"
#include "cost/learn/uncertainty.h"
#include "cost/program/evaluate.h"

struct finalist {
    struct timed_job *job; /* another job than the one that ran; NULL: a strategy of that */
    struct dpro_strategy strategy;
    const struct setting *of; /* that was asked for to make it; NULL: nothing was */
    const char *name, *text;  /* name NULL: the job's own, or the best that was found */
    uint8_t kind;             /* the simpler, the less */
    bool is_alone;            /* the best of communication alone */
    bool is_computed;         /* modules are computed otherwise than they are */
    bool is_barred;           /* is shown only, never chosen */
    bool is_out;              /* takes too long to be chosen, whatever the numbers may be */
    double *ns;      /* [n_draws] an iteration; the first is that of the model as it is; 0: not
                        evaluated yet */
    double expected; /* mean of them all; then corrected by what was measured by turns */
    struct correction measured;
};

/* A setting needs no plan in the job, and plain buckets are safer there than what else a plan can
 * say. Of settings the one that is listed last is the simplest: it has the largest buckets, as few
 * messages cost least. */
enum { AS_IT_RAN, A_SETTING, PLAIN, NOT_PLAIN, COMPUTED };

/* Those that take so much longer than the best, by the model itself, are left out: the other jobs
 * are near it. */
#define FINALS_HOPELESS 0.05

/* The first finalists of any search. */
enum { OF_BASELINE, OF_BEST, OF_OTHERS };

/* The jobs that the recording allows: the model; the model with each learnt number a standard error
 * lower and higher; the model with each measured iteration's computation. */
struct finals {
    struct arena arena;
    const struct dpro_model *model; /* of the job as it ran */
    uint32_t n_numbers, n_samples, n_draws;
    size_t *numbers; /* [n_numbers] those that have an error */
    struct finalist *finalists;
    uint32_t n_finalists, n_listed; /* those after the listed ones are of the pool */
};

/* `computes`: modules may be computed otherwise. */
void finals_init(struct finals *finals, const struct dpro_model *model, bool computes);
/* Adds one; there is to be room for it. */
struct finalist *finals_add(struct finals *finals, const struct dpro_strategy *strategy,
                            const char *name, const char *text);
/* Fills in what all are expected to take. */
void finals_evaluate(struct finals *finals);
/* Of what the job's own strategy takes there. */
double finals_share(const struct finals *finals, const struct finalist *finalist, uint32_t draw);
/* What a finalist takes as the learnt numbers move, to tell its uncertainty. */
void finals_tell(const struct finals *finals, const struct finalist *finalist,
                 struct timed_job *job);
/* The fastest; the simplest of those that are as good, as far as the recording can tell.
 * `may_keep`: the job may stay as it is. */
const struct finalist *finals_best(const struct finals *finals, bool may_keep);
const struct finalist *finals_choose(const struct finals *finals, bool may_keep);
