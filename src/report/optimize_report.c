/* What a search found, as text and as JSON (dpro.optimize/1; keys are never renamed or dropped). */
#include <unistd.h>

#include <dpro/report.h>

#include "base/utf8.h"
#include "optimize/plan_make.h"
#include "optimize/result.h"
#include "report/model_report.h"
#include "report/optimize_facts.h"
#include "report/page.h"
#include "report/table.h"
#include "report/words.h"

#define MAY_HELP_PCT   1.0 /* and above that, where the model is unsure, it may */
#define MOST_DECISIONS 12

int dpro_optimize_helps(const struct dpro_optimize_report *report)
{
    struct optimize_facts facts;
    optimize_facts_fill(&facts, report);
    return facts.helps;
}

int dpro_optimize_is_for_job(const struct dpro_optimize_report *report)
{
    struct optimize_facts facts;
    optimize_facts_fill(&facts, report);
    return facts.is_for_job;
}

/* ---- text ---- */

static const char *strategy_text(const struct optimize_facts *f, char out[STRATEGY_TEXT],
                                 enum dpro_which which)
{
    const struct dpro_optimum *optimum = f->report->optimum;
    const struct dpro_model *model = dpro_optimum_model(optimum, which);
    uint32_t n_servers =
        dpro_optimum_n_server_counts(optimum) > 0 ? dpro_model_n_servers(model) : 0;
    struct words words = {.n = 0};
    uint32_t n_units = dpro_optimum_n_units(optimum), n_resharded = 0;
    for (uint32_t i = 0; i < n_units; i++) {
        struct dpro_unit unit = dpro_optimum_unit(optimum, i);
        n_resharded += which == DPRO_BEST ? unit.reshards != 0 : unit.reshards_before != 0;
    }
    struct dpro_pipeline_run run = dpro_optimum_pipeline(optimum, which);
    if (run.n_micro_batches > 0)
        words_add(&words, "", "%u micro-batch%s, schedule %s", run.n_micro_batches,
                  run.n_micro_batches == 1 ? "" : "es",
                  run.schedule == DPRO_SCHEDULE_UNKNOWN ? "of its own"
                                                        : dpro_schedule_name(run.schedule));
    else if (n_units > 0)
        words_add(&words, "", "%u of %u units resharded", n_resharded, n_units);
    else if (dpro_model_n_tensors(model) > 0)
        words_add(&words, "", "%s", STRATEGY(model, dpro_optimum_strategy(optimum, which)));
    else
        words_add(&words, "", "as it ran");
    if (which == DPRO_BEST && dpro_optimum_summary(optimum).prefetch > 0)
        words_add(&words, "", ", %u gathered ahead", dpro_optimum_summary(optimum).prefetch);
    if (n_servers > 0)
        words_add(&words, "", ", on %u parameter server%s", n_servers, PLURAL(n_servers));
    optimize_computing_words(&words, f, which);
    optimize_memory_words(&words, optimum, which);
    snprintf(out, STRATEGY_TEXT, "%.*s", STRATEGY_TEXT - 1, words.text);
    return out;
}

#define STRATEGY_OF(f, which) strategy_text(f, (char[STRATEGY_TEXT]){""}, which)

/* How the job is started. */
struct launcher {
    const char *program, *script, *where;
};

static struct launcher launcher_of(const struct optimize_facts *f)
{
    static const struct launcher launchers[] = {
        [DPRO_STACK_DDP] = {"torchrun", "...", ""},
        [DPRO_STACK_HOROVOD] = {"horovodrun", "...", ""},
        [DPRO_STACK_TENSORFLOW_RING] = {"python", "train.py", "on every worker"},
        [DPRO_STACK_TENSORFLOW_PS] = {"python", "train.py", "on every worker and server"},
        [DPRO_STACK_MXNET_PS] = {"python", "train.py", "on every worker and server"},
        [DPRO_STACK_BYTEPS] = {"bpslaunch", "...", "on every worker and server"}};
    if (f->is_of_units || f->is_of_pipeline)
        return launchers[DPRO_STACK_DDP];
    if (dpro_model_n_tensors(f->report->model) == 0)
        return (struct launcher){"python", "train.py", ""};
    return launchers[dpro_model_stack(f->report->model)];
}

