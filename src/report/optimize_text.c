/* What a search found, as text: a verdict, which JSON and the page have, too, then the tables. */
#include "report/optimize_facts.h"

#include "base/utf8.h"
#include "report/model_report.h"
#include "report/table.h"

#define MAY_HELP_PCT   1.0 /* and above that, where the model is unsure, it may */
#define MOST_DECISIONS 12

/* ---- a strategy ---- */

static void add_modules(struct words *words, const struct optimize_facts *f, enum dpro_which which)
{
    struct computed_modules compiled = optimize_computed(f->o, which, DPRO_COMPILED);
    struct computed_modules bf16 = optimize_computed(f->o, which, DPRO_BF16);
    uint32_t n = optimize_n_recomputed(f->o, which), parts = optimize_n_parts(f->o, which);
    if (compiled.is_all)
        words_add(words, "", ", compiling the model");
    else if (compiled.n > 0 && f->report->model->modules[0].is_step)
        words_add(words, "", ", XLA compiling %.80s", compiled.first);
    else if (compiled.n > 0)
        words_add(words, "", ", compiling %u module%s", compiled.n, PLURAL(compiled.n));
    if (bf16.is_all)
        words_add(words, "", ", all in 16 bits");
    else if (bf16.n > 0)
        words_add(words, "", ", %u module%s in 16 bits", bf16.n, PLURAL(bf16.n));
    if (n > 0)
        words_add(words, "", ", recomputing %u module%s", n, PLURAL(n));
    if (parts > 1)
        words_add(words, "", ", in %u micro-batches", parts);
}

static const char *schedule_text(enum dpro_schedule schedule)
{
    return schedule == DPRO_SCHEDULE_UNKNOWN ? "of its own" : dpro_schedule_name(schedule);
}

const char *optimize_strategy_text(const struct optimize_facts *f, char out[OPTIMIZE_TEXT],
                                   enum dpro_which which)
{
    const struct dpro_optimum *o = f->o;
    const struct dpro_model *model = o->models[which];
    uint32_t n_servers = o->counts.n > 0 ? dpro_model_n_servers(model) : 0, n_resharded = 0;
    struct dpro_pipeline_run run = o->pipeline[which];
    struct words words = {.n = 0};
    EACH (const struct dpro_unit, unit, o->units)
        n_resharded += (which == DPRO_BEST ? unit->reshards : unit->reshards_before) != 0;
    if (run.n_micro_batches > 0)
        words_add(&words, "", "%u micro-batch%s, schedule %s", run.n_micro_batches,
                  run.n_micro_batches == 1 ? "" : "es", schedule_text(run.schedule));
    else if (o->units.n > 0)
        words_add(&words, "", "%u of %zu units resharded", n_resharded, o->units.n);
    else
        words_add(&words, "", "%s",
                  model->n_tensors > 0 ? STRATEGY(model, &o->strategies[which]) : "as it ran");
    if (which == DPRO_BEST && o->summary.prefetch > 0)
        words_add(&words, "", ", %u gathered ahead", o->summary.prefetch);
    if (n_servers > 0)
        words_add(&words, "", ", on %u parameter server%s", n_servers, PLURAL(n_servers));
    add_modules(&words, f, which);
    snprintf(out, OPTIMIZE_TEXT, "%.*s", OPTIMIZE_TEXT - 1, words.text);
    return out;
}

/* ---- what to do next ---- */

struct launcher optimize_launcher(const struct optimize_facts *f)
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
    return f->communicates ? launchers[f->report->model->capabilities.stack]
                           : (struct launcher){"python", "train.py", ""};
}

