/* A unit that keeps its parameters is not gathered for its backward pass, and what its forward pass
 * gathered lives until the end of the backward pass. A unit that frees them is gathered for its
 * backward pass as for the forward pass, when PyTorch would ask for it. */
#include "replay/resharded_graph.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sort.h"
#include "graph/builder.h"
#include "replay/graph_edit.h"
#include "replay/resharded_memory.h"

/* ---- which units ---- */

/* How many ops gather it. */
static uint32_t n_gathers(const struct dpro_graph *g, uint32_t unit, bool backward)
{
    uint32_t n = 0;
    for (uint32_t op = 0; op < g->n_ops; op++)
        n += g->gather[op] == GATHER(unit, backward);
    return n;
}

static int no_such_unit(const struct dpro_graph *g, const char *name, struct dpro_error *err)
{
    char some[200] = "";
    for (uint32_t u = 0; u < g->n_units && strlen(some) < sizeof some - 80; u++)
        if (graph_unit_name(g, u)[0] != '\0')
            snprintf(some + strlen(some), sizeof some - strlen(some), "%s%.60s",
                     some[0] ? ", " : "", graph_unit_name(g, u));
    return dpro_error_set(err, DPRO_EUSAGE, "no FSDP unit of the job is named '%.200s'; it has %s",
                          name, some[0] ? some : "only the model as a whole");
}

/* The model as a whole, whose name is empty, is meant by no pattern. */
static int choose_names(const struct dpro_graph *g, const char *text, bool *chosen,
                        struct dpro_error *err)
{
    char *rest = NULL, *names = mem_copy_string(text);
    int rc = 0;
    for (char *name = strtok_r(names, ",", &rest); name && rc == 0;
         name = strtok_r(NULL, ",", &rest)) {
        bool any = false;
        name += strspn(name, " ");
        for (uint32_t u = 0; u < g->n_units; u++)
            if (graph_unit_name(g, u)[0] != '\0' && fnmatch(name, graph_unit_name(g, u), 0) == 0)
                any = chosen[u] = true;
        if (!any)
            rc = no_such_unit(g, name, err);
    }
    mem_free(names);
    return rc;
}

static int choose(const struct dpro_graph *g, const char *text, struct resharding *r,
                  struct arena *arena, struct dpro_error *err)
{
    bool all = strcmp(text, "all") == 0, none = strcmp(text, "none") == 0, any = false;
    r->before = arena_array(arena, (size_t)g->n_units + 1, sizeof *r->before);
    r->after = arena_array(arena, (size_t)g->n_units + 1, sizeof *r->after);
    for (uint32_t u = 0; u < g->n_units; u++) {
        r->before[u] = n_gathers(g, u, true) > 0;
        r->after[u] = all && (r->before[u] || n_gathers(g, u, false) > 0);
        any |= r->before[u] || n_gathers(g, u, false) > 0;
    }
    if (!any)
        return dpro_error_set(err, DPRO_EUSAGE,
                              "nothing shows that FSDP gathers parameters: resharding can be asked "
                              "for of jobs with fully_shard that 'dpro profile' recorded");
    int rc = all || none ? 0 : choose_names(g, text, r->after, err);
    for (uint32_t u = 0; u < g->n_units; u++)
        r->n_changed += r->before[u] != r->after[u];
    return rc;
}

/* ---- what becomes of the ops ---- */

/* The op before one on its device; DPRO_NO_OP: there is none. */
static uint32_t op_before(const struct dpro_graph *g, uint32_t op)
{
    const struct graph_rank *rank = &g->ranks[g->rank[op]];
    for (uint32_t from = rank->first_op; from < rank->first_op + rank->n_ops; from++)
        for (uint32_t i = g->row[from]; i < g->row[from + 1]; i++)
            if (g->succ[i] == op && g->device[from] == g->device[op])
                return from;
    return DPRO_NO_OP;
}

/* Where the op after which a unit is asked for goes, as part of another unit's gather, it is the
 * one before that. */