/* How the job is started with the plan. */
static void say_next(struct lines *to, const struct optimize_facts *f)
{
    const struct dpro_optimize_report *r = f->report;
    struct launcher job = launcher_of(f);
    char launcher[80];
    snprintf(launcher, sizeof launcher, "%s %s%s%s%s", job.program, job.script,
             job.where[0] ? ", " : "", job.where, job.where[0] ? "," : "");
    const char *plan = r->plan ? r->plan : "plan";
    uint32_t parts = dpro_strategy_micro_batches(dpro_optimum_strategy(r->optimum, f->planned));
    char safe[200];
    utf8_escape(safe, sizeof safe, plan, strlen(plan));
    if (f->script[0] != '\0')
        lines_say(to, "Script", "%s", f->script);
    if (!f->is_for_job)
        lines_say(to, "Next",
                  "no plan changes the passes of a job whose ranks share out the model: change "
                  "the script so, record the job again, and 'dpro compare' shows what that "
                  "brought");
    else if (!f->is_named)
        lines_say(to, "Next",
                  "dpro profile -o TRACE -- %s records the job with its parameters' names; "
                  "dpro optimize TRACE -o %s then writes a plan that the job can be given",
                  launcher, safe);
    else if (!r->plan)
        lines_say(to, "Next", "-o plan/ writes this strategy as a plan for the job");
    else if (dpro_model_stack(r->model) != DPRO_STACK_BYTEPS)
        lines_say(to, "Next",
                  "%sdpro verify --plan %s -- %s shows what it brings; dpro profile --plan %s "
                  "-- %s runs the job with it",
                  parts > 1 ? "put dpro.micro_batches() into the script; then " : "", safe,
                  launcher, safe, launcher);
    else
        lines_say(to, "Next",
                  "dpro profile --plan %s -o TRACE2 -- %s runs the job with it; dpro compare "
                  "of this trace and TRACE2 shows what it brings",
                  safe, launcher);
}

/* What no plan can do in the job: its servers are there before it. */
static void say_servers_needed(struct lines *to, const struct optimize_facts *f)
{
    bool session = dpro_model_stack(f->report->model) == DPRO_STACK_TENSORFLOW_PS;
    uint32_t had = dpro_model_n_servers(f->report->model);
    uint32_t n = dpro_model_n_servers(dpro_optimum_model(f->report->optimum, f->planned));
    if (n == had)
        return;
    lines_say(to, "Servers",
              "the plan is for %u parameter server%s, the job ran with %u, and it can't "
              "change that by itself: %s %u",
              n, PLURAL(n), had,
              session ? "start it with another list of 'ps' tasks in its cluster, of"
                      : "start it with as many processes of DMLC_ROLE=server, all of its "
                        "processes with DMLC_NUM_SERVER of",
              n);
}

/* Why this strategy: the default algorithm chooses among all that it looked at. */
static void say_choice(struct lines *to, const struct optimize_facts *f)
{
    double more_pct = 100 * ((double)f->found.best_ns / (double)f->found.found_ns - 1);
    if (f->is_of_units || strcmp(f->found.algorithm, "default") != 0)
        return;
    if (f->found.setting)
        lines_say(to, "Setting", "%s of DistributedDataParallel does this without a plan",
                  f->found.setting);
    if (more_pct >= 0.05)
        lines_say(to, "Choice",
                  "the simplest of the strategies that are equally fast (the fastest takes "
                  "%s %% less, within half a percent or half a standard error)",
                  NUMBER(more_pct, 1));
    else
        lines_say(to, "Choice", "the fastest of the strategies that were tried, by expected time");
}

