/* Sorted arrays: an allocator has few free blocks at a time, as neighbours are one. */
#include "replay/free_blocks.h"

/* Bad records have several blocks at one address, which the index tells apart. */
static bool is_before(const struct block *x, const struct block *y, bool by_size)
{
    int by = by_size ? ASCENDING(size) ?: ASCENDING(order) : 0;
    return (by ?: ASCENDING(address) ?: COMPARE(x, y)) < 0;
}

static size_t place_of(const struct free_blocks *set, const struct block *blocks, uint32_t b)
{
    return LOWER_BOUND(i, (size_t)0, set->in.n,
                       is_before(&blocks[set->in.at[i]], &blocks[b], set->by_size));
}

void free_blocks_insert(struct free_blocks *set, const struct block *blocks, uint32_t b)
{
    size_t at = place_of(set, blocks, b);
    array_reserve(&set->in, 1);
    memmove(set->in.at + at + 1, set->in.at + at, (set->in.n++ - at) * sizeof b);
    set->in.at[at] = b;
}

void free_blocks_remove(struct free_blocks *set, const struct block *blocks, uint32_t b)
{
    size_t at = place_of(set, blocks, b);
    memmove(set->in.at + at, set->in.at + at + 1, (--set->in.n - at) * sizeof b);
}

size_t free_blocks_find(const struct free_blocks *set, const struct block *blocks, uint64_t size)
{
    return LOWER_BOUND(i, (size_t)0, set->in.n, blocks[set->in.at[i]].size < size);
}
