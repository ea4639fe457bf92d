/* The verdict's last line: what to do next, by what takes most that can be won. */

#include "graph/graph.h"
#include "report/table.h"
#include "report/verdict.h"

/* Where stragglers differ most from the mean of the other ranks. */
static const char *straggler_reason(const struct report_facts *f, int64_t *excess)
{
    int64_t more[N_RANK_PARTS] = {0};
    for (uint32_t r = 0; r < f->n_ranks; r++)
        for (int p = 0; p < N_RANK_PARTS; p++) {
            int64_t ns = rank_part_ns(&f->ranks[r].time, p);
            more[p] += f->ranks[r].straggles ? ns / (int64_t)f->n_stragglers
                                             : -(ns / (int64_t)(f->n_ranks - f->n_stragglers));
        }
    return facts_reason(f, more, excess);
}

/* To choose by: how late ranks are, with what others have exposed meanwhile; of a pipeline's
 * stages, which wait for one another, the mean waiting. */
static int64_t lateness_ns(const struct report_facts *f)
{
    int64_t late_ns = f->later_ns + f->meanwhile_ns;
    return f->parallel.n_stages > 0 ? f->wait_ns : MAX(late_ns, f->wait_ns);
}

/* Where the last rank of an iteration differs most from the mean of the other ranks in it, mean
 * over the iterations. A part that was recorded and explains half of what lateness costs: what a
 * rank does while it idles is not known. NULL: there is no such part. */
static const char *late_reason(const struct report_facts *f, int64_t *excess)
{
    const struct dpro_replay_view *v = f->replay;
    int64_t more[N_RANK_PARTS] = {0}, n = v->n_iterations;
    if (!v->ranks_in || !v->lateness || n == 0 || v->n_ranks < 2)
        return NULL;
    for (uint32_t i = 0; i < v->n_iterations; i++) {
        const struct dpro_rank_time *times = v->ranks_in + (size_t)i * v->n_ranks;
        uint32_t late = facts_last_rank(v, i);
        for (uint32_t r = 0; r < v->n_ranks; r++)
            for (int p = 0; p < N_RANK_PARTS; p++) {
                int64_t ns = rank_part_ns(&times[r], p) / n;
                more[p] += r == late ? ns : -(ns / (int64_t)(v->n_ranks - 1));
            }
    }
    int64_t idle_ns = more[RANK_IDLE];
    const char *words = facts_reason(f, more, excess);
    bool explains = *excess > idle_ns && *excess > 0 && *excess >= lateness_ns(f) / 2;
    return explains && facts_pct(*excess, f->predicted_ns) >= 1 ? words : NULL;
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
        line_say(line, "do not act on this yet: the prediction is %s %% off; %s%s",
                 PCT(f->error_pct),
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
        line_say(line, "nothing stands out");
        return;
    }
    columns_shorten(short_name, sizeof short_name, name, 36);
    line_say(line, "computation dominates: make it cheaper, first %s (%s)", short_name, TIME(ns));
}

/* The stage of a pipeline that computes longest, and how much longer than the mean one; 0: there
 * are no stages. */
static int64_t find_longest_stage(const struct report_facts *f, uint32_t *longest)
{
    const struct pipeline *pipeline = &f->parallel.pipeline;
    int64_t sum_ns = 0, most_ns = 0;
    for (uint32_t stage = 0; stage < f->parallel.n_stages; stage++) {
        int64_t ns = 0;
        for (uint32_t r = 0; r < f->n_ranks; r++) {
            const struct dpro_rank_time *t = &f->ranks[r].time;
            if (pipeline->stage_of[r] == stage)
                ns += t->forward_ns + t->backward_ns + t->update_ns;
        }
        ns /= MAX(f->parallel.stages[stage].n_ranks, 1);
        sum_ns += ns;
        *longest = ns > most_ns ? stage : *longest;
        most_ns = MAX(most_ns, ns);
    }
    return most_ns - sum_ns / MAX(f->parallel.n_stages, 1);
}

static void say_even(const struct report_facts *f, struct verdict_line *line, const char *end)
{
    line_say(line, "even out the ranks: they wait %s for each other%s", TIME(f->wait_ns),
             verdict_mostly(f));
    line_say(line, *verdict_mostly(f) ? " for " : "; late most often: ");
    line_stragglers(f, line);
    line_say(line, "%s", end);
}

