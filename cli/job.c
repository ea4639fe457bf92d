/* Reads a job's traces and builds its graph, for the commands that work on one. */
#include "job.h"

#include <stdio.h>

#include "progress.h"
#include "together.h"

void job_tell_stage(const struct dpro_sink *sink, struct timespec *since, const char *stage)
{
    struct timespec now;
    char text[64];
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (sink->log != NULL) {
        snprintf(text, sizeof text, "%s: %.3f s", stage,
                 (double)(now.tv_sec - since->tv_sec) +
                     1e-9 * (double)(now.tv_nsec - since->tv_nsec));
        sink->log(sink->arg, DPRO_LOG_INFO, text);
    }
    *since = now;
}

int job_read(const char *const *paths, size_t n_paths, const struct cmd_values *values,
             bool without_profile, const struct dpro_graph_options *graph_options, struct job *job)
{
    *job = (struct job){.sink = progress_start(values->verbosity, values->quiet)};
    struct dpro_trace_options options = {.rank_regex = values->rank_regex,
                                         .threads = values->threads,
                                         .from_host = values->ranks_from,
                                         .without_profile = without_profile,
                                         .processes = together(),
                                         .sink = job->sink};
    struct dpro_error err = {.code = 0};
    if (graph_options != NULL && dpro_processes_number(together()) > 0)
        together_help(paths, n_paths, &options, graph_options);
    if (dpro_trace_load(paths, n_paths, &options, &job->trace, &err) == 0) {
        const char *idle = dpro_processes_idle(together());
        if (idle != NULL && !values->quiet)
            cmd_say("%s, so the other processes of mpirun have nothing to do", idle);
        return 0;
    }
    int code = cmd_fail(&err);
    /* a path that can't be read is bad input, not a failing system */
    return code == CMD_SYSTEM && err.code == DPRO_EIO ? CMD_INPUT : code;
}

int job_load(const char *const *paths, size_t n_paths, const struct cmd_values *values,
             struct job *job)
{
    struct dpro_error err = {.code = 0};
    struct timespec since;
    clock_gettime(CLOCK_MONOTONIC, &since);
    struct dpro_graph_options options = {.first_step = values->steps.first,
                                         .last_step = values->steps.last,
                                         .no_align = values->no_align,
                                         .raw_receives = values->raw_receives,
                                         .dimensions = values->dimensions,
                                         .step_mark = values->step_mark,
                                         .shown =
                                             values->shown.given ? &values->shown.number : NULL,
                                         .threads = values->threads};
    int code = job_read(paths, n_paths, values, false, &options, job);
    if (code != 0)
        return code;
    options.sink = job->sink;
    options.spent = job->trace;
    job_tell_stage(&job->sink, &since, "read the traces");
    if (dpro_graph_build(job->trace, &options, &job->graph, &err) < 0) {
        job_fini(job);
        return cmd_fail(&err);
    }
    job->threads = dpro_processes_threads(together(), values->threads);
    job_tell_stage(&job->sink, &since, "built the graph");
    return 0;
}

void job_fini(struct job *job)
{
    dpro_probes_destroy(job->probes);
    dpro_graph_destroy(job->graph);
    dpro_trace_destroy(job->trace);
    *job = (struct job){.trace = NULL};
}

int job_take_out_profiler(struct job *job, const struct dpro_replay_options *options,
                          int64_t *op_ns, int64_t *profiler_ns, struct dpro_error *err)
{
    int64_t with, without;
    *profiler_ns = 0;
    *op_ns = dpro_graph_profiler_op_ns(job->graph);
    if (*op_ns == 0)
        return 0;
    int rc = dpro_replay_predict(job->graph, options, &with, err);
    dpro_graph_take_out_profiler(job->graph);
    if (rc == 0)
        rc = dpro_replay_predict(job->graph, options, &without, err);
    if (rc == 0)
        *profiler_ns = with > without ? with - without : 0;
    return rc;
}

static int learn_model(const struct cmd_values *values, struct job *job, bool all_communication,
                       struct dpro_model **model)
{
    struct dpro_replay_options replay_options = {.sink = job->sink};
    struct dpro_model_options model_options = {.probes = dpro_trace_probes(job->trace),
                                               .sink = job->sink,
                                               .all_communication = all_communication};
    struct dpro_error err = {.code = 0};
    if (values->probes != NULL) {
        if (dpro_probes_read(values->probes, job->trace, &job->probes, &err) < 0)
            return cmd_fail(&err);
        model_options.probes = job->probes;
    }
    struct timespec since;
    clock_gettime(CLOCK_MONOTONIC, &since);
    int64_t op_ns;
    if (job_take_out_profiler(job, &replay_options, &op_ns, &model_options.profiler_ns, &err) < 0)
        return cmd_fail(&err);
    if (dpro_model_build(job->graph, &model_options, model, &err) < 0)
        return cmd_fail(&err);
    job_tell_stage(&job->sink, &since, "learnt the model");
    return 0;
}

int job_with_model(const void *values, const struct opt_list *paths, bool all_communication,
                   int (*work)(const void *values, const struct job *job,
                               const struct dpro_model *model))
{
    struct job job;
    struct dpro_model *model = NULL;
    int code = job_load(paths->items, paths->n, values, &job);
    if (code != 0)
        return code;
    code = learn_model(values, &job, all_communication || dpro_graph_is_sharded(job.graph), &model);
    if (code == 0)
        code = work(values, &job, model);
    dpro_model_destroy(model);
    job_fini(&job);
    return code;
}
