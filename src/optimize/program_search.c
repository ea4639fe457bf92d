/* Searches the programs of a job whose groups of ranks communicate. The fastest settings that fit
 * are judged as other searches' finalists are. */
#include "optimize/program_search.h"

#include "cost/change/change_units.h"
#include "cost/memory/strategy_memory.h"
#include "cost/program/buckets.h"
#include "cost/program/evaluate.h"
#include "cost/program/model_memory.h"
#include "graph/graph.h"
#include "optimize/finals.h"

/* Which units of FSDP free their gathered parameters after the forward pass, and which keep them
 * for the backward pass: what is kept is not gathered again, and lies in memory meanwhile: a
 * knapsack. Each unit is changed alone; then units are kept in the order of the time that a byte
 * saves, as far as all of them fit. In the end, how far ahead units are gathered. */

#define SURE_ERRORS 1.96 /* standard ones, of 95 % */

/* ---- which units free their parameters ---- */

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
    for (uint32_t n = 1; n <= 2 && !search_stops(&s->search); n++) {
        struct setting ahead = setting_of(s, from.reshards);
        ahead.prefetch = n;
        if (!program_try(s, &ahead))
            continue;
        double std = program_judge(s, &ahead)->speedup_std;
        bool sure = (double)from.ns / (double)ahead.ns - 1 > SURE_ERRORS * std;
        if (sure)
            program_keep(s, &ahead);
        program_list(s, names[n], sure ? "best units gathered ahead" : "gathered ahead: unsure",
                     &ahead);
    }
}

/* As finalists of other searches are. What was measured may be chosen. */
static void correct_all(struct program_search *s)
{
    if (!s->model->turns || s->model->turns->of.n == 0)
        return;
    for (uint32_t i = 0; i < s->n_rows; i++) {
        struct setting *row = &s->rows[i].setting, measured = *row;
        program_correct(s, row);
        if (row->measured.is_known && program_fits(s, row))
            array_push(&s->pool, measured);
    }
    s->best = s->as_ran;
    if (s->optimum->memory.is_needed)
        s->best.ns = INT64_MAX;
    EACH (struct setting, setting, s->pool) {
        program_correct(s, setting);
        if (setting->ns < s->best.ns)
            s->best = *setting;
    }
}

static void search_units(struct program_search *s)
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
    program_list(s, "all resharded", "all units gathered again", &all);
    if (s->best.ns < INT64_MAX)
        try_prefetch(s);
    correct_all(s);
}

/* ---- what is said of it ---- */

static bool is_same(const struct program_search *s, const struct setting *x,
                    const struct setting *y)
{
    return x->prefetch == y->prefetch &&
           memcmp(x->reshards, y->reshards, s->graph->n_units * sizeof *x->reshards) == 0;
}

