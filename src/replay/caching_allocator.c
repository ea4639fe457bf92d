/* The rules of PyTorch's native allocator.
 *
 * Sizes are rounded. Blocks of up to 1 MiB come from segments of 2 MiB, larger ones from segments
 * of 20 MiB, and those of 10 MiB and more from segments of their own. A request takes the least
 * free block that is large enough and leaves its rest as a free block. Free neighbours in a segment
 * are one block. Cached memory goes back to the device when the device is full, or by garbage
 * collection.
 *
 * Of expandable segments there is one for small and one for large blocks, which grows at its end.
 * What is given back from its middle leaves a hole, and addresses are not used again. */
#include "replay/caching_allocator.h"

enum {
    LEAST_BLOCK = 512,
    SMALL_SIZE = 1 << 20,
    SMALL_SEGMENT = 2 << 20,
    OWN_SEGMENT = 10 << 20, /* larger sizes get segments of their own, */
    SEGMENT_UNIT = 2 << 20, /* which are multiples of this */
};

#define MOST_BYTES     ((uint64_t)1 << 60) /* more is refused */
#define MIDDLE_ADDRESS ((uint64_t)1 << 62)
#define NO_BLOCK       ALLOCATOR_NO_BLOCK

struct block {
    uint64_t address, size;
    uint64_t since;      /* while it is free: how often large blocks had been asked for */
    uint32_t prev, next; /* its neighbours in its segment */
    bool small, taken;
};

struct block_pool {
    ARRAY(uint32_t) free; /* by size and address */
    uint32_t last;        /* of the expandable segment */
};

struct allocator {
    struct allocator_settings settings;
    bool rounds_up;            /* to parts of powers of two */
    uint64_t limit, threshold; /* of reserved memory; above the threshold garbage is collected */
    ARRAY(struct block) blocks;
    uint32_t unused;            /* a chain by `next` */
    struct block_pool pools[2]; /* by `small` */
    uint64_t n_asked;           /* for large blocks */
    uint64_t lowest, highest;   /* addresses of segments */
    struct allocator_figures figures;
};

