/* PyTorch's caching allocator of GPU memory, simulated: where each block goes, what is reserved of
 * the device for that, and whether a request fails.
 *
 * The allocator takes segments from the device and cuts blocks out of them. What is reserved
 * depends on the order and the sizes of requests, not on their times. The device fails when its
 * capacity is exceeded. */
#pragma once

#include "ingest/allocator_history.h"

struct allocator_options {
    struct allocator_settings settings;
    uint64_t capacity_bytes; /* what the process can have of the device; 0: no limit */
    uint64_t device_bytes;   /* the whole device, for memory_fraction; 0: capacity_bytes */
};

struct allocator_placement {
    uint64_t segment; /* its address; of an expandable segment that of its range */
    uint64_t offset;
    uint64_t size_bytes; /* rounded size of the block */
    bool failed;         /* there was no room: nothing was taken */
    bool device_asked;   /* whether the device was asked for a segment, or for memory to map */
};

struct allocator_figures {
    uint64_t reserved_bytes, reserved_peak_bytes;
    uint64_t allocated_bytes, allocated_peak_bytes; /* of blocks, rounded */
    uint64_t waiting_bytes;                         /* freed, but still used by another stream */
    uint64_t n_failed;                              /* allocations that failed */
    uint64_t n_retries; /* times that cached memory was given back because the device was full */
    uint64_t n_unknown; /* frees of unknown blocks */
    uint32_t n_segments;
};

struct allocator; /* its memory belongs to the scope in which it is created */

struct allocator *allocator_create(const struct allocator_options *options);
void allocator_destroy(struct allocator *allocator);

/* Sets up segments and blocks as a snapshot has them, before the first request. Those of private
 * pools are skipped. */
void allocator_restore(struct allocator *allocator, const struct allocator_segment *segments,
                       uint32_t n, const struct allocator_block *blocks);
/* Executes a request. For acts other than an allocation the placement is that of the block, or
 * zero. Recorded answers in the list are skipped. */
struct allocator_placement allocator_request(struct allocator *allocator,
                                             const struct allocator_request *request);
struct allocator_figures allocator_figures(const struct allocator *allocator);

/* ---- allocator_rollback.c ---- */

/* What an allocator held when the record of its requests begins. */
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
