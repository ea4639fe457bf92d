/* replay/replay.h: the parts of a replay, inside the library.
 *
 * The iterations of a job are replayed as copies 0, 1, ... of the graph, joined by its next-edges,
 * with device clocks that carry on. An engine asks for the durations of a copy when the copy is
 * first touched and hands over the end times when its last op has run; copies open and close nearly
 * in order, and few are open at once, so a thousand copies need no more memory than three. */
#ifndef REPLAY_REPLAY_H
#define REPLAY_REPLAY_H

#include <dpro/replay.h>

#include "base/error.h"
#include "graph/graph.h"

/* Times are never negative; what would overflow stays at the largest. */
static inline int64_t time_add(int64_t a, int64_t b)
{
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

/* A replayed copy; arrays by op id. start = end - dur. */
struct replay_copy {
    uint32_t number;
    int64_t *end_ns;
    uint32_t *device_prev;         /* the op its device ran before; NULL unless asked for */
    const int64_t *dur_ns, *gap_ns; /* as given when it was opened; gap_ns may be NULL */
};

struct replay_hooks {
    void *arg;
    /* Lends a copy's durations until the copy is closed; *gap_ns may be left NULL: all zero. */
    int (*open)(void *arg, uint32_t copy, const int64_t **dur_ns, const int64_t **gap_ns,
                struct dpro_error *err);
    /* Whoever wants to keep end_ns or device_prev sets the field NULL and later frees the array. */
    int (*close)(void *arg, struct replay_copy *copy, struct dpro_error *err);
};

/* ---- event.c ---- */

struct event_options {
    uint32_t n_copies;
    const int64_t *release_ns; /* by rank index: when ops without predecessors are ready in copy 0;
                                  NULL: 0 */
    bool want_device_prev;
    /* The order of dispatch: room for n_ops ids of copy `order_copy`, or for n_copies * n_ops nodes
     * (copy * n_ops + op) when order_copy is UINT32_MAX. NULL: not wanted. */
    uint32_t *order;
    uint32_t order_copy;
};

/* *laps (may be NULL): whether a device ran an op of a copy after one of a later copy. */
int event_replay(const struct dpro_graph *graph, const struct event_options *options,
                 const struct replay_hooks *hooks, bool *laps, struct dpro_error *err);

#endif
