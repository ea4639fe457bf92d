/* report/optimize.c: what a search found, as text and as JSON, schema dpro.optimize/1. Keys are
 * never renamed or dropped. */
#include "report/optimize.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "report/assets.h"
#include "report/columns.h"
#include "report/facts.h"
#include "report/model.h"
#include "report/page.h"
#include "report/table.h"

#define HALF_OF_95_PCT 1.96 /* in standard errors */
#define LEAST_GAIN_PCT 0.5  /* below that a plan is not worth its upkeep */
#define MAY_HELP_PCT   1.0  /* and above that, where the model is unsure, it may */
#define MISFIT_TO_TELL 5.0  /* percent */
#define MOST_DECISIONS 12

void optimize_facts_fill(struct optimize_facts *f, const struct dpro_optimize_report *report)
{
    *f = (struct optimize_facts){.report = report};
    f->found = dpro_optimum_summary(report->optimum);
    double own = (double)f->found.own_ns, best = (double)f->found.best_ns;
    f->speedup = own / best;
    f->less_pct = 100 * (1 - best / own);
    f->less_half_pct = HALF_OF_95_PCT * f->found.uncertainty_pct / (f->speedup * f->speedup);
    f->uncertainty_pct = HALF_OF_95_PCT * f->found.uncertainty_pct / f->speedup;
    f->at_most_pct = 100 * (1 - (double)f->found.lower_bound_ns / own);
    f->helps = f->less_pct >= LEAST_GAIN_PCT && f->less_pct > f->less_half_pct;
    f->n_fusions = f->helps ? dpro_optimum_n_op_fusions(report->optimum) : 0;
    if (f->n_fusions > 0) {
        char time[TIME_TEXT];
        snprintf(f->fusions, sizeof f->fusions,
                 "fused ops are listed in plan.json, but no job can be given them: DDP, Horovod, "
                 "BytePS and torch.compile get the plan's communication alone, which takes %s an "
                 "iteration by the model",
                 facts_time(time, f->found.apart_ns));
    }
    f->which = f->helps ? DPRO_BEST : DPRO_OWN;
    f->planned = dpro_optimum_strategy(report->optimum, f->which);
    f->model = dpro_optimum_model(report->optimum, f->which);
    f->n_servers = dpro_model_n_servers(f->model);
    f->own_servers = dpro_model_n_servers(report->model);
    double misfit_pct = 100 * dpro_model_misfit(report->model);
    if (fabs(misfit_pct) > MISFIT_TO_TELL)
        snprintf(f->misfit, sizeof f->misfit,
                 "the model is %+.1f %% off the measured iteration: what it says of strategies may "
                 "be off by as much; %s measures",
                 misfit_pct,
                 dpro_model_stack(report->model) != DPRO_STACK_BYTEPS ? "dpro verify"
                                                                      : "a run with the plan");
}

int dpro_optimize_helps(const struct dpro_optimize_report *report)
{
    struct optimize_facts facts;
    optimize_facts_fill(&facts, report);
    return facts.helps;
}

/* Of the trace, the graph, the model, the search, the plan. */
const char *optimize_warning(const struct optimize_facts *f, size_t i)
{
    const struct dpro_optimize_report *r = f->report;
    const char *learnt = model_warning(r->trace, r->graph, r->model, &i);
    if (learnt)
        return learnt;
    size_t n = 0;
    while (r->warnings && r->warnings[n])
        n++;
    if (i < n)
        return r->warnings[i];
    i -= n;
    if (f->misfit[0] && i-- == 0)
        return f->misfit;
    if (!plan_is_named(r) && i-- == 0)
        return "the trace does not name the parameters, so the job can't be given this plan";
    if (f->n_fusions > 0 && i-- == 0)
        return f->fusions;
    if (f->found.compression != DPRO_COMPRESSION_NONE && i == 0)
        return "compression rounds gradients: the job does not train to the same numbers; check "
               "its "
               "loss";
    return NULL;
}

/* ---- text ---- */

static char *one_digit(char out[TIME_TEXT], double value)
{
    if (writer_format_fixed(out, TIME_TEXT, value, 1) < 0)
        strcpy(out, "?");
    return out;
}