/* Of a job that does not fit its budget. */
static void say_memory_verdict(struct lines *to, const struct optimize_facts *f)
{
    char time[160];
    snprintf(time, sizeof time, "for %s %% %s time an iteration (+- %s points): %s instead of %s",
             NUMBER(fabs(f->less_pct), 1), f->less_pct < 0 ? "more" : "less",
             NUMBER(f->less_half_pct, 1), TIME(f->found.best_ns), TIME(f->found.baseline_ns));
    optimize_memory_say(to, f, time);
    if (!f->helps)
        return;
    lines_say(to, "Change", "%s, instead of %s", STRATEGY_OF(f, DPRO_BEST),
              STRATEGY_OF(f, DPRO_BASELINE));
    if (f->is_for_job &&
        dpro_strategy_micro_batches(dpro_optimum_strategy(f->report->optimum, DPRO_BEST)) > 1)
        lines_say(to, "Script",
                  "a plan can't cut the job's batch by itself: its script has to, which takes "
                  "two lines (dpro.micro_batches); --no-accumulate does without");
    bool communicates = dpro_model_n_tensors(f->report->model) > 0;
    if (communicates && f->found.lower_bound_ns > 0)
        lines_say(to, "At most",
                  "no bucketing without compression makes such an iteration shorter than %s",
                  TIME(f->found.lower_bound_ns));
    if (communicates)
        lines_say(to, "Within", "%s", dpro_model_capabilities(f->report->model));
    optimize_computing_say(to, f);
    say_next(to, f);
}

/* The others are rules for gradients. */
static bool is_row(const struct optimize_facts *f, const struct dpro_baseline *baseline)
{
    return !f->is_undivided || baseline->computes ||
           text_is_one(baseline->name, "one-bucket", "byteps", "communication");
}

static void say_turns(struct lines *to, const struct optimize_facts *f)
{
    const struct dpro_optimum_summary *s = &f->found;
    double share = (double)s->unmeasured_ns / (double)s->baseline_ns;
    if (s->n_turns > 0)
        lines_say(to, "Measured",
                  "by turns of %u plan%s in this job (dpro tune), which correct what is expected; "
                  "before, %s %% less (+- %s points): %s",
                  s->n_turns, PLURAL(s->n_turns), NUMBER(100 * (1 - share), 1),
                  NUMBER(HALF_OF_95_PCT * s->unmeasured_pct * share * share, 1),
                  TIME(s->unmeasured_ns));
}

static void say_verdict(struct lines *to, const struct optimize_facts *f)
{
    if (f->is_for_memory) {
        say_memory_verdict(to, f);
        return;
    }
    bool communicates = dpro_model_n_tensors(f->report->model) > 0;
    const char *less = NUMBER(f->less_pct, 1), *half = NUMBER(f->less_half_pct, 1);
    bool sure = f->less_pct > f->less_half_pct, may = !sure && f->less_pct >= MAY_HELP_PCT;
    bool named = strcmp(f->found.algorithm, "default") != 0;
    if (f->helps) {
        lines_say(to, "Verdict", "%s %% less time an iteration (+- %s points): %s instead of %s",
                  less, half, TIME(f->found.best_ns), TIME(f->found.baseline_ns));
        lines_say(to, "Change", "%s, instead of %s", STRATEGY_OF(f, DPRO_BEST),
                  STRATEGY_OF(f, DPRO_BASELINE));
        say_choice(to, f);
    } else if (communicates || f->is_of_units || f->is_of_pipeline ||
               dpro_optimum_memory_budget(f->report->optimum).budget_bytes == 0) {
        lines_say(to, "Verdict",
                  "%s: the best strategy found takes %s %% %s time by the model, %s %s "
                  "points; keep %s%s%s",
                  named
                      ? may ? "what was found is not sure to help" : "what was found does not help"
                  : may             ? "nothing is sure to help"
                  : sure            ? "nothing helps enough to be worth a plan"
                  : f->is_undivided ? "joining recorded buckets does not help"
                                    : "nothing helps",
                  NUMBER(fabs(f->less_pct), 1), f->less_pct < 0 ? "more" : "less",
                  sure ? "+-" : "which is unsure by", half, STRATEGY_OF(f, DPRO_BASELINE),
                  may && f->found.setting ? ", or measure " : "",
                  may && f->found.setting ? f->found.setting : "");
    }
    say_turns(to, f);
    if (f->is_undivided)
        lines_say(to, "At most",
                  "smaller buckets are not tried: the trace does not tell which gradients a bucket "
                  "holds, so recorded buckets were only joined and reordered; 'dpro profile' "
                  "records their gradients");
    else if (communicates)
        lines_say(
            to, "At most",
            "%sno bucketing without compression can win more than %s %%, even if every number of "
            "the model is two standard errors off: an iteration takes at least %s; if 'dpro "
            "replay' shows more exposed communication, only compression or faster links can reduce "
            "it",
            f->computes ? "with these modules computed so " : "", NUMBER(f->at_most_pct, 1),
            TIME(f->found.lower_bound_ns));
    optimize_computing_say(to, f);
    optimize_memory_say(to, f, "");
    if (communicates)
        lines_say(to, "Within", "%s", dpro_model_capabilities(f->report->model));
    say_servers_needed(to, f);
    if (f->helps)
        say_next(to, f);
}

