/* What-ifs of FSDP's units: kept, freed or gathered ahead.
 *
 * A unit that keeps its parameters is not gathered for its backward pass, and what its forward pass
 * gathered lives until the end of the backward pass. A unit that frees them is gathered for its
 * backward pass as for the forward pass, when PyTorch would ask for it.
 *
 * PyTorch's fully_shard splits a gather in two: the all-gather, for which another unit may ask
 * ahead, and copying out of it, which the unit does itself right before its pass. On a CPU a thread
 * waits for an all-gather where it asks for it. So the all-gather goes, with the waiting for it,
 * behind the copying of the unit that asks. */
#include "cost/change/change_units.h"

#include <fnmatch.h>

#include "cost/program/evaluate.h"
#include "cost/program/model_memory.h"
#include "graph/graph.h"

bool asks_for_units(const struct dpro_changes *c)
{
    return c->reshard || c->prefetch > 0;
}

struct asking {
    const struct dpro_graph *g;
    struct arena *arena;
    struct unit_change *change;
    const uint8_t *gathers; /* by GATHER() */
};

/* How ops gather what GATHER() says. */
enum { GATHERED = 1, ON_GPU = 2 };

static const uint8_t *list_gathers(const struct dpro_graph *g, struct arena *arena)
{
    uint8_t *gathers = arena_array(arena, GATHER(g->n_units, true) + (size_t)1, 1);
    for (uint32_t op = 0; g->gather && op < g->n_ops; op++)
        if (g->gather[op] != 0)
            gathers[g->gather[op]] |= g->flags[op] & GRAPH_OP_GPU ? GATHERED | ON_GPU : GATHERED;
    return gathers;
}

static struct program_edit *add_edit(const struct asking *a, enum program_edit_kind kind,
                                     uint32_t gather, uint32_t behind)
{
    struct unit_change *change = a->change;
    struct program_edit *edit = &change->edits[change->n_edits];
    *edit = (struct program_edit){.kind = kind, .gather = gather};
    change->behind[change->n_edits++] = behind;
    return edit;
}

/* ---- which units free their parameters ---- */

static void no_such_unit(const struct dpro_graph *g, const char *name)
{
    char some[200] = "";
    for (uint32_t u = 0; u < g->n_units && strlen(some) < sizeof some - 80; u++)
        if (graph_unit_name(g, u)[0] != '\0')
            snprintf(some + strlen(some), sizeof some - strlen(some), "%s%.60s",
                     some[0] ? ", " : "", graph_unit_name(g, u));
    refuse("no FSDP unit of the job is named '%.200s'; it has %s", name,
           some[0] ? some : "only the model as a whole");
}

/* The model as a whole, whose name is empty, is meant by no pattern. */
static void choose_names(const struct asking *a, const char *text)
{
    char *rest = NULL, *names = mem_copy_string(text);
    for (char *name = strtok_r(names, ",", &rest); name; name = strtok_r(NULL, ",", &rest)) {
        bool any = false;
        name += strspn(name, " ");
        for (uint32_t u = 0; u < a->g->n_units; u++)
            if (graph_unit_name(a->g, u)[0] != '\0' &&
                fnmatch(name, graph_unit_name(a->g, u), 0) == 0)
                any = (a->change->units[u].reshards = true);
        if (!any)
            no_such_unit(a->g, name);
    }
    mem_free(names);
}

static void units_choose(const struct asking *a, const char *text)
{
    bool all = strcmp(text, "all") == 0, none = strcmp(text, "none") == 0, any = false;
    struct unit_change *change = a->change;
    change->units = arena_array(a->arena, (size_t)a->g->n_units + 1, sizeof *change->units);
    change->n_units = a->g->n_units;
    for (uint32_t u = 0; u < a->g->n_units; u++) {
        bool before = a->gathers[GATHER(u, true)];
        bool gathered = before || a->gathers[GATHER(u, false)];
        change->units[u] = (struct dpro_unit){graph_unit_name(a->g, u), before, all && gathered};
        any |= gathered;
    }
    if (!any)
        refuse("this recording does not show when FSDP gathers parameters: resharding needs a job "
               "with fully_shard that 'dpro profile' recorded");
    if (!all && !none)
        choose_names(a, text);
    for (uint32_t u = 0; u < change->n_units; u++)
        change->n_resharded += change->units[u].reshards_before != change->units[u].reshards;
}

