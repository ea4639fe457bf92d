/* The simulated allocator beside a recorded history: whether it places blocks where they were. */
#pragma once

#include "replay/caching_allocator.h"

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
