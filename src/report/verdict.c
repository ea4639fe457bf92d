/* report/verdict.c: five lines for a reader in a hurry: is the prediction to be trusted, what the
 * iteration consists of, who waits, what idles, and what to do next. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "report/columns.h"
#include "report/facts.h"

static void say(struct verdict_line *line, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void say(struct verdict_line *line, const char *format, ...)
{
    char raw[sizeof line->text];
    size_t used = strlen(line->text);
    va_list args;
    va_start(args, format);
    vsnprintf(raw, sizeof raw, format, args);
    va_end(args);
    utf8_escape(line->text + used, sizeof line->text - used, raw, strlen(raw));
}

static char *pct(char out[TIME_TEXT], double value)
{
    if (writer_format_fixed(out, TIME_TEXT, value, value > -9.95 && value < 9.95 ? 1 : 0) < 0)
        strcpy(out, "?");
    return out;
}

static char *share(char out[TIME_TEXT], int64_t part, int64_t whole)
{
    writer_format_fixed(out, TIME_TEXT, facts_pct(part, whole), 0);
    return out;
}

static void say_iteration(const struct report_facts *f, struct verdict_line *line)
{
    char a[TIME_TEXT], b[TIME_TEXT], c[TIME_TEXT];
    const struct dpro_validation *v = f->report->validation;
    line->title = f->report->what_if ? "What if" : "Iteration";
    say(line, "%s predicted", facts_time(a, f->predicted_ns));
    if (f->report->profiler_op_ns)
        say(line, " without the profiler, which took %s", facts_time(a, f->report->profiler_ns));
    if (f->measured_ns < 0) {
        say(line, "; nothing was measured to compare it with");
        return;
    }
    if (f->report->what_if) {
        int64_t change = f->predicted_ns + f->report->profiler_ns - f->measured_ns;
        say(line, " with the change, %s measured without: %s (%s %%) %s",
            facts_time(a, f->measured_ns), facts_time(b, llabs(change)),
            pct(c, change < 0 ? -f->change_pct : f->change_pct), change <= 0 ? "faster" : "slower");
        return;
    }
    say(line, ", %s measured (%s%s %%); ", facts_time(a, f->measured_ns),
        f->error_pct >= 0.05 ? "+" : "", pct(b, f->error_pct));
    if (f->wire_profiler_ns > 0)
        say(line, "without the profiler about %s; ", facts_time(c, f->wire_predicted_ns));
    if (v && v->n > 0)
        say(line, "left-out iterations %s %% off", pct(c, v->mean_abs_error_pct));
    else
        say(line, "not self-validated");
}

static void say_path(const struct report_facts *f, struct verdict_line *line)
{
    line->title = "Critical path";
    for (int i = 0; i < f->n_kinds && i < 3; i++) {
        int kind = f->kinds[i];
        int64_t ns = f->kind_ns[kind];
        char text[TIME_TEXT];
        if (i > 0 && facts_pct(ns, f->path_ns) < 2)
            break;
        say(line, "%s%s %% %s", i > 0 ? ", " : "", share(text, ns, f->path_ns),
            kind == PATH_GAP ? "gaps between ops" : facts_kind_words(kind));
        if (kind == DPRO_OP_LAUNCH && facts_pct(ns, f->path_ns) >= 30 &&
            facts_pct(f->idle_ns, f->predicted_ns) < 10)
            say(line, " (waiting for a busy GPU)");
    }
    if (line->text[0] == '\0')
        say(line, "empty: no op holds the iteration up");
}

static void say_communication(const struct report_facts *f, struct verdict_line *line)
{
    char a[TIME_TEXT], b[TIME_TEXT], c[TIME_TEXT];
    line->title = "Communication";
    int64_t all = 0;
    for (uint32_t r = 0; r < f->n_ranks; r++)
        all += f->ranks[r].time.communication_ns + f->ranks[r].time.wait_for_peers_ns;
    if (all == 0) {
        say(line, "none in this trace");
        return;
    }
    const struct dpro_rank_time *t = &f->ranks[f->most_exposed].time;
    int64_t lost = t->exposed_communication_ns + t->wait_for_peers_ns;
    if (facts_pct(lost, t->iteration_ns) < 1) {
        say(line, "hidden behind computation on every rank");
        return;
    }
    say(line, "%srank %d %s %s exposed", f->n_ranks > 1 ? "worst " : "", t->rank,
        f->n_ranks > 1 ? "with" : "has", facts_time(a, t->exposed_communication_ns));
    if (t->wait_for_peers_ns > 0)
        say(line, " and %s waiting", facts_time(b, t->wait_for_peers_ns));
    say(line, " (%s %%)", share(c, lost, t->iteration_ns));
    if (f->straggler >= 0 && facts_pct(f->straggler_ns / (int64_t)f->n_ranks, f->predicted_ns) >= 1)
        say(line, "; straggler: rank %d", f->straggler);
    if (dpro_trace_world_size(f->report->trace) > (int)f->n_ranks)
        say(line, "; %u of %d ranks recorded", f->n_ranks, dpro_trace_world_size(f->report->trace));
}

static void say_idle(const struct report_facts *f, struct verdict_line *line)
{
    char a[TIME_TEXT], b[TIME_TEXT], c[TIME_TEXT];
    line->title = "Idle";
    if (f->n_ranks == 0) {
        say(line, "no rank");
        return;
    }
    const struct dpro_rank_time *t = &f->ranks[f->most_idle].time;
    if (facts_pct(t->idle_ns, t->iteration_ns) < 0.5) {
        say(line, "next to nothing");
        return;
    }
    say(line, "rank %d%s %s (%s %%)", t->rank, f->n_ranks > 1 ? " idles most," : " idles",
        facts_time(a, t->idle_ns), share(b, t->idle_ns, t->iteration_ns));
    /* the CPU's share says nothing of a job whose GPUs are busy: its calls wait for them */
    if (f->has_gpu && facts_pct(f->idle_ns, f->predicted_ns) >= 10)
        say(line, "; CPU work is %s %% of the critical path%s",
            share(c, f->path_cpu_ns, f->path_ns), facts_launch_bound(f) ? ": launch-bound" : "");
}

