/* Which op runs next, for the event-driven engine.
 *
 * Of all waiting ops the one with the smallest (max(ready, clock), ready, id) runs next. Within a
 * device that is the smallest (ready, id). So each device has its first op, as most queues hold
 * only one, and a heap of the others. A
 * tournament tree over the devices has the one whose first op comes next. Keys never decrease, as
 * an op gets ready at its predecessor's end or later. Inline, as this is what a replay does most.
 */
#pragma once

#include "base/base.h"

/* ---- link_share.c: a link's connections ---- */

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
    uint32_t n_streams, n_sending;
    int64_t now_ns, next_ns; /* next_ns: when something happens; INT64_MAX: nothing is to be sent */
    int64_t rest_ns;         /* passed, and not shared out yet */
    struct share_stream streams[];
};

struct share_sent {
    uint64_t id, previous; /* of the same stream; UINT64_MAX: it was the first */
    int64_t begin_ns, end_ns;
};

struct share *share_create(uint32_t n_streams);
void share_destroy(struct share *share); /* NULL is fine */
/* The op is to be sent from now on. Calls come in order of time. */
void share_add(struct share *share, uint32_t stream, const struct share_item *item, int64_t now_ns);
/* Goes on to next_ns. Returns whether something was sent then. */
bool share_step(struct share *share, struct share_sent *sent);

/* ---- queues ---- */

#define NO_ENTRY UINT64_MAX /* id of an empty queue's head */

/* An op that waits, with what it needs when its turn comes: the caches have its own values when it
 * gets ready, and hardly ever then. */
struct entry {
    int64_t ready;
    uint64_t id;              /* copy << 32 | op */
    int64_t took_ns;          /* with its gap, but for a pool's */
    uint32_t first_succ, end; /* its successors: rows of the graph */
};

/* Threads that run the ops of a queue. */
struct pool {
    uint32_t n, free; /* which one is free first */
    struct {
        int64_t clock;
        uint32_t last_op;
    } threads[];
};

struct queue { /* two cache lines; most turns need the first only */
    int64_t clock;
    struct entry head;
    struct entry *rest; /* the others: binary heap */
    uint32_t n_rest, room;
    bool serial; /* runs one op at a time, or so many as its pool has threads; not so ops without a
                    device, and communication threads */
    bool is_special; /* it has a pool, or is a link's */
    uint32_t last_op;
    struct pool *pool; /* the queue's clock and last op are those of its free thread; NULL: none */
    struct share *share; /* of a link that connections share; NULL: it is no such link's */
};
_Static_assert(offsetof(struct queue, pool) == 64, "");

/* A node of the tournament tree: who won, and its max(ready, clock), so that a match reads two
 * neighbours and the queues only on a tie. */
struct match {
    int64_t when;
    uint32_t queue;
};

struct dispatch {
    uint32_t n_leaves;
    struct queue *queues;  /* [n_leaves] */
    struct match *matches; /* [1] is the final, [n_leaves + q] q's leaf */
};

static inline size_t pool_size(uint32_t n_threads)
{
    return sizeof(struct pool) + n_threads * sizeof((struct pool *)NULL)->threads[0];
}

/* Each on cache lines of its own. */
static inline struct queue *queue_array(struct arena *arena, uint32_t n)
{
    uintptr_t at = (uintptr_t)arena_array(arena, n + (size_t)1, sizeof(struct queue));
    return (struct queue *)((at + 63) & ~(uintptr_t)63);
}

/* ---- a device's queue ---- */

static inline bool entry_less(const struct entry *a, const struct entry *b)
{
    return a->ready < b->ready || (a->ready == b->ready && a->id < b->id);
}

static inline void heap_push(struct queue *q, struct entry entry)
{
    if (q->n_rest == q->room) {
        size_t cap = q->room;
        array_grow((void **)&q->rest, &cap, q->n_rest, 1, sizeof entry);
        q->room = (uint32_t)cap;
    }
    uint32_t i = q->n_rest++;
    struct entry *at = q->rest;
    for (; i > 0 && entry_less(&entry, &at[(i - 1) / 2]); i = (i - 1) / 2)
        at[i] = at[(i - 1) / 2];
    at[i] = entry;
}

