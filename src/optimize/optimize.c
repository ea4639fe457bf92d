/* optimize/optimize.c: a search from beginning to end.
 *
 * The job's own strategy and the baselines come first, in the model as it is; then the search in
 * the Coarsened View, whose best is brought back and refined. The best of everything is the
 * result, so that it is never worse than what it is compared with. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cost/buckets.h"
#include "cost/change.h"
#include "cost/fused.h"
#include "cost/server_placement.h"
#include "cost/uncertainty.h"
#include "optimize/promise.h"
#include "optimize/result.h"
#include "optimize/search.h"

/* The search goes by that many of the ranks that are late; results are of all of them. */
enum { MOST_RANKS = 8 };

/* By how much a strategy must be better to be preferred to a simpler one. */
#define WORTH_OTHER_THAN_BUCKETS 0.005
#define WORTH_A_BUCKET           0.0005
#define WORTH_A_PLAN             0.005 /* against a plain setting, of a recorded job */

#define BOUND_ERRORS                                                                               \
    2 /* standard errors by which a bound is lowered, to hold for what is measured */

static const char *const algorithm_names[] = {"default", "paper", "dp", "mcmc"};

const char *dpro_algorithm_name(enum dpro_algorithm algorithm)
{
    return (unsigned)algorithm <= DPRO_ALGORITHM_MCMC ? algorithm_names[algorithm] : NULL;
}

/* How much later the last gradient is ready than without communication, which slows it down. */
static double stretch_of(struct space *space)
{
    const struct dpro_pass_view *view = space_look(space, &space->best);
    double ready = 0, launched = 0;
    for (uint32_t t = 0; t < view->n_tensors; t++)
        ready = fmax(ready, work_ready_ns(&space->work, t));
    for (uint32_t b = 0; b < view->n_buckets; b++)
        launched = fmax(launched, (double)view->buckets[b].ready_ns);
    return ready > 0 && launched > ready ? launched / ready : 1;
}

/* Those that the job's stack can be given. */
static void try_baselines(struct space *space)
{
    struct dpro_strategy strategy;
    if (space_strategy(space, &strategy) < 0) {
        space->search->failed = true;
        return;
    }
    for (uint32_t i = 0; i < N_BASELINES; i++) {
        if (!baseline_is_within(&space->model->capabilities, i))
            continue;
        baseline_strategy(space->model, &space->work, i, &strategy);
        space_evaluate(space, &strategy);
    }
}

static void search_default(struct space *space)
{
    if (space->model->capabilities.together)
        search_dynamic(space, 1);
    double stretch = stretch_of(space);
    if (stretch > 1 + WORTH_A_BUCKET && space->model->capabilities.together &&
        !search_stops(space->search))
        search_dynamic(space, stretch);
    if (!search_stops(space->search))
        search_paper(space);
    search_local(space, true);
    search_local(space, false);
}

/* space->best is a start already. */
static void run_algorithm(struct space *space)
{
    switch (space->search->options->algorithm) {
    case DPRO_ALGORITHM_DEFAULT:
        search_default(space);
        break;
    case DPRO_ALGORITHM_PAPER:
        search_paper(space);
        break;
    case DPRO_ALGORITHM_DP:
        if (space->model->capabilities.together)
            search_dynamic(space, 1);
        break;
    case DPRO_ALGORITHM_MCMC:
        search_mcmc(space);
        break;
    }
}

/* Buckets are merged as long as that costs next to nothing. */
static void merge_idle_borders(struct space *space, struct dpro_strategy *strategy, int64_t limit)
{
    struct journal journal = {0};
    for (uint32_t at = 0; at + 1 < strategy->n_buckets && !search_stops(space->search);) {
        struct dpro_edit merge = {.kind = DPRO_EDIT_MERGE, .at = at, .value = 0};
        if (edit_apply(space->model, strategy, &merge, &journal))
            break;
        if (space_evaluate(space, strategy) > limit) {
            edits_undo(strategy, &journal, 0);
            at++;
        }
        journal.undo.n = 0;
    }
    journal_fini(&journal);
}