/* How the job is started with the plan. */
static void say_next(struct lines *to, const struct optimize_facts *f)
{
    const struct dpro_optimize_report *r = f->report;
    struct launcher job = optimize_launcher(f);
    char launcher[80], safe[200];
    const char *plan = r->plan ? r->plan : "plan";
    snprintf(launcher, sizeof launcher, "%s %s%s%s%s", job.program, job.script,
             job.where[0] ? ", " : "", job.where, job.where[0] ? "," : "");
    utf8_escape(safe, sizeof safe, plan, strlen(plan));
    if (f->script[0] != '\0')
        lines_say(to, "Script", "%s", f->script);
    if (!f->is_for_job)
        lines_say(to, "Next",
                  "no plan can change the passes of a split model: change the script, record the "
                  "job again, and 'dpro compare' shows what that brought");
    else if (!f->is_named)
        lines_say(to, "Next",
                  "dpro profile -o TRACE -- %s records the job with its parameters' names; "
                  "dpro optimize TRACE -o %s then writes a plan that the job can be given",
                  launcher, safe);
    else if (!r->plan)
        lines_say(to, "Next", "-o plan/ writes this strategy as a plan for the job");
    else if (r->model->capabilities.stack != DPRO_STACK_BYTEPS)
        lines_say(to, "Next",
                  "%sdpro verify --plan %s -- %s shows what it brings; dpro profile --plan %s "
                  "-- %s runs the job with it",
                  optimize_n_parts(f->o, f->planned) > 1
                      ? "put dpro.micro_batches() into the script; then "
                      : "",
                  safe, launcher, safe, launcher);
    else
        lines_say(to, "Next",
                  "dpro profile --plan %s -o TRACE2 -- %s runs the job with it; dpro compare "
                  "of this trace and TRACE2 shows what it brings",
                  safe, launcher);
}

/* What no plan can do in the job: its servers are there before it. */
static void say_servers_needed(struct lines *to, const struct optimize_facts *f)
{
    bool session = f->report->model->capabilities.stack == DPRO_STACK_TENSORFLOW_PS;
    uint32_t had = dpro_model_n_servers(f->report->model);
    uint32_t n = dpro_model_n_servers(f->o->models[f->planned]);
    if (n != had)
        lines_say(to, "Servers",
                  "the plan is for %u parameter server%s, the job ran with %u, and a plan can't "
                  "start servers: %s %u",
                  n, PLURAL(n), had,
                  session ? "start it with another list of 'ps' tasks in its cluster, of"
                          : "start it with as many processes of DMLC_ROLE=server, all of its "
                            "processes with DMLC_NUM_SERVER of",
                  n);
}

/* Why this strategy: the default algorithm chooses among all that it looked at. */
static void say_choice(struct lines *to, const struct optimize_facts *f)
{
    const struct dpro_optimum_summary *s = &f->o->summary;
    double more_pct = 100 * ((double)s->best_ns / (double)s->found_ns - 1);
    if (f->is_of_units || strcmp(s->algorithm, "default") != 0)
        return;
    if (s->setting)
        lines_say(to, "Setting", "%s of DistributedDataParallel does this without a plan",
                  s->setting);
    if (more_pct >= 0.05)
        lines_say(to, "Choice",
                  "the simplest of the strategies that are equally fast (the fastest takes "
                  "%s %% less, within half a percent or half a standard error)",
                  NUMBER(more_pct, 1));
    else
        lines_say(to, "Choice", "the fastest of the strategies that were tried, by expected time");
}

/* ---- memory ---- */

static const char *place_of(char out[160], const struct dpro_memory_peak *peak)
{
    struct words words = {.n = 0};
    words_add(&words, "", "on rank %d", peak->rank);
    if (peak->in_recomputation)
        words_add(&words, "", ", while %.60s is computed again", peak->module ?: "it");
    else if (peak->phase == DPRO_OP_FW || peak->phase == DPRO_OP_BW)
        words_add(&words, "", ", in the %s pass",
                  peak->phase == DPRO_OP_FW ? "forward" : "backward");
    else if (peak->phase == DPRO_OP_UPDATE)
        words_add(&words, "", ", in the update");
    snprintf(out, 160, "%.159s", words.text);
    return out;
}

#define PLACE(peak) place_of((char[160]){""}, peak)