static void cell_times(struct table *t, const struct optimize_facts *f, int64_t ns)
{
    table_cells(t, TIME(ns));
    table_cell(t, "%s %%", SIGNED(100 * ((double)ns / (double)f->found.baseline_ns - 1)));
}

/* `uncertainty_pct` as in a summary; 0: none is told. likely_ns 0: nor is that. */
static void report_row(struct table *t, const struct optimize_facts *f, const char *name,
                       int64_t ns, double uncertainty_pct, int64_t likely_ns, const char *what)
{
    char shown[NAME_COLUMNS * 4];
    double share = (double)ns / (double)f->found.baseline_ns;
    columns_shorten(shown, sizeof shown, what, f->is_likely_other ? 40 : 50); /* what is left */
    table_cells(t, name);
    cell_times(t, f, ns);
    table_cells(
        t, uncertainty_pct > 0 ? NUMBER(optimize_half_pct(f, ns, uncertainty_pct) * share, 1) : "");
    if (f->is_likely_other)
        table_cells(t, likely_ns > 0 ? TIME(likely_ns) : "");
    table_cells(t, shown);
}

static void write_table(struct writer *w, const struct optimize_facts *f)
{
    const struct dpro_optimum_summary *s = &f->found;
    bool both = f->is_likely_other, communicates = dpro_model_n_tensors(f->report->model) > 0;
    struct table t = {.n_cols = both ? 6 : 5, .left = {true, [4] = !both, [5] = true}};
    if (!communicates && !f->is_of_units && !f->is_of_pipeline &&
        dpro_optimum_computing(f->report->optimum).n_modules == 0)
        return;
    table_cells(&t, "strategy", both ? "expected" : "iteration", "change", "+-");
    if (both)
        table_cells(&t, "likely");
    table_cells(&t, "");
    report_row(&t, f, "as it ran", s->baseline_ns, 0, s->baseline_ns,
               STRATEGY_OF(f, DPRO_BASELINE));
    bool is_setting = s->setting && f->helps;
    report_row(&t, f, is_setting ? "chosen" : "best found", s->best_ns, s->uncertainty_pct,
               s->likely_ns, is_setting ? s->setting : STRATEGY_OF(f, DPRO_BEST));
    EACH (const struct dpro_baseline, baseline, f->report->optimum->baselines)
        if (is_row(f, baseline))
            report_row(&t, f, baseline->name, baseline->iteration_ns, baseline->uncertainty_pct,
                       baseline->likely_ns, baseline->text);
    for (uint32_t i = 0; i < dpro_optimum_n_finalists(f->report->optimum); i++) {
        struct dpro_finalist one = dpro_optimum_finalist(f->report->optimum, i);
        char name[32];
        snprintf(name, sizeof name, "finalist-%u", i + 1);
        report_row(&t, f, name, one.iteration_ns, one.uncertainty_pct, 0, one.name);
    }
    if (communicates && s->lower_bound_ns > 0)
        report_row(&t, f, "lower bound", s->lower_bound_ns, 0, 0, "no bucketing can beat it");
    writer_text(w, "\n");
    table_write(w, &t);
}

/* What each number of servers would win, and what it takes. */
static void write_counts(struct writer *w, const struct optimize_facts *f)
{
    struct table t = {.n_cols = 6};
    uint32_t n = dpro_optimum_n_server_counts(f->report->optimum);
    if (n == 0)
        return;
    table_cells(&t, "servers", "on own hosts", "placed as usual", "change", "best found", "change");
    for (uint32_t i = 0; i < n; i++) {
        struct dpro_server_count count = dpro_optimum_server_count(f->report->optimum, i);
        table_cell(&t, "%u", count.n_servers);
        table_cell(&t, "%u", count.n_hosts);
        cell_times(&t, f, count.usual_ns);
        cell_times(&t, f, count.best_ns);
    }
    writer_text(w, "\n");
    table_write(w, &t);
}

