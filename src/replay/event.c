/* replay/event.c: the event-driven engine (paper, section 3.3: Kahn's algorithm with a queue and a
 * clock per device).
 *
 * Of all waiting ops the one with the smallest (max(ready, clock), ready, node) runs next. Within a
 * device that is the smallest (ready, node), so each device keeps its waiting ops in a heap on
 * (ready, node), with the first one outside it as most queues hold only one; over the devices a
 * tournament tree keeps the device whose first op comes next. The threads of an executor's pool
 * share a queue, whose clock is that of the thread that is free first; their ops' gaps pass while
 * they wait. So do the connections of a link, where what gets ready is handed on to share.c: such
 * an op runs, as far as others are concerned, when it is over. Ops without a device wait in a queue
 * of their own whose clock stays 0. Keys never decrease, as an op gets ready at its predecessor's
 * end or later.
 *
 * One 8-byte cell an op serves as the latest end of predecessors seen so far and, once the op has
 * run, as its end; counts of missing predecessors take a byte, the few ops with 255 or more have a
 * side table. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/array.h"
#include "base/sort.h"
#include "replay/replay.h"
#include "replay/share.h"

#define WIDE     255        /* in a count byte: see the side table */
#define NO_ENTRY UINT64_MAX /* id of an empty queue's head */

struct entry {
    int64_t ready;
    uint64_t id; /* copy << 32 | op: orders as the node number does */
};

/* One of the threads of a pool. */
struct slot_clock {
    int64_t clock;
    uint32_t last_op;
};

/* A node of the tournament tree: who won, and its max(ready, clock), so that a match reads two
 * neighbours and the queues only on a tie. */
struct match {
    int64_t when;
    uint32_t queue;
};

struct queue {
    int64_t clock;
    struct entry head;
    ARRAY(struct entry) rest; /* binary heap */
    uint32_t last_op, last_copy;
    struct slot_clock *threads; /* of a pool: the queue's clock and last op are those of the one
                                   that is free first; NULL: it is no pool's */
    uint32_t n_threads, free_thread;
    struct share *share; /* of a link that connections share; NULL: it is no such link's */
    uint32_t first_root, n_roots, roots_left; /* see open_roots */
    bool serial; /* runs one op at a time, or so many as its pool has threads; not so ops without a
                    device, and communication threads */
};

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

struct spared_state {
    uint32_t n_known;
    bool has_run;
};

struct slot { /* an open copy */
    struct replay_copy times;
    uint8_t *pending;
    uint32_t *wide;
    struct spared_state *spared; /* as in struct event */
    int64_t *spared_ends;
    uint32_t n_left;
};

struct event {
    struct arena arena;
    const struct dpro_graph *g;
    const struct event_options *options;
    const struct replay_hooks *hooks;
    struct dpro_error *err;
    uint32_t n_queues;
    struct queue *queues;
    struct match *matches; /* tournament tree: matches[1] is the final, [n_leaves + q] q's leaf */
    uint32_t n_leaves;
    struct counts first, later; /* of copy 0; of the others, with the edges from the copy before */
    struct slot **slots;        /* by copy; NULL: not yet opened, or closed */
    uint32_t *roots;            /* ops that wait for nothing in any copy, by queue */
    bool has_roots, has_pools, has_shares;
    struct spared *spared; /* by op */
    uint32_t n_spared, n_spared_ends;
};

static inline bool entry_less(const struct entry *a, const struct entry *b)
{
    return a->ready < b->ready || (a->ready == b->ready && a->id < b->id);
}

/* ---- a device's queue ---- */

