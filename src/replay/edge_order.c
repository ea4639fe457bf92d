/* Where edges alone say in which order a device runs its ops. On most devices each op waits for the
 * one before, in a chain that goes on in the next copy. If that holds of all devices, any order of
 * the ops that keeps the edges is the one in which the event-driven engine runs them. */

#include "replay/replay.h"

static bool has_edge(const uint32_t *row, const uint32_t *succ, uint32_t from, uint32_t to)
{
    for (uint32_t i = row ? row[from] : 0; row && i < row[from + 1]; i++)
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

/* Kahn's algorithm with a stack: what runs on lies side by side. The stack stands behind what is in
 * order. */
static void sort_ops(const struct dpro_graph *g, uint32_t *order)
{
    uint32_t n = g->n_ops, done = 0, top = n;
    SCRATCH uint32_t *left = mem_array((size_t)n + 1, sizeof *left);
    for (uint32_t e = 0; e < g->row[n]; e++)
        left[g->succ[e]]++;
    for (uint32_t op = n; op-- > 0;)
        if (left[op] == 0)
            order[--top] = op;
    while (top < n) {
        uint32_t op = order[done++] = order[top++];
        for (uint32_t e = g->row[op + 1]; e-- > g->row[op];)
            if (--left[g->succ[e]] == 0)
                order[--top] = g->succ[e];
    }
}

bool edge_order(const struct dpro_graph *g, bool one_copy, uint32_t *order)
{
    SCRATCH_ARENA struct arena work = {0};
    bool *ordered = edge_ordered_devices(g, one_copy, &work), all = !g->spare;
    for (uint32_t d = 0; d < g->n_devices; d++)
        all &= ordered[d];
    if (all)
        sort_ops(g, order);
    return all;
}
