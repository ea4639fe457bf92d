/* graph/global/build.c: from a trace to the global data-flow graph: every rank alone, then
 * together. */
#include "graph/rank_build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "graph/clocks/align_ranks.h"
#include "graph/collectives/match_collectives.h"
#include "graph/collectives/session_steps.h"
#include "graph/global/assemble.h"
#include "graph/messages/endpoints.h"
#include "graph/names/span_names.h"
#include "graph/steps/choose_steps.h"
#include "graph/steps/unprofiled.h"

struct build {
    const struct dpro_trace *trace;
    const struct dpro_graph_options *options;
    struct rank_build *ranks;
    uint32_t n_ranks;
    uint32_t *classes;
    uint64_t **hashes; /* [rank][step] */
    struct job job;
};

/* ---- each rank alone ---- */

/* More iterations say no more, and all of a day's would take more memory than their file. */
static void limit_steps(struct rank_build *rank, const struct dpro_graph_options *options)
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

static void cut_rank(void *arg, size_t r)
{
    struct build *build = arg;
    struct rank_build *rank = &build->ranks[r];
    build_steps(rank);
    limit_steps(rank, build->options);
    build_phases(rank);
    build_slices(rank);
    build_pace(rank);
    build->hashes[r] = mem_alloc((rank->steps.n + 1) * sizeof *build->hashes[r]);
    for (uint32_t s = 0; s < rank->steps.n; s++)
        build->hashes[r][s] = build_step_hash(rank, s);
}

static void link_rank(void *arg, size_t r)
{
    struct build *build = arg;
    struct rank_build *rank = &build->ranks[r];
    build_ops(rank);
    build_local_edges(rank);
    build_pace_ops(rank);
    if (rank->trace->fused.track != NO_ID && build->trace->fusion)
        build_fused_tensors(rank, build->trace->fusion);
    else
        build_tensors(rank);
    build_pool(rank);
    build_parts(rank, build->trace);
    build_forget(rank);
}

static int choose(struct build *build, struct dpro_error *err)
{
    struct chooser chooser = {.ranks = build->ranks,
                              .n_ranks = build->n_ranks,
                              .hashes = build->hashes,
                              .options = build->options};
    int status = choose_steps(&chooser, err);
    build->job.join.choice = chooser.choice;
    return status;
}

/* ---- all together ---- */

static void create(struct build *build)
{
    const struct dpro_trace *trace = build->trace;
    build->n_ranks = trace->n_ranks;
    if (trace->n_ranks > 0 && trace->ranks[0].in_session)
        build->n_ranks += trace->n_servers; /* they lie behind the ranks */
    if (build->options->single_rank && build->n_ranks > 1)
        build->n_ranks = 1;
    build->ranks =
        mem_array(build->n_ranks + trace->n_transports + (size_t)1, sizeof *build->ranks);
    build->hashes = mem_array(build->n_ranks + 1, sizeof *build->hashes);
    build->classes = mem_array(trace->names.n + 1, sizeof *build->classes);
    for (uint32_t id = 0; id < trace->names.n; id++)
        build->classes[id] =
            name_classify(strtab_get(&trace->names, id), strtab_len(&trace->names, id));
    for (uint32_t r = 0; r < build->n_ranks; r++) {
        build->ranks[r].trace = &trace->ranks[r];
        build->ranks[r].names = &trace->names;
        build->ranks[r].classes = build->classes;
    }
    build->job.servers.join = &build->job.join;
    build->job.servers.messages = &build->job.messages;
    build->job.join.ranks = build->ranks;
    build->job.join.n_ranks = build->n_ranks;
    build->job.join.world_size = trace->world_size;
}