static int copy_gather(const struct dpro_graph *g, uint32_t unit, const bool *gone,
                       struct op_copies *copies, struct arena *arena, struct dpro_error *err)
{
    uint32_t n = 0, *ops = arena_array(arena, (size_t)n_gathers(g, unit, false) + 1, sizeof *ops);
    uint32_t *after = arena_alloc(arena, g->n_ranks * sizeof *after);
    bool on_gpu = false, whole = true;
    memcpy(after, g->units[unit].request, g->n_ranks * sizeof *after);
    for (uint32_t op = 0; op < g->n_ops; op++)
        if (g->gather[op] == GATHER(unit, false)) {
            ops[n++] = op;
            on_gpu |= (g->flags[op] & GRAPH_OP_GPU) != 0;
        }
    for (uint32_t r = 0; r < g->n_ranks; r++) {
        while (after[r] != DPRO_NO_OP && gone[after[r]])
            after[r] = op_before(g, after[r]);
        whole &= after[r] != DPRO_NO_OP;
    }
    *copies = (struct op_copies){ops, n, after};
    if (n == 0 || !whole)
        return dpro_error_set(err, DPRO_EUSAGE,
                              "unit '%.200s' is not gathered in the iteration that was recorded, "
                              "or has no backward pass there: what gathering it again takes is not "
                              "known",
                              graph_unit_name(g, unit));
    if (on_gpu)
        return dpro_error_set(err, DPRO_EUSAGE,
                              "unit '%.200s' kept its parameters in the job that was recorded: "
                              "where on its GPU's streams they would be gathered again is not "
                              "known; record the job with reshard_after_forward, and ask for "
                              "'--reshard none'",
                              graph_unit_name(g, unit));
    return 0;
}

ORDER(by_request, struct op_copies,
      COMPARE(x->after[0], y->after[0]) ?: COMPARE(x->ops[0], y->ops[0]));

static int edit_ops(const struct dpro_graph *g, const struct resharding *r, struct arena *arena,
                    struct dpro_graph *to, const uint32_t **new_op, struct dpro_error *err)
{
    bool *gone = arena_array(arena, (size_t)g->n_ops + 1, sizeof *gone);
    struct op_copies *copies = arena_array(arena, (size_t)g->n_units + 1, sizeof *copies);
    struct graph_edit edit = {.graph = g, .gone = gone, .copies = copies};
    const uint32_t *from;
    int rc = 0;
    for (uint32_t op = 0; op < g->n_ops; op++) {
        uint32_t unit = g->gather[op] ? GATHER_UNIT(g->gather[op]) : 0;
        gone[op] = g->gather[op] == GATHER(unit, true) && r->before[unit] && !r->after[unit];
    }
    for (uint32_t u = 0; u < g->n_units && rc == 0; u++)
        if (!r->before[u] && r->after[u])
            rc = copy_gather(g, u, gone, &copies[edit.n_copies++], arena, err);
    if (rc < 0)
        return rc;
    qsort(copies, edit.n_copies, sizeof *copies, by_request);
    graph_edited(&edit, arena, to, &from, new_op);
    if (edit.n_copies > 0 && graph_check_acyclic(to, NULL) < 0)
        return dpro_error_set(err, DPRO_EUSAGE,
                              "ranks ask for the parameters of their units in different orders: "
                              "where these would be gathered again is not known");
    return 0;
}

int resharded_graph(const struct dpro_graph *graph, const char *names, struct arena *arena,
                    struct dpro_graph *to, struct resharding *resharding, struct dpro_error *err)
{
    const uint32_t *new_op;
    *resharding = (struct resharding){.n_changed = 0};
    int rc = choose(graph, names, resharding, arena, err);
    if (rc == 0)
        rc = edit_ops(graph, resharding, arena, to, &new_op, err);
    if (rc < 0 || !graph->memory)
        return rc;
    to->memory = arena_array(arena, (size_t)graph->n_ranks + 1, sizeof *to->memory);
    for (uint32_t r = 0; r < graph->n_ranks; r++)
        to->memory[r] = resharded_memory(&graph->memory[r], resharding, new_op, arena);
    return 0;
}
