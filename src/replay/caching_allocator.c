/* The rules of PyTorch's native allocator.
 *
 * Sizes are rounded. Blocks of up to 1 MiB come from segments of 2 MiB, larger ones from segments
 * of 20 MiB, and those of 10 MiB and more from segments of their own. Each stream has its own
 * segments of both kinds. A request takes the least free block that is large enough and leaves its
 * rest as a free block. Free neighbours in a segment are one block. Cached memory goes back to the
 * device when the device is full, or by garbage collection. */
#include "replay/allocator_state.h"

#define MOST_BYTES     ((uint64_t)1 << 60) /* more is refused */
#define LOWEST_ADDRESS ((uint64_t)1 << 62) /* to begin with */

/* ---- sizes ---- */

static uint64_t round_to_part_of_power(const struct allocator *a, uint64_t size)
{
    uint32_t octave = 63 - (uint32_t)__builtin_clzll(size);
    uint32_t interval = octave > 20 ? MIN(octave - 20, ALLOCATOR_N_ROUNDING - 1) : 0;
    uint64_t divisions = a->settings.roundup_power2_divisions[interval];
    if (divisions <= 1 || size <= LEAST_BLOCK * divisions)
        return 0;
    uint64_t part = ((uint64_t)1 << octave) >> (63 - __builtin_clzll(divisions));
    return (size + part - 1) & ~(part - 1);
}

static inline uint64_t round_size(const struct allocator *a, uint64_t size)
{
    if (a->rounds_up && size >= LEAST_BLOCK) {
        uint64_t rounded = round_to_part_of_power(a, size);
        if (rounded)
            return rounded;
    }
    return size < LEAST_BLOCK ? LEAST_BLOCK
                              : (size + LEAST_BLOCK - 1) & ~(uint64_t)(LEAST_BLOCK - 1);
}

static inline bool is_split(const struct allocator *a, const struct block_pool *pool,
                            const struct block *block, uint64_t size)
{
    uint64_t rest = block->size - size;
    if (pool->small || a->settings.expandable_segments)
        return rest >= LEAST_BLOCK;
    return size < a->settings.max_split_bytes && rest > SMALL_SIZE;
}

/* ---- requests ---- */

/* A block that can grow counts as large as it can become. */
static uint64_t can_become(const struct block *rows, uint32_t b)
{
    uint32_t behind = rows[b].next;
    bool grows = behind != NO_BLOCK && !rows[behind].mapped;
    return rows[b].size + (grows ? rows[behind].size : 0);
}

static inline uint32_t choose_free(const struct allocator *a, const struct block_pool *pool,
                                   uint64_t size)
{
    const struct block *rows = a->table.rows.at;
    const struct free_blocks *set = &pool->free;
    size_t at = free_blocks_find(set, rows, size);
    if (at == set->in.n)
        return NO_BLOCK;
    if (rows[set->in.at[at]].expandable && a->settings.expandable_segments) {
        while (at + 1 < set->in.n && rows[set->in.at[at]].expandable &&
               can_become(rows, set->in.at[at + 1]) < can_become(rows, set->in.at[at]))
            at++;
    } else {
        while (at < set->in.n && rows[set->in.at[at]].expandable)
            at++;
        if (at == set->in.n)
            return NO_BLOCK;
    }
    uint32_t b = set->in.at[at];
    uint64_t split = a->settings.max_split_bytes;
    if (size < split ? rows[b].size >= split
                     : rows[b].size - size >= a->settings.max_non_split_rounding_bytes)
        return NO_BLOCK;
    return b;
}

static inline uint32_t find_free(struct allocator *a, struct block_pool *pool, uint64_t size)
{
    a->n_asked[pool->small]++;
    uint32_t b = choose_free(a, pool, size);
    if (b != NO_BLOCK)
        free_blocks_remove(&pool->free, a->table.rows.at, b);
    return b;
}

static inline struct allocator_placement placement_of(const struct allocator *a, uint32_t b)
{
    const struct block *block = block_at(a, b);
    uint64_t segment = a->segments.at[block->segment];
    return (struct allocator_placement){
        .segment = segment, .offset = block->address - segment, .size_bytes = block->size};
}