static void say_wait(const struct report_facts *f, struct verdict_line *line)
{
    uint32_t world = f->world_size, stage = 0;
    int64_t excess, stage_ns = find_longest_stage(f, &stage);
    const char *a = TIME(f->wait_ns);
    if (f->n_slow > 0) {
        line_say(line, "find out why %u of %u ranks are alike slow", f->n_slow, f->n_ranks);
    } else if (verdict_late_rank_changes(f)) {
        const char *what = late_reason(f, &excess);
        line_say(line, "find out what makes ranks late in some iterations, ");
        if (what)
            line_say(line, "in which they spend %s more %s than the others: ", TIME(excess), what);
        else
            line_say(line, "such as garbage collection: ");
        if (f->n_late > 1)
            line_say(line, "the late rank changes (");
        line_late_ranks(f, line);
        line_say(line, "%s in %u iterations", f->n_late > 1 ? ")" : "", f->n_replayed);
        if (world > f->n_ranks)
            line_say(line, "; record all %u ranks", world);
    } else if (f->n_stragglers > 0 && f->n_ranks > f->n_stragglers) {
        const char *what = straggler_reason(f, &excess);
        if (facts_pct(excess, f->predicted_ns) >= 1) {
            line_say(line, "find out why ");
            line_stragglers(f, line);
            line_say(line, " spend%s %s more %s than the others do on average",
                     f->n_stragglers == 1 ? "s" : "", TIME(excess), what);
        } else {
            say_even(f, line, "");
        }
    } else if (world > f->n_ranks) {
        line_say(line, "record all %u ranks, to see which of them is waited for: %s", world, a);
    } else if (facts_pct(stage_ns, f->predicted_ns) >= 5) {
        line_say(line, "even out the stages: stage %u computes %s longer than they do on average",
                 stage, TIME(stage_ns));
    } else {
        line_say(line, "even out the ranks: they wait %s for each other", a);
    }
    if (!f->what_if && (f->n_slow > 0 || f->n_stragglers > 0 || verdict_late_rank_changes(f)))
        line_say(line, "; 'dpro diagnose' says what it costs");
}

/* Between workers and servers, on the critical path: workers that take no part in it idle. */
static int64_t with_servers_ns(const struct report_facts *f)
{
    return f->kind_ns[DPRO_OP_PUSH] + f->kind_ns[DPRO_OP_PULL];
}

/* Less what others have exposed for want of computation while they would wait for late ranks. In a
 * job that is bound by its launches, no more than is on the critical path: the rest goes on while
 * the next launches are waited for. */
static int64_t exposed_ns(const struct report_facts *f)
{
    int64_t exposed = MAX(f->exposed_ns - f->meanwhile_ns, 0), on_path = 0;
    for (int kind = DPRO_OP_SEND; kind <= DPRO_OP_COLLECTIVE; kind++)
        on_path += kind == DPRO_OP_COPY ? 0 : f->kind_ns[kind];
    return facts_launch_bound(f) ? MIN(exposed, on_path) : exposed;
}

