/* The finalists among strategies: what any algorithm found on its way, and the rows of the table.
 * The one that is chosen, and what it promises. */

#include "cost/change/families.h"
#include "cost/program/buckets.h"
#include "optimize/finals.h"
#include "optimize/result.h"

#define REACH_ERRORS 1.96 /* standard ones, of 95 % */

enum {
    MOST_LISTED = OF_OTHERS + N_DEFAULTS + 2 + MOST_COMPUTING_CHOICES,
    MOST_PARTS = 2 * N_CHANGE_KINDS,
    OF_SETTINGS = 1 << N_CHANGE_KINDS
};

/* Whether a DDP job is given it by one argument. */
static bool is_setting(const struct dpro_model *model, const struct finalist *f)
{
    return model->capabilities.stack == DPRO_STACK_DDP && f->name &&
           strncmp(f->name, "cap-", 4) == 0;
}

static uint8_t kind_of(const struct finals *p, const struct finalist *f)
{
    if (f == &p->finalists[OF_BASELINE])
        return AS_IT_RAN;
    if (f->is_computed)
        return COMPUTED;
    if (is_setting(p->model, f) || f->strategy.fuses)
        return A_SETTING;
    return space_is_plain(p->model, &f->strategy) ? PLAIN : NOT_PLAIN;
}

/* What people do, with the job's own buckets. */
static void add_ways(struct finals *p, struct space *space, const struct dpro_strategy *baseline)
{
    const struct search *search = space->search;
    struct dpro_strategy strategy = space_copy_of(space, baseline);
    if (search->alone)
        finals_add(p, search->alone, "communication", "the best of communication alone")->is_alone =
            true;
    EACH_OF (const struct computing_choice, way, search->ways, search->n_ways) {
        memcpy(strategy.computing, way->computing, p->model->n_modules);
        if (way->is_usual && space_value(space, &strategy) < INT64_MAX)
            finals_add(p, &strategy, way->name, way->text);
    }
}

/* What of the best makes one kind of change alone, and what makes all but one: to be measured,
 * never chosen. */
static void add_parts(struct finals *p, struct space *space, const struct dpro_strategy *baseline)
{
    unsigned all = families_of(space->model, baseline, &space->best);
    for (unsigned i = 0; i < MOST_PARTS; i++) {
        unsigned bit = 1u << i / 2, kept = i % 2 ? all & ~bit : bit;
        if (!(all & bit) || kept == all || kept == 0)
            continue;
        struct dpro_strategy part = space_copy_of(space, &space->best);
        families_keep(space->model, baseline, kept, &part);
        if (space_value(space, &part) < INT64_MAX)
            finals_add(p, &part, NULL, NULL)->is_barred = true;
    }
}

/* What was found, the defaults that the job's stack can be given, and the pool; a generated job is
 * what its model says, and needs none. */
static struct finalist *add_all(struct finals *p, struct space *space,
                                const struct dpro_strategy *baseline)
{
    struct finalist *tuned = NULL;
    struct dpro_strategy strategy = space_strategy(space);
    bool pools = p->model->measured_ns > 0 || p->n_draws > 1;
    size_t n_pool = pools ? space->search->pool.n : 0;
    size_t n_turns = p->model->turns ? p->model->turns->of.n : 0;
    p->finalists =
        arena_array(&p->arena, MOST_LISTED + MOST_PARTS + n_pool + n_turns, sizeof *p->finalists);
    finals_add(p, baseline, NULL, NULL);
    finals_add(p, &space->best, NULL, NULL);
    for (uint32_t i = 0; i < N_DEFAULTS; i++) {
        if (!default_is_within(&space->model->capabilities, i) || p->model->n_tensors == 0)
            continue;
        default_make(space->model, &space->work, i, &strategy);
        if (!strategy.fuses) /* a what-if of these buckets keeps the job's cycles, too */
            strategy.cycle_ns = baseline->cycle_ns;
        if (space_value(space, &strategy) == INT64_MAX)
            continue;
        if (strategy.fuses)
            evaluated_groups(space->workers[0].evaluator, &strategy);
        finals_add(p, &strategy, default_strategies[i].name, default_strategies[i].text);
    }
    if (space->model->capabilities.stack == DPRO_STACK_HOROVOD && cycles_autotune(space, &strategy))
        tuned = finals_add(p, &strategy, "autotune", NULL);
    add_ways(p, space, baseline);
    p->n_listed = p->n_finalists;
    for (size_t i = 0; i < n_pool; i++)
        finals_add(p, &space->search->pool.at[i], NULL, NULL);
    if (space->search->options->n_finalists > 0)
        add_parts(p, space, baseline);
    for (uint32_t i = 0; i < p->n_finalists; i++)
        p->finalists[i].kind = kind_of(p, &p->finalists[i]);
    return tuned;
}

