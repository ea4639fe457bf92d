/* Builds the global data-flow graph of a trace: every rank alone, then together. */
#include <regex.h>

#include "adapters/tensorflow/session_steps.h"
#include "base/options.h"
#include "base/parallel.h"
#include "graph/builder.h"
#include "graph/clocks/clocks.h"
#include "graph/global/assembly.h"
#include "graph/memory/rank_memory.h"
#include "graph/messages/endpoints.h"
#include "ingest/load.h"

struct build {
    const struct dpro_trace *trace;
    struct dpro_trace *spent; /* the trace, where what became ops is freed; else NULL */
    struct dpro_job_options options;
    struct job job;
    struct dpro_processes *processes; /* that have some of the ranks; NULL: all are here */
    struct arena arena;               /* of what they gave */
    uint64_t n_done;                  /* of the stages below */
};

enum { STAGES_A_RANK = 4, JOINT_STAGES = 5 };

static void tell_stage(struct build *build)
{
    uint64_t n = (uint64_t)STAGES_A_RANK * build->job.join.n_ranks + JOINT_STAGES;
    log_progress_more(&build->options.sink, "build the graph", "stages", &build->n_done, 1, n);
}

/* ---- each rank alone ---- */

/* More iterations say no more, and all of a day's would take more memory than their file. */
static void limit_steps(struct rank_build *rank, const struct dpro_job_options *options)
{
    enum { MOST_STEPS = 1000 };
    size_t first = 0;
    if (rank->steps.n <= MOST_STEPS)
        return;
    while (first + MOST_STEPS < rank->steps.n && rank->steps.at[first].number < options->first_step)
        first++;
    memmove(rank->steps.at, rank->steps.at + first, MOST_STEPS * sizeof *rank->steps.at);
    rank->steps.n_beyond = (uint32_t)(rank->steps.n - MOST_STEPS);
    rank->steps.n = MOST_STEPS;
}

/* Neither needs the other. */
static void find_phases_or_slices(void *rank, size_t item)
{
    if (item == 0)
        build_slices(rank);
    else
        build_phases(rank);
}

static void cut_rank(void *arg, size_t r)
{
    struct build *build = arg;
    struct rank_build *rank = &build->job.join.ranks[r];
    if (rank_is_elsewhere(rank->trace))
        return;
    build_steps(rank);
    limit_steps(rank, &build->options);
    parallel_for(2, rank->threads, find_phases_or_slices, rank);
    build_pace(rank);
    build_contents(rank);
    rank->lacks_gpu = build_lacks_gpu(rank->trace, rank->names);
    uint32_t n_spans = r == 0 && (rank->all_classes & NAME_EXCHANGE) ? rank->trace->n_spans : 0;
    for (uint32_t i = 0; i < n_spans && !rank->steps.has_exchange; i++)
        rank->steps.has_exchange = rank->classes[rank->trace->spans[i].name] & NAME_EXCHANGE;
    tell_stage(build);
}

static void link_rank(void *arg, size_t r)
{
    struct build *build = arg;
    struct rank_build *rank = &build->job.join.ranks[r];
    if (rank_is_elsewhere(rank->trace))
        return;
    build_ops(rank);
    tell_stage(build);
    build_pace_ops(rank);
    build_local_edges(rank);
    tell_stage(build);
    if (rank->trace->fused.track != NO_ID && build->trace->fusion)
        build_fused_tensors(rank, build->trace->fusion);
    else
        build_tensors(rank);
    build_gathers(rank);
    build_passes(rank);
    build_pool(rank);
    build_parts(rank);
    build_learn_calls(rank);
    rank->in_16_bits = build_computes_in_16_bits(rank);
    rank->memory = build_memory(rank, build->options.last_step);
    slow_steps_find(rank);
    build_where(rank);
    build_sum_work(rank);
    build_forget(rank);
    if (build->spent && r < build->trace->n_ranks)
        trace_free_spans(&build->spent->ranks[r]);
    tell_stage(build);
}

/* ---- all together ---- */

