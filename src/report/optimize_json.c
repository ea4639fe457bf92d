/* What a search found, as JSON (dpro.optimize/1; keys are never renamed or dropped), as a page, and
 * the folder of its plan. */
#include "report/optimize_facts.h"

#include <unistd.h>

#include "optimize/plan_make.h"
#include "report/model_report.h"
#include "report/page.h"

static void write_best(struct writer *w, const struct optimize_facts *f)
{
    const struct dpro_optimum_summary *s = &f->o->summary;
    const struct dpro_model *model = f->o->models[DPRO_BEST];
    const struct dpro_strategy *best = &f->o->strategies[DPRO_BEST];
    writer_section(w, "best", '{');
    writer_fields(w, TEXT("text", STRATEGY_OF(f, DPRO_BEST)), MS("iteration_ms", s->best_ns),
                  FIXED("speedup", f->speedup, 6), FIXED("uncertainty_pct", f->uncertainty_pct, 3),
                  MS("apart_ms", s->best_ns), MS("found_ms", s->found_ns),
                  MS("likely_ms", s->likely_ns), TEXT("setting", s->setting),
                  TEXT("script", f->script[0] != '\0' ? f->script : NULL), BOOL("helps", f->helps),
                  BOOL("changes_numerics", s->compression != DPRO_COMPRESSION_NONE || f->computes ||
                                               f->cut_changes[0] != '\0'));
    writer_section(w, "computation", '{');
    model_write_modules(w, "compile", model, best, DPRO_COMPILED);
    model_write_modules(w, "bf16", model, best, DPRO_BF16);
    writer_begin(w, "fused_ops", '[');
    writer_close(w, ']');
    writer_close(w, '}');
    writer_newline(w);
    writer_key(w, "communication");
    model_write_strategy(w, model, best);
    writer_close(w, '}');
    writer_section(w, "baseline", '{');
    writer_fields(w, TEXT("text", STRATEGY_OF(f, DPRO_BASELINE)));
    writer_key(w, "communication");
    model_write_strategy(w, f->report->model, &f->o->strategies[DPRO_BASELINE]);
    writer_close(w, '}');
}

static void write_baselines(struct writer *w, const struct optimize_facts *f)
{
    WRITER_ROWS_OF (w, "baselines", const struct dpro_baseline, row, f->o->baselines.at,
                    f->o->baselines.n)
        if (optimize_is_row(f, row))
            writer_row(w, TEXT("name", row->name), TEXT("text", row->text),
                       MS("iteration_ms", row->iteration_ns), MS("likely_ms", row->likely_ns),
                       INT("buckets", row->n_buckets),
                       FIXED_IF("uncertainty_pct", row->uncertainty_pct > 0,
                                optimize_half_pct(f, row->iteration_ns, row->uncertainty_pct), 3),
                       INT_IF("peak_bytes", row->peak_bytes > 0, row->peak_bytes),
                       BOOL("computes", row->computes));
    WRITER_ROWS_OF (w, "servers", const struct dpro_server_count, count, f->o->counts.at,
                    f->o->counts.n)
        writer_row(w, INT("servers", count->n_servers), INT("on_own_hosts", count->n_hosts),
                   MS("usual_ms", count->usual_ns), MS("iteration_ms", count->best_ns));
}

/* Whether it is what the plan itself says. */
static bool is_plan(const struct optimize_facts *f, const struct dpro_finalist *finalist)
{
    return f->planned == DPRO_BEST && finalist->is_best;
}

static void write_finalists(struct writer *w, const struct optimize_facts *f)
{
    const char *plan = f->is_for_job ? f->report->plan : NULL;
    WRITER_ROWS_OF (w, "finalists", const struct dpro_finalist, one, f->o->finalists.at,
                    f->o->finalists.n) {
        SCRATCH char *folder = is_plan(f, one) ? mem_format("%s", plan ?: "")
                                               : mem_format("%s/finalist-%zu", plan ?: "",
                                                            one - f->o->finalists.at + 1);
        writer_row(w, TEXT("name", one->name), TEXT("plan", plan ? folder : NULL),
                   MS("iteration_ms", one->iteration_ns),
                   FIXED("uncertainty_pct",
                         optimize_half_pct(f, one->iteration_ns, one->uncertainty_pct), 3),
                   BOOL("best", one->is_best));
    }
}

/* FSDP's units, and a pipeline. */
static void write_programs(struct writer *w, const struct optimize_facts *f)
{
    writer_newline(w);
    writer_fields(w, INT("prefetch", f->o->summary.prefetch));
    WRITER_ROWS_OF (w, "units", const struct dpro_unit, unit, f->o->units.at, f->o->units.n)
        writer_row(w, TEXT("name", unit->name), BOOL("reshards_before", unit->reshards_before),
                   BOOL("reshards", unit->reshards));
    writer_newline(w);
    if (!f->is_of_pipeline) {
        writer_fields(w, NUL("pipeline"));
        return;
    }
    writer_begin(w, "pipeline", '{');
    for (int which = DPRO_BASELINE; which <= DPRO_BEST; which++) {
        struct dpro_pipeline_run run = f->o->pipeline[which];
        writer_object_at(w, which == DPRO_BEST ? "best" : "baseline",
                         INT("micro_batches", run.n_micro_batches),
                         TEXT("schedule", run.schedule ? dpro_schedule_name(run.schedule) : NULL));
    }
    writer_close(w, '}');
}

