/* A job: from the paths of its traces to what is asked of it.
 *
 *     struct dpro_job_options options = {.size = sizeof options, .threads = 4};
 *     struct dpro_error err;
 *     struct dpro_job *job;
 *     const struct dpro_graph *graph;
 *     if (dpro_job_open(paths, n_paths, &options, &job, &err) == 0) {
 *         if (dpro_job_graph(job, &graph, &err) == 0)
 *             printf("%u ops\n", dpro_graph_n_ops(graph));
 *         dpro_job_close(job);
 *     }
 *
 * Opening reads nothing. The trace, the graph, the models and the replay are made when they are
 * first asked for, each of those before it, and kept: they are the job's, and valid until it is
 * closed. What failed is tried again when it is asked for again, but a graph: building it takes the
 * trace apart, so that a job whose graph failed fails the same way from then on.
 *
 * Threads: one at a time calls functions of a job; within a call as many work as its options say.
 * Several jobs may be used at once, each by a thread of its own. What a job has given out may be
 * read by any number of threads, but by none while a function of that job runs. */
#ifndef DPRO_JOB_H
#define DPRO_JOB_H

#include <stddef.h>
#include <stdint.h>

#include <dpro/diagnose.h>
#include <dpro/error.h>
#include <dpro/graph.h>
#include <dpro/log.h>
#include <dpro/model.h>
#include <dpro/processes.h>
#include <dpro/replay.h>
#include <dpro/report.h>
#include <dpro/table.h>
#include <dpro/trace.h>
#include <dpro/whatif.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dpro_job; /* owns its memory and all that it gives out */

/* *job is the caller's, to be closed. Texts and what pointers of the options point to are copied;
 * the processes and the sink are used until then. NULL for the options: all are 0. Fails with
 * DPRO_EUSAGE where there are no paths, threads below 0, or options of a later version. */
DPRO_API int dpro_job_open(const char *const *paths, size_t n_paths,
                           const struct dpro_job_options *options, struct dpro_job **job,
                           struct dpro_error *err);
DPRO_API void dpro_job_close(struct dpro_job *job); /* NULL is fine */

/* What a process that is not the first of its `processes` does in place of all that follows:
 * returns when the first one has its part. */
DPRO_API int dpro_job_help(struct dpro_job *job, struct dpro_error *err);

/* Fails as dpro_trace_load does. Once the graph is made, its spans are gone. */
DPRO_API int dpro_job_trace(struct dpro_job *job, const struct dpro_trace **trace,
                            struct dpro_error *err);
/* Fails as dpro_graph_build does. The graph is as recorded until a model or a replay is asked for:
 * these are of the job without its profiler, whose cost they take out of it. */
DPRO_API int dpro_job_graph(struct dpro_job *job, const struct dpro_graph **graph,
                            struct dpro_error *err);
/* Fails as dpro_model_build does. all_communication: as in struct dpro_model_options; of a job that
 * shards its parameters, the model is always of all communication. */
DPRO_API int dpro_job_model(struct dpro_job *job, int all_communication,
                            const struct dpro_model **model, struct dpro_error *err);
/* What a rank (by its index in the graph) holds in an iteration as the job runs, in bytes. Fails as
 * dpro_replay_run does. */
DPRO_API int dpro_job_memory(struct dpro_job *job, uint32_t rank_index,
                             struct dpro_rank_memory *memory, struct dpro_error *err);

/* The tables of the job as it runs, of its graph and a replay, which are kept until it is closed.
 * Fails as dpro_replay_run does. */
DPRO_API int dpro_job_tables(struct dpro_job *job, const struct dpro_tables **tables,
                             struct dpro_error *err);

/* Warnings of all that was made so far, of the trace first. */
DPRO_API size_t dpro_job_n_warnings(const struct dpro_job *job);
DPRO_API const char *dpro_job_warning(const struct dpro_job *job, size_t index); /* borrowed */

/* Tells the sink how long it is since the job's last stage ended, as the job does of its own. */
DPRO_API void dpro_job_tell_stage(struct dpro_job *job, const char *stage);

/* ---- answers: `report` is filled, and what it points to is the job's until the same question is
 * asked again, or until it is closed ---- */

struct dpro_job_replay_options {
    size_t size; /* of the struct (error.h) */
    /* As in struct dpro_replay_options: */
    uint32_t samples;
    uint64_t seed;
    const char *const *delays;
    size_t n_delays;
    double bandwidth_bytes_per_s; /* of the Daydream baseline; 0: the fastest transfer seen */
    int no_validate;              /* 1: measured iterations are not predicted from each other */
};
/* What `dpro replay` says. NULL for the options: all are 0. Fails as dpro_replay_run does. */
DPRO_API int dpro_job_replay(struct dpro_job *job, const struct dpro_job_replay_options *options,
                             struct dpro_report *report, struct dpro_error *err);
/* What `dpro whatif` says. What the changes point to is borrowed as long as the report; the job's
 * sink takes the place of theirs. NULL for the changes: none. Fails as dpro_job_model and
 * dpro_whatif_run do. */
DPRO_API int dpro_job_whatif(struct dpro_job *job, const struct dpro_changes *changes,
                             struct dpro_whatif_report *report, struct dpro_error *err);
/* What `dpro diagnose` says. The job's threads, sink, path and model, and what was taken out of its
 * graph, take the place of those in the options. NULL for the options: all are 0. Fails as
 * dpro_diagnose_run does. */
DPRO_API int dpro_job_diagnose(struct dpro_job *job, const struct dpro_diagnose_options *options,
                               struct dpro_diagnose_report *report, struct dpro_error *err);
/* Why `job` is slower than `than`; the names are not set. Both are taken without what the profiler
 * cost where that is known of both, else as recorded: it must be asked before a replay, a model or
 * a diagnosis of theirs. Fails as dpro_against_run does, and with DPRO_EFORMAT where they are
 * different jobs. */
DPRO_API int dpro_job_against(struct dpro_job *job, struct dpro_job *than,
                              struct dpro_against_report *report, struct dpro_error *err);
/* What `dpro optimize` says. The job's threads, sink and graph take the place of those in the
 * options; what the search warned of is in the report. NULL for the options: all are 0. Fails as
 * dpro_job_model and dpro_optimize_run do. */
DPRO_API int dpro_job_optimize(struct dpro_job *job, const struct dpro_optimize_options *options,
                               struct dpro_optimize_report *report, struct dpro_error *err);

#ifdef __cplusplus
}
#endif
#endif
