/* What a search of programs asks: each try is a what-if. */
#include "optimize/program_search.h"

#include "cost/change/change_programs.h"
#include "cost/change/changes.h"
#include "cost/program/evaluate.h"
#include "graph/graph.h"

struct setting setting_like(struct program_search *s, const struct setting *from)
{
    struct arena *a = &s->optimum->arena;
    struct setting to = *from;
    to.ns = INT64_MAX;
    to.asked = NULL;
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

static void setting_change(const struct program_search *s, const struct setting *setting,
                           struct arena *arena, struct changed_job *job)
{
    struct notes notes = {.arena = arena};
    notes.averaged = setting->recomputed ? NULL : s->averaged;
    struct dpro_changes changes = changes_of(s, setting, arena);
    change_copy(s->model, arena, &job->model);
    change_check(&changes, s->model);
    change_programs(s->graph, &changes, &job->model, &notes, &job->change);
    job->change.passes.pause_ns = 0; /* once an iteration */
    array_fini(&notes.lines);
}

struct changed_job *setting_job(const struct program_search *s, const struct setting *setting)
{
    struct arena *arena = &s->optimum->arena;
    struct changed_job *job = setting->asked;
    if (job->after.model)
        return job;
    setting_change(s, setting, arena, job);
    job->after = (struct timed_job){
        .model = &job->model, .others = &job->change.passes, .n_others = job->change.n_passes};
    return job;
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
    setting->asked = arena_array(&s->optimum->arena, 1, sizeof *setting->asked);
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

const struct changed_job *program_judge(struct program_search *s, const struct setting *setting)
{
    struct changed_job *job = setting_job(s, setting);
    struct change_beside beside = {.sink = NULL};
    if (job->measured.ratio > 0)
        return job;
    struct uncertainty u = program_uncertainty(&s->before, &job->after, &job->change, beside);
    SCRATCH_ARENA struct arena arena = {0};
    struct dpro_changes changes = changes_of(s, setting, &arena);
    job_time(&s->before);
    job_time(&job->after);
    job->measured = changes_correct(&changes, s->model, &job->model.baseline,
                                    u.speedup * job->after.ns / s->before.ns);
    job->speedup_std = u.speedup * job->measured.left / job->measured.ratio;
    return job;
}

void program_correct(struct program_search *s, struct setting *setting)
{
    setting->measured = program_judge(s, setting)->measured;
    setting->ns = scaled_ns(setting->measured.ratio, setting->ns);
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
