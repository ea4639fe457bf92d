/* Shortest paths over clocks, arcs of negative length included (Bellman and Ford, with a queue of
 * those whose value fell). Times that bound each other from above are such paths: the tightest
 * bound is the shortest one, and a cycle of negative length is a contradiction. */

#include "align/solver.h"

/* Less than this is no improvement: rounding. */
#define STEP_NS 1e-4

/* Arcs by which values fell last form a tree, unless there are negative cycles; these are looked
 * for now and then. */
static bool find_cycles(const struct align *a, const uint32_t *parent, bool reverse,
                        uint32_t *visited, struct arc_cycles *cycles)
{
    uint32_t n_arcs = 0;
    cycles->n = 0;
    for (uint32_t c = 0; c < a->n_clocks; c++)
        visited[c] = ALIGN_NONE;
    for (uint32_t c = 0; c < a->n_clocks; c++) {
        uint32_t at = c;
        while (visited[at] == ALIGN_NONE && parent[at] != ALIGN_NONE) {
            visited[at] = c;
            at = reverse ? arc_to(a, parent[at]) : arc_from(a, parent[at]);
        }
        if (visited[at] != c || parent[at] == ALIGN_NONE)
            continue;
        uint32_t end = at;
        do {
            cycles->arcs[n_arcs++] = parent[at];
            at = reverse ? arc_to(a, parent[at]) : arc_from(a, parent[at]);
        } while (at != end);
        cycles->ends[cycles->n++] = n_arcs;
    }
    return cycles->n > 0;
}

static bool shortest_relax(const struct align *a, const double *weight, bool reverse, double *value,
                           struct arc_cycles *cycles)
{
    uint32_t n = a->n_clocks, head = 0, n_queued = 0, n_since = 0;
    SCRATCH_ARENA struct arena arena = {0};
    uint32_t *queue = arena_array(&arena, n + (size_t)1, sizeof *queue);
    uint32_t *parent = arena_array(&arena, n + (size_t)1, sizeof *parent);
    uint32_t *visited = arena_array(&arena, n + (size_t)1, sizeof *visited);
    bool *queued = arena_array(&arena, n + (size_t)1, sizeof *queued);
    bool found = false; /* cycles */
    for (uint32_t c = 0; c < n; c++) {
        parent[c] = ALIGN_NONE;
        if (isinf(value[c]))
            continue;
        queue[n_queued++] = c;
        queued[c] = true;
    }
    while (n_queued > 0 && !found) {
        uint32_t at = queue[head];
        head = head + 1 == n ? 0 : head + 1;
        n_queued--;
        queued[at] = false;
        for (uint32_t i = a->row[at]; i < a->row[at + 1]; i++) {
            uint32_t arc = a->arcs[i];
            if ((reverse ? arc_to(a, arc) : arc_from(a, arc)) != at || isinf(weight[arc]))
                continue;
            uint32_t to = reverse ? arc_from(a, arc) : arc_to(a, arc);
            if (!(value[at] + weight[arc] < value[to] - STEP_NS))
                continue;
            value[to] = value[at] + weight[arc];
            parent[to] = arc;
            n_since++;
            if (!queued[to]) {
                uint32_t end = head + n_queued++;
                queue[end >= n ? end - n : end] = to;
                queued[to] = true;
            }
        }
        if (n_since >= n) {
            n_since = 0;
            found = find_cycles(a, parent, reverse, visited, cycles);
        }
    }
    return !found;
}

bool paths_relax(const struct align *a, const double *weight, double *most, double *least,
                 struct arc_cycles *cycles)
{
    return shortest_relax(a, weight, false, most, cycles) &&
           shortest_relax(a, weight, true, least, cycles);
}

bool paths_from_reference(const struct align *a, const double *weight, double *most, double *least,
                          struct arc_cycles *cycles)
{
    for (uint32_t c = 0; c < a->n_clocks; c++)
        most[c] = least[c] = c == 0 ? 0 : INFINITY;
    return paths_relax(a, weight, most, least, cycles);
}