/* Within its bounds it finds what is listed, too, if that is better in all jobs together. */
static void finalists_tune(struct finals *p, struct finalist *tuned)
{
    uint64_t bytes = 0; /* no more than all is fused */
    for (uint32_t t = 0; t < p->model->n_tensors; t++)
        bytes += p->model->tensors[t].size_bytes;
    for (const struct finalist *f = p->finalists; f < p->finalists + p->n_listed; f++) {
        const struct dpro_strategy *s = &f->strategy;
        if (s->fuses && s->cycle_ns >= 1000000 && s->cycle_ns <= 100000000 &&
            (s->fusion_bytes <= 64 << 20 || bytes <= 64 << 20) && f->expected < tuned->expected)
            *tuned = *f;
    }
    tuned->name = "autotune";
    tuned->kind = A_SETTING;
    tuned->text = arena_format(&p->arena, "Horovod's autotune at best: %.3g ms, up to %.0f MiB",
                               (double)tuned->strategy.cycle_ns * 1e-6,
                               fmin(64, (double)tuned->strategy.fusion_bytes / (1 << 20)));
}

static double error_of(const struct finals *p, struct dpro_optimum *o, const struct finalist *f)
{
    struct dpro_model planned = *p->model;
    struct timed_job after = {.model = &planned};
    planned.baseline = f->strategy;
    finals_tell(p, f, &after);
    return uncertainty_of(&o->as_ran, &after, &(struct change_beside){0}).speedup *
           f->measured.left / f->measured.ratio;
}

/* By what was measured by turns, as the model's best guess is off by that. A part that was measured
 * may be chosen. */
static void correct_all(struct finals *p, struct dpro_optimum *o)
{
    for (uint32_t i = OF_BEST; i < p->n_finalists && p->model->turns; i++) {
        struct finalist *f = &p->finalists[i];
        double doubt = f->is_out ? 0 : error_of(p, o, f) * f->expected;
        f->measured = turns_correct(p->model, &f->strategy, doubt);
        f->is_barred &= !f->measured.is_known;
        if (f->measured.left < 1)
            f->expected = finals_share(p, f, 0) * f->measured.ratio;
    }
}

/* All plain settings are one kind. */
static unsigned kind_of_change(const struct finals *p, const struct finalist *f)
{
    const struct dpro_strategy *before = &p->finalists[OF_BASELINE].strategy;
    unsigned of = families_of(p->model, before, &f->strategy);
    return of && f->kind == A_SETTING ? OF_SETTINGS : of;
}

/* Unless it has nothing new. */
static void list_finalist(const struct finals *p, const struct finalist *f, double error,
                          double baseline_ns, struct dpro_optimum *o)
{
    const struct dpro_strategy *before = &p->finalists[OF_BASELINE].strategy;
    EACH (const struct dpro_strategy, other, o->finalist_strategies)
        if (families_of(p->model, other, &f->strategy) == 0)
            return;
    bool has_name = f->name && (f->kind == A_SETTING || f->is_computed);
    array_add(&o->finalists,
              .name = has_name
                          ? arena_copy_string(&o->arena, f->name, strlen(f->name))
                          : families_name(families_of(p->model, before, &f->strategy), &o->arena),
              .iteration_ns = llround(baseline_ns * f->expected), .uncertainty_pct = 100 * error);
    array_push(&o->finalist_strategies,
               buckets_copy(o->models[DPRO_BEST], &f->strategy, &o->arena));
}

ORDER_OF_INDICES(by_expected, struct finalist, COMPARE(x->expected, y->expected));

/* The best, the fastest of each other kind of change, then other settings, as far as the model
 * can't tell them from the best. */
