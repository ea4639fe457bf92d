/* Bins and treaps of blocks. */
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

static inline struct blocks_place place_of(const struct block *blocks, uint32_t b, bool by_size)
{
    const struct block *block = &blocks[b];
    return (struct blocks_place){by_size ? block->size : 0, block->address, block->order, b};
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

static inline void treap_insert(uint32_t *root, struct block *blocks, uint32_t b, bool by_size)
{
    struct block *block = &blocks[b];
    struct blocks_place place = place_of(blocks, b, by_size);
    uint32_t *link = root, own = blocks_priority(b);
    while (*link != NO_BLOCK && blocks_priority(*link) >= own) {
        struct block *at = &blocks[*link];
        link = is_before(blocks, *link, place, by_size) ? &at->right : &at->left;
    }
    uint32_t rest = *link, *left = &block->left, *right = &block->right;
    *link = b;
    while (rest != NO_BLOCK) {
        struct block *at = &blocks[rest];
        if (is_before(blocks, rest, place, by_size)) {
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

static inline void treap_remove(uint32_t *root, struct block *blocks, uint32_t b, bool by_size)
{
    struct blocks_place place = place_of(blocks, b, by_size);
    uint32_t *link = root;
    while (*link != b) {
        struct block *at = &blocks[*link];
        link = is_before(blocks, *link, place, by_size) ? &at->right : &at->left;
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

/* The first that is not before a place. */
static inline uint32_t treap_find(uint32_t root, const struct block *blocks,
                                  struct blocks_place place, bool by_size)
{
    uint32_t found = NO_BLOCK;
    while (root != NO_BLOCK)
        if (is_before(blocks, root, place, by_size)) {
            root = blocks[root].right;
        } else {
            found = root;
            root = blocks[root].left;
        }
    return found;
}

/* ---- by size, order and address ---- */

static inline uint32_t bin_of(uint64_t size)
{
    uint64_t units = size >> BLOCK_UNIT_BITS;
    if (units < 1u << BIN_BITS)
        return (uint32_t)units;
    uint32_t octave = 63 - (uint32_t)__builtin_clzll(units);
    return ((octave - BIN_BITS + 1) << BIN_BITS) +
           (uint32_t)(units >> (octave - BIN_BITS) & ((1u << BIN_BITS) - 1));
}

void free_blocks_init(struct free_blocks *set)
{
    set->summary = 0;
    memset(set->words, 0, sizeof set->words);
    memset(set->roots, 0xff, sizeof set->roots);
}

void free_blocks_insert(struct free_blocks *set, struct block *blocks, uint32_t b)
{
    uint32_t bin = bin_of(blocks[b].size);
    treap_insert(&set->roots[bin], blocks, b, true);
    set->words[bin / 64] |= (uint64_t)1 << bin % 64;
    set->summary |= (uint64_t)1 << bin / 64;
}

void free_blocks_remove(struct free_blocks *set, struct block *blocks, uint32_t b)
{
    uint32_t bin = bin_of(blocks[b].size);
    treap_remove(&set->roots[bin], blocks, b, true);
    if (set->roots[bin] != NO_BLOCK)
        return;
    set->words[bin / 64] &= ~((uint64_t)1 << bin % 64);
    if (set->words[bin / 64] == 0)
        set->summary &= ~((uint64_t)1 << bin / 64);
}

/* Those of `bits` above a place. */
static inline uint64_t blocks_above(uint64_t bits, uint32_t place)
{
    return place == 63 ? 0 : bits & ~(uint64_t)0 << (place + 1);
}

static inline uint32_t find_from(const struct free_blocks *set, const struct block *blocks,
                                 struct blocks_place place)
{
    uint32_t bin = bin_of(place.size), word = bin / 64;
    uint32_t found = treap_find(set->roots[bin], blocks, place, true);
    if (found != NO_BLOCK)
        return found;
    uint64_t bits = blocks_above(set->words[word], bin % 64);
    if (bits == 0) {
        uint64_t words = blocks_above(set->summary, word);
        if (words == 0)
            return NO_BLOCK;
        word = (uint32_t)__builtin_ctzll(words);
        bits = set->words[word];
    }
    found = set->roots[word * 64 + (uint32_t)__builtin_ctzll(bits)];
    while (blocks[found].left != NO_BLOCK)
        found = blocks[found].left;
    return found;
}

uint32_t free_blocks_find(const struct free_blocks *set, const struct block *blocks, uint64_t size)
{
    return find_from(set, blocks, (struct blocks_place){.size = size});
}

static uint32_t last_of(uint32_t root, const struct block *blocks)
{
    while (root != NO_BLOCK && blocks[root].right != NO_BLOCK)
        root = blocks[root].right;
    return root;
}

/* The largest of the bins below one. */
static uint32_t last_below(const struct free_blocks *set, const struct block *blocks, uint32_t bin)
{
    uint32_t word = bin / 64;
    uint64_t bits = word < N_BIN_WORDS ? set->words[word] & (((uint64_t)1 << bin % 64) - 1) : 0;
    if (bits == 0) {
        uint64_t words = set->summary & (((uint64_t)1 << word) - 1);
        if (words == 0)
            return NO_BLOCK;
        word = 63 - (uint32_t)__builtin_clzll(words);
        bits = set->words[word];
    }
    return last_of(set->roots[word * 64 + 63 - (uint32_t)__builtin_clzll(bits)], blocks);
}

uint32_t free_blocks_next(const struct free_blocks *set, const struct block *blocks, uint32_t b)
{
    struct blocks_place place = place_of(blocks, b, true);
    place.index++;
    return find_from(set, blocks, place);
}

uint32_t free_blocks_previous(const struct free_blocks *set, const struct block *blocks, uint32_t b)
{
    struct blocks_place place = place_of(blocks, b, true);
    uint32_t bin = bin_of(place.size), at = set->roots[bin], found = NO_BLOCK;
    while (at != NO_BLOCK)
        if (is_before(blocks, at, place, true)) {
            found = at;
            at = blocks[at].right;
        } else {
            at = blocks[at].left;
        }
    return found != NO_BLOCK ? found : last_below(set, blocks, bin);
}

uint32_t free_blocks_largest(const struct free_blocks *set, const struct block *blocks)
{
    return last_below(set, blocks, N_BINS);
}

/* ---- by address ---- */

void by_address_insert(uint32_t *root, struct block *blocks, uint32_t b)
{
    treap_insert(root, blocks, b, false);
}

void by_address_remove(uint32_t *root, struct block *blocks, uint32_t b)
{
    treap_remove(root, blocks, b, false);
}

uint32_t by_address_first(uint32_t root, const struct block *blocks)
{
    return treap_find(root, blocks, (struct blocks_place){0}, false);
}

uint32_t by_address_next(uint32_t root, const struct block *blocks, uint32_t b)
{
    struct blocks_place place = place_of(blocks, b, false);
    place.index++;
    return treap_find(root, blocks, place, false);
}