/* Marks of steps are the ranges that --step-mark names, and no others. */
static void name_marks(const struct dpro_trace *trace, const char *pattern, uint32_t *classes)
{
    SCRATCH bool *is_range = mem_array(trace->names.n, sizeof *is_range);
    regex_t regex;
    bool compiled = regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB) == 0;
    EACH_OF (const struct trace_rank, rank, trace->ranks, trace->n_ranks)
        for (uint32_t i = 0; i < rank->n_spans; i++)
            is_range[rank->spans[i].name] |=
                rank->spans[i].kind == SPAN_ANNOTATION || rank->spans[i].kind == SPAN_STEP;
    for (uint32_t id = 0; id < trace->names.n; id++) {
        const char *name = strtab_get(&trace->names, id);
        classes[id] &= ~(uint32_t)NAME_STEP;
        if (is_range[id] &&
            (strstr(name, pattern) || (compiled && regexec(&regex, name, 0, NULL, 0) == 0)))
            classes[id] |= NAME_STEP;
    }
    if (compiled)
        regfree(&regex);
}

/* Goes on as if the other ranks were not there. Returns the new index of each, or NO_ID. */
static uint32_t *keep_ranks(struct build *build, const bool *kept)
{
    const struct dpro_trace *trace = build->trace;
    struct dpro_trace *rest = arena_copy(&build->arena, trace, 1, sizeof *rest);
    uint32_t *index = arena_array(&build->arena, trace->n_ranks + (size_t)1, sizeof *index);
    rest->ranks = arena_array(&build->arena, trace->n_ranks + (size_t)trace->n_servers + 1,
                              sizeof *rest->ranks);
    rest->n_ranks = 0;
    for (uint32_t r = 0; r < trace->n_ranks; r++) {
        index[r] = kept[r] ? rest->n_ranks : NO_ID;
        if (kept[r])
            rest->ranks[rest->n_ranks++] = trace->ranks[r];
    }
    if (trace->n_servers > 0)
        rest->servers = memcpy(rest->ranks + rest->n_ranks, trace->servers,
                               trace->n_servers * sizeof *rest->servers);
    rest->transports =
        arena_copy(&build->arena, trace->transports, trace->n_transports, sizeof *rest->transports);
    for (uint32_t t = 0; t < rest->n_transports; t++)
        if (rest->transports[t].rank_index != NO_ID)
            rest->transports[t].rank_index = index[rest->transports[t].rank_index];
    build->trace = rest;
    build->spent = NULL; /* it has the spans, too */
    return index;
}

/* A rank whose GPU worked and was not recorded tells little: where other ranks' was, it is left
 * out. */
static void leave_out_blind(struct build *build)
{
    const struct dpro_trace *trace = build->trace;
    bool *kept = arena_array(&build->arena, trace->n_ranks + (size_t)1, sizeof *kept);
    bool has_gpu = false;
    for (uint32_t r = 0; r < trace->n_ranks; r++)
        has_gpu |= build_has_gpu(&trace->ranks[r]);
    for (uint32_t r = 0; r < trace->n_ranks; r++) {
        kept[r] = !has_gpu || !build_lacks_gpu(&trace->ranks[r], &trace->names);
        if (!kept[r])
            array_push(&build->job.join.blind, trace->ranks[r].rank);
    }
    if (build->job.join.blind.n > 0)
        keep_ranks(build, kept);
}

static void build_create(struct build *build)
{
    if (!build->trace->processes && !build->trace->servers)
        leave_out_blind(build);
    const struct dpro_trace *trace = build->trace;
    struct join *join = &build->job.join;
    uint32_t *classes = mem_array(trace->names.n, sizeof *classes);
    uint32_t all_classes = 0;
    for (uint32_t id = 0; id < trace->names.n; id++)
        classes[id] = name_classify(strtab_get(&trace->names, id), strtab_len(&trace->names, id));
    if (build->options.step_mark)
        name_marks(trace, build->options.step_mark, classes);
    for (uint32_t id = 0; id < trace->names.n; id++)
        all_classes |= classes[id];
    join->n_ranks = trace->n_ranks;
    if (trace->n_ranks > 0 && trace->ranks[0].in_session)
        join->n_ranks += trace->n_servers; /* they lie behind the ranks */
    join->world_size = trace->world_size;
    join->classes = classes;
    join->ranks = mem_array(join->n_ranks + trace->n_transports, sizeof *join->ranks);
    for (uint32_t r = 0; r < join->n_ranks; r++) {
        join->ranks[r].trace = &trace->ranks[r];
        join->ranks[r].names = &trace->names;
        join->ranks[r].classes = classes;
        join->ranks[r].all_classes = all_classes;
        join->ranks[r].steps.named = build->options.step_mark != NULL;
        join->ranks[r].threads = parallel_share(build->options.threads, join->n_ranks);
    }
    build->job.servers.join = join;
    build->job.servers.messages = &build->job.messages;
}