static void write_decisions(struct writer *w, const struct optimize_facts *f)
{
    uint32_t n = dpro_optimum_n_decisions(f->report->optimum);
    if (n == 0 || !f->helps)
        return;
    writer_text(w, "\nChanges to the job's strategy\n");
    for (uint32_t i = 0; i < n && i < MOST_DECISIONS; i++) {
        struct dpro_decision d = dpro_optimum_decision(f->report->optimum, i);
        struct words line = {.n = 0};
        words_add(&line, "", "%.40s: %.300s: %.200s", d.pass, d.target, d.decision);
        table_escaped(w, "  -", 4, line.text);
    }
    if (n > MOST_DECISIONS)
        writer_printf(w, "    and %u more, in --json and the plan\n", n - MOST_DECISIONS);
}

static void write_text(struct writer *w, const void *report)
{
    struct optimize_facts facts, *f = &facts;
    optimize_facts_fill(f, report);
    struct lines verdict = {.n = 0};
    say_verdict(&verdict, f);
    for (size_t i = 0; i < verdict.n; i++)
        table_wrapped(w, verdict.at[i].title, 10, verdict.at[i].said.text);
    write_table(w, f);
    write_counts(w, f);
    optimize_memory_table(w, f);
    if (f->is_likely_other)
        table_paragraph(w, " ", 2,
                        "expected: the mean over the model's errors and the measured iterations, "
                        "by which strategies are chosen; likely: by the model's best guess of each "
                        "number, which is what 'dpro whatif' prints");
    write_decisions(w, f);
    writer_text(w, "\n");
    table_paragraph(w, " ", 2, "search: %s, %llu candidate%s in %s s, %u round%s, stopped by: %s",
                    f->found.algorithm, (unsigned long long)f->found.n_candidates,
                    f->found.n_candidates == 1 ? "" : "s", NUMBER(f->found.seconds, 2),
                    f->found.n_rounds, f->found.n_rounds == 1 ? "" : "s", f->found.stopped_by);
    model_write_text(w, f->report->model);
    warnings_write_text(w, &f->warnings, 1);
}

int dpro_optimize_text(const struct dpro_optimize_report *report, FILE *out, struct dpro_error *err)
{
    return writer_write_file(out, write_text, report, err);
}

/* ---- JSON ---- */

static void write_best(struct writer *w, const struct optimize_facts *f)
{
    const struct dpro_optimum *optimum = f->report->optimum;
    writer_section(w, "best", '{');
    writer_fields(w, TEXT("text", STRATEGY_OF(f, DPRO_BEST)), MS("iteration_ms", f->found.best_ns),
                  FIXED("speedup", f->speedup, 6), FIXED("uncertainty_pct", f->uncertainty_pct, 3),
                  MS("apart_ms", f->found.best_ns), MS("found_ms", f->found.found_ns),
                  MS("likely_ms", f->found.likely_ns), TEXT("setting", f->found.setting),
                  TEXT("script", f->script[0] != '\0' ? f->script : NULL), BOOL("helps", f->helps),
                  BOOL("changes_numerics", f->found.compression != DPRO_COMPRESSION_NONE ||
                                               f->computes || f->cut_changes[0] != '\0'));
    writer_section(w, "computation", '{');
    optimize_computing_modules(w, "compile", optimum, DPRO_COMPILED);
    optimize_computing_modules(w, "bf16", optimum, DPRO_BF16);
    writer_begin(w, "fused_ops", '[');
    writer_close(w, ']');
    writer_close(w, '}');
    writer_newline(w);
    writer_key(w, "communication");
    model_write_strategy(w, dpro_optimum_model(optimum, DPRO_BEST),
                         dpro_optimum_strategy(optimum, DPRO_BEST));
    writer_close(w, '}');
    writer_section(w, "baseline", '{');
    writer_fields(w, TEXT("text", STRATEGY_OF(f, DPRO_BASELINE)));
    writer_key(w, "communication");
    model_write_strategy(w, f->report->model, dpro_optimum_strategy(optimum, DPRO_BASELINE));
    writer_close(w, '}');
}

