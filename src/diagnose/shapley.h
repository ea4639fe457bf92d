/* How much of the iteration each cause is to blame for: Shapley values, by passes over sets of
 * causes. */
#pragma once

#include "diagnose/unrolled.h"

enum { MOST_ROOMS = 16 };
#define LEAST_NAMED 0.1 /* of the largest: a rank or an iteration with less isn't named */

/* v(S): the iterations' times with the causes of a set there. Each set is passed over once. */
struct values {
    struct unrolled *unrolled;
    int threads;
    uint32_t causes;      /* those that take any time: sets differ in these only */
    const uint8_t *tiers; /* by cause; NULL: there is one. Tiers are taken away one after the other,
                             from 0 on: what causes of two take together is the earlier one's */
    struct map number;    /* of a set */
    ARRAY(struct cause_set) sets;
    ARRAY(double) ns; /* [set * n_iterations + iteration] */
    size_t n_made;
    struct cell_times *rooms[MOST_ROOMS]; /* of threads */
    uint32_t n_rooms;
};

void values_fini(struct values *values);
/* Asks for a set, which values_make() then passes over with all others that were asked for. */
void values_want(struct values *values, struct cause_set set);
void values_make(struct values *values);
/* Of a set that was made: by iteration; and the mean. */
const double *values_of(const struct values *values, struct cause_set set);
double values_mean(const struct values *values, struct cause_set set);

struct blame {
    double ns, alone_ns, in_order_ns;
    double usual_ns; /* what alone wins of the usual iteration */
    double error_ns; /* standard error; NAN: of one iteration there is none */
    bool seldom;     /* it strikes in less than half of them, so that the error is of how often */
    uint32_t order;  /* from 1 */
};

/* By cause; those that take no time get 0. Returns whether they come from drawn permutations. */
bool shapley_find(struct values *values, struct blame *blames);

/* Shares a cause among its parts: Owen values, of which the causes are the groups, where passes
 * over at most so many cells suffice for them; `of_part` has the parts' times by path integral, and
 * gets what each is to blame for, to be scaled to the cause's blame. Small ones share by path what
 * they have together. */
void owen_find(struct values *values, uint32_t cause, uint32_t n_parts, double most_visits,
               double *of_part);
