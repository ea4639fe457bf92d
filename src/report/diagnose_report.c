/* A diagnosis as text and as JSON (dpro.diagnose/1; keys are never renamed or dropped). */
#include <dpro/report.h>

#include "report/measures_report.h"
#include "report/straggler_report.h"
#include "report/table.h"
#include "report/warnings.h"
#include "report/words.h"

enum { TEXT_PARTS = 4 };

/* What the replay does not explain: less than 0 where the job is faster than its profile. */
static int64_t unexplained_of(const struct dpro_diagnose_report *r)
{
    return r->job.ns - dpro_diagnosis_view(r->diagnosis)->explained_ns;
}

static struct warnings warnings_of(const struct dpro_diagnose_report *r)
{
    return (struct warnings){.trace = r->trace, .graph = r->graph};
}

/* ---- text ---- */

static void put_row(struct table *table, const struct dpro_diagnose_report *r, const char *what,
                    int64_t ns)
{
    table_cells(table, what);
    table_cell(table, "%s", TIME(ns));
    table_fixed(table, 100.0 * (double)ns / (double)MAX(r->job.ns, 1), 1, "%");
}

static void put_causes(struct writer *w, const struct dpro_diagnose_report *r)
{
    const struct dpro_diagnosis_view *v = dpro_diagnosis_view(r->diagnosis);
    struct table table = {.n_cols = 6, .left = {true}};
    table_cells(&table, "Cause", "Blame", "Share", "+-", "Alone", "In order");
    put_row(&table, r, "ideal", v->ideal_ns);
    table_cells(&table, "", "", "");
    EACH_OF (const struct dpro_cause, cause, v->causes, v->n_causes) {
        put_row(&table, r, cause->title, cause->blame_ns);
        table_cell(&table, "%s", cause->uncertainty_ns < 0 ? "?" : TIME(cause->uncertainty_ns));
        table_cell(&table, "%s", TIME(cause->alone_ns));
        table_cell(&table, "%u. %s", cause->order, TIME(cause->in_order_ns));
    }
    if (v->small_ns != 0) {
        put_row(&table, r, "small or unsure", v->small_ns);
        table_cells(&table, "", "", "");
    }
    if (unexplained_of(r) != 0) {
        put_row(&table, r, "not explained by the replay", unexplained_of(r));
        table_cells(&table, "", "", "");
    }
    put_row(&table, r, "iteration", r->job.ns);
    table_cells(&table, "", "", "");
    table_write(w, &table);
}

static void put_cause(struct writer *w, const struct dpro_cause *cause)
{
    struct words parts = {.n = 0};
    table_paragraph(w, "", 0, "\n%s: %s", cause->title, TIME(cause->blame_ns));
    for (uint32_t i = 0; i < cause->n_parts && i < TEXT_PARTS; i++)
        words_add(&parts, ", ", "%s %s", cause->parts[i].what, TIME(cause->parts[i].blame_ns));
    if (cause->n_parts > TEXT_PARTS)
        words_add(&parts, ", ", "%u more", cause->n_parts - TEXT_PARTS);
    if (parts.n > 0)
        table_escaped(w, "  ", 2, parts.text);
    if (cause->next_step)
        table_escaped(w, "  ", 2, cause->next_step);
    if (cause->command)
        table_paragraph(w, "  ", 2, "%s: %s less", cause->command, TIME(cause->command_gain_ns));
}

static void write_text(struct writer *w, const void *arg)
{
    const struct dpro_diagnose_report *r = arg;
    const struct dpro_diagnosis_view *v = dpro_diagnosis_view(r->diagnosis);
    struct warnings warnings = warnings_of(r);
    put_causes(w, r);
    EACH_OF (const struct dpro_cause, cause, v->causes, v->n_causes)
        put_cause(w, cause);
    EACH_OF (const struct dpro_abstained, a, v->abstained, v->n_abstained)
        if (a->needs)
            table_paragraph(w, "", 2, "\nCan't be told: %s. %s", a->title, a->needs);
    if (v->n_iterations == 1)
        writer_text(w, "\nOf one iteration there are no intervals.\n");
    if (r->measures)
        measures_write_text(w, r->measures);
    straggler_write_text(w, r->trace);
    warnings_write_text(w, &warnings, 1);
}

/* ---- JSON ---- */

