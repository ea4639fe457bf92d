/* The five lines of the verdict: whether the prediction is to be trusted, what the iteration
 * consists of, who waits, what idles, and what to do next. */

#include "base/utf8.h"
#include "report/facts.h"
#include "report/model_report.h"
#include "report/table.h"
#include "report/words.h"

__attribute__((format(printf, 2, 3))) static void say(struct verdict_line *line, const char *format,
                                                      ...)
{
    char raw[sizeof line->text];
    size_t used = strlen(line->text);
    va_list args;
    va_start(args, format);
    vsnprintf(raw, sizeof raw, format, args);
    va_end(args);
    utf8_escape(line->text + used, sizeof line->text - used, raw, strlen(raw));
}

/* Percent with the digits a reader needs. */
static const char *pct(char out[NUMBER_TEXT], double value)
{
    return words_number(out, value, value > -9.95 && value < 9.95 ? 1 : 0);
}

#define PCT(value)         pct((char[NUMBER_TEXT]){""}, value)
#define SHARE(part, whole) NUMBER(facts_pct(part, whole), 0)

/* What the steps without the profiler say is taken, where the replay says otherwise. */
static bool is_contradicted(const struct report_facts *f)
{
    return f->job.source == DPRO_JOB_OWN_STEPS && fabs(f->unprofiled_median_error_pct) > 10;
}

static void say_change(const struct report_facts *f, struct verdict_line *line)
{
    int64_t change = f->changed_ns - f->job.ns;
    say(line, "%s with the change", TIME(f->changed_ns));
    if (f->measured_ns < 0)
        say(line, "; nothing was measured to compare it with");
    else if (change == 0)
        say(line, ", as without it");
    else
        say(line, ", %s without: %s (%s %%) %s", TIME(f->job.ns), TIME(llabs(change)),
            PCT(facts_pct(llabs(change), f->job.ns)), change < 0 ? "faster" : "slower");
}

static void say_iteration(const struct report_facts *f, struct verdict_line *line)
{
    const struct dpro_validation *v = &f->validation;
    struct words job = {.n = 0};
    line->title = f->what_if ? "What if" : "Iteration";
    if (f->what_if) {
        say_change(f, line);
        return;
    }
    if (f->measured_ns < 0) {
        say(line, "%s predicted; nothing was measured to compare it with", TIME(f->predicted_ns));
        return;
    }
    job_words(&job, &f->job);
    say(line, "%s", job.text);
    if (f->job.source == DPRO_JOB_REPLAY)
        say(line, ", which took %s", TIME(f->profiler.iteration_ns));
    if (is_contradicted(f))
        say(line, ", which the replay contradicts (%s%s %%)",
            f->unprofiled_median_error_pct > 0 ? "+" : "", PCT(f->unprofiled_median_error_pct));
    say(line, "; the replay is %s%s %% off the recorded iterations, ",
        f->error_pct >= 0.05 ? "+" : "", PCT(f->error_pct));
    if (v->n > 0)
        say(line, "left-out ones %s %% off", PCT(v->mean_abs_error_pct));
    else
        say(line, "not self-validated");
}

/* What CPU calls of the GPU's runtime are for, from `first` on, that take longest. */
static int longest_calls(const struct report_facts *f, int first)
{
    int most = first;
    for (int class = first; class < N_CALL_CLASSES; class ++)
        most = f->call_ns[class] > f->call_ns[most] ? class : most;
    return most;
}

static void say_calls(const struct report_facts *f, struct verdict_line *line)
{
    int most = longest_calls(f, 0);
    char name[64];
    if (f->call_name[most] && f->call_ns[most] * 5 >= f->kind_ns[DPRO_OP_LAUNCH] * 4) {
        columns_shorten(name, sizeof name, f->call_name[most], 36);
        say(line, "%s (%s)", call_class_words(most), name);
    } else {
        say(line, "%s", facts_kind_words(f, DPRO_OP_LAUNCH));
    }
    if (f->has_gpu && f->any_computes && facts_pct(f->kind_ns[DPRO_OP_LAUNCH], f->path_ns) >= 30 &&
        facts_pct(f->idle_ns, f->predicted_ns) < 10)
        say(line, ", while the GPU is busy");
}