static void write_baselines(struct writer *w, const struct optimize_facts *f)
{
    const struct dpro_optimum *optimum = f->report->optimum;
    WRITER_ROWS_OF (w, "baselines", const struct dpro_baseline, baseline, optimum->baselines.at,
                    optimum->baselines.n)
        if (is_row(f, baseline))
            writer_row(
                w, TEXT("name", baseline->name), TEXT("text", baseline->text),
                MS("iteration_ms", baseline->iteration_ns), MS("likely_ms", baseline->likely_ns),
                INT("buckets", baseline->n_buckets),
                FIXED_IF("uncertainty_pct", baseline->uncertainty_pct > 0,
                         optimize_half_pct(f, baseline->iteration_ns, baseline->uncertainty_pct),
                         3),
                INT_IF("peak_bytes", baseline->peak_bytes > 0, baseline->peak_bytes),
                BOOL("computes", baseline->computes));
    WRITER_ROWS_OF (w, "servers", const struct dpro_server_count, count, optimum->counts.at,
                    optimum->counts.n)
        writer_row(w, INT("servers", count->n_servers), INT("on_own_hosts", count->n_hosts),
                   MS("usual_ms", count->usual_ns), MS("iteration_ms", count->best_ns));
}

static void write_runs(struct writer *w, const struct optimize_facts *f)
{
    if (!f->is_of_pipeline) {
        writer_fields(w, NUL("pipeline"));
        return;
    }
    writer_begin(w, "pipeline", '{');
    for (int which = DPRO_BASELINE; which <= DPRO_BEST; which++) {
        struct dpro_pipeline_run run = f->report->optimum->pipeline[which];
        writer_object_at(w, which == DPRO_BEST ? "best" : "baseline",
                         INT("micro_batches", run.n_micro_batches),
                         TEXT("schedule", run.schedule ? dpro_schedule_name(run.schedule) : NULL));
    }
    writer_close(w, '}');
}

/* Whether it is what the plan itself says. */
static bool is_plan(const struct optimize_facts *f, uint32_t finalist)
{
    return f->planned == DPRO_BEST && dpro_optimum_finalist(f->report->optimum, finalist).is_best;
}

static void write_finalists(struct writer *w, const struct optimize_facts *f)
{
    const char *plan = f->is_for_job ? f->report->plan : NULL;
    WRITER_ROWS (w, "finalists", i, dpro_optimum_n_finalists(f->report->optimum)) {
        struct dpro_finalist one = dpro_optimum_finalist(f->report->optimum, i);
        SCRATCH char *folder = is_plan(f, i)
                                   ? mem_format("%s", plan ? plan : "")
                                   : mem_format("%s/finalist-%u", plan ? plan : "", i + 1);
        writer_row(w, TEXT("name", one.name), TEXT("plan", plan ? folder : NULL),
                   MS("iteration_ms", one.iteration_ns),
                   FIXED("uncertainty_pct",
                         optimize_half_pct(f, one.iteration_ns, one.uncertainty_pct), 3),
                   BOOL("best", one.is_best));
    }
}

static void write_units(struct writer *w, const struct dpro_optimum *optimum)
{
    writer_newline(w);
    writer_fields(w, INT("prefetch", dpro_optimum_summary(optimum).prefetch));
    WRITER_ROWS_OF (w, "units", const struct dpro_unit, unit, optimum->units.at, optimum->units.n)
        writer_row(w, TEXT("name", unit->name), BOOL("reshards_before", unit->reshards_before),
                   BOOL("reshards", unit->reshards));
}

static void write_search(struct writer *w, const struct optimize_facts *f)
{
    const struct dpro_optimum *optimum = f->report->optimum;
    writer_section(w, "search", '{');
    writer_fields(w, TEXT("algorithm", f->found.algorithm), FIXED("seconds", f->found.seconds, 3),
                  INT("candidates", f->found.n_candidates), INT("rounds", f->found.n_rounds),
                  TEXT("stopped_by", f->found.stopped_by));
    WRITER_LIST_OF (w, "improvements", const struct dpro_improvement, better,
                    optimum->improvements.at, optimum->improvements.n)
        writer_object(w, FIXED("seconds", better->seconds, 6),
                      INT("candidates", better->n_candidates), MS("iteration_ms", better->best_ns));
    writer_close(w, '}');
    WRITER_ROWS_OF (w, "strategy", const struct dpro_decision, d, optimum->decisions.at,
                    optimum->decisions.n)
        writer_row(w, TEXT("pass", d->pass), TEXT("target", d->target),
                   TEXT("decision", d->decision));
}

