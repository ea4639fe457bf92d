/* Opens a job, and makes its trace, graph and models when they are first asked for. */
#include "job/job.h"

#include "base/options.h"
#include "cost/change/turns.h"
#include "graph/builder.h"

/* ---- from paths on ---- */

static const char *job_kept(struct dpro_job *job, const char *text)
{
    return text ? arena_copy_string(&job->arena, text, strlen(text)) : NULL;
}

static int open_job(const char *const *paths, size_t n_paths,
                    const struct dpro_job_options *options, struct dpro_job **made,
                    struct dpro_error *err)
{
    struct dpro_job_options mine;
    int rc = OPTIONS_TAKE(&mine, options, err);
    if (rc < 0)
        return rc;
    if (n_paths == 0)
        return dpro_error_set(err, DPRO_EUSAGE, "no trace given; name a folder or files");
    if (mine.threads < 0)
        return dpro_error_set(err, DPRO_EUSAGE, "%d threads can't work; 0 is one a core",
                              mine.threads);
    struct dpro_job *job = mem_array(1, sizeof *job);
    const char **copies = arena_array(&job->arena, n_paths, sizeof *copies);
    for (size_t i = 0; i < n_paths; i++)
        copies[i] = job_kept(job, paths[i]);
    job->paths = copies;
    job->n_paths = n_paths;
    job->daydream_rate = -1;
    job->options = mine;
    job->options.rank_regex = job_kept(job, mine.rank_regex);
    job->options.dimensions = job_kept(job, mine.dimensions);
    job->options.step_mark = job_kept(job, mine.step_mark);
    job->options.probes = job_kept(job, mine.probes);
    if (mine.shown) {
        job->shown = *mine.shown;
        job->options.shown = &job->shown;
    }
    job_begin_stage(job);
    *made = job;
    return 0;
}

int dpro_job_open(const char *const *paths, size_t n_paths, const struct dpro_job_options *options,
                  struct dpro_job **job, struct dpro_error *err)
{
    return WITHIN_SCOPE(dpro_error_nomem(err), open_job(paths, n_paths, options, job, err));
}

void job_forget_lines(struct dpro_job *job)
{
    for (size_t i = 0; i < job->lines.n; i++)
        mem_free(job->lines.at[i]);
    array_fini(&job->lines);
}

void dpro_job_close(struct dpro_job *job)
{
    if (!job)
        return;
    job_forget_lines(job);
    dpro_optimum_destroy(job->optimum);
    dpro_diagnosis_destroy(job->diagnosis);
    dpro_against_destroy(job->against);
    dpro_whatif_destroy(job->whatif);
    dpro_replay_destroy(job->replay);
    dpro_tables_destroy(job->tables);
    dpro_replay_destroy(job->replayed);
    for (int all = 0; all < 2; all++) {
        dpro_model_destroy(job->models[all]);
        turns_destroy(job->turns[all]);
    }
    dpro_probes_destroy(job->probes);
    dpro_graph_destroy(job->graph);
    dpro_trace_destroy(job->trace);
    arena_fini(&job->arena);
    mem_free(job);
}

/* ---- stages ---- */

void job_begin_stage(struct dpro_job *job)
{
    clock_gettime(CLOCK_MONOTONIC, &job->since);
}

void dpro_job_tell_stage(struct dpro_job *job, const char *stage)
{
    struct timespec before = job->since;
    job_begin_stage(job);
    log_line(&job->options.sink, DPRO_LOG_INFO, "%s: %.3f s", stage,
             (double)(job->since.tv_sec - before.tv_sec) +
                 1e-9 * (double)(job->since.tv_nsec - before.tv_nsec));
}

int dpro_job_help(struct dpro_job *job, struct dpro_error *err)
{
    return dpro_processes_help(job->paths, job->n_paths, &job->options, err);
}

static int make_trace(struct dpro_job *job, struct dpro_error *err)
{
    if (job->trace)
        return 0;
    job_begin_stage(job);
    int rc = dpro_trace_load(job->paths, job->n_paths, &job->options, &job->trace, err);
    if (rc == 0)
        dpro_job_tell_stage(job, "read the traces");
    return rc;
}

static int make_graph(struct dpro_job *job, struct dpro_error *err)
{
    int rc = make_trace(job, err);
    if (job->graph || rc < 0)
        return rc;
    job_begin_stage(job);
    if (job->unbuilt.code == 0 &&
        graph_build_from(job->trace, &job->options, &job->graph, &job->unbuilt) == 0)
        job->unbuilt.code = 0; /* that profiles failed, where logs sufficed, may stand in it */
    if (job->unbuilt.code < 0) {
        if (err)
            *err = job->unbuilt;
        return job->unbuilt.code;
    }
    job->threads = dpro_processes_threads(job->options.processes, job->options.threads);
    dpro_job_tell_stage(job, "built the graph");
    return 0;
}

