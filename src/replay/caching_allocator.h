/* PyTorch's caching allocator of GPU memory, simulated: where each block goes, what is reserved of
 * the device for that, and whether a request fails.
 *
 * The allocator takes segments from the device and cuts blocks out of them. What is reserved
 * depends on the order and the sizes of requests, not on their times. */
#pragma once

#include "ingest/allocator_history.h"

/* Recorded answers of the device. Without them the device places a segment at the lowest address
 * where it fits, and fails when its capacity is exceeded. */
struct allocator_device {
    void *arg;
    /* Returns the address; 0: no room. `reserves`: for the range of an expandable segment, of which
     * nothing is mapped yet. */
    uint64_t (*take)(void *arg, uint64_t bytes, uint32_t stream, bool small, bool reserves);
    bool (*map)(void *arg, uint64_t address, uint64_t bytes);
    void (*give)(void *arg, uint64_t address, uint64_t bytes, bool unmaps);
};

struct allocator_options {
    struct allocator_settings settings;
    uint64_t capacity_bytes; /* what the process can have of the device; 0: no limit */
    uint64_t device_bytes;   /* the whole device, for memory_fraction; 0: capacity_bytes */
    const struct allocator_device *device; /* NULL: no recorded answers; stays the caller's */
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
    uint64_t requested_bytes, requested_peak_bytes;
    uint64_t waiting_bytes; /* freed, but still used by another stream */
    uint64_t n_failed;      /* allocations that failed */
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

/* The result of replaying a snapshot's requests in the simulator. */
struct allocator_check {
    uint64_t n_requests;  /* allocations that were compared */
    uint64_t n_elsewhere; /* those placed otherwise than recorded, or refused */
    uint64_t n_segment_acts, n_segment_acts_differ; /* taken, given back, mapped, unmapped */
    uint64_t first_elsewhere; /* index into the history's requests; UINT64_MAX: none */
    uint64_t n_unsure_blocks; /* blocks at the beginning whose size the record does not have */
    uint64_t n_left_out;      /* requests that contradict the record, or of private pools */
    uint64_t reserved_bytes, recorded_reserved_bytes;           /* at the end */
    uint64_t reserved_peak_bytes, recorded_reserved_peak_bytes; /* within the record */
    uint64_t n_inferred; /* times that a placement showed which of two segments is older */
    bool by_address;     /* whether blocks of one size ordered by address fit the record better */
};

/* If the record does not begin with the first request, the initial state is that of its final
 * segments, undone request by request. Whether the device had no room is as recorded. */
struct allocator_check allocator_check(const struct allocator_history *history);
