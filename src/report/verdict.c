/* The verdict: whether the prediction is to be trusted, what the iteration consists of, who waits,
 * what idles, and what to do next. What a cause of lost time costs is worked out by the diagnosis
 * alone, which takes two or three times as long as a replay. */

#include "base/utf8.h"
#include "graph/graph.h"
#include "report/facts.h"
#include "report/model_report.h"
#include "report/table.h"
#include "report/words.h"

#define SHARE(part, whole) NUMBER(facts_pct(part, whole), 0)
/* Percent with the digits a reader needs. */
#define PCT(value) NUMBER(value, (value) > -9.95 && (value) < 9.95 ? 1 : 0)

/* Appends to the line; what does not fit is cut. */
static __attribute__((format(printf, 2, 3))) void line_say(struct verdict_line *line,
                                                           const char *format, ...)
{
    char raw[sizeof line->text];
    size_t used = strlen(line->text);
    va_list args;
    va_start(args, format);
    vsnprintf(raw, sizeof raw, format, args);
    va_end(args);
    utf8_escape(line->text + used, sizeof line->text - used, raw, strlen(raw));
}

static void say_change(const struct report_facts *f, struct verdict_line *line)
{
    int64_t change = f->changed_ns - f->job.ns;
    line_say(line, "%s with the change", TIME(f->changed_ns));
    if (f->measured_ns < 0)
        line_say(line, "; nothing was measured to compare it with");
    else if (change == 0)
        line_say(line, ", as without it");
    else
        line_say(line, ", %s without: %s (%s %%) %s", TIME(f->job.ns), TIME(llabs(change)),
                 PCT(facts_pct(llabs(change), f->job.ns)), change < 0 ? "faster" : "slower");
}

static void say_iteration(const struct report_facts *f, struct verdict_line *line)
{
    const struct dpro_validation *v = &f->validation;
    struct words job = {.n = 0};
    line->title = f->report->what_if ? "What if" : "Iteration";
    if (f->report->what_if) {
        say_change(f, line);
        return;
    }
    if (f->measured_ns < 0) {
        line_say(line, "%s predicted; nothing was measured to compare it with",
                 TIME(f->predicted_ns));
        return;
    }
    job_words(&job, &f->job);
    line_say(line, "%s", job.text);
    if (f->job.source == DPRO_JOB_REPLAY)
        line_say(line, ", which took %s", TIME(f->report->profiler_ns));
    if (f->job.source == DPRO_JOB_OWN_STEPS && fabs(f->unprofiled_median_error_pct) > 10)
        line_say(line, ", which the replay contradicts (%s%s %%)",
                 f->unprofiled_median_error_pct > 0 ? "+" : "",
                 PCT(f->unprofiled_median_error_pct));
    if (f->doubt.n_paused > 0 && f->doubt.noise > f->doubt.machine)
        line_say(line,
                 "; the interval is wide because ranks pause in %u of %u iterations, %s on average",
                 f->doubt.n_paused, f->job.n, TIME(f->doubt.paused_ns));
    line_say(line, "; the replay is %s%s %% off the recorded iterations, ",
             f->error_pct >= 0.05 ? "+" : "", PCT(f->error_pct));
    if (v->n > 0)
        line_say(line, "left-out ones %s %% off", PCT(v->mean_abs_error_pct));
    else
        line_say(line, "not self-validated");
}

/* By the longest of them, where that is nearly all. */
static void say_calls(const struct report_facts *f, struct verdict_line *line)
{
    const struct name_fact *most = f->names;
    char name[64];
    while (most < f->names + f->n_names && most->kind != DPRO_OP_LAUNCH)
        most++;
    if (f->has_gpu && most < f->names + f->n_names &&
        most->dur_ns * 5 >= f->kind_ns[DPRO_OP_LAUNCH] * 4) {
        columns_shorten(name, sizeof name, most->name, 36);
        line_say(line, "%s (%s)", call_class_words(call_classify(most->name)), name);
    } else {
        line_say(line, "%s", facts_kind_words(f, DPRO_OP_LAUNCH));
    }
    if (f->has_gpu && f->any_computes &&
        facts_pct(f->kind_ns[DPRO_OP_LAUNCH], f->replay->critical_ns) >= 30 &&
        facts_pct(f->idle_ns, f->predicted_ns) < 10)
        line_say(line, ", while the GPU is busy");
}

