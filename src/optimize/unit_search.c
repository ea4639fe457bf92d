/* Which units of FSDP free their gathered parameters after the forward pass, and which keep them
 * for the backward pass. What is kept is not gathered again, and lies in memory meanwhile: a
 * knapsack. Each unit is changed alone; then units are kept in the order of the time that a byte
 * saves, as far as all of them fit. In the end, how far ahead units are gathered. */
#include "cost/change/change_units.h"
#include "cost/program/buckets.h"
#include "graph/graph.h"
#include "optimize/finals.h"
#include "optimize/program_search.h"

#define SURE_ERRORS 1.96 /* standard ones, of 95 % */

static bool is_model(const struct program_search *s, uint32_t unit)
{
    return graph_unit_name(s->graph, unit)[0] == '\0';
}

static struct setting setting_of(struct program_search *s, const bool *reshards)
{
    struct setting setting = setting_like(s, &s->as_ran);
    for (uint32_t u = 0; u < s->graph->n_units; u++)
        setting.reshards[u] = reshards && reshards[u];
    setting.kind = PLAIN;
    return setting;
}

/* What keeping a unit changes, with all others as they ran. */
struct kept {
    uint32_t unit;
    double saved_ns, more_bytes; /* NaN: not known */
};

/* Each unit alone. */
static void change_each(struct program_search *s)
{
    for (uint32_t u = 0; u < s->graph->n_units; u++) {
        s->kept[u] = (struct kept){u, NAN, NAN};
        if (!s->gathered[u] || search_stops(&s->search))
            continue;
        struct setting other = setting_of(s, s->as_ran.reshards);
        other.reshards[u] = !other.reshards[u];
        if (!program_try(s, &other))
            continue;
        program_keep(s, &other);
        const struct setting *with = other.reshards[u] ? &s->as_ran : &other;
        const struct setting *without = other.reshards[u] ? &other : &s->as_ran;
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
static void search_fill(struct program_search *s)
{
    uint32_t n = 0;
    struct kept *order =
        arena_array(&s->optimum->arena, s->graph->n_units + (size_t)1, sizeof *order);
    struct setting from = setting_of(s, s->as_ran.reshards);
    for (uint32_t u = 0; u < s->graph->n_units; u++)
        if (!is_model(s, u) && !isnan(s->kept[u].saved_ns)) {
            from.reshards[u] = true;
            order[n++] = s->kept[u];
        }
    if (n == 0 || !program_try(s, &from))
        return;
    program_keep(s, &from);
    qsort(order, n, sizeof *order, by_worth);
    for (uint32_t i = 0; i < n && !search_stops(&s->search); i++) {
        struct setting next = setting_of(s, from.reshards);
        next.reshards[order[i].unit] = false;
        if (!program_try(s, &next) || !program_fits(s, &next) || next.ns > from.ns)
            continue;
        from = next;
        program_keep(s, &from);
        s->search.n_rounds++;
    }
}

/* With the best units, as far as the model tells. It is taken only for a gain that is sure. */
static void try_prefetch(struct program_search *s)
{
    static const char *const names[] = {NULL, "prefetch 1", "prefetch 2"};
    const struct setting from = s->best;
    struct dpro_error why;
    for (uint32_t n = 1; n <= 2 && !search_stops(&s->search); n++) {
        struct setting ahead = setting_of(s, from.reshards);
        double std = 0;
        ahead.prefetch = n;
        if (!program_try(s, &ahead))
            continue;
        fail_on(program_doubt(s, &ahead, &std, NULL, &why), &why);
        bool sure = (double)from.ns / (double)ahead.ns - 1 > SURE_ERRORS * std;
        if (sure)
            program_keep(s, &ahead);
        program_list(s, names[n],
                     sure ? "the best units, gathered ahead" : "gathered ahead: not sure to help",
                     &ahead);
    }
}

void search_units(struct program_search *s)
{
    struct setting none = setting_of(s, NULL), all = setting_of(s, s->gathered);
    struct dpro_error why;
    s->kept = arena_array(&s->optimum->arena, s->graph->n_units + (size_t)1, sizeof *s->kept);
    fail_on(program_ask(s, &none, &why), &why);
    program_keep(s, &none);
    if (program_try(s, &all))
        program_keep(s, &all);
    change_each(s);
    if (!program_fits(s, &none))
        search_fill(s);
    program_list(s, "all kept", "no unit gathered again", &none);
    program_list(s, "all resharded", "each gathered again for its backward pass", &all);
    if (s->best.ns < INT64_MAX)
        try_prefetch(s);
}

/* ---- what is said of it ---- */

static bool is_same(const struct program_search *s, const struct setting *x,
                    const struct setting *y)
{
    return x->prefetch == y->prefetch &&
           memcmp(x->reshards, y->reshards, s->graph->n_units * sizeof *x->reshards) == 0;
}

void units_list(struct program_search *s, const struct setting *chosen)
{
    struct dpro_optimum *o = s->optimum;
    struct dpro_error why;
    for (uint32_t i = 0; i < s->n_rows && o->finalists.n < s->search.options->n_finalists; i++) {
        const struct setting *row = &s->rows[i].setting;
        bool is_there = is_same(s, row, &s->as_ran), is_best = is_same(s, row, chosen);
        double std = 0;
        for (size_t k = 0; k < o->finalist_settings.n; k++)
            is_there |= is_same(s, o->finalist_settings.at[k], row);
        if (is_there || !program_fits(s, row))
            continue;
        fail_on(program_doubt(s, row, &std, NULL, &why), &why);
        if ((double)row->ns / (double)chosen->ns - 1 > SURE_ERRORS * std)
            continue;
        array_add(&o->finalists, s->rows[i].name, row->ns, 100 * std, is_best);
        array_push(&o->finalist_settings, arena_copy(&o->arena, row, 1, sizeof *row));
        array_push(&o->finalist_strategies, buckets_copy(s->model, &s->model->baseline, &o->arena));
    }
}

static void search_decide(struct program_search *s, const struct setting *chosen, uint32_t u)
{
    struct arena *a = &s->optimum->arena;
    const struct kept *kept = &s->kept[u];
    double sign = chosen->reshards[u] ? -1 : 1;
    const char *what = chosen->reshards[u] ? "freed after its forward pass and gathered again"
                                           : "kept from its forward to its backward pass";
    if (!isnan(kept->saved_ns))
        what = arena_format(a, "%s; alone %+.1f ms", what, -sign * kept->saved_ns * 1e-6);
    if (!isnan(kept->saved_ns) && s->as_ran.peak.bytes > 0)
        what = arena_format(a, "%s, %+.1f MB", what, sign * kept->more_bytes * 1e-6);
    array_add(&s->optimum->decisions, .pass = "resharding",
              .target = is_model(s, u)
                            ? "the model itself"
                            : arena_format(a, "unit %.200s", graph_unit_name(s->graph, u)),
              .decision = what);
}

void units_decide(struct program_search *s, const struct setting *chosen)
{
    const struct unit_time *order = units_in_order(s->graph, &s->optimum->arena);
    for (uint32_t i = 0; i < s->graph->n_units; i++) {
        uint32_t u = order[i].unit;
        if (!s->gathered[u])
            continue;
        array_push(&s->optimum->unit_numbers, u);
        array_add(&s->optimum->units, graph_unit_name(s->graph, u), s->as_ran.reshards[u],
                  chosen->reshards[u]);
        if (s->as_ran.reshards[u] != chosen->reshards[u])
            search_decide(s, chosen, u);
    }
    if (chosen->prefetch > 0)
        array_add(&s->optimum->decisions, "prefetch", "all units",
                  arena_format(&s->optimum->arena, "%u gathered ahead", chosen->prefetch));
}
