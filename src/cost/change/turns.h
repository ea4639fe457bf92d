/* Plans that trained the job by turns with what it does by itself, as turns.json of a recording
 * tells (doc/formats/turns-json.md). What they took is true of them, and tells how far off the
 * model is of other plans. */
#pragma once

#include "cost/program/model.h"

enum { TURNS_MOST = 64 };

struct measured_turn {
    struct dpro_strategy strategy;
    double error; /* ln of its time as measured by that of the model, in standard errors of that */
    double noise; /* standard error of what was measured, in the same unit */
};

struct turns {
    struct arena arena;
    ARRAY(struct measured_turn) of;
    char problem[512]; /* why there are none; "": nothing speaks against them */
};

/* Reads turns.json of the first of the trace's folders that has it; *turns is NULL where none has.
 * A damaged file, or one of another job, is a problem. */
int turns_read(const char *const *paths, size_t n_paths, const struct dpro_graph *graph,
               const struct dpro_model *model, const struct dpro_trace *trace, struct turns **turns,
               struct dpro_error *err);
void turns_destroy(struct turns *turns); /* NULL is fine */

struct correction {
    double ratio;  /* of the time to that of the model */
    double left;   /* of the standard error of its logarithm, as a share; 1: nothing is known */
    bool is_known; /* that very plan was measured */
};
/* Of a strategy of the model, whose time there has that relative standard error. In standard errors
 * the model's errors are taken as normal, and for two plans as alike as half the share of kinds of
 * changes that both make among those that either makes; for one plan they are the same. */
struct correction turns_correct(const struct dpro_model *model,
                                const struct dpro_strategy *strategy, double doubt);
