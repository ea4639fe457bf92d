/* Sets of an allocator's blocks: free ones by size, order of their segments and address; unmapped
 * ones by address alone. Blocks are in one table and known by their index. */
#pragma once

#include "base/base.h"

#define NO_BLOCK UINT32_MAX

enum block_state { BLOCK_FREE, BLOCK_TAKEN, BLOCK_WAITING, BLOCK_UNUSED };

struct block {
    uint64_t address, size;
    uint64_t requested;  /* while it is taken: bytes asked for; while it waits: its id */
    uint64_t since;      /* while it is free: how often its kind of pool had been asked */
    uint32_t prev, next; /* its neighbours in its segment */
    uint32_t segment;    /* number of its segment's address */
    uint32_t pool;
    uint8_t state; /* enum block_state */
    bool mapped;   /* else it is only addresses */
    bool expandable;
    uint32_t order; /* of its segment among all: of blocks of one size that of the least is taken */
};

struct free_blocks {
    ARRAY(uint32_t) in; /* in order */
    bool by_size;
};

void free_blocks_insert(struct free_blocks *set, const struct block *blocks, uint32_t b);
void free_blocks_remove(struct free_blocks *set, const struct block *blocks, uint32_t b);
/* Where the first block of at least that size stands in a set by size; at its end: there is none.
 */
size_t free_blocks_find(const struct free_blocks *set, const struct block *blocks, uint64_t size);