/* Where the straggler differs most from the middle of the ranks. */
static const char *straggler_reason(const struct report_facts *f, int64_t *excess)
{
    static const char *const words[] = {"in forward", "in backward", "in the update", "on input",
                                        "idling"};
    int64_t own[5] = {0}, middle[5] = {0};
    for (uint32_t r = 0; r < f->n_ranks; r++) {
        const struct dpro_rank_time *t = &f->ranks[r].time;
        const int64_t parts[5] = {t->forward_ns, t->backward_ns, t->update_ns, t->input_ns,
                                  t->idle_ns};
        for (int p = 0; p < 5; p++) {
            if (t->rank == f->straggler)
                own[p] = parts[p];
            else
                middle[p] += parts[p] / (int64_t)(f->n_ranks - 1);
        }
    }
    int best = 0;
    for (int p = 1; p < 5; p++)
        if (own[p] - middle[p] > own[best] - middle[best])
            best = p;
    *excess = own[best] - middle[best];
    return words[best];
}

/* What stands between the numbers and acting on them; false: nothing. */
static bool say_doubt(const struct report_facts *f, struct verdict_line *line)
{
    char a[TIME_TEXT];
    const struct dpro_validation *v = f->report->validation;
    int world = dpro_trace_world_size(f->report->trace);
    if (facts_pct(f->apart_ns, f->predicted_ns) >= 5)
        say(line,
            "record 10 iterations: in this single one the ranks start up to %s apart, which shows "
            "as gaps and waiting",
            facts_time(a, f->apart_ns));
    else if (!f->comparable || (f->error_pct <= 10 && f->error_pct >= -10))
        return false;
    else if (world > (int)f->n_ranks)
        say(line, "record all %d ranks: with %u of them the prediction is %s %% off", world,
            f->n_ranks, pct(a, f->error_pct));
    else
        say(line, "do not act on this yet: it is %s %% off; %s%s", pct(a, f->error_pct),
            f->contradiction[0] ? f->contradiction : "no part of the graph stands out",
            v && v->n > 0 ? "" : "; record 10 iterations or more");
    return true;
}

static void say_cheaper(const struct report_facts *f, struct verdict_line *line)
{
    char a[TIME_TEXT], short_name[256];
    const char *name = f->busiest ? f->busiest : f->n_names > 0 ? f->names[0].name : NULL;
    if (!name) {
        say(line, "nothing stands out");
        return;
    }
    columns_shorten(short_name, sizeof short_name, name, 36);
    say(line, "computation dominates: make it cheaper, first %s (%s)", short_name,
        facts_time(a, f->busiest ? f->busiest_ns : f->names[0].dur_ns));
}

