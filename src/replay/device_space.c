/* replay/device_space.c: ranges of addresses in a chain from the lowest to the last, which is never
 * free. */
#include "replay/device_space.h"

#include "base/sort.h"

#define PAGE  ((uint64_t)2 << 20)
#define BEGIN ((uint64_t)1 << 40)

static uint64_t whole_pages(uint64_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

uint32_t block_table_new(struct block_table *table)
{
    uint32_t b = table->unused;
    if (b != NO_BLOCK) {
        table->unused = table->rows.at[b].next;
        return b;
    }
    array_reserve(&table->rows, 1);
    return (uint32_t)table->rows.n++;
}

void device_space_init(struct device_space *space, uint64_t capacity)
{
    space->capacity = capacity;
    space->used = 0;
    space->end = BEGIN;
    space->last = NO_BLOCK;
    free_blocks_init(&space->free);
}

bool device_space_use(struct device_space *space, uint64_t bytes)
{
    bytes = whole_pages(bytes);
    if (bytes > space->capacity - space->used)
        return false;
    space->used += bytes;
    return true;
}

void device_space_unuse(struct device_space *space, uint64_t bytes)
{
    space->used -= MIN(space->used, whole_pages(bytes));
}

uint32_t device_space_place(struct device_space *space, struct block_table *table, uint64_t bytes)
{
    bytes = whole_pages(bytes);
    uint32_t range = free_blocks_find(&space->free, table->rows.at, bytes);
    if (range == NO_BLOCK) {
        range = block_table_new(table);
        table->rows.at[range] = (struct block){.address = space->end,
                                               .size = bytes,
                                               .prev = space->last,
                                               .next = NO_BLOCK,
                                               .state = BLOCK_TAKEN};
        if (space->last != NO_BLOCK)
            table->rows.at[space->last].next = range;
        space->last = range;
        space->end += bytes;
        return range;
    }
    free_blocks_remove(&space->free, table->rows.at, range);
    table->rows.at[range].state = BLOCK_TAKEN;
    if (table->rows.at[range].size == bytes)
        return range;
    uint32_t rest = block_table_new(table);
    struct block *block = &table->rows.at[range];
    table->rows.at[rest] = (struct block){.address = block->address + bytes,
                                          .size = block->size - bytes,
                                          .prev = range,
                                          .next = block->next};
    table->rows.at[block->next].prev = rest;
    block->next = rest;
    block->size = bytes;
    free_blocks_insert(&space->free, table->rows.at, rest);
    return range;
}

/* Makes a range part of the free one before it. */
static void join(struct block_table *table, uint32_t before, uint32_t range)
{
    struct block *to = &table->rows.at[before], *from = &table->rows.at[range];
    to->size += from->size;
    to->next = from->next;
    if (from->next != NO_BLOCK)
        table->rows.at[from->next].prev = before;
    block_table_drop(table, range);
}

void device_space_free(struct device_space *space, struct block_table *table, uint32_t range)
{
    struct block *rows = table->rows.at;
    uint32_t prev = rows[range].prev, next = rows[range].next;
    if (next != NO_BLOCK && rows[next].state == BLOCK_FREE) {
        free_blocks_remove(&space->free, rows, next);
        join(table, range, next);
    }
    if (prev != NO_BLOCK && rows[prev].state == BLOCK_FREE) {
        free_blocks_remove(&space->free, rows, prev);
        join(table, prev, range);
        range = prev;
    }
    if (rows[range].next != NO_BLOCK) {
        rows[range].state = BLOCK_FREE;
        free_blocks_insert(&space->free, rows, range);
        return;
    }
    space->end = rows[range].address;
    space->last = rows[range].prev;
    if (space->last != NO_BLOCK)
        rows[space->last].next = NO_BLOCK;
    block_table_drop(table, range);
}
