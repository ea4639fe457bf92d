/* The processor time of this process. */
#pragma once

#include "base/time.h"

static inline double cpu_seconds(void)
{
    return (double)time_now_ns(CLOCK_PROCESS_CPUTIME_ID) * 1e-9;
}
