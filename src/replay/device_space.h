/* A device's memory: a capacity and addresses. They are as
 * CUDA's driver chooses them: it reserves chunks of whole 32 MiB, each at the highest address that
 * is free below the first one. Memory comes from the newest chunk with room for it, there from the
 * least range that is large enough. A chunk that is all free goes. */
#pragma once

#include "replay/free_blocks.h"

/* All blocks of an allocator, its own and the ranges that they lie in. */
struct block_table {
    ARRAY(struct block) rows;
    uint32_t unused; /* a chain by `next` */
};

uint32_t block_table_new(struct block_table *table);

static inline void block_table_drop(struct block_table *table, uint32_t b)
{
    table->rows.at[b].state = BLOCK_UNUSED;
    table->rows.at[b].next = table->unused;
    table->unused = b;
}

struct device_hole {
    uint64_t address, size;
};

struct device_space {
    uint64_t capacity; /* UINT64_MAX: no limit */
    uint64_t used;
    uint64_t begin;                  /* of the lowest chunk */
    ARRAY(struct device_hole) holes; /* between chunks, by address */
    ARRAY(uint32_t) first; /* range of each chunk, the oldest first; NO_BLOCK: it is gone */
    ARRAY(uint64_t) most;  /* the largest free range of each chunk */
};

void device_space_init(struct device_space *space, uint64_t capacity);
void device_space_fini(struct device_space *space);
/* Counts bytes as used, in whole pages of 2 MiB; false: there is no room. */
bool device_space_use(struct device_space *space, uint64_t bytes);
void device_space_unuse(struct device_space *space, uint64_t bytes);
/* From now on chunks lie below an address that others use; before the first one. */
void device_space_avoid(struct device_space *space, uint64_t address);
uint32_t device_space_place(struct device_space *space, struct block_table *table, uint64_t bytes);
void device_space_free(struct device_space *space, struct block_table *table, uint32_t range);