/* Fused ops come apart where they win next to nothing, on all ranks that have them. */
static void unfuse_idle_ops(struct space *space, struct dpro_strategy *strategy, int64_t limit)
{
    struct journal journal = {0};
    for (uint32_t f = 0; f < strategy->n_fused && !search_stops(space->search);) {
        struct dpro_fused_op op = strategy->fused[f];
        for (uint32_t p = op.program; p < space->model->n_programs; p++) {
            struct dpro_edit unfuse = {DPRO_EDIT_UNFUSE, op.first, 0, p, 0};
            uint32_t at = fused_find(strategy, p, op.first);
            if (at < strategy->n_fused && strategy->fused[at].n == op.n)
                edit_apply(space->model, strategy, &unfuse, &journal);
        }
        if (space_evaluate(space, strategy) > limit) {
            edits_undo(strategy, &journal, 0);
            f++;
        }
        journal.undo.n = 0;
    }
    journal_fini(&journal);
}

/* What is left of a search is simple where simple is as good: the model is not that exact, and
 * what need not be asked of a job can't go wrong in it. Never slower than `limit`. */
static void simplify(struct space *space, int64_t limit)
{
    struct dpro_strategy strategy;
    if (space_strategy(space, &strategy) < 0) {
        space->search->failed = true;
        return;
    }
    bool plain = (double)space->plain_ns <= (double)space->best_ns * (1 + WORTH_OTHER_THAN_BUCKETS);
    if (plain && space->plain_ns <= limit) {
        space_copy(space, &space->plain, &space->best);
        space->best_ns = space->plain_ns;
    }
    space_copy(space, &space->best, &strategy);
    int64_t most = (int64_t)((double)space->best_ns * (1 + WORTH_A_BUCKET));
    most = most < limit ? most : limit;
    unfuse_idle_ops(space, &strategy, most);
    merge_idle_borders(space, &strategy, most);
    space_copy(space, &strategy, &space->best);
    space->best_ns = space_evaluate(space, &strategy);
}

/* All of a collective's ranks wait for each other; those of a parameter server share its links. */
static bool alike_ranks_are_one(const struct search *search, const struct dpro_model *model)
{
    return !search->options->no_symmetry && !sync_n_servers(&model->net);
}

/* In the Coarsened View, where there is one; the best found comes back. */
static int search_coarse(struct space *fine, struct dpro_error *err)
{
    const struct dpro_optimize_options *o = fine->search->options;
    struct condensed condensed;
    struct space coarse;
    struct dpro_strategy found;
    bool symmetry = alike_ranks_are_one(fine->search, fine->model);
    uint32_t most_ranks = symmetry ? MOST_RANKS : UINT32_MAX;
    if (condense(fine->model, !o->no_coarsen, symmetry, most_ranks, &condensed) < 0) {
        condensed_fini(&condensed);
        return dpro_error_nomem(err);
    }
    int rc = space_init(&coarse, fine->search, &condensed.model, err);
    if (rc == 0 && space_strategy(fine, &found) < 0)
        rc = dpro_error_nomem(err);
    if (rc == 0) {
        if (condensed.differs || condensed.model.n_ranks < fine->model->n_ranks) {
            try_baselines(&coarse);
        } else {
            space_note(&coarse, &fine->best, fine->best_ns);
            if (fine->plain_ns < INT64_MAX)
                space_note(&coarse, &fine->plain, fine->plain_ns);
        }
        run_algorithm(&coarse);
        condensed_expand(&condensed, &coarse.best, &found);
        space_evaluate(fine, &found);
        if (coarse.plain_ns < INT64_MAX) {
            condensed_expand(&condensed, &coarse.plain, &found);
            space_evaluate(fine, &found);
        }
        if (condensed.differs && fine->model->n_ranks <= most_ranks &&
            o->algorithm == DPRO_ALGORITHM_DEFAULT) {
            search_local(fine, true);
            search_local(fine, false);
        }
    }
    space_fini(&coarse);
    condensed_fini(&condensed);
    return rc;
}

/* ---- what is promised ---- */

/* Those of the baselines that a DDP job is given by one argument. */
static bool is_setting(const struct dpro_model *model, const struct baseline *baseline)
{
    return model->capabilities.stack == DPRO_STACK_DDP && strncmp(baseline->name, "cap-", 4) == 0;
}