static void say_path(const struct report_facts *f, struct verdict_line *line)
{
    line->title = "Critical path";
    if (f->g->lacks_gpu) {
        line_say(line, "unknown: work of GPUs was not recorded");
        return;
    }
    for (int i = 0; i < f->n_kinds && i < 3; i++) {
        int kind = f->kinds[i];
        int64_t ns = f->kind_ns[kind];
        if (i > 0 && facts_pct(ns, f->replay->critical_ns) < 2)
            break;
        line_say(line, "%s%s %% ", i > 0 ? ", " : "", SHARE(ns, f->replay->critical_ns));
        if (kind == DPRO_OP_LAUNCH)
            say_calls(f, line);
        else
            line_say(line, "%s", kind == PATH_GAP ? "gaps between ops" : facts_kind_words(f, kind));
    }
    if (line->text[0] == '\0')
        line_say(line, "empty: no op takes time on it");
}

/* Communication that takes next to nothing from the iteration. */
static void say_hidden(const struct report_facts *f, struct verdict_line *line, int64_t lost_ns)
{
    int64_t most_ns = 0, iteration_ns = 0;
    for (uint32_t r = 0; r < f->n_ranks; r++) {
        const struct dpro_rank_time *t = &f->ranks[r].time;
        if (t->communication_ns + t->wait_for_peers_ns <= most_ns)
            continue;
        most_ns = t->communication_ns + t->wait_for_peers_ns;
        iteration_ns = t->iteration_ns;
    }
    if (lost_ns == 0)
        line_say(line, "%s %s (%s %%), hidden behind computation%s",
                 f->n_ranks > 1 ? "at most" : "takes", TIME(most_ns),
                 PCT(facts_pct(most_ns, iteration_ns)), f->n_ranks > 1 ? " on every rank" : "");
    else
        line_say(line, "little to win: %s%s (%s %%), of which %s are exposed",
                 f->n_ranks > 1 ? "at most " : "", TIME(most_ns),
                 PCT(facts_pct(most_ns, iteration_ns)), TIME(lost_ns));
}

static void line_ranks(const struct report_facts *f, const uint32_t *ranks, uint32_t n,
                       struct verdict_line *line)
{
    enum { MOST = 6 };
    uint32_t n_named = n > MOST ? MOST : n;
    line_say(line, n > 1 ? "ranks " : "rank ");
    for (uint32_t i = 0; i < n_named; i++)
        line_say(line, "%s%d",
                 i == 0                          ? ""
                 : i + 1 == n_named && n <= MOST ? " and "
                                                 : ", ",
                 f->ranks[ranks[i]].time.rank);
    if (n > MOST)
        line_say(line, " and %u others", n - MOST);
}

/* Ranks that compute longer than half of all by a share of the iteration that matters: what waits
 * for them may be hidden behind the others' own work. Stages of a pipeline differ anyway. */
static void say_slow(const struct report_facts *f, struct verdict_line *line)
{
    enum { LEAST_PCT = 5 };
    uint32_t n = f->n_ranks, n_slow = 0;
    int64_t least_ns = INT64_MAX;
    SCRATCH int64_t *computes_ns = mem_array(n + (size_t)1, sizeof *computes_ns);
    SCRATCH int64_t *sorted_ns = mem_array(n + (size_t)1, sizeof *sorted_ns);
    SCRATCH uint32_t *slow = mem_array(n + (size_t)1, sizeof *slow);
    for (uint32_t r = 0; r < n; r++) {
        const struct dpro_rank_time *t = &f->ranks[r].time;
        sorted_ns[r] = computes_ns[r] = t->forward_ns + t->backward_ns + t->update_ns;
    }
    int64_t usual_ns = select_i64(sorted_ns, n, (n - 1) / 2);
    for (uint32_t r = 0; r < n; r++)
        if (facts_pct(computes_ns[r] - usual_ns, f->predicted_ns) >= LEAST_PCT) {
            slow[n_slow++] = r;
            least_ns = MIN(least_ns, computes_ns[r]);
        }
    if (n_slow == 0 || f->parallel.pipeline.dimension != DPRO_NO_DIMENSION)
        return;
    line_say(line, "; ");
    line_ranks(f, slow, n_slow, line);
    line_say(line, " compute%s %s%s an iteration, others %s", n_slow > 1 ? "" : "s", TIME(least_ns),
             n_slow > 1 ? " or more" : "", TIME(usual_ns));
}