static char *strategy_text(const struct optimize_facts *f, char out[STRATEGY_TEXT],
                           enum dpro_which which)
{
    const struct dpro_optimum *optimum = f->report->optimum;
    const struct dpro_model *model = dpro_optimum_model(optimum, which);
    uint32_t n = which == DPRO_BEST ? dpro_optimum_n_op_fusions(optimum) : 0;
    model_strategy_text(out, model, dpro_optimum_strategy(optimum, which));
    size_t used = strlen(out);
    uint32_t n_servers =
        dpro_optimum_n_server_counts(optimum) > 0 ? dpro_model_n_servers(model) : 0;
    if (n_servers > 0)
        snprintf(out + used, STRATEGY_TEXT - used, ", on %u parameter server%s", n_servers,
                 n_servers == 1 ? "" : "s");
    used = strlen(out);
    if (n > 0)
        snprintf(out + used, STRATEGY_TEXT - used, ", %u fused op%s", n, n == 1 ? "" : "s");
    return out;
}

/* How the job is started with the plan. */
static void write_next(struct writer *w, const struct dpro_optimize_report *r)
{
    static const char *const launchers[] = {
        [DPRO_STACK_DDP] = "torchrun ...",
        [DPRO_STACK_HOROVOD] = "horovodrun ...",
        [DPRO_STACK_TENSORFLOW_RING] = "python train.py, on every worker,",
        [DPRO_STACK_TENSORFLOW_PS] = "python train.py, on every worker and server,",
        [DPRO_STACK_MXNET_PS] = "python train.py, on every worker and server,",
        [DPRO_STACK_BYTEPS] = "bpslaunch ..., on every worker and server,"};
    const char *launcher = launchers[dpro_model_stack(r->model)];
    const char *plan = r->plan ? r->plan : "plan";
    char line[700], safe[200];
    utf8_escape(safe, sizeof safe, plan, strlen(plan));
    if (!plan_is_named(r))
        snprintf(line, sizeof line,
                 "dpro profile -o TRACE -- %s records the job with its parameters' names; dpro "
                 "optimize TRACE -o %s then writes a plan that the job can be given",
                 launcher, safe);
    else if (!r->plan)
        snprintf(line, sizeof line, "-o plan/ writes this strategy as a plan for the job");
    else if (dpro_model_stack(r->model) != DPRO_STACK_BYTEPS)
        snprintf(line, sizeof line,
                 "dpro verify --plan %s -- %s shows what it brings; dpro profile --plan %s -- %s "
                 "runs the job with it",
                 safe, launcher, safe, launcher);
    else
        snprintf(line, sizeof line,
                 "dpro profile --plan %s -o TRACE2 -- %s runs the job with it; dpro compare of "
                 "this trace and TRACE2 shows what it brings",
                 safe, launcher);
    table_wrapped(w, "Next", 10, line);
}

/* What no plan can do in the job: its servers are there before it. */
static void write_servers_needed(struct writer *w, const struct optimize_facts *f)
{
    bool session = dpro_model_stack(f->report->model) == DPRO_STACK_TENSORFLOW_PS;
    char line[300];
    if (f->n_servers == f->own_servers)
        return;
    snprintf(line, sizeof line,
             "the plan is for %u parameter server%s, the job ran with %u, and it can't change that "
             "by itself: %s %u",
             f->n_servers, f->n_servers == 1 ? "" : "s", f->own_servers,
             session ? "start it with another list of 'ps' tasks in its cluster, of"
                     : "start it with as many processes of DMLC_ROLE=server, all of its processes "
                       "with DMLC_NUM_SERVER of",
             f->n_servers);
    table_wrapped(w, "Servers", 10, line);
}

/* Where one argument of the job is as good as any plan. */
static void write_setting(struct writer *w, const struct optimize_facts *f)
{
    char line[300], digits[TIME_TEXT], more[120] = "";
    double more_pct =
        100 * (double)(f->found.best_ns - f->found.found_ns) / (double)f->found.own_ns;
    if (!f->found.setting || !f->helps)
        return;
    if (more_pct >= 0.05)
        snprintf(more, sizeof more,
                 "; the best buckets found win %s points more, less than this recording can tell",
                 one_digit(digits, more_pct));
    snprintf(line, sizeof line,
             "that is %s of DistributedDataParallel, which needs no plan: the largest as good as "
             "any%s",
             f->found.setting, more);
    table_wrapped(w, "Setting", 10, line);
}

