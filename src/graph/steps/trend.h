/* Whether iterations get longer or shorter through a recording. */
#pragma once

#include "base/base.h"

struct trend {
    int64_t first_ns, last_ns; /* mean of the first third of the iterations, of the last third */
    double p;                  /* how often iterations in random order look so, or more */
};

/* By the Mann-Kendall test. False: p is 0.05 or more, the two thirds differ by less than 3 %, or
 * there are fewer than five iterations. */
bool trend_find(const int64_t *iterations_ns, uint32_t n, struct trend *trend);