/* Which ranks the others wait for, by how much, in how many iterations; where none is a straggler,
 * if they wait for a share that matters. */
static void say_late(const struct report_facts *f, struct verdict_line *line)
{
    enum { MOST = 4 };
    const struct rank_fact *first = f->n_late > 0 ? &f->ranks[f->late[0]] : NULL;
    if (f->n_stragglers > 0) {
        int64_t later_ns = first->later_ns;
        bool always = f->n_stragglers > 1 || first->n_late == f->replay->n_iterations;
        for (uint32_t i = 1; i < f->n_stragglers; i++)
            later_ns = MIN(later_ns, f->ranks[f->late[i]].later_ns);
        line_say(line, "; straggler%s: ", PLURAL(f->n_stragglers));
        line_ranks(f, f->late, f->n_stragglers, line);
        line_say(line, ", late");
        if (!always)
            line_say(line, " in %u of %u iterations,", first->n_late, f->replay->n_iterations);
        line_say(line, " by %s%s on average", TIME(later_ns),
                 f->n_stragglers > 1 ? " or more" : "");
    } else if (f->n_late > 0 && facts_pct(f->wait_ns, f->predicted_ns) >= 5) {
        line_say(line, "; no constant straggler, of %u iterations: ", f->replay->n_iterations);
        for (uint32_t i = 0; i < f->n_late && i < MOST; i++)
            line_say(line, "%srank %d in %u", i > 0 ? ", " : "", f->ranks[f->late[i]].time.rank,
                     f->ranks[f->late[i]].n_late);
        if (f->n_late > MOST)
            line_say(line, " and %u others", f->n_late - MOST);
    } else if (f->n_ranks > 1) {
        say_slow(f, line);
    }
}

/* How much of the communication computation does not hide, where it is worst. */
static void say_exposed(const struct report_facts *f, struct verdict_line *line)
{
    const struct rank_fact *worst = &f->ranks[f->most_exposed];
    const struct dpro_rank_time *t = &worst->time;
    int64_t lost = t->exposed_communication_ns + t->wait_for_peers_ns;
    if (f->any_computes && facts_pct(lost, t->iteration_ns) < 1) {
        say_hidden(f, line, lost);
        return;
    }
    line_say(line, "%srank %d %s %s%s", f->n_ranks > 1 ? "worst " : "", t->rank,
             f->n_ranks > 1 ? "with" : "has", TIME(t->exposed_communication_ns),
             worst->computes ? " exposed" : "");
    if (t->wait_for_peers_ns > 0)
        line_say(line, " and %s waiting", TIME(t->wait_for_peers_ns));
    line_say(line, " (%s %%)", SHARE(lost, t->iteration_ns));
    if (!worst->computes)
        line_say(line, "; no computation was recorded, so the hidden part is unknown");
    say_late(f, line);
}

static void say_communication(const struct report_facts *f, struct verdict_line *line)
{
    uint32_t world = f->world_size;
    line->title = "Communication";
    if (f->g->lacks_gpu)
        line_say(line, "unknown: work of GPUs was not recorded");
    else if (!f->communicates && world > 1)
        line_say(
            line,
            "none was recognised in most iterations, but the job has %u ranks: their communication "
            "counts as computation or idle time",
            world);
    else if (!f->communicates)
        line_say(line, "none in this trace");
    else
        say_exposed(f, line);
    if (f->g->n_blind > 0 && !f->g->lacks_gpu)
        line_say(line, "; the GPU was recorded on %u of %u ranks, not on rank %d%s", f->n_ranks,
                 world, f->g->blind[0], f->g->n_blind > 1 ? " and others" : "");
    else if (world > f->n_ranks)
        line_say(line, "; %u of %u ranks recorded", f->n_ranks, world);
    if (f->g->n_cut > 0)
        line_say(line, "; the file of rank %d%s is cut off", f->g->cut[0],
                 f->g->n_cut > 1 ? " and those of others" : "");
}