static void write_verdict(struct writer *w, const struct optimize_facts *f)
{
    const struct dpro_optimize_report *r = f->report;
    char line[500], less[TIME_TEXT], half[TIME_TEXT], before[TIME_TEXT], after[TIME_TEXT];
    char most[TIME_TEXT], strategy[STRATEGY_TEXT], own[STRATEGY_TEXT];
    one_digit(less, f->less_pct);
    one_digit(half, f->less_half_pct);
    one_digit(most, f->at_most_pct);
    if (f->helps) {
        snprintf(line, sizeof line, "%s %% less time an iteration (+- %s points): %s instead of %s",
                 less, half, facts_time(after, f->found.best_ns),
                 facts_time(before, f->found.own_ns));
        table_wrapped(w, "Verdict", 10, line);
        snprintf(line, sizeof line, "%s, instead of %s", strategy_text(f, strategy, DPRO_BEST),
                 strategy_text(f, own, DPRO_OWN));
        table_wrapped(w, "Change", 10, line);
        write_setting(w, f);
    } else {
        bool sure = f->less_pct > f->less_half_pct, may = !sure && f->less_pct >= MAY_HELP_PCT;
        char try[80] = "";
        if (may && f->found.setting)
            snprintf(try, sizeof try, ", or measure %s", f->found.setting);
        snprintf(line, sizeof line,
                 "%s: the best strategy found takes %s %% less time by the model, %s %s points; "
                 "keep %s%s",
                 may    ? "nothing is sure to help"
                 : sure ? "nothing helps enough to be worth a plan"
                        : "nothing helps",
                 less, sure ? "+-" : "which is unsure by", half, strategy_text(f, own, DPRO_OWN),
                 try);
        table_wrapped(w, "Verdict", 10, line);
    }
    snprintf(line, sizeof line,
             "%sno bucketing without compression can win more than %s %%, were all that the "
             "model is made of two standard errors off: an iteration takes %s at least; if 'dpro "
             "replay' shows more communication exposed, that takes compression or faster links",
             f->n_fusions ? "with these ops fused " : "", most,
             facts_time(before, f->found.lower_bound_ns));
    table_wrapped(w, "At most", 10, line);
    table_wrapped(w, "Within", 10, dpro_model_means(r->model));
    write_servers_needed(w, f);
    if (f->helps)
        write_next(w, r);
}

static void cell_change(struct table *t, const struct optimize_facts *f, int64_t ns)
{
    char change[TIME_TEXT];
    double pct = 100 * ((double)ns / (double)f->found.own_ns - 1);
    table_cell(t, "%s%s %%", pct >= 0.05 ? "+" : "", one_digit(change, pct));
}

static void row(struct table *t, const struct optimize_facts *f, const char *name, int64_t ns,
                const char *what)
{
    char time[TIME_TEXT], shown[NAME_COLUMNS * 4];
    columns_shorten(shown, sizeof shown, what, 56); /* what the other columns leave */
    table_cell(t, "%s", name);
    table_cell(t, "%s", facts_time(time, ns));
    cell_change(t, f, ns);
    table_cell(t, "%s", shown);
}

static void write_table(struct writer *w, const struct optimize_facts *f)
{
    static const char *const head[] = {"strategy", "iteration", "change", ""};
    const struct dpro_optimize_report *r = f->report;
    struct table t = {.n_cols = 4, .left = {true, false, false, true}};
    char what[STRATEGY_TEXT];
    for (size_t i = 0; i < sizeof head / sizeof *head; i++)
        table_cell(&t, "%s", head[i]);
    row(&t, f, "as it ran", f->found.own_ns, strategy_text(f, what, DPRO_OWN));
    row(&t, f, f->found.setting && f->helps ? "chosen" : "best found", f->found.best_ns,
        strategy_text(f, what, DPRO_BEST));
    for (uint32_t b = 0; b < dpro_optimum_n_baselines(r->optimum); b++) {
        struct dpro_baseline baseline = dpro_optimum_baseline(r->optimum, b);
        row(&t, f, baseline.name, baseline.iteration_ns, baseline.text);
    }
    row(&t, f, "lower bound", f->found.lower_bound_ns, "no bucketing can beat it");
    table_write(w, &t);
}

static void write_change(struct table *t, const struct optimize_facts *f, int64_t ns)
{
    char time[TIME_TEXT];
    table_cell(t, "%s", facts_time(time, ns));
    cell_change(t, f, ns);
}