/* The command that follows, without the job's own arguments; none where nothing is to be done. */
static void write_next_command(struct writer *w, const struct optimize_facts *f)
{
    struct launcher job = launcher_of(f);
    bool planned = f->is_named && f->report->plan;
    bool measures = dpro_model_stack(f->report->model) != DPRO_STACK_BYTEPS;
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

static void write_report(struct writer *w, const struct optimize_facts *f)
{
    const struct dpro_optimize_report *r = f->report;
    struct lines verdict = {.n = 0};
    writer_open(w, '{');
    writer_fields(w, TEXT("schema", "dpro.optimize/1"), TEXT("version", dpro_version()),
                  MS_IF("measured_ms", f->found.measured_ns > 0, f->found.measured_ns));
    say_verdict(&verdict, f);
    WRITER_LIST (w, "verdict", i, verdict.n)
        writer_object(w, TEXT("title", verdict.at[i].title), TEXT("text", verdict.at[i].said.text));
    write_next_command(w, f);
    model_write_pace(w, r->model);
    writer_fields(w, MS("replayed_ms", f->found.baseline_ns));
    write_best(w, f);
    writer_newline(w);
    writer_fields(w, MS_IF("lower_bound_ms", f->found.lower_bound_ns > 0, f->found.lower_bound_ns));
    write_baselines(w, f);
    const struct dpro_optimum_summary *s = &f->found;
    writer_object_if(w, "turns", s->n_turns > 0, INT("n", s->n_turns),
                     MS("before_ms", s->unmeasured_ns),
                     FIXED("before_uncertainty_pct",
                           optimize_half_pct(f, s->unmeasured_ns, s->unmeasured_pct), 3));
    write_finalists(w, f);
    write_units(w, r->optimum);
    writer_newline(w);
    write_runs(w, f);
    write_search(w, f);
    optimize_computing_json(w, f);
    optimize_memory_json(w, f);
    writer_newline(w);
    writer_fields(w, TEXT("plan", r->plan));
    model_write_link(w, r->model);
    writer_newline(w);
    writer_fields(w, TEXT("stack", dpro_stack_name(dpro_model_stack(r->model))),
                  TEXT("within", dpro_model_capabilities(r->model)));
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

int dpro_optimize_json(const struct dpro_optimize_report *report, FILE *out, struct dpro_error *err)
{
    return writer_write_file(out, write_json, report, err);
}

/* ---- the plan ---- */

static void write_times(struct writer *w, const char *key, const struct optimize_facts *f,
                        enum dpro_which which)
{
    const struct dpro_optimum *optimum = f->report->optimum;
    uint32_t n = dpro_strategy_n_buckets(dpro_optimum_strategy(optimum, which));
    WRITER_ROWS (w, key, b, n) {
        struct dpro_bucket_times times = dpro_optimum_times(optimum, which, b);
        writer_json_times(w, (const int64_t[]){times.ready_ns, times.start_ns, times.end_ns}, 3);
    }
}

static void write_page_data(struct writer *w, const void *facts)
{
    const struct optimize_facts *f = facts;
    writer_open(w, '{');
    writer_key(w, "report");
    write_report(w, f);
    write_times(w, "baseline_times", f, DPRO_BASELINE);
    write_times(w, "best_times", f, DPRO_BEST);
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
    plan_make(f->report->trace, f->report->optimum, which, &plan);
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
        bool is_one = f.is_for_job && i < dpro_optimum_n_finalists(report->optimum);
        SCRATCH char *folder = mem_format("%s/finalist-%u", report->plan, i + 1);
        SCRATCH char *left = mem_format("%s/plan.json", folder); /* of an earlier search */
        if (!is_one || is_plan(&f, i)) {
            unlink(left);
            continue;
        }
        struct dpro_finalist one = dpro_optimum_finalist(report->optimum, i);
        rc = write_files(folder, &f, DPRO_FINALISTS + i,
                         optimize_half_pct(&f, one.iteration_ns, one.uncertainty_pct), err);
    }
    return rc < 0 ? rc : write_files(report->plan, &f, f.planned, f.uncertainty_pct, err);
}

int dpro_optimize_plan(const struct dpro_optimize_report *report, struct dpro_error *err)
{
    return WITHIN_SCOPE(dpro_error_nomem(err), write_plan(report, err));
}
