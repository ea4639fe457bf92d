/* A diagnosis as text and as JSON (dpro.diagnose/1; keys are never renamed or dropped). */
#include <dpro/report.h>

#include "diagnose/baseline.h"
#include "graph/graph.h"
#include "ingest/trace.h"
#include "report/against_report.h"
#include "report/facts.h"
#include "report/table.h"
#include "report/words.h"

enum { INDENT = 11, MOST_TOLD = 3, TEXT_PARTS = 4, PART_COLUMNS = 80 };
#define NOISE_FROM   0.05 /* a p-value above it */
#define REST_TO_TELL 0.02 /* of the replay, which it does not explain */
#define REST_TO_WARN 0.05

/* Steps are rounded as everywhere else. So that they add up as they are printed, what is small or
 * unsure, else the ideal, takes what rounding lost. */
struct diagnosis_step {
    struct dpro_cause cause; /* order 0: no cause that was told */
    int64_t shown_ns;
};

/* From the ideal, the first step, to the iteration. */
struct diagnosis_facts {
    const struct dpro_diagnose_report *r;
    const struct dpro_diagnosis_view *view;
    ARRAY(struct diagnosis_step) steps;
    int digits; /* of milliseconds, in the text */
    struct words verdict;
    struct words differs; /* why the iteration is not the replay; none: it is, nearly */
    struct warnings warnings;
};

static void add_step(struct diagnosis_facts *d, const char *key, const char *title, int64_t ns)
{
    struct dpro_cause none = {.cause = key, .title = title, .blame_ns = ns, .uncertainty_ns = -1};
    if (ns != 0 || d->steps.n == 0) /* the ideal is always there */
        array_add(&d->steps, .cause = none);
}

/* What the iteration is other than the replay: by how it was found. */
static void add_rest(struct diagnosis_facts *d, int64_t rest_ns)
{
    const struct dpro_job_time *job = &d->r->job;
    double replay_ns = (double)d->view->explained_ns;
    struct words why = {.n = 0};
    if (job->source == DPRO_JOB_LOGS) {
        add_step(d, "profiler", "the profiler, without which the job runs", rest_ns);
        words_add(&why, "", "recording costs the difference, by transport logs of the same run");
    } else if (job->n_warm_up > 0) {
        add_step(d, "warm_up", "the first iterations, which take longer and do not count", rest_ns);
        words_add(&why, "", "the first %u iteration%s, which take%s longer, are in the replay only",
                  job->n_warm_up, PLURAL(job->n_warm_up), job->n_warm_up == 1 ? "s" : "");
    } else {
        add_step(d, "not_explained", "not explained by the replay", rest_ns);
        words_add(&why, "", "that was found from %u step%s of the same run without the profiler",
                  job->n, PLURAL(job->n));
    }
    if (fabs((double)rest_ns) >= REST_TO_WARN * replay_ns)
        words_add(
            &d->differs, "",
            "the replay takes %s, the job %s: %s; blames, and their shares, are of the replay",
            TIME(d->view->explained_ns), TIME(job->ns), why.text);
}

static void find_steps(struct diagnosis_facts *d)
{
    const struct dpro_diagnosis_view *v = d->view;
    int64_t unit = 1000, lost;
    size_t taker = 0;
    add_step(d, "ideal",
             d->r->graph->lacks_gpu ? "ideal, and waiting for GPUs that were not recorded"
                                    : "ideal",
             v->ideal_ns);
    EACH_OF (const struct dpro_cause, c, v->causes, v->n_causes)
        array_add(&d->steps, .cause = *c);
    if (v->small_ns != 0)
        taker = d->steps.n;
    add_step(d, "small_or_unsure", "causes that are small or unsure", v->small_ns);
    add_rest(d, d->r->job.ns - v->explained_ns);
    d->digits = 3;
    EACH_OF (const int64_t, at, ((const int64_t[]){10000000, 100000000, 10000000000}), 3)
        if (d->r->job.ns >= *at) {
            d->digits--;
            unit *= 10;
        }
    lost = llround((double)d->r->job.ns / (double)unit) * unit;
    EACH (struct diagnosis_step, step, d->steps) {
        step->shown_ns = llround((double)step->cause.blame_ns / (double)unit) * unit;
        lost -= step->shown_ns;
    }
    d->steps.at[taker].shown_ns += lost;
}

#define LEAST_TOLD   0.02 /* of the iteration, in the verdict */
#define SHOWN(d, ns) NUMBER((double)(ns) / 1e6, (d)->digits)

