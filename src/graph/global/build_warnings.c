/* Warnings on how the graph came about, for readers of the results. */

#include "graph/global/assembly.h"

static void warnings_warn(struct assembly *a, char *text)
{
    log_line(&a->options->sink, DPRO_LOG_WARN, "%s", text);
    array_push(&a->graph->warnings, text);
}

#define IS_OR_ARE(n) ((n) == 1 ? "is" : "are")
#define WARN(a, ...) warnings_warn(a, arena_format(&(a)->graph->arena, __VA_ARGS__))

void assembly_warn_clocks(struct assembly *a)
{
    const struct clocks *clocks = &a->join->clocks;
    for (size_t w = 0; w < clocks->warnings.n; w++)
        WARN(a, "%s", clocks->warnings.at[w]);
}

/* "rank 3", "ranks 0, 2 and 5 more"; "" of none. */
static const char *list_ranks(const struct assembly *a, const int *ranks, uint32_t n)
{
    enum { NAMED = 3 };
    struct arena *arena = &a->graph->arena;
    const char *text = n > 1 ? "ranks " : n > 0 ? "rank " : "";
    for (uint32_t i = 0; i < n && i < NAMED; i++)
        text = arena_format(arena, "%s%s%d", text, i > 0 ? ", " : "", ranks[i]);
    return n > NAMED ? arena_format(arena, "%s and %u more", text, n - NAMED) : text;
}

static const char *list_lacking(const struct assembly *a, enum lacks lacks)
{
    const struct join *join = a->join;
    SCRATCH int *ranks = mem_array(join->n_ranks + (size_t)1, sizeof *ranks);
    uint32_t n = 0;
    for (uint32_t r = 0; r < join->n_ranks; r++)
        if (a->messages->lacks[r] & lacks)
            ranks[n++] = join->ranks[r].trace->rank;
    return list_ranks(a, ranks, n);
}

/* "3 of 4 ranks are here, rank 1 without its GPU's work": those that are left out count. */
static const char *ranks_here(const struct assembly *a)
{
    const struct dpro_graph *g = a->graph;
    uint32_t n = g->lacks_gpu ? 0 : g->n_blind;
    return arena_format(&a->graph->arena, "%u of %d ranks are here%s%s%s", a->join->n_ranks + n,
                        a->join->world_size, n ? ", " : "", list_ranks(a, g->blind, n),
                        n ? " without the GPU's work" : "");
}

/* GPUs that worked and were not recorded: what is left of an iteration is no ground for advice. */
static void warn_gpu(struct assembly *a)
{
    struct join *join = a->join;
    bool left_out = join->blind.n > 0;
    for (uint32_t r = 0; r < join->n_ranks; r++)
        if (join->ranks[r].lacks_gpu)
            array_push(&join->blind, join->ranks[r].trace->rank);
    uint32_t n = a->graph->n_blind = (uint32_t)join->blind.n;
    a->graph->blind = arena_copy(&a->graph->arena, join->blind.at, n, sizeof *a->graph->blind);
    if (n == 0)
        return;
    char *text = arena_format(
        &a->graph->arena,
        "the GPU's work was not recorded on %s: the CPU launches kernels or calls NCCL, and no "
        "kernel is in the recording%s. "
        "The profiler was told to record the CPU only, had no right to use CUPTI, "
        "or another profiler held it; record again with ProfilerActivity.CUDA",
        n == join->n_ranks && n > 1 && !left_out ? "any rank" : list_ranks(a, a->graph->blind, n),
        left_out ? ", so that nothing is said of it here" : "");
    a->graph->lacks_gpu = left_out ? NULL : text;
    WARN(a, "%s", text);
}

static void warn_cut(struct assembly *a)
{
    const struct join *join = a->join;
    int *cut = arena_array(&a->graph->arena, join->cut.n + 1, sizeof *cut);
    EACH (const struct cut_rank, rank, join->cut) {
        cut[a->graph->n_cut++] = rank->rank;
        WARN(a,
             "rank %d is left out: %s is cut off before a whole iteration; copy or record it again",
             rank->rank, rank->path);
    }
    a->graph->cut = cut;
}

