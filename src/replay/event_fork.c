/* Goes on from a begun replay several times, with other durations of the copies to come.
 *
 * Replays with the same durations up to some copy begin alike, until an op of that copy is next; of
 * a pool, until one gets ready, as its gap decides when it is next. */
#include <assert.h>

#include "replay/event.h"

static struct slot *fork_slot(const struct event *e, const struct slot *from)
{
    size_t n = e->g->n_ops + (size_t)1;
    struct slot *slot = mem_array(1, sizeof *slot);
    slot->times = from->times;
    slot->n_left = from->n_left;
    slot->times.end_ns = memcpy(mem_alloc(n * sizeof *slot->times.end_ns), from->times.end_ns,
                                n * sizeof *slot->times.end_ns);
    pending_copy(&e->pending, from, slot);
    if (slot->times.number >= e->until)
        event_get_times(e, &slot->times);
    return slot;
}

static void time_anew(const struct event *e, struct entry *entries, size_t n)
{
    EACH_OF (struct entry, entry, entries, n)
        if (entry->id != NO_ENTRY && entry->id >> 32 >= e->until)
            entry->took_ns =
                event_time_of(&e->slots[entry->id >> 32]->times, (uint32_t)entry->id, false);
}

/* Of a queue that is a copy. */
static void fork_entries(const struct event *e, entry_array *entries)
{
    entry_array from = *entries;
    *entries = (entry_array){0};
    array_append(entries, from.at, from.n);
    time_anew(e, entries->at, entries->n);
}

struct event *event_fork(const struct event *from)
{
    struct event *e = mem_array(1, sizeof *e);
    struct dispatch *d = &e->dispatch;
    assert(!from->has_shares && from->options->end_prev == 0);
    *e = *from;
    e->arena = (struct arena){0};
    e->past = e->passing = (ids_array){0};
    e->held.at = NULL;
    e->held.n = e->held.cap = 0;
    array_append(&e->held, from->held.at, from->held.n);
    e->slots = arena_copy(&e->arena, e->slots, e->options->n_copies, sizeof *e->slots);
    for (uint32_t c = 0; c < e->options->n_copies; c++)
        e->slots[c] = e->slots[c] ? fork_slot(e, e->slots[c]) : NULL;
    d->matches = arena_copy(&e->arena, d->matches, (size_t)d->n_leaves * 2, sizeof *d->matches);
    if (e->has_roots)
        e->roots = arena_copy(&e->arena, e->roots, d->n_leaves, sizeof *e->roots);
    d->queues = queue_array(&e->arena, d->n_leaves);
    memcpy(d->queues, from->dispatch.queues, d->n_leaves * sizeof *d->queues);
    EACH_OF (struct queue, queue, d->queues, d->n_leaves) {
        if (queue->pool)
            queue->pool = arena_copy(&e->arena, queue->pool, 1, pool_size(queue->pool->n));
        time_anew(e, &queue->head, 1);
        entry_array line = {.at = queue->line, .n = queue->line_n};
        fork_entries(e, &line);
        queue->line = line.at;
        queue->line_cap = (uint32_t)line.cap;
        fork_entries(e, &queue->rest);
    }
    return e;
}
