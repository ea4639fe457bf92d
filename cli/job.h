/* job.h: from the paths that a command is given to the job's graph. */
#ifndef CLI_JOB_H
#define CLI_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <dpro/graph.h>
#include <dpro/log.h>
#include <dpro/model.h>
#include <dpro/replay.h>
#include <dpro/trace.h>

#include "cmd.h"

struct job_steps {
    int64_t first, last;
};

/* "A:B", "A:", ":B" or "A" into struct job_steps. */
bool job_read_steps(const char *text, void *field);

/* "WHAT=RATIO" or "WHAT=+MS" into struct opt_list. What WHAT means (a kind, an op's name, ranks),
 * the graph knows; this is for slips that are better told before the traces are read. A name may
 * hold "=": the last one counts. */
bool job_read_delay(const char *text, void *field);

/* What the commands that read a job's traces take alike: the first member of their values. */
struct job_values {
    const char *rank_regex;
    struct job_steps steps;
    int threads, verbosity;
    bool json, no_align, raw_receives, quiet, help;
};

/* Their rows in tables of options. */
#define JOB_AT(member) offsetof(struct job_values, member)
#define JOB_OPT_JSON(schema)                                                                       \
    {                                                                                              \
        "json", 0, NULL, opt_read_flag, JOB_AT(json), NULL,                                        \
            "print JSON (" schema ") and nothing else", NULL, OPT_COMPLETE_NOTHING                 \
    }
#define JOB_OPT_STEPS(help)                                                                        \
    {                                                                                              \
        "steps", 0, "A:B", job_read_steps, JOB_AT(steps),                                          \
            "A:B, A:, :B or A, iteration numbers with A <= B", help, NULL, OPT_COMPLETE_NOTHING    \
    }
#define JOB_OPT_RANK_REGEX                                                                         \
    {                                                                                              \
        "rank-regex", 0, "RE", opt_read_regex, JOB_AT(rank_regex),                                 \
            "an extended regular expression with a group, such as 'host-([0-9]+)'",                \
            "take a file's rank from the first group of RE in its\nname (default: the file's "     \
            "metadata, "                                                                           \
            "then its name)",                                                                      \
            NULL, OPT_COMPLETE_NOTHING                                                             \
    }
#define JOB_OPT_NO_ALIGN                                                                           \
    {                                                                                              \
        "no-align", 0, NULL, opt_read_flag, JOB_AT(no_align), NULL,                                \
            "use the ranks' clocks as recorded, to compare", NULL, OPT_COMPLETE_NOTHING            \
    }
#define JOB_OPT_RAW_RECEIVES                                                                       \
    {                                                                                              \
        "raw-receives", 0, NULL, opt_read_flag, JOB_AT(raw_receives), NULL,                        \
            "let a RECV last as its calls did, not from its\nSEND's start on, to compare", NULL,   \
            OPT_COMPLETE_NOTHING                                                                   \
    }
#define JOB_OPT_THREADS(help)                                                                      \
    {                                                                                              \
        "threads", 0, "N", opt_read_int, JOB_AT(threads), "a whole number", help, NULL,            \
            OPT_COMPLETE_NOTHING                                                                   \
    }
#define JOB_THREADS_READ "files read at once (default: 0, one a core)"
#define JOB_OPT_VERBOSE                                                                            \
    {                                                                                              \
        "verbose", 'v', NULL, opt_read_count, JOB_AT(verbosity), NULL,                             \
            "say on stderr what is being done; -vv: per file", NULL, OPT_COMPLETE_NOTHING          \
    }
#define JOB_OPT_QUIET                                                                              \
    {                                                                                              \
        "quiet", 'q', NULL, opt_read_flag, JOB_AT(quiet), NULL,                                    \
            "no progress, no notes: only errors", NULL, OPT_COMPLETE_NOTHING                       \
    }
#define JOB_OPT_HELP                                                                               \
    {                                                                                              \
        "help", 'h', NULL, opt_read_flag, JOB_AT(help), NULL, "this text", NULL,                   \
            OPT_COMPLETE_NOTHING                                                                   \
    }

/* A command's run(): reads the options into the struct that begins with `values`, and has `work` do
 * the rest with the paths, or says what it needs where there are none. */
#define JOB_NEEDS "a folder, file or glob of traces"
int job_run(const struct cmd *cmd, const char *needs, int argc, char **argv,
            struct job_values *values,
            int (*work)(const struct job_values *values, const struct opt_list *paths));

struct job { /* zeroed: nothing */
    struct dpro_trace *trace;
    struct dpro_graph *graph;
    struct dpro_sink sink;
};

/* Reads the traces. Returns 0, or the exit code after having said what is wrong. */
int job_read(const char *const *paths, size_t n_paths, const struct job_values *values,
             bool without_profile, struct job *job);
/* And builds the graph. */
int job_load(const char *const *paths, size_t n_paths, const struct job_values *values,
             struct job *job);
void job_fini(struct job *job);

/* Does `work` with the job and with the model of it as it runs without a profiler. Returns as
 * job_load. */
int job_with_model(const struct job_values *values, const struct opt_list *paths,
                   int (*work)(const struct job_values *values, const struct job *job,
                               const struct dpro_model *model));

/* Tells how long a stage took, to those who asked with -v. */
void job_tell_stage(const struct dpro_sink *sink, struct timespec *since, const char *stage);

/* The job is predicted as it runs without a profiler: takes out of the graph what recording an op
 * cost, *op_ns (0: not known), and says what that made of an iteration as replayed. */
int job_take_out_profiler(struct job *job, const struct dpro_replay_options *options,
                          int64_t *op_ns, int64_t *profiler_ns, struct dpro_error *err);

#endif