static void say_path(const struct report_facts *f, struct verdict_line *line)
{
    line->title = "Critical path";
    if (f->lacks_gpu) {
        say(line, "unknown: work of GPUs was not recorded");
        return;
    }
    for (int i = 0; i < f->n_kinds && i < 3; i++) {
        int kind = f->kinds[i];
        int64_t ns = f->kind_ns[kind];
        if (i > 0 && facts_pct(ns, f->path_ns) < 2)
            break;
        say(line, "%s%s %% ", i > 0 ? ", " : "", SHARE(ns, f->path_ns));
        if (kind == DPRO_OP_LAUNCH)
            say_calls(f, line);
        else
            say(line, "%s", kind == PATH_GAP ? "gaps between ops" : facts_kind_words(f, kind));
    }
    if (line->text[0] == '\0')
        say(line, "empty: no op takes time on it");
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
        say(line, "%s %s (%s %%), hidden behind computation%s",
            f->n_ranks > 1 ? "at most" : "takes", TIME(most_ns),
            PCT(facts_pct(most_ns, iteration_ns)), f->n_ranks > 1 ? " on every rank" : "");
    else
        say(line, "little to win: %s%s (%s %%), of which %s are exposed",
            f->n_ranks > 1 ? "at most " : "", TIME(most_ns), PCT(facts_pct(most_ns, iteration_ns)),
            TIME(lost_ns));
}

static const char *mostly(const struct report_facts *f)
{
    return f->straggler_ns * 2 > f->wait_ns ? ", mostly" : "";
}

/* Which ranks are late, where none is in most iterations: "rank 3 5x, rank 0 4x". */
static void say_late_ranks(const struct report_facts *f, struct verdict_line *line)
{
    enum { MOST = 4 };
    for (uint32_t i = 0; i < f->n_late && i < MOST; i++)
        say(line, "%srank %d %ux", i > 0 ? ", " : "", f->ranks[f->late[i]].time.rank,
            f->ranks[f->late[i]].n_late);
    if (f->n_late > MOST)
        say(line, " and %u others", f->n_late - MOST);
}

/* "rank 3", "ranks 3, 1 and 2 others". */
static void say_stragglers(const struct report_facts *f, struct verdict_line *line)
{
    enum { MOST = 6 };
    uint32_t n = f->n_stragglers, n_named = n > MOST ? MOST : n;
    say(line, n > 1 ? "ranks " : "rank ");
    for (uint32_t i = 0; i < n_named; i++)
        say(line, "%s%d",
            i == 0                          ? ""
            : i + 1 == n_named && n <= MOST ? " and "
                                            : ", ",
            f->ranks[f->late[i]].time.rank);
    if (n > MOST)
        say(line, " and %u others", n - MOST);
}

/* Some are late, none is a straggler, and they wait for each other for a share that matters. */
static bool some_are_late(const struct report_facts *f)
{
    return f->n_stragglers == 0 && f->n_late > 0 && facts_pct(f->wait_ns, f->predicted_ns) >= 5;
}

/* And not nearly always for the same one. */
static bool late_rank_changes(const struct report_facts *f)
{
    return some_are_late(f) && f->ranks[f->late[0]].n_late * 4 <= f->n_replayed * 3;
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
    say(line, "%srank %d %s %s%s", f->n_ranks > 1 ? "worst " : "", t->rank,
        f->n_ranks > 1 ? "with" : "has", TIME(t->exposed_communication_ns),
        worst->computes ? " exposed" : "");
    if (t->wait_for_peers_ns > 0)
        say(line, " and %s waiting", TIME(t->wait_for_peers_ns));
    say(line, " (%s %%)", SHARE(lost, t->iteration_ns));
    if (!worst->computes)
        say(line, "; no computation was recorded, so the hidden part is unknown");
    if (f->n_stragglers > 0) {
        uint32_t n = f->ranks[f->late[0]].n_late;
        say(line, "; straggler%s: ", PLURAL(f->n_stragglers));
        say_stragglers(f, line);
        if (f->n_stragglers == 1 && n < f->n_replayed)
            say(line, ", late in %u of %u iterations", n, f->n_replayed);
    } else if (f->n_slow > 0) {
        say(line, "; %u of %u ranks are alike slow", f->n_slow, f->n_ranks);
    } else if (late_rank_changes(f)) {
        const struct rank_fact *late = &f->ranks[f->late[0]];
        if (f->n_late == 1) {
            say(line, "; rank %d is late in %u of %u iterations", late->time.rank, late->n_late,
                f->n_replayed);
        } else {
            say(line, "; no constant straggler: ");
            say_late_ranks(f, line);
        }
    } else if (some_are_late(f)) {
        say(line, "; rank %d is late most often", f->ranks[f->late[0]].time.rank);
    }
    if (f->late_ns > 0)
        say(line, ", at a cost of %s an iteration", TIME(f->late_ns));
}

