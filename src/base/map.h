/* Hash map from a 64-bit key to a 64-bit value. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct map_slot {
    uint64_t key, value;
};

struct map {
    struct map_slot *slots;
    size_t n, n_slots;
};

/* A zeroed struct map is an empty one. */
void map_set(struct map *map, uint64_t key, uint64_t value);
bool map_get(const struct map *map, uint64_t key, uint64_t *value); /* value may be NULL */
/* The value that the key has, else `otherwise`. */
static inline uint64_t map_or(const struct map *map, uint64_t key, uint64_t otherwise)
{
    map_get(map, key, &otherwise);
    return otherwise;
}
/* The value that the key has; a new key gets this one. */
uint64_t map_first(struct map *map, uint64_t key, uint64_t value);
bool map_insert(struct map *map, uint64_t key, uint64_t value); /* whether the key was new */
uint64_t map_add(struct map *map, uint64_t key, uint64_t more); /* a new key has 0; the sum */
/* The number of a key, from 0 in the order in which the keys came; a new key gets the number
 * map->n. For maps that nothing else sets. */
int64_t map_number(struct map *map, uint64_t key);
void map_fini(struct map *map);

static inline uint64_t map_mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    x ^= x >> 32;
    return x;
}

/* The key of an id that may be any number, 0 too. */
static inline uint64_t map_key(uint64_t id)
{
    return map_mix(id + 1) | 1;
}

static inline uint64_t map_text_key(const char *text)
{
    uint64_t hash = 0x9e3779b97f4a7c15u;
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return map_mix(hash) | 1;
}
