/* A hash table with open addressing. Erased keys leave no mark. */
#include "replay/block_ids.h"

void block_ids_grow(struct block_ids *ids)
{
    struct block_ids old = *ids;
    ids->mask = ids->mask ? ids->mask * 2 + 1 : 255;
    ids->slots = mem_array(ids->mask + 1, sizeof *ids->slots);
    for (size_t i = 0; old.slots && i <= old.mask; i++)
        if (old.slots[i].used) {
            size_t at = map_mix(old.slots[i].id) & ids->mask;
            while (ids->slots[at].used)
                at = (at + 1) & ids->mask;
            ids->slots[at] = old.slots[i];
        }
    mem_free(old.slots);
}

void block_ids_erase(struct block_ids *ids, struct block_id *slot)
{
    size_t gap = (size_t)(slot - ids->slots);
    for (size_t at = (gap + 1) & ids->mask; ids->slots[at].used; at = (at + 1) & ids->mask) {
        size_t home = map_mix(ids->slots[at].id) & ids->mask;
        if (((at - home) & ids->mask) < ((at - gap) & ids->mask))
            continue; /* the gap lies before its home */
        ids->slots[gap] = ids->slots[at];
        gap = at;
    }
    ids->slots[gap].used = false;
    ids->n--;
}

void block_ids_fini(struct block_ids *ids)
{
    mem_free(ids->slots);
    *ids = (struct block_ids){0};
}
