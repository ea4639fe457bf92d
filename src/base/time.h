/* Times from a trace, which may be as far apart as an int64_t can tell, and of a clock. */
#pragma once

#include <stdint.h>
#include <time.h>

/* The sum of times, INT64_MAX where it does not fit. */
static inline int64_t time_add(int64_t a, int64_t b)
{
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

static inline int64_t time_now_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
