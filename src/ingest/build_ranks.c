/* The trace's ranks from the sources: what each is made of. */

#include "base/parallel.h"
#include "ingest/load.h"
#include "ingest/rank_job.h"

enum { MAX_WINDOWS = UINT16_MAX };

ORDER_OF_POINTERS(by_rank, struct source,
                  COMPARE((unsigned)x->rank, (unsigned)y->rank) /* servers last */
                      ?: -COMPARE(source_is_profile(x), source_is_profile(y))
                      ?: (source_is_profile(x) ? COMPARE(x->part.start_ns, y->part.start_ns) : 0)
                      ?: COMPARE(x, y));

/* ---- which files a rank is of ---- */

/* What says what ran rather than when. */
static bool tells_structure(const struct source *source)
{
    return source->reader->flags & READER_STRUCTURE || source->part.dfg_nodes.n > 0;
}

static struct source *better_graph(struct source *graph, struct source *other)
{
    return !graph || other->part.graph < graph->part.graph ? other : graph;
}

/* Of readers in different files the same text may lie in two places. */
static bool same_framework(const struct source *a, const struct source *b)
{
    const char *x = a->reader->framework, *y = b->reader->framework;
    return x == y || (x && y && strcmp(x, y) == 0);
}

static void find_graph(struct trace_build *build, struct rank_job *job)
{
    for (size_t i = 0; i < job->n_sources; i++) {
        struct source *source = job->sources[i];
        if (source->part.dfg_nodes.n == 0)
            continue;
        job->graph = better_graph(job->graph, source);
        if (source->part.graph == GRAPH_AS_WRITTEN)
            job->shapes = source;
    }
    if (job->graph || job->rank->rank < 0)
        return;
    for (size_t i = 0; i < build->list.n; i++) { /* all workers run one, which may be no rank's */
        struct source *source = &build->list.at[i];
        if (source_is_everyones(source) && source->part.dfg_nodes.n > 0 &&
            same_framework(source, job->sources[0]))
            job->graph = better_graph(job->graph, source);
    }
}

static int check_windows(const struct rank_job *job, struct dpro_error *err)
{
    uint64_t n_spans = 0;
    size_t n_windows = 0;
    for (size_t w = 0; w < job->n_windows; w++) {
        n_spans += job->sources[w]->part.n_spans;
        n_windows += MAX(job->sources[w]->part.session.cuts.n, 1);
    }
    if (n_windows > MAX_WINDOWS || n_spans >= NO_ID)
        return dpro_error_set(err, DPRO_EFORMAT,
                              "%s: rank %d has %zu recordings with %" PRIu64
                              " spans, more than dpro can number; give fewer files",
                              job->sources[0]->path, job->rank->rank, n_windows, n_spans);
    for (size_t w = 1; w < job->n_windows; w++) {
        const struct source *a = job->sources[w - 1], *b = job->sources[w];
        if (a->part.process.pid && b->part.process.pid &&
            a->part.process.pid != b->part.process.pid)
            return dpro_error_set(err, DPRO_EFORMAT,
                                  "%s and %s: both of rank %d, by different processes (%" PRIu64
                                  " and %" PRIu64 "), so of two runs; give one run's files only",
                                  a->path, b->path, job->rank->rank, a->part.process.pid,
                                  b->part.process.pid);
        if (b->part.most_number > b->part.least_number &&
            b->part.most_number <= a->part.most_number && b->part.start_ns >= a->part.end_ns)
            return dpro_error_set(
                err, DPRO_EFORMAT,
                "%s and %s: both of rank %d, and in the later one autograd counts "
                "its ops anew (up to %" PRId64 ", before up to %" PRId64
                "), so of two runs; give one run's files only",
                a->path, b->path, job->rank->rank, b->part.most_number, a->part.most_number);
        if (b->part.start_ns < a->part.end_ns)
            return dpro_error_set(err, DPRO_EFORMAT,
                                  "%s and %s: both of rank %d and overlapping in time; give one of "
                                  "them, or tell the ranks apart with --rank-regex",
                                  a->path, b->path, job->rank->rank);
    }
    return 0;
}