/* " (rank 3)", " (ranks 3, 5 and 2 others)"; "": of all, or of none in particular. */
static void say_ranks(struct words *words, const struct dpro_graph *g, const struct dpro_cause *c)
{
    enum { MOST = 4 };
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_ranks; i++)
        n += c->ranks[i] >= 0; /* not servers */
    if (n == 0 || n == g->n_ranks)
        return;
    for (uint32_t i = 0, said = 0; i < c->n_ranks && said < MOST; i++)
        if (c->ranks[i] >= 0)
            words_add(words, "", "%s%d",
                      said++ > 0 ? ", "
                      : n > 1    ? " (ranks "
                                 : " (rank ",
                      c->ranks[i]);
    if (n > MOST)
        words_add(words, "", " and %u other%s", n - MOST, PLURAL(n - MOST));
    words_add(words, "", ")");
}

static void say_verdict(struct diagnosis_facts *d)
{
    int64_t all = d->view->explained_ns, lost = all - d->view->ideal_ns;
    int64_t rest = d->r->job.ns - all;
    bool differs = llabs(rest) > REST_TO_TELL * (double)all;
    bool opens = differs && llabs(rest) > lost; /* it is more than all causes */
    uint32_t n = 0;
    if (opens)
        words_add(&d->verdict, "",
                  "without dpro the job takes %s ms %s than the replay, more than all causes "
                  "together%s; ",
                  SHOWN(d, llabs(rest)), rest < 0 ? "less" : "more",
                  d->r->job.ns < d->view->ideal_ns ? ", so that even the replay's ideal is longer"
                                                   : "");
    words_add(&d->verdict, "", "%s of %s ms %s iteration (%s %%) are lost", SHOWN(d, lost),
              SHOWN(d, all), differs ? "a replayed" : "an", NUMBER(facts_pct(lost, all), 1));
    EACH (const struct diagnosis_step, step, d->steps) {
        if (step->cause.order == 0 || n == MOST_TOLD ||
            (double)step->cause.blame_ns < LEAST_TOLD * (double)all)
            continue;
        words_add(&d->verdict, "", "%s %s ms, %s", n++ == 0 ? ":" : ";", SHOWN(d, step->shown_ns),
                  step->cause.title);
        say_ranks(&d->verdict, d->r->graph, &step->cause);
    }
    if (n == 0)
        words_add(&d->verdict, "", "; no cause is large and sure enough to be told");
    if (differs && !opens)
        words_add(&d->verdict, "", "; without dpro the job takes %s ms %s", SHOWN(d, llabs(rest)),
                  rest < 0 ? "less" : "more");
    if (d->r->graph->lacks_gpu)
        words_add(&d->verdict, "",
                  "; the GPU's work was not recorded, so what else is lost "
                  "can't be told");
}

static void diagnosis_find(struct diagnosis_facts *d, const struct dpro_diagnose_report *r)
{
    *d = (struct diagnosis_facts){.r = r, .view = dpro_diagnosis_view(r->diagnosis)};
    find_steps(d);
    d->warnings =
        (struct warnings){.trace = r->trace, .graph = r->graph, .more = {d->differs.text}};
    say_verdict(d);
}

/* ---- text ---- */

static void put_step(struct table *t, const struct diagnosis_facts *d, const char *title,
                     int64_t ns, const struct dpro_cause *c)
{
    bool told = c && c->order > 0;
    table_cells(t, title, SHOWN(d, ns),
                !told                   ? ""
                : c->uncertainty_ns < 0 ? "?"
                                        : SHOWN(d, c->uncertainty_ns),
                NUMBER(facts_pct(ns, d->view->explained_ns), 1), told ? SHOWN(d, c->alone_ns) : "",
                told ? SHOWN(d, c->in_order_ns) : "", told ? NUMBER(c->order, 0) : "");
}

static void write_steps(struct writer *w, const struct diagnosis_facts *d)
{
    struct table t = {.n_cols = 7, .left = {true}};
    table_cells(&t, "From the ideal to the iteration", "ms", "+-", "%", "alone", "in order",
                "order");
    EACH (const struct diagnosis_step, step, d->steps)
        put_step(&t, d, step->cause.title, step->shown_ns, &step->cause);
    put_step(&t, d, "iteration", d->r->job.ns, NULL);
    writer_text(w, "\n");
    table_write(w, &t);
    table_wrapped(w, "", 2,
                  "ms: the cause's blame; blames add up; +-: half of its 95 % interval; %: of the "
                  "replay; alone: what taking away only this cause wins, also of what others are "
                  "blamed for; in order: what it wins when causes are taken away in this order");
}

