/* How an allocator's segments are taken from the device, grow, and are given back. */
#include "replay/allocator_state.h"

#define CHUNK ((uint64_t)32 << 20)

/* ---- pools and their sets, sorted arrays ---- */

struct block_pool *pool_of(struct allocator *a, uint32_t stream, bool small)
{
    size_t at = 0;
    while (at < a->pools.n &&
           (a->pools.at[at]->small < small ||
            (a->pools.at[at]->small == small && a->pools.at[at]->stream < stream)))
        at++;
    if (at < a->pools.n && a->pools.at[at]->small == small && a->pools.at[at]->stream == stream)
        return a->pools.at[at];
    struct block_pool *pool = mem_alloc(sizeof *pool);
    *pool = (struct block_pool){.free.by_size = true, .stream = stream, .small = small};
    array_push(&a->pools, pool);
    memmove(a->pools.at + at + 1, a->pools.at + at, (a->pools.n - 1 - at) * sizeof pool);
    a->pools.at[at] = pool;
    return pool;
}

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

/* ---- the device ---- */

/* A new address, as CUDA's driver chooses them: it reserves chunks of whole 32 MiB, each below the
 * first one, and takes from the newest that has room. Here no address comes back: only their order
 * counts, by which older versions of PyTorch choose among blocks of one size. */
static uint64_t new_address(struct allocator *a, uint64_t bytes)
{
    bytes = in_units(bytes, SEGMENT_UNIT);
    size_t i = a->chunks.n;
    while (i > 0 && a->chunks.at[i - 1].left < bytes)
        i--;
    if (i == 0) {
        struct device_chunk chunk = {.left = in_units(bytes, CHUNK)};
        chunk.address = a->lowest -= chunk.left;
        array_push(&a->chunks, chunk);
        i = a->chunks.n;
    }
    struct device_chunk *chunk = &a->chunks.at[i - 1];
    uint64_t address = chunk->address;
    chunk->address += bytes;
    chunk->left -= bytes;
    return address;
}

uint32_t segment_new(struct allocator *a, const struct block *like)
{
    uint32_t b = block_table_new(&a->table);
    struct block *block = block_at(a, b);
    *block = *like;
    block->prev = block->next = NO_BLOCK;
    block->segment = (uint32_t)a->segments.n;
    array_push(&a->segments, block->address);
    a->lowest = MIN(a->lowest, block->address / CHUNK * CHUNK);
    a->figures.n_segments++;
    return b;
}

/* A segment, or a range of addresses, whose block is as large; NO_BLOCK: there is no room. */
static uint32_t take_segment(struct allocator *a, uint64_t bytes, bool reserves)
{
    if (!reserves && !device_use(a, bytes))
        return NO_BLOCK;
    if (!reserves)
        a->figures.reserved_bytes += bytes;
    return segment_new(a, &(struct block){.address = new_address(a, bytes),
                                          .size = bytes,
                                          .order = a->settings.by_address ? 0 : ++a->n_taken,
                                          .mapped = !reserves,
                                          .expandable = reserves});
}

static void device_unuse(struct allocator *a, uint64_t bytes)
{
    a->used -= MIN(a->used, in_units(bytes, SEGMENT_UNIT));
}

/* Gives back a segment that is one block, in no set. */
static void give_segment(struct allocator *a, uint32_t b)
{
    const struct block *block = block_at(a, b);
    if (!block->expandable) {
        a->figures.reserved_bytes -= block->size;
        device_unuse(a, block->size);
    }
    block_table_drop(&a->table, b);
    a->figures.n_segments--;
}

static uint64_t segment_size(const struct allocator *a, uint64_t size)
{
    if (size <= SMALL_SIZE)
        return SMALL_SEGMENT;
    if (size < OWN_SEGMENT)
        return a->settings.large_segment_bytes;
    return in_units(size, SEGMENT_UNIT);
}

/* ---- expandable segments ---- */

uint64_t segment_granule(const struct allocator *a, const struct block_pool *pool)
{
    return pool->small ? SMALL_SEGMENT : a->settings.large_segment_bytes;
}