/* Not again where it was taken out, but an iteration could not be replayed after that. */
int job_take_out_profiler(struct dpro_job *job, struct dpro_error *err)
{
    struct dpro_replay_options options = {.threads = job->threads, .sink = job->options.sink};
    int64_t without;
    if (job->profiler.is_out || job->options.keep_profiler)
        return 0;
    if (dpro_graph_profiler_op_ns(job->graph) != 0 || graph_tracing_ratio(job->graph) != 1) {
        int rc = dpro_replay_predict(job->graph, &options, &job->profiler.with_ns, err);
        if (rc < 0)
            return rc;
        job->profiler.op_ns = dpro_graph_profiler_op_ns(job->graph);
        dpro_graph_take_out_profiler(job->graph);
    }
    if (job->profiler.with_ns != 0) {
        int rc = dpro_replay_predict(job->graph, &options, &without, err);
        if (rc < 0)
            return rc;
        job->profiler.ns = job->profiler.with_ns > without ? job->profiler.with_ns - without : 0;
    }
    job->profiler.is_out = true;
    return 0;
}

static int make_model(struct dpro_job *job, bool all, struct dpro_error *err)
{
    int rc = make_graph(job, err);
    if (job->models[all] || rc < 0)
        return rc;
    if (job->options.probes && !job->probes &&
        (rc = dpro_probes_read(job->options.probes, job->trace, &job->probes, err)) < 0)
        return rc;
    job_begin_stage(job);
    if ((rc = job_take_out_profiler(job, err)) < 0)
        return rc;
    struct dpro_model_options options = {.profiler_ns = job->profiler.ns,
                                         .probes = job->probes ? job->probes
                                                               : dpro_trace_probes(job->trace),
                                         .sink = job->options.sink,
                                         .all_communication = all};
    if ((rc = dpro_model_build(job->graph, &options, &job->models[all], err)) == 0 &&
        (rc = turns_read(job->paths, job->n_paths, job->graph, job->models[all], job->trace,
                         &job->turns[all], err)) == 0) {
        job->models[all]->turns = job->turns[all];
        dpro_job_tell_stage(job, "learnt the model");
    }
    return rc;
}

int dpro_job_trace(struct dpro_job *job, const struct dpro_trace **trace, struct dpro_error *err)
{
    int rc = make_trace(job, err);
    if (rc == 0)
        *trace = job->trace;
    return rc;
}

int dpro_job_graph(struct dpro_job *job, const struct dpro_graph **graph, struct dpro_error *err)
{
    int rc = make_graph(job, err);
    if (rc == 0)
        *graph = job->graph;
    return rc;
}

int dpro_job_model(struct dpro_job *job, int all_communication, const struct dpro_model **model,
                   struct dpro_error *err)
{
    int rc = make_graph(job, err);
    if (rc < 0)
        return rc;
    bool all = all_communication || dpro_graph_is_sharded(job->graph);
    if ((rc = make_model(job, all, err)) == 0)
        *model = job->models[all];
    return rc;
}

int job_replay(struct dpro_job *job, struct dpro_error *err)
{
    struct dpro_replay_options options = {.threads = job->threads, .sink = job->options.sink};
    int rc = job_take_out_profiler(job, err);
    return rc < 0 || job->replayed ? rc
                                   : dpro_replay_run(job->graph, &options, &job->replayed, err);
}

int dpro_job_memory(struct dpro_job *job, uint32_t rank_index, struct dpro_rank_memory *memory,
                    struct dpro_error *err)
{
    int rc = make_graph(job, err);
    if (rc < 0 || (rc = job_replay(job, err)) < 0)
        return rc;
    const struct dpro_replay_view *found = dpro_replay_view(job->replayed);
    *memory = rank_index < found->n_ranks
                  ? found->memory[rank_index]
                  : (struct dpro_rank_memory){.rank = -1, .source = DPRO_MEMORY_UNKNOWN};
    return 0;
}

int dpro_job_tables(struct dpro_job *job, const struct dpro_tables **tables, struct dpro_error *err)
{
    int rc = make_graph(job, err);
    if (rc == 0)
        rc = job_replay(job, err);
    if (rc == 0 && !job->tables)
        rc = dpro_tables_create(job->graph, job->replayed, &job->tables, err);
    *tables = job->tables;
    return rc;
}

/* ---- warnings ---- */

#define NTH_OF(kind, object)                                                                       \
    if ((object) != NULL) {                                                                        \
        size_t n = dpro_##kind##_n_warnings(object);                                               \
        if (index < n)                                                                             \
            return dpro_##kind##_warning(object, index);                                           \
        index -= n;                                                                                \
    }

const char *dpro_job_warning(const struct dpro_job *job, size_t index)
{
    NTH_OF(trace, job->trace)
    NTH_OF(graph, job->graph)
    for (int all = 0; all < 2; all++)
        NTH_OF(model, job->models[all])
    NTH_OF(whatif, job->whatif)
    return index < job->lines.n ? job->lines.at[index] : NULL;
}

size_t dpro_job_n_warnings(const struct dpro_job *job)
{
    size_t n = 0;
    while (dpro_job_warning(job, n))
        n++;
    return n;
}
