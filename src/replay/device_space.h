/* replay/device_space.h: a device's memory, where no recorded answers stand for it: a capacity and
 * addresses. Of free ranges the least that is large enough is used, of equal ones the lowest. */
#pragma once

#include "base/array.h"
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

struct device_space {
    uint64_t capacity; /* UINT64_MAX: no limit */
    uint64_t used;
    uint64_t end;  /* of the ranges so far */
    uint32_t last; /* range; NO_BLOCK */
    struct free_blocks free;
};

void device_space_init(struct device_space *space, uint64_t capacity);
/* Counts bytes as used, in whole pages of 2 MiB; false: there is no room. */
bool device_space_use(struct device_space *space, uint64_t bytes);
void device_space_unuse(struct device_space *space, uint64_t bytes);
/* A range of addresses, as a block of the table. */
uint32_t device_space_place(struct device_space *space, struct block_table *table, uint64_t bytes);
void device_space_free(struct device_space *space, struct block_table *table, uint32_t range);
