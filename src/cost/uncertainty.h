/* cost/uncertainty.h: how far off the model's prediction of another strategy or of other links may
 * be. */
#pragma once

#include <dpro/whatif.h>

#include "cost/model.h"

/* Of an iteration with another number of parameter servers, a standard error: of 14 pairs of
 * recordings that differ in that the median was 7 % off. */
#define UNCERTAINTY_SERVERS 0.10

/* Of a module's time in another way, a standard error: outside of training it changes by another
 * ratio than in it, as caches are warmer, and what stands around it is missing. */
#define UNCERTAINTY_PROBE 0.03

/* One standard error each, relative; speedup: of before / after, as a number. */
struct uncertainty {
    double before, after, speedup;
    double misfit; /* of the model as the job ran, against the measured iteration; 0: none known */
    struct dpro_uncertainty_part parts[DPRO_N_UNCERTAINTY_PARTS]; /* whose squares add up to it */
};

/* The numbers of a net that are learnt, each with its standard error; they are independent. */
enum { N_MODEL_NUMBERS = 16 };
struct dpro_estimate *model_number(struct model_net *net, size_t which);
/* Makes all that takes time between ranks take `ratio` times as long. */
void model_net_scale(struct model_net *net, double ratio);
void estimate_scale(struct dpro_estimate *estimate, double ratio);

/* Makes `moved` the model as it were, had another value been learnt for one of the numbers, by so
 * many standard errors. Where that is what communication costs computation, the recorded iterations
 * stay as long as they were: the work is another, too. `moved` shares the model's memory; what
 * differs is in `arena`. */
void uncertainty_move(const struct dpro_model *model, size_t number, double errors,
                      struct arena *arena, struct dpro_model *moved);

/* How far the time of another batch, or of micro-batches, is from what the model says of it: a
 * standard error, relative. */
double uncertainty_of_batch(const struct dpro_model *before, const struct dpro_model *after);
/* Of two models of one job, each under its own strategy: as it ran and otherwise. */
struct uncertainty uncertainty_of(const struct dpro_model *before, const struct dpro_model *after);