enum { OF_OWN, OF_BEST, OF_BASELINES }; /* finalists */

static int add_finalists(struct space *space, const struct dpro_strategy *own, struct promise *p,
                         const struct baseline **of)
{
    struct dpro_strategy strategy;
    if (promise_init(p, space->model, OF_BASELINES + N_BASELINES) < 0 ||
        promise_add(p, own) == UINT32_MAX || promise_add(p, &space->best) == UINT32_MAX ||
        space_strategy(space, &strategy) < 0)
        return -1;
    for (uint32_t i = 0; i < N_BASELINES; i++) {
        if (!baseline_is_within(&space->model->capabilities, i))
            continue;
        baseline_strategy(space->model, &space->work, i, &strategy);
        if (space_value(space, &strategy) == INT64_MAX)
            continue;
        uint32_t f = promise_add(p, &strategy);
        if (f == UINT32_MAX)
            return -1;
        of[f] = &baselines[i];
    }
    return promise_evaluate(p);
}

/* The plain setting with the largest buckets that is as good as what was found, as far as the
 * recording can tell: what a person can set needs no plan in the job, and messages cost least where
 * they are few. Ops that are fused are no setting. */
static uint32_t choose(const struct promise *p, const struct dpro_model *model,
                       const struct baseline **of)
{
    const struct finalist *own = &p->finalists[OF_OWN], *best = &p->finalists[OF_BEST];
    bool may_set = best->strategy->n_fused == 0;
    double least = model->measured_ns > 0 ? WORTH_A_PLAN : 0; /* a generated job has no doubt */
    uint32_t chosen = OF_OWN;
    for (uint32_t f = p->n_finalists; may_set && f-- > OF_BASELINES;) {
        double expected = p->finalists[f].expected;
        if (is_setting(model, of[f]) && expected < own->expected &&
            expected - best->expected <= fmax(promise_doubt(p, OF_BEST, f), least))
            return f;
    }
    for (uint32_t f = OF_BEST; f < p->n_finalists; f++)
        if (p->finalists[f].expected < p->finalists[chosen].expected)
            chosen = f;
    return chosen;
}

static int64_t of_own(const struct space *space, const struct finalist *finalist)
{
    return llround((double)space->search->baseline_ns * finalist->expected);
}

/* What is found is told by what it is expected to take, and so is all that it is compared with. */
static int promise_results(struct space *space, const struct dpro_strategy *own,
                           struct dpro_optimum *o)
{
    const struct baseline *of[OF_BASELINES + N_BASELINES + 1];
    struct dpro_optimum_summary *s = &o->summary;
    struct promise p;
    int rc = add_finalists(space, own, &p, of);
    if (rc == 0) {
        bool chooses = space->search->options->algorithm == DPRO_ALGORITHM_DEFAULT;
        uint32_t found = p.finalists[OF_BEST].expected < 1 ? OF_BEST : OF_OWN;
        uint32_t chosen = chooses ? choose(&p, space->model, of) : found;
        s->best_ns = of_own(space, &p.finalists[chosen]);
        s->found_ns = of_own(space, &p.finalists[OF_BEST]);
        bool sets = chosen >= OF_BASELINES && is_setting(space->model, of[chosen]);
        s->setting = sets ? of[chosen]->text : NULL;
        if (chosen != OF_BEST)
            space_copy(space, p.finalists[chosen].strategy, &space->best);
        for (uint32_t f = OF_BASELINES; f < p.n_finalists; f++)
            o->baselines[o->n_baselines++] =
                (struct dpro_baseline){of[f]->name, of[f]->text, of_own(space, &p.finalists[f]),
                                       p.finalists[f].strategy->n_buckets};
    }
    promise_fini(&p);
    return rc;
}

/* Of the best strategy without its op fusions. */
static int64_t best_apart_ns(struct space *space, int64_t best_ns)
{
    struct dpro_strategy apart = space->best;
    apart.n_fused = 0;
    if (space->best.n_fused == 0)
        return best_ns;
    double more = (double)evaluate(space->evaluators[0], &apart) /
                  (double)evaluate(space->evaluators[0], &space->best);
    return llround((double)best_ns * more);
}