/* Backs the first bytes of an unmapped block with memory, in whole granules. */
static bool map_block(struct allocator *a, struct block_pool *pool, uint32_t b, uint64_t bytes)
{
    uint64_t unit = segment_granule(a, pool);
    bytes = MIN(in_units(bytes, unit), block_at(a, b)->size);
    if (!device_use(a, bytes))
        return false;
    unset_free(a, pool, b);
    if (bytes < block_at(a, b)->size) {
        uint32_t rest = cut_block(a, b, bytes);
        free_blocks_insert(&pool->unmapped, a->table.rows.at, rest);
    }
    block_at(a, b)->mapped = true;
    merge_blocks(a, pool, b, block_at(a, b)->prev);
    merge_blocks(a, pool, b, block_at(a, b)->next);
    set_free(a, pool, b);
    a->figures.reserved_bytes += bytes;
    return true;
}

/* Takes the memory from the whole granules of a free block. */
static void unmap_block(struct allocator *a, uint32_t b)
{
    struct block_pool *pool = block_at(a, b)->pool;
    const struct block *block = block_at(a, b);
    uint64_t unit = segment_granule(a, pool), base = a->segments.at[block->segment];
    uint64_t from = in_units(block->address - base, unit);
    uint64_t to = (block->address - base + block->size) / unit * unit;
    if (from >= to)
        return;
    unset_free(a, pool, b);
    uint64_t before = base + from - block->address, bytes = to - from;
    if (before > 0) {
        uint32_t rest = cut_block(a, b, before);
        set_free(a, pool, b);
        b = rest;
    }
    if (block_at(a, b)->size > bytes)
        set_free(a, pool, cut_block(a, b, bytes));
    device_unuse(a, bytes);
    a->figures.reserved_bytes -= bytes;
    block_at(a, b)->mapped = false;
    merge_blocks(a, pool, b, block_at(a, b)->prev);
    merge_blocks(a, pool, b, block_at(a, b)->next);
    if (block_at(a, b)->prev == NO_BLOCK && block_at(a, b)->next == NO_BLOCK)
        give_segment(a, b);
    else
        free_blocks_insert(&pool->unmapped, a->table.rows.at, b);
}

/* Whether the free blocks from one on, mapped or not, are together large enough. */
static bool has_room(const struct allocator *a, uint32_t b, uint64_t size)
{
    uint64_t sum = 0;
    for (; sum < size && b != NO_BLOCK && block_at(a, b)->state == BLOCK_FREE;
         b = block_at(a, b)->next)
        sum += block_at(a, b)->size;
    return sum >= size;
}

/* A free or an unmapped block that can grow to that size. */
static uint32_t find_expandable(struct allocator *a, struct block_pool *pool, uint64_t size)
{
    EACH (const uint32_t, b, pool->unmapped.in) {
        uint32_t prev = block_at(a, *b)->prev;
        uint32_t first = prev != NO_BLOCK && block_at(a, prev)->state == BLOCK_FREE ? prev : *b;
        if (has_room(a, first, size))
            return first;
    }
    uint64_t unit = segment_granule(a, pool);
    uint64_t bytes = in_units(a->range_bytes ?: MAX(RANGE_DEFAULT, size), unit);
    uint32_t b = take_segment(a, bytes, true);
    if (b != NO_BLOCK) {
        block_at(a, b)->pool = pool;
        free_blocks_insert(&pool->unmapped, a->table.rows.at, b);
    }
    return b;
}

static uint32_t segments_expand(struct allocator *a, struct block_pool *pool, uint64_t size)
{
    uint32_t b = find_expandable(a, pool, size);
    if (b == NO_BLOCK)
        return NO_BLOCK;
    if (!block_at(a, b)->mapped && !map_block(a, pool, b, MIN(block_at(a, b)->size, size)))
        return NO_BLOCK;
    while (block_at(a, b)->size < size) {
        uint32_t next = block_at(a, b)->next;
        uint64_t lacks = size - block_at(a, b)->size;
        if (next == NO_BLOCK || !map_block(a, pool, next, MIN(lacks, block_at(a, next)->size)))
            return NO_BLOCK;
        b = next; /* which is one with the block before it now */
    }
    unset_free(a, pool, b);
    return b;
}

/* ---- giving back to the device what is cached ---- */

static void release_block(struct allocator *a, uint32_t b)
{
    unset_free(a, block_at(a, b)->pool, b);
    give_segment(a, b);
}

