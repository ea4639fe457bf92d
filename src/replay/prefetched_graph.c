/* PyTorch's fully_shard splits a gather in two: the all-gather, for which another unit may ask
 * ahead, and copying out of it, which the unit does itself right before its pass. On a CPU a thread
 * waits for an all-gather where it asks for it. So the all-gather's ops go, with their messages,
 * behind the copying of the unit that asks. */
#include "replay/prefetched_graph.h"

#include <string.h>

#include "base/memory.h"
#include "base/sort.h"
#include "graph/builder.h"
#include "replay/graph_edit.h"
#include "replay/resharded_memory.h"

/* ---- which units ---- */

struct unit_time {
    uint32_t unit;
    int64_t first_ns; /* when the first rank gathers it for its forward pass */
};

ORDER(by_first, struct unit_time, ASCENDING(first_ns) ?: ASCENDING(unit));

/* Others lie within it: it asks for none of them in a row. */
static bool is_around(const struct dpro_graph *g, uint32_t unit)
{
    const char *name = graph_unit_name(g, unit);
    size_t n = strlen(name);
    for (uint32_t u = 0; u < g->n_units; u++) {
        const char *other = graph_unit_name(g, u);
        if (u != unit && strncmp(name, other, n) == 0 && (n == 0 || other[n] == '.'))
            return true;
    }
    return false;
}

/* Units in the order of their forward passes; returns how many. */
static uint32_t list_units(const struct dpro_graph *g, struct unit_time *units)
{
    const struct graph_rank *rank = &g->ranks[0];
    uint32_t n = 0;
    for (uint32_t u = 0; u < g->n_units; u++) {
        struct unit_time it = {u, INT64_MAX};
        for (uint32_t op = rank->first_op; op < rank->first_op + rank->n_ops; op++)
            if (g->gather[op] == GATHER(u, false))
                it.first_ns = MIN(it.first_ns, g->seen_start_ns[op]);
        if (it.first_ns < INT64_MAX && !is_around(g, u))
            units[n++] = it;
    }
    qsort(units, n, sizeof *units, by_first);
    return n;
}

/* ---- their ops ---- */

static bool is_on_thread(const struct dpro_graph *g, uint32_t op)
{
    return g->device[op] != DPRO_NO_DEVICE &&
           g->devices[g->device[op]].kind == DPRO_DEVICE_CPU_THREAD;
}

/* When each rank has what a gather brings; INT64_MIN: it takes no part. */
static void find_ends(const struct dpro_graph *g, uint32_t gather, int64_t *end_ns)
{
    for (uint32_t r = 0; r < g->n_ranks; r++)
        end_ns[r] = INT64_MIN;
    EACH_OF (const struct graph_collective, c, g->collectives, g->n_collectives)
        for (uint32_t m = c->first_member; m < c->first_member + c->n_members; m++) {
            uint32_t op = g->members[m].transfer, rank = g->rank[op];
            if (g->gather[op] == gather)
                end_ns[rank] = MAX(end_ns[rank], g->seen_start_ns[op] + g->seen_dur_ns[op]);
        }
}

/* The last op that copies out, by rank. */
static bool find_anchors(const struct dpro_graph *g, uint32_t gather, uint32_t *after)
{
    int64_t *end_ns = mem_alloc((g->n_ranks + (size_t)1) * sizeof *end_ns);
    bool all = true;
    find_ends(g, gather, end_ns);
    for (uint32_t r = 0; r < g->n_ranks; r++)
        after[r] = DPRO_NO_OP;
    for (uint32_t op = 0; op < g->n_ops; op++) {
        uint32_t *last = &after[g->rank[op]];
        if (g->gather[op] == gather && is_on_thread(g, op) && end_ns[g->rank[op]] > INT64_MIN &&
            g->seen_start_ns[op] >= end_ns[g->rank[op]] &&
            (*last == DPRO_NO_OP || g->seen_start_ns[op] >= g->seen_start_ns[*last]))
            *last = op;
    }
    for (uint32_t r = 0; r < g->n_ranks; r++)
        all &= after[r] != DPRO_NO_OP;
    mem_free(end_ns);
    return all;
}