/* What each number of servers would win, and what it takes. */
static void write_counts(struct writer *w, const struct optimize_facts *f)
{
    static const char *const head[] = {"servers", "on own hosts", "placed as usual",
                                       "change",  "best found",   "change"};
    const struct dpro_optimum *optimum = f->report->optimum;
    struct table t = {.n_cols = 6};
    uint32_t n = dpro_optimum_n_server_counts(optimum);
    if (n == 0)
        return;
    for (size_t i = 0; i < sizeof head / sizeof *head; i++)
        table_cell(&t, "%s", head[i]);
    for (uint32_t i = 0; i < n; i++) {
        struct dpro_server_count count = dpro_optimum_server_count(optimum, i);
        table_cell(&t, "%u", count.n_servers);
        table_cell(&t, "%u", count.n_hosts);
        write_change(&t, f, count.own_ns);
        write_change(&t, f, count.best_ns);
    }
    writer_text(w, "\n");
    table_write(w, &t);
}

static void write_decisions(struct writer *w, const struct optimize_facts *f)
{
    const struct dpro_optimum *optimum = f->report->optimum;
    uint32_t n = dpro_optimum_n_decisions(optimum);
    if (n == 0 || !f->helps)
        return;
    writer_text(w, "\nWhat makes the one from the other\n");
    for (uint32_t i = 0; i < n && i < MOST_DECISIONS; i++) {
        struct dpro_decision d = dpro_optimum_decision(optimum, i);
        char line[600], safe[1024];
        snprintf(line, sizeof line, "%.40s: %.300s: %.200s", d.pass, d.target, d.decision);
        utf8_escape(safe, sizeof safe, line, strlen(line));
        table_wrapped(w, "  -", 4, safe);
    }
    if (n > MOST_DECISIONS)
        writer_printf(w, "    and %u more, which --json and the plan have\n", n - MOST_DECISIONS);
}

static void write_search(struct writer *w, const struct optimize_facts *f)
{
    char line[300], seconds[TIME_TEXT];
    if (writer_format_fixed(seconds, sizeof seconds, f->found.seconds, 2) < 0)
        strcpy(seconds, "?");
    snprintf(line, sizeof line, "search: %s, %llu candidates in %s s, %u rounds, stopped by: %s",
             f->found.algorithm, (unsigned long long)f->found.n_candidates, seconds,
             f->found.n_rounds, f->found.stopped_by);
    table_wrapped(w, " ", 2, line);
}

int dpro_optimize_text(const struct dpro_optimize_report *report, FILE *out, struct dpro_error *err)
{
    struct optimize_facts f;
    struct writer w;
    const char *warning;
    int rc = writer_init_file(&w, out, err);
    if (rc < 0)
        return rc;
    optimize_facts_fill(&f, report);
    write_verdict(&w, &f);
    writer_text(&w, "\n");
    write_table(&w, &f);
    write_counts(&w, &f);
    write_decisions(&w, &f);
    writer_text(&w, "\n");
    write_search(&w, &f);
    model_write_text(&w, report->model);
    for (size_t i = 0; (warning = optimize_warning(&f, i)); i++)
        table_warning(&w, i, warning);
    rc = writer_finish(&w, err);
    writer_fini(&w);
    return rc;
}

/* ---- JSON ---- */

void optimize_write_fusions(struct writer *w, const struct dpro_optimum *optimum)
{
    writer_open(w, '{');
    writer_key(w, "fused_ops");
    writer_open(w, '[');
    for (uint32_t i = 0; i < dpro_optimum_n_op_fusions(optimum); i++) {
        struct dpro_op_fusion fusion = dpro_optimum_op_fusion(optimum, i);
        writer_newline(w);
        writer_open(w, '{');
        writer_key(w, "ops");
        writer_open(w, '[');
        for (uint32_t o = 0; o < fusion.n_ops; o++)
            writer_string(w, fusion.ops[o]);
        writer_close(w, ']');
        writer_key(w, "ranks");
        writer_open(w, '[');
        for (uint32_t r = 0; r < fusion.n_ranks; r++)
            writer_json_int(w, fusion.ranks[r]);
        writer_close(w, ']');
        writer_key_ms(w, "fused_ms", fusion.work_ns);
        writer_key_ms(w, "apart_ms", fusion.apart_ns);
        writer_close(w, '}');
    }
    writer_close(w, ']');
    writer_close(w, '}');
}

