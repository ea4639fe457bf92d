/* The table of commands, and the options that several of them take. */
#pragma once

#include <stdio.h>

#include <dpro/job.h>

#include "opt.h"
#include "say.h"

/* What shared options set: the first member of every command's values. */
struct cmd_values {
    struct dpro_job_options job;
    int64_t shown;
    int verbosity;
    bool json, quiet, help;
};

/* "A:B", "A:", ":B" or "A" into struct dpro_job_options. */
bool cmd_read_steps(const char *text, void *field);
bool cmd_read_iteration(const char *text, void *field); /* into struct cmd_values */
/* "WHAT=RATIO" or "WHAT=+MS" into struct opt_list. What WHAT means (a kind, an op's name, ranks),
 * the graph knows; this finds slips before the traces are read. A name may hold "=": the last one
 * counts. */
bool cmd_read_delay(const char *text, void *field);

/* "dp=2,tp=4", a text that goes on as it is: the graph knows whether the job can be laid out so. */
bool cmd_read_dims(const char *text, void *field);

/* Their rows in tables of options. */
#define CMD_ROW(n, l, a, r, m, f, h)                                                               \
    {                                                                                              \
        .name = (n), .letter = (l), .arg = (a), .read = (r),                                       \
        .offset = offsetof(struct cmd_values, m), .form = (f), .help = (h)                         \
    }
#define CMD_FLAG(n, l, m, h) CMD_ROW(n, l, NULL, opt_read_flag, m, NULL, h)
#define CMD_SWITCH(n, m, h)  CMD_ROW(n, 0, NULL, opt_read_count, m, NULL, h) /* of an int */
#define CMD_OPT_HELP         CMD_FLAG("help", 'h', help, "this text")
#define CMD_OPT_QUIET(h)     CMD_FLAG("quiet", 'q', quiet, h)
#define CMD_OPT_JSON(schema, h)                                                                    \
    CMD_FLAG("json", 0, json, "print JSON (" schema ") and nothing else" h)
#define CMD_OPT_FORCE OPT_FLAG("force", force, "replace the recording that DIR holds")
#define CMD_OPT_DELAY(h)                                                                           \
    OPT_LIST("delay", "SPEC", cmd_read_delay, delays,                                              \
             "KIND=RATIO, KIND=+MS, OP=RATIO or OP=+MS, any with @RANK before the =, such as "     \
             "'BW=0.5' or 'FW@1=+20'",                                                             \
             h)
#define CMD_OPT_DIMS                                                                               \
    CMD_ROW(                                                                                       \
        "dims", 0, "DIMS", cmd_read_dims, job.dimensions,                                          \
        "sizes of dp, fsdp, cp, ep, tp or pp, such as dp=2,tp=4",                                  \
        "the job's dimensions of parallelism, the outermost\nfirst, in place of those that are "   \
        "found: sizes of dp,\nfsdp, cp, ep, tp, pp, as in dp=2,tp=4")
#define CMD_OPT_PROBES                                                                             \
    CMD_ROW("probes", 0, "FILE", opt_read_string, job.probes, "a file",                            \
            "what modules take compiled and in 16 bits, from the\nprobes.json of another run "     \
            "(default: the trace's own)")
/* Of commands that several processes do together. */
extern const char *const cmd_ranks_from[];
#define CMD_OPT_RANKS_FROM                                                                         \
    {                                                                                              \
        .name = "ranks-from", .arg = "HOW", .offset = offsetof(struct cmd_values, job.from_host),  \
        .choices = cmd_ranks_from,                                                                 \
        .help = "under mpirun, read ranks in 'turn' (default), or on\n"                            \
                "the 'host' that their files name",                                                \
    }
/* Of commands that read traces; that also build the graph. */
#define CMD_THREADS_READ "threads that read and build (default: 0, one a core)"
#define CMD_STEPS_LEARNT                                                                           \
    "learn from iterations A to B, both included, in the\njob's own numbers (default: all)"
#define CMD_OPTS_TRACE(threads_help)                                                               \
    CMD_ROW("rank-regex", 0, "RE", opt_read_regex, job.rank_regex,                                 \
            "an extended regular expression with a group, such as 'host-([0-9]+)'",                \
            "take a file's rank from the first group of RE in its\nname (default: the file's "     \
            "metadata, then its name)"),                                                           \
        CMD_ROW("threads", 0, "N", opt_read_int, job.threads, "a whole number", threads_help),     \
        CMD_ROW("verbose", 'v', NULL, opt_read_count, verbosity, NULL,                             \
                "say on stderr what is being done; -vv: per file"),                                \
        CMD_OPT_QUIET("no progress, no notes: only errors"), CMD_OPT_HELP
#define CMD_OPTS_GRAPH(steps_help, threads_help)                                                   \
    CMD_ROW("steps", 0, "A:B", cmd_read_steps, job,                                                \
            "A:B, A:, :B or A, iteration numbers with A <= B", steps_help),                        \
        CMD_ROW("step-mark", 0, "PATTERN", opt_read_pattern, job.step_mark,                        \
                "a name of a range, or an extended regular expression",                            \
                "iterations are the ranges (record_function) whose\nname holds PATTERN, or "       \
                "matches it as an extended\n"                                                      \
                "regular expression (default: ProfilerStep#N)"),                                   \
        CMD_SWITCH("no-align", job.no_align, "use the ranks' clocks as recorded, to compare"),     \
        CMD_SWITCH("raw-receives", job.raw_receives,                                               \
                   "let a RECV last as its calls did, not from its\nSEND's start on, to compare"), \
        CMD_OPTS_TRACE(threads_help)
#define CMD_NEEDS_TRACES "a folder, file or glob of traces"

/* Whose of the processes that mpirun started. */
enum cmd_processes {
    CMD_BY_FIRST, /* the others end at once */
    CMD_TOGETHER, /* they divide the work; the first answers */
    CMD_BY_EACH,  /* it is about the machine, or the program, of each */
};

struct cmd {
    const char *name;
    const char *summary;     /* one line, for the list of commands */
    const char *usage;       /* what follows "dpro <name>" */
    const char *description; /* for --help */
    const char *examples;
    const struct opt *opts;
    size_t values_size; /* of the struct that the options fill, zeroed before */
    const char *needs;  /* said when there is no argument; NULL: there may be none */
    enum cmd_processes processes;
    const char *const *words; /* what a positional argument may be, NULL-terminated; NULL: a path */
    int (*run)(const void *values, const struct opt_list *args); /* returns an exit code */
};

extern const struct cmd cmd_profile, cmd_attach, cmd_replay, cmd_diagnose, cmd_whatif, cmd_optimize,
    cmd_verify, cmd_tune, cmd_compare, cmd_align, cmd_export, cmd_completion, cmd_help;
void cmd_whatif_begin(void); /* its options come from the library's table of what-ifs */
extern const struct cmd *const *cmd_table; /* NULL-terminated; main.c sets it */
extern const struct opt cmd_help_only[];   /* a table of --help alone, for struct cmd_values */

const struct cmd *cmd_named(const char *name); /* NULL: there is none */
const struct cmd *cmd_find(const char *name);  /* says what is wrong and returns NULL */
/* Reads the options and runs; argv[0] is the command's name. Returns the exit code. */
int cmd_run(const struct cmd *cmd, int argc, char **argv);
void cmd_print_overview(FILE *out);   /* the list of commands */
int cmd_needs(const struct cmd *cmd); /* says what it needs; returns CMD_USAGE */