static void list_all_gather(const struct dpro_graph *g, uint32_t gather, struct arena *arena,
                            struct op_copies *copies)
{
    int64_t *end_ns = mem_alloc((g->n_ranks + (size_t)1) * sizeof *end_ns);
    uint32_t n = 0, *ops;
    find_ends(g, gather, end_ns);
    for (uint32_t op = 0; op < g->n_ops; op++)
        n += g->gather[op] == gather;
    copies->ops = ops = arena_array(arena, n + (size_t)1, sizeof *ops);
    for (uint32_t op = 0; op < g->n_ops; op++) {
        bool copies_out = is_on_thread(g, op) && g->seen_start_ns[op] >= end_ns[g->rank[op]];
        if (g->gather[op] == gather && !copies_out)
            ops[copies->n++] = op;
    }
    mem_free(end_ns);
}

/* ---- the graph ---- */

static int unknown(struct dpro_error *err)
{
    return dpro_error_set(err, DPRO_EUSAGE,
                          "nothing shows when FSDP gathers parameters: --prefetch can be asked for "
                          "of jobs with fully_shard that 'dpro profile' recorded");
}

static int check(const struct dpro_graph *g, struct dpro_error *err)
{
    bool any = false, gpu = false;
    for (uint32_t op = 0; g->gather && op < g->n_ops; op++) {
        any |= g->gather[op] != 0;
        gpu |= g->gather[op] != 0 && (g->flags[op] & GRAPH_OP_GPU);
    }
    if (!any || !g->seen_start_ns || !g->seen_dur_ns)
        return unknown(err);
    if (gpu)
        return dpro_error_set(err, DPRO_EUSAGE,
                              "where on a GPU's streams parameters would be gathered ahead is not "
                              "known: --prefetch is told of jobs on CPUs");
    return 0;
}

/* Whether each rank's thread waits for the all-gather where it asks for it. */
static bool is_waited_for(const struct dpro_graph *g, const struct op_copies *of)
{
    for (uint32_t i = 0; i < of->n; i++) {
        uint32_t op = of->ops[i];
        bool waited = g->kind[op] != DPRO_OP_COLLECTIVE;
        for (uint32_t e = g->row[op]; e < g->row[op + 1] && !waited; e++)
            waited = g->rank[g->succ[e]] == g->rank[op] && is_on_thread(g, g->succ[e]);
        if (!waited)
            return false;
    }
    return true;
}

/* Of a backward pass, whether the unit is asked for there as recorded: behind that one's copying
 * and before the next one's. */
static bool stays(const struct dpro_graph *g, const struct op_copies *of, uint32_t next)
{
    int64_t first_ns = INT64_MAX;
    uint32_t *after = mem_alloc((g->n_ranks + (size_t)1) * sizeof *after);
    for (uint32_t i = 0; i < of->n; i++)
        if (g->rank[of->ops[i]] == 0 && is_on_thread(g, of->ops[i]))
            first_ns = MIN(first_ns, g->seen_start_ns[of->ops[i]]);
    bool before_next = find_anchors(g, next, after) && first_ns < g->seen_start_ns[after[0]];
    mem_free(after);
    return before_next && first_ns > g->seen_start_ns[of->after[0]];
}

