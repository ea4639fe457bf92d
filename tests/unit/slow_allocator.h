/* The rules of the caching allocator once more, written down one by one over an unordered list of
 * blocks, to compare with. Neither expandable segments nor collection of garbage. */
#pragma once

#include "replay/caching_allocator.h"

struct slow_allocator;

struct slow_allocator *slow_create(const struct allocator_settings *settings, uint64_t capacity);
void slow_destroy(struct slow_allocator *slow);
/* Of a taking: number of the segment, counted as they were taken, and offset; -1: it failed. */
int64_t slow_request(struct slow_allocator *slow, const struct allocator_request *request,
                     uint64_t *offset);
uint64_t slow_reserved(const struct slow_allocator *slow);
