/* Which units of FSDP free their gathered parameters after the forward pass, and which keep them
 * for the backward pass. What is kept is not gathered again, and lies in memory meanwhile: a
 * knapsack. Each unit is changed alone; then units are kept in the order of the time that a byte
 * saves, as far as all of them fit. In the end, how far ahead units are gathered. */

#include "cost/buckets.h"
#include "cost/change_programs.h"
#include "cost/evaluate.h"
#include "cost/whatif_result.h"
#include "graph/graph.h"
#include "optimize/result.h"
#include "optimize/search.h"

#define SURE_ERRORS 1.96 /* standard ones, of 95 % */

struct choice {
    bool *reshards;    /* by unit */
    uint32_t prefetch; /* units that each gathers ahead; 0: as it ran */
    int64_t ns;        /* INT64_MAX: such a job can't be predicted */
    struct dpro_memory_peak peak;
};

/* What keeping a unit changes, with all others as they ran. */
struct kept {
    uint32_t unit;
    double saved_ns, more_bytes; /* NaN: not known */
};

struct unit_search {
    struct search search;
    const struct dpro_graph *graph;
    const struct dpro_model *model;
    struct arena *arena;
    bool *gathered; /* by unit: its parameters are */
    uint64_t limit_bytes;
    uint64_t least_bytes; /* the lowest peak of all that was tried */
    struct choice as_ran, best;
    struct kept *kept; /* by unit */
};

static bool is_model(const struct unit_search *s, uint32_t unit)
{
    return graph_unit_name(s->graph, unit)[0] == '\0';
}

static struct choice choice_of(const struct unit_search *s, const bool *reshards)
{
    struct choice choice = {.ns = INT64_MAX};
    choice.reshards = arena_array(s->arena, s->graph->n_units + (size_t)1, sizeof *reshards);
    if (reshards)
        memcpy(choice.reshards, reshards, s->graph->n_units * sizeof *reshards);
    return choice;
}

/* For --reshard; the model as a whole has no name there. */
static const char *text_of(const struct unit_search *s, const struct choice *choice)
{
    const char *text = "";
    uint32_t n = 0, n_all = 0;
    for (uint32_t u = 0; u < s->graph->n_units; u++) {
        n_all += s->gathered[u];
        n += choice->reshards[u];
        if (choice->reshards[u] && !is_model(s, u))
            text = arena_format(s->arena, "%s%s%s", text, *text ? "," : "",
                                graph_unit_name(s->graph, u));
    }
    return n == n_all ? "all" : *text ? text : "none";
}

static int predict(const struct unit_search *s, const char *names, struct choice *choice,
                   struct dpro_memory_peak *before, struct dpro_error *err)
{
    struct arena arena = {0};
    struct notes notes = {.arena = &arena};
    struct dpro_model changed;
    struct program_change change;
    bool same = true;
    change_copy(s->model, &arena, &changed);
    int rc = change_programs(s->graph,
                             &(struct dpro_changes){.reshard = names, .prefetch = choice->prefetch},
                             &changed, &notes, &change, err);
    if (rc < 0)
        return rc;
    for (uint32_t u = 0; u < s->graph->n_units; u++)
        same &= !change.units.units[u].reshards == !choice->reshards[u];
    choice->ns = same ? evaluate_once(&changed) : INT64_MAX;
    *before = change.memory[DPRO_BASELINE];
    choice->peak = change.memory[DPRO_BEST];
    before->module = choice->peak.module = NULL;
    array_fini(&notes.lines);
    arena_fini(&changed.arena);
    arena_fini(&arena);
    return 0;
}

/* In a scope of its own, as what can't be predicted is no failure of the search. */
static int evaluate_choice(struct unit_search *s, struct choice *choice, struct dpro_error *err)
{
    const char *names = text_of(s, choice);
    struct dpro_memory_peak before = {.bytes = 0};
    s->search.n_candidates++;
    struct memory_frame *frame = memory_step_out();
    int rc = WITHIN_SCOPE(dpro_error_nomem(err), predict(s, names, choice, &before, err));
    memory_step_in(frame);
    if (rc == DPRO_ENOMEM)
        mem_fail();
    if (rc < 0)
        return rc;
    s->as_ran.peak = before;
    if (choice->ns < INT64_MAX)
        s->least_bytes = MIN(s->least_bytes, choice->peak.bytes);
    return 0;
}