static void units_list(struct program_search *s, const struct setting *chosen)
{
    struct dpro_optimum *o = s->optimum;
    for (uint32_t i = 0; i < s->n_rows && o->finalists.n < s->search.options->n_finalists; i++) {
        const struct setting *row = &s->rows[i].setting;
        bool is_there = is_same(s, row, &s->as_ran), is_best = is_same(s, row, chosen);
        for (size_t k = 0; k < o->finalist_settings.n; k++)
            is_there |= is_same(s, o->finalist_settings.at[k], row);
        if (is_there || !program_fits(s, row))
            continue;
        double std = program_judge(s, row)->speedup_std;
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

static void units_decide(struct program_search *s, const struct setting *chosen)
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

/* ---- programs ---- */

/* What was evaluated for one copy of a setting is there for all. */
static struct finalist *add_finalist(struct finals *p, struct program_search *s,
                                     const struct setting *setting)
{
    struct timed_job *job = setting->kind != AS_IT_RAN ? &setting_job(s, setting)->after : NULL;
    struct finalist *f =
        finals_add(p, job ? &job->model->baseline : &s->model->baseline, NULL, NULL);
    f->job = job;
    f->of = setting;
    f->kind = setting->kind;
    f->is_barred = !program_fits(s, setting);
    f->ns[0] = (double)setting->ns;
    for (const struct finalist *same = p->finalists; same < f; same++)
        f->ns = same->job == job ? same->ns : f->ns;
    return f;
}

static void add_all(struct finals *p, struct program_search *s)
{
    int64_t least_ns = MIN(s->as_ran.ns, s->best.ns);
    for (uint32_t i = 0; i < s->n_rows; i++)
        least_ns = MIN(least_ns, s->rows[i].setting.ns);
    finals_init(p, s->model, false);
    p->finalists = arena_array(&p->arena, OF_OTHERS + s->n_rows + s->pool.n, sizeof *p->finalists);
    add_finalist(p, s, &s->as_ran)->is_barred = s->optimum->memory.is_needed;
    add_finalist(p, s, &s->best);
    for (uint32_t i = 0; i < s->n_rows; i++)
        add_finalist(p, s, &s->rows[i].setting)->is_barred = true;
    p->n_listed = p->n_finalists;
    EACH (const struct setting, setting, s->pool)
        if ((double)setting->ns <= (double)least_ns * (1 + FINALS_HOPELESS))
            add_finalist(p, s, setting);
    finals_evaluate(p);
    finals_tell(p, &p->finalists[OF_BASELINE], &s->before);
    EACH_OF (const struct finalist, f, p->finalists, p->n_finalists)
        if (f->job)
            finals_tell(p, f, f->job);
}

static void add_baselines(struct program_search *s, const struct finals *p)
{
    struct dpro_optimum *o = s->optimum;
    for (uint32_t i = 0; i < s->n_rows; i++) {
        const struct setting *setting = &s->rows[i].setting;
        double share = p ? p->finalists[OF_OTHERS + i].expected : NAN;
        array_add(&o->baselines, .name = s->rows[i].name, .text = s->rows[i].text,
                  .iteration_ns = p ? llround(share * (double)s->as_ran.ns) : setting->ns,
                  .likely_ns = setting->ns, .peak_bytes = setting->peak.bytes,
                  .uncertainty_pct = 100 * program_judge(s, setting)->speedup_std);
    }
}

static void decide_pipeline(struct program_search *s, const struct setting *chosen)
{
    struct dpro_optimum *o = s->optimum;
    const struct dpro_pipeline_run *was = &o->pipeline[DPRO_BASELINE], *is = &chosen->run;
    if (is->n_micro_batches == 0)
        return;
    o->pipeline[DPRO_BEST] = *is;
    if (is->n_micro_batches != was->n_micro_batches)
        array_add(&o->decisions, "micro-batches", "the pipeline",
                  arena_format(&o->arena, "%u, not %u", is->n_micro_batches, was->n_micro_batches));
    if (is->schedule != was->schedule)
        array_add(&o->decisions, "schedule", "the pipeline",
                  arena_format(&o->arena, "%s, not %s", dpro_schedule_name(is->schedule),
                               was->schedule == DPRO_SCHEDULE_UNKNOWN
                                   ? "one of its own"
                                   : dpro_schedule_name(was->schedule)));
}

static void fill_result(struct program_search *s, const struct setting *chosen)
{
    struct dpro_optimum *o = s->optimum;
    for (int which = DPRO_BASELINE; which <= DPRO_BEST; which++) {
        const struct setting *setting = which == DPRO_BEST ? chosen : &s->as_ran;
        o->models[which] = s->model;
        o->strategies[which] = buckets_copy(s->model, &s->model->baseline, &o->arena);
        o->peaks[which] = setting->peak;
        if (setting->recomputed)
            o->strategies[which].recomputed = setting->recomputed;
        if (setting->micro_batches > 0)
            o->strategies[which].micro_batches = setting->micro_batches;
    }
    if (s->kept) {
        units_decide(s, chosen);
        units_list(s, chosen);
    }
    decide_pipeline(s, chosen);
    result_decide(o);
    result_tell_search(o, &s->search);
    o->summary.baseline_ns = s->as_ran.ns;
    o->summary.likely_ns = chosen->ns;
    o->summary.prefetch = chosen->prefetch;
    if (chosen->kind == AS_IT_RAN)
        return;
    const struct changed_job *job = program_judge(s, chosen);
    memcpy(o->peaks, job->change.memory, sizeof o->peaks);
    o->summary.uncertainty_pct = 100 * job->speedup_std;
    o->measured = chosen->measured;
    o->summary.uncertainty_pct *= o->measured.ratio / o->measured.left; /* which is told, too */
    result_tell_turns(o, s->model);
}

/* Of what fits, by expected time. What keeping FSDP's units wins is known to a half alone, which no
 * draw of the model's numbers shows: of these the fastest is taken. */
static const struct setting *search_choose(struct program_search *s)
{
    struct dpro_optimum *o = s->optimum;
    const struct setting *chosen = o->memory.fits ? &s->best : &s->as_ran;
    o->summary.found_ns = o->summary.best_ns = chosen->ns;
    if (s->kept || !o->memory.fits) {
        add_baselines(s, NULL);
        return chosen;
    }
    struct finals p;
    bool may_keep = !o->memory.is_needed;
    add_all(&p, s);
    add_baselines(s, &p);
    const struct finalist *best = finals_best(&p, may_keep), *is = finals_choose(&p, may_keep);
    o->summary.found_ns = llround((double)s->as_ran.ns * best->expected);
    o->summary.best_ns = llround((double)s->as_ran.ns * is->expected);
    chosen = is->of;
    EACH (struct dpro_memory_choice, choice, o->memory.choices)
        choice->chosen =
            choice->iteration_ns == chosen->ns && choice->peak_bytes == chosen->peak.bytes;
    arena_fini(&p.arena);
    return chosen;
}

/* ---- all of it ---- */

/* The job as it ran needs no change to be predicted, and is what all else is compared with. */
static void search_start(struct program_search *s)
{
    const struct dpro_graph *g = s->graph;
    struct memory_search *memory = &s->optimum->memory;
    struct arena *a = &s->optimum->arena;
    s->gathered = arena_array(a, g->n_units + (size_t)1, sizeof *s->gathered);
    s->as_ran.reshards = arena_array(a, g->n_units + (size_t)1, sizeof(bool));
    for (uint32_t op = 0; op < g->n_ops && g->gather; op++)
        if (g->gather[op] != 0) {
            uint32_t unit = GATHER_UNIT(g->gather[op]);
            s->gathered[unit] = true;
            s->as_ran.reshards[unit] |= g->gather[op] == GATHER(unit, true);
        }
    s->before.model = s->model;
    job_time(&s->before);
    s->search.baseline_ns = s->as_ran.ns = llround(s->before.ns);
    s->as_ran.measured = (struct correction){1, 1, false};
    if (s->as_ran.ns == INT64_MAX)
        result_never_ends();
    if (memory_is_known(s->model))
        s->as_ran.peak = memory_peak_told(s->model, &s->model->baseline);
    s->as_ran.peak.module = NULL;
    uint64_t capacity = memory->capacity_bytes, own = s->as_ran.peak.bytes;
    s->limit_bytes = memory->budget_bytes ?: capacity > 0 ? MAX(capacity, own) : UINT64_MAX;
    s->least_bytes = own;
    memory->is_needed = own > s->limit_bytes;
    s->best = s->as_ran;
    if (memory->is_needed)
        s->best.ns = INT64_MAX;
}

void search_programs(const struct dpro_model *model, const struct dpro_optimize_options *options,
                     bool of_units, struct dpro_optimum **optimum)
{
    struct dpro_optimum *o = mem_array(1, sizeof *o);
    double averaged = NAN;
    struct program_search s = {.averaged = &averaged,
                               .search = {.options = options, .told_s = -1, .best_ns = INT64_MAX},
                               .graph = options->graph,
                               .model = model,
                               .optimum = o};
    s.search.start_s = search_seconds(&s.search);
    memory_search_budget(model, options, &o->memory);
    search_start(&s);
    (of_units ? search_units : search_micro_batches)(&s);
    o->memory.fits = s.best.ns < INT64_MAX;
    o->memory.least_bytes = o->memory.is_needed ? s.least_bytes : 0;
    fill_result(&s, search_choose(&s));
    FREE_ALL(&s.search.improvements, &s.pool);
    *optimum = o;
}
