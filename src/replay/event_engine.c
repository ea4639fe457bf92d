/* The event-driven engine (paper, section 3.3: Kahn's algorithm with a queue and a clock per
 * device). dispatch.h says which op is next.
 *
 * - The threads of an executor's pool share a queue, whose clock is that of the thread that is free
 *   first. Their ops' gaps pass while they wait.
 * - The connections of a link share a queue, too. What gets ready is handed on to link_share.c; for
 *   others, such an op runs when it is over.
 * - Ops without a device wait in a queue of their rank whose clock stays 0.
 *
 * On most devices the graph itself has each op wait for the one before, in a chain that goes on in
 * the next copy. Such ops, and those that wait for no device, run past the queues: at once when the
 * last of their predecessors is known, ahead of their time. That changes nothing. What a queue
 * takes next is what got ready first, and it has to know all that gets ready up to then. An op that
 * runs early makes it know more, but nothing that gets ready before the op's own end. What gets
 * ready by an op that takes no time comes in between others of the same moment, by its id. If that
 * is greater than the op's, its turn is not before the op's anyway; else the op waits for its own.
 */
#include <assert.h>

#include "replay/dispatch.h"
#include "replay/pending.h"

/* ---- its state ---- */

typedef ARRAY(uint64_t) ids_array; /* copy << 32 | op */

/* Ops of a queue that wait for nothing in any copy: see open_roots. */
struct roots {
    uint32_t first, n; /* into root_ops */
    uint32_t left;     /* of those of a copy, how many have not run */
};

struct event {
    struct arena arena;
    const struct dpro_graph *g;
    const struct event_options *options;
    const struct replay_hooks *hooks;
    struct dispatch dispatch;
    struct pending pending;
    struct slot **slots;       /* by copy; NULL: not yet opened, or closed */
    uint32_t n_opened, oldest; /* copies that were opened; the first that is not closed */
    uint32_t ahead;            /* only ops of copies before it run past the queues */
    uint64_t n_left;           /* ops */
    uint32_t *order;           /* see struct event_options; where the next goes */
    ids_array past, passing;   /* ops that run past the queues next, and those that do now */
    uint32_t *queue_of;        /* by device; behind these, by rank and server */
    struct roots *roots;       /* by queue */
    uint32_t *root_ops;
    uint32_t running; /* the queue whose key is set after what runs now */
    bool has_roots, has_shares;
    bool is_over;
};

static inline int64_t event_time_of(const struct replay_copy *times, uint32_t op, bool without_gap)
{
    return time_add(times->gap_ns && !without_gap ? times->gap_ns[op] : 0, times->dur_ns[op]);
}

/* The durations of a copy that is opened. */
static inline void event_get_times(const struct event *e, struct replay_copy *times)
{
    e->hooks->open(e->hooks->arg, times->number, &times->dur_ns, &times->gap_ns);
}

/* ---- queueing ---- */

static inline uint32_t queue_of(const struct event *e, uint32_t op)
{
    uint32_t device = e->g->device[op];
    return e->queue_of[device == DPRO_NO_DEVICE ? e->g->n_devices + e->g->rank[op] : device];
}

/* Queues an op that is ready; *q is its queue. One of a pool's has its gap while others run,
 * waiting for a thread included. Returns whether it is the queue's first now. */
static inline bool queue_op(struct event *e, const struct slot *slot, uint32_t op, int64_t ready,
                            uint32_t *q)
{
    uint64_t id = (uint64_t)slot->times.number << 32 | op;
    *q = queue_of(e, op);
    struct queue *queue = &e->dispatch.queues[*q];
    bool pool = queue->is_special && queue->pool != NULL;
    if (__builtin_expect(pool, 0))
        ready = time_add(ready, slot->times.gap_ns ? slot->times.gap_ns[op] : 0);
    return queue_push(queue, (struct entry){ready, id, event_time_of(&slot->times, op, pool),
                                            e->g->row[op], e->g->row[op + 1]});
}

/* ---- copies ---- */

static struct slot *open_slot(struct event *e, uint32_t copy)
{
    size_t n = e->g->n_ops + (size_t)1;
    struct slot *slot = mem_array(1, sizeof *slot);
    struct replay_copy *times = &slot->times;
    times->number = copy;
    times->end_ns = mem_array(n, sizeof *times->end_ns);
    if (copy >= e->options->first_prev && copy < e->options->end_prev)
        times->device_prev = mem_alloc(n * sizeof *times->device_prev);
    if (e->has_shares)
        times->shared_dur_ns = mem_alloc(n * sizeof *times->shared_dur_ns);
    pending_open(&e->pending, copy == 0 || copy == e->options->n_copies - 1, slot);
    event_get_times(e, times);
    if (e->has_shares) {
        memcpy(times->shared_dur_ns, times->dur_ns, e->g->n_ops * sizeof *times->dur_ns);
        times->dur_ns = times->shared_dur_ns;
    }
    e->slots[copy] = slot;
    e->n_opened++;
    return slot;
}