static void put_json_cause(struct writer *w, const struct dpro_diagnose_report *r,
                           const struct dpro_cause *cause)
{
    writer_item(w);
    writer_fields(w, TEXT("cause", cause->cause), TEXT("title", cause->title),
                  MS("blame_ms", cause->blame_ns),
                  MS_KNOWN("uncertainty_ms", cause->uncertainty_ns),
                  MS_IF("alone_ms", cause->order > 0, cause->alone_ns),
                  MS_IF("in_order_ms", cause->order > 0, cause->in_order_ns),
                  INT_IF("order", cause->order > 0, cause->order));
    writer_key(w, "ranks");
    writer_json_ints(w, cause->ranks, cause->n_ranks);
    writer_begin(w, "iterations", '[');
    EACH_OF (const int64_t, number, cause->iterations, cause->n_iterations)
        writer_json_int(w, *number);
    writer_close(w, ']');
    writer_begin(w, "parts", '[');
    EACH_OF (const struct dpro_cause_part, part, cause->parts, cause->n_parts)
        writer_object(w, TEXT("what", part->what), MS("blame_ms", part->blame_ns));
    writer_close(w, ']');
    writer_begin(w, "evidence", '[');
    EACH_OF (const struct dpro_evidence, e, cause->evidence, cause->n_evidence)
        writer_object(w, TEXT("op", dpro_graph_op(r->graph, e->op).name), INT("id", e->op),
                      INT("rank", e->rank), INT_IF("iteration", e->iteration >= 0, e->iteration),
                      MS("start_ms", e->start_ns), MS("ms", e->ns));
    writer_close(w, ']');
    writer_fields(w, TEXT("next_step", cause->next_step), TEXT("command", cause->command),
                  MS_IF("command_gain_ms", cause->command, cause->command_gain_ns));
    writer_close(w, '}');
}

/* With rows for what no cause is told of, so that ideal and blames add up to the iteration. */
static void put_json_causes(struct writer *w, const struct dpro_diagnose_report *r)
{
    const struct dpro_diagnosis_view *v = dpro_diagnosis_view(r->diagnosis);
    struct dpro_cause small = {.cause = "small_or_unsure",
                               .title = "causes that are small or unsure",
                               .blame_ns = v->small_ns,
                               .uncertainty_ns = -1};
    struct dpro_cause rest = {.cause = "not_explained",
                              .title = "what the replay does not explain",
                              .blame_ns = unexplained_of(r),
                              .uncertainty_ns = -1};
    writer_section(w, "causes", '[');
    EACH_OF (const struct dpro_cause, cause, v->causes, v->n_causes)
        put_json_cause(w, r, cause);
    if (small.blame_ns != 0)
        put_json_cause(w, r, &small);
    if (rest.blame_ns != 0)
        put_json_cause(w, r, &rest);
    writer_close(w, ']');
}

static void write_json(struct writer *w, const void *arg)
{
    const struct dpro_diagnose_report *r = arg;
    const struct dpro_diagnosis_view *v = dpro_diagnosis_view(r->diagnosis);
    struct warnings warnings = warnings_of(r);
    writer_open(w, '{');
    writer_fields(w, TEXT("schema", "dpro.diagnose/1"), TEXT("dpro_version", dpro_version()),
                  MS("iteration_ms", r->job.ns), MS("iteration_low_ms", r->job.low_ns),
                  MS("iteration_high_ms", r->job.high_ns),
                  TEXT("iteration_source", dpro_job_source_name(r->job.source)),
                  MS("ideal_ms", v->ideal_ns), MS("explained_ms", v->explained_ns),
                  MS("profiler_ms", r->profiler_ns), INT("n_iterations", v->n_iterations),
                  BOOL("sampled", v->is_sampled), INT("replays", v->n_replays));
    put_json_causes(w, r);
    writer_section(w, "abstained", '[');
    EACH_OF (const struct dpro_abstained, a, v->abstained, v->n_abstained)
        writer_row(w, TEXT("cause", a->cause), TEXT("title", a->title), TEXT("needs", a->needs),
                   MS("blame_ms", a->blame_ns));
    writer_close(w, ']');
    if (r->measures)
        measures_write_json(w, r->measures, r->trace);
    warnings_write_json(w, &warnings, 1);
    writer_close(w, '}');
    writer_text(w, "\n");
}

int dpro_diagnose_text(const struct dpro_diagnose_report *report, FILE *out, struct dpro_error *err)
{
    return WITHIN_SCOPE(dpro_error_nomem(err), writer_write_file(out, write_text, report, err));
}

int dpro_diagnose_json(const struct dpro_diagnose_report *report, FILE *out, struct dpro_error *err)
{
    return WITHIN_SCOPE(dpro_error_nomem(err), writer_write_file(out, write_json, report, err));
}