static void destroy_rank(struct rank_build *rank)
{
    build_forget(rank);
    array_fini(&rank->steps);
    packed_free(shared_of_rank, rank);
    FREE_ALL(&rank->sample_step, &rank->start_ns, &rank->end_ns, &rank->free_ns,
             &rank->seen_start_ns, &rank->seen_end_ns, &rank->parts, &rank->unit_requests);
    rank_memory_destroy(rank->memory);
}

static void build_destroy(struct job *job)
{
    for (uint32_t r = 0; r < job->join.n_ranks + job->join.n_servers; r++)
        destroy_rank(&job->join.ranks[r]);
    join_fini(&job->join);
    messages_fini(&job->messages);
    servers_fini(&job->servers);
    dimensions_fini(&job->dimensions);
}

/* Ranks whose files are cut off within their first iteration, or lack a thread that communicates,
 * are left out, where others are whole.
 * Not where several processes have them: each has built its own by now. */
static void leave_out_cut(struct build *build, struct chooser *chooser)
{
    struct join *join = &build->job.join;
    uint32_t n = build->trace->n_ranks, to = 0;
    bool *kept = arena_array(&build->arena, n + (size_t)1, sizeof *kept);
    if (!build->processes)
        steps_leave_out_lacking(chooser);
    for (uint32_t r = 0; r < n; r++) {
        kept[r] = steps_cut_window(chooser, r) == NO_ID;
        to += kept[r];
    }
    if (to == n || to == 0 || build->processes)
        return;
    const uint32_t *index = keep_ranks(build, kept);
    to = 0;
    for (uint32_t r = 0; r < join->n_ranks; r++) {
        struct rank_build *rank = &join->ranks[r];
        uint32_t window = r < n ? steps_cut_window(chooser, r) : NO_ID;
        if (window != NO_ID) {
            uint32_t file = rank->trace->windows[window].file;
            array_add(&join->cut, rank->trace->rank, build->trace->files[file].path);
            destroy_rank(rank);
        } else {
            join->ranks[to++] = *rank;
        }
    }
    memset(&join->ranks[to], 0, (join->n_ranks - to) * sizeof *join->ranks);
    join->n_ranks = chooser->n_ranks = to;
    EACH (struct left_out, odd, chooser->choice.left_out)
        odd->rank = odd->rank < n ? index[odd->rank] : odd->rank - n + build->trace->n_ranks;
}

static void hear_ranks(struct build *build)
{
    struct join *join = &build->job.join;
    uint32_t n = 0;
    shared_hear_ranks(join, build->processes, &build->arena);
    for (uint32_t r = 0; r < join->n_ranks; r++)
        n += rank_is_elsewhere(join->ranks[r].trace);
    log_line(&build->options.sink, DPRO_LOG_INFO,
             "%u of %u ranks built by other processes, %" PRIu64 " kB received for each", n,
             join->n_ranks, n ? build->processes->n_received / n / 1000 : 0);
    processes_let_go(build->processes);
    build->options.threads = dpro_processes_threads(build->processes, build->options.threads);
}

static int build_ranks(struct build *build, struct dpro_error *err)
{
    struct join *join = &build->job.join;
    struct chooser chooser = {.ranks = join->ranks,
                              .n_ranks = join->n_ranks,
                              .options = &build->options,
                              .files = build->trace->files};
    parallel_for(join->n_ranks, build->options.threads, cut_rank, build);
    if (build->processes)
        shared_hear_steps(join, build->processes);
    steps_leave_out_incomplete(&chooser);
    leave_out_cut(build, &chooser);
    int status = choose_steps(&chooser, err);
    join->choice = chooser.choice;
    if (status < 0)
        return status;
    if (build->processes)
        shared_answer_steps(join, build->processes);
    parallel_for(join->n_ranks, build->options.threads, link_rank, build);
    if (build->processes)
        hear_ranks(build);
    uint64_t n_ops = 0;
    for (uint32_t r = 0; r < join->n_ranks; r++)
        n_ops += join->ranks[r].n_timed;
    if (n_ops <= join->n_ranks) /* boundaries only */
        return dpro_error_set(err, DPRO_EEMPTY,
                              "no ops found within the trace's iterations; was the profiler active "
                              "while the job trained?");
    join_find_groups(join, build->trace);
    join_match(join);
    tell_stage(build);
    return 0;
}