/* Collectives of which some ranks' part is known from the others' logs only. */
static void warn_partial(struct assembly *a)
{
    WARN(a,
         "no transport log has the part of %s in %u of %zu collectives: it is replayed as one "
         "transfer, with those messages to and from it that other ranks' logs have; record "
         "every rank, from before it connects",
         list_lacking(a, LACKS_PART), a->messages->n_partial, a->join->joined.n);
}

/* Collectives that could have been decomposed and were not. */
static void warn_whole(struct assembly *a)
{
    const struct messages *messages = a->messages;
    const char *ranks = list_lacking(a, LACKS_WHOLE);
    const struct {
        uint32_t n;
        const char *why, *of, *then;
    } reasons[] = {
        {messages->n_whole - messages->n_uneven - messages->n_beyond,
         ranks[0] ? "the transport logs of " : "the transport logs", ranks,
         " do not have all that was sent and received in them; record every rank, from before it "
         "connects"},
        {messages->n_uneven, "their messages differ from one iteration to the next", "", ""},
        {messages->n_beyond, "together they have more messages than a graph takes", "",
         "; learn from fewer iterations (--steps)"}};
    EACH_OF (const __typeof__(*reasons), it, reasons, sizeof reasons / sizeof *reasons)
        if (it->n > 0)
            WARN(a, "%u of %zu collectives %s replayed whole, not message by message: %s%s%s",
                 it->n, a->join->joined.n, IS_OR_ARE(it->n), it->why, it->of, it->then);
}

/* How a job tells where its iterations begin. */
static const char *mark_advice(const struct assembly *a)
{
    const char *framework = dpro_trace_framework(a->trace);
    if (strcmp(framework, "tensorflow") == 0)
        return "put each step into tf.profiler.experimental.Trace('train', step_num=i, _r=1)";
    if (strcmp(framework, "jax") == 0 || strcmp(framework, "xla") == 0)
        return "record more steps, so that a program runs again and again";
    if (strcmp(framework, "mxnet") == 0)
        return "record the job with 'dpro profile', which notes where they begin";
    return "give the profiler a schedule and call its step() once an iteration, or say which range "
           "is one (--step-mark)";
}

static bool is_pytorch(const struct assembly *a)
{
    return strcmp(dpro_trace_framework(a->trace), "pytorch") == 0;
}

/* In which iterations the ranks communicate, where most do not; NULL: in none. */
static const char *seldom_of(const struct assembly *a)
{
    uint32_t n = 0, n_timed = 0, n_update = 0;
    EACH (const struct step, step, a->join->ranks[0].steps) {
        const struct step_content *holds = &step->holds;
        n_timed += step->timed;
        n += step->timed && holds->n_collectives > 0;
        n_update += step->timed && holds->n_meetings > holds->n_collectives;
    }
    if (n == 0 || n == n_timed)
        return NULL;
    if (n_update == n_timed)
        return arena_format(&a->graph->arena,
                            "; %u of %u communicate, and all update the weights, as where ranks' "
                            "models are averaged now and then: that communication counts as time "
                            "of slow iterations, which what-ifs and plans can't change",
                            n, n_timed);
    return arena_format(&a->graph->arena,
                        "; %u of %u communicate, as where gradients are accumulated before they "
                        "are reduced; make each iteration hold an update of the weights: %s",
                        n, n_timed, mark_advice(a));
}