static void gather_again(const struct asking *a, uint32_t unit)
{
    const uint32_t *after = a->g->units[unit].request;
    bool whole = a->gathers[GATHER(unit, false)];
    for (uint32_t r = 0; r < a->g->n_ranks; r++)
        whole &= after[r] != DPRO_NO_OP;
    if (!whole)
        refuse("the recorded iteration does not gather unit '%.200s', or has no backward pass of "
               "it, so gathering it again can't be predicted",
               graph_unit_name(a->g, unit));
    if (a->gathers[GATHER(unit, false)] & ON_GPU)
        refuse("unit '%.200s' kept its parameters in the recorded job, which does not show where "
               "on the GPU's streams they would be gathered again; record the job with "
               "reshard_after_forward, and ask for '--reshard none'",
               graph_unit_name(a->g, unit));
    add_edit(a, EDIT_REPEATS, GATHER(unit, false), 0)->after = after;
}

ORDER(by_request, struct program_edit, COMPARE(x->after[0], y->after[0]) ?: ASCENDING(gather));

static void units_reshard(const struct asking *a, const struct dpro_changes *c)
{
    struct unit_change *change = a->change;
    units_choose(a, c->reshard);
    uint32_t first = change->n_edits;
    for (uint32_t u = 0; u < a->g->n_units; u++)
        if (change->units[u].reshards && !change->units[u].reshards_before)
            gather_again(a, u);
    for (uint32_t u = 0; u < a->g->n_units && c->prefetch > 0; u++)
        if (change->units[u].reshards && !change->units[u].reshards_before)
            refuse("unit '%.200s' kept its parameters in the recorded job, which does not show "
                   "where they would be gathered ahead; ask for --reshard alone",
                   change->units[u].name[0] ? change->units[u].name : "the model as a whole");
    qsort(change->edits + first, change->n_edits - first, sizeof *change->edits, by_request);
    for (uint32_t u = 0; u < a->g->n_units; u++)
        if (!change->units[u].reshards && change->units[u].reshards_before)
            add_edit(a, EDIT_REMOVES, GATHER(u, true), 0);
}

/* ---- which units come one after the other ---- */

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

const struct unit_time *units_in_order(const struct dpro_graph *g, struct arena *arena)
{
    struct unit_time *units = arena_array(arena, g->n_units + (size_t)1, sizeof *units);
    for (uint32_t u = 0; u < g->n_units; u++)
        units[u] = (struct unit_time){u, INT64_MAX};
    for (uint32_t op = 0; op < g->n_ops && g->gather && g->seen_start_ns; op++)
        if (g->gather[op] != 0 && g->gather[op] == GATHER(GATHER_UNIT(g->gather[op]), false)) {
            int64_t *first_ns = &units[GATHER_UNIT(g->gather[op])].first_ns;
            *first_ns = MIN(*first_ns, g->seen_start_ns[op]);
        }
    qsort(units, g->n_units, sizeof *units, by_first);
    return units;
}

/* ---- where they are asked for ahead ---- */

/* Of a gather: the ops that copy out of it, which begin when the rank has what it brings; by rank,
 * the last of these, DPRO_NO_OP: none. */
struct copying {
    bool *ops;
    uint32_t *last;
    bool all; /* ranks copy */
};