/* What is left of a budget beside the peak goes to what the job never gives back. */
static void say_leak(struct lines *to, const struct dpro_memory_budget *b, uint64_t peak_bytes)
{
    uint64_t left = b->budget_bytes > peak_bytes ? b->budget_bytes - peak_bytes : 0;
    struct words words = {.n = 0};
    words_add(&words, "", "memory grows by %s in each iteration: with the %s",
              BYTES_TEXT(b->growth_bytes), BYTES_TEXT(b->leaked_bytes));
    words_add(&words, " ", "that had piled up before the recording, the job holds %s, which",
              BYTES_TEXT(peak_bytes + b->leaked_bytes));
    if (b->leaked_bytes > left)
        words_add(&words, " ", "does not fit %s: stop that first", BYTES_TEXT(b->budget_bytes));
    else
        words_add(&words, " ", "fits %s for %llu iterations more", BYTES_TEXT(b->budget_bytes),
                  (unsigned long long)((left - b->leaked_bytes) / MAX(b->growth_bytes, 1)));
    lines_say(to, "Leak", "%s", words.text);
}

static void say_nothing_fits(struct lines *to, const struct optimize_facts *f)
{
    const struct dpro_memory_budget *b = &f->budget;
    const struct dpro_memory_peak *before = &f->o->peaks[DPRO_BASELINE];
    const struct dpro_memory_choice *lowest = f->o->memory.choices.at;
    EACH (const struct dpro_memory_choice, choice, f->o->memory.choices)
        lowest = choice->peak_bytes < lowest->peak_bytes ? choice : lowest;
    lines_say(to, "Verdict",
              "nothing that was tried fits %s: the job holds %s at its peak (%s), and at least %s "
              "(%s), which is %s too much; the smallest budget that it fits is %s (--memory %llu)",
              BYTES_TEXT(b->budget_bytes), BYTES_TEXT(before->bytes), PLACE(before),
              BYTES_TEXT(b->least_bytes), lowest ? lowest->name : "as it ran",
              BYTES_TEXT(b->least_bytes - b->budget_bytes), BYTES_TEXT(b->least_bytes),
              (unsigned long long)b->least_bytes);
}

/* If a budget made the search change the job, or nothing fits, that is the verdict. */
static void say_memory(struct lines *to, const struct optimize_facts *f)
{
    const struct dpro_memory_budget *b = &f->budget;
    const struct dpro_optimum_summary *s = &f->o->summary;
    const struct dpro_memory_peak *before = &f->o->peaks[DPRO_BASELINE];
    const struct dpro_memory_peak *kept = &f->o->peaks[f->planned];
    char fits[NUMBER_TEXT + 24] = "";
    if (before->bytes == 0)
        return;
    if (b->budget_bytes > 0)
        snprintf(fits, sizeof fits, ", which fits %s", BYTES_TEXT(b->budget_bytes));
    if (b->needed && !b->fits)
        say_nothing_fits(to, f);
    else if (b->needed)
        lines_say(to, "Verdict",
                  "%s at the peak instead of %s, which fits the %s, for %s %% %s time an iteration "
                  "(+- %s points): %s instead of %s",
                  BYTES_TEXT(kept->bytes), BYTES_TEXT(before->bytes), BYTES_TEXT(b->budget_bytes),
                  NUMBER(fabs(f->less_pct), 1), f->less_pct < 0 ? "more" : "less",
                  NUMBER(f->less_half_pct, 1), TIME(s->best_ns), TIME(s->baseline_ns));
    else
        lines_say(to, "Memory", "%s at its peak by the model (%s)%s", BYTES_TEXT(kept->bytes),
                  PLACE(kept), fits);
    if (b->budget_bytes == 0 || (b->needed && !b->fits))
        return;
    if (kept->reserved_bytes > b->budget_bytes)
        lines_say(to, "Reserved",
                  "%s, free blocks of the allocator included, which is more than %s: give a budget "
                  "that leaves it room, or set expandable_segments",
                  BYTES_TEXT(kept->reserved_bytes), BYTES_TEXT(b->budget_bytes));
    if (b->leaked_bytes > 0)
        say_leak(to, b, kept->bytes);
}

/* ---- how modules are computed ---- */

static void add_computed(struct words *words, const char *what, struct computed_modules of)
{
    if (of.n == 0)
        return;
    words_add(words, "; ", "%s: ", what);
    if (of.is_all)
        words_add(words, "", "the whole model");
    else if (of.n == 1)
        words_add(words, "", "%.80s", of.first);
    else
        words_add(words, "", "%.80s ... %.80s (%u modules)", of.first, of.last, of.n);
}