/* Ranks of the job that the trace does not have, and communication that it should have. */
static void warn_ranks(struct assembly *a)
{
    const struct join *join = a->join;
    bool lacks = (int)join->n_ranks < join->world_size;
    bool communicates = join->joined.n > 0 || a->servers->served.n > 0;
    for (size_t o = 0; o < a->graph->n_ops && !communicates; o++)
        communicates = a->graph->phase[o] == DPRO_OP_COLLECTIVE ||
                       (a->graph->phase[o] >= DPRO_OP_SEND && a->graph->phase[o] <= DPRO_OP_REDUCE);
    if (join->world_size < 2)
        return;
    const char *present = lacks ? arena_format(&a->graph->arena, " (%s)", ranks_here(a)) : "";
    if (!communicates && a->graph->lacks_gpu)
        return; /* it is said already */
    if (!communicates)
        a->graph->seldom = seldom_of(a);
    if (!communicates)
        WARN(a, "no communication was recognised in most iterations of this job of %d ranks%s%s%s",
             join->world_size, present,
             a->graph->seldom
                 ?: ": what there is counts as computation or as idle time; record "
                    "steps that communicate",
             is_pytorch(a) && !a->graph->seldom
                 ? ", or put the calls into ranges named for their collective "
                   "(torch.profiler.record_function('all_reduce'))"
                 : "");
    else if (lacks && (int)(join->n_ranks + join->blind.n) < join->world_size)
        WARN(a, "%s: record every rank to see who waits for the missing ones", ranks_here(a));
}

/* Of steps without the profiler, which lie further apart: what a machine drifts by in that time. */
#define STEPS_DRIFT 0.1

/* The steps before and after what was profiled; all ranks go at one pace. */
static bool find_steps_trend(const struct assembly *a, struct trend *trend, uint32_t *n)
{
    const struct recording *recording = a->join->ranks[0].trace->recording;
    SCRATCH ARRAY(int64_t) ns = {0};
    for (size_t s = 0; recording && s < recording->steps.n; s++) {
        const struct recorded_step *step = &recording->steps.at[s];
        if (step->window == RECORDED_BEFORE || step->window == RECORDED_AFTER)
            array_push(&ns, step->end_ns - step->start_ns);
    }
    *n = (uint32_t)ns.n;
    return trend_find(ns.at, *n, trend) && fabs((double)(trend->last_ns - trend->first_ns)) >=
                                               STEPS_DRIFT * (double)trend->first_ns;
}

/* What is learnt from iterations that drift is their mean, which the job has left behind. */
static void warn_trend(struct assembly *a)
{
    struct trend trend;
    uint32_t n;
    const int64_t *measured = dpro_graph_measured_ns(a->graph, &n);
    bool within = trend_find(measured, n, &trend);
    if (!within && !find_steps_trend(a, &trend, &n))
        return;
    char of_rank[32] = ""; /* all ranks go at one pace */
    if (!within && a->join->n_ranks > 1)
        snprintf(of_rank, sizeof of_rank, " of rank %d", a->join->ranks[0].trace->rank);
    WARN(a,
         "%s get %s through the recording: %.1f ms in the first third, %.1f ms in the "
         "last (%+.0f %% over %u %s%s, p = %.2g): the prediction is of %s; record when the "
         "machine is steady%s",
         within ? "iterations" : "steps without the profiler",
         trend.last_ns > trend.first_ns ? "longer" : "shorter", (double)trend.first_ns / 1e6,
         (double)trend.last_ns / 1e6, 100 * ((double)trend.last_ns / (double)trend.first_ns - 1), n,
         within ? "iterations" : "steps", of_rank, trend.p,
         within ? "their mean" : "those in between",
         within ? ", or choose iterations with --steps" : "");
}

/* Iterations that nothing is learnt from. */
static void warn_left_out(struct assembly *a)
{
    const struct join *join = a->join;
    const struct left_out *incomplete = NULL;
    unsigned n_incomplete = 0;
    EACH (const struct left_out, odd, join->choice.left_out) {
        if (odd->incomplete) {
            incomplete = n_incomplete++ == 0 ? odd : incomplete;
            continue;
        }
        if (odd->kept) {
            WARN(a,
                 "the only iteration holds work that is not its own, and takes longer for it: "
                 "%s; record more iterations",
                 odd->reason);
            continue;
        }
        WARN(a, "iteration %" PRId64 " is left out%s%s%s: %s", odd->number,
             odd->leads ? ", it only leads up to the others" : "", join->n_ranks > 1 ? "; on " : "",
             join->n_ranks > 1 ? NET_PROCESS(join->ranks[odd->rank].trace->rank) : "", odd->reason);
    }
    if (n_incomplete == 0)
        return;
    WARN(a, "%u iteration%s left out (first on %s): %s", n_incomplete,
         n_incomplete == 1 ? " is" : "s are",
         NET_PROCESS(join->ranks[incomplete->rank].trace->rank), incomplete->reason);
}