static struct copying find_copying(const struct dpro_graph *g, uint32_t gather, struct arena *arena)
{
    struct copying c = {arena_array(arena, g->n_ops + (size_t)1, sizeof *c.ops),
                        arena_array(arena, g->n_ranks + (size_t)1, sizeof *c.last), true};
    int64_t *end_ns = arena_array(arena, g->n_ranks + (size_t)1, sizeof *end_ns);
    for (uint32_t r = 0; r < g->n_ranks; r++)
        end_ns[r] = INT64_MIN;
    EACH_OF (const struct graph_collective, it, g->collectives, g->n_collectives)
        for (uint32_t m = it->first_member; m < it->first_member + it->n_members; m++) {
            uint32_t op = g->members[m].transfer, rank = g->rank[op];
            if (g->gather[op] == gather)
                end_ns[rank] = MAX(end_ns[rank], g->seen_start_ns[op] + g->seen_dur_ns[op]);
        }
    for (uint32_t r = 0; r < g->n_ranks; r++) {
        const struct graph_rank *rank = &g->ranks[r];
        c.last[r] = DPRO_NO_OP;
        for (uint32_t op = rank->first_op; op < rank->first_op + rank->n_ops; op++) {
            c.ops[op] = g->gather[op] == gather && graph_is_on(g, op, DPRO_DEVICE_CPU_THREAD) &&
                        end_ns[r] > INT64_MIN && g->seen_start_ns[op] >= end_ns[r];
            if (c.ops[op] &&
                (c.last[r] == DPRO_NO_OP || g->seen_start_ns[op] >= g->seen_start_ns[c.last[r]]))
                c.last[r] = op;
        }
        c.all &= c.last[r] != DPRO_NO_OP;
    }
    return c;
}

/* Whether each rank's thread waits for the all-gather where it asks for it. */
static bool is_waited_for(const struct dpro_graph *g, uint32_t gather)
{
    for (uint32_t op = 0; op < g->n_ops; op++) {
        bool waited = g->gather[op] != gather || g->kind[op] != DPRO_OP_COLLECTIVE;
        for (uint32_t e = g->row[op]; e < g->row[op + 1] && !waited; e++)
            waited = g->rank[g->succ[e]] == g->rank[op] &&
                     graph_is_on(g, g->succ[e], DPRO_DEVICE_CPU_THREAD);
        if (!waited)
            return false;
    }
    return true;
}

/* Of a backward pass, whether the unit is asked for there as recorded: behind that one's copying
 * and before the next one's. */
static bool units_stays(const struct asking *a, uint32_t gather, const struct copying *own,
                        const struct copying *asks, uint32_t next)
{
    const struct dpro_graph *g = a->g;
    const struct copying before = find_copying(g, next, a->arena);
    int64_t first_ns = INT64_MAX;
    for (uint32_t op = 0; op < g->n_ops; op++)
        if (g->gather[op] == gather && !own->ops[op] && g->rank[op] == 0 &&
            graph_is_on(g, op, DPRO_DEVICE_CPU_THREAD))
            first_ns = MIN(first_ns, g->seen_start_ns[op]);
    return before.all && first_ns < g->seen_start_ns[before.last[0]] &&
           first_ns > g->seen_start_ns[asks->last[0]];
}

/* In a pass, each of the chain but its first unit. */
static void move_units(const struct asking *a, const uint32_t *chain, uint32_t n, bool backward,
                       uint32_t distance)
{
    const struct dpro_graph *g = a->g;
    for (uint32_t i = 1; i < n; i++) {
        uint32_t asks = i - MIN(distance, i), behind = GATHER(chain[asks], backward);
        uint32_t gather = GATHER(chain[i], backward);
        if (!a->gathers[gather]) /* it keeps its parameters */
            continue;
        struct copying own = find_copying(g, gather, a->arena);
        struct copying of = find_copying(g, behind, a->arena);
        if (!of.all)
            refuse("this recording does not show where unit '%.200s' asks for the next units: no "
                   "copy out of what it gathers was recorded; leave out --prefetch",
                   graph_unit_name(g, chain[asks]));
        if (backward && units_stays(a, gather, &own, &of, GATHER(chain[asks + 1], true)))
            continue;
        if (!is_waited_for(g, gather))
            refuse("this recording does not show where a thread waits for what unit '%.200s' "
                   "gathers: record the job again with 'dpro profile'",
                   graph_unit_name(g, chain[i]));
        struct program_edit *edit = add_edit(a, EDIT_MOVES, gather, behind);
        edit->leaves = own.ops;
        edit->after = of.last;
        a->change->n_moved++;
    }
}