/* Profiles of which no iterations can be built are no evidence; the transport may be. */
static void build_clocks(struct build *build, struct dpro_graph **graph)
{
    struct join *join = &build->job.join;
    struct dpro_error why;
    int status = join->n_ranks > 0 ? build_ranks(build, &why)
                                   : dpro_error_set(&why, DPRO_EEMPTY,
                                                    "nothing tells of the ranks' clocks: add their "
                                                    "transport logs or their profiles");
    if (build->trace->n_transports == 0 && build->trace->n_nccl_logs == 0)
        fail_on(status, &why);
    if (status < 0)
        join->n_ranks = 0;
    clocks_align(join, build->trace, &build->options);
    assemble_clocks(join, &build->options, graph);
}

static void build_ops_and_clocks(struct build *build, struct dpro_graph **graph)
{
    struct job *job = &build->job;
    struct dpro_error why;
    if (build->trace->n_ranks == 0)
        fail_with(DPRO_EEMPTY, "%s",
                  build->trace->n_servers > 0
                      ? "the trace holds profiles of parameter servers only; add those "
                        "of the workers"
                      : "the trace holds no rank");
    fail_on(build_ranks(build, &why), &why);
    servers_find(&job->servers, build->trace);
    clocks_align(&job->join, build->trace, &build->options);
    unprofiled_iterations_find(job->join.ranks, job->join.n_ranks, build->trace,
                               &job->unprofiled_iterations);
    clocks_move(&job->join, build->options.threads);
    tell_stage(build);
    session_join(&job->join);
    join_check_unsure(&job->join);
    join_cut_waiting(&job->join);
    servers_begin(&job->servers);
    messages_find(&job->messages, &job->join, build->trace);
    servers_build(&job->servers);
    tell_stage(build);
    job->join.of_stages = build->trace->stages != NULL;
    dimensions_find(&job->dimensions, &job->join, build->options.dimensions);
    tell_stage(build);
    assemble_graph(job, build->trace, &build->options, graph);
    tell_stage(build);
}

static void build_graph(const struct dpro_trace *trace, struct dpro_trace *spent,
                        const struct dpro_job_options *options, struct dpro_graph **graph)
{
    struct build build = {.trace = trace, .spent = spent, .processes = trace->processes};
    struct dpro_error why;
    fail_on(OPTIONS_TAKE(&build.options, options, &why), &why);
    build_create(&build);
    uint32_t n_ranks = build.job.join.n_ranks;
    (build.options.clocks_only ? build_clocks : build_ops_and_clocks)(&build, graph);
    build.job.join.n_ranks = n_ranks; /* all those that were built */
    build_destroy(&build.job);
    arena_fini(&build.arena);
}

int dpro_graph_build(const struct dpro_trace *trace, const struct dpro_job_options *options,
                     struct dpro_graph **graph, struct dpro_error *err)
{
    return OUTCOME(err, build_graph(trace, NULL, options, graph));
}

int graph_build_from(struct dpro_trace *trace, const struct dpro_job_options *options,
                     struct dpro_graph **graph, struct dpro_error *err)
{
    return OUTCOME(err, build_graph(trace, trace, options, graph));
}

/* ---- in another process ---- */

static int build_share(struct dpro_trace *trace, const struct dpro_job_options *options)
{
    struct build build = {.trace = trace, .options = *options};
    struct join *join = &build.job.join;
    build_create(&build);
    parallel_for(join->n_ranks, options->threads, cut_rank, &build);
    if (shared_tell_steps(join, trace->processes)) {
        parallel_for(join->n_ranks, options->threads, link_rank, &build);
        shared_tell_ranks(join, trace->processes);
    }
    build_destroy(&build.job);
    return 0;
}

static int build_help(const char *const *paths, size_t n_paths,
                      const struct dpro_job_options *options)
{
    struct dpro_trace *trace;
    int rc = trace_load_share(paths, n_paths, options, &trace);
    if (rc == 0)
        rc = build_share(trace, options);
    dpro_trace_destroy(trace);
    return 0;
}

int dpro_processes_help(const char *const *paths, size_t n_paths,
                        const struct dpro_job_options *options, struct dpro_error *err)
{
    return WITHIN_SCOPE(dpro_error_nomem(err), build_help(paths, n_paths, options));
}