static void say_communication(const struct report_facts *f, struct verdict_line *line)
{
    uint32_t world = f->world_size;
    line->title = "Communication";
    if (f->lacks_gpu)
        say(line, "unknown: work of GPUs was not recorded");
    else if (!f->communicates && world > 1)
        say(line,
            "none was recognised in most iterations, but the job has %u ranks: their communication "
            "counts as computation or idle time",
            world);
    else if (!f->communicates)
        say(line, "none in this trace");
    else
        say_exposed(f, line);
    const struct dpro_graph *g = f->report->graph;
    if (g && g->n_blind > 0 && !f->lacks_gpu)
        say(line, "; the GPU was recorded on %u of %u ranks, not on rank %d%s", f->n_ranks, world,
            g->blind[0], g->n_blind > 1 ? " and others" : "");
    else if (world > f->n_ranks)
        say(line, "; %u of %u ranks recorded", f->n_ranks, world);
    if (g && g->n_cut > 0)
        say(line, "; the file of rank %d%s is cut off", g->cut[0],
            g->n_cut > 1 ? " and those of others" : "");
}

/* A GPU that has work at all times while its CPU is ahead is what the job hangs on, unless it
 * mostly waits for communication. */
static void say_ahead(const struct report_facts *f, struct verdict_line *line)
{
    if (f->pace.n_ranks == 0)
        return;
    say(line, "; the CPU is %s ahead of the GPU", TIME(f->pace.ahead_ns));
    if (f->pace.n_ranks < f->n_ranks)
        say(line, " on %u of %u ranks", f->pace.n_ranks, f->n_ranks);
    if (f->pace.n_ranks == f->n_ranks &&
        facts_pct(f->idle_ns + f->exposed_ns + f->wait_ns, f->predicted_ns) < 10)
        say(line, ": GPU-bound");
}

static void say_idle(const struct report_facts *f, struct verdict_line *line)
{
    line->title = "Idle";
    if (f->n_ranks == 0) {
        say(line, "no rank");
        return;
    }
    if (!f->any_computes || f->lacks_gpu) {
        say(line, "unknown: %s",
            f->any_computes ? "work of GPUs was not recorded" : "no computation was recorded");
        return;
    }
    const struct dpro_rank_time *t = &f->ranks[f->most_idle].time;
    if (facts_pct(t->idle_ns, t->iteration_ns) < 0.5) {
        say(line, "next to nothing");
        say_ahead(f, line);
        return;
    }
    if (f->world_size > 1)
        say(line, "rank %d%s ", t->rank, f->n_ranks > 1 ? " idles most," : " idles");
    say(line, "%s (%s %%)", TIME(t->idle_ns), SHARE(t->idle_ns, t->iteration_ns));
    if (facts_pct(f->ranks[f->most_idle].unmatched_ns, t->iteration_ns) >= 0.5)
        say(line, ", of which %s are GPU work that only some iterations have",
            TIME(f->ranks[f->most_idle].unmatched_ns));
    /* the CPU's share says nothing of a job whose GPUs are busy: its calls wait for them */
    if (f->path_cpu_ns > 0 && f->has_gpu && facts_pct(f->idle_ns, f->predicted_ns) >= 10)
        say(line, "; critical path: %s %% CPU work, %s %% gaps%s",
            SHARE(f->path_cpu_ns, f->path_ns), SHARE(f->kind_ns[PATH_GAP], f->path_ns),
            facts_launch_bound(f) ? ", launch-bound" : "");
    say_ahead(f, line);
}

