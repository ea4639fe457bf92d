/* The state of a caching allocator, inside the simulator.
 *
 * Blocks of a segment form a chain by address. A free block is in the set of its pool, an unmapped
 * one in another one, one that waits for a stream in the allocator's list. Free neighbours
 * that are both mapped, or both not, are always merged. */
#pragma once

#include "replay/caching_allocator.h"

enum {
    LEAST_BLOCK = 512,
    SMALL_SIZE = 1 << 20,
    SMALL_SEGMENT = 2 << 20,
    OWN_SEGMENT = 10 << 20, /* larger sizes get segments of their own, */
    SEGMENT_UNIT = 2 << 20, /* which are multiples of this */
};

#define RANGE_DEFAULT ((uint64_t)1 << 40) /* of an expandable segment of an unlimited device */

#define NO_BLOCK UINT32_MAX

enum block_state { BLOCK_FREE, BLOCK_TAKEN, BLOCK_WAITING, BLOCK_UNUSED };

struct block {
    uint64_t address, size;
    uint64_t requested;  /* while it is taken: bytes asked for; while it waits: its id */
    uint64_t since;      /* while it is free: how often its kind of pool had been asked */
    uint32_t prev, next; /* its neighbours in its segment */
    uint32_t segment;    /* number of its segment's address */
    struct block_pool *pool;
    uint8_t state; /* enum block_state */
    bool mapped;   /* else it is only addresses */
    bool expandable;
    uint32_t order; /* of its segment among all: of blocks of one size that of the least is taken */
};

/* A set: free blocks by size, order of their segments and address; unmapped ones by address alone.
 */
struct free_blocks {
    ARRAY(uint32_t) in; /* in order */
    bool by_size;
};

struct block_pool {
    struct free_blocks free;
    struct free_blocks unmapped; /* of expandable segments */
    uint32_t stream;
    bool small;
};

/* All blocks of an allocator. */
struct block_table {
    ARRAY(struct block) rows;
    uint32_t unused; /* a chain by `next` */
};

static inline uint32_t block_table_new(struct block_table *table)
{
    uint32_t b = table->unused;
    if (b != NO_BLOCK) {
        table->unused = table->rows.at[b].next;
        return b;
    }
    array_reserve(&table->rows, 1);
    return (uint32_t)table->rows.n++;
}

static inline void block_table_drop(struct block_table *table, uint32_t b)
{
    table->rows.at[b].state = BLOCK_UNUSED;
    table->rows.at[b].next = table->unused;
    table->unused = b;
}

/* What is left of a chunk of the device's addresses. */
struct device_chunk {
    uint64_t address, left;
};

struct allocator {
    struct allocator_settings settings;
    bool rounds_up;       /* to parts of powers of two */
    uint64_t limit;       /* of reserved memory, by memory_fraction; UINT64_MAX: none */
    uint64_t range_bytes; /* of an expandable segment; 0: the device has no limit */
    uint32_t n_taken;     /* segments so far */
    struct block_table table;
    struct map ids; /* of blocks: 1 + the block's index; 0: given back. See id_get() */
    ARRAY(struct block_pool *) pools;  /* the large ones first, by stream */
    uint64_t n_asked[2];               /* how often a pool was asked for; by `small` */
    ARRAY(uint32_t) waiting;           /* freed blocks that another stream still uses */
    uint64_t capacity, used;           /* of the device, in whole pages; UINT64_MAX: no limit */
    uint64_t lowest;                   /* address of a chunk */
    ARRAY(struct device_chunk) chunks; /* the oldest first */
    ARRAY(uint64_t) segments;          /* their addresses */
    struct allocator_figures figures;
};

/* ---- blocks ---- */

/* Of allocator_segments.c. */
void free_blocks_insert(struct free_blocks *set, const struct block *blocks, uint32_t b);
void free_blocks_remove(struct free_blocks *set, const struct block *blocks, uint32_t b);
/* Where the first block of at least that size stands in a set by size; at its end: there is none.
 */
size_t free_blocks_find(const struct free_blocks *set, const struct block *blocks, uint64_t size);

/* Whether an id is known, and which block has it; NO_BLOCK: none has any more. */
static inline bool id_get(const struct allocator *a, uint64_t id, uint32_t *b)
{
    uint64_t value = 0;
    bool known = map_get(&a->ids, map_key(id), &value) && value > 0;
    *b = (uint32_t)(value - 1);
    return known;
}

static inline void id_set(struct allocator *a, uint64_t id, uint32_t b)
{
    map_set(&a->ids, map_key(id), (uint64_t)b + 1);
}

