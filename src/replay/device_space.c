/* The ranges of a chunk, free or not, are a chain by address; their `segment` is the chunk's
 * number. */
#include "replay/device_space.h"

#define PAGE  ((uint64_t)2 << 20)
#define CHUNK ((uint64_t)32 << 20)
#define END   ((uint64_t)1 << 62)

static uint64_t space_whole(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
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
    *space = (struct device_space){.capacity = capacity, .begin = END};
}

void device_space_fini(struct device_space *space)
{
    FREE_ALL(&space->holes, &space->first, &space->most);
}

bool device_space_use(struct device_space *space, uint64_t bytes)
{
    bytes = space_whole(bytes, PAGE);
    if (bytes > space->capacity - space->used)
        return false;
    space->used += bytes;
    return true;
}

void device_space_unuse(struct device_space *space, uint64_t bytes)
{
    space->used -= MIN(space->used, space_whole(bytes, PAGE));
}

void device_space_avoid(struct device_space *space, uint64_t address)
{
    space->begin = MIN(space->begin, address / CHUNK * CHUNK);
}

/* ---- the largest free range of each chunk ---- */

static void update_most(struct device_space *space, const struct block *rows, uint32_t chunk)
{
    uint64_t most = 0;
    for (uint32_t r = space->first.at[chunk]; r != NO_BLOCK; r = rows[r].next)
        if (rows[r].state == BLOCK_FREE)
            most = MAX(most, rows[r].size);
    space->most.at[chunk] = most;
}

/* The newest chunk with that much room; NO_BLOCK. */
static uint32_t find_chunk(const struct device_space *space, uint64_t bytes)
{
    for (size_t chunk = space->most.n; chunk-- > 0;)
        if (space->most.at[chunk] >= bytes)
            return (uint32_t)chunk;
    return NO_BLOCK;
}

/* ---- chunks ---- */

static uint64_t take_hole(struct device_space *space, uint64_t bytes)
{
    for (size_t i = space->holes.n; i-- > 0;) {
        struct device_hole *hole = &space->holes.at[i];
        if (hole->size < bytes)
            continue;
        hole->size -= bytes;
        uint64_t address = hole->address + hole->size;
        if (hole->size == 0) {
            space->holes.n--;
            memmove(hole, hole + 1, (space->holes.n - i) * sizeof *hole);
        }
        return address;
    }
    return space->begin -= bytes;
}

static void leave_hole(struct device_space *space, uint64_t address, uint64_t bytes)
{
    size_t i = LOWER_BOUND(k, (size_t)0, space->holes.n, space->holes.at[k].address < address);
    array_reserve(&space->holes, 1);
    struct device_hole *at = space->holes.at;
    memmove(&at[i + 1], &at[i], (space->holes.n - i) * sizeof *at);
    at[i] = (struct device_hole){address, bytes};
    space->holes.n++;
    for (size_t k = i + 1; k > MAX(i, 1) - 1; k--) /* with those that it touches */
        if (k < space->holes.n && at[k - 1].address + at[k - 1].size == at[k].address) {
            at[k - 1].size += at[k].size;
            space->holes.n--;
            memmove(&at[k], &at[k + 1], (space->holes.n - k) * sizeof *at);
        }
    if (at[0].address == space->begin) {
        space->begin += at[0].size;
        space->holes.n--;
        memmove(&at[0], &at[1], space->holes.n * sizeof *at);
    }
}

static uint32_t reserve_chunk(struct device_space *space, struct block_table *table, uint64_t bytes)
{
    uint32_t range = block_table_new(table), chunk = (uint32_t)space->first.n;
    bytes = space_whole(bytes, CHUNK);
    table->rows.at[range] = (struct block){.address = take_hole(space, bytes),
                                           .size = bytes,
                                           .prev = NO_BLOCK,
                                           .next = NO_BLOCK,
                                           .segment = chunk};
    array_push(&space->first, range);
    array_push(&space->most, bytes);
    return chunk;
}

uint32_t device_space_place(struct device_space *space, struct block_table *table, uint64_t bytes)
{
    bytes = space_whole(bytes, PAGE);
    uint32_t chunk = find_chunk(space, bytes), range = NO_BLOCK;
    if (chunk == NO_BLOCK)
        chunk = reserve_chunk(space, table, bytes);
    const struct block *rows = table->rows.at;
    for (uint32_t r = space->first.at[chunk]; r != NO_BLOCK; r = rows[r].next)
        if (rows[r].state == BLOCK_FREE && rows[r].size >= bytes &&
            (range == NO_BLOCK || rows[r].size < rows[range].size))
            range = r;
    if (table->rows.at[range].size > bytes) {
        uint32_t rest = block_table_new(table);
        struct block *block = &table->rows.at[range];
        table->rows.at[rest] = (struct block){.address = block->address + bytes,
                                              .size = block->size - bytes,
                                              .prev = range,
                                              .next = block->next,
                                              .segment = chunk};
        if (block->next != NO_BLOCK)
            table->rows.at[block->next].prev = rest;
        block->next = rest;
        block->size = bytes;
    }
    table->rows.at[range].state = BLOCK_TAKEN;
    update_most(space, table->rows.at, chunk);
    return range;
}

static void space_join(struct block_table *table, uint32_t before, uint32_t range)
{
    if (before == NO_BLOCK || range == NO_BLOCK)
        return;
    struct block *to = &table->rows.at[before], *from = &table->rows.at[range];
    if (to->state != BLOCK_FREE || from->state != BLOCK_FREE)
        return;
    to->size += from->size;
    to->next = from->next;
    if (from->next != NO_BLOCK)
        table->rows.at[from->next].prev = before;
    block_table_drop(table, range);
}

void device_space_free(struct device_space *space, struct block_table *table, uint32_t range)
{
    struct block *rows = table->rows.at;
    uint32_t chunk = rows[range].segment, before = rows[range].prev;
    rows[range].state = BLOCK_FREE;
    space_join(table, range, rows[range].next);
    space_join(table, before, range);
    const struct block *first = &rows[space->first.at[chunk]];
    if (first->state == BLOCK_FREE && first->next == NO_BLOCK) {
        leave_hole(space, first->address, first->size);
        block_table_drop(table, space->first.at[chunk]);
        space->first.at[chunk] = NO_BLOCK;
    }
    update_most(space, rows, chunk);
}
