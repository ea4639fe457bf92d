/* Counts the predecessors that ops wait for, and finds when one is ready that leaves its latest
 * ones out.
 *
 * Such an op gets ready when all but `spare` of its predecessors have ended. Ends become known as
 * predecessors are started, and one that starts later may end earlier: the op queues for the moment
 * that is known so far, and once more for every earlier one that comes up before. When the queue
 * gets to that moment nothing earlier can come up any more; the entries that are left are stale. */

#include "replay/pending.h"

static void count_up(const struct dpro_graph *g, const uint32_t *row, const uint32_t *succ,
                     uint16_t *counts)
{
    for (uint32_t i = 0; i < row[g->n_ops]; i++)
        counts[succ[i]] += counts[succ[i]] < SPARES;
}

static uint16_t *count_predecessors(const struct dpro_graph *g, bool next, struct arena *arena)
{
    uint16_t *counts = arena_array(arena, (size_t)g->n_ops + 1, sizeof *counts);
    count_up(g, g->row, g->succ, counts);
    if (next)
        count_up(g, g->next_row, g->next_succ, counts);
    for (uint32_t op = 0; op < g->n_ops; op++)
        if (counts[op] == SPARES || (counts[op] > 0 && g->spare[op]))
            counts[op] = SPARES | 1;
    return counts;
}

/* UINT32_MAX: it is none. */
static uint32_t spared_of(const struct pending *p, uint32_t op)
{
    uint32_t at = LOWER_BOUND(i, 0, p->n_spared, p->spared[i].op < op);
    return at < p->n_spared && p->spared[at].op == op ? at : UINT32_MAX;
}

static void count_spared(struct pending *p, const uint32_t *row, const uint32_t *succ, bool later)
{
    for (uint32_t i = 0; i < row[p->g->n_ops]; i++) {
        uint32_t at = spared_of(p, succ[i]);
        if (at != UINT32_MAX)
            p->spared[at].n[later]++;
    }
}

static void find_spared(struct pending *p, const uint16_t *counts, struct arena *arena)
{
    const struct dpro_graph *g = p->g;
    SCRATCH ARRAY(struct spared) found = {0};
    for (uint32_t op = 0; op < g->n_ops; op++)
        if (counts[op] > COUNT || g->spare[op])
            array_add(&found, .op = op);
    p->spared = arena_copy(arena, found.at, found.n, sizeof *p->spared);
    p->n_spared = (uint32_t)found.n;
    if (p->n_spared == 0)
        return;
    count_spared(p, g->row, g->succ, false);
    count_spared(p, g->next_row, g->next_succ, true);
    for (uint32_t i = 0; i < p->n_spared; i++) {
        p->spared[i].n[true] += p->spared[i].n[false];
        p->spared[i].first_end = p->n_spared_ends;
        p->n_spared_ends += p->spared[i].n[true];
    }
}

bool pending_spared(const struct pending *p, struct slot *slot, uint32_t op, int64_t end,
                    int64_t *ready)
{
    uint32_t index = spared_of(p, op);
    const struct spared *spared = &p->spared[index];
    struct spared_state *state = &slot->spared[index];
    int64_t *ends = slot->spared_ends + spared->first_end;
    uint32_t n = spared->n[slot->times.number > 0], spare = p->g->spare[op];
    uint32_t needed = n > spare ? n - spare : 1;
    slot->pending[op]++; /* it is looked at each time one of its predecessors ends */
    ends[state->n_known++] = end;
    if (state->has_run || state->n_known < needed)
        return false;
    int64_t earliest = graph_all_but_latest(ends, state->n_known, state->n_known - needed);
    if (state->n_known > needed && earliest >= slot->times.end_ns[op])
        return false; /* queued for that already */
    *ready = slot->times.end_ns[op] = earliest;
    return true;
}

bool pending_is_stale(const struct pending *p, struct slot *slot, uint32_t op)
{
    if (!p->g->spare[op])
        return false;
    struct spared_state *state = slot ? &slot->spared[spared_of(p, op)] : NULL;
    if (!state || state->has_run)
        return true;
    state->has_run = true;
    return false;
}

void pending_init(struct pending *p, const struct dpro_graph *graph, uint32_t n_copies,
                  struct arena *arena)
{
    *p = (struct pending){.g = graph, .first = count_predecessors(graph, false, arena)};
    if (n_copies > 1)
        p->later = count_predecessors(graph, true, arena);
    find_spared(p, n_copies > 1 ? p->later : p->first, arena);
}

void pending_open(const struct pending *p, bool last, struct slot *slot)
{
    uint16_t *counts = slot->times.number ? p->later : p->first;
    struct arena *a = &slot->arena;
    slot->n_left = p->g->n_ops;
    slot->pending = last ? counts : arena_copy(a, counts, p->g->n_ops, sizeof *counts);
    if (p->n_spared) {
        slot->spared = arena_array(a, p->n_spared, sizeof *slot->spared);
        slot->spared_ends = arena_array(a, p->n_spared_ends + (size_t)1, sizeof(int64_t));
    }
}
