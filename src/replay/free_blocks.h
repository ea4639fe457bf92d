/* Free blocks of memory by size, order of their segments and address. The least that is large
 * enough is found in constant time where sizes differ.
 *
 * Blocks are in one table and known by their index. A bin holds sizes within about 1.6 % (few
 * bytes: one size). Two levels of bitmaps say which bins are not empty. A bin is a treap, mostly of
 * one or two blocks. */
#pragma once

#include "base/base.h"

#define NO_BLOCK UINT32_MAX

enum block_state { BLOCK_FREE, BLOCK_TAKEN, BLOCK_WAITING, BLOCK_UNUSED };

/* 64 bytes: one line of a cache. */
struct block {
    uint64_t address, size;
    uint64_t requested;   /* while it is taken: bytes asked for; while it waits: its id */
    uint64_t since;       /* while it is free: how often its kind of pool had been asked */
    uint32_t prev, next;  /* its neighbours in its segment */
    uint32_t left, right; /* in the treap; of waiting ones: the waiting ones before and after it */
    uint32_t segment;     /* a block of the device's address space */
    uint32_t pool;
    uint8_t state; /* enum block_state */
    bool mapped;   /* else it is only addresses */
    bool expandable;
    uint32_t order; /* of its segment among all: of blocks of one size that of the least is taken */
};

enum {
    BLOCK_UNIT_BITS = 9, /* sizes are multiples of 512 */
    BIN_BITS = 6,        /* bins an octave */
    N_BINS = (64 - BLOCK_UNIT_BITS - BIN_BITS + 1) << BIN_BITS,
    N_BIN_WORDS = N_BINS / 64,
};

struct free_blocks {
    uint64_t summary; /* which words are not 0 */
    uint64_t words[N_BIN_WORDS];
    uint32_t roots[N_BINS];
};

void free_blocks_init(struct free_blocks *set);
void free_blocks_insert(struct free_blocks *set, struct block *blocks, uint32_t b);
void free_blocks_remove(struct free_blocks *set, struct block *blocks, uint32_t b);
/* The first block of at least that size; NO_BLOCK. */
uint32_t free_blocks_find(const struct free_blocks *set, const struct block *blocks, uint64_t size);
uint32_t free_blocks_largest(const struct free_blocks *set, const struct block *blocks);
/* The neighbours of a block in the order; NO_BLOCK. */
uint32_t free_blocks_next(const struct free_blocks *set, const struct block *blocks, uint32_t b);
uint32_t free_blocks_previous(const struct free_blocks *set, const struct block *blocks,
                              uint32_t b);

/* A treap of blocks by address alone. */
void by_address_insert(uint32_t *root, struct block *blocks, uint32_t b);
void by_address_remove(uint32_t *root, struct block *blocks, uint32_t b);
uint32_t by_address_first(uint32_t root, const struct block *blocks); /* NO_BLOCK: there is none */
uint32_t by_address_next(uint32_t root, const struct block *blocks, uint32_t b);