static void write_best(struct writer *w, const struct optimize_facts *f)
{
    const struct dpro_optimize_report *r = f->report;
    writer_newline(w);
    writer_key(w, "best");
    writer_open(w, '{');
    writer_key_ms(w, "iteration_ms", f->found.best_ns);
    writer_key_fixed(w, "speedup", f->speedup, 6);
    writer_key_fixed(w, "uncertainty_pct", f->uncertainty_pct, 3);
    writer_key_ms(w, "found_ms", f->found.found_ns);
    writer_key_string(w, "setting", f->found.setting);
    writer_key(w, "helps");
    writer_bool(w, f->helps);
    writer_key(w, "changes_numerics");
    writer_bool(w, f->found.compression != DPRO_COMPRESSION_NONE);
    writer_newline(w);
    writer_key(w, "computation");
    optimize_write_fusions(w, r->optimum);
    writer_newline(w);
    writer_key(w, "communication");
    model_write_strategy(w, dpro_optimum_model(r->optimum, DPRO_BEST),
                         dpro_optimum_strategy(r->optimum, DPRO_BEST));
    writer_close(w, '}');
    writer_newline(w);
    writer_key(w, "own");
    writer_open(w, '{');
    writer_key(w, "communication");
    model_write_strategy(w, r->model, dpro_optimum_strategy(r->optimum, DPRO_OWN));
    writer_close(w, '}');
}

static void write_baselines(struct writer *w, const struct dpro_optimum *optimum)
{
    writer_newline(w);
    writer_key(w, "baselines");
    writer_open(w, '[');
    for (uint32_t b = 0; b < dpro_optimum_n_baselines(optimum); b++) {
        struct dpro_baseline baseline = dpro_optimum_baseline(optimum, b);
        writer_newline(w);
        writer_open(w, '{');
        writer_key_string(w, "name", baseline.name);
        writer_key_string(w, "text", baseline.text);
        writer_key_ms(w, "iteration_ms", baseline.iteration_ns);
        writer_key_int(w, "buckets", baseline.n_buckets);
        writer_close(w, '}');
    }
    writer_close(w, ']');
}

static void write_counts_json(struct writer *w, const struct dpro_optimum *optimum)
{
    writer_newline(w);
    writer_key(w, "servers");
    writer_open(w, '[');
    for (uint32_t i = 0; i < dpro_optimum_n_server_counts(optimum); i++) {
        struct dpro_server_count count = dpro_optimum_server_count(optimum, i);
        writer_newline(w);
        writer_open(w, '{');
        writer_key_int(w, "servers", count.n_servers);
        writer_key_int(w, "on_own_hosts", count.n_hosts);
        writer_key_ms(w, "usual_ms", count.own_ns);
        writer_key_ms(w, "iteration_ms", count.best_ns);
        writer_close(w, '}');
    }
    writer_close(w, ']');
}

static void write_search_json(struct writer *w, const struct optimize_facts *f)
{
    const struct dpro_optimum *optimum = f->report->optimum;
    writer_newline(w);
    writer_key(w, "search");
    writer_open(w, '{');
    writer_key_string(w, "algorithm", f->found.algorithm);
    writer_key_fixed(w, "seconds", f->found.seconds, 3);
    writer_key_int(w, "candidates", (int64_t)f->found.n_candidates);
    writer_key_int(w, "rounds", f->found.n_rounds);
    writer_key_string(w, "stopped_by", f->found.stopped_by);
    writer_key(w, "improvements");
    writer_open(w, '[');
    for (uint32_t i = 0; i < dpro_optimum_n_improvements(optimum); i++) {
        struct dpro_improvement better = dpro_optimum_improvement(optimum, i);
        writer_open(w, '{');
        writer_key_fixed(w, "seconds", better.seconds, 6);
        writer_key_int(w, "candidates", (int64_t)better.n_candidates);
        writer_key_ms(w, "iteration_ms", better.best_ns);
        writer_close(w, '}');
    }
    writer_close(w, ']');
    writer_close(w, '}');
}