static int heap_push(struct queue *q, struct entry entry)
{
    if (array_reserve(&q->rest, 1) < 0)
        return -1;
    size_t i = q->rest.n++;
    struct entry *at = q->rest.at;
    while (i > 0 && entry_less(&entry, &at[(i - 1) / 2])) {
        at[i] = at[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    at[i] = entry;
    return 0;
}

static struct entry heap_pop(struct queue *q)
{
    struct entry *at = q->rest.at, top = at[0], last = at[--q->rest.n];
    size_t n = q->rest.n, i = 0;
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
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

/* 1: the head changed; 0: it did not; -1: out of memory. */
static inline int queue_push(struct queue *q, struct entry entry)
{
    if (q->head.id == NO_ENTRY) {
        q->head = entry;
        return 1;
    }
    if (entry_less(&entry, &q->head)) {
        struct entry old = q->head;
        q->head = entry;
        return heap_push(q, old) < 0 ? -1 : 1;
    }
    return heap_push(q, entry);
}

static inline void queue_pop(struct queue *q)
{
    if (q->rest.n)
        q->head = heap_pop(q);
    else
        q->head = (struct entry){INT64_MAX, NO_ENTRY};
}

/* ---- the tournament ---- */

static inline void set_leaf(struct event *e, uint32_t q)
{
    const struct queue *queue = &e->queues[q];
    int64_t when = queue->head.ready > queue->clock ? queue->head.ready : queue->clock;
    if (__builtin_expect(queue->share != NULL, 0) && queue->share->next_ns < when)
        when = queue->share->next_ns;
    e->matches[e->n_leaves + q].when = when;
}

static inline struct match play(const struct event *e, uint32_t node)
{
    struct match a = e->matches[2 * node], b = e->matches[2 * node + 1];
    bool second = b.when < a.when;
    if (__builtin_expect(b.when == a.when, 0))
        second = entry_less(&e->queues[b.queue].head, &e->queues[a.queue].head);
    return second ? b : a;
}

/* The overall winner comes later now. */
static inline void replay_matches(struct event *e, uint32_t q)
{
    for (uint32_t node = (e->n_leaves + q) / 2; node; node /= 2)
        e->matches[node] = play(e, node);
}

/* A queue comes earlier now: nothing above the first match it loses changes. */
static inline void climb(struct event *e, uint32_t q)
{
    for (uint32_t node = (e->n_leaves + q) / 2; node; node /= 2) {
        e->matches[node] = play(e, node);
        if (e->matches[node].queue != q)
            break;
    }
}

static void play_all(struct event *e)
{
    for (uint32_t q = 0; q < e->n_queues; q++)
        set_leaf(e, q);
    for (uint32_t node = e->n_leaves - 1; node > 0; node--)
        e->matches[node] = play(e, node);
}

/* The threads of a pool share the queue of the first, and so do the connections of a link. */
static inline uint32_t queue_of(const struct event *e, uint32_t op)
{
    uint32_t device = e->g->device[op];
    if (device == DPRO_NO_DEVICE)
        return e->n_queues - 1;
    if (__builtin_expect(e->has_pools, 0) && e->g->devices[device].n_slots > 0)
        return e->g->devices[device].pool;
    if (__builtin_expect(e->has_shares, 0) && e->g->devices[device].n_sharing > 0)
        return e->g->devices[device].shared;
    return device;
}

/* When an op that is ready may start, if its device is free. One of a pool's has its gap while
 * others run, waiting for a thread included. */
static inline int64_t startable(const struct event *e, const struct slot *slot, uint32_t q,
                                uint32_t op, int64_t ready)
{
    if (__builtin_expect(e->queues[q].threads != NULL, 0) && slot->times.gap_ns)
        return time_add(ready, slot->times.gap_ns[op]);
    return ready;
}

/* A pool's free thread has got an op to run: which one is free next. */
static void take_thread(struct queue *queue, uint32_t op, int64_t end)
{
    uint32_t next = 0;
    queue->threads[queue->free_thread] = (struct slot_clock){end, op};
    for (uint32_t i = 1; i < queue->n_threads; i++)
        if (queue->threads[i].clock < queue->threads[next].clock)
            next = i;
    queue->free_thread = next;
    queue->clock = queue->threads[next].clock;
    queue->last_op = queue->threads[next].last_op;
}

/* ---- counts of predecessors ---- */

static void add_counts(uint8_t *small, const uint32_t *succ, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (small[succ[i]] != WIDE)
            small[succ[i]]++;
}

static void add_wide(struct counts *counts, const uint32_t *succ, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (counts->small[succ[i]] == WIDE) {
            uint32_t *at =
                bsearch(&succ[i], counts->wide_op, counts->n_wide, sizeof succ[i], compare_u32);
            counts->wide[at - counts->wide_op]++;
        }
}

static int count_predecessors(struct event *e, bool next, struct counts *counts)
{
    const struct dpro_graph *g = e->g;
    uint32_t n = g->n_ops, n_same = g->row[n], n_next = next ? g->next_row[n] : 0;
    counts->small = calloc((size_t)n + 1, 1);
    if (!counts->small)
        return -1;
    add_counts(counts->small, g->succ, n_same);
    if (n_next)
        add_counts(counts->small, g->next_succ, n_next);
    for (uint32_t op = 0; op < n; op++)
        counts->n_wide += counts->small[op] == WIDE;
    if (counts->n_wide == 0)
        return 0;
    counts->wide_op = arena_array(&e->arena, counts->n_wide, sizeof *counts->wide_op);
    counts->wide = arena_array(&e->arena, counts->n_wide, sizeof *counts->wide);
    if (!counts->wide_op || !counts->wide)
        return -1;
    uint32_t i = 0;
    for (uint32_t op = 0; op < n; op++)
        if (counts->small[op] == WIDE)
            counts->wide_op[i++] = op;
    add_wide(counts, g->succ, n_same);
    if (n_next)
        add_wide(counts, g->next_succ, n_next);
    return 0;
}

static uint32_t spared_of(const struct event *e, uint32_t op)
{
    return LOWER_BOUND(i, 1, e->n_spared, e->spared[i].op <= op) - 1;
}

/* ---- copies ---- */

static void slot_destroy(struct slot *slot)
{
    if (!slot)
        return;
    free(slot->times.end_ns);
    free(slot->times.device_prev);
    free(slot->times.shared_dur_ns);
    free(slot->pending);
    free(slot->wide);
    free(slot->spared);
    free(slot->spared_ends);
    free(slot);
}

/* The copy's slot, opened if it is the first time; NULL on error. */
static struct slot *open_slot(struct event *e, uint32_t copy, int *rc)
{
    if (e->slots[copy])
        return e->slots[copy];
    uint32_t n = e->g->n_ops;
    struct slot *slot = calloc(1, sizeof *slot);
    if (!slot)
        goto out_of_memory;
    e->slots[copy] = slot;
    slot->times.number = copy;
    slot->n_left = n;
    slot->times.end_ns = calloc((size_t)n + 1, sizeof *slot->times.end_ns);
    struct counts *counts = copy ? &e->later : &e->first;
    if (copy == 0 || copy == e->options->n_copies - 1) { /* the only, the last one to need them */
        slot->pending = counts->small;
        counts->small = NULL;
    } else {
        slot->pending = malloc((size_t)n + 1);
        if (slot->pending)
            memcpy(slot->pending, counts->small, (size_t)n + 1);
    }
    if (counts->n_wide) {
        slot->wide = malloc(counts->n_wide * sizeof *slot->wide);
        if (!slot->wide)
            goto out_of_memory;
        memcpy(slot->wide, counts->wide, counts->n_wide * sizeof *slot->wide);
    }
    if (e->n_spared) {
        slot->spared = calloc(e->n_spared, sizeof *slot->spared);
        slot->spared_ends = malloc((e->n_spared_ends + (size_t)1) * sizeof *slot->spared_ends);
        if (!slot->spared || !slot->spared_ends)
            goto out_of_memory;
    }
    if (e->options->want_device_prev) {
        slot->times.device_prev = malloc(((size_t)n + 1) * sizeof *slot->times.device_prev);
        if (!slot->times.device_prev)
            goto out_of_memory;
    }
    if (!slot->times.end_ns || !slot->pending)
        goto out_of_memory;
    *rc = e->hooks->open(e->hooks->arg, copy, &slot->times.dur_ns, &slot->times.gap_ns, e->err);
    if (*rc < 0)
        return NULL;
    if (e->has_shares) {
        slot->times.shared_dur_ns = malloc(((size_t)n + 1) * sizeof *slot->times.shared_dur_ns);
        if (!slot->times.shared_dur_ns)
            goto out_of_memory;
        memcpy(slot->times.shared_dur_ns, slot->times.dur_ns, n * sizeof *slot->times.dur_ns);
        slot->times.dur_ns = slot->times.shared_dur_ns;
    }
    return slot;
out_of_memory:
    *rc = dpro_error_nomem(e->err);
    return NULL;
}

static int close_slot(struct event *e, struct slot *slot)
{
    e->slots[slot->times.number] = NULL;
    int rc = e->hooks->close(e->hooks->arg, &slot->times, e->err);
    slot_destroy(slot);
    return rc;
}

/* ---- roots ----
 *
 * An op that waits for nothing, neither in its copy nor in the one before, is ready at 0 in every
 * copy. So as not to open all copies at once, a queue gets the next copy's roots when it has run
 * this copy's: until then they could not have been its first. */

static int find_roots(struct event *e)
{
    const uint8_t *small = e->later.small;
    uint32_t n = e->g->n_ops, n_roots = 0;
    for (uint32_t op = 0; op < n; op++)
        if (small[op] == 0) {
            e->queues[queue_of(e, op)].n_roots++;
            n_roots++;
        }
    if (n_roots == 0)
        return 0;
    e->roots = arena_array(&e->arena, n_roots, sizeof *e->roots);
    if (!e->roots)
        return -1;
    e->has_roots = true;
    uint32_t sum = 0;
    for (uint32_t q = 0; q < e->n_queues; q++) {
        e->queues[q].first_root = sum;
        sum += e->queues[q].n_roots;
        e->queues[q].roots_left = e->queues[q].n_roots; /* copy 0 queues them with its others */
        e->queues[q].n_roots = 0;
    }
    for (uint32_t op = 0; op < n; op++)
        if (small[op] == 0) {
            struct queue *queue = &e->queues[queue_of(e, op)];
            e->roots[queue->first_root + queue->n_roots++] = op;
        }
    return 0;
}

static int open_roots(struct event *e, struct queue *queue, uint32_t copy)
{
    int rc = 0;
    struct slot *slot = open_slot(e, copy, &rc);
    if (!slot)
        return rc;
    queue->roots_left = queue->n_roots;
    for (uint32_t i = 0; i < queue->n_roots; i++) {
        uint32_t op = e->roots[queue->first_root + i];
        struct entry entry = {startable(e, slot, (uint32_t)(queue - e->queues), op, 0),
                              (uint64_t)copy << 32 | op};
        if (queue_push(queue, entry) < 0)
            return dpro_error_nomem(e->err);
    }
    return 0;
}

/* A root is told from its place in the list, as counts are gone by the time it runs. */
static bool is_root(const struct event *e, const struct queue *queue, uint32_t op)
{
    return queue->n_roots &&
           bsearch(&op, e->roots + queue->first_root, queue->n_roots, sizeof op, compare_u32);
}

static bool wide_arrival(const struct event *e, struct slot *slot, uint32_t op)
{
    const struct counts *counts = slot->times.number ? &e->later : &e->first;
    const uint32_t *at = bsearch(&op, counts->wide_op, counts->n_wide, sizeof op, compare_u32);
    return --slot->wide[at - counts->wide_op] == 0;
}

/* ---- ops that leave their latest predecessors out ----
 *
 * Such an op gets ready when all but `spare` of its predecessors have ended. Ends become known as
 * predecessors are started, and one that starts later may end earlier: the op queues for the moment
 * that is known so far, and once more for every earlier one that comes up before. When the queue
 * gets to that moment nothing earlier can come up any more; the entries that are left are stale. */

static int find_spared(struct event *e)
{
    const struct dpro_graph *g = e->g;
    uint32_t n = 0;
    for (uint32_t op = 0; op < g->n_ops; op++)
        n += g->spare[op] > 0;
    e->spared = arena_array(&e->arena, n + (size_t)1, sizeof *e->spared);
    if (!e->spared)
        return -1;
    for (uint32_t op = 0; op < g->n_ops; op++)
        if (g->spare[op])
            e->spared[e->n_spared++] = (struct spared){.op = op};
    for (uint32_t op = 0; op < g->n_ops && n > 0; op++)
        for (uint32_t i = g->row[op]; i < g->row[op + 1]; i++)
            if (g->spare[g->succ[i]])
                e->spared[spared_of(e, g->succ[i])].n++;
    for (uint32_t i = 0; i < n; i++) {
        e->spared[i].first = e->n_spared_ends;
        e->n_spared_ends += e->spared[i].n;
    }
    return 0;
}

/* A predecessor's end: whether the op is to be queued, for *ready. */
static bool spared_arrival(const struct event *e, struct slot *slot, uint32_t op, int64_t end,
                           int64_t *ready)
{
    uint32_t index = spared_of(e, op);
    const struct spared *spared = &e->spared[index];
    struct spared_state *state = &slot->spared[index];
    int64_t *ends = slot->spared_ends + spared->first;
    uint32_t needed = spared->n > e->g->spare[op] ? spared->n - e->g->spare[op] : 1;
    ends[state->n_known++] = end;
    if (state->has_run || state->n_known < needed)
        return false;
    int64_t earliest = graph_all_but_latest(ends, state->n_known, state->n_known - needed);
    if (state->n_known > needed && earliest >= slot->times.end_ns[op])
        return false; /* queued for that already */
    *ready = slot->times.end_ns[op] = earliest;
    return true;
}

/* Whether an entry is one that was left over; if not, its op runs now. */
static bool is_stale(const struct event *e, uint32_t copy, uint32_t op)
{
    struct slot *slot = e->slots[copy];
    if (!e->n_spared || !e->g->spare[op])
        return false;
    if (!slot || slot->spared[spared_of(e, op)].has_run)
        return true;
    slot->spared[spared_of(e, op)].has_run = true;
    return false;
}

/* `op` has one predecessor fewer to wait for. `running` is the queue whose key the caller sets. */
static inline int arrive(struct event *e, struct slot *slot, uint32_t op, int64_t end,
                         uint32_t running)
{
    int64_t ready;
    if (__builtin_expect(e->n_spared && e->g->spare[op], 0)) {
        if (!spared_arrival(e, slot, op, end, &ready))
            return 0;
    } else {
        ready = slot->times.end_ns[op];
        if (end > ready)
            slot->times.end_ns[op] = ready = end;
        uint8_t pending = slot->pending[op];
        if (pending != WIDE) {
            slot->pending[op] = --pending;
            if (pending)
                return 0;
        } else if (!wide_arrival(e, slot, op)) {
            return 0;
        }
    }
    uint32_t q = queue_of(e, op);
    struct entry entry = {startable(e, slot, q, op, ready),
                          (uint64_t)slot->times.number << 32 | op};
    int changed = queue_push(&e->queues[q], entry);
    if (changed < 0)
        return -1;
    if (changed && q != running) {
        set_leaf(e, q);
        climb(e, q);
    }
    return 0;
}

static int start_first_copy(struct event *e)
{
    int rc = 0;
    struct slot *slot = open_slot(e, 0, &rc);
    if (!slot)
        return rc;
    for (uint32_t op = 0; op < e->g->n_ops; op++) {
        if (slot->pending[op])
            continue;
        int64_t ready = e->options->release_ns ? e->options->release_ns[e->g->rank[op]] : 0;
        uint32_t q = queue_of(e, op);
        struct entry entry = {startable(e, slot, q, op, ready), op};
        if (queue_push(&e->queues[q], entry) < 0)
            return dpro_error_nomem(e->err);
    }
    play_all(e);
    return 0;
}

/* `op` is over: lets go what waits for it. `q` is its queue, whose key the caller sets. */
static int finish(struct event *e, struct slot *slot, uint32_t q, uint32_t op, int64_t end)
{
    const struct dpro_graph *g = e->g;
    const uint32_t copy = slot->times.number, n_copies = e->options->n_copies;
    for (uint32_t i = g->row[op]; i < g->row[op + 1]; i++)
        if (arrive(e, slot, g->succ[i], end, q) < 0)
            return dpro_error_nomem(e->err);
    if (g->next_row && copy + 1 < n_copies && g->next_row[op] < g->next_row[op + 1]) {
        int rc = 0;
        struct slot *next = open_slot(e, copy + 1, &rc);
        if (!next)
            return rc;
        for (uint32_t i = g->next_row[op]; i < g->next_row[op + 1]; i++)
            if (arrive(e, next, g->next_succ[i], end, q) < 0)
                return dpro_error_nomem(e->err);
    }
    struct queue *queue = &e->queues[q];
    if (e->has_roots && copy + 1 < n_copies && is_root(e, queue, op) && --queue->roots_left == 0)
        return open_roots(e, queue, copy + 1);
    return 0;
}

/* ---- links that connections share ---- */

/* What happens next on such a link: an op gets its turn, begins or is over; *done says the latter,
 * and the op is *op of *copy then. */
static int share_link(struct event *e, struct queue *queue, bool *done, uint32_t *op,
                      uint32_t *copy)
{
    struct share_sent sent;
    *done = false;
    if (queue->share->next_ns == INT64_MAX || queue->head.ready < queue->share->next_ns) {
        *op = (uint32_t)queue->head.id;
        const struct replay_copy *times = &e->slots[queue->head.id >> 32]->times;
        struct share_item item = {queue->head.id, times->gap_ns ? times->gap_ns[*op] : 0,
                                  times->dur_ns[*op]};
        uint32_t stream = e->g->device[*op] - e->g->devices[e->g->device[*op]].shared;
        int64_t now = queue->head.ready;
        queue_pop(queue);
        return share_add(queue->share, stream, &item, now) < 0 ? dpro_error_nomem(e->err) : 0;
    }
    if (!share_step(queue->share, &sent))
        return 0;
    *done = true;
    *op = (uint32_t)sent.id;
    *copy = (uint32_t)(sent.id >> 32);
    struct replay_copy *times = &e->slots[*copy]->times;
    times->end_ns[*op] = sent.end_ns;
    times->shared_dur_ns[*op] = sent.end_ns - sent.begin_ns;
    if (times->device_prev)
        times->device_prev[*op] =
            sent.previous == UINT64_MAX ? DPRO_NO_OP : (uint32_t)sent.previous;
    return 0;
}

/* ---- the run ---- */

/* The first op of a queue, on its device. */
static void run_op(struct event *e, struct queue *queue, struct slot *slot, uint32_t op,
                   bool *interleaved)
{
    uint32_t copy = slot->times.number;
    int64_t start = e->matches[1].when;
    if (slot->times.gap_ns && !queue->threads)
        start = time_add(start, slot->times.gap_ns[op]);
    int64_t end = time_add(start, slot->times.dur_ns[op]);
    slot->times.end_ns[op] = end;
    queue_pop(queue);
    if (slot->times.device_prev)
        slot->times.device_prev[op] = queue->serial ? queue->last_op : DPRO_NO_OP;
    if (queue->threads) {
        take_thread(queue, op, end);
    } else if (queue->serial) {
        queue->clock = end;
        if (copy < queue->last_copy && interleaved)
            *interleaved = true;
        queue->last_copy = copy;
        queue->last_op = op;
    }
}

static int run(struct event *e, bool *interleaved)
{
    const struct dpro_graph *g = e->g;
    uint32_t *order = e->options->order;
    for (uint64_t n_done = 0; n_done < (uint64_t)e->options->n_copies * g->n_ops;) {
        uint32_t q = e->matches[1].queue;
        struct queue *queue = &e->queues[q];
        uint32_t op = (uint32_t)queue->head.id, copy = (uint32_t)(queue->head.id >> 32);
        bool done = true;
        int rc = 0;
        /* a graph without cycles always has an op to run */
        assert(queue->head.id != NO_ENTRY || queue->share);
        if (__builtin_expect(queue->share != NULL, 0)) {
            rc = share_link(e, queue, &done, &op, &copy);
        } else if (is_stale(e, copy, op)) {
            queue_pop(queue);
            done = false;
        } else {
            run_op(e, queue, e->slots[copy], op, interleaved);
        }
        struct slot *slot = done && rc == 0 ? e->slots[copy] : NULL;
        if (slot && order && copy == e->options->order_copy)
            *order++ = op;
        if (slot)
            rc = finish(e, slot, q, op, slot->times.end_ns[op]);
        n_done += done;
        set_leaf(e, q);
        replay_matches(e, q);
        if (rc == 0 && slot && --slot->n_left == 0)
            rc = close_slot(e, slot);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int prepare(struct event *e)
{
    const struct dpro_graph *g = e->g;
    uint32_t n_copies = e->options->n_copies;
    e->n_queues = g->n_devices + 1;
    e->n_leaves = 1;
    while (e->n_leaves < e->n_queues)
        e->n_leaves *= 2;
    e->matches = arena_array(&e->arena, (size_t)e->n_leaves * 2, sizeof *e->matches);
    e->slots = arena_array(&e->arena, n_copies, sizeof *e->slots);
    e->queues = arena_array(&e->arena, e->n_leaves, sizeof *e->queues); /* n_queues, then empty */
    if (!e->queues || !e->matches || !e->slots)
        return -1;
    for (uint32_t q = 0; q < e->n_leaves; q++) {
        e->queues[q].head = (struct entry){INT64_MAX, NO_ENTRY};
        e->queues[q].last_op = DPRO_NO_OP;
        e->queues[q].serial = q < g->n_devices && g->devices[q].kind != DPRO_DEVICE_COMM_THREAD;
    }
    e->has_pools = graph_has_pools(g);
    for (uint32_t q = 0; e->has_pools && q < g->n_devices; q++) {
        struct queue *queue = &e->queues[q];
        if (g->devices[q].n_slots == 0 || g->devices[q].pool != q)
            continue;
        queue->n_threads = g->devices[q].n_slots;
        queue->threads = arena_array(&e->arena, queue->n_threads, sizeof *queue->threads);
        if (!queue->threads)
            return -1;
        for (uint32_t i = 0; i < queue->n_threads; i++)
            queue->threads[i] = (struct slot_clock){0, DPRO_NO_OP};
    }
    e->has_shares = graph_has_shared_links(g);
    for (uint32_t q = 0; e->has_shares && q < g->n_devices; q++)
        if (g->devices[q].n_sharing > 0 && g->devices[q].shared == q &&
            !(e->queues[q].share = share_create(g->devices[q].n_sharing)))
            return -1;
    for (uint32_t q = 0; q < e->n_leaves; q++)
        e->matches[e->n_leaves + q] = (struct match){INT64_MAX, q};
    if (count_predecessors(e, false, &e->first) < 0 || (g->spare && find_spared(e) < 0))
        return -1;
    if (n_copies > 1 &&
        (count_predecessors(e, g->next_row != NULL, &e->later) < 0 || find_roots(e) < 0))
        return -1;
    return 0;
}

int event_replay(const struct dpro_graph *graph, const struct event_options *options,
                 const struct replay_hooks *hooks, bool *interleaved, struct dpro_error *err)
{
    struct event e = {.g = graph, .options = options, .hooks = hooks, .err = err};
    if (interleaved)
        *interleaved = false;
    if (graph->n_ops == 0 || options->n_copies == 0)
        return 0;
    int rc = prepare(&e) < 0 ? dpro_error_nomem(err) : start_first_copy(&e);
    if (rc == 0)
        rc = run(&e, interleaved);
    for (uint32_t copy = 0; e.slots && copy < options->n_copies; copy++)
        slot_destroy(e.slots[copy]);
    for (uint32_t q = 0; e.queues && q < e.n_queues; q++) {
        array_fini(&e.queues[q].rest);
        share_destroy(e.queues[q].share);
    }
    free(e.first.small);
    free(e.later.small);
    arena_fini(&e.arena);
    return rc;
}
