/* What the ops of an open copy wait for, in the event-driven engine. One 8-byte cell an op serves
 * as the latest end of predecessors seen so far and, once the op has run, as its end. */
#pragma once

#include "replay/replay.h"

/* Of an op: how many predecessors it waits for, and these flags. Two bytes: in four, replays take a
 * tenth longer. */
#define QUEUED 0x8000 /* it waits in its device's queue; others run past it */
#define SPARES 0x4000 /* it leaves its latest predecessors out, or has more than COUNT */
#define COUNT  (SPARES - 1)

/* An op with SPARES; in a slot, those of its predecessors' ends that are known. */
struct spared {
    uint32_t op, first_end; /* into the slot's spared_ends */
    uint32_t n[2];          /* predecessors in copy 0, and in the others */
};

struct pending {
    const struct dpro_graph *g;
    uint16_t *first, *later; /* of copy 0; of the others, with the edges from the copy before */
    struct spared *spared;   /* by op */
    uint32_t n_spared, n_spared_ends;
};

struct spared_state {
    uint32_t n_known;
    bool has_run;
};

struct slot { /* an open copy */
    struct arena arena;
    struct replay_copy times;
    uint16_t *pending;
    struct spared_state *spared; /* as in struct pending */
    int64_t *spared_ends;
    uint32_t n_left;
};

void pending_init(struct pending *pending, const struct dpro_graph *graph, uint32_t n_copies,
                  struct arena *arena);
/* The copy needs no other one's counts afterwards: it may use them up. */
void pending_open(const struct pending *pending, bool last, struct slot *slot);
/* A predecessor of one that leaves some out ended: as pending_arrival. */
bool pending_spared(const struct pending *pending, struct slot *slot, uint32_t op, int64_t end,
                    int64_t *ready);
/* An entry of a queue that is of no use any more. */
bool pending_is_stale(const struct pending *pending, struct slot *slot, uint32_t op);

/* A predecessor ended: whether the op is to be queued, for *ready. */
static inline bool pending_arrival(const struct pending *p, struct slot *slot, uint32_t op,
                                   int64_t end, int64_t *ready)
{
    uint16_t left = --slot->pending[op];
    if (__builtin_expect(left & SPARES, 0))
        return pending_spared(p, slot, op, end, ready);
    int64_t *latest = &slot->times.end_ns[op];
    *latest = *ready = MAX(*latest, end);
    return (left & COUNT) == 0;
}
