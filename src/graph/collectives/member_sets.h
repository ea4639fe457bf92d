/* Sets of ranks, each kept once and known by its number. */
#pragma once

#include "base/base.h"

struct member_set {
    uint32_t first, n; /* into the ranks */
};

struct member_sets {
    ARRAY(struct member_set) sets;
    ARRAY(int32_t) ranks; /* of a set: ascending, each once */
    struct map numbers;   /* the sets by their ranks */
};

/* The number of the set of these ranks, which it sorts; NO_ID: fewer than two, or negative. */
uint32_t member_sets_add(struct member_sets *sets, int32_t *ranks, uint32_t n);
void member_sets_fini(struct member_sets *sets);

static inline uint32_t member_sets_size(const struct member_sets *sets, uint32_t set)
{
    return sets->sets.at[set].n;
}
static inline const int32_t *member_sets_ranks(const struct member_sets *sets, uint32_t set)
{
    return sets->ranks.at + sets->sets.at[set].first;
}
bool member_sets_holds(const struct member_sets *sets, uint32_t set, int32_t rank);