/* The copy's slot, opened if it is the first time. */
static inline struct slot *get_slot(struct event *e, uint32_t copy)
{
    return e->slots[copy] ? e->slots[copy] : open_slot(e, copy);
}

/* Ahead of a copy that is open for long, no more than the next is begun. */
static void look_ahead(struct event *e)
{
    e->ahead = e->oldest + 2;
}

static void free_slot(struct slot *slot)
{
    FREE_ALL(&slot->times.end_ns, &slot->times.device_prev, &slot->times.shared_dur_ns);
    arena_fini(&slot->arena);
    mem_free(slot);
}

static void close_slot(struct event *e, struct slot *slot)
{
    e->slots[slot->times.number] = NULL;
    while (e->oldest < e->n_opened && !e->slots[e->oldest])
        e->oldest++;
    look_ahead(e);
    e->is_over |= e->options->n_needed > 0 && e->oldest >= e->options->n_needed;
    e->hooks->close(e->hooks->arg, &slot->times);
    free_slot(slot);
}

/* ---- roots ----
 *
 * An op that waits for nothing, neither in its copy nor in the one before, is ready at 0 in every
 * copy. So as not to open all copies at once, a queue gets the next copy's roots when it has run
 * this copy's: until then they could not have been its first. */

static void find_roots(struct event *e)
{
    const uint16_t *counts = e->pending.later;
    uint32_t n = e->g->n_ops, n_roots = 0;
    e->roots = arena_array(&e->arena, e->dispatch.n_leaves, sizeof *e->roots);
    for (uint32_t op = 0; op < n; op++)
        if (counts[op] == 0)
            e->roots[queue_of(e, op)].n++;
    EACH_OF (struct roots, roots, e->roots, e->dispatch.n_leaves) {
        roots->first = n_roots;
        n_roots += roots->n;
        roots->left = roots->n; /* copy 0 queues them with its others */
        roots->n = 0;
    }
    e->has_roots = n_roots > 0;
    e->root_ops = arena_array(&e->arena, n_roots + (size_t)1, sizeof *e->root_ops);
    for (uint32_t op = 0; op < n; op++)
        if (counts[op] == 0) {
            struct roots *roots = &e->roots[queue_of(e, op)];
            e->root_ops[roots->first + roots->n++] = op;
        }
}

static void open_roots(struct event *e, struct roots *roots, uint32_t copy)
{
    uint32_t q;
    struct slot *slot = get_slot(e, copy);
    roots->left = roots->n;
    for (uint32_t i = 0; i < roots->n; i++)
        queue_op(e, slot, e->root_ops[roots->first + i], 0, &q);
}

/* `op` of queue q has run. A root is told from its place in the list, as its count is gone. */
static void count_root(struct event *e, uint32_t q, uint32_t op, uint32_t copy)
{
    if (!e->has_roots || copy + 1 == e->options->n_copies)
        return;
    struct roots *roots = &e->roots[q];
    uint32_t end = roots->first + roots->n;
    uint32_t at = LOWER_BOUND(i, roots->first, end, e->root_ops[i] < op);
    if (at < end && e->root_ops[at] == op && --roots->left == 0)
        open_roots(e, roots, copy + 1);
}

/* ---- which ops wait in queues ---- */

/* Those of other devices, of a pool's or of a link's; roots; ops that leave their latest
 * predecessors out. */
static void mark_queued(struct event *e, const bool *past)
{
    const struct dpro_graph *g = e->g;
    bool one_copy = e->options->n_copies == 1;
    uint16_t *first = e->pending.first, *later = e->pending.later;
    for (uint32_t op = 0; op < g->n_ops; op++) {
        bool is_root = !one_copy && later[op] == 0;
        if (past[MIN(g->device[op], g->n_devices)] && !is_root && !g->spare[op])
            continue;
        first[op] |= QUEUED;
        if (!one_copy)
            later[op] |= QUEUED;
    }
}

/* ---- the run ---- */

static bool frees_older(const struct dpro_graph *g, uint32_t op)
{
    for (uint32_t i = g->row[op]; i < g->row[op + 1]; i++)
        if (g->succ[i] < op)
            return true;
    return false;
}

