/* Finding the same work in every iteration. */
#pragma once

#include "graph/rank_build.h"

struct placed {
    uint32_t slice, track;
};

/* The slices of the reference iteration, and where they were found in each step. */
struct slice_matches {
    uint32_t n;
    struct placed *placed; /* in order of tracks, then by time */
    uint32_t *places;      /* see slice_place */
    uint32_t *found;       /* [step * n + place] */
};

/* Of a slice, in placed[]; NO_ID: it is of another iteration. */
static inline uint32_t slice_place(const struct slice_matches *matches, uint32_t slice)
{
    return matches->places[slice] - 1; /* so that most of them need not be written */
}

typedef ARRAY(uint32_t) slice_list;

slice_list slices_by_start(const struct rank_build *rank, uint32_t step,
                           bool (*wanted)(const struct rank_build *, const struct track *));

void slice_matches_find(const struct rank_build *rank, struct slice_matches *matches);
void slice_matches_fini(struct slice_matches *matches);

/* job_ranges.c: what the job says that it is at, ranges that it marks, functions of Python, or
 * modules. */
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