static void write_cause(struct writer *w, const struct diagnosis_facts *d,
                        const struct diagnosis_step *step)
{
    const struct dpro_cause *c = &step->cause;
    struct words parts = {.n = 0};
    writer_text(w, "\n");
    table_paragraph(w, "", 2, "%s: %s ms", c->title, SHOWN(d, step->shown_ns));
    for (uint32_t i = 0; i < MIN(c->n_parts, TEXT_PARTS); i++) {
        char what[PART_COLUMNS * 4];
        columns_shorten(what, sizeof what, c->parts[i].what, PART_COLUMNS);
        words_add(&parts, ", ", "%s %s ms", what, SHOWN(d, c->parts[i].blame_ns));
    }
    if (c->n_parts > TEXT_PARTS)
        words_add(&parts, ", ", "%u more", c->n_parts - TEXT_PARTS);
    if (parts.n > 0)
        table_escaped(w, "  of", 7, parts.text);
    if (c->next_step)
        table_escaped(w, "  next", 7, c->next_step);
    if (c->command)
        writer_printf(w, "       %s   # wins %s%s%s ms%s\n", c->command,
                      SHOWN(d, c->command_gain_ns), c->command_half_ns < 0 ? "" : " +- ",
                      c->command_half_ns < 0 ? "" : SHOWN(d, c->command_half_ns),
                      c->command_gain_ns > c->command_half_ns ? "" : ", too little to be sure of");
}

static void write_abstained(struct writer *w, const struct diagnosis_facts *d)
{
    struct words small = {.n = 0};
    uint32_t n = 0;
    EACH_OF (const struct dpro_abstained, a, d->view->abstained, d->view->n_abstained)
        if (a->blame_ns != 0)
            words_add(&small, "; ", "%s ms, %s", SHOWN(d, a->blame_ns), a->title);
    writer_text(w, small.n > 0 ? "\nSmall or unsure\n" : "");
    if (small.n > 0)
        table_wrapped(w, "  ", 2, small.text);
    struct words titles = {.n = 0};
    EACH_OF (const struct dpro_abstained, a, d->view->abstained, d->view->n_abstained) {
        if (!a->needs)
            continue;
        words_add(&titles, "; ", "%s", a->title);
        if (a + 1 < a_end_ && a[1].needs && strcmp(a->needs, a[1].needs) == 0)
            continue; /* several need the same */
        writer_text(w, n++ == 0 ? "\nWhat this recording can't tell\n" : "");
        table_paragraph(w, "  ", 4, "%s: %s", titles.text, a->needs);
        titles = (struct words){.n = 0};
    }
}

/* ---- against a baseline ---- */

struct cause_change {
    const char *cause, *title;
    int64_t then_ns, now_ns, half_ns; /* half of its 95 % interval; -1: not known */
};

struct baseline_change {
    ARRAY(struct cause_change) causes;
    double p; /* that iterations are as long as then; NAN: too few were measured */
    struct words differs;
};

static void change_add(struct baseline_change *change, const char *cause, const char *title,
                       const struct baseline_cause *then, const struct diagnosis_step *now)
{
    int64_t half_then = then ? then->uncertainty_ns : 0;
    int64_t half_now = now ? now->cause.uncertainty_ns : 0;
    array_add(
        &change->causes, cause, title, then ? then->blame_ns : 0, now ? now->cause.blame_ns : 0,
        half_then < 0 || half_now < 0 ? -1 : llround(hypot((double)half_then, (double)half_now)));
}

static void find_change(struct baseline_change *change, const struct diagnosis_facts *d)
{
    const struct dpro_saved_diagnosis *b = d->r->baseline;
    int ranks_now = dpro_trace_world_size(d->r->trace);
    uint32_t n;
    array_add(&change->causes, "ideal", "ideal", b->ideal_ns, d->view->ideal_ns, -1);
    EACH_OF (const struct diagnosis_step, step, d->steps.at + 1, d->steps.n - 1)
        change_add(change, step->cause.cause, step->cause.title,
                   baseline_cause(b, step->cause.cause), step);
    EACH (const struct baseline_cause, then, b->causes) {
        const char *cause = strtab_get(&b->strings, then->cause);
        bool there = false;
        EACH (const struct diagnosis_step, step, d->steps)
            there |= strcmp(step->cause.cause, cause) == 0;
        if (!there)
            change_add(change, cause, strtab_get(&b->strings, then->title), then, NULL);
    }
    const int64_t *now = dpro_graph_measured_ns(d->r->graph, &n);
    change->p = stats_welch_p(stats_mean_std_i64(b->measured_ns.at, b->measured_ns.n),
                              b->measured_ns.n, stats_mean_std_i64(now, n), n);
    const char *version = strtab_get(&b->strings, b->version);
    if (b->world_size != ranks_now)
        words_add(&change->differs, "; ", "%" PRId64 " ranks then, %d now", b->world_size,
                  ranks_now);
    if (strcmp(version, dpro_version()) != 0)
        words_add(&change->differs, "; ", "diagnosed by dpro %.40s then, %s now", version,
                  dpro_version());
}