static void list_windows(const struct source_list *list, struct rank_job *job)
{
    struct trace_rank *rank = job->rank;
    for (size_t w = 0; w < job->n_windows; w++) {
        const struct source *source = job->sources[w];
        const struct trace_part *part = &source->part;
        struct trace_window window = {.file = (uint32_t)(source - list->at),
                                      .start_ns = part->start_ns,
                                      .end_ns = part->end_ns,
                                      .whole_start_ns = part->session.whole_start_ns,
                                      .whole_end_ns = part->session.whole_end_ns,
                                      .is_cut = source_is_damaged(source)};
        for (size_t c = 0; c < part->session.cuts.n; c++) {
            window.start_ns = part->session.cuts.at[c].start_ns + part->base_ns;
            window.end_ns = part->session.cuts.at[c].end_ns + part->base_ns;
            window.whole_start_ns = part->session.cuts.at[c].whole_start_ns;
            window.whole_end_ns = part->session.cuts.at[c].whole_end_ns;
            RANK_PUSH(rank, windows, window);
        }
        if (part->session.cuts.n == 0)
            RANK_PUSH(rank, windows, window);
    }
}

/* ---- what the files say of the rank as a whole ---- */

struct source *job_source(struct trace_build *build, struct rank_job *job,
                          const struct payload_kind *kind, const char *what, const char *does)
{
    struct source *best = NULL;
    for (size_t i = 0; i < job->n_sources; i++) {
        const void *payload = source_payload(job->sources[i], kind);
        if (payload && (!best || job->sources[i]->part.n_events > best->part.n_events))
            best = job->sources[i];
    }
    for (size_t i = 0; i < job->n_sources; i++)
        if (job->sources[i] != best && source_payload(job->sources[i], kind))
            rank_warn(build, job, "%s: %s rank %d%s, skipped; %s is used", job->sources[i]->path,
                      what, job->rank->rank, does, best->path);
    return best;
}

static void copy_group(struct trace_group *to, const struct trace_group *from,
                       const uint32_t *names, struct arena *arena)
{
    *to = *from;
    RENAME(names, &to->name, &to->description);
    to->ranks = arena_copy(arena, from->ranks, from->n_ranks, sizeof *to->ranks);
}

void rank_describe(struct trace_rank *rank, const struct source *source, struct arena *arena)
{
    const struct trace_part *part = &source->part;
    rank->world_size = rank->world_size ?: part->process.world_size;
    rank->pid = rank->pid ?: part->process.pid;
    rank->host = rank->host ?: source->names[part->process.host];
    rank->backend = rank->backend ?: source->names[part->process.backend];
    rank->device = rank->device ?: source->names[part->process.device_name];
    if (rank->n_groups || part->groups.n == 0)
        return;
    rank->groups = arena_array(arena, part->groups.n, sizeof *rank->groups);
    for (size_t g = 0; g < part->groups.n; g++)
        copy_group(&rank->groups[rank->n_groups++], &part->groups.at[g], source->names, arena);
}

/* ---- jobs ---- */

/* One rank, or another process, of which all sources are given. */
static int ranks_prepare(struct trace_build *build, struct rank_job *job, struct dpro_error *err)
{
    struct trace_rank *rank = job->rank;
    rank->rank = job->sources[0]->rank;
    rank->in_session = job->sources[0]->part.session.is_step;
    rank->process = job->sources[0]->process;
    while (job->n_windows < job->n_sources && source_is_profile(job->sources[job->n_windows]))
        job->n_windows++;
    find_graph(build, job);
    int rc = check_windows(job, err);
    if (rc < 0)
        return rc;
    for (size_t w = 0; w < job->n_windows; w++)
        rank_describe(rank, job->sources[w], &build->trace->arena);
    list_windows(&build->list, job);
    CALL_ALL(build->table, describe, build, job);
    if (!rank_is_elsewhere(rank))
        rank_check_allocations(build, job);
    return 0;
}