/* Lets an op that is ready run past the queues. False: it has to wait in one. */
static inline bool run_past(struct event *e, struct slot *slot, uint32_t op, int64_t ready)
{
    struct replay_copy *times = &slot->times;
    if (slot->pending[op] & QUEUED || times->number >= e->ahead)
        return false;
    int64_t end = time_add(ready, event_time_of(times, op, false));
    if (end == ready && frees_older(e->g, op))
        return false;
    times->end_ns[op] = end;
    if (times->device_prev) {
        struct queue *queue = &e->dispatch.queues[queue_of(e, op)];
        times->device_prev[op] = queue->serial ? queue->last_op : DPRO_NO_OP;
        queue->last_op = op;
    }
    array_push(&e->past, (uint64_t)times->number << 32 | op);
    return true;
}

/* `op` has one predecessor fewer to wait for. */
static inline void event_arrive(struct event *e, struct slot *slot, uint32_t op, int64_t end)
{
    int64_t ready;
    uint32_t q;
    if (pending_arrival(&e->pending, slot, op, end, &ready) && !run_past(e, slot, op, ready) &&
        queue_op(e, slot, op, ready, &q) && q != e->running)
        climb_queue(&e->dispatch, q);
}

static void finish_past(struct event *e);

/* Of successors that lie apart: what event_arrive() needs, so that the caches have it in time. */
static inline void event_fetch(const struct event *e, const struct slot *slot, uint32_t op)
{
    __builtin_prefetch(&slot->pending[op]);
    __builtin_prefetch(&slot->times.end_ns[op]);
    __builtin_prefetch(&slot->times.dur_ns[op]);
    __builtin_prefetch(&e->g->row[op]);
    __builtin_prefetch(&e->g->device[op]);
}

/* `op` is over: lets go what waits for it. An op of a queue has what then runs past the queues
 * finished for one successor after the other: a barrier's are of many ranks, and one rank's ops lie
 * side by side. */
static inline __attribute__((always_inline)) void
finish(struct event *e, struct slot *slot, uint32_t op, uint32_t first, uint32_t n, bool of_queue)
{
    enum { AHEAD = 8 };
    const struct dpro_graph *g = e->g;
    const uint32_t copy = slot->times.number;
    const int64_t end = slot->times.end_ns[op];
    if (e->order && copy == 0)
        *e->order++ = op;
    for (uint32_t i = first; i < n; i++) {
        if (n - i > AHEAD)
            event_fetch(e, slot, g->succ[i + AHEAD]);
        event_arrive(e, slot, g->succ[i], end);
        if (of_queue)
            finish_past(e);
    }
    if (copy + 1 < e->options->n_copies && g->next_row[op] < g->next_row[op + 1]) {
        struct slot *next = get_slot(e, copy + 1);
        for (uint32_t i = g->next_row[op]; i < g->next_row[op + 1]; i++)
            event_arrive(e, next, g->next_succ[i], end);
        if (of_queue)
            finish_past(e);
    }
    e->n_left--;
}

/* Finishes all that runs past the queues, in turns. */
static void finish_past(struct event *e)
{
    while (e->past.n) {
        ids_array now = e->past;
        e->past = e->passing;
        e->past.n = 0;
        e->passing = now;
        for (size_t i = 0; i < now.n; i++) {
            struct slot *slot = e->slots[now.at[i] >> 32];
            uint32_t op = (uint32_t)now.at[i];
            finish(e, slot, op, e->g->row[op], e->g->row[op + 1], false);
            if (--slot->n_left == 0)
                close_slot(e, slot);
        }
    }
}

static void start_first_copy(struct event *e)
{
    uint32_t q;
    struct slot *slot = open_slot(e, 0);
    for (uint32_t op = 0; op < e->g->n_ops; op++) {
        int64_t ready = e->options->release_ns ? e->options->release_ns[e->g->rank[op]] : 0;
        if (!(slot->pending[op] & COUNT) && !run_past(e, slot, op, ready))
            queue_op(e, slot, op, ready, &q);
    }
    play_all(&e->dispatch);
    ids_array begun = e->past;
    e->past = (ids_array){0};
    for (size_t i = 0; i < begun.n; i++) {
        array_push(&e->past, begun.at[i]);
        finish_past(e);
    }
    array_fini(&begun);
}

/* What happens next on a link that connections share: an op gets its turn, begins or is over. True:
 * the latter, and the op is *op of *copy. */
