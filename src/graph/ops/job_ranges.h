/* What the job says that it is at: ranges that it marks, functions of Python, modules. */
#pragma once

#include "graph/rank_build.h"

struct job_range {
    int64_t start_ns, end_ns;
    uint32_t name; /* string id in the trace */
    bool built_in; /* a function that Python has, called by one of the job's */
};
typedef ARRAY(struct job_range) job_ranges;

/* Those of a rank that go on between two times. */
job_ranges list_ranges(const struct rank_build *rank, int64_t start_ns, int64_t end_ns);

/* The name of the shortest range that covers most of a time, and lasts less than so much or twice
 * the time, as one of whole iterations tells nothing; NO_ID: none does. */
uint32_t range_in(const job_ranges *ranges, int64_t start_ns, int64_t end_ns, int64_t most_ns);
