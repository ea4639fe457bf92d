/* How far off the model's prediction of another strategy or of other links may be. */
#pragma once

#include <dpro/whatif.h>

#include "cost/program/model.h"

/* Standard error of an iteration with another number of parameter servers: of 14 pairs of
 * recordings that differ in that number, the median was 7 % off. */
#define UNCERTAINTY_SERVERS 0.10

/* Standard error of a module's time in another way. Outside of training the ratio differs, as
 * caches are warmer and the code around the module is missing. */
#define UNCERTAINTY_PROBE 0.03

/* Relative standard errors; that of `speedup` (before / after) is absolute. */
struct uncertainty {
    double before, after, speedup;
    double misfit; /* error of the model of the job as it ran, against the measured iteration; 0:
                      not known */
    struct dpro_uncertainty_part parts[DPRO_N_UNCERTAINTY_PARTS]; /* their squares add up to it */
};

/* The learnt numbers of a net, each with its standard error. They are independent. */
enum { N_MODEL_NUMBERS = 17 };
struct dpro_estimate *model_number(struct model_net *net, size_t which);
/* Scales all times of communication by `ratio`. */
void model_net_scale(struct model_net *net, double ratio);
void estimate_scale(struct dpro_estimate *estimate, double ratio);

/* Makes `moved` a copy of the model in which one learnt number differs by so many standard errors.
 * If that number is what communication costs computation, the work changes as well, so that the
 * recorded iterations stay as long as they were. `moved` shares the model's memory; what differs is
 * in `arena`. */
void uncertainty_move(const struct dpro_model *model, size_t number, double errors,
                      struct arena *arena, struct dpro_model *moved);

/* Relative standard error of the model's time for another batch, or for micro-batches. */
double uncertainty_of_batch(const struct dpro_model *before, const struct dpro_model *after);
/* What changed that the model does not show. */
struct change_beside {
    bool resharded;   /* other gathers are made than were recorded */
    double rewritten; /* relative error of a pipeline's recorded run, where another is written as it
                         would be */
    double batch;     /* relative standard error of the time for another batch */
    double slowest_error_ns;      /* of what the slowest of another number of ranks adds */
    double calls_error_ns;        /* of what calls of other micro-batches take */
    double computing_error_ns;    /* standard error of what modules take in other ways */
    const struct dpro_sink *sink; /* of progress; may be NULL */
};

/* A job under its model's own strategy. Its times are 0 until they are needed. */
struct timed_job {
    const struct dpro_model *model;
    const struct dpro_model *others; /* the model of all micro-batches but the last, where each
                                        communicates */
    uint32_t n_others;
    double own_ns, ns; /* an iteration by the model; with all micro-batches */
    double overlap_ns; /* in which it computes beside communication */
    double free_ns;    /* an iteration with collectives of buckets that cost their bytes alone */
    double moved_ns[N_MODEL_NUMBERS][2]; /* an iteration with a number a standard error lower, or
                                            higher */
};
/* Fills in its first three times. */
void job_time(struct timed_job *job);

/* Of one job, as it ran and changed. */
struct uncertainty uncertainty_of(struct timed_job *before, struct timed_job *after,
                                  const struct change_beside *beside);