static inline struct block *block_at(const struct allocator *a, uint32_t b)
{
    return &a->table.rows.at[b];
}

static inline void set_free(struct allocator *a, struct block_pool *pool, uint32_t b)
{
    block_at(a, b)->since = a->n_asked[pool->small];
    free_blocks_insert(&pool->free, a->table.rows.at, b);
}

static inline void unset_free(struct allocator *a, struct block_pool *pool, uint32_t b)
{
    if (block_at(a, b)->mapped)
        free_blocks_remove(&pool->free, a->table.rows.at, b);
    else
        free_blocks_remove(&pool->unmapped, a->table.rows.at, b);
}

/* The block is in no set. */
static inline void merge_blocks(struct allocator *a, struct block_pool *pool, uint32_t b,
                                uint32_t other)
{
    if (other == NO_BLOCK)
        return;
    struct block *to = block_at(a, b), *from = block_at(a, other);
    if (from->state != BLOCK_FREE || from->mapped != to->mapped)
        return;
    unset_free(a, pool, other);
    to->size += from->size;
    if (to->prev == other) {
        to->address = from->address;
        to->prev = from->prev;
        if (to->prev != NO_BLOCK)
            block_at(a, to->prev)->next = b;
    } else {
        to->next = from->next;
        if (to->next != NO_BLOCK)
            block_at(a, to->next)->prev = b;
    }
    block_table_drop(&a->table, other);
}

/* Cuts a block after its first `size` bytes. Returns the rest as a block of the same state, in no
 * set. */
static inline uint32_t cut_block(struct allocator *a, uint32_t b, uint64_t size)
{
    uint32_t rest = block_table_new(&a->table);
    struct block *block = block_at(a, b), *behind = block_at(a, rest);
    *behind = *block;
    behind->address += size;
    behind->size -= size;
    behind->prev = b;
    if (block->next != NO_BLOCK)
        block_at(a, block->next)->prev = rest;
    block->next = rest;
    block->size = size;
    return rest;
}

static inline void release_to_pool(struct allocator *a, uint32_t b)
{
    struct block_pool *pool = block_at(a, b)->pool;
    block_at(a, b)->state = BLOCK_FREE;
    merge_blocks(a, pool, b, block_at(a, b)->prev);
    merge_blocks(a, pool, b, block_at(a, b)->next);
    set_free(a, pool, b);
}

/* A block is given back, but other streams use it. */
static inline void begin_waiting(struct allocator *a, uint32_t b, uint64_t id)
{
    struct block *block = block_at(a, b);
    block->state = BLOCK_WAITING;
    block->requested = id;
    array_push(&a->waiting, b);
    a->figures.waiting_bytes += block->size;
}

/* A block that other streams used no longer waits. */
static inline void finish_waiting(struct allocator *a, uint32_t b)
{
    size_t at = a->waiting.n - 1;
    while (a->waiting.at[at] != b)
        at--;
    a->waiting.at[at] = a->waiting.at[--a->waiting.n];
    a->figures.waiting_bytes -= block_at(a, b)->size;
    release_to_pool(a, b);
}

/* ---- the device ---- */

static inline uint64_t in_units(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* Counts bytes as used, in whole pages of 2 MiB; false: there is no room. */
static inline bool device_use(struct allocator *a, uint64_t bytes)
{
    bytes = in_units(bytes, SEGMENT_UNIT);
    if (bytes > a->capacity - a->used)
        return false;
    a->used += bytes;
    return true;
}

/* Of allocator_segments.c. */
struct block_pool *pool_of(struct allocator *allocator, uint32_t stream, bool small);

static inline void note_peaks(struct allocator *a)
{
    struct allocator_figures *f = &a->figures;
    f->allocated_peak_bytes = MAX(f->allocated_peak_bytes, f->allocated_bytes);
    f->reserved_peak_bytes = MAX(f->reserved_peak_bytes, f->reserved_bytes);
}

/* ---- allocator_segments.c ---- */

/* A segment, or a range of addresses, that is one block `like` that one: its index. */
uint32_t segment_new(struct allocator *allocator, const struct block *like);
/* The unit in which memory is mapped. */
uint64_t segment_granule(const struct allocator *allocator, const struct block_pool *pool);
/* A new block from the device, if need be after giving cached memory back to it. NO_BLOCK: there is
 * no room. */
uint32_t find_or_make_room(struct allocator *allocator, struct block_pool *pool, uint64_t size);
/* Gives all cached segments back to the device, after all streams have finished. */
void release_cached(struct allocator *allocator);

/* ---- caching_allocator.c ---- */

/* The least size of the block for a request. */
uint64_t allocator_rounded(const struct allocator *allocator, uint64_t bytes);