/* The CPU's marks and the GPU's work disagree by what can be seen. */
static void warn_ahead(struct assembly *a)
{
    struct dpro_pace pace = dpro_graph_pace(a->graph);
    const char *ranks = "";
    if (a->join->ranks[0].steps.n == 1 || pace.n_ranks == 0 ||
        pace.device_ns - pace.marks_ns <= pace.device_ns / 100)
        return;
    if (a->join->n_ranks > 1)
        ranks =
            arena_format(&a->graph->arena, " on %u of %u ranks", pace.n_ranks, a->join->n_ranks);
    WARN(a,
         "the CPU runs ahead of its GPU%s: iterations begin every %.2f ms on the CPU, and every "
         "%.2f ms on the GPU, where they are measured",
         ranks, (double)pace.marks_ns / 1e6, (double)pace.device_ns / 1e6);
}

/* Ranks that measured fewer iterations than others, so that nothing is learnt from the rest. */
static void warn_fewer(struct assembly *a)
{
    enum { FEWEST = 2 }; /* where ranks begin and end may differ by one */
    const struct join *join = a->join;
    const struct dpro_job_options *o = a->options;
    const struct rank_build *least = NULL;
    uint32_t most = 0, fewest = UINT32_MAX, n_fewer = 0;
    for (int pass = 0; pass < 2; pass++)
        EACH_OF (const struct rank_build, rank, join->ranks, join->n_ranks) {
            uint32_t n = 0;
            EACH (const struct step, step, rank->steps)
                n += step->timed &&
                     ((o->first_step == 0 && o->last_step == 0) ||
                      (step->number >= o->first_step && step->number <= o->last_step));
            most = MAX(most, n);
            least = n < fewest ? rank : least;
            fewest = MIN(fewest, n);
            n_fewer += pass == 1 && n < most;
        }
    if (fewest + FEWEST > most)
        return;
    WARN(a,
         "%u of %u ranks measured fewer iterations than others (%s has %u, others up to %u): the "
         "%u that all have are learnt from",
         n_fewer, join->n_ranks, NET_PROCESS(least->trace->rank), fewest, most,
         join->ranks[0].n_samples);
}

/* Work that only some iterations have. */
static void warn_unmatched(struct assembly *a)
{
    enum { LEAST_PCT = 2 };
    const struct rank_build *worst = NULL;
    uint32_t n;
    const int64_t *measured = dpro_graph_measured_ns(a->graph, &n);
    double mean = 0;
    for (uint32_t r = 0; r < a->join->n_ranks; r++)
        if (!worst || a->join->ranks[r].unmatched_ns > worst->unmatched_ns)
            worst = &a->join->ranks[r];
    for (uint32_t i = 0; i < n; i++)
        mean += (double)measured[i] / n;
    if (!worst || (double)worst->unmatched_ns * 100 <= LEAST_PCT * mean)
        return;
    WARN(a,
         "%.2f ms of an iteration (%.0f %%), on average on %s, are GPU work that only some "
         "iterations have: where nothing else runs it counts as idle, and no what-if changes it; "
         "--steps chooses iterations that are alike",
         (double)worst->unmatched_ns / 1e6, 100 * (double)worst->unmatched_ns / mean,
         NET_PROCESS(worst->trace->rank));
}