static void say_changed(struct lines *to, const struct optimize_facts *f)
{
    const struct dpro_computing_search *s = &f->o->computing;
    double best_ns = (double)f->o->summary.best_ns;
    struct words words = {.n = 0};
    add_computed(&words, "compiled", optimize_computed(f->o, DPRO_BEST, DPRO_COMPILED));
    add_computed(&words, "in 16 bits", optimize_computed(f->o, DPRO_BEST, DPRO_BF16));
    if (s->communication_ns > 0)
        words_add(&words, "", "; %s %% less time than with the best of communication alone",
                  NUMBER(100 * (1 - best_ns / (double)s->communication_ns), 1));
    if (s->n_assumed > 0)
        words_add(&words, "", "; part of the gain of 16 bits is assumed, not measured");
    lines_say(to, "Computing", "%s", words.text);
}

/* What is changed, and what that brings; or what would have to be known for more. What is usual has
 * rows in the table. */
static void say_computing(struct lines *to, const struct optimize_facts *f)
{
    const struct dpro_computing_search *s = &f->o->computing;
    const struct dpro_model *model = f->report->model;
    if (s->allowed == 0)
        return;
    if (f->helps && f->computes)
        say_changed(to, f);
    else if (f->computes && s->n_assumed > 0)
        lines_say(to, "Computing",
                  "kept as they are: the gain of 16 bits is assumed, and not sure enough; 'dpro "
                  "profile --probe compile,bf16' measures it");
    else if (model->n_modules == 1 && model->modules[0].is_step)
        lines_say(to, "Computing",
                  "no plan compiles a step of this framework or computes it in 16 bits; 'dpro "
                  "whatif --compile all' and '--precision bf16' tell the gain");
    else if (s->n_modules == 0)
        lines_say(to, "Computing",
                  "the times of the job's modules compiled or in 16 bits were not measured: record "
                  "it with 'dpro profile --probe compile,bf16', or give the probes of another run "
                  "with --probes%s",
                  s->n_assumable > 0 ? "; --allow bf16,assumed uses assumed times of 16 bits" : "");
    else
        lines_say(to, "Computing",
                  "kept as they are: compiling and 16 bits win too little to be sure of");
}

/* ---- the verdict ---- */

static void say_change(struct lines *to, const struct optimize_facts *f)
{
    lines_say(to, "Change", "%s, instead of %s", STRATEGY_OF(f, DPRO_BEST),
              STRATEGY_OF(f, DPRO_BASELINE));
}

static void say_within(struct lines *to, const struct optimize_facts *f)
{
    if (f->communicates)
        lines_say(to, "Within", "%s", f->report->model->capabilities.text);
}

/* Of a job that does not fit its budget. */
static void say_memory_verdict(struct lines *to, const struct optimize_facts *f)
{
    say_memory(to, f);
    if (!f->helps)
        return;
    say_change(to, f);
    if (f->is_for_job && optimize_n_parts(f->o, DPRO_BEST) > 1)
        lines_say(to, "Script",
                  "micro-batches need two lines in the job's script (dpro.micro_batches); "
                  "--no-accumulate leaves them out");
    if (f->communicates && f->o->summary.lower_bound_ns > 0)
        lines_say(to, "At most",
                  "no bucketing without compression makes such an iteration shorter than %s",
                  TIME(f->o->summary.lower_bound_ns));
    say_within(to, f);
    say_computing(to, f);
    say_next(to, f);
}

static void say_turns(struct lines *to, const struct optimize_facts *f)
{
    const struct dpro_optimum_summary *s = &f->o->summary;
    double share = (double)s->unmeasured_ns / (double)s->baseline_ns;
    if (s->n_turns > 0)
        lines_say(to, "Measured",
                  "by turns of %u plan%s in this job (dpro tune), which correct what is expected; "
                  "before, %s %% less (+- %s points): %s",
                  s->n_turns, PLURAL(s->n_turns), NUMBER(100 * (1 - share), 1),
                  NUMBER(HALF_OF_95_PCT * s->unmeasured_pct * share * share, 1),
                  TIME(s->unmeasured_ns));
}

