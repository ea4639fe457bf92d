/* A hash map from numbers to numbers.
 *
 * Linear probing, at most half full. */
#include "base/base.h"

/* A slot's key 0 is none, so that 0 has another one. */
static uint64_t own_key(uint64_t key)
{
    return key ? key : UINT64_C(0xf1e2d3c4b5a69788);
}

static struct map_slot *map_find(const struct map *map, uint64_t key)
{
    size_t mask = map->n_slots - 1, slot = map_mix(key) & mask;
    while (map->slots[slot].key && map->slots[slot].key != key)
        slot = (slot + 1) & mask;
    return &map->slots[slot];
}

static void map_grow(struct map *map)
{
    size_t n_slots = map->n_slots ? map->n_slots * 2 : 16;
    struct map bigger = {mem_array(n_slots, sizeof *bigger.slots), map->n, n_slots};
    for (size_t i = 0; i < map->n_slots; i++)
        if (map->slots[i].key)
            *map_find(&bigger, map->slots[i].key) = map->slots[i];
    mem_free(map->slots);
    *map = bigger;
}

/* A key's slot, or a free one for it. */
static struct map_slot *map_place(struct map *map, uint64_t key)
{
    if (map->n_slots / 2 <= map->n)
        map_grow(map);
    return map_find(map, key);
}

void map_set(struct map *map, uint64_t key, uint64_t value)
{
    struct map_slot *slot = map_place(map, own_key(key));
    map->n += !slot->key;
    *slot = (struct map_slot){own_key(key), value};
}

bool map_get(const struct map *map, uint64_t key, uint64_t *value)
{
    if (map->n_slots == 0)
        return false;
    const struct map_slot *slot = map_find(map, own_key(key));
    if (!slot->key)
        return false;
    if (value)
        *value = slot->value;
    return true;
}

static uint64_t *first_value(struct map *map, uint64_t key, uint64_t value)
{
    struct map_slot *slot = map_place(map, own_key(key));
    if (!slot->key) {
        *slot = (struct map_slot){own_key(key), value};
        map->n++;
    }
    return &slot->value;
}

uint64_t map_first(struct map *map, uint64_t key, uint64_t value)
{
    return *first_value(map, key, value);
}

bool map_insert(struct map *map, uint64_t key, uint64_t value)
{
    size_t n = map->n;
    first_value(map, key, value);
    return map->n > n;
}

uint64_t map_add(struct map *map, uint64_t key, uint64_t more)
{
    return *first_value(map, key, 0) += more;
}

int64_t map_number(struct map *map, uint64_t key)
{
    return (int64_t)*first_value(map, key, map->n);
}

void map_fini(struct map *map)
{
    mem_free(map->slots);
    *map = (struct map){0};
}
