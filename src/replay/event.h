/* The state of an event-driven replay. */
#pragma once

#include "replay/dispatch.h"
#include "replay/pending.h"

typedef ARRAY(uint64_t) ids_array; /* copy << 32 | op */

/* Ops of a queue that wait for nothing in any copy: see open_roots. */
struct roots {
    uint32_t first, n; /* into root_ops */
    uint32_t left;     /* of those of a copy, how many have not run */
};

struct held_op {
    uint64_t id;
    int64_t ready;
};

struct event {
    struct arena arena;
    const struct dpro_graph *g;
    const struct event_options *options;
    const struct replay_hooks *hooks;
    struct dispatch dispatch;
    struct pending pending;
    struct slot **slots;        /* by copy; NULL: not yet opened, or closed */
    uint32_t n_opened, oldest;  /* copies that were opened; the first that is not closed */
    uint32_t until;             /* the replay stops before an op of this copy or of a later one */
    uint32_t ahead;             /* only ops of copies before it run past the queues */
    uint64_t n_left;            /* ops */
    uint32_t *order;            /* see struct event_options; where the next goes */
    ids_array past, passing;    /* ops that run past the queues next, and those that do now */
    ARRAY(struct held_op) held; /* of pools, of copies that are yet to get their durations */
    int64_t held_ns;            /* when the first of these got ready */
    uint32_t *queue_of;         /* by device; behind these, by rank and server */
    struct roots *roots;        /* by queue */
    uint32_t *root_ops;
    uint32_t running; /* the queue whose key is set after what runs now */
    bool has_roots, has_shares;
    bool is_forked, is_over;
    bool interleaved; /* a device ran an op of a copy after one of a later copy */
};

static inline int64_t event_time_of(const struct replay_copy *times, uint32_t op, bool without_gap)
{
    return time_add(times->gap_ns && !without_gap ? times->gap_ns[op] : 0, times->dur_ns[op]);
}

/* The durations of a copy that is opened. */
static inline void event_get_times(const struct event *e, struct replay_copy *times)
{
    times->dur_ns = e->options->dur_ns;
    times->gap_ns = e->options->gap_ns;
    if (e->hooks)
        e->hooks->open(e->hooks->arg, times->number, &times->dur_ns, &times->gap_ns);
}