static inline struct allocator_placement allocator_give(struct allocator *a, uint64_t id,
                                                        uint32_t b, bool waits)
{
    struct allocator_placement placement = {0};
    if (b != NO_BLOCK) {
        struct block *block = block_at(a, b);
        placement = placement_of(a, b);
        if (block->state == BLOCK_WAITING) {
            if (!waits)
                finish_waiting(a, b);
        } else {
            a->figures.allocated_bytes -= block->size;
            if (waits) {
                begin_waiting(a, b, id);
            } else {
                release_to_pool(a, b);
            }
        }
    }
    if (!waits)
        map_set(&a->ids, map_key(id), 0);
    return placement;
}

static inline struct allocator_placement allocator_take(struct allocator *a,
                                                        const struct allocator_request *request)
{
    struct allocator_placement placement = {0};
    uint32_t b = NO_BLOCK;
    if (request->bytes > 0 && request->bytes <= MOST_BYTES) {
        uint64_t size = round_size(a, request->bytes);
        struct block_pool *pool = pool_of(a, request->stream, size <= SMALL_SIZE);
        bool asks = (b = find_free(a, pool, size)) == NO_BLOCK;
        if (asks)
            b = find_or_make_room(a, pool, size);
        if (b != NO_BLOCK) {
            if (is_split(a, pool, block_at(a, b), size))
                set_free(a, pool, cut_block(a, b, size));
            struct block *block = block_at(a, b);
            block->state = BLOCK_TAKEN;
            block->requested = request->bytes;
            a->figures.allocated_bytes += block->size;
            placement = placement_of(a, b);
        }
        placement.device_asked = asks;
        note_peaks(a);
    }
    if (b == NO_BLOCK && request->bytes > 0) {
        placement.failed = true;
        a->figures.n_failed++;
    }
    uint32_t old;
    if (id_get(a, request->id, &old) && old != NO_BLOCK) { /* giving it back is not recorded */
        a->figures.n_unknown++;
        allocator_give(a, request->id, old, false);
    }
    id_set(a, request->id, b);
    return placement;
}

struct allocator_placement allocator_request(struct allocator *a,
                                             const struct allocator_request *request)
{
    struct allocator_placement placement = {0};
    if (request->what == ALLOCATOR_TAKE) {
        placement = allocator_take(a, request);
    } else if (request->what == ALLOCATOR_EMPTY_CACHE) {
        release_cached(a);
    } else if (request->what <= ALLOCATOR_GIVE_COMPLETED) {
        uint32_t b;
        if (id_get(a, request->id, &b))
            placement =
                allocator_give(a, request->id, b, request->what == ALLOCATOR_GIVE_REQUESTED);
        else
            a->figures.n_unknown++;
    }
    return placement;
}

struct allocator_figures allocator_figures(const struct allocator *allocator)
{
    return allocator->figures;
}

uint64_t allocator_rounded(const struct allocator *a, uint64_t bytes)
{
    return bytes > MOST_BYTES ? bytes : round_size(a, bytes);
}

/* ---- from beginning to end ---- */

struct allocator *allocator_create(const struct allocator_options *options)
{
    struct allocator *a = mem_array(1, sizeof *a);
    uint64_t device = options->device_bytes ?: options->capacity_bytes;
    a->settings = options->settings;
    for (int i = 0; i < ALLOCATOR_N_ROUNDING; i++)
        a->rounds_up |= a->settings.roundup_power2_divisions[i] > 1;
    a->limit = UINT64_MAX;
    if (a->settings.memory_fraction > 0 && a->settings.memory_fraction < 1 && device)
        a->limit = (uint64_t)(a->settings.memory_fraction * (double)device);
    a->range_bytes = device + device / 8;
    a->table.unused = NO_BLOCK;
    a->capacity = options->capacity_bytes ?: UINT64_MAX;
    a->lowest = LOWEST_ADDRESS;
    return a;
}

void allocator_destroy(struct allocator *a)
{
    if (!a)
        return;
    for (size_t p = 0; p < a->pools.n; p++) {
        FREE_ALL(&a->pools.at[p]->free.in, &a->pools.at[p]->unmapped.in);
        mem_free(a->pools.at[p]);
    }
    FREE_ALL(&a->pools, &a->table.rows, &a->chunks, &a->segments, &a->waiting, &a->ids);
    mem_free(a);
}