static uint64_t in_units(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* ---- sizes ---- */

static uint64_t round_to_part_of_power(const struct allocator *a, uint64_t size)
{
    uint32_t octave = 63 - (uint32_t)__builtin_clzll(size);
    uint32_t interval = octave > 20 ? MIN(octave - 20, ALLOCATOR_N_ROUNDING - 1) : 0;
    uint64_t divisions = a->settings.roundup_power2_divisions[interval];
    if (divisions <= 1 || size <= LEAST_BLOCK * divisions)
        return 0;
    return in_units(size, ((uint64_t)1 << octave) / divisions);
}

static uint64_t round_size(const struct allocator *a, uint64_t size)
{
    uint64_t rounded = a->rounds_up && size >= LEAST_BLOCK ? round_to_part_of_power(a, size) : 0;
    return rounded ?: MAX(in_units(size, LEAST_BLOCK), LEAST_BLOCK);
}

static uint64_t segment_size(const struct allocator *a, uint64_t size)
{
    if (size <= SMALL_SIZE)
        return SMALL_SEGMENT;
    return size < OWN_SEGMENT ? a->settings.large_segment_bytes : in_units(size, SEGMENT_UNIT);
}

/* The unit by which an expandable segment grows. */
static uint64_t segment_granule(const struct allocator *a, bool small)
{
    return small ? SMALL_SEGMENT : a->settings.large_segment_bytes;
}

/* ---- blocks ---- */

static uint32_t block_new(struct allocator *a, struct block like)
{
    uint32_t b = a->unused;
    if (b != NO_BLOCK) {
        a->unused = a->blocks.at[b].next;
        a->blocks.at[b] = like;
        return b;
    }
    array_push(&a->blocks, like);
    return (uint32_t)a->blocks.n - 1;
}

static void block_drop(struct allocator *a, uint32_t b)
{
    a->blocks.at[b].next = a->unused;
    a->unused = b;
}

/* Where a free block stands in its pool, or would. */
static size_t place_of(const struct allocator *a, const struct block *y)
{
    const uint32_t *in = a->pools[y->small].free.at;
    return LOWER_BOUND(i, (size_t)0, a->pools[y->small].free.n, ({
                           const struct block *x = &a->blocks.at[in[i]];
                           (ASCENDING(size) ?: ASCENDING(address)) < 0;
                       }));
}

static void set_free(struct allocator *a, uint32_t b)
{
    struct block *block = &a->blocks.at[b];
    struct block_pool *pool = &a->pools[block->small];
    size_t at = place_of(a, block);
    block->taken = false;
    block->since = a->n_asked;
    array_reserve(&pool->free, 1);
    memmove(pool->free.at + at + 1, pool->free.at + at, (pool->free.n++ - at) * sizeof b);
    pool->free.at[at] = b;
}

static void unset_free(struct allocator *a, uint32_t b)
{
    struct block_pool *pool = &a->pools[a->blocks.at[b].small];
    size_t at = place_of(a, &a->blocks.at[b]);
    memmove(pool->free.at + at, pool->free.at + at + 1, (--pool->free.n - at) * sizeof b);
}

/* Cuts a block after its first `size` bytes. Returns the rest, which is not free yet. */
static uint32_t cut_block(struct allocator *a, uint32_t b, uint64_t size)
{
    struct block behind = a->blocks.at[b];
    behind.address += size;
    behind.size -= size;
    behind.prev = b;
    uint32_t rest = block_new(a, behind);
    if (behind.next != NO_BLOCK)
        a->blocks.at[behind.next].prev = rest;
    if (a->pools[behind.small].last == b)
        a->pools[behind.small].last = rest;
    a->blocks.at[b].next = rest;
    a->blocks.at[b].size = size;
    return rest;
}

/* Adds the block behind another one to that one. */
static void merge_next(struct allocator *a, uint32_t b)
{
    struct block *block = &a->blocks.at[b];
    uint32_t other = block->next;
    block->size += a->blocks.at[other].size;
    block->next = a->blocks.at[other].next;
    if (block->next != NO_BLOCK)
        a->blocks.at[block->next].prev = b;
    if (a->pools[block->small].last == other)
        a->pools[block->small].last = b;
    block_drop(a, other);
}

static bool is_free(const struct allocator *a, uint32_t b)
{
    return b != NO_BLOCK && !a->blocks.at[b].taken;
}

void allocator_give(struct allocator *a, uint32_t b)
{
    uint32_t prev = a->blocks.at[b].prev, next = a->blocks.at[b].next;
    a->figures.allocated_bytes -= a->blocks.at[b].size;
    if (is_free(a, next)) {
        unset_free(a, next);
        merge_next(a, b);
    }
    if (is_free(a, prev)) {
        unset_free(a, prev);
        merge_next(a, prev);
        b = prev;
    }
    set_free(a, b);
}

/* ---- what the device has ---- */

static bool device_reserve(struct allocator *a, uint64_t bytes)
{
    struct allocator_figures *f = &a->figures;
    if (f->reserved_bytes > a->limit || bytes > a->limit - f->reserved_bytes)
        return false;
    f->reserved_bytes += bytes;
    f->reserved_peak_bytes = MAX(f->reserved_peak_bytes, f->reserved_bytes);
    return true;
}

/* A free block that is a segment of its own; NO_BLOCK: there is no room. Newer segments lie behind
 * older ones; where addresses decide, below them, since CUDA's driver gives them from the top. */
static uint32_t take_segment(struct allocator *a, bool small, uint64_t size)
{
    uint64_t bytes = segment_size(a, size), address = a->highest;
    if (!device_reserve(a, bytes))
        return NO_BLOCK;
    if (a->settings.by_address)
        address = a->lowest -= bytes;
    else
        a->highest += bytes;
    uint32_t b = block_new(
        a,
        (struct block){
            .address = address, .size = bytes, .prev = NO_BLOCK, .next = NO_BLOCK, .small = small});
    set_free(a, b);
    return b;
}

/* Its last block, which is free and that large now. */
static uint32_t grow_segment(struct allocator *a, bool small, uint64_t size)
{
    struct block_pool *pool = &a->pools[small];
    bool free = is_free(a, pool->last);
    const struct block *last = pool->last == NO_BLOCK ? NULL : &a->blocks.at[pool->last];
    uint64_t bytes = in_units(size - (free ? last->size : 0), segment_granule(a, small));
    if (!device_reserve(a, bytes))
        return NO_BLOCK;
    if (free)
        unset_free(a, pool->last);
    struct block more = {.address = last ? last->address + last->size : 0,
                         .size = bytes,
                         .prev = pool->last,
                         .next = NO_BLOCK,
                         .small = small};
    uint32_t b = block_new(a, more);
    if (more.prev != NO_BLOCK)
        a->blocks.at[more.prev].next = b;
    pool->last = b;
    if (free)
        merge_next(a, more.prev);
    set_free(a, pool->last);
    return pool->last;
}

/* Gives a free block back to the device if it is a whole segment; of an expandable segment, the
 * granules that are free as a whole. */
static void release_block(struct allocator *a, uint32_t b)
{
    struct block block = a->blocks.at[b];
    if (a->settings.expandable_segments) {
        uint64_t unit = segment_granule(a, block.small), from = in_units(block.address, unit);
        uint64_t to = (block.address + block.size) / unit * unit;
        uint64_t before = from - block.address, behind = block.address + block.size - to;
        if (from >= to)
            return;
        unset_free(a, b);
        if (behind > 0)
            set_free(a, cut_block(a, b, block.size - behind));
        if (before > 0) {
            uint32_t rest = cut_block(a, b, before);
            set_free(a, b);
            b = rest;
        }
        block = a->blocks.at[b];
        if (block.prev != NO_BLOCK)
            a->blocks.at[block.prev].next = NO_BLOCK;
        if (block.next != NO_BLOCK)
            a->blocks.at[block.next].prev = NO_BLOCK;
        if (a->pools[block.small].last == b)
            a->pools[block.small].last = block.prev;
    } else if (block.prev == NO_BLOCK && block.next == NO_BLOCK) {
        unset_free(a, b);
    } else {
        return;
    }
    a->figures.reserved_bytes -= block.size;
    block_drop(a, b);
}

void allocator_empty_cache(struct allocator *a)
{
    for (int small = 0; small < 2; small++) {
        SCRATCH ARRAY(uint32_t) all = {0};
        array_append(&all, a->pools[small].free.at, a->pools[small].free.n);
        EACH (const uint32_t, b, all)
            release_block(a, *b);
    }
}

static bool is_whole_segment(const struct allocator *a, uint32_t b)
{
    return a->blocks.at[b].prev == NO_BLOCK && a->blocks.at[b].next == NO_BLOCK &&
           !a->settings.expandable_segments;
}

/* Large cached segments that lay unused for longer than the mean, until enough is free. */
static void collect_garbage(struct allocator *a)
{
    struct block_pool *pool = &a->pools[false];
    while (a->figures.reserved_bytes > a->threshold) {
        double age = 0, n = 0;
        EACH (const uint32_t, b, pool->free)
            if (is_whole_segment(a, *b)) {
                age += (double)(a->n_asked - a->blocks.at[*b].since);
                n++;
            }
        if (n == 0)
            return;
        for (size_t i = pool->free.n; i-- > 0;) {
            uint32_t b = pool->free.at[i];
            if (is_whole_segment(a, b) && (double)(a->n_asked - a->blocks.at[b].since) >= age / n)
                release_block(a, b);
        }
    }
}

/* Of the blocks that are not split, one that is large enough, or several, largest first. */
static bool release_large(struct allocator *a, bool small, uint64_t size)
{
    struct block_pool *pool = &a->pools[small];
    uint64_t split = a->settings.max_split_bytes, need = MAX(size, split), released = 0;
    if (split == ALLOCATOR_UNLIMITED)
        return false;
    size_t at = place_of(a, &(struct block){.size = need, .small = small});
    if (at < pool->free.n && is_whole_segment(a, pool->free.at[at])) {
        release_block(a, pool->free.at[at]);
        return true;
    }
    for (at = pool->free.n; at-- > 0 && released < need;) {
        uint32_t b = pool->free.at[at];
        if (a->blocks.at[b].size < split)
            break;
        if (is_whole_segment(a, b)) {
            released += a->blocks.at[b].size;
            release_block(a, b);
        }
    }
    return released >= need;
}

static uint32_t from_device(struct allocator *a, bool small, uint64_t size)
{
    return a->settings.expandable_segments ? grow_segment(a, small, size)
                                           : take_segment(a, small, size);
}

/* ---- requests ---- */

static uint32_t choose_free(const struct allocator *a, bool small, uint64_t size)
{
    const struct block_pool *pool = &a->pools[small];
    size_t at = place_of(a, &(struct block){.size = size, .small = small});
    /* the last block of an expandable segment can grow: the next larger one is left less of */
    at += at + 1 < pool->free.n && pool->free.at[at] == pool->last;
    if (at == pool->free.n)
        return NO_BLOCK;
    uint64_t split = a->settings.max_split_bytes, has = a->blocks.at[pool->free.at[at]].size;
    if (size < split ? has >= split : has - size >= a->settings.max_non_split_rounding_bytes)
        return NO_BLOCK;
    return pool->free.at[at];
}

/* A free block that is large enough, if need be after giving cached memory back to the device. */
static uint32_t find_room(struct allocator *a, bool small, uint64_t size)
{
    uint32_t b = choose_free(a, small, size);
    if (b != NO_BLOCK)
        return b;
    collect_garbage(a);
    b = from_device(a, small, size);
    if (b == NO_BLOCK && release_large(a, small, size))
        b = from_device(a, small, size);
    if (b == NO_BLOCK) {
        allocator_empty_cache(a);
        b = from_device(a, small, size);
    }
    return b;
}

uint32_t allocator_take(struct allocator *a, uint64_t bytes)
{
    struct allocator_figures *f = &a->figures;
    if (bytes > MOST_BYTES)
        return NO_BLOCK;
    uint64_t size = round_size(a, bytes);
    bool small = size <= SMALL_SIZE;
    a->n_asked += !small;
    uint32_t b = find_room(a, small, size);
    if (b == NO_BLOCK)
        return NO_BLOCK;
    unset_free(a, b);
    uint64_t rest = a->blocks.at[b].size - size;
    if (small || a->settings.expandable_segments
            ? rest >= LEAST_BLOCK
            : size < a->settings.max_split_bytes && rest > SMALL_SIZE)
        set_free(a, cut_block(a, b, size));
    a->blocks.at[b].taken = true;
    f->allocated_bytes += a->blocks.at[b].size;
    f->allocated_peak_bytes = MAX(f->allocated_peak_bytes, f->allocated_bytes);
    return b;
}

struct allocator_figures allocator_figures(const struct allocator *allocator)
{
    return allocator->figures;
}

struct allocator *allocator_create(const struct allocator_settings *settings, uint64_t capacity)
{
    struct allocator *a = mem_array(1, sizeof *a);
    double share = settings->memory_fraction > 0 && settings->memory_fraction < 1
                       ? settings->garbage_collection_threshold
                       : 0;
    *a = (struct allocator){.settings = *settings,
                            .limit = capacity ?: UINT64_MAX,
                            .threshold = UINT64_MAX,
                            .unused = NO_BLOCK,
                            .pools = {{.last = NO_BLOCK}, {.last = NO_BLOCK}},
                            .lowest = MIDDLE_ADDRESS,
                            .highest = MIDDLE_ADDRESS};
    for (int i = 0; i < ALLOCATOR_N_ROUNDING; i++)
        a->rounds_up |= settings->roundup_power2_divisions[i] > 1;
    if (share > 0 && capacity)
        a->threshold = (uint64_t)(share * (double)capacity);
    return a;
}

void allocator_destroy(struct allocator *a)
{
    if (a)
        FREE_ALL(&a->pools[0].free, &a->pools[1].free, &a->blocks);
    mem_free(a);
}
