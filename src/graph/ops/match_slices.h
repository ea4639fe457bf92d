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