static void say_wait(const struct report_facts *f, struct verdict_line *line)
{
    char a[TIME_TEXT], b[TIME_TEXT];
    int world = dpro_trace_world_size(f->report->trace);
    int64_t excess;
    if (f->straggler >= 0 && f->n_ranks > 1) {
        const char *what = straggler_reason(f, &excess);
        if (facts_pct(excess, f->predicted_ns) >= 1)
            say(line, "find out why rank %d spends %s more %s; the others wait %s for it",
                f->straggler, facts_time(b, excess), what, facts_time(a, f->wait_ns));
        else
            say(line, "even out the ranks: they wait %s for each other, mostly for rank %d",
                facts_time(a, f->wait_ns), f->straggler);
    } else if (world > (int)f->n_ranks) {
        say(line, "record all %d ranks, to see which of them is waited for: %s", world,
            facts_time(a, f->wait_ns));
    } else {
        say(line, "even out the ranks: they wait %s for each other", facts_time(a, f->wait_ns));
    }
}

/* Between workers and servers, on the critical path: workers that take no part in it idle. */
static int64_t with_servers_ns(const struct report_facts *f)
{
    return f->kind_ns[DPRO_OP_PUSH] + f->kind_ns[DPRO_OP_PULL];
}

static void say_shrink(const struct report_facts *f, struct verdict_line *line)
{
    char a[TIME_TEXT];
    if (f->exposed_ns >= with_servers_ns(f))
        say(line, "hide or shrink communication: %s of it are exposed; ",
            facts_time(a, f->exposed_ns));
    else
        say(line,
            "hide or shrink communication: %s of the critical path are between workers and "
            "servers; ",
            facts_time(a, with_servers_ns(f)));
    if (with_servers_ns(f) > 0)
        say(line, "more servers, or what each of them holds, may win a part of that ('dpro "
                  "optimize' and 'dpro whatif --servers' say how much), faster links more");
    else
        say(line, "better buckets win a part of that ('dpro optimize' says how much at most), "
                  "compression and faster links more");
}

static void say_next(const struct report_facts *f, struct verdict_line *line)
{
    char a[TIME_TEXT], b[TIME_TEXT];
    const struct dpro_validation *v = f->report->validation;
    line->title = "Next step";
    if (say_doubt(f, line))
        return;
    int64_t most = f->exposed_ns > f->wait_ns ? f->exposed_ns : f->wait_ns;
    if (facts_pct(f->idle_ns, f->predicted_ns) >= 10) /* a little is in every job */
        most = f->idle_ns > most ? f->idle_ns : most;
    most = f->input_ns > most ? f->input_ns : most;
    if (facts_pct(most, f->predicted_ns) < 5)
        say_cheaper(f, line);
    else if (most == f->wait_ns)
        say_wait(f, line);
    else if (most == f->exposed_ns || (most == f->idle_ns && with_servers_ns(f) >= most))
        say_shrink(f, line);
    else if (most == f->input_ns)
        say(line, "load and copy input ahead of time: up to %s to win", facts_time(a, f->input_ns));
    else if (facts_launch_bound(f))
        say(line, "launch less: CUDA graphs, fused kernels or a larger batch; up to %s idle to win",
            facts_time(a, f->idle_ns));
    else
        say(line, "see in the timeline what runs while the ranks idle: up to %s to win",
            facts_time(a, f->idle_ns));
    if (!f->report->what_if && v && v->n > 0 && v->mean_abs_error_pct > 15) {
        int64_t least = INT64_MAX, longest = 0;
        for (uint32_t i = 0; i < f->n_measured; i++) {
            least = f->measured[i] < least ? f->measured[i] : least;
            longest = f->measured[i] > longest ? f->measured[i] : longest;
        }
        say(line, "; first see with --steps why iterations differ (%s to %s)", facts_time(a, least),
            facts_time(b, longest));
    }
}

void verdict_write(struct report_facts *f)
{
    say_iteration(f, &f->verdict[0]);
    say_path(f, &f->verdict[1]);
    say_communication(f, &f->verdict[2]);
    say_idle(f, &f->verdict[3]);
    say_next(f, &f->verdict[4]);
}
