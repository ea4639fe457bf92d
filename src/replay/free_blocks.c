/* Treaps of blocks: a block's index gives its priority, so that a set is the same however it came
 * about. */
#include "replay/free_blocks.h"

static inline uint32_t blocks_priority(uint32_t b)
{
    return (b + 1) * 0x9e3779b1u;
}

/* A place in the order. Bad records have several blocks at one address, which the index tells
 * apart. */
struct blocks_place {
    uint64_t size, address;
    uint32_t order, index;
};

static inline struct blocks_place place_of(const struct block *blocks, uint32_t b)
{
    const struct block *block = &blocks[b];
    return (struct blocks_place){block->size, block->address, block->order, b};
}

static inline bool is_before(const struct block *blocks, uint32_t b, struct blocks_place place,
                             bool by_size)
{
    const struct block *block = &blocks[b];
    if (by_size && block->size != place.size)
        return block->size < place.size;
    if (by_size && block->order != place.order)
        return block->order < place.order;
    if (block->address != place.address)
        return block->address < place.address;
    return b < place.index;
}

void free_blocks_insert(struct free_blocks *set, struct block *blocks, uint32_t b)
{
    struct block *block = &blocks[b];
    struct blocks_place place = place_of(blocks, b);
    uint32_t *link = &set->root, own = blocks_priority(b);
    while (*link != NO_BLOCK && blocks_priority(*link) >= own) {
        struct block *at = &blocks[*link];
        link = is_before(blocks, *link, place, set->by_size) ? &at->right : &at->left;
    }
    uint32_t rest = *link, *left = &block->left, *right = &block->right;
    *link = b;
    while (rest != NO_BLOCK) {
        struct block *at = &blocks[rest];
        if (is_before(blocks, rest, place, set->by_size)) {
            *left = rest;
            left = &at->right;
            rest = *left;
        } else {
            *right = rest;
            right = &at->left;
            rest = *right;
        }
    }
    *left = *right = NO_BLOCK;
}

void free_blocks_remove(struct free_blocks *set, struct block *blocks, uint32_t b)
{
    struct blocks_place place = place_of(blocks, b);
    uint32_t *link = &set->root;
    while (*link != b) {
        struct block *at = &blocks[*link];
        link = is_before(blocks, *link, place, set->by_size) ? &at->right : &at->left;
    }
    uint32_t left = blocks[b].left, right = blocks[b].right;
    while (left != NO_BLOCK && right != NO_BLOCK)
        if (blocks_priority(left) >= blocks_priority(right)) {
            *link = left;
            link = &blocks[left].right;
            left = *link;
        } else {
            *link = right;
            link = &blocks[right].left;
            right = *link;
        }
    *link = left != NO_BLOCK ? left : right;
}

/* The first that is not before a place, or the last that is. */
static inline uint32_t find_from(const struct free_blocks *set, const struct block *blocks,
                                 struct blocks_place place, bool before)
{
    uint32_t found = NO_BLOCK;
    for (uint32_t at = set->root; at != NO_BLOCK;) {
        bool is_less = is_before(blocks, at, place, set->by_size);
        found = is_less == before ? at : found;
        at = is_less ? blocks[at].right : blocks[at].left;
    }
    return found;
}

uint32_t free_blocks_find(const struct free_blocks *set, const struct block *blocks, uint64_t size)
{
    return find_from(set, blocks, (struct blocks_place){.size = size}, false);
}

uint32_t free_blocks_last(const struct free_blocks *set, const struct block *blocks)
{
    static const struct blocks_place end = {UINT64_MAX, UINT64_MAX, UINT32_MAX, UINT32_MAX};
    return find_from(set, blocks, end, true);
}

uint32_t free_blocks_next(const struct free_blocks *set, const struct block *blocks, uint32_t b)
{
    struct blocks_place place = place_of(blocks, b);
    place.index++;
    return find_from(set, blocks, place, false);
}

uint32_t free_blocks_previous(const struct free_blocks *set, const struct block *blocks, uint32_t b)
{
    return find_from(set, blocks, place_of(blocks, b), true);
}