/* Where stragglers differ most from the mean of the other ranks. */
static const char *straggler_reason(const struct report_facts *f, int64_t *excess)
{
    static const char *const words[N_RANK_PARTS] = {"in forward", "in backward", "in the update",
                                                    "on input", [RANK_IDLE] = "idling"};
    int64_t more[N_RANK_PARTS] = {0};
    int best = 0;
    for (uint32_t r = 0; r < f->n_ranks; r++)
        for (int p = 0; p < N_RANK_PARTS; p++) {
            int64_t ns = rank_part_ns(&f->ranks[r].time, p);
            more[p] += f->ranks[r].straggles ? ns / (int64_t)f->n_stragglers
                                             : -(ns / (int64_t)(f->n_ranks - f->n_stragglers));
        }
    for (int p = 1; p < N_RANK_PARTS; p++)
        if (words[p] && more[p] > more[best])
            best = p;
    *excess = more[best];
    return words[best];
}

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
    say(line,
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
        say(line, "record again: %s", f->lacks_gpu);
    else if (world > 1 && !f->communicates)
        say(line, "%s: no communication was recognised in most iterations%s",
            f->seldom ? "record otherwise" : "find out first what ranks exchange",
            f->seldom ?: ", so it counts as computation here");
    else if (say_unlike(f, line))
        return true;
    else if (facts_pct(f->apart_ns, f->predicted_ns) >= 5)
        say(line,
            "record 10 iterations: in this single one the ranks start up to %s apart, which shows "
            "as gaps and waiting",
            TIME(f->apart_ns));
    else if (!f->comparable || (f->error_pct <= 10 && f->error_pct >= -10))
        return false;
    else
        say(line, "do not act on this yet: the prediction is %s %% off; %s%s", PCT(f->error_pct),
            f->contradiction[0] ? f->contradiction : "no part of the graph stands out",
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

static void say_cheaper(const struct report_facts *f, struct verdict_line *line)
{
    char short_name[256];
    int64_t ns;
    const char *name = find_dearest(f, &ns);
    if (!name) {
        say(line, "nothing stands out");
        return;
    }
    columns_shorten(short_name, sizeof short_name, name, 36);
    say(line, "computation dominates: make it cheaper, first %s (%s)", short_name, TIME(ns));
}

static void say_even(const struct report_facts *f, struct verdict_line *line, const char *end)
{
    say(line, "even out the ranks: they wait %s for each other%s", TIME(f->wait_ns), mostly(f));
    say(line, *mostly(f) ? " for " : "; late most often: ");
    say_stragglers(f, line);
    say(line, "%s", end);
}

static void say_reason(const struct report_facts *f, struct verdict_line *line, const char *excess,
                       const char *what)
{
    say(line, "find out why ");
    say_stragglers(f, line);
    say(line, " spend%s %s more %s than the others do on average, at a cost of %s an iteration",
        f->n_stragglers == 1 ? "s" : "", excess, what, TIME(f->late_ns));
}

static void say_wait(const struct report_facts *f, struct verdict_line *line)
{
    uint32_t world = f->world_size;
    int64_t excess;
    const char *a = TIME(f->wait_ns);
    if (f->n_slow > 0) {
        say(line,
            "find out why %u of %u ranks are alike slow: were they as fast as the others, %s an "
            "iteration to win",
            f->n_slow, f->n_ranks, TIME(f->late_ns));
    } else if (late_rank_changes(f)) {
        say(line,
            "find out what makes ranks late in some iterations, such as garbage collection: ");
        if (f->n_late > 1)
            say(line, "the late rank changes (");
        say_late_ranks(f, line);
        say(line, "%s in %u iterations", f->n_late > 1 ? ")" : "", f->n_replayed);
        if (f->late_ns > 0)
            say(line, ", which costs %s an iteration", TIME(f->late_ns));
        if (world > f->n_ranks)
            say(line, "; record all %u ranks", world);
    } else if (f->n_stragglers > 0 && f->n_ranks > f->n_stragglers) {
        const char *what = straggler_reason(f, &excess);
        if (facts_pct(excess, f->predicted_ns) >= 1)
            say_reason(f, line, TIME(excess), what);
        else
            say_even(f, line, "");
    } else if (world > f->n_ranks) {
        say(line, "record all %u ranks, to see which of them is waited for: %s", world, a);
    } else {
        say(line, "even out the ranks: they wait %s for each other", a);
    }
}

/* Between workers and servers, on the critical path: workers that take no part in it idle. */
static int64_t with_servers_ns(const struct report_facts *f)
{
    return f->kind_ns[DPRO_OP_PUSH] + f->kind_ns[DPRO_OP_PULL];
}

/* What late ranks cost; of a pipeline's stages, which wait for one another, the mean waiting. */
static int64_t lateness_ns(const struct report_facts *f)
{
    return f->parallel.n_stages > 0 ? f->wait_ns : MAX(f->late_ns, f->wait_ns);
}

/* Less what late ranks cost the others, which is waiting or for want of computation meanwhile. */
static int64_t exposed_ns(const struct report_facts *f)
{
    uint32_t n_late = f->n_slow > 0 ? f->n_slow : MAX(f->n_stragglers, 1);
    int64_t late_ns = f->late_ns / f->n_ranks * (f->n_ranks - n_late) - f->wait_ns;
    return MAX(f->exposed_ns - MAX(late_ns, 0), 0);
}

static void say_shrink(const struct report_facts *f, struct verdict_line *line)
{
    if (exposed_ns(f) >= with_servers_ns(f))
        say(line, "hide or shrink communication: %s of it are exposed; ", TIME(exposed_ns(f)));
    else
        say(line,
            "hide or shrink communication: %s of the critical path are between workers and "
            "servers; ",
            TIME(with_servers_ns(f)));
    if (f->can_reshard)
        say(line, "'dpro optimize' predicts the gain from other units that are kept between their "
                  "passes, 'dpro whatif' the gain from faster links");
    else if (!f->can_optimize && f->parallel.n_stages > 0 && !f->parallel.pipeline.unknown)
        say(line, "'dpro optimize' predicts the gain from other micro-batches and schedules, 'dpro "
                  "whatif' the gain from faster links");
    else if (!f->can_optimize)
        say(line, "'dpro optimize' does not work with this trace: %s", f->no_optimize.text);
    else if (with_servers_ns(f) > 0)
        say(line, "'dpro optimize' predicts the gain from other ways to send it, 'dpro whatif "
                  "--servers' the gain from more servers");
    else
        say(line, "'dpro optimize' predicts the gain from other buckets, 'dpro whatif' the gain "
                  "from compression and faster links");
}

/* What to do where GPUs idle, by what the critical path does most meanwhile. */
static void say_idle_gpu(const struct report_facts *f, struct verdict_line *line)
{
    enum { LEAST_PCT = 20 }; /* of the critical path, for advice */
    static const char *const advice[N_CALL_CLASSES][2] = {
        [CALL_SYNC] = {"wait for the GPU less often",
                       ", such as reading a loss back in each iteration"},
        [CALL_MEMORY] = {"keep memory instead of allocating and freeing it in each iteration", ""},
        [CALL_COPY] = {"copy asynchronously, from pinned memory", ""},
        [CALL_LOAD] = {"record later", ", which happen once, while a job warms up"},
    };
    char name[64] = "";
    int most = longest_calls(f, CALL_SYNC);
    int64_t launching = facts_launching_ns(f), gaps = f->kind_ns[PATH_GAP], ns = f->call_ns[most];
    if (f->call_name[most])
        columns_shorten(name, sizeof name, f->call_name[most], 36);
    if (launching >= ns && launching >= gaps && facts_pct(launching, f->path_ns) >= LEAST_PCT)
        say(line, "launch less: CUDA or HIP graphs, fused kernels or a larger batch");
    else if (gaps > ns && facts_pct(gaps, f->path_ns) >= LEAST_PCT)
        say(line,
            "find out what the job does in the gaps of the critical path, %s in which no op was "
            "recorded, such as Python between ops",
            TIME(gaps));
    else if (facts_pct(ns, f->path_ns) < LEAST_PCT)
        say(line, "look in the timeline for what the GPUs wait for while they idle");
    else
        say(line, "%s: %s of the critical path are %s and similar calls%s", advice[most][0],
            TIME(ns), name, advice[most][1]);
    say(line, "; up to %s to win", TIME(f->idle_ns));
}

/* What slow iterations do that the others do not. */
static void say_slow(const struct report_facts *f, struct verdict_line *line)
{
    say(line, "%s; %s", f->slow.advice, f->slow.text);
}

/* Forward, backward and update, mean over the ranks. */
static int64_t computing_ns(const struct report_facts *f)
{
    int64_t sum = 0;
    for (uint32_t r = 0; r < f->n_ranks; r++) {
        const struct dpro_rank_time *t = &f->ranks[r].time;
        sum += (t->forward_ns + t->backward_ns + t->update_ns) / f->n_ranks;
    }
    return sum;
}

/* What takes `lost_ns` of the iteration beside computation: waiting, communication, input or idle
 * time. */
static void say_lost(const struct report_facts *f, int64_t lost_ns, struct verdict_line *line)
{
    if (lost_ns == lateness_ns(f))
        say_wait(f, line);
    else if (lost_ns == exposed_ns(f) || (lost_ns == f->idle_ns && with_servers_ns(f) >= lost_ns))
        say_shrink(f, line);
    else if (lost_ns == f->input_ns)
        say(line, "load and copy input ahead of time: up to %s to win", TIME(f->input_ns));
    else if (f->has_gpu)
        say_idle_gpu(f, line);
    else
        say(line, "look in the timeline for what %s for while %s: up to %s to win",
            f->n_ranks > 1 ? "the ranks wait" : "the job waits",
            f->n_ranks > 1 ? "they idle" : "it idles", TIME(f->idle_ns));
}

/* Memory that grows ends a job, whatever else is slow, but not if a thousand steps fit. */
static void say_growth(const struct report_facts *f, struct verdict_line *line)
{
    enum { LEAST_SHARE = 1000 }; /* of the peak, in each iteration */
    const struct memory_fact *most = NULL;
    uint32_t n_growing = 0;
    for (uint32_t i = 0; i < f->memory.n_ranks; i++) {
        const struct dpro_rank_memory *m = &f->memory.ranks[i].memory;
        if (m->growth_bytes == 0 || m->growth_bytes < m->peak_bytes / LEAST_SHARE)
            continue;
        n_growing++;
        if (!most || m->growth_bytes > most->memory.growth_bytes)
            most = &f->memory.ranks[i];
    }
    if (!most)
        return;
    const struct dpro_rank_memory *m = &most->memory;
    say(line, "find out what keeps %s more memory in each iteration (a leak?)",
        BYTES_TEXT(m->growth_bytes));
    if (n_growing < f->n_ranks)
        say(line, " on rank %d%s", m->rank, n_growing > 1 ? " and others" : "");
    if (m->capacity_bytes > m->peak_bytes)
        say(line, ", of which the device has room for %llu more",
            (unsigned long long)((m->capacity_bytes - m->peak_bytes) / m->growth_bytes));
    say(line, "; ");
}

static void say_next(const struct report_facts *f, struct verdict_line *line)
{
    enum { LEAST_PCT = 5, MOST_SAVED = 4 }; /* a quarter of computation is much to save */
    int64_t dearest_ns;
    const struct dpro_validation *v = &f->validation;
    line->title = "Next step";
    say_growth(f, line);
    if (say_doubt(f, line))
        return;
    if (!f->any_computes) {
        if (f->n_stragglers > 0 && facts_pct(f->wait_ns, f->predicted_ns) >= 5)
            say_even(f, line, "; ");
        say(line, "record computation too, with the framework's own profiler or 'dpro profile': "
                  "without it the effect of communication is unknown");
        return;
    }
    int64_t most = MAX(exposed_ns(f), lateness_ns(f));
    if (facts_pct(f->idle_ns, f->predicted_ns) >= 10) /* a little is in every job */
        most = f->idle_ns > most ? f->idle_ns : most;
    most = f->input_ns > most ? f->input_ns : most;
    /* what they take longer is in these, too */
    bool slow = facts_pct(f->slow.lost_ns, f->predicted_ns) >= 5 && f->slow.lost_ns * 2 >= most;
    bool is_little = facts_pct(most, f->predicted_ns) < LEAST_PCT;
    find_dearest(f, &dearest_ns);
    /* what ranks are late by is won without a change to what they compute */
    int64_t saved_ns = (most == f->late_ns ? dearest_ns : computing_ns(f)) / MOST_SAVED;
    bool computes = !slow && (is_little || most < saved_ns);
    if (slow)
        say_slow(f, line);
    if (slow && f->n_stragglers > 0) { /* which is so in the other iterations, too */
        say(line, "; then ");
        say_wait(f, line);
    }
    if (!slow && computes)
        say_cheaper(f, line);
    if (!slow && !is_little) {
        say(line, "%s", computes ? "; then " : "");
        say_lost(f, most, line);
    }
    if (!f->what_if && !slow && v->n > 0 && v->mean_abs_error_pct > 15)
        say(line, "; first see with --steps why iterations differ (%s to %s)", TIME(f->least_ns),
            TIME(f->longest_ns));
}

void verdict_write(struct report_facts *f)
{
    say_iteration(f, &f->verdict[0]);
    say_path(f, &f->verdict[1]);
    say_communication(f, &f->verdict[2]);
    say_idle(f, &f->verdict[3]);
    say_next(f, &f->verdict[4]);
}
