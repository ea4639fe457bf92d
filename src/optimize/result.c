/* The public functions that read a result. */
#include "optimize/result.h"

#include "cost/memory/strategy_memory.h"
#include "cost/program/buckets.h"
#include "cost/program/model_memory.h"

#define BOUND_ERRORS 2 /* standard ones, by which a bound is lowered to hold when measured */

void dpro_optimum_destroy(struct dpro_optimum *o)
{
    if (!o)
        return;
    FREE_ALL(&o->baselines, &o->counts, &o->memory.choices, &o->units, &o->decisions,
             &o->improvements, &o->finalists, &o->finalist_strategies, &o->finalist_settings,
             &o->unit_numbers);
    arena_fini(&o->arena);
    mem_free(o);
}

static void result_keep(struct dpro_optimum *o, const struct dpro_model *model, struct space *space,
                        enum dpro_which which, const struct dpro_strategy *strategy)
{
    const struct dpro_pass_view *view = space_look(space, strategy);
    o->times[which] = arena_array(&o->arena, view->n_buckets, sizeof **o->times);
    o->strategies[which] = buckets_copy(model, strategy, &o->arena);
    for (uint32_t b = 0; b < view->n_buckets; b++)
        o->times[which][b] = (struct dpro_bucket_times){
            view->buckets[b].ready_ns, view->buckets[b].start_ns, view->buckets[b].end_ns};
}

/* How the job ran, which is what the result is compared with. */
static void keep_baseline(struct space *space, struct dpro_optimum *o)
{
    const struct dpro_model *ran = o->models[DPRO_BASELINE];
    struct space other;
    o->summary.baseline_ns = space->search->baseline_ns;
    if (ran == o->models[DPRO_BEST]) {
        result_keep(o, ran, space, DPRO_BASELINE, &ran->baseline);
        return;
    }
    space_init(&other, space->search, ran);
    o->summary.baseline_ns = space_value(&other, &ran->baseline);
    result_keep(o, ran, &other, DPRO_BASELINE, &ran->baseline);
    space_fini(&other);
}

/* What is left of a bound when all that it is made of is off by two standard errors: it is to hold
 * for what is measured. Both times have the recording's noise, and the model's distance from it;
 * how often slow iterations recur is in both alike. */
static int64_t sure_bound(const struct dpro_model *model, int64_t bound_ns,
                          const struct dpro_optimum_summary *s, const struct uncertainty *unsure)
{
    double gain = unsure->speedup * (double)s->best_ns / (double)s->baseline_ns;
    double noise = model->usual_noise;
    double doubt =
        sqrt(gain * gain + 2 * noise * noise + unsure->misfit * unsure->misfit) * BOUND_ERRORS;
    return llround((double)bound_ns * fmax(1 - doubt, 0));
}

void result_tell_search(struct dpro_optimum *o, const struct search *search)
{
    struct dpro_optimum_summary *s = &o->summary;
    array_append(&o->improvements, search->improvements.at, search->improvements.n);
    s->measured_ns = o->models[DPRO_BEST]->measured_ns;
    s->algorithm = dpro_algorithm_name(search->options->algorithm);
    s->seconds = search_seconds(search);
    s->n_candidates = search->n_candidates;
    s->n_rounds = search->n_rounds;
    s->stopped_by = search_end(search);
}

void result_tell_turns(struct dpro_optimum *o, const struct dpro_model *model)
{
    struct dpro_optimum_summary *s = &o->summary;
    if (!model->turns || model->turns->of.n == 0)
        return;
    s->n_turns = (uint32_t)model->turns->of.n;
    s->unmeasured_ns = llround((double)s->best_ns / o->measured.ratio);
    s->unmeasured_pct = s->uncertainty_pct;
    s->uncertainty_pct *= o->measured.left / o->measured.ratio;
}

void result_never_ends(void)
{
    fail_with(DPRO_EEMPTY, "by its model an iteration of this job never ends: what it waits for is "
                           "not in the trace; does 'dpro replay' warn of it?");
}