static inline struct entry heap_pop(struct queue *q)
{
    struct entry *at = q->rest, top = at[0], last = at[--q->n_rest];
    uint32_t n = q->n_rest, i = 0;
    for (uint32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && entry_less(&at[child + 1], &at[child]))
            child++;
        if (!entry_less(&at[child], &last))
            break;
        at[i] = at[child];
    }
    if (n)
        at[i] = last;
    return top;
}

/* Returns whether the head changed. */
static inline bool queue_push(struct queue *q, struct entry entry)
{
    struct entry old = q->head;
    if (old.id == NO_ENTRY) {
        q->head = entry;
        return true;
    }
    if (entry_less(&entry, &old)) {
        q->head = entry;
        heap_push(q, old);
        return true;
    }
    heap_push(q, entry);
    return false;
}

static inline void queue_pop(struct queue *q)
{
    q->head = q->n_rest > 0 ? heap_pop(q) : (struct entry){.ready = INT64_MAX, .id = NO_ENTRY};
}

/* A pool's free thread has got an op to run: which one is free next. */
static inline void take_thread(struct queue *queue, uint32_t op, int64_t end)
{
    struct pool *pool = queue->pool;
    uint32_t next = 0;
    pool->threads[pool->free].clock = end;
    pool->threads[pool->free].last_op = op;
    for (uint32_t i = 1; i < pool->n; i++)
        if (pool->threads[i].clock < pool->threads[next].clock)
            next = i;
    pool->free = next;
    queue->clock = pool->threads[next].clock;
    queue->last_op = pool->threads[next].last_op;
}

/* ---- the tournament ---- */

static inline void set_leaf(struct dispatch *d, uint32_t q)
{
    const struct queue *queue = &d->queues[q];
    int64_t when = queue->head.ready > queue->clock ? queue->head.ready : queue->clock;
    if (__builtin_expect(queue->is_special, 0) && queue->share && queue->share->next_ns < when)
        when = queue->share->next_ns;
    d->matches[d->n_leaves + q].when = when;
}

/* Of links that have nothing waiting, the first comes first. */
static inline bool match_less(const struct dispatch *d, struct match a, struct match b)
{
    if (__builtin_expect(a.when == b.when, 0)) {
        const struct entry *head = &d->queues[a.queue].head, *other = &d->queues[b.queue].head;
        return head->id == other->id ? a.queue < b.queue : entry_less(head, other);
    }
    return a.when < b.when;
}

/* The overall winner comes later now. */
static inline void replay_matches(struct dispatch *d, uint32_t q)
{
    set_leaf(d, q);
    struct match winner = d->matches[d->n_leaves + q];
    for (uint32_t node = d->n_leaves + q; node > 1; node /= 2) {
        struct match other = d->matches[node ^ 1];
        winner = match_less(d, other, winner) ? other : winner;
        d->matches[node / 2] = winner;
    }
}

/* A queue comes earlier now: nothing above the first match it loses changes. */
static inline void climb_queue(struct dispatch *d, uint32_t q)
{
    set_leaf(d, q);
    struct match own = d->matches[d->n_leaves + q];
    for (uint32_t node = d->n_leaves + q; node > 1; node /= 2) {
        if (match_less(d, d->matches[node ^ 1], own))
            break;
        d->matches[node / 2] = own;
    }
}

static inline void play_all(struct dispatch *d)
{
    for (uint32_t q = 0; q < d->n_leaves; q++)
        set_leaf(d, q);
    for (uint32_t node = d->n_leaves - 1; node > 0; node--)
        d->matches[node] = match_less(d, d->matches[2 * node + 1], d->matches[2 * node])
                               ? d->matches[2 * node + 1]
                               : d->matches[2 * node];
}