static void units_prefetch(const struct asking *a, uint32_t distance)
{
    const struct dpro_graph *g = a->g;
    uint8_t all = 0;
    for (uint32_t gather = 0; gather <= GATHER(g->n_units, true); gather++)
        all |= a->gathers[gather];
    if (all == 0 || !g->seen_start_ns || !g->seen_dur_ns)
        refuse("this recording does not show when FSDP gathers parameters: --prefetch needs a job "
               "with fully_shard that 'dpro profile' recorded");
    if (all & ON_GPU)
        refuse("--prefetch is predicted for jobs on CPUs only: the recording does not show where "
               "on a GPU's streams parameters would be gathered ahead");
    const struct unit_time *units = units_in_order(g, a->arena);
    uint32_t n = 0, *chain = arena_array(a->arena, 2 * g->n_units + (size_t)1, sizeof *chain);
    for (uint32_t i = 0; i < g->n_units; i++)
        if (units[i].first_ns < INT64_MAX && !is_around(g, units[i].unit))
            chain[n++] = units[i].unit;
    for (uint32_t i = 0; i < n; i++)
        chain[n + i] = chain[n - 1 - i];
    a->change->n_in_row = n;
    move_units(a, chain, n, false, distance);
    move_units(a, chain + n, n, true, distance);
}

void units_ask(const struct dpro_graph *graph, const struct dpro_changes *c, struct arena *arena,
               struct unit_change *change)
{
    size_t most = 4 * (size_t)graph->n_units + 1;
    struct asking a = {graph, arena, change, list_gathers(graph, arena)};
    *change = (struct unit_change){.edits = arena_array(arena, most, sizeof *change->edits),
                                   .behind = arena_array(arena, most, sizeof *change->behind)};
    if (c->prefetch > 0)
        units_prefetch(&a, c->prefetch);
    if (c->reshard)
        units_reshard(&a, c);
}

void units_note(const struct unit_change *change, uint32_t prefetch, struct arena *arena,
                struct dpro_strategy *strategy)
{
    bool *resharded = arena_array(arena, change->n_units + (size_t)1, sizeof *resharded);
    for (uint32_t u = 0; u < change->n_units; u++)
        resharded[u] = change->units[u].reshards != change->units[u].reshards_before;
    strategy->resharded = resharded;
    strategy->n_units = change->n_units;
    strategy->prefetch = prefetch;
}

bool units_free(const struct unit_change *change, const struct dpro_graph *graph, uint32_t unit)
{
    bool gathers = unit < change->n_units && change->units[unit].reshards;
    for (uint32_t op = 0; unit >= change->n_units && op < graph->n_ops && !gathers; op++)
        gathers = graph->gather && graph->gather[op] == GATHER(unit, true);
    return gathers;
}

/* ---- programs ---- */

void units_change_programs(const struct unit_change *change, const struct dpro_graph *timed,
                           const struct op_work *work, struct arena *arena,
                           struct dpro_model *model)
{
    bool orders = false;
    if (change->n_edits == 0 && !work)
        return;
    program_edit(model->recorded, timed, change->edits, change->n_edits, work, arena, model);
    for (uint32_t i = 0; i < change->n_edits; i++)
        orders |= change->edits[i].kind != EDIT_REMOVES;
    if (orders && evaluate_once(model) == INT64_MAX)
        refuse("ranks gather their units in different orders, so other gathers can't be predicted");
}

const bool *units_gone(const struct unit_change *change, const struct dpro_graph *graph,
                       struct arena *arena)
{
    bool *gone = arena_array(arena, graph->n_ops + (size_t)1, sizeof *gone);
    for (uint32_t op = 0; graph->gather && op < graph->n_ops; op++)
        for (uint32_t i = 0; i < change->n_edits && graph->gather[op] != 0; i++)
            gone[op] |= change->edits[i].kind == EDIT_REMOVES &&
                        change->edits[i].gather == graph->gather[op];
    return gone;
}

/* ---- memory ---- */

struct sharer {
    const struct graph_unit_places *places; /* [n_units] */
    struct graph_block *blocks;
    uint32_t n, n_recorded;
};

static bool is_of(const struct graph_block *block, uint32_t gather, bool gathered)
{
    return block->gather == gather && block->gathered == gathered && block->taken != MEMORY_NONE;
}

/* A block is there from the place behind the moment in which it is taken. */
static uint32_t taken_at(uint32_t place)
{
    return place > 0 ? place - 1 : MEMORY_NONE;
}