void result_fill(struct dpro_optimum *o, struct space *space)
{
    const struct dpro_model *model = o->models[DPRO_BEST];
    struct search *search = space->search;
    struct dpro_optimum_summary *s = &o->summary;
    struct dpro_model planned = *space->model;
    struct timed_job after = {.model = &planned};
    struct computation work = computation_of(space->model, &space->best, &space->arena);
    int64_t bound_ns = lower_bound(space->model, &work);
    keep_baseline(space, o);
    result_keep(o, model, space, DPRO_BEST, &space->best);
    for (int which = DPRO_BASELINE; which <= DPRO_BEST; which++)
        if (memory_is_known(o->models[which]))
            o->peaks[which] = memory_peak_told(o->models[which], &o->strategies[which]);
    result_decide(o);
    result_tell_search(o, search);
    planned.baseline = space->best;
    struct uncertainty unsure = uncertainty_of(&o->as_ran, &after, &(struct change_beside){0});
    for (uint32_t i = 0; i < model->n_modules; i++)
        o->computing.n_assumed +=
            model->modules[i].costs[computing_way(model, &space->best, i)].is_assumed;
    s->lower_bound_ns = MIN(sure_bound(model, bound_ns, s, &unsure), s->best_ns);
    s->uncertainty_pct = 100 * unsure.speedup;
    result_tell_turns(o, model);
    s->compression = space->best.compression;
}

static void result_scale(struct dpro_optimum *o)
{
    struct dpro_optimum_summary *s = &o->summary;
    double ratio = model_job_scale(o->models[DPRO_BASELINE], s->baseline_ns);
    int64_t *const times[] = {&s->baseline_ns,
                              &s->best_ns,
                              &s->likely_ns,
                              &s->found_ns,
                              &s->lower_bound_ns,
                              &s->unmeasured_ns,
                              &o->computing.communication_ns};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        *times[i] = scaled_ns(ratio, *times[i]);
    EACH (struct dpro_baseline, baseline, o->baselines) {
        baseline->iteration_ns = scaled_ns(ratio, baseline->iteration_ns);
        baseline->likely_ns = scaled_ns(ratio, baseline->likely_ns);
    }
    EACH (struct dpro_finalist, finalist, o->finalists)
        finalist->iteration_ns = scaled_ns(ratio, finalist->iteration_ns);
    EACH (struct dpro_server_count, count, o->counts) {
        count->usual_ns = scaled_ns(ratio, count->usual_ns);
        count->best_ns = scaled_ns(ratio, count->best_ns);
    }
    EACH (struct dpro_memory_choice, choice, o->memory.choices)
        choice->iteration_ns = scaled_ns(ratio, choice->iteration_ns);
    EACH (struct dpro_improvement, better, o->improvements)
        better->best_ns = scaled_ns(ratio, better->best_ns);
}

#define VIEW_OF(name, list) .name = (list).at, .n_##name = (uint32_t)(list).n

void result_end(struct dpro_optimum *o)
{
    result_scale(o);
    if (o->models[DPRO_BASELINE]->whole_bytes > 0) {
        /* what smaller buckets can reach is not known, nor what a cap makes */
        o->summary.lower_bound_ns = 0;
        o->summary.setting = NULL;
    }
    o->view = (struct dpro_optimum_view){
        .summary = o->summary,
        .memory = dpro_optimum_memory_budget(o),
        .computing = o->computing,
        .models = {o->models[0], o->models[1]},
        .strategies = {&o->strategies[0], &o->strategies[1]},
        .peaks = {o->peaks[0], o->peaks[1]},
        .pipeline = {o->pipeline[0], o->pipeline[1]},
        .times = {o->times[0], o->times[1]},
        VIEW_OF(baselines, o->baselines),
        VIEW_OF(counts, o->counts),
        VIEW_OF(units, o->units),
        VIEW_OF(finalists, o->finalists),
        VIEW_OF(choices, o->memory.choices),
        VIEW_OF(decisions, o->decisions),
        VIEW_OF(improvements, o->improvements),
    };
}

/* ---- looking at it ---- */

const char *dpro_algorithm_name(enum dpro_algorithm algorithm)
{
    static const char *const names[] = {"default", "paper", "dp"};
    return (unsigned)algorithm <= DPRO_ALGORITHM_DP ? names[algorithm] : NULL;
}

struct dpro_memory_budget dpro_optimum_memory_budget(const struct dpro_optimum *optimum)
{
    const struct memory_search *m = &optimum->memory;
    const struct dpro_model *ran = optimum->models[DPRO_BASELINE];
    const struct model_memory none = {0}, *most = &none;
    for (uint32_t i = 0; i < ran->n_memories; i++)
        if (ran->memories[i].leaked_bytes > most->leaked_bytes)
            most = &ran->memories[i];
    return (struct dpro_memory_budget){.budget_bytes = m->budget_bytes,
                                       .leaked_bytes = most->leaked_bytes,
                                       .growth_bytes = most->growth_bytes,
                                       .capacity_bytes = m->capacity_bytes,
                                       .least_bytes = m->least_bytes,
                                       .needed = m->is_needed,
                                       .fits = m->fits};
}

const struct dpro_optimum_view *dpro_optimum_view(const struct dpro_optimum *optimum)
{
    return &optimum->view;
}