/* How the job ran, which is what the result is compared with. */
static int keep_own(struct space *space, struct dpro_optimum *o)
{
    const struct dpro_model *ran = o->models[DPRO_BASELINE];
    struct space own;
    o->summary.baseline_ns = space->search->baseline_ns;
    if (ran == o->models[DPRO_BEST])
        return result_keep(o, ran, space, DPRO_BASELINE, &ran->baseline);
    int rc = space_init(&own, space->search, ran, NULL) < 0 ? -1 : 0;
    if (rc == 0) {
        o->summary.baseline_ns = space_value(&own, &ran->baseline);
        rc = result_keep(o, ran, &own, DPRO_BASELINE, &ran->baseline);
    }
    space_fini(&own);
    return rc;
}

/* What is left of a bound when all that it is made of is off by two standard errors: it is to hold
 * for what is measured. The two times have the recording's noise, and the model's distance from it.
 */
static int64_t sure_bound(const struct dpro_model *model, int64_t bound_ns,
                          const struct dpro_optimum_summary *s, const struct uncertainty *unsure)
{
    double gain = unsure->speedup * (double)s->best_ns / (double)s->baseline_ns, noise = 0;
    if (model->measured_ns > 0 && model->n_samples > 1)
        noise = model->measured_std_ns / (double)model->measured_ns / sqrt(model->n_samples);
    double doubt =
        sqrt(gain * gain + 2 * noise * noise + unsure->misfit * unsure->misfit) * BOUND_ERRORS;
    return llround((double)bound_ns * fmax(1 - doubt, 0));
}

static int keep_results(struct space *space, struct dpro_optimum *o)
{
    const struct dpro_model *model = o->models[DPRO_BEST];
    struct search *search = space->search;
    struct dpro_optimum_summary *s = &o->summary;
    bool same = model == o->models[DPRO_BASELINE];
    struct dpro_model ran = same ? *space->model : *o->models[DPRO_BASELINE],
                      planned = *space->model;
    struct uncertainty unsure;
    struct work work; /* with the ops fused that the best strategy fuses */
    int64_t bound_ns = 0;
    if (promise_results(space, &model->baseline, o) < 0 || keep_own(space, o) < 0 ||
        result_keep(o, model, space, DPRO_BEST, &space->best) < 0 ||
        work_of(space->model, &space->best, &space->arena, &work) < 0 ||
        lower_bound(space->model, &work, &bound_ns) < 0 || result_fuse(o, model) < 0 ||
        result_decide(o) < 0)
        return -1;
    ran.baseline = o->models[DPRO_BASELINE]->baseline;
    planned.baseline = space->best;
    if (uncertainty_of(&ran, &planned, &unsure, NULL) < 0)
        return -1;
    for (size_t i = 0; i < search->improvements.n; i++) {
        const struct improvement *from = &search->improvements.at[i];
        struct dpro_improvement to = {from->seconds, from->n_candidates, from->best_ns};
        if (array_push(&o->improvements, to) < 0)
            return -1;
    }
    s->measured_ns = model->measured_ns;
    s->apart_ns = best_apart_ns(space, s->best_ns);
    s->lower_bound_ns = sure_bound(model, bound_ns, s, &unsure);
    s->uncertainty_pct = 100 * unsure.speedup;
    s->compression = space->best.compression;
    s->algorithm = dpro_algorithm_name(search->options->algorithm);
    s->seconds = search_seconds(search);
    s->n_candidates = search->n_candidates;
    s->n_rounds = search->n_rounds;
    s->stopped_by = search->stopped_by ? search->stopped_by : "converged";
    return 0;
}