static void destroy(struct build *build)
{
    for (uint32_t r = 0; build->ranks && r < build->n_ranks + build->job.join.n_servers; r++) {
        struct rank_build *rank = &build->ranks[r];
        build_forget(rank);
        array_fini(&rank->steps);
        array_fini(&rank->ops);
        array_fini(&rank->edges);
        array_fini(&rank->devices);
        array_fini(&rank->collectives);
        array_fini(&rank->tensors);
        array_fini(&rank->sends);
        array_fini(&rank->receives);
        mem_free(rank->sample_step);
        mem_free(rank->start_ns);
        mem_free(rank->end_ns);
        mem_free(rank->free_ns);
        mem_free(rank->seen_start_ns);
        mem_free(rank->seen_end_ns);
        mem_free(rank->parts);
        if (build->hashes && r < build->n_ranks)
            mem_free(build->hashes[r]);
    }
    mem_free(build->ranks);
    mem_free(build->hashes);
    mem_free(build->classes);
    join_fini(&build->job.join);
    messages_fini(&build->job.messages);
    servers_fini(&build->job.servers);
}

static int build_ranks(struct build *build, struct dpro_error *err)
{
    parallel_for(build->n_ranks, 0, cut_rank, build);
    int status = choose(build, err);
    if (status < 0)
        return status;
    parallel_for(build->n_ranks, 0, link_rank, build);
    uint64_t n_ops = 0;
    for (uint32_t r = 0; r < build->n_ranks; r++)
        n_ops += build->ranks[r].n_timed;
    if (n_ops <= build->n_ranks) /* boundaries only */
        return dpro_error_set(err, DPRO_EEMPTY,
                              "no ops found within the trace's iterations; was the profiler active "
                              "while the job trained?");
    join_match(&build->job.join);
    return 0;
}

/* Profiles of which no iterations can be built are no evidence; the transport may be. */
static int run_clocks(struct build *build, struct dpro_graph **graph, struct dpro_error *err)
{
    create(build);
    int status = build->n_ranks > 0 ? build_ranks(build, err) : DPRO_EEMPTY;
    if (status == DPRO_ENOMEM)
        return status;
    if (status < 0 && build->trace->n_transports == 0 && build->trace->n_nccl_logs == 0)
        return build->n_ranks > 0 ? status
                                  : dpro_error_set(err, DPRO_EEMPTY,
                                                   "nothing tells of the ranks' clocks: add their "
                                                   "transport logs or their profiles");
    if (status < 0)
        build->job.join.n_ranks = 0;
    clocks_align(&build->job.join, build->trace, build->options);
    return assemble_clocks(&build->job.join, build->options, graph, err);
}

static int run(struct build *build, struct dpro_graph **graph, struct dpro_error *err)
{
    struct servers *servers = &build->job.servers;
    if (build->options->clocks_only)
        return run_clocks(build, graph, err);
    if (build->trace->n_ranks == 0)
        return dpro_error_set(err, DPRO_EEMPTY,
                              build->trace->n_servers > 0
                                  ? "the trace holds profiles of parameter servers only; add those "
                                    "of the workers"
                                  : "the trace holds no rank");
    create(build);
    int status = build_ranks(build, err);
    if (status < 0)
        return status;
    servers_find(servers, build->trace);
    clocks_align(&build->job.join, build->trace, build->options);
    unprofiled_iterations_find(build->ranks, build->n_ranks, build->trace,
                               &build->job.unprofiled_iterations);
    clocks_move(&build->job.join);
    session_join(&build->job.join);
    join_check_unsure(&build->job.join);
    join_cut_waiting(&build->job.join);
    servers_begin(servers);
    messages_find(&build->job.messages, &build->job.join, build->trace);
    servers_build(servers);
    return assemble_graph(&build->job, build->trace, build->options, graph, err);
}

static int build_graph(const struct dpro_trace *trace, const struct dpro_graph_options *options,
                       struct dpro_graph **graph, struct dpro_error *err)
{
    struct dpro_graph_options defaults = {0};
    struct build build = {.trace = trace, .options = options ? options : &defaults};
    int status = run(&build, graph, err);
    destroy(&build);
    return status;
}

int dpro_graph_build(const struct dpro_trace *trace, const struct dpro_graph_options *options,
                     struct dpro_graph **graph, struct dpro_error *err)
{
    return WITHIN_SCOPE(dpro_error_nomem(err), build_graph(trace, options, graph, err));
}