static void write_decisions_json(struct writer *w, const struct dpro_optimum *optimum)
{
    writer_newline(w);
    writer_key(w, "strategy");
    writer_open(w, '[');
    for (uint32_t i = 0; i < dpro_optimum_n_decisions(optimum); i++) {
        struct dpro_decision d = dpro_optimum_decision(optimum, i);
        writer_newline(w);
        writer_open(w, '{');
        writer_key_string(w, "pass", d.pass);
        writer_key_string(w, "target", d.target);
        writer_key_string(w, "decision", d.decision);
        writer_close(w, '}');
    }
    writer_close(w, ']');
}

void optimize_write_json(struct writer *w, const struct optimize_facts *f)
{
    const struct dpro_optimize_report *r = f->report;
    const char *warning;
    writer_open(w, '{');
    writer_key_string(w, "schema", "dpro.optimize/1");
    writer_key_string(w, "version", dpro_version());
    writer_key(w, "measured_ms");
    if (f->found.measured_ns > 0)
        writer_json_ms(w, f->found.measured_ns);
    else
        writer_null(w);
    model_write_pace(w, f->report->model);
    writer_key_ms(w, "replayed_ms", f->found.own_ns);
    write_best(w, f);
    writer_newline(w);
    writer_key_ms(w, "lower_bound_ms", f->found.lower_bound_ns);
    write_baselines(w, r->optimum);
    write_counts_json(w, r->optimum);
    write_search_json(w, f);
    write_decisions_json(w, r->optimum);
    writer_newline(w);
    writer_key_string(w, "plan", r->plan);
    writer_key(w, "link");
    model_write_link(w, r->model);
    writer_newline(w);
    writer_key_string(w, "stack", dpro_stack_name(dpro_model_stack(r->model)));
    writer_key_string(w, "within", dpro_model_means(r->model));
    writer_newline(w);
    writer_key(w, "warnings");
    writer_open(w, '[');
    for (size_t i = 0; (warning = optimize_warning(f, i)); i++)
        writer_string(w, warning);
    writer_close(w, ']');
    writer_close(w, '}');
}

int dpro_optimize_json(const struct dpro_optimize_report *report, FILE *out, struct dpro_error *err)
{
    struct optimize_facts f;
    struct writer w;
    int rc = writer_init_file(&w, out, err);
    if (rc < 0)
        return rc;
    optimize_facts_fill(&f, report);
    optimize_write_json(&w, &f);
    writer_text(&w, "\n");
    rc = writer_finish(&w, err);
    writer_fini(&w);
    return rc;
}

/* ---- files ---- */

static void write_times(struct writer *w, const char *key, const struct optimize_facts *f,
                        enum dpro_which which)
{
    const struct dpro_optimum *optimum = f->report->optimum;
    uint32_t n = dpro_strategy_n_buckets(dpro_optimum_strategy(optimum, which));
    writer_newline(w);
    writer_key(w, key);
    writer_open(w, '[');
    for (uint32_t b = 0; b < n; b++) {
        struct dpro_bucket_times times = dpro_optimum_times(optimum, which, b);
        writer_open(w, '[');
        writer_json_ms(w, times.ready_ns);
        writer_json_ms(w, times.start_ns);
        writer_json_ms(w, times.end_ns);
        writer_close(w, ']');
    }
    writer_close(w, ']');
}

void optimize_write_page(struct writer *w, const struct optimize_facts *f)
{
    page_begin(w, "dpro optimize", "optimize.json");
    writer_open(w, '{');
    writer_key(w, "report");
    optimize_write_json(w, f);
    writer_newline(w);
    writer_key_fixed(w, "less_pct", f->less_pct, 3);
    writer_key_fixed(w, "less_half_pct", f->less_half_pct, 3);
    writer_key_fixed(w, "at_most_pct", f->at_most_pct, 3);
    write_times(w, "own_times", f, DPRO_OWN);
    write_times(w, "best_times", f, DPRO_BEST);
    writer_close(w, '}');
    page_scripts(w);
    writer_put(w, asset_optimize_js, asset_optimize_js_size);
    page_end(w);
}

int dpro_optimize_plan(const struct dpro_optimize_report *report, struct dpro_error *err)
{
    struct optimize_facts f;
    struct plan *plan;
    optimize_facts_fill(&f, report);
    struct report_file files[MOST_PLAN_FILES];
    int rc = plan_create(&f, &plan, err);
    if (rc < 0)
        return rc;
    rc = files_write(report->plan, "plan", files, plan_files(report->model, files), plan, err);
    plan_destroy(plan);
    return rc;
}