/* "12.3 ms (2.4 %) more an iteration than good.json's 518.3 ms, p = 0.003". */
static void say_change(const struct diagnosis_facts *d, const struct baseline_change *change,
                       struct words *words)
{
    int64_t then = d->r->baseline->iteration_ns, more = d->r->job.ns - then;
    words_add(words, "", "%s (%s %%) %s an iteration than the %s of %s", TIME(llabs(more)),
              NUMBER(100.0 * (double)llabs(more) / (double)then, 1), more < 0 ? "less" : "more",
              TIME(then), d->r->baseline->path);
    if (isnan(change->p))
        words_add(words, "; ", "too few iterations were measured to tell whether that is noise");
    else
        words_add(words, ", ", "%sp %s %s", change->p > NOISE_FROM ? "which may be noise: " : "",
                  change->p < 0.001 ? "<" : "=", NUMBER(MAX(change->p, 0.001), 3));
}

static void write_change(struct writer *w, const struct diagnosis_facts *d)
{
    struct baseline_change change = {.p = NAN};
    struct table t = {.n_cols = 5, .left = {true}};
    struct words said = {.n = 0};
    find_change(&change, d);
    say_change(d, &change, &said);
    table_escaped(w, "Against", INDENT, said.text);
    if (change.differs.n > 0)
        table_escaped(w, "Differs", INDENT, change.differs.text);
    writer_text(w, "\n");
    table_cells(&t, "Against the baseline, in ms", "then", "now", "change", "+-");
    array_add(&change.causes, "iteration", "iteration", d->r->baseline->iteration_ns, d->r->job.ns,
              -1);
    EACH (const struct cause_change, c, change.causes) {
        char title[NAME_COLUMNS * 4];
        columns_shorten(title, sizeof title, c->title, NAME_COLUMNS);
        table_cells(&t, title, SHOWN(d, c->then_ns), SHOWN(d, c->now_ns),
                    SHOWN(d, c->now_ns - c->then_ns), c->half_ns < 0 ? "" : SHOWN(d, c->half_ns));
    }
    table_write(w, &t);
    array_fini(&change.causes);
}

static void write_against(struct writer *w, const struct diagnosis_facts *d)
{
    struct baseline_change change = {.p = NAN};
    struct words said = {.n = 0};
    if (d->r->against) {
        writer_section(w, "against", '{');
        against_write_json(w, d->r->against);
        writer_close(w, '}');
        return;
    }
    if (!d->r->baseline) {
        writer_fields(w, NUL("against"));
        return;
    }
    find_change(&change, d);
    say_change(d, &change, &said);
    writer_section(w, "against", '{');
    writer_fields(w, TEXT("path", d->r->baseline->path), TEXT("text", said.text),
                  MS("iteration_ms", d->r->baseline->iteration_ns),
                  MS("difference_ms", d->r->job.ns - d->r->baseline->iteration_ns),
                  FIXED("p_value", change.p, 6),
                  TEXT("differs", change.differs.n > 0 ? change.differs.text : NULL));
    WRITER_LIST_OF (w, "causes", const struct cause_change, c, change.causes.at, change.causes.n)
        writer_row(w, TEXT("cause", c->cause), TEXT("title", c->title), MS("then_ms", c->then_ns),
                   MS("now_ms", c->now_ns), MS("difference_ms", c->now_ns - c->then_ns),
                   MS_KNOWN("uncertainty_ms", c->half_ns));
    writer_close(w, '}');
    array_fini(&change.causes);
}

/* ---- JSON ---- */

/* With rows for what no cause is told of, so that ideal and blames add up to the iteration. A
 * baseline does not need all. */