/* Collectives of which the part of some ranks is missing, or fits no other rank's. */
static void warn_parts(struct assembly *a)
{
    const struct join *join = a->join;
    bool all_here = (int)join->n_ranks >= join->world_size;
    uint32_t missing = 0;
    for (size_t j = 0; j < join->joined.n; j++)
        missing += join->joined.at[j].n_expected > join->joined.at[j].n_members;
    if (missing == 0 || all_here)
        warn_ranks(a);
    if (missing > 0 && all_here)
        WARN(a,
             "all ranks are here, but some have no part in %u of %zu collectives: they are assumed "
             "to arrive as late as they did in the trace; is a rank's log or timeline missing or "
             "cut short?",
             missing, join->joined.n);
    else if (missing > 0)
        WARN(a,
             "%s: in %u of %zu collectives the missing ranks are assumed to arrive as late as they "
             "did in the trace; record every rank to see who waits for whom",
             ranks_here(a), missing, join->joined.n);
    if (join->n_mismatched > 0)
        WARN(a,
             "%u collectives have no counterpart of their kind and size on other ranks (first: %s "
             "on rank %d) and are replayed as measured, without waiting for each other; are "
             "all files whole and of one run?",
             join->n_mismatched,
             dpro_collective_kind_name(
                 join->ranks[join->first_mismatch_rank].collectives.at[join->first_mismatch].kind),
             join->ranks[join->first_mismatch_rank].trace->rank);
}

/* Iterations that are not known to be the same on all ranks. */
static void warn_numbers(struct assembly *a)
{
    const struct join *join = a->join;
    static const char *const told_by[] = {
        "when their collectives end tells which ones are the same",
        "their clocks tell which ones are the same",
        "the first of each is taken for the same one, and so on; are all files of one run?"};
    const struct step_choice *choice = &join->choice;
    uint32_t n_with = 0, without = NO_ID;
    if (choice->n_renumbered > 0)
        WARN(a,
             "%u of %u ranks (first: rank %d) number their iterations otherwise than rank %d: %s",
             choice->n_renumbered, join->n_ranks, join->ranks[choice->renumbered].trace->rank,
             join->ranks[choice->lead].trace->rank, told_by[choice->numbered_by]);
    if (choice->n_beside > 0)
        WARN(a,
             "iterations of %u of %u ranks (first: rank %d) end %.1f ms away from those of rank %d "
             "with the same number: clocks or numbers are wrong, and iterations as equal as these "
             "do not tell which. The numbers are taken as right, so dpro may name the wrong rank "
             "as late in an iteration; record all ranks from the same step on",
             choice->n_beside, join->n_ranks, join->ranks[choice->beside].trace->rank,
             (double)choice->beside_ns / 1e6, join->ranks[choice->lead].trace->rank);
    for (uint32_t r = join->n_ranks; r-- > 0;)
        if (join->ranks[r].steps.source != STEPS_NONE)
            n_with++;
        else
            without = r;
    if (n_with > 0 && without != NO_ID)
        WARN(a,
             "%u of %u ranks (first: rank %d) have no iteration marks and no period: the whole "
             "of their recording is taken for one iteration of the others; %s on every rank",
             join->n_ranks - n_with, join->n_ranks, join->ranks[without].trace->rank,
             mark_advice(a));
}

static void warn_buckets(struct assembly *a)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < a->join->n_ranks; r++)
        n += a->join->ranks[r].n_bucket_conflicts;
    if (n > 0)
        WARN(a,
             "%u buckets in the profile are not as rank.json lists them: their gradients are "
             "told apart by size alone; are both of one run?",
             n);
}

static void warn_servers(struct assembly *a)
{
    const struct servers *servers = a->servers;
    uint64_t n_pushes = 0;
    if (servers->served.n > 0 && servers->n_unprofiled > 0)
        WARN(a,
             "%u of %u parameter servers have no profile: all time between the last push of a key "
             "and the answer counts as their work; profile the servers, too",
             servers->n_unprofiled, a->join->n_servers);
    for (size_t i = 0; i < servers->served.n; i++)
        n_pushes += (uint64_t)servers->served.at[i].n_pushes * a->n_samples;
    if (servers->n_untimed * UINT64_C(10) > n_pushes)
        WARN(a,
             "%u pushes match no op in their server's profile and take no time there; are profiles "
             "and logs of one run?",
             servers->n_untimed);
}

/* Whether what was recorded only infers: of a GPU alone nothing tells. */
static bool only_forward(const struct dpro_graph *g)
{
    bool forward = false;
    for (uint32_t op = 0; op < g->n_ops; op++) {
        forward |= g->phase[op] == DPRO_OP_FW;
        if (g->phase[op] == DPRO_OP_BW || g->phase[op] == DPRO_OP_UPDATE)
            return false;
    }
    return forward && !g->hides_phases;
}