/* Jobs of all ranks, then of servers. */
static int prepare_all(struct trace_build *build, struct source **sorted, size_t n,
                       struct rank_job *jobs, size_t *n_jobs, struct dpro_error *err)
{
    struct dpro_trace *trace = build->trace;
    trace->ranks = arena_array(&trace->arena, n, sizeof *trace->ranks);
    for (size_t i = 0, end; i < n; i = end) {
        end = RUN_END(k, i, n, sorted[k]->rank == sorted[i]->rank);
        if (!source_is_profile(sorted[i])) { /* profiles go first: there is none */
            build_warn(build,
                       "%s: there is no profile of rank %d beside it: without times it is left "
                       "out; add the profile of the same run",
                       sorted[i]->path, sorted[i]->rank);
            continue;
        }
        struct rank_job *job = &jobs[*n_jobs];
        *job = (struct rank_job){.table = build->table,
                                 .rank = &trace->ranks[*n_jobs],
                                 .sources = sorted + i,
                                 .n_sources = end - i,
                                 .names = &trace->names};
        ++*n_jobs;
        if (sorted[i]->rank >= 0) {
            trace->n_ranks = (uint32_t)*n_jobs;
        } else {
            trace->servers = &trace->ranks[trace->n_ranks];
            trace->n_servers = (uint32_t)*n_jobs - trace->n_ranks;
        }
        int rc = ranks_prepare(build, job, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

struct joining {
    const struct trace_build *build;
    struct rank_job *jobs;
    size_t n;
    uint64_t n_done;
};

static void build_item(void *arg, size_t item)
{
    struct joining *all = arg;
    struct trace_rank *rank = all->jobs[item].rank;
    if (!rank_is_elsewhere(rank)) {
        rank_build(&all->jobs[item]);
        rank_put_on_epoch(rank);
        if (all->build->has_logs)
            runs_list(&all->build->trace->names, rank);
    }
    log_progress_more(&all->build->options->sink, "join the files", "ranks", &all->n_done, 1,
                      all->n);
}

/* ---- what is said ---- */

/* Ops that are in no node of the graph: of another run, or of a function without a graph. */
static void warn_unmatched(struct trace_build *build, const struct rank_job *job)
{
    const char *process = NET_PROCESS(job->rank->rank);
    if (job->n_node_spans > 0)
        log_line(&build->options->sink, DPRO_LOG_DEBUG, "%s: %s of %s ops of %s are nodes of it",
                 job->graph->path, COUNT_TEXT(job->n_node_spans - job->n_unmatched),
                 COUNT_TEXT(job->n_node_spans), process);
    if (job->n_unmatched == 0)
        return;
    bool none = job->n_unmatched == job->n_node_spans;
    build_warn(build, "%s: %s of %s ops of %s's profile are no nodes of this graph (first: %s); %s",
               job->graph->path, COUNT_TEXT(job->n_unmatched), COUNT_TEXT(job->n_node_spans),
               process, strtab_get(&build->trace->names, job->first_unmatched),
               none ? "are both of one run? Dependencies are read off the timeline"
                    : "the dependencies of these are unknown");
}

/* Said once: some executors run many ops as one where they are not told otherwise. */
static void warn_bulks(struct trace_build *build, const struct rank_job *jobs, size_t n_jobs)
{
    size_t i = 0;
    while (i < n_jobs && jobs[i].n_bulks == 0)
        i++;
    if (i < n_jobs)
        build_warn(build,
                   "%s: %s of %s ops of rank %d are bulks of several nodes of the graph, each "
                   "replayed as one op; %s",
                   jobs[i].sources[0]->path, COUNT_TEXT(jobs[i].n_bulks),
                   COUNT_TEXT(jobs[i].n_node_spans), jobs[i].rank->rank, jobs[i].bulk_advice);
}

static void ranks_finish(struct trace_build *build, struct rank_job *jobs, size_t n_jobs)
{
    struct dpro_trace *trace = build->trace;
    for (size_t i = 0; i < n_jobs; i++) {
        for (size_t k = 0; k < jobs[i].warnings.n; k++)
            build_warn(build, "%s", jobs[i].warnings.at[k]);
        array_fini(&jobs[i].warnings);
    }
    EACH_OF (const struct rank_job, job, jobs, n_jobs) {
        if (job->rank->world_size > trace->world_size)
            trace->world_size = job->rank->world_size;
        if (job->rank->rank >= trace->world_size)
            trace->world_size = job->rank->rank + 1;
        if (job->n_duplicates)
            build_warn(build, "%s: %s spans written twice, one of each kept", job->sources[0]->path,
                       COUNT_TEXT(job->n_duplicates));
    }
    for (size_t i = 0; i < n_jobs; i++)
        warn_unmatched(build, &jobs[i]);
    warn_bulks(build, jobs, n_jobs);
}

int ranks_build(struct trace_build *build, struct dpro_error *err)
{
    SCRATCH struct source **sorted = mem_array(build->list.n, sizeof *sorted);
    SCRATCH struct rank_job *jobs = mem_array(build->list.n, sizeof *jobs);
    size_t n = 0, n_jobs = 0;
    EACH (struct source, source, build->list)
        if (source_usable(source) && source->rank != -1 &&
            (source_is_profile(source) || tells_structure(source)))
            sorted[n++] = source;
    qsort(sorted, n, sizeof *sorted, by_rank);
    int rc = prepare_all(build, sorted, n, jobs, &n_jobs, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < n_jobs; i++)
        jobs[i].threads = parallel_share(build->options->threads, n_jobs);
    struct joining all = {.build = build, .jobs = jobs, .n = n_jobs};
    parallel_for(n_jobs, build->options->threads, build_item, &all);
    if (build->processes)
        rc = shared_join_ranks(build, jobs, n_jobs);
    ranks_finish(build, jobs, n_jobs);
    return rc;
}
