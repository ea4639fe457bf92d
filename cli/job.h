/* From the paths that a command is given to the job's graph. */
#pragma once

#include <stdbool.h>
#include <time.h>

#include <dpro/graph.h>
#include <dpro/log.h>
#include <dpro/model.h>
#include <dpro/replay.h>
#include <dpro/trace.h>

#include "cmd.h"

struct job { /* zeroed: nothing */
    struct dpro_trace *trace;
    struct dpro_graph *graph;
    struct dpro_probes *probes; /* of another run */
    struct dpro_sink sink;
    int threads; /* for what follows */
};

/* Reads the traces. The options are what the graph will be built with; NULL: none
 * will be. Returns 0, or the exit code after having said what is wrong. */
int job_read(const char *const *paths, size_t n_paths, const struct cmd_values *values,
             bool without_profile, const struct dpro_graph_options *graph_options, struct job *job);
/* And builds the graph. */
int job_load(const char *const *paths, size_t n_paths, const struct cmd_values *values,
             struct job *job);
void job_fini(struct job *job);

/* Does `work` with the job and with the model of it as it runs without a profiler. `values` begins
 * with a struct cmd_values. all_communication: as in struct dpro_model_options, where nothing
 * is sharded. Returns as job_load. */
int job_with_model(const void *values, const struct opt_list *paths, bool all_communication,
                   int (*work)(const void *values, const struct job *job,
                               const struct dpro_model *model));

/* Tells how long a stage took, to those who asked with -v. */
void job_tell_stage(const struct dpro_sink *sink, struct timespec *since, const char *stage);

/* The job is predicted as it runs without a profiler: takes out of the graph what recording an op
 * cost, *op_ns (0: not known), and says what that made of an iteration as replayed. */
int job_take_out_profiler(struct job *job, const struct dpro_replay_options *options,
                          int64_t *op_ns, int64_t *profiler_ns, struct dpro_error *err);
