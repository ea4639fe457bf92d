/* base/time.h: times from a trace, which may be as far apart as an int64_t can tell. */
#ifndef BASE_TIME_H
#define BASE_TIME_H

#include <stdint.h>

/* The sum of times, INT64_MAX where it does not fit. */
static inline int64_t time_add(int64_t a, int64_t b)
{
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

#endif
