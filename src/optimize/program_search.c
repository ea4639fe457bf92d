/* Each try is a what-if. Searches the programs of a job whose groups of ranks communicate. The
 * fastest settings that fit are judged as other searches' finalists are. */
#include "optimize/program_search.h"

#include "cost/change/change_programs.h"
#include "cost/change/changes.h"
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

/* ---- what is asked ---- */

struct setting setting_like(struct program_search *s, const struct setting *from)
{
    struct arena *a = &s->optimum->arena;
    struct setting to = *from;
    to.ns = INT64_MAX;
    to.reshards = arena_copy(a, from->reshards, s->graph->n_units, sizeof *to.reshards);
    if (from->recomputed)
        to.recomputed = arena_copy(a, from->recomputed, s->model->n_modules, sizeof(bool));
    return to;
}

/* ---- asking ---- */

static const char *add_name(struct arena *arena, const char *text, const char *name)
{
    return *name ? arena_format(arena, "%s%s%s", text, *text ? "," : "", name) : text;
}

/* For --reshard; the model as a whole has no name there. */
static const char *text_of_units(const struct program_search *s, const struct setting *setting,
                                 struct arena *arena)
{
    const char *text = "";
    uint32_t n = 0, n_all = 0;
    for (uint32_t u = 0; u < s->graph->n_units; u++) {
        n_all += s->gathered[u];
        n += setting->reshards[u];
        if (setting->reshards[u])
            text = add_name(arena, text, graph_unit_name(s->graph, u));
    }
    return n_all == 0 ? NULL : n == n_all ? "all" : *text ? text : "none";
}

static struct dpro_changes changes_of(const struct program_search *s, const struct setting *setting,
                                      struct arena *arena)
{
    struct dpro_changes changes = {.reshard = text_of_units(s, setting, arena),
                                   .prefetch = setting->prefetch,
                                   .pipeline_micro_batches = setting->run.n_micro_batches,
                                   .schedule = setting->run.schedule,
                                   .micro_batches = setting->micro_batches};
    const char *names = "";
    for (uint32_t m = 0; setting->recomputed && m < s->model->n_modules; m++)
        if (setting->recomputed[m])
            names = add_name(arena, names, s->model->modules[m].name);
    changes.recompute = *names ? names : NULL;
    return changes;
}

void setting_change(const struct program_search *s, const struct setting *setting,
                    struct arena *arena, struct changed_job *job)
{
    struct notes notes = {.arena = arena};
    struct dpro_changes changes = changes_of(s, setting, arena);
    change_copy(s->model, arena, &job->model);
    change_check(&changes, s->model);
    change_programs(s->graph, &changes, &job->model, &notes, &job->change);
    job->change.passes.pause_ns = 0; /* once an iteration */
    array_fini(&notes.lines);
}

static void settings_predict(const struct program_search *s, struct setting *setting,
                             struct dpro_memory_peak *before)
{
    SCRATCH_ARENA struct arena arena = {0};
    struct changed_job job;
    bool same = true;
    setting_change(s, setting, &arena, &job);
    for (uint32_t u = 0; u < job.change.units.n_units; u++)
        same &= !job.change.units.units[u].reshards == !setting->reshards[u];
    setting->ns = same ? evaluate_once(&job.model) : INT64_MAX;
    if (job.change.n_passes > 0 && setting->ns < INT64_MAX)
        setting->ns += job.change.n_passes * evaluate_once(&job.change.passes);
    bool changed = job.change.has_modules;
    *before = changed ? job.change.memory[DPRO_BASELINE] : s->as_ran.peak;
    setting->peak = changed ? job.change.memory[DPRO_BEST] : s->as_ran.peak;
    before->module = setting->peak.module = NULL;
    arena_fini(&job.model.arena);
}

/* What can't be predicted is no failure of the search. */
int program_ask(struct program_search *s, struct setting *setting, struct dpro_error *err)
{
    struct dpro_memory_peak before = {.bytes = 0};
    s->search.n_candidates++;
    int rc = OUTCOME(err, settings_predict(s, setting, &before));
    memory_check();
    if (rc < 0)
        return rc;
    s->as_ran.peak = before;
    if (setting->ns < INT64_MAX)
        s->least_bytes = MIN(s->least_bytes, setting->peak.bytes);
    return 0;
}

bool program_try(struct program_search *s, struct setting *setting)
{
    struct dpro_error why;
    return program_ask(s, setting, &why) == 0 && setting->ns < INT64_MAX;
}

bool program_fits(const struct program_search *s, const struct setting *setting)
{
    return setting->ns < INT64_MAX && setting->peak.bytes <= s->limit_bytes;
}

void program_keep(struct program_search *s, const struct setting *setting)
{
    if (!program_fits(s, setting))
        return;
    array_push(&s->pool, *setting);
    if (setting->ns >= s->best.ns)
        return;
    s->best = *setting;
    s->search.best_ns = setting->ns;
    array_add(&s->search.improvements, search_seconds(&s->search), s->search.n_candidates,
              setting->ns);
}

int program_doubt(const struct program_search *s, const struct setting *setting,
                  double *speedup_std, struct dpro_memory_peak peaks[2], struct dpro_error *err)
{
    struct arena *a = &s->optimum->arena;
    struct dpro_changes changes = changes_of(s, setting, a);
    struct dpro_whatif *whatif;
    int rc = dpro_whatif_run(s->graph, s->model, &changes, &whatif, err);
    if (rc < 0)
        return rc;
    *speedup_std = whatif->answer.speedup.std;
    for (int which = DPRO_BASELINE; peaks && which <= DPRO_BEST; which++) {
        peaks[which] = whatif->answer.memory[which];
        if (peaks[which].module)
            peaks[which].module =
                arena_copy_string(a, peaks[which].module, strlen(peaks[which].module));
    }
    dpro_whatif_destroy(whatif);
    return 0;
}

void program_list(struct program_search *s, const char *name, const char *text,
                  const struct setting *setting)
{
    if (setting->ns == INT64_MAX || s->n_rows == sizeof s->rows / sizeof *s->rows)
        return;
    bool too_much = setting->peak.bytes > s->limit_bytes && s->optimum->memory.budget_bytes > 0;
    if (s->as_ran.peak.bytes > 0)
        text =
            arena_format(&s->optimum->arena, "%s%s%.1f MB at the peak%s", text, *text ? "; " : "",
                         (double)setting->peak.bytes * 1e-6, too_much ? ", over the budget" : "");
    s->rows[s->n_rows].name = name;
    s->rows[s->n_rows].text = text;
    s->rows[s->n_rows++].setting = *setting;
}