static bool share_link(struct event *e, struct queue *queue, uint32_t *op, uint32_t *copy)
{
    struct share_sent sent;
    if (queue->share->next_ns == INT64_MAX || queue->head.ready < queue->share->next_ns) {
        *op = (uint32_t)queue->head.id;
        const struct replay_copy *times = &e->slots[queue->head.id >> 32]->times;
        struct share_item item = {queue->head.id, times->gap_ns ? times->gap_ns[*op] : 0,
                                  times->dur_ns[*op]};
        uint32_t stream = e->g->device[*op] - e->g->devices[e->g->device[*op]].shared;
        int64_t now = queue->head.ready;
        queue_pop(queue);
        share_add(queue->share, stream, &item, now);
        return false;
    }
    if (!share_step(queue->share, &sent))
        return false;
    *op = (uint32_t)sent.id;
    *copy = (uint32_t)(sent.id >> 32);
    struct replay_copy *times = &e->slots[*copy]->times;
    times->end_ns[*op] = sent.end_ns;
    times->shared_dur_ns[*op] = sent.end_ns - sent.begin_ns;
    if (times->device_prev)
        times->device_prev[*op] =
            sent.previous == UINT64_MAX ? DPRO_NO_OP : (uint32_t)sent.previous;
    return true;
}

static void run_op(struct event *e, struct queue *queue, struct slot *slot, uint32_t op)
{
    int64_t end = time_add(e->dispatch.matches[1].when, queue->head.took_ns);
    slot->times.end_ns[op] = end;
    queue_pop(queue);
    __builtin_prefetch(&e->g->succ[queue->head.first_succ]);
    __builtin_prefetch(&slot->times.end_ns[(uint32_t)queue->head.id], 1);
    if (slot->times.device_prev)
        slot->times.device_prev[op] = queue->serial ? queue->last_op : DPRO_NO_OP;
    if (queue->is_special && queue->pool) {
        take_thread(queue, op, end);
    } else if (queue->serial) {
        queue->clock = end;
        if (e->options->end_prev > 0)
            queue->last_op = op;
    }
}

static void event_run(struct event *e)
{
    while (e->n_left > 0 && !e->is_over) {
        uint32_t q = e->running = e->dispatch.matches[1].queue;
        struct queue *queue = &e->dispatch.queues[q];
        uint32_t op = (uint32_t)queue->head.id, copy = (uint32_t)(queue->head.id >> 32);
        uint32_t first = queue->head.first_succ, end = queue->head.end;
        bool done = true;
        /* a graph without cycles always has an op to run */
        assert(queue->head.id != NO_ENTRY || queue->share);
        if (__builtin_expect(queue->is_special, 0) && queue->share) {
            done = share_link(e, queue, &op, &copy);
            first = done ? e->g->row[op] : 0;
            end = done ? e->g->row[op + 1] : 0;
        } else if (pending_is_stale(&e->pending, e->slots[copy], op)) {
            queue_pop(queue);
            done = false;
        } else {
            run_op(e, queue, e->slots[copy], op);
        }
        struct slot *slot = done ? e->slots[copy] : NULL;
        if (slot) {
            finish(e, slot, op, first, end, true);
            count_root(e, q, op, copy);
        }
        replay_matches(&e->dispatch, q);
        if (slot && --slot->n_left == 0)
            close_slot(e, slot);
    }
}

/* ---- setting up ---- */

static bool has_edge(const uint32_t *row, const uint32_t *succ, uint32_t from, uint32_t to)
{
    for (uint32_t i = row[from]; i < row[from + 1]; i++)
        if (succ[i] == to)
            return true;
    return false;
}

bool *edge_ordered_devices(const struct dpro_graph *g, bool one_copy, struct arena *arena)
{
    SCRATCH_ARENA struct arena work = {0};
    bool *ordered = arena_alloc(arena, g->n_devices + (size_t)1);
    uint32_t *first = arena_alloc(&work, (g->n_devices + (size_t)1) * sizeof *first);
    uint32_t *last = arena_alloc(&work, (g->n_devices + (size_t)1) * sizeof *last);
    memset(ordered, true, g->n_devices + (size_t)1);
    memset(last, 0xff, (g->n_devices + (size_t)1) * sizeof *last);
    for (uint32_t op = g->n_ops; op-- > 0;) {
        uint32_t d = g->device[op];
        if (d == DPRO_NO_DEVICE)
            continue;
        if (last[d] == DPRO_NO_OP)
            last[d] = op;
        else if (ordered[d])
            ordered[d] = has_edge(g->row, g->succ, op, first[d]);
        first[d] = op;
    }
    for (uint32_t d = 0; d < g->n_devices; d++) {
        if (last[d] != DPRO_NO_OP && !one_copy)
            ordered[d] &= has_edge(g->next_row, g->next_succ, last[d], first[d]);
        ordered[d] |= g->devices[d].kind == DPRO_DEVICE_COMM_THREAD;
        ordered[d] &= g->devices[d].n_slots == 0 && g->devices[d].n_sharing == 0;
    }
    return ordered;
}

