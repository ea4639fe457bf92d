/* Searches the programs of a job whose groups of ranks communicate. The fastest settings that fit
 * are judged as other searches' finalists are. */
#include "optimize/program_search.h"

#include "cost/memory/strategy_memory.h"
#include "cost/program/buckets.h"
#include "cost/program/evaluate.h"
#include "cost/program/model_memory.h"
#include "graph/graph.h"
#include "optimize/finals.h"

/* A try that was answered before is answered again. */
static struct finalist *add_finalist(struct finals *p, struct program_search *s,
                                     const struct setting *setting)
{
    struct changed_job *job = arena_array(&p->arena, 1, sizeof *job);
    bool changes = setting->kind != AS_IT_RAN;
    if (changes)
        setting_change(s, setting, &s->optimum->arena, job);
    const struct dpro_model *model = changes ? &job->model : s->model;
    struct finalist *f = finals_add(p, model, &model->baseline, NULL, NULL);
    f->kind = setting->kind;
    f->is_barred = !program_fits(s, setting);
    if (changes) {
        f->passes = &job->change.passes;
        f->n_passes = job->change.n_passes;
    }
    return f;
}

static void add_all(struct finals *p, struct program_search *s, const struct setting **settings)
{
    finals_init(p, s->model, false);
    p->finalists = arena_array(&p->arena, OF_OTHERS + s->n_rows + s->pool.n, sizeof *p->finalists);
    settings[p->n_finalists] = &s->as_ran;
    add_finalist(p, s, &s->as_ran)->is_barred = s->optimum->memory.is_needed;
    settings[p->n_finalists] = &s->best;
    add_finalist(p, s, &s->best);
    for (uint32_t i = 0; i < s->n_rows; i++) {
        settings[p->n_finalists] = &s->rows[i].setting;
        add_finalist(p, s, &s->rows[i].setting)->is_barred = true;
    }
    p->n_listed = p->n_finalists;
    EACH (const struct setting, setting, s->pool) {
        settings[p->n_finalists] = setting;
        add_finalist(p, s, setting);
    }
    finals_evaluate(p);
}

static void add_baselines(struct program_search *s, const struct finals *p)
{
    struct dpro_optimum *o = s->optimum;
    for (uint32_t i = 0; i < s->n_rows; i++) {
        const struct setting *setting = &s->rows[i].setting;
        double std = 0, share = p ? p->finalists[OF_OTHERS + i].expected : NAN;
        struct dpro_error err;
        if (program_doubt(s, setting, &std, NULL, &err) == DPRO_ENOMEM)
            mem_fail();
        array_add(&o->baselines, .name = s->rows[i].name, .text = s->rows[i].text,
                  .iteration_ns = p ? llround(share * (double)s->as_ran.ns) : setting->ns,
                  .likely_ns = setting->ns, .peak_bytes = setting->peak.bytes,
                  .uncertainty_pct = 100 * std);
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
    o->summary.apart_ns = o->summary.best_ns;
    o->summary.baseline_ns = s->as_ran.ns;
    o->summary.likely_ns = chosen->ns;
    o->summary.prefetch = chosen->prefetch;
    if (chosen->kind == AS_IT_RAN)
        return;
    struct dpro_error why;
    fail_on(program_doubt(s, chosen, &o->summary.uncertainty_pct, o->peaks, &why), &why);
    o->summary.uncertainty_pct *= 100;
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
    SCRATCH const struct setting **settings =
        mem_array(OF_OTHERS + s->n_rows + s->pool.n, sizeof *settings);
    add_all(&p, s, settings);
    add_baselines(s, &p);
    const struct finalist *best = finals_best(&p, may_keep), *is = finals_choose(&p, may_keep);
    o->summary.found_ns = llround((double)s->as_ran.ns * best->expected);
    o->summary.best_ns = llround((double)s->as_ran.ns * is->expected);
    chosen = settings[is - p.finalists];
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
    s->search.baseline_ns = s->as_ran.ns = evaluate_once(s->model);
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
    struct program_search s = {.search = {.options = options, .told_s = -1, .best_ns = INT64_MAX},
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
