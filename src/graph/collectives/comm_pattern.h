/* Which algorithm a collective ran, read from who sent to whom. */
#pragma once

#include "base/base.h"

/* One message from a rank of the collective (from 0) to another. */
struct pattern_message {
    uint32_t from, to, channel;
};

struct pattern {
    const char *name;    /* "ring", "halving-doubling", "tree", "direct", "mixed", or
                             what was known; static */
    uint32_t n_chunks;   /* of a ring: messages in which a step is cut on each connection (NCCL:
                            channel); else messages over the busiest connection */
    uint32_t n_channels; /* NCCL's; else 1 */
};

/* known: the algorithm, if NCCL reports it; NULL: it is read from the messages, some of which may
 * be unseen within a node. ring_steps: how often each rank of a ring passes on a chunk: 2 (n - 1)
 * times in an all-reduce of n ranks, else n - 1. Sorts the messages. */
struct pattern pattern_find(struct pattern_message *messages, size_t n, uint32_t n_ranks,
                            const char *known, uint32_t ring_steps);