static bool try(struct unit_search *s, struct choice *choice)
{
    struct dpro_error why;
    return evaluate_choice(s, choice, &why) == 0 && choice->ns < INT64_MAX;
}

static bool fits(const struct unit_search *s, const struct choice *choice)
{
    return choice->ns < INT64_MAX && choice->peak.bytes <= s->limit_bytes;
}

static void keep_best(struct unit_search *s, const struct choice *choice)
{
    if (!fits(s, choice) || choice->ns >= s->best.ns)
        return;
    s->best = *choice;
    s->search.best_ns = choice->ns;
    array_push(&s->search.improvements,
               ((struct dpro_improvement){search_seconds(&s->search), s->search.n_candidates,
                                          choice->ns}));
}

/* Each unit alone. */
static void change_each(struct unit_search *s)
{
    for (uint32_t u = 0; u < s->graph->n_units; u++) {
        s->kept[u] = (struct kept){u, NAN, NAN};
        if (!s->gathered[u] || search_stops(&s->search))
            continue;
        struct choice other = choice_of(s, s->as_ran.reshards);
        other.reshards[u] = !other.reshards[u];
        if (!try(s, &other))
            continue;
        keep_best(s, &other);
        const struct choice *with = other.reshards[u] ? &s->as_ran : &other;
        const struct choice *without = other.reshards[u] ? &other : &s->as_ran;
        s->kept[u].saved_ns = (double)(without->ns - with->ns);
        s->kept[u].more_bytes = (double)with->peak.bytes - (double)without->peak.bytes;
    }
}

static double per_byte(const struct kept *kept)
{
    return kept->saved_ns / fmax(kept->more_bytes, 1);
}

ORDER(by_worth, struct kept, COMPARE(per_byte(y), per_byte(x)) ?: COMPARE(x->unit, y->unit));

/* From all that can be freed, the model itself aside: one after the other is kept. */
static void fill(struct unit_search *s)
{
    uint32_t n = 0;
    struct kept *order = arena_array(s->arena, s->graph->n_units + (size_t)1, sizeof *order);
    struct choice from = choice_of(s, s->as_ran.reshards);
    for (uint32_t u = 0; u < s->graph->n_units; u++)
        if (!is_model(s, u) && !isnan(s->kept[u].saved_ns)) {
            from.reshards[u] = true;
            order[n++] = s->kept[u];
        }
    if (n == 0 || !try(s, &from))
        return;
    keep_best(s, &from);
    qsort(order, n, sizeof *order, by_worth);
    for (uint32_t i = 0; i < n && !search_stops(&s->search); i++) {
        struct choice next = choice_of(s, from.reshards);
        next.reshards[order[i].unit] = false;
        if (!try(s, &next) || !fits(s, &next) || next.ns > from.ns)
            continue;
        from = next;
        keep_best(s, &from);
        s->search.n_rounds++;
    }
}

/* ---- the result ---- */

/* How sure the gain is, as a what-if of it says. */
static int ask_whatif(const struct unit_search *s, const struct choice *choice,
                      struct dpro_optimum *o, struct dpro_error *err)
{
    struct dpro_changes changes = {.reshard = text_of(s, choice), .prefetch = choice->prefetch};
    struct dpro_whatif *whatif;
    int rc = dpro_whatif_run(s->graph, s->model, &changes, &whatif, err);
    if (rc < 0)
        return rc;
    for (int which = DPRO_BASELINE; which <= DPRO_BEST; which++) {
        o->peaks[which] = whatif->memory[which];
        if (o->peaks[which].module)
            o->peaks[which].module =
                arena_copy_string(s->arena, o->peaks[which].module, strlen(o->peaks[which].module));
    }
    o->summary.uncertainty_pct = 100 * dpro_whatif_speedup(whatif).std;
    dpro_whatif_destroy(whatif);
    return 0;
}

static void add_baseline(struct unit_search *s, struct dpro_optimum *o, const char *name,
                         const char *text, const struct choice *choice)
{
    struct dpro_error err;
    int rc = choice->ns < INT64_MAX ? ask_whatif(s, choice, o, &err) : 0;
    if (rc == DPRO_ENOMEM)
        mem_fail();
    if (choice->ns < INT64_MAX)
        array_push(&o->baselines,
                   ((struct dpro_baseline){
                       .uncertainty_pct = rc == 0 ? o->summary.uncertainty_pct : 0,
                       .name = name,
                       .text = s->as_ran.peak.bytes == 0
                                   ? text
                                   : arena_format(s->arena, "%s; %.1f MB at the peak", text,
                                                  (double)choice->peak.bytes * 1e-6),
                       .iteration_ns = choice->ns,
                       .peak_bytes = choice->peak.bytes}));
}