/* Size 0 is as good as not there. */
static void units_keep(struct sharer *s, uint32_t unit)
{
    uint32_t again = 0;
    for (uint32_t b = 0; b < s->n_recorded; b++) {
        if (s->blocks[b].gather != GATHER(unit, false) || !s->blocks[b].gathered)
            continue;
        while (again < s->n_recorded &&
               !(s->blocks[again].gather == GATHER(unit, true) && s->blocks[again].gathered))
            again++;
        if (again == s->n_recorded)
            break;
        s->blocks[b].given = s->blocks[again++].given;
    }
    for (uint32_t b = 0; b < s->n_recorded; b++)
        if (s->blocks[b].gather == GATHER(unit, true))
            s->blocks[b].size_bytes = 0;
}

static void add_block(struct sharer *s, uint32_t like, uint32_t from, uint32_t given)
{
    struct graph_block *block = &s->blocks[s->n++];
    *block = s->blocks[like];
    block->taken = taken_at(from);
    block->given = given;
    block->n_uses = 0;
}

/* Of an all-gather's own blocks those are still there when the parameters are copied out of them
 * that were when the first of these was taken. */
static void free_unit(struct sharer *s, uint32_t unit)
{
    const struct graph_unit_places *places = &s->places[unit];
    uint32_t copies_out = MEMORY_NONE;
    if (places->forward_end == MEMORY_NONE || places->backward == MEMORY_NONE)
        return;
    uint32_t asked = places->asked == MEMORY_NONE ? places->backward : places->asked;
    for (uint32_t b = 0; b < s->n_recorded; b++)
        if (is_of(&s->blocks[b], GATHER(unit, false), true))
            copies_out = MIN(copies_out, s->blocks[b].taken);
    for (uint32_t b = 0; b < s->n_recorded; b++) {
        struct graph_block *block = &s->blocks[b];
        if (is_of(block, GATHER(unit, false), false)) {
            add_block(s, b, asked, block->given > copies_out ? places->backward : asked);
        } else if (is_of(block, GATHER(unit, false), true)) {
            add_block(s, b, places->backward, block->given);
            block->given = places->forward_end;
        }
    }
}

/* What an all-gather brings is there from where it is asked for until it is copied out. */
static void ask_ahead(struct sharer *s, uint32_t gather, uint32_t behind)
{
    uint32_t asked = 0, copied = MEMORY_NONE;
    for (uint32_t b = 0; b < s->n_recorded; b++) {
        if (is_of(&s->blocks[b], behind, true))
            asked = MAX(asked, s->blocks[b].taken + 1);
        if (is_of(&s->blocks[b], gather, true))
            copied = MIN(copied, s->blocks[b].taken);
    }
    for (uint32_t b = 0; b < s->n_recorded && asked > 0 && copied != MEMORY_NONE; b++) {
        struct graph_block *block = &s->blocks[b];
        if (is_of(block, gather, false) && block->given != MEMORY_NONE && block->given >= copied)
            block->taken = taken_at(asked);
    }
}

void units_change_memory(const struct unit_change *change, const struct dpro_graph *graph,
                         struct arena *arena, struct dpro_model *model)
{
    EACH_OF (struct model_memory, m, model->memories, model->n_memories) {
        const struct graph_memory *recorded = &graph->memory[m->rank];
        struct sharer s = {.places = recorded->units,
                           .blocks =
                               arena_array(arena, 2 * (size_t)m->n_blocks + 1, sizeof *s.blocks),
                           .n = m->n_blocks,
                           .n_recorded = m->n_blocks};
        memcpy(s.blocks, m->blocks, m->n_blocks * sizeof *s.blocks);
        for (uint32_t e = 0; e < change->n_edits; e++)
            if (change->edits[e].kind == EDIT_MOVES)
                ask_ahead(&s, change->edits[e].gather, change->behind[e]);
        for (uint32_t u = 0; u < change->n_units && u < recorded->n_units; u++) {
            if (change->units[u].reshards_before && !change->units[u].reshards)
                units_keep(&s, u);
            else if (!change->units[u].reshards_before && change->units[u].reshards)
                free_unit(&s, u);
        }
        m->blocks = s.blocks;
        m->n_blocks = s.n;
    }
}