/* In a pass, each of the chain but its first unit. */
static int move_units(const struct dpro_graph *g, const uint32_t *chain, uint32_t n, bool backward,
                      uint32_t distance, struct arena *arena, struct graph_edit *edit,
                      struct op_copies *copies, struct unit_move *moves, struct dpro_error *err)
{
    for (uint32_t i = 1; i < n; i++) {
        uint32_t asks = i - MIN(distance, i);
        uint32_t *after = arena_array(arena, g->n_ranks + (size_t)1, sizeof *after);
        struct unit_move move = {GATHER(chain[i], backward), GATHER(chain[asks], backward)};
        struct op_copies of = {.after = after};
        list_all_gather(g, move.gather, arena, &of);
        if (of.n == 0) /* it keeps its parameters */
            continue;
        if (!find_anchors(g, move.behind, after))
            return dpro_error_set(err, DPRO_EUSAGE,
                                  "unit '%.200s' does not copy out what it gathers in the "
                                  "iteration that was recorded: from where it would ask for the "
                                  "next ones is not known",
                                  graph_unit_name(g, chain[asks]));
        if (backward && stays(g, &of, GATHER(chain[asks + 1], true)))
            continue;
        if (!is_waited_for(g, &of))
            return dpro_error_set(err, DPRO_EUSAGE,
                                  "nothing shows where a thread waits for what unit '%.200s' "
                                  "gathers: record the job anew with 'dpro profile'",
                                  graph_unit_name(g, chain[i]));
        moves[edit->n_copies] = move;
        copies[edit->n_copies++] = of;
    }
    return 0;
}

int prefetched_graph(const struct dpro_graph *graph, uint32_t distance, struct arena *arena,
                     struct dpro_graph *to, uint32_t *n_moved, uint32_t *n_in_row,
                     struct dpro_error *err)
{
    const struct dpro_graph *g = graph;
    int rc = check(g, err);
    if (rc < 0)
        return rc;
    struct unit_time *units = arena_array(arena, g->n_units + (size_t)1, sizeof *units);
    uint32_t n = list_units(g, units);
    uint32_t *chain = arena_array(arena, n + (size_t)1, sizeof *chain);
    struct op_copies *copies = arena_array(arena, 2 * (size_t)n + 1, sizeof *copies);
    struct unit_move *moves = arena_array(arena, 2 * (size_t)n + 1, sizeof *moves);
    bool *gone = arena_array(arena, g->n_ops + (size_t)1, sizeof *gone);
    struct graph_edit edit = {.graph = g, .gone = gone, .copies = copies};
    for (int backward = 0; backward < 2 && rc == 0; backward++) {
        for (uint32_t i = 0; i < n; i++)
            chain[i] = units[backward ? n - 1 - i : i].unit;
        rc = move_units(g, chain, n, backward, distance, arena, &edit, copies, moves, err);
    }
    if (rc < 0)
        return rc;
    for (uint32_t c = 0; c < edit.n_copies; c++)
        for (uint32_t i = 0; i < copies[c].n; i++)
            gone[copies[c].ops[i]] = true;
    const uint32_t *from, *new_op;
    graph_edited(&edit, arena, to, &from, &new_op);
    if (graph_check_acyclic(to, NULL) < 0)
        return dpro_error_set(err, DPRO_EUSAGE,
                              "ranks gather the parameters of their units in different orders: "
                              "where these would be gathered ahead is not known");
    *n_moved = edit.n_copies;
    *n_in_row = n;
    to->units = arena_array(arena, g->n_units + (size_t)1, sizeof *to->units);
    for (uint32_t u = 0; u < g->n_units; u++) {
        to->units[u] = g->units[u];
        to->units[u].request = arena_array(arena, g->n_ranks + (size_t)1, sizeof(uint32_t));
        for (uint32_t r = 0; r < g->n_ranks; r++) {
            uint32_t request = g->units[u].request[r];
            to->units[u].request[r] = request == DPRO_NO_OP ? DPRO_NO_OP : new_op[request];
        }
    }
    if (!g->memory)
        return 0;
    to->memory = arena_array(arena, g->n_ranks + (size_t)1, sizeof *to->memory);
    for (uint32_t r = 0; r < g->n_ranks; r++)
        to->memory[r] = prefetched_memory(&g->memory[r], moves, edit.n_copies, new_op, arena);
    return 0;
}
