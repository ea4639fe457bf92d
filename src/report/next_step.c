/* The verdict's last line: what to do next. What a cause of lost time costs is worked out by the
 * diagnosis alone, which takes two or three times as long as a replay. */

#include "graph/graph.h"
#include "report/table.h"
#include "report/verdict.h"

static bool has_servers(const struct dpro_graph *graph)
{
    for (uint32_t op = 0; op < dpro_graph_n_ops(graph); op++) {
        enum dpro_op_kind kind = dpro_graph_op(graph, op).kind;
        if (kind == DPRO_OP_PUSH || kind == DPRO_OP_PULL)
            return true;
    }
    return false;
}

/* Ranks of the same collectives take the same time for an iteration. Where they don't, one of them
 * was recorded in part, and the mean of them is that of no rank. With servers each rank may go at
 * its own pace. */
static bool say_unlike(const struct report_facts *f, struct verdict_line *line)
{
    const struct dpro_rank_time *least = NULL, *most = NULL;
    for (uint32_t r = 0; r < f->n_ranks; r++) {
        const struct dpro_rank_time *t = &f->ranks[r].time;
        least = !least || t->iteration_ns < least->iteration_ns ? t : least;
        most = !most || t->iteration_ns > most->iteration_ns ? t : most;
    }
    if (!most || !f->communicates || most->iteration_ns / 3 <= least->iteration_ns / 2 ||
        has_servers(f->report->graph))
        return false;
    line_say(
        line,
        "record again, or leave a rank out: ranks that communicate take the same time for an "
        "iteration, but rank %d takes %s and rank %d %s, so one of their recordings is incomplete; "
        "see the warnings",
        least->rank, TIME(least->iteration_ns), most->rank, TIME(most->iteration_ns));
    return true;
}

/* What stands between the numbers and acting on them; false: nothing. */
static bool say_doubt(const struct report_facts *f, struct verdict_line *line)
{
    const struct dpro_validation *v = &f->validation;
    uint32_t world = f->world_size;
    if (f->lacks_gpu)
        line_say(line, "record again: %s", f->lacks_gpu);
    else if (world > 1 && !f->communicates)
        line_say(line, "%s: no communication was recognised in most iterations%s",
                 f->seldom ? "record otherwise" : "find out first what ranks exchange",
                 f->seldom ?: ", so it counts as computation here");
    else if (say_unlike(f, line))
        return true;
    else if (facts_pct(f->apart_ns, f->predicted_ns) >= 5)
        line_say(
            line,
            "record 10 iterations: in this single one the ranks start up to %s apart, which shows "
            "as gaps and waiting",
            TIME(f->apart_ns));
    else if (!f->comparable || (f->error_pct <= 10 && f->error_pct >= -10))
        return false;
    else
        line_say(line, "do not act on this yet: the prediction is %s %% off%s", PCT(f->error_pct),
                 v->n > 0 ? "" : "; record 10 iterations or more");
    return true;
}

/* What computes longest: on the GPUs, critical or not; else of the critical ops. */
static const char *find_dearest(const struct report_facts *f, int64_t *ns)
{
    *ns = f->busiest_ns;
    if (f->busiest)
        return f->busiest;
    for (uint32_t i = 0; i < f->n_names; i++)
        if (f->names[i].kind <= DPRO_OP_UPDATE) {
            *ns = f->names[i].dur_ns;
            return f->names[i].name;
        }
    return NULL;
}

static void say_dearest(const struct report_facts *f, struct verdict_line *line, const char *before)
{
    char short_name[256];
    int64_t ns;
    const char *name = find_dearest(f, &ns);
    if (!name)
        return;
    columns_shorten(short_name, sizeof short_name, name, 36);
    line_say(line, "%s%s (%s)", before, short_name, TIME(ns));
}

/* Memory that grows ends a job, whatever else is slow, but not if a thousand steps fit. */
static void say_growth(const struct report_facts *f, struct verdict_line *line)
{
    enum { LEAST_SHARE = 1000 }; /* of the peak, in each iteration */
    uint64_t most = 0;
    for (uint32_t i = 0; i < f->memory.n_ranks; i++) {
        const struct dpro_rank_memory *m = &f->memory.ranks[i].memory;
        if (m->growth_bytes >= m->peak_bytes / LEAST_SHARE)
            most = MAX(most, m->growth_bytes);
    }
    if (most > 0)
        line_say(line, "find out what keeps %s more memory in each iteration (a leak?); ",
                 BYTES_TEXT(most));
}

/* The cause that most is lost to; computation first where it takes four times as long. */
static void say_diagnosed(const struct report_facts *f, const struct dpro_diagnosis_view *view,
                          struct verdict_line *line)
{
    enum { MOST_SAVED = 4 }; /* a quarter of computation is much to save */
    const struct dpro_cause *most = view->n_causes > 0 ? &view->causes[0] : NULL;
    bool computes = !most || most->blame_ns < view->ideal_ns / MOST_SAVED;
    if (computes) {
        line_say(line, "computation dominates: make it cheaper");
        say_dearest(f, line, ", first ");
    }
    if (most)
        line_say(line, "%s%s (%s): %s", computes ? "; then " : "", most->title,
                 TIME(most->blame_ns), most->next_step ?: "see the diagnosis");
}

void verdict_next_step(const struct report_facts *f, struct verdict_line *line)
{
    const struct dpro_diagnose_report *diagnosed = f->report->diagnosis;
    line->title = "Next step";
    say_growth(f, line);
    if (say_doubt(f, line))
        return;
    if (!f->any_computes) {
        line_say(line,
                 "record computation too, with the framework's own profiler or 'dpro profile': "
                 "without it the effect of communication is unknown");
    } else if (diagnosed) {
        say_diagnosed(f, dpro_diagnosis_view(diagnosed->diagnosis), line);
    } else {
        line_say(
            line,
            "'dpro diagnose' says what each cause of lost time costs%s, and what to do about it",
            f->what_if ? " without the change" : "");
        say_dearest(f, line, "; what computes longest is ");
    }
}