static void write_search(struct writer *w, const struct dpro_optimum *o)
{
    const struct dpro_optimum_summary *s = &o->summary;
    writer_section(w, "search", '{');
    writer_fields(w, TEXT("algorithm", s->algorithm), FIXED("seconds", s->seconds, 3),
                  INT("candidates", s->n_candidates), INT("rounds", s->n_rounds),
                  TEXT("stopped_by", s->stopped_by));
    WRITER_LIST_OF (w, "improvements", const struct dpro_improvement, better, o->improvements.at,
                    o->improvements.n)
        writer_object(w, FIXED("seconds", better->seconds, 6),
                      INT("candidates", better->n_candidates), MS("iteration_ms", better->best_ns));
    writer_close(w, '}');
    WRITER_ROWS_OF (w, "strategy", const struct dpro_decision, d, o->decisions.at, o->decisions.n)
        writer_row(w, TEXT("pass", d->pass), TEXT("target", d->target),
                   TEXT("decision", d->decision));
}

/* The command that follows, without the job's own arguments; none where nothing is to be done. */
static void write_next_command(struct writer *w, const struct optimize_facts *f)
{
    struct launcher job = optimize_launcher(f);
    bool planned = f->is_named && f->report->plan;
    bool measures = f->report->model->capabilities.stack != DPRO_STACK_BYTEPS;
    writer_begin(w, "next", '[');
    if (f->helps && f->is_for_job && (planned || !f->is_named)) {
        writer_string(w, "dpro");
        writer_string(w, planned && measures ? "verify" : "profile");
        if (planned) {
            writer_string(w, "--plan");
            writer_string(w, f->report->plan);
        }
        if (!planned || !measures) {
            writer_string(w, "-o");
            writer_string(w, planned ? "TRACE2" : "TRACE");
        }
        writer_string(w, "--");
        writer_string(w, job.program);
        writer_string(w, job.script);
    }
    writer_close(w, ']');
}

/* Null where no other way to compute modules was allowed. */
static void write_computing(struct writer *w, const struct dpro_computing_search *s)
{
    writer_newline(w);
    if (s->allowed == 0) {
        writer_fields(w, NUL("computing"));
        return;
    }
    writer_begin(w, "computing", '{');
    writer_begin(w, "allowed", '[');
    if (s->allowed & DPRO_COMPILED)
        writer_string(w, "compile");
    if (s->allowed & DPRO_BF16)
        writer_string(w, "bf16");
    writer_close(w, ']');
    writer_fields(w, INT("modules", s->n_modules), INT("assumed_modules", s->n_assumed),
                  MS_IF("communication_ms", s->communication_ns > 0, s->communication_ns));
    writer_close(w, '}');
}

/* Null where it is not known. */
static void write_memory(struct writer *w, const struct optimize_facts *f)
{
    const struct dpro_optimum *o = f->o;
    const struct dpro_memory_budget *b = &f->budget;
    const struct dpro_memory_peak *before = &o->peaks[DPRO_BASELINE], *best = &o->peaks[DPRO_BEST];
    writer_newline(w);
    if (before->bytes == 0) {
        writer_fields(w, NUL("memory"));
        return;
    }
    writer_begin(w, "memory", '{');
    model_write_peaks(w, before, best);
    writer_fields(w, INT_IF("budget_bytes", b->budget_bytes > 0, b->budget_bytes),
                  INT_IF("capacity_bytes", b->capacity_bytes > 0, b->capacity_bytes),
                  BOOL("fits", b->fits), INT_IF("least_budget_bytes", b->needed, b->least_bytes),
                  INT_IF("leaked_bytes", b->leaked_bytes > 0, b->leaked_bytes));
    model_write_modules(w, "recompute", o->models[DPRO_BEST], &o->strategies[DPRO_BEST], 0);
    writer_fields(w, INT("micro_batches", optimize_n_parts(o, DPRO_BEST)));
    model_write_categories(w, "baseline_by_category", before);
    model_write_categories(w, "by_category", best);
    WRITER_LIST_OF (w, "choices", const struct dpro_memory_choice, c, o->memory.choices.at,
                    o->memory.choices.n)
        writer_row(w, TEXT("name", c->name), INT("computed", c->n_computed),
                   INT("recomputed", c->n_recomputed), INT("micro_batches", c->micro_batches),
                   MS("iteration_ms", c->iteration_ns), INT("peak_bytes", c->peak_bytes),
                   BOOL("fits", c->fits), BOOL("chosen", c->chosen), BOOL("exact", c->exact));
    writer_close(w, '}');
}

