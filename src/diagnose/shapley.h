/* How much of the iteration each cause is to blame for: Shapley values, by passes over sets of
 * causes. */
#pragma once

#include "diagnose/unrolled.h"

/* v(S): the iterations' times with the causes of a set there. Each set is passed over once. */
struct values {
    const struct unrolled *unrolled;
    int threads;
    uint32_t causes;   /* those that take any time: sets differ in these only */
    struct map number; /* of a set */
    ARRAY(uint32_t) sets;
    ARRAY(double) ns; /* [set * n_iterations + iteration] */
    size_t n_made;
};

void values_fini(struct values *values);
/* Asks for a set, which values_make() then passes over with all others that were asked for. */
void values_want(struct values *values, uint32_t causes);
void values_make(struct values *values);
/* Of a set that was made: by iteration; and the mean. */
const double *values_of(const struct values *values, uint32_t causes);
double values_mean(const struct values *values, uint32_t causes);

struct blame {
    double ns, alone_ns, in_order_ns;
    double error_ns; /* standard error; NAN: of one iteration there is none */
    uint32_t order;  /* from 1 */
};

/* By cause; those that take no time get 0. Returns whether they come from drawn permutations. */
bool shapley_find(struct values *values, struct blame *blames);