/* What iterations were found by, unless the framework marks them. */
static void warn_found(struct assembly *a)
{
    static const char *const found_by[] = {
        [STEPS_OPTIMIZER] =
            "no marks of steps: iterations were found by the optimizer's calls (%s)",
        [STEPS_RANGES] = "no marks of steps: iterations were found by the range '%s'",
        [STEPS_PASSES] = "no marks of steps, and no optimizer's step: iterations were found by "
                         "forward and backward passes%s",
        [STEPS_PERIOD] = "no marks of steps: iterations were found by the period of the ops%s"};
    struct dpro_steps steps = a->graph->steps;
    enum step_source source = a->join->ranks[0].steps.source;
    char by[400], each[60] = "";
    if (source == STEPS_NONE)
        WARN(a,
             "no marks of steps, and nothing else tells iterations apart: the whole recording%s is "
             "replayed as one iteration; %s",
             only_forward(a->graph)
                 ? " (inference, or a forward pass alone: it has no backward pass)"
                 : "",
             mark_advice(a));
    else if (source == STEPS_MARKED && a->options->step_mark)
        WARN(a, "iterations are the ranges that --step-mark names ('%s'), %u of them", steps.name,
             steps.n);
    else if (source < sizeof found_by / sizeof *found_by && found_by[source]) {
        snprintf(by, sizeof by, found_by[source], source < STEPS_PASSES ? steps.name : "");
        uint32_t n_without = 0;
        EACH (const struct step, step, a->join->ranks[0].steps)
            n_without += step->holds.n_meetings == step->holds.n_collectives;
        if (steps.n_updates > 0)
            snprintf(each, sizeof each, ", each with %u update%s", steps.n_updates,
                     steps.n_updates > 1 ? "s" : "");
        else if (source == STEPS_OPTIMIZER && n_without > 0 && n_without < steps.n)
            snprintf(each, sizeof each, ", %u of them without an update", n_without);
        WARN(a, "%s, %u of them%s; %s", by, steps.n, each, mark_advice(a));
    }
}

/* How many iterations there are, and how they were found. */
static void warn_steps(struct assembly *a)
{
    const struct rank_build *lead = &a->join->ranks[0];
    if (lead->steps.n_beyond > 0)
        WARN(a,
             "%zu of %zu iterations are learnt from, the others would add little; choose which "
             "with --steps",
             lead->steps.n, lead->steps.n + lead->steps.n_beyond);
    warn_trend(a);
    const char *more = is_pytorch(a) ? " (torch.profiler.schedule(active=10))" : "";
    if (a->n_samples == 1 && lead->steps.n == 1 && !a->graph->single_iteration)
        WARN(a,
             "one iteration only, launched %.1f ms before the GPU had finished earlier work: it is "
             "measured from the end of that work to the end of its own, and the prediction can't "
             "be checked on another one; record 10 iterations%s",
             (double)dpro_graph_pace(a->graph).ahead_ns / 1e6, more);
    else if (a->n_samples == 1 && !a->graph->single_iteration)
        WARN(a, "one iteration only is learnt from: the prediction can't be checked on another "
                "one");
    else if (a->n_samples == 1)
        WARN(a,
             "one iteration only: its makespan is predicted instead of a steady period, and the "
             "prediction can't be checked on another one; record 10 iterations%s",
             more);
    warn_found(a);
}

void assembly_warn(struct assembly *a)
{
    warn_gpu(a);
    warn_cut(a);
    warn_parts(a);
    warn_left_out(a);
    warn_fewer(a);
    warn_unmatched(a);
    warn_ahead(a);
    warn_numbers(a);
    warn_buckets(a);
    if (a->messages->n_partial > 0)
        warn_partial(a);
    if (a->messages->n_whole > 0)
        warn_whole(a);
    assembly_warn_clocks(a);
    warn_servers(a);
    warn_steps(a);
    if (a->n_dropped > 0)
        WARN(a, "%u inferred dependencies contradict each other, left out", a->n_dropped);
}
