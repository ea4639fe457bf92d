/* PyTorch's caching allocator of GPU memory, simulated: what is reserved of the device for the
 * blocks that are taken, and whether a request fails.
 *
 * The allocator takes segments from the device and cuts blocks out of them. What is reserved
 * depends on the order and the sizes of requests, not on their times. */
#pragma once

#include "ingest/allocator_settings.h"

#define ALLOCATOR_NO_BLOCK UINT32_MAX

struct allocator_figures {
    uint64_t reserved_bytes, reserved_peak_bytes;
    uint64_t allocated_bytes, allocated_peak_bytes; /* of blocks, rounded */
};

struct allocator; /* its memory belongs to the scope in which it is created */

/* `capacity_bytes`: what the process can have of the device; 0: no limit. */
struct allocator *allocator_create(const struct allocator_settings *settings,
                                   uint64_t capacity_bytes);
void allocator_destroy(struct allocator *allocator);

/* The block that is taken for a request; ALLOCATOR_NO_BLOCK: there is no room for it. */
uint32_t allocator_take(struct allocator *allocator, uint64_t bytes);
void allocator_give(struct allocator *allocator, uint32_t block);
/* Gives all cached segments back to the device, as torch.cuda.empty_cache() does. */
void allocator_empty_cache(struct allocator *allocator);
struct allocator_figures allocator_figures(const struct allocator *allocator);
