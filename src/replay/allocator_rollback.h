/* replay/allocator_rollback.h: what an allocator held when the record of its requests begins. */
#pragma once

#include "base/array.h"
#include "ingest/allocator_history.h"

struct allocator;

struct allocator_start {
    ARRAY(struct allocator_segment) segments;
    ARRAY(struct allocator_block) blocks; /* taken and waiting ones */
    bool *left_out;                       /* by request: it contradicts the rest */
    uint64_t n_left_out, n_unsure_blocks;
    bool *is_ordered; /* by segment: its place in the order is known, not guessed by its address */
};

/* Undoes the history's requests, the last first, on what its segments hold. `allocator` knows how
 * sizes are rounded; blocks of which the record does not tell the size end where the next one
 * begins, if a free block between would be too small. */
void allocator_roll_back(const struct allocator_history *history, const struct allocator *allocator,
                         struct allocator_start *start);
void allocator_start_fini(struct allocator_start *start);
