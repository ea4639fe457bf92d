/* What an allocator held when the record of its requests begins. */
#pragma once

#include "ingest/allocator_history.h"

struct allocator;

struct allocator_start {
    ARRAY(struct allocator_segment) segments;
    ARRAY(struct allocator_block) blocks; /* taken and waiting ones */
};

/* Undoes the history's requests, the last first, from the state of its segments. `allocator` knows
 * how sizes are rounded. Blocks of unknown size end where the next one begins, if a free block
 * between them would be too small. */
void allocator_roll_back(const struct allocator_history *history, const struct allocator *allocator,
                         struct allocator_start *start);
void allocator_start_fini(struct allocator_start *start);
