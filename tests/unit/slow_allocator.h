/* The rules of the caching allocator once more, written down one by one over an unordered list of
 * blocks, to compare with. Neither expandable segments nor collection of garbage. */
#pragma once

#include "replay/caching_allocator.h"

struct slow_allocator;

struct slow_allocator *slow_create(const struct allocator_settings *settings, uint64_t capacity);
void slow_destroy(struct slow_allocator *slow);
bool slow_take(struct slow_allocator *slow, uint64_t id, uint64_t bytes); /* false: it fails */
void slow_give(struct slow_allocator *slow, uint64_t id);
void slow_empty_cache(struct slow_allocator *slow);
uint64_t slow_reserved(const struct slow_allocator *slow);