static int run(struct search *search, struct dpro_optimum *o, struct dpro_error *err)
{
    const struct dpro_model *model = o->models[DPRO_BEST];
    struct condensed fine;
    struct space space = {0};
    int64_t compared_ns = 0; /* the best of what the result is compared with */
    int rc = 0;
    if (condense(model, false, alike_ranks_are_one(search, model), UINT32_MAX, &fine) < 0) {
        condensed_fini(&fine);
        return dpro_error_nomem(err);
    }
    cycles_prepare(&fine.model);
    rc = space_init(&space, search, &fine.model, err);
    if (rc == 0) {
        search->baseline_ns = model->baseline.fuses ? cycles_own(&space, &model->baseline)
                                                    : space_evaluate(&space, &model->baseline);
        if (search->baseline_ns == INT64_MAX && !search->failed)
            rc = dpro_error_set(err, DPRO_EEMPTY,
                                "by its model an iteration of this job never ends: what it waits "
                                "for is not in the trace");
    }
    if (rc == 0) {
        try_baselines(&space);
        compared_ns = search->baseline_ns < space.best_ns ? search->baseline_ns : space.best_ns;
        if (assign_is_all(model))
            search_assign(&space, &model->baseline);
        else
            rc = search_coarse(&space, err);
    }
    if (rc == 0 && search->options->algorithm == DPRO_ALGORITHM_DEFAULT && !assign_is_all(model))
        simplify(&space, compared_ns);
    if (rc == 0 && model->net.cycle_ns > 0)
        cycles_search(&space, &model->baseline, compared_ns);
    if (rc == 0 && (search->failed || search->registry.failed || keep_results(&space, o) < 0))
        rc = dpro_error_nomem(err);
    space_fini(&space);
    condensed_fini(&fine);
    return rc;
}

/* Tells of what is allowed but can't be had. */
static void tell_compressions(const struct dpro_model *model,
                              const struct dpro_optimize_options *options)
{
    char text[96];
    for (int c = DPRO_COMPRESSION_FP16; c <= DPRO_COMPRESSION_BF16; c++) {
        if (!(options->compressions & ~model->capabilities.compressions & 1u << c) ||
            !options->sink.log || options->sink.level < DPRO_LOG_WARN)
            continue;
        snprintf(text, sizeof text, "%s is not tried: what carries the job's gradients can't do it",
                 dpro_compression_name((enum dpro_compression)c));
        options->sink.log(options->sink.arg, DPRO_LOG_WARN, text);
    }
}

int search_one(const struct dpro_model *model, uint32_t n_servers,
               const struct dpro_optimize_options *options, struct dpro_optimum **optimum,
               struct dpro_error *err)
{
    struct search search = {
        .options = options, .random = options->seed, .told_s = -1, .best_ns = INT64_MAX};
    struct dpro_optimum *o = calloc(1, sizeof *o);
    if (!o)
        return dpro_error_nomem(err);
    int rc = 0;
    o->models[DPRO_BASELINE] = o->models[DPRO_BEST] = model;
    if (n_servers != sync_n_servers(&model->net)) {
        o->models[DPRO_BEST] = &o->changed;
        if (change_copy(model, &o->arena, &o->changed) < 0 ||
            servers_change(&o->changed, n_servers, &o->arena) < 0)
            rc = dpro_error_nomem(err);
    }
    if (rc == 0)
        rc = registry_init(&search.registry, options, err);
    search.start_s = search_seconds(&search);
    if (rc == 0)
        rc = run(&search, o, err);
    registry_fini(&search.registry);
    array_fini(&search.improvements);
    if (rc < 0)
        dpro_optimum_destroy(o);
    else
        *optimum = o;
    return rc;
}

int dpro_optimize_run(const struct dpro_model *model, const struct dpro_optimize_options *options,
                      struct dpro_optimum **optimum, struct dpro_error *err)
{
    static const struct dpro_optimize_options defaults;
    const struct dpro_optimize_options *o = options ? options : &defaults;
    if (!dpro_algorithm_name(o->algorithm))
        return dpro_error_set(err, DPRO_EUSAGE, "there is no search algorithm number %d",
                              (int)o->algorithm);
    if (model->n_tensors == 0)
        return dpro_error_set(err, DPRO_EEMPTY,
                              "the job communicates no gradients: there is "
                              "nothing to search");
    tell_compressions(model, o);
    return o->least_servers || o->most_servers
               ? search_counts(model, o, optimum, err)
               : search_one(model, sync_n_servers(&model->net), o, optimum, err);
}
