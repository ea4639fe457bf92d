/* Which block has which id, for blocks that come and go; base/map.h can't erase keys. */
#pragma once

#include "base/base.h"

struct block_ids {
    struct block_id {
        uint64_t id;
        uint32_t block;
        bool used;
    } * slots;
    size_t n, mask; /* a power of two of slots, less one; 0: none yet */
};

/* Twice as many slots. */
void block_ids_grow(struct block_ids *ids);
/* Closes the gap that a slot leaves behind. */
void block_ids_erase(struct block_ids *ids, struct block_id *slot);
void block_ids_fini(struct block_ids *ids);

/* The slot of an id, or the free one where it belongs. A table has room for one more id. */
static inline struct block_id *block_ids_slot(struct block_ids *ids, uint64_t id)
{
    if (ids->n * 2 >= ids->mask)
        block_ids_grow(ids);
    size_t at = map_mix(id) & ids->mask;
    while (ids->slots[at].used && ids->slots[at].id != id)
        at = (at + 1) & ids->mask;
    return &ids->slots[at];
}
