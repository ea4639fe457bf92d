/* Intervals of time, joined and measured. */
#pragma once

#include "base/base.h"

struct interval {
    int64_t start_ns, end_ns;
};
typedef ARRAY(struct interval) interval_array;

/* Sorts them, and makes one of those that touch: they are ascending and disjoint then. */
void intervals_join(interval_array *intervals);
/* How much of [from_ns, to_ns) lies within joined intervals. */
int64_t intervals_within(const interval_array *joined, int64_t from_ns, int64_t to_ns);
