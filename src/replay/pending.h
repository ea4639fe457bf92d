/* replay/pending.h: how many predecessors each op of a copy still waits for, for the event-driven
 * engine. One 8-byte cell an op serves as the latest end of predecessors seen so far and, once the
 * op has run, as its end; counts of missing predecessors take a byte, the few ops with 255 or more
 * have a side table. */
#ifndef REPLAY_PENDING_H
#define REPLAY_PENDING_H

#include "base/arena.h"
#include "replay/replay.h"

#define WIDE 255 /* in a count byte: see the side table */

/* How many predecessors each op of a copy has. */
struct counts {
    uint8_t *small;
    uint32_t *wide_op, *wide; /* ops with WIDE or more, by id, and their counts */
    uint32_t n_wide;
};

/* An op that leaves its latest predecessors out; in a slot, those of its ends that are known. */
struct spared {
    uint32_t op;
    uint32_t first, n; /* into the slot's spared_ends */
};

struct pending {
    const struct dpro_graph *g;
    struct counts first, later; /* of copy 0; of the others, with the edges from the copy before */
    struct spared *spared;      /* by op */
    uint32_t n_spared, n_spared_ends;
};

struct slot { /* an open copy */
    struct arena arena;
    struct replay_copy times;
    uint8_t *pending;
    uint32_t *wide;
    struct spared_state *spared; /* as in struct pending */
    int64_t *spared_ends;
    uint32_t n_left;
};

/* -1: out of memory. */
int pending_init(struct pending *pending, const struct dpro_graph *graph, uint32_t n_copies,
                 struct arena *arena);
/* What a copy's ops wait for; `last`: no copy after it asks for that. -1: out of memory. */
int pending_open(const struct pending *pending, bool last, struct slot *slot);

/* ---- ops that leave their latest predecessors out ----
 *
 * Such an op gets ready when all but `spare` of its predecessors have ended. Ends become known as
 * predecessors are started, and one that starts later may end earlier: the op queues for the moment
 * that is known so far, and once more for every earlier one that comes up before. When the queue
 * gets to that moment nothing earlier can come up any more; the entries that are left are stale. */

/* A predecessor of such an op ended: whether the op is to be queued, for *ready. */
bool pending_spared(const struct pending *pending, struct slot *slot, uint32_t op, int64_t end,
                    int64_t *ready);
/* Whether an entry is one that was left over; if not, its op runs now. */
bool pending_is_stale(const struct pending *pending, struct slot *slot, uint32_t op);

/* ---- other ops ---- */

/* The slow half of pending_arrival. */
bool pending_wide(const struct pending *pending, struct slot *slot, uint32_t op);

/* A predecessor ended: whether the op is to be queued, for *ready. */
static inline bool pending_arrival(const struct pending *p, struct slot *slot, uint32_t op,
                                   int64_t end, int64_t *ready)
{
    if (__builtin_expect(p->n_spared && p->g->spare[op], 0))
        return pending_spared(p, slot, op, end, ready);
    *ready = slot->times.end_ns[op];
    if (end > *ready)
        slot->times.end_ns[op] = *ready = end;
    uint8_t pending = slot->pending[op];
    if (__builtin_expect(pending == WIDE, 0))
        return pending_wide(p, slot, op);
    slot->pending[op] = --pending;
    return pending == 0;
}

#endif