/* Whether the device can have it back; a block of an expandable segment is unmapped instead. */
static bool is_whole_segment(const struct block *block)
{
    return block->prev == NO_BLOCK && block->next == NO_BLOCK && !block->expandable;
}

/* Large cached segments that lay unused for long, until as much as is needed is free. */
static void collect_garbage(struct allocator *a)
{
    uint64_t threshold = (uint64_t)(a->settings.garbage_collection_threshold * (double)a->limit);
    if (a->figures.reserved_bytes <= threshold)
        return;
    uint64_t target = a->figures.reserved_bytes - threshold, reclaimed = 0, n_asked = a->n_asked[0];
    SCRATCH ARRAY(uint32_t) found = {0};
    double age = 0;
    for (size_t p = 0; p < a->pools.n && !a->pools.at[p]->small; p++)
        EACH (const uint32_t, b, a->pools.at[p]->free.in)
            if (is_whole_segment(block_at(a, *b))) {
                age += (double)(n_asked - block_at(a, *b)->since);
                array_push(&found, *b);
            }
    size_t n_left = found.n;
    bool freed = true;
    while (reclaimed < target && freed && n_left > 0) {
        double mean = age / (double)n_left;
        freed = false;
        size_t kept = 0;
        for (size_t i = 0; i < found.n; i++) {
            uint32_t b = found.at[i];
            double own = (double)(n_asked - block_at(a, b)->since);
            if (own < mean) {
                found.at[kept++] = b;
                continue;
            }
            freed = true;
            reclaimed += block_at(a, b)->size;
            age -= own;
            n_left--;
            release_block(a, b);
        }
        found.n = kept;
    }
}

/* Of a stream's blocks that are not split, one that is large enough, or several, largest first. */
static bool release_large(struct allocator *a, struct block_pool *pool, uint64_t size)
{
    uint64_t split = a->settings.max_split_bytes, need = MAX(size, split), released = 0;
    if (split == ALLOCATOR_UNLIMITED)
        return false;
    size_t at = free_blocks_find(&pool->free, a->table.rows.at, need);
    if (at < pool->free.in.n && is_whole_segment(block_at(a, pool->free.in.at[at]))) {
        release_block(a, pool->free.in.at[at]);
        return true;
    }
    for (at = pool->free.in.n; at-- > 0 && released < need;) {
        const struct block *block = block_at(a, pool->free.in.at[at]);
        if (block->size < split)
            break;
        if (is_whole_segment(block)) {
            released += block->size;
            release_block(a, pool->free.in.at[at]);
        }
    }
    return released >= need;
}

static void release_pool(struct allocator *a, const struct block_pool *pool)
{
    SCRATCH ARRAY(uint32_t) all = {0};
    array_append(&all, pool->free.in.at, pool->free.in.n);
    EACH (const uint32_t, b, all)
        if (block_at(a, *b)->expandable)
            unmap_block(a, *b);
        else if (is_whole_segment(block_at(a, *b)))
            release_block(a, *b);
}

void release_cached(struct allocator *a)
{
    while (a->waiting.n > 0) {
        uint32_t b = a->waiting.at[a->waiting.n - 1];
        id_set(a, block_at(a, b)->requested, NO_BLOCK);
        finish_waiting(a, b);
    }
    for (size_t p = 0; p < a->pools.n; p++)
        release_pool(a, a->pools.at[p]);
}

static uint32_t from_device(struct allocator *a, struct block_pool *pool, uint64_t size)
{
    uint64_t bytes = segment_size(a, size);
    if (bytes > a->limit || a->figures.reserved_bytes > a->limit - bytes)
        return NO_BLOCK;
    if (a->settings.expandable_segments)
        return segments_expand(a, pool, size);
    uint32_t b = take_segment(a, bytes, false);
    if (b != NO_BLOCK)
        block_at(a, b)->pool = pool;
    return b;
}

uint32_t find_or_make_room(struct allocator *a, struct block_pool *pool, uint64_t size)
{
    if (a->limit != UINT64_MAX && a->settings.garbage_collection_threshold > 0)
        collect_garbage(a);
    uint32_t b = from_device(a, pool, size);
    if (b == NO_BLOCK && release_large(a, pool, size))
        b = from_device(a, pool, size);
    if (b == NO_BLOCK) {
        release_cached(a);
        a->figures.n_retries++;
        b = from_device(a, pool, size);
    }
    return b;
}