static void say_time(struct lines *to, const struct optimize_facts *f)
{
    const struct dpro_optimum_summary *s = &f->o->summary;
    const char *less = NUMBER(f->less_pct, 1), *half = NUMBER(f->less_half_pct, 1);
    bool sure = f->less_pct > f->less_half_pct, may = !sure && f->less_pct >= MAY_HELP_PCT;
    bool named = strcmp(s->algorithm, "default") != 0;
    if (f->helps) {
        lines_say(to, "Verdict", "%s %% less time an iteration (+- %s points): %s instead of %s",
                  less, half, TIME(s->best_ns), TIME(s->baseline_ns));
        say_change(to, f);
        say_choice(to, f);
    } else if (f->communicates || f->is_of_units || f->is_of_pipeline ||
               f->budget.budget_bytes == 0) {
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
                  may && s->setting ? ", or measure " : "", may && s->setting ? s->setting : "");
    }
    say_turns(to, f);
}

static void say_at_most(struct lines *to, const struct optimize_facts *f)
{
    const struct dpro_optimum_summary *s = &f->o->summary;
    if (f->is_undivided)
        lines_say(to, "At most",
                  "smaller buckets are not tried: the trace does not tell which gradients a bucket "
                  "holds, so recorded buckets were only joined and reordered; 'dpro profile' "
                  "records their gradients");
    else if (f->communicates)
        lines_say(
            to, "At most",
            "%sno bucketing without compression can win more than %s %%, even if every number of "
            "the model is two standard errors off: an iteration takes at least %s; if 'dpro "
            "replay' shows more exposed communication, only compression or faster links can reduce "
            "it",
            f->computes ? "with these modules computed so " : "",
            NUMBER(100 * (1 - (double)s->lower_bound_ns / (double)s->baseline_ns), 1),
            TIME(s->lower_bound_ns));
}

void optimize_say_verdict(struct lines *to, const struct optimize_facts *f)
{
    if (f->budget.needed) {
        say_memory_verdict(to, f);
        return;
    }
    say_time(to, f);
    say_at_most(to, f);
    say_computing(to, f);
    say_memory(to, f);
    say_within(to, f);
    say_servers_needed(to, f);
    if (f->helps)
        say_next(to, f);
}

/* ---- tables ---- */

static void cell_times(struct table *t, const struct optimize_facts *f, int64_t ns)
{
    table_cells(t, TIME(ns));
    table_cell(t, "%s %%", SIGNED(100 * ((double)ns / (double)f->o->summary.baseline_ns - 1)));
}

/* `uncertainty_pct` as in a summary; 0: none is told. likely_ns 0: nor is that. */
static void report_row(struct table *t, const struct optimize_facts *f, const char *name,
                       int64_t ns, double uncertainty_pct, int64_t likely_ns, const char *what)
{
    char shown[NAME_COLUMNS * 4];
    double share = (double)ns / (double)f->o->summary.baseline_ns;
    columns_shorten(shown, sizeof shown, what, TABLE_COLUMNS);
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
    const struct dpro_optimum_summary *s = &f->o->summary;
    bool both = f->is_likely_other, is_setting = s->setting && f->helps;
    struct table t = {.n_cols = both ? 6 : 5, .left = {true, [4] = !both, [5] = true}};
    if (!f->communicates && !f->is_of_units && !f->is_of_pipeline && f->o->computing.n_modules == 0)
        return;
    table_cells(&t, "strategy", both ? "expected" : "iteration", "change", "+-");
    if (both)
        table_cells(&t, "likely");
    table_cells(&t, "");
    report_row(&t, f, "as it ran", s->baseline_ns, 0, s->baseline_ns,
               STRATEGY_OF(f, DPRO_BASELINE));
    report_row(&t, f, is_setting ? "chosen" : "best found", s->best_ns, s->uncertainty_pct,
               s->likely_ns, is_setting ? s->setting : STRATEGY_OF(f, DPRO_BEST));
    EACH (const struct dpro_baseline, baseline, f->o->baselines)
        if (optimize_is_row(f, baseline))
            report_row(&t, f, baseline->name, baseline->iteration_ns, baseline->uncertainty_pct,
                       baseline->likely_ns, baseline->text);
    EACH (const struct dpro_finalist, one, f->o->finalists) {
        char name[32];
        snprintf(name, sizeof name, "finalist-%zu", one - f->o->finalists.at + 1);
        report_row(&t, f, name, one->iteration_ns, one->uncertainty_pct, 0, one->name);
    }
    if (f->communicates && s->lower_bound_ns > 0)
        report_row(&t, f, "lower bound", s->lower_bound_ns, 0, 0, "no bucketing can beat it");
    writer_text(w, "\n");
    table_write(w, &t);
}

