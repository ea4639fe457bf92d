/* Joins and measures intervals of time. */
#include "base/intervals.h"

ORDER(by_start, struct interval, ASCENDING(start_ns) ?: ASCENDING(end_ns));

void intervals_join(interval_array *intervals)
{
    struct interval *at = intervals->at;
    size_t n = 0;
    array_sort(intervals, by_start);
    for (size_t i = 0; i < intervals->n; i++)
        if (n > 0 && at[i].start_ns <= at[n - 1].end_ns)
            at[n - 1].end_ns = MAX(at[n - 1].end_ns, at[i].end_ns);
        else
            at[n++] = at[i];
    intervals->n = n;
}

int64_t intervals_within(const interval_array *joined, int64_t from_ns, int64_t to_ns)
{
    const struct interval *at = joined->at;
    size_t i = LOWER_BOUND(k, (size_t)0, joined->n, at[k].end_ns <= from_ns);
    int64_t sum = 0;
    for (; i < joined->n && at[i].start_ns < to_ns; i++)
        sum += MIN(at[i].end_ns, to_ns) - MAX(at[i].start_ns, from_ns);
    return sum;
}