static void list_finalists(const struct finals *p, const struct finalist *best, double baseline_ns,
                           uint32_t most, struct dpro_optimum *o)
{
    bool kinds[2 << N_CHANGE_KINDS] = {true}; /* that are there: the job as it ran always is */
    uint32_t n = most > 0 ? p->n_finalists : 0;
    SCRATCH uint32_t *order = sorted_indices(n, p->finalists, by_expected);
    double error = best == &p->finalists[OF_BASELINE] ? 0 : error_of(p, o, best);
    if (n > 0 && kind_of_change(p, best)) {
        list_finalist(p, best, error, baseline_ns, o);
        o->finalists.at[0].is_best = true;
        kinds[kind_of_change(p, best)] = true;
    }
    for (uint32_t i = 0; i < 2 * n && o->finalists.n < most; i++) {
        const struct finalist *f = &p->finalists[order[i % n]];
        unsigned kind = kind_of_change(p, f);
        if (f->is_out || (i < n ? kinds[kind] : kind != OF_SETTINGS))
            continue;
        double own = error_of(p, o, f);
        if (f->expected - best->expected > REACH_ERRORS * hypot(own, error))
            continue;
        kinds[kind] = true;
        list_finalist(p, f, own, baseline_ns, o);
    }
}

/* Reports times as expected over all jobs, of the result and of all that it is compared with. */
static void finalists_promise(const struct finals *p, struct space *space, struct dpro_optimum *o)
{
    double baseline_ns = (double)space->search->baseline_ns;
    bool chooses = space->search->options->algorithm == DPRO_ALGORITHM_DEFAULT;
    bool may_keep = !o->memory.is_needed;
    const struct finalist *best = finals_best(p, may_keep);
    const struct finalist *chosen = finals_choose(p, may_keep);
    if (!chooses) /* what that algorithm found */
        chosen = best = &p->finalists[OF_BEST];
    if (!o->memory.fits) /* nothing is of any use */
        chosen = best = &p->finalists[OF_BASELINE];
    list_finalists(p, chosen, baseline_ns, o->memory.fits ? space->search->options->n_finalists : 0,
                   o);
    o->summary.best_ns = llround(baseline_ns * chosen->expected);
    o->summary.found_ns = llround(baseline_ns * best->expected);
    o->measured = chosen->measured;
    o->summary.setting = is_setting(p->model, chosen) ? chosen->text : NULL;
    space_copy(space, &chosen->strategy, &space->best);
    struct evaluator *whole = evaluator_create(o->models[DPRO_BEST]); /* as whatif has it */
    o->summary.likely_ns =
        scaled_ns(chosen->measured.ratio, evaluate_strategy(whole, &chosen->strategy));
    if (o->memory.is_needed && o->memory.fits)
        memory_search_tell(&o->memory, chosen->is_computed);
    for (uint32_t i = OF_OTHERS; i < p->n_listed; i++) {
        const struct finalist *f = &p->finalists[i];
        struct dpro_baseline entry = {
            .name = f->name,
            .text = arena_copy_string(&o->arena, f->text, strlen(f->text)),
            .iteration_ns = llround(baseline_ns * f->expected),
            .likely_ns = scaled_ns(f->measured.ratio, evaluate_strategy(whole, &f->strategy)),
            .n_buckets = f->strategy.n_buckets,
            .computes = f->is_computed,
            .uncertainty_pct = 100 * error_of(p, o, f)};
        array_push(&o->baselines, entry);
        if (f->is_alone)
            o->computing.communication_ns = entry.iteration_ns;
    }
    evaluator_destroy(whole);
}

void result_choose(struct dpro_optimum *o, struct space *space)
{
    struct finals finals;
    finals_init(&finals, space->model, space->search->n_ways > 0);
    struct finalist *tuned = add_all(&finals, space, &o->models[DPRO_BEST]->baseline);
    finals_evaluate(&finals);
    bool same = o->models[DPRO_BEST] == o->models[DPRO_BASELINE];
    o->ran = same ? *space->model : *o->models[DPRO_BASELINE];
    o->ran.baseline = o->models[DPRO_BASELINE]->baseline;
    o->as_ran = (struct timed_job){.model = &o->ran};
    if (same)
        finals_tell(&finals, &finals.finalists[OF_BASELINE], &o->as_ran);
    correct_all(&finals, o);
    if (tuned)
        finalists_tune(&finals, tuned);
    finalists_promise(&finals, space, o);
    arena_fini(&finals.arena);
}