static void decide(struct unit_search *s, struct dpro_optimum *o, uint32_t u)
{
    const struct kept *kept = &s->kept[u];
    double sign = s->best.reshards[u] ? -1 : 1;
    const char *what = s->best.reshards[u] ? "freed after its forward pass and gathered again"
                                           : "kept from its forward to its backward pass";
    if (!isnan(kept->saved_ns))
        what = arena_format(s->arena, "%s; alone %+.1f ms", what, -sign * kept->saved_ns * 1e-6);
    if (!isnan(kept->saved_ns) && s->as_ran.peak.bytes > 0)
        what = arena_format(s->arena, "%s, %+.1f MB", what, sign * kept->more_bytes * 1e-6);
    array_push(&o->decisions,
               ((struct dpro_decision){.pass = "resharding",
                                       .target = is_model(s, u)
                                                     ? "the model itself"
                                                     : arena_format(s->arena, "unit %.200s",
                                                                    graph_unit_name(s->graph, u)),
                                       .decision = what}));
}

struct first_gather {
    int64_t ns;
    uint32_t unit;
};

ORDER(by_time, struct first_gather, ASCENDING(ns) ?: ASCENDING(unit));

static const struct first_gather *forward_order(const struct unit_search *s)
{
    const struct dpro_graph *g = s->graph;
    struct first_gather *order = arena_array(s->arena, g->n_units + (size_t)1, sizeof *order);
    for (uint32_t u = 0; u < g->n_units; u++)
        order[u] = (struct first_gather){INT64_MAX, u};
    for (uint32_t op = 0; op < g->n_ops && g->seen_start_ns; op++)
        if (g->gather[op] != 0) {
            struct first_gather *first = &order[GATHER_UNIT(g->gather[op])];
            if (g->gather[op] == GATHER(first->unit, false))
                first->ns = MIN(first->ns, g->seen_start_ns[op]);
        }
    qsort(order, g->n_units, sizeof *order, by_time);
    return order;
}

/* With the best units, as far as the model tells. It is taken only for a gain that is sure. */
static int try_prefetch(struct unit_search *s, struct dpro_optimum *o, struct dpro_error *err)
{
    static const char *const names[] = {NULL, "prefetch 1", "prefetch 2"};
    const struct choice from = s->best;
    for (uint32_t n = 1; n <= 2 && !search_stops(&s->search); n++) {
        struct choice ahead = choice_of(s, from.reshards);
        ahead.prefetch = n;
        if (!try(s, &ahead))
            continue;
        int rc = ask_whatif(s, &ahead, o, err);
        if (rc < 0)
            return rc;
        double gain_pct = 100 * ((double)from.ns / (double)ahead.ns - 1);
        bool sure = gain_pct > SURE_ERRORS * o->summary.uncertainty_pct;
        if (sure)
            keep_best(s, &ahead);
        add_baseline(s, o, names[n],
                     sure ? "the best units, gathered ahead" : "gathered ahead: not sure to help",
                     &ahead);
    }
    return 0;
}

