/* How much slow workers cost a job: the measures of "Understanding Stragglers in Large Model
 * Training Using What-if Analysis" (OSDI'25), by its definitions and those of its published code.
 *
 * T is an iteration without delays between ops; T* the same where each op takes what ops of its
 * type usually do: the mean of computation, the median of communication, over all workers and
 * iterations. Communication is taken without the wait for its last member. A slowdown of a part is
 * what T* becomes when only ops of that part keep their own times, over T*; it may be below 1, as a
 * mean is no optimum. They don't add up. */
#pragma once

#include "ingest/stages/stage_table.h"

/* Of parts of one kind. */
struct slowdowns {
    const char *key, *by;     /* in JSON; in text */
    const char *const *names; /* NULL: they are numbers */
    double *s;
    uint32_t n;
};
enum { SLOW_TYPES, SLOW_STAGES, SLOW_REPLICAS, N_SLOWDOWNS };

struct straggler_measures {
    const char *unknown; /* why there are none, static text; NULL: there are */
    uint32_t n_replicas, n_stages;
    uint32_t n_steps, n_left_out;    /* steps in which a worker did other ops are left out */
    double recorded_s, t_s, ideal_s; /* means of an iteration: as recorded, T, T* */
    double s;                        /* T / T* */
    const int64_t *step;             /* [n_steps] numbers; of each: */
    const double *step_t_s, *step_s; /* T and T / T* */
    /* S_t, S_pp, S_dp. A type's sends and receives count together, by direction. */
    struct slowdowns of[N_SLOWDOWNS];
    const double *of_worker; /* S_w [replica * n_stages + stage]: the lesser of its two */
    bool has_shares;         /* false: S is below 1.03, too little to be shared out */
    double m_w; /* the part of T - T* that goes where the slowest 3 % of the workers take usual
                   times */
    double m_s; /* ... where the last stage does */
};

/* What it points to is the arena's. */
void straggler_measures_find(const struct stage_table *table, struct straggler_measures *measures,
                             struct arena *arena);