static void write_report(struct writer *w, const struct optimize_facts *f)
{
    const struct dpro_optimize_report *r = f->report;
    const struct dpro_optimum_summary *s = &f->o->summary;
    struct lines verdict = {.n = 0};
    writer_open(w, '{');
    writer_fields(w, TEXT("schema", "dpro.optimize/1"), TEXT("version", dpro_version()),
                  MS_IF("measured_ms", s->measured_ns > 0, s->measured_ns));
    optimize_say_verdict(&verdict, f);
    WRITER_LIST (w, "verdict", i, verdict.n)
        writer_object(w, TEXT("title", verdict.at[i].title), TEXT("text", verdict.at[i].said.text));
    write_next_command(w, f);
    model_write_pace(w, r->model);
    writer_fields(w, MS("replayed_ms", s->baseline_ns));
    write_best(w, f);
    writer_newline(w);
    writer_fields(w, MS_IF("lower_bound_ms", s->lower_bound_ns > 0, s->lower_bound_ns));
    write_baselines(w, f);
    writer_object_if(w, "turns", s->n_turns > 0, INT("n", s->n_turns),
                     MS("before_ms", s->unmeasured_ns),
                     FIXED("before_uncertainty_pct",
                           optimize_half_pct(f, s->unmeasured_ns, s->unmeasured_pct), 3));
    write_finalists(w, f);
    write_programs(w, f);
    write_search(w, f->o);
    write_computing(w, &f->o->computing);
    write_memory(w, f);
    writer_newline(w);
    writer_fields(w, TEXT("plan", r->plan));
    model_write_link(w, r->model);
    writer_newline(w);
    writer_fields(w, TEXT("stack", dpro_stack_name(r->model->capabilities.stack)),
                  TEXT("within", r->model->capabilities.text));
    warnings_write_json(w, &f->warnings, 1);
    writer_close(w, '}');
}

static void write_json(struct writer *w, const void *report)
{
    struct optimize_facts f;
    optimize_facts_fill(&f, report);
    write_report(w, &f);
    writer_text(w, "\n");
}

REPORT(dpro_optimize_json, dpro_optimize_report, write_json)

/* ---- the plan ---- */

static void write_times(struct writer *w, const char *key, const struct dpro_optimum *o,
                        enum dpro_which which)
{
    WRITER_ROWS_OF (w, key, const struct dpro_bucket_times, t, o->times[which],
                    o->strategies[which].n_buckets)
        writer_json_times(w, (const int64_t[]){t->ready_ns, t->start_ns, t->end_ns}, 3);
}

static void write_page_data(struct writer *w, const void *facts)
{
    const struct optimize_facts *f = facts;
    writer_open(w, '{');
    writer_key(w, "report");
    write_report(w, f);
    write_times(w, "baseline_times", f->o, DPRO_BASELINE);
    write_times(w, "best_times", f->o, DPRO_BEST);
    writer_close(w, '}');
}

static void write_page(struct writer *w, const void *facts)
{
    page_write(w, &page_optimize, write_page_data, facts);
}

static int write_files(const char *folder, const struct optimize_facts *f, enum dpro_which which,
                       double uncertainty_pct, struct dpro_error *err)
{
    struct plan_file plan = {.world_size = 0};
    struct set_file files[PLAN_MOST_FILES + 3];
    plan_make(f->report->trace, f->o, which, &plan);
    plan.uncertainty_pct = uncertainty_pct;
    size_t n = f->is_for_job ? plan_stack_files(&plan, files) : 0;
    if (which < DPRO_FINALISTS) {
        files[n++] = (struct set_file){"optimize.json", false, write_json, f->report};
        files[n++] = (struct set_file){"optimize.html", false, write_page, f};
    }
    /* last: who sees it sees all; none is left of an earlier search */
    files[n++] =
        (struct set_file){"plan.json", false, f->is_for_job ? plan_file_write : NULL, &plan};
    int rc = file_set_write(folder, "plan", files, n, NULL, err);
    plan_file_fini(&plan);
    return rc;
}

static int write_plan(const struct dpro_optimize_report *report, struct dpro_error *err)
{
    struct optimize_facts f;
    optimize_facts_fill(&f, report);
    int rc = 0;
    for (uint32_t i = 0; i < DPRO_MOST_FINALISTS && rc == 0; i++) {
        const struct dpro_finalist *one = i < f.o->finalists.n ? &f.o->finalists.at[i] : NULL;
        SCRATCH char *folder = mem_format("%s/finalist-%u", report->plan, i + 1);
        SCRATCH char *left = mem_format("%s/plan.json", folder); /* of an earlier search */
        if (f.is_for_job && one && !is_plan(&f, one))
            rc = write_files(folder, &f, DPRO_FINALISTS + i,
                             optimize_half_pct(&f, one->iteration_ns, one->uncertainty_pct), err);
        else
            unlink(left);
    }
    return rc < 0 ? rc : write_files(report->plan, &f, f.planned, f.uncertainty_pct, err);
}

int dpro_optimize_plan(const struct dpro_optimize_report *report, struct dpro_error *err)
{
    return WITHIN_SCOPE(dpro_error_nomem(err), write_plan(report, err));
}
