/* Sets of ranks, each kept once. */
#include "graph/collectives/match_collectives.h"

ORDER(by_rank, int32_t, COMPARE(*x, *y));

uint32_t member_sets_add(struct member_sets *sets, int32_t *ranks, uint32_t n)
{
    uint32_t n_kept = 0, sorted = 1;
    uint64_t key, found;
    while (sorted < n && ranks[sorted - 1] <= ranks[sorted]) /* as nearly all are */
        sorted++;
    if (sorted < n)
        qsort(ranks, n, sizeof *ranks, by_rank);
    for (uint32_t i = 0; i < n; i++)
        if (n_kept == 0 || ranks[i] != ranks[n_kept - 1])
            ranks[n_kept++] = ranks[i];
    if (n_kept < 2 || ranks[0] < 0)
        return NO_ID;
    key = n_kept;
    for (uint32_t i = 0; i < n_kept; i++)
        key = map_mix(key + (uint64_t)ranks[i] + 1);
    for (key |= 1; map_get(&sets->numbers, key, &found); key += 2) {
        const struct member_set *set = &sets->sets.at[found];
        if (set->n == n_kept &&
            memcmp(sets->ranks.at + set->first, ranks, n_kept * sizeof *ranks) == 0)
            return (uint32_t)found;
    }
    map_set(&sets->numbers, key, sets->sets.n);
    array_add(&sets->sets, (uint32_t)sets->ranks.n, n_kept);
    array_append(&sets->ranks, ranks, n_kept);
    return (uint32_t)sets->sets.n - 1;
}

bool member_sets_holds(const struct member_sets *sets, uint32_t set, int32_t rank)
{
    return bsearch(&rank, member_sets_ranks(sets, set), member_sets_size(sets, set), sizeof rank,
                   by_rank) != NULL;
}

void member_sets_fini(struct member_sets *sets)
{
    FREE_ALL(&sets->sets, &sets->ranks, &sets->numbers);
}
