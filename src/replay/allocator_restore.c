/* Sets up an allocator that already holds segments and blocks. */
#include "replay/allocator_state.h"

/* A segment's block or an expandable range's, taken as a whole. */
static uint32_t restore_whole(struct allocator *a, const struct allocator_segment *segment,
                              uint64_t bytes)
{
    return segment_new(a, &(struct block){.address = segment->address,
                                          .size = bytes,
                                          .pool = pool_of(a, segment->stream, segment->small),
                                          .state = BLOCK_TAKEN,
                                          .mapped = true,
                                          .expandable = segment->expandable});
}

static void count_mapped(struct allocator *a, uint64_t bytes)
{
    a->figures.reserved_bytes += bytes;
    if (!device_use(a, bytes))
        a->used = a->capacity;
}

/* A block in the state in which it was; of blocks with one address the first is it. */
static void restore_block(struct allocator *a, uint32_t b, uint8_t state)
{
    struct block *block = block_at(a, b);
    uint32_t there;
    if (state == ALLOCATOR_FREE || id_get(a, block->address, &there)) {
        release_to_pool(a, b);
        return;
    }
    id_set(a, block->address, b);
    block->requested = block->size;
    if (state == ALLOCATOR_WAITING) {
        begin_waiting(a, b, block->address);
    } else {
        a->figures.allocated_bytes += block->size;
    }
}

/* Of a block that is taken, the part from `address` on, of up to `bytes`. What lies before it is
 * left by `leave`; *rest is what lies behind it, or NO_BLOCK. */
static uint32_t cut_out(struct allocator *a, uint32_t b, uint64_t address, uint64_t bytes,
                        void (*leave)(struct allocator *, uint32_t), uint32_t *rest)
{
    if (address > block_at(a, b)->address) {
        uint32_t part = cut_block(a, b, address - block_at(a, b)->address);
        leave(a, b);
        b = part;
    }
    *rest = bytes < block_at(a, b)->size ? cut_block(a, b, bytes) : NO_BLOCK;
    return b;
}

/* Cuts a block, which is taken, as the segment's blocks say; what they leave is free. */
static void restore_blocks(struct allocator *a, uint32_t b, const struct allocator_segment *segment,
                           const struct allocator_block *blocks)
{
    for (uint32_t i = 0; i < segment->n_blocks && b != NO_BLOCK; i++) {
        const struct allocator_block *old = &blocks[segment->first_block + i];
        uint64_t end = block_at(a, b)->address + block_at(a, b)->size;
        if (old->address < block_at(a, b)->address || old->address >= end || old->size_bytes == 0)
            continue;
        uint32_t rest;
        b = cut_out(a, b, old->address, old->size_bytes, release_to_pool, &rest);
        restore_block(a, b, old->state);
        b = rest;
    }
    if (b != NO_BLOCK)
        release_to_pool(a, b);
}

ORDER_OF_INDICES(by_age, struct allocator_segment, ASCENDING(order) ?: DESCENDING(address));
ORDER_OF_INDICES(by_range, struct allocator_segment,
                 ASCENDING(stream) ?: ASCENDING(small) ?: ASCENDING(address));

/* How many of the segments, which are sorted, lie in one range with the first; 0 bytes: in none. */
static uint32_t range_length(const struct allocator_segment *segments, const uint32_t *numbers,
                             uint32_t n, uint64_t bytes)
{
    const struct allocator_segment *first = &segments[numbers[0]];
    uint32_t i = 1;
    for (; i < n; i++) {
        const struct allocator_segment *at = &segments[numbers[i]];
        uint64_t offset = at->address - first->address;
        if (at->stream != first->stream || at->small != first->small || offset > bytes ||
            at->size_bytes > bytes - offset)
            break;
    }
    return i;
}

static void set_unmapped(struct allocator *a, uint32_t b)
{
    block_at(a, b)->mapped = false;
    block_at(a, b)->state = BLOCK_FREE;
    free_blocks_insert(&block_at(a, b)->pool->unmapped, a->table.rows.at, b);
}

/* A stream's segments by address: those that lie in one range with the first. Returns how many. */
static uint32_t restore_range(struct allocator *a, const struct allocator_segment *segments,
                              const uint32_t *numbers, uint32_t n,
                              const struct allocator_block *blocks)
{
    const struct allocator_segment *first = &segments[numbers[0]];
    uint64_t unit = segment_granule(a, pool_of(a, first->stream, first->small)), mapped = 0;
    uint64_t bytes = MAX(a->range_bytes ?: RANGE_DEFAULT, first->size_bytes);
    bytes = in_units(bytes, unit);
    n = range_length(segments, numbers, n, bytes);
    for (uint32_t i = 0; i < n; i++)
        mapped += segments[numbers[i]].size_bytes;
    if (mapped == 0)
        return n;
    uint32_t b = restore_whole(a, first, bytes);
    a->n_taken = MAX(a->n_taken + 1, first->order);
    if (!a->settings.by_address)
        block_at(a, b)->order = first->order ?: a->n_taken;
    for (uint32_t i = 0; i < n && b != NO_BLOCK; i++) {
        const struct allocator_segment *at = &segments[numbers[i]];
        if (at->size_bytes == 0 || at->address < block_at(a, b)->address)
            continue;
        uint32_t rest;
        b = cut_out(a, b, at->address, at->size_bytes, set_unmapped, &rest);
        count_mapped(a, at->size_bytes);
        restore_blocks(a, b, at, blocks);
        b = rest;
    }
    if (b != NO_BLOCK)
        set_unmapped(a, b);
    return n;
}

static bool is_usable(const struct allocator_segment *segment)
{
    return !segment->private_pool && segment->address <= UINT64_MAX / 4 &&
           segment->size_bytes <= UINT64_MAX / 16;
}

void allocator_restore(struct allocator *a, const struct allocator_segment *segments, uint32_t n,
                       const struct allocator_block *blocks)
{
    SCRATCH uint32_t *numbers = mem_array(n + 1, sizeof *numbers);
    uint32_t n_plain = 0, n_kept = 0;
    for (uint32_t s = 0; s < n; s++)
        if (is_usable(&segments[s]) && segments[s].size_bytes > 0 && !segments[s].expandable)
            numbers[n_plain++] = s;
    qsort_r(numbers, n_plain, sizeof *numbers, by_age, (void *)segments);
    for (uint32_t i = 0; i < n_plain; i++) {
        const struct allocator_segment *segment = &segments[numbers[i]];
        uint32_t b = restore_whole(a, segment, segment->size_bytes);
        a->n_taken = MAX(a->n_taken + 1, segment->order);
        block_at(a, b)->order = a->settings.by_address ? 0 : a->n_taken;
        count_mapped(a, segment->size_bytes);
        restore_blocks(a, b, segment, blocks);
    }
    for (uint32_t s = 0; s < n; s++)
        if (is_usable(&segments[s]) && segments[s].expandable)
            numbers[n_kept++] = s;
    qsort_r(numbers, n_kept, sizeof *numbers, by_range, (void *)segments);
    for (uint32_t i = 0; i < n_kept;)
        i += restore_range(a, segments, numbers + i, n_kept - i, blocks);
    note_peaks(a);
}
