/* job.h: from the paths that a command is given to the job's graph. */
#ifndef CLI_JOB_H
#define CLI_JOB_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include <dpro/graph.h>
#include <dpro/log.h>
#include <dpro/model.h>
#include <dpro/replay.h>
#include <dpro/trace.h>

#include "opt.h"

struct job_steps {
    int64_t first, last;
};

/* "A:B", "A:", ":B" or "A" into struct job_steps. */
bool job_read_steps(const char *text, void *field);

/* "WHAT=RATIO" or "WHAT=+MS" into struct opt_list. What WHAT means (a kind, an op's name, ranks),
 * the graph knows; this is for slips that are better told before the traces are read. A name may
 * hold "=": the last one counts. */
bool job_read_delay(const char *text, void *field);

struct job_options {
    const char *rank_regex;
    struct job_steps steps;
    int threads;
    bool no_align, raw_receives;
    struct dpro_sink sink;
};

struct job { /* zeroed: nothing */
    struct dpro_trace *trace;
    struct dpro_graph *graph;
};

/* Reads the traces and builds the graph. Returns 0, or the exit code after having said what is
 * wrong. */
int job_load(const char *const *paths, size_t n_paths, const struct job_options *options,
             struct job *job);
void job_fini(struct job *job);

/* Tells how long a stage took, to those who asked with -v. */
void job_tell_stage(const struct dpro_sink *sink, struct timespec *since, const char *stage);

/* The job is predicted as it runs without a profiler: takes out of the graph what recording an op
 * cost, *op_ns (0: not known), and says what that made of an iteration as replayed. */
int job_take_out_profiler(struct job *job, const struct dpro_replay_options *options,
                          int64_t *op_ns, int64_t *profiler_ns, struct dpro_error *err);

/* Learns the model of the job as it runs without a profiler. Returns as job_load. */
int job_model(struct job *job, const struct job_options *options, struct dpro_model **model);

#endif