/* What each number of servers would win, and what it takes. */
static void write_counts(struct writer *w, const struct optimize_facts *f)
{
    struct table t = {.n_cols = 6};
    if (f->o->counts.n == 0)
        return;
    table_cells(&t, "servers", "on own hosts", "placed as usual", "change", "best found", "change");
    EACH (const struct dpro_server_count, count, f->o->counts) {
        table_cell(&t, "%u", count->n_servers);
        table_cell(&t, "%u", count->n_hosts);
        cell_times(&t, f, count->usual_ns);
        cell_times(&t, f, count->best_ns);
    }
    writer_text(w, "\n");
    table_write(w, &t);
}

/* What was tried to make the job fit. */
static void write_choices(struct writer *w, const struct optimize_facts *f)
{
    struct table t = {.n_cols = 6, .left = {true, [5] = true}};
    if (f->o->memory.choices.n == 0)
        return;
    table_cells(&t, "for memory", "modules", f->is_likely_other ? "likely" : "iteration", "change",
                "peak", "");
    EACH (const struct dpro_memory_choice, choice, f->o->memory.choices) {
        table_cells(&t, choice->name);
        table_cell(&t, "%u", choice->n_recomputed);
        cell_times(&t, f, choice->iteration_ns);
        table_cells(&t, BYTES_TEXT(choice->peak_bytes),
                    choice->chosen ? "chosen"
                    : choice->fits ? "fits"
                                   : "");
    }
    writer_text(w, "\n");
    table_write(w, &t);
}

static void write_decisions(struct writer *w, const struct optimize_facts *f)
{
    size_t n = f->helps ? f->o->decisions.n : 0;
    writer_text(w, n > 0 ? "\nChanges to the job's strategy\n" : "");
    for (size_t i = 0; i < n && i < MOST_DECISIONS; i++) {
        const struct dpro_decision *d = &f->o->decisions.at[i];
        struct words line = {.n = 0};
        words_add(&line, "", "%.40s: %.300s: %.200s", d->pass, d->target, d->decision);
        table_escaped(w, "  -", 4, line.text);
    }
    if (n > MOST_DECISIONS)
        writer_printf(w, "    and %zu more, in --json and the plan\n", n - MOST_DECISIONS);
}

static void write_text(struct writer *w, const void *report)
{
    struct optimize_facts facts, *f = &facts;
    struct lines verdict = {.n = 0};
    optimize_facts_fill(f, report);
    const struct dpro_optimum_summary *s = &f->o->summary;
    optimize_say_verdict(&verdict, f);
    for (size_t i = 0; i < verdict.n; i++)
        table_wrapped(w, verdict.at[i].title, 10, verdict.at[i].said.text);
    write_table(w, f);
    write_counts(w, f);
    write_choices(w, f);
    if (f->is_likely_other)
        table_paragraph(w, " ", 2,
                        "expected: the mean over the model's errors and the measured iterations, "
                        "by which strategies are chosen; likely: by the model's best guess of each "
                        "number, which is what 'dpro whatif' prints");
    write_decisions(w, f);
    writer_text(w, "\n");
    table_paragraph(w, " ", 2, "search: %s, %llu candidate%s in %s s, %u round%s, stopped by: %s",
                    s->algorithm, (unsigned long long)s->n_candidates, PLURAL(s->n_candidates),
                    NUMBER(s->seconds, 2), s->n_rounds, PLURAL(s->n_rounds), s->stopped_by);
    model_write_text(w, f->report->model);
    warnings_write_text(w, &f->warnings, 1);
}

REPORT(dpro_optimize_text, dpro_optimize_report, write_text)
