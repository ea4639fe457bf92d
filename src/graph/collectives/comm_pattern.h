/* graph/collectives/comm_pattern.h: which algorithm a collective ran, read from who sent to whom.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* One message from a rank of the collective (from 0) to another. */
struct pattern_message {
    uint32_t from, to, channel;
};

struct pattern {
    const char *name;    /* "ring", "halving-doubling", "tree", "direct", "mixed", or
                             what was known; static */
    uint32_t n_chunks;   /* that what goes over a connection (NCCL: one channel of it) at once is
                            cut in: of a ring in each of its steps, else all messages of the busiest
                            one */
    uint32_t n_channels; /* NCCL's; else 1 */
};

/* known: the algorithm if it needs no reading, as what ranks of a node send each other may be
 * unseen; NULL: it is to be read. ring_steps: how often each rank of a ring passes on a chunk, 2 (n
 * - 1) times in an all-reduce of n, else n - 1. Sorts the messages. */
struct pattern pattern_find(struct pattern_message *messages, size_t n, uint32_t n_ranks,
                            const char *known, uint32_t ring_steps);