static int fill_result(struct unit_search *s, struct dpro_optimum *o, struct dpro_error *err)
{
    const struct search *search = &s->search;
    o->models[DPRO_BASELINE] = o->models[DPRO_BEST] = s->model;
    for (int which = DPRO_BASELINE; which <= DPRO_BEST; which++) {
        o->strategies[which] = buckets_copy(s->model, &s->model->baseline, s->arena);
        o->peaks[which] = which == DPRO_BEST ? s->best.peak : s->as_ran.peak;
    }
    const struct first_gather *order = forward_order(s);
    for (uint32_t i = 0; i < s->graph->n_units; i++) {
        uint32_t u = order[i].unit;
        if (!s->gathered[u])
            continue;
        array_push(&o->units, ((struct dpro_unit){graph_unit_name(s->graph, u),
                                                  s->as_ran.reshards[u], s->best.reshards[u]}));
        if (s->as_ran.reshards[u] != s->best.reshards[u])
            decide(s, o, u);
    }
    if (s->best.prefetch > 0)
        array_push(&o->decisions,
                   ((struct dpro_decision){
                       .pass = "prefetch",
                       .target = "all units",
                       .decision = arena_format(s->arena, "%u gathered ahead", s->best.prefetch)}));
    array_append(&o->improvements, search->improvements.at, search->improvements.n);
    o->summary =
        (struct dpro_optimum_summary){.measured_ns = s->model->measured_ns,
                                      .baseline_ns = s->as_ran.ns,
                                      .best_ns = s->best.ns,
                                      .found_ns = s->best.ns,
                                      .apart_ns = s->best.ns,
                                      .prefetch = s->best.prefetch,
                                      .algorithm = dpro_algorithm_name(search->options->algorithm),
                                      .seconds = search_seconds(search),
                                      .n_candidates = search->n_candidates,
                                      .n_rounds = search->n_rounds,
                                      .stopped_by = search_end(search)};
    return s->best.ns == s->as_ran.ns ? 0 : ask_whatif(s, &s->best, o, err);
}

/* The job as it ran needs no change to be predicted, and is what all else is compared with. */
static int start(struct unit_search *s, struct dpro_optimum *o, struct choice *none,
                 struct dpro_error *err)
{
    uint32_t n = s->graph->n_units;
    s->gathered = arena_array(s->arena, n + (size_t)1, sizeof *s->gathered);
    s->kept = arena_array(s->arena, n + (size_t)1, sizeof *s->kept);
    s->as_ran = choice_of(s, NULL);
    *none = choice_of(s, NULL);
    for (uint32_t op = 0; op < s->graph->n_ops; op++)
        if (s->graph->gather[op] != 0) {
            uint32_t unit = GATHER_UNIT(s->graph->gather[op]);
            s->gathered[unit] = true;
            s->as_ran.reshards[unit] |= s->graph->gather[op] == GATHER(unit, true);
        }
    s->search.baseline_ns = s->as_ran.ns = evaluate_once(s->model);
    if (s->as_ran.ns == INT64_MAX)
        return dpro_error_set(err, DPRO_EEMPTY,
                              "by its model an iteration of this job never ends: what it waits "
                              "for is not in the trace; does 'dpro replay' warn of it?");
    int rc = evaluate_choice(s, none, err);
    if (rc < 0)
        return rc;
    uint64_t capacity = o->memory.capacity_bytes, own = s->as_ran.peak.bytes;
    s->limit_bytes = o->memory.budget_bytes ?: capacity > 0 ? MAX(capacity, own) : UINT64_MAX;
    o->memory.is_needed = own > s->limit_bytes;
    s->best = s->as_ran;
    if (o->memory.is_needed)
        s->best.ns = INT64_MAX;
    return 0;
}

int search_units(const struct dpro_model *model, const struct dpro_optimize_options *options,
                 struct dpro_optimum **optimum, struct dpro_error *err)
{
    struct dpro_optimum *o = mem_array(1, sizeof *o);
    struct unit_search s = {.search = {.options = options, .told_s = -1, .best_ns = INT64_MAX},
                            .graph = options->graph,
                            .model = model,
                            .arena = &o->arena,
                            .least_bytes = UINT64_MAX};
    struct choice none, all;
    s.search.start_s = search_seconds(&s.search);
    int rc = memory_search_budget(model, options, &o->memory, err);
    if (rc == 0)
        rc = start(&s, o, &none, err);
    if (rc < 0)
        return rc;
    keep_best(&s, &none);
    all = choice_of(&s, s.gathered);
    if (try(&s, &all))
        keep_best(&s, &all);
    change_each(&s);
    if (!fits(&s, &none))
        fill(&s);
    o->memory.fits = s.best.ns < INT64_MAX;
    o->memory.least_bytes = o->memory.is_needed ? s.least_bytes : 0;
    add_baseline(&s, o, "all kept", "no unit gathered again", &none);
    add_baseline(&s, o, "all resharded", "each gathered again for its backward pass", &all);
    if (o->memory.fits)
        rc = try_prefetch(&s, o, err);
    if (rc == 0 && o->memory.fits)
        rc = fill_result(&s, o, err);
    array_fini(&s.search.improvements);
    if (rc == 0)
        *optimum = o;
    return rc;
}