static void write_object(struct writer *w, const struct dpro_diagnose_report *r, bool for_baseline)
{
    struct diagnosis_facts facts, *d = &facts;
    diagnosis_find(d, r);
    const struct dpro_diagnosis_view *v = d->view;
    uint32_t n;
    const int64_t *measured = dpro_graph_measured_ns(r->graph, &n);
    SCRATCH job_works works = {0};
    writer_open(w, '{');
    writer_fields(w, TEXT("schema", "dpro.diagnose/1"), TEXT("version", dpro_version()),
                  TEXT("verdict", d->verdict.text),
                  TEXT("framework", dpro_trace_framework(r->trace)),
                  INT("world_size", dpro_trace_world_size(r->trace)),
                  INT("gradient_bytes", gradients_of(r->graph)), MS("iteration_ms", r->job.ns),
                  MS("iteration_low_ms", r->job.low_ns), MS("iteration_high_ms", r->job.high_ns),
                  TEXT("iteration_source", dpro_job_source_name(r->job.source)),
                  MS("ideal_ms", v->ideal_ns), MS("explained_ms", v->explained_ns),
                  MS("profiler_ms", r->profiler_ns), INT("n_iterations", v->n_iterations),
                  BOOL("sampled", v->is_sampled), INT("replays", v->n_replays));
    writer_key(w, "measured_ms");
    writer_json_times(w, measured, n);
    WRITER_ROWS_OF (w, "causes", const struct diagnosis_step, step, d->steps.at + 1, d->steps.n - 1)
        if (for_baseline)
            writer_row(w, TEXT("cause", step->cause.cause), TEXT("title", step->cause.title),
                       MS("blame_ms", step->cause.blame_ns),
                       MS_KNOWN("uncertainty_ms", step->cause.uncertainty_ns));
        else
            diagnosis_write_cause(w, r->graph, &step->cause);
    job_works_find(&works, r->graph);
    WRITER_ROWS_OF (w, "work", const struct job_work, work, works.at,
                    MIN(works.n, MOST_SAVED_WORKS))
        writer_row(w, TEXT("op", work->name), FIXED("times", work->times, 4),
                   FIXED("ms", work->ns / 1e6, 6));
    if (!for_baseline) {
        WRITER_ROWS_OF (w, "abstained", const struct dpro_abstained, a, v->abstained,
                        v->n_abstained)
            writer_row(w, TEXT("cause", a->cause), TEXT("title", a->title), TEXT("needs", a->needs),
                       MS("blame_ms", a->blame_ns));
        if (r->measures)
            measures_write_json(w, r->measures, r->trace);
        write_against(w, d);
        warnings_write_json(w, &d->warnings, 1);
    }
    writer_close(w, '}');
    array_fini(&d->steps);
}

void diagnosis_write_json(struct writer *w, const struct dpro_diagnose_report *report)
{
    write_object(w, report, false);
}

void diagnosis_write(struct writer *w, const void *report)
{
    diagnosis_write_json(w, report);
    writer_text(w, "\n");
}

static void write_baseline(struct writer *w, const void *report)
{
    write_object(w, report, true);
    writer_text(w, "\n");
}

REPORT(dpro_diagnose_json, dpro_diagnose_report, diagnosis_write)

int dpro_diagnose_save(const struct dpro_diagnose_report *report, const char *path,
                       struct dpro_error *err)
{
    return writer_write_path(path, false, write_baseline, report, err);
}

static void write_text(struct writer *w, const void *report)
{
    struct diagnosis_facts d;
    diagnosis_find(&d, report);
    if (d.r->against) {
        struct against_facts facts;
        against_find_facts(&facts, d.r->against->a, d.r->against->b);
        table_escaped(w, "A", 9, d.r->against->a_name);
        table_escaped(w, "B", 9, d.r->against->b_name);
        against_write_verdict(w, &facts);
        against_write_text(w, d.r->against);
        writer_text(w, "\nWhy B takes as long as it does\n");
    }
    table_escaped(w, "Verdict", INDENT, d.verdict.text);
    if (d.r->baseline)
        write_change(w, &d);
    write_steps(w, &d);
    EACH (const struct diagnosis_step, step, d.steps)
        if (step->cause.order > 0)
            write_cause(w, &d, step);
    write_abstained(w, &d);
    if (d.view->n_iterations == 1)
        writer_text(w, "\n  Of one iteration there are no intervals.\n");
    if (d.r->measures)
        measures_write_text(w, d.r->measures);
    straggler_write_text(w, d.r->trace);
    warnings_write_text(w, &d.warnings, 1);
    array_fini(&d.steps);
}

REPORT(dpro_diagnose_text, dpro_diagnose_report, write_text)
