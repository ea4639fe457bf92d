/* replay/pending.c: see pending.h. */
#include "replay/pending.h"

#include <stdlib.h>
#include <string.h>

#include "base/sort.h"

struct spared_state {
    uint32_t n_known;
    bool has_run;
};

static uint32_t wide_index(const struct counts *counts, uint32_t op)
{
    return LOWER_BOUND(i, 0, counts->n_wide, counts->wide_op[i] < op);
}

static void add_small(uint8_t *small, const uint32_t *succ, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (small[succ[i]] != WIDE)
            small[succ[i]]++;
}

static void add_wide(struct counts *counts, const uint32_t *succ, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (counts->small[succ[i]] == WIDE)
            counts->wide[wide_index(counts, succ[i])]++;
}

static int count_predecessors(const struct dpro_graph *g, bool next, struct arena *arena,
                              struct counts *counts)
{
    uint32_t n = g->n_ops, n_same = g->row[n], n_next = next ? g->next_row[n] : 0, n_wide = 0;
    counts->small = arena_array(arena, (size_t)n + 1, 1);
    if (!counts->small)
        return -1;
    add_small(counts->small, g->succ, n_same);
    add_small(counts->small, g->next_succ, n_next);
    for (uint32_t op = 0; op < n; op++)
        n_wide += counts->small[op] == WIDE;
    if (n_wide == 0)
        return 0;
    counts->wide_op = arena_array(arena, n_wide, sizeof *counts->wide_op);
    counts->wide = arena_array(arena, n_wide, sizeof *counts->wide);
    if (!counts->wide_op || !counts->wide)
        return -1;
    for (uint32_t op = 0; op < n; op++)
        if (counts->small[op] == WIDE)
            counts->wide_op[counts->n_wide++] = op;
    add_wide(counts, g->succ, n_same);
    add_wide(counts, g->next_succ, n_next);
    return 0;
}

static uint32_t spared_of(const struct pending *p, uint32_t op)
{
    return LOWER_BOUND(i, 1, p->n_spared, p->spared[i].op <= op) - 1;
}

static int find_spared(struct pending *p, struct arena *arena)
{
    const struct dpro_graph *g = p->g;
    uint32_t n = 0;
    for (uint32_t op = 0; op < g->n_ops; op++)
        n += g->spare[op] > 0;
    p->spared = arena_array(arena, n + (size_t)1, sizeof *p->spared);
    if (!p->spared)
        return -1;
    for (uint32_t op = 0; op < g->n_ops; op++)
        if (g->spare[op])
            p->spared[p->n_spared++] = (struct spared){.op = op};
    for (uint32_t op = 0; op < g->n_ops && n > 0; op++)
        for (uint32_t i = g->row[op]; i < g->row[op + 1]; i++)
            if (g->spare[g->succ[i]])
                p->spared[spared_of(p, g->succ[i])].n++;
    for (uint32_t i = 0; i < n; i++) {
        p->spared[i].first = p->n_spared_ends;
        p->n_spared_ends += p->spared[i].n;
    }
    return 0;
}

int pending_init(struct pending *p, const struct dpro_graph *graph, uint32_t n_copies,
                 struct arena *arena)
{
    *p = (struct pending){.g = graph};
    if (count_predecessors(graph, false, arena, &p->first) < 0 ||
        (n_copies > 1 && count_predecessors(graph, graph->next_row != NULL, arena, &p->later) < 0))
        return -1;
    return graph->spare ? find_spared(p, arena) : 0;
}

static void *copy_of(struct arena *arena, const void *from, size_t size)
{
    void *copy = arena_alloc(arena, size);
    return copy ? memcpy(copy, from, size) : NULL;
}

int pending_open(const struct pending *p, bool last, struct slot *slot)
{
    const struct counts *counts = slot->times.number ? &p->later : &p->first;
    struct arena *a = &slot->arena;
    slot->n_left = p->g->n_ops;
    slot->pending = last ? counts->small : copy_of(a, counts->small, (size_t)p->g->n_ops + 1);
    if (counts->n_wide)
        slot->wide = copy_of(a, counts->wide, counts->n_wide * sizeof *slot->wide);
    if (p->n_spared) {
        slot->spared = arena_array(a, p->n_spared, sizeof *slot->spared);
        slot->spared_ends = arena_array(a, p->n_spared_ends + (size_t)1, sizeof(int64_t));
    }
    return slot->pending && (slot->wide || !counts->n_wide) &&
                   ((slot->spared && slot->spared_ends) || !p->n_spared)
               ? 0
               : -1;
}

bool pending_wide(const struct pending *p, struct slot *slot, uint32_t op)
{
    return --slot->wide[wide_index(slot->times.number ? &p->later : &p->first, op)] == 0;
}

bool pending_spared(const struct pending *p, struct slot *slot, uint32_t op, int64_t end,
                    int64_t *ready)
{
    uint32_t index = spared_of(p, op);
    const struct spared *spared = &p->spared[index];
    struct spared_state *state = &slot->spared[index];
    int64_t *ends = slot->spared_ends + spared->first;
    uint32_t needed = spared->n > p->g->spare[op] ? spared->n - p->g->spare[op] : 1;
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
    if (!p->n_spared || !p->g->spare[op])
        return false;
    struct spared_state *state = slot ? &slot->spared[spared_of(p, op)] : NULL;
    if (!state || state->has_run)
        return true;
    state->has_run = true;
    return false;
}