/* A GPU that has work at all times while its CPU is ahead is what the job hangs on, unless it
 * mostly waits for communication. */
static void say_ahead(const struct report_facts *f, struct verdict_line *line)
{
    if (f->g->pace.n_ranks == 0)
        return;
    line_say(line, "; the CPU is %s ahead of the GPU", TIME(f->g->pace.ahead_ns));
    if (f->g->pace.n_ranks < f->n_ranks)
        line_say(line, " on %u of %u ranks", f->g->pace.n_ranks, f->n_ranks);
    if (f->g->pace.n_ranks == f->n_ranks &&
        facts_pct(f->idle_ns + f->exposed_ns + f->wait_ns, f->predicted_ns) < 10)
        line_say(line, ": GPU-bound");
}

static void say_idle(const struct report_facts *f, struct verdict_line *line)
{
    line->title = "Idle";
    if (f->n_ranks == 0) {
        line_say(line, "no rank");
        return;
    }
    if (!f->any_computes || f->g->lacks_gpu) {
        line_say(line, "unknown: %s",
                 f->any_computes ? "work of GPUs was not recorded" : "no computation was recorded");
        return;
    }
    const struct dpro_rank_time *t = &f->ranks[f->most_idle].time;
    if (facts_pct(t->idle_ns, t->iteration_ns) < 0.5) {
        line_say(line, "next to nothing");
        say_ahead(f, line);
        return;
    }
    if (f->world_size > 1)
        line_say(line, "rank %d%s ", t->rank, f->n_ranks > 1 ? " idles most," : " idles");
    line_say(line, "%s (%s %%)", TIME(t->idle_ns), SHARE(t->idle_ns, t->iteration_ns));
    if (facts_pct(f->ranks[f->most_idle].unmatched_ns, t->iteration_ns) >= 0.5)
        line_say(line, ", of which %s are GPU work that only some iterations have",
                 TIME(f->ranks[f->most_idle].unmatched_ns));
    /* the CPU's share says nothing of a job whose GPUs are busy: its calls wait for them */
    if (f->path_cpu_ns > 0 && f->has_gpu && facts_pct(f->idle_ns, f->predicted_ns) >= 10)
        line_say(line, "; critical path: %s %% CPU work, %s %% gaps",
                 SHARE(f->path_cpu_ns, f->replay->critical_ns),
                 SHARE(f->kind_ns[PATH_GAP], f->replay->critical_ns));
    say_ahead(f, line);
}

/* ---- what to do next ---- */

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
        has_servers(f->g))
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
    if (f->g->lacks_gpu)
        line_say(line, "record again: %s", f->g->lacks_gpu);
    else if (world > 1 && !f->communicates)
        line_say(line, "%sno communication was recognised in most iterations%s",
                 f->g->seldom ? "" : "find out first what ranks exchange: ",
                 f->g->seldom ?: ", so it counts as computation here");
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

/* Whether that is half of the critical path or more. */
static bool is_mostly_computing(const struct report_facts *f)
{
    int64_t ns = 0;
    for (int kind = 0; kind <= DPRO_OP_UPDATE; kind++)
        ns += f->kind_ns[kind];
    return facts_pct(ns, f->replay->critical_ns) >= 50;
}

static void say_next_step(const struct report_facts *f, struct verdict_line *line)
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
            f->report->what_if ? " without the change" : "");
        if (is_mostly_computing(f))
            say_dearest(f, line, "; what computes longest is ");
    }
}

void verdict_write(struct report_facts *f)
{
    say_iteration(f, &f->verdict[0]);
    say_path(f, &f->verdict[1]);
    say_communication(f, &f->verdict[2]);
    say_idle(f, &f->verdict[3]);
    say_next_step(f, &f->verdict[4]);
}

void facts_init(struct report_facts *f, const struct dpro_report *report)
{
    facts_sum(f, report);
    verdict_write(f);
}