static void say_shrink(const struct report_facts *f, struct verdict_line *line)
{
    if (exposed_ns(f) >= with_servers_ns(f))
        line_say(line, "hide or shrink communication: %s of it are exposed; ", TIME(exposed_ns(f)));
    else
        line_say(line,
                 "hide or shrink communication: %s of the critical path are between workers and "
                 "servers; ",
                 TIME(with_servers_ns(f)));
    if (f->can_reshard)
        line_say(line,
                 "'dpro optimize' predicts the gain from other units that are kept between their "
                 "passes, 'dpro whatif' the gain from faster links");
    else if (!f->can_optimize && !f->of_stages && f->parallel.n_stages > 0 &&
             !f->parallel.pipeline.unknown)
        line_say(line, "'dpro optimize' predicts the gain from other micro-batches and schedules, "
                       "'dpro whatif' the gain from faster links");
    else if (f->can_save && f->memory.n_ranks > 0)
        line_say(line, "'dpro optimize' works with --memory alone: %s", f->no_optimize.text);
    else if (!f->can_optimize)
        line_say(line, "'dpro optimize' does not work with this trace: %s", f->no_optimize.text);
    else if (with_servers_ns(f) > 0)
        line_say(line, "'dpro optimize' predicts the gain from other ways to send it, 'dpro whatif "
                       "--servers' the gain from more servers");
    else
        line_say(line,
                 "'dpro optimize' predicts the gain from other buckets, 'dpro whatif' the gain "
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
    int most = verdict_longest_calls(f, CALL_SYNC);
    int64_t launching = facts_launching_ns(f), gaps = f->kind_ns[PATH_GAP], ns = f->call_ns[most];
    if (f->call_name[most])
        columns_shorten(name, sizeof name, f->call_name[most], 36);
    if (launching >= ns && launching >= gaps && facts_pct(launching, f->path_ns) >= LEAST_PCT)
        line_say(line, "launch less: CUDA or HIP graphs, fused kernels or a larger batch");
    else if (gaps > ns && facts_pct(gaps, f->path_ns) >= LEAST_PCT)
        line_say(
            line,
            "find out what the job does in the gaps of the critical path, %s in which no op was "
            "recorded, such as Python between ops",
            TIME(gaps));
    else if (facts_pct(ns, f->path_ns) < LEAST_PCT)
        line_say(line, "look in the timeline for what the GPUs wait for while they idle");
    else
        line_say(line, "%s: %s of the critical path are %s and similar calls%s", advice[most][0],
                 TIME(ns), name, advice[most][1]);
    line_say(line, "; up to %s to win", TIME(f->idle_ns));
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
        line_say(line, "load and copy input ahead of time: up to %s to win", TIME(f->input_ns));
    else if (f->has_gpu)
        say_idle_gpu(f, line);
    else
        line_say(line, "look in the timeline for what %s for while %s: up to %s to win",
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
    line_say(line, "find out what keeps %s more memory in each iteration (a leak?)",
             BYTES_TEXT(m->growth_bytes));
    if (n_growing < f->n_ranks)
        line_say(line, " on rank %d%s", m->rank, n_growing > 1 ? " and others" : "");
    if (m->capacity_bytes > m->peak_bytes)
        line_say(line, ", of which the device has room for %llu more",
                 (unsigned long long)((m->capacity_bytes - m->peak_bytes) / m->growth_bytes));
    line_say(line, "; ");
}

/* The cause that most is lost to; computation first where it takes four times as long. */
static void say_diagnosed(const struct report_facts *f, const struct dpro_diagnosis_view *view,
                          struct verdict_line *line)
{
    enum { MOST_SAVED = 4 }; /* a quarter of computation is much to save */
    const struct dpro_cause *most = view->n_causes > 0 ? &view->causes[0] : NULL;
    bool computes = !most || most->blame_ns < view->ideal_ns / MOST_SAVED;
    if (computes)
        say_cheaper(f, line);
    if (most)
        line_say(line, "%s%s (%s): %s", computes ? "; then " : "", most->title,
                 TIME(most->blame_ns), most->next_step ?: "see the diagnosis");
}

void verdict_next_step(const struct report_facts *f, struct verdict_line *line)
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
        line_say(line,
                 "record computation too, with the framework's own profiler or 'dpro profile': "
                 "without it the effect of communication is unknown");
        return;
    }
    if (f->report->diagnosis) {
        say_diagnosed(f, dpro_diagnosis_view(f->report->diagnosis->diagnosis), line);
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
    int64_t saved_ns =
        (most == lateness_ns(f) && most > f->wait_ns ? dearest_ns : computing_ns(f)) / MOST_SAVED;
    bool computes = !slow && (is_little || most < saved_ns);
    if (slow)
        line_say(line, "%s; %s", f->slow.advice, f->slow.text);
    if (slow && f->n_stragglers > 0) { /* which is so in the other iterations, too */
        line_say(line, "; then ");
        say_wait(f, line);
    }
    if (!slow && computes)
        say_cheaper(f, line);
    if (!slow && !is_little) {
        line_say(line, "%s", computes ? "; then " : "");
        say_lost(f, most, line);
    }
    if (!f->what_if && !slow && v->n > 0 && v->mean_abs_error_pct > 15)
        line_say(line, "; first see with --steps why iterations differ (%s to %s)",
                 TIME(f->least_ns), TIME(f->longest_ns));
}
