/* replay/share.h: one direction of a link whose connections share it evenly, as TCP's do: of n that
 * have something to send each gets an n-th of it. A connection sends one thing after the other. The
 * engine says when something is to be sent, and asks when something happens next.
 *
 * The simulator of the coarse model shares links by other means (cost/simulate.c): its flows cross
 * two resources each, slow down computation and are slowed by it, and a change of a rate is that of
 * a clock, in doubles. Here a link is all there is, and times are whole, so that a replay is the
 * same to the nanosecond on any machine. A piece for both would have n as the only common idea. */
#ifndef REPLAY_SHARE_H
#define REPLAY_SHARE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/array.h"

struct share_item {
    uint64_t id;             /* the engine's */
    int64_t gap_ns, work_ns; /* before it begins; it takes so long when it has the link to itself */
};

struct share_stream {
    ARRAY(struct share_item) items; /* from `first` on: the current one, and those that wait */
    size_t first;
    bool sends;        /* the current one has begun; else it is in its gap */
    int64_t begin_ns;  /* when it did or will */
    int64_t left_ns;   /* of its work */
    uint64_t previous; /* the last that ended */
};

struct share {
    struct share_stream *streams;
    uint32_t n_streams, n_sending;
    int64_t now_ns, next_ns; /* next_ns: when something happens; INT64_MAX: nothing is to be sent */
    int64_t rest_ns;         /* passed, and not shared out yet */
};

/* What was sent. */
struct share_sent {
    uint64_t id, previous; /* of the same stream; UINT64_MAX: it was the first */
    int64_t begin_ns, end_ns;
};

struct share *share_create(uint32_t n_streams); /* NULL: no memory */
void share_destroy(struct share *share);        /* NULL is fine */
/* From now on it is to be sent. Time never goes back. -1: no memory. */
int share_add(struct share *share, uint32_t stream, const struct share_item *item, int64_t now_ns);
/* Goes on to next_ns. Returns whether something was sent then. */
bool share_step(struct share *share, struct share_sent *sent);

#endif