/* The threads of a pool share the queue of the first, and so do the connections of a link. */
static uint32_t first_sharing(const struct dpro_graph *g, uint32_t device)
{
    const struct graph_device *d = &g->devices[device];
    return d->n_slots > 0 ? d->pool : d->n_sharing > 0 ? d->shared : device;
}

/* Those whose ops run past them come last: the others lie side by side. Returns how many. */
static uint32_t number_queues(struct event *e, const bool *past)
{
    const struct dpro_graph *g = e->g;
    uint32_t n_owners = g->n_devices + g->n_ranks + g->n_servers, n = 0;
    e->queue_of = arena_array(&e->arena, n_owners + (size_t)1, sizeof *e->queue_of);
    for (int last = 0; last < 2; last++)
        for (uint32_t d = 0; d < g->n_devices; d++)
            if (first_sharing(g, d) == d && past[d] == last)
                e->queue_of[d] = n++;
    for (uint32_t d = 0; d < g->n_devices; d++)
        e->queue_of[d] = e->queue_of[first_sharing(g, d)];
    for (uint32_t owner = g->n_devices; owner < n_owners; owner++)
        e->queue_of[owner] = n++;
    return n;
}

static void set_device(struct event *e, uint32_t d)
{
    const struct graph_device *device = &e->g->devices[d];
    struct queue *queue = &e->dispatch.queues[e->queue_of[d]];
    if (first_sharing(e->g, d) != d)
        return;
    queue->serial = device->kind != DPRO_DEVICE_COMM_THREAD;
    queue->is_special = device->n_slots > 0 || device->n_sharing > 0;
    if (device->n_slots > 0) {
        queue->pool = arena_array(&e->arena, 1, pool_size(device->n_slots));
        queue->pool->n = device->n_slots;
        for (uint32_t i = 0; i < device->n_slots; i++)
            queue->pool->threads[i].last_op = DPRO_NO_OP;
    } else if (device->n_sharing > 0) {
        queue->share = share_create(device->n_sharing);
    }
}

static void event_prepare(struct event *e)
{
    struct dispatch *d = &e->dispatch;
    uint32_t n_copies = e->options->n_copies;
    const bool *past = edge_ordered_devices(e->g, n_copies == 1, &e->arena);
    uint32_t n_queues = number_queues(e, past);
    d->n_leaves = 1;
    while (d->n_leaves < n_queues)
        d->n_leaves *= 2;
    d->matches = arena_array(&e->arena, (size_t)d->n_leaves * 2, sizeof *d->matches);
    d->queues = queue_array(&e->arena, d->n_leaves);
    e->slots = arena_array(&e->arena, n_copies, sizeof *e->slots);
    e->has_shares = graph_has_shared_links(e->g);
    for (uint32_t q = 0; q < d->n_leaves; q++) {
        d->queues[q] =
            (struct queue){.head = {.ready = INT64_MAX, .id = NO_ENTRY}, .last_op = DPRO_NO_OP};
        d->matches[d->n_leaves + q] = (struct match){INT64_MAX, q};
    }
    for (uint32_t device = 0; device < e->g->n_devices; device++)
        set_device(e, device);
    pending_init(&e->pending, e->g, n_copies, &e->arena);
    if (n_copies > 1)
        find_roots(e);
    mark_queued(e, past);
}

/* Without what is over: its copies that are still open, as the replay needed no more of them. */
static void event_fini(struct event *e)
{
    for (uint32_t c = e->oldest; c < e->n_opened; c++)
        if (e->slots[c])
            free_slot(e->slots[c]);
    for (uint32_t q = 0; q < e->dispatch.n_leaves; q++) {
        mem_free(e->dispatch.queues[q].rest);
        share_destroy(e->dispatch.queues[q].share);
    }
    FREE_ALL(&e->past, &e->passing);
    arena_fini(&e->arena);
}

void event_replay(const struct dpro_graph *graph, const struct event_options *options,
                  const struct replay_hooks *hooks)
{
    struct event e = {.g = graph,
                      .options = options,
                      .hooks = hooks,
                      .n_left = (uint64_t)options->n_copies * graph->n_ops,
                      .order = options->order,
                      .running = UINT32_MAX};
    look_ahead(&e);
    if (e.n_left > 0) {
        event_prepare(&e);
        start_first_copy(&e);
        event_run(&e);
    }
    event_fini(&e);
}
