/* dpro export: what a trace holds, in forms that other programs read. */
#include <dpro/dpro.h>

#include "cmd.h"
#include "job.h"

struct values {
    struct cmd_values common;
    const char *output;
    bool net_csv;
};

#define AT(member) offsetof(struct values, member)
static const struct opt export_opts[] = {
    OPT_FLAG("net-csv", net_csv,
             "the transport logs, one line a socket call:\nnet_rank<R>.csv.gz for each rank"),
    OPT_OUTPUT("write into DIR"),
    CMD_OPTS_TRACE(CMD_THREADS_READ),
    {.name = NULL},
};

static int export(const struct values *values, struct dpro_job *job)
{
    const struct dpro_trace *trace;
    struct dpro_error err = {.code = 0};
    if (dpro_job_trace(job, &trace, &err) < 0 ||
        dpro_trace_export_net_csv(trace, values->output, &err) < 0)
        return cmd_fail(&err);
    uint32_t n = dpro_trace_transport(trace).n_processes;
    if (!values->common.quiet)
        cmd_say("wrote the transport log%s of %u process%s to %s", n == 1 ? "" : "s", n,
                n == 1 ? "" : "es", values->output);
    return CMD_DONE;
}

static int run(const void *given, const struct opt_list *paths)
{
    struct values values = *(const struct values *)given;
    struct dpro_job *job;
    if (!values.net_csv || values.output == NULL) {
        cmd_say("export needs %s; see 'dpro help export'",
                !values.net_csv ? "to be told what: --net-csv" : "a folder to write into: -o DIR");
        return CMD_USAGE;
    }
    values.common.job.without_profile = 1;
    int code = job_open(paths->items, paths->n, &values.common, &job);
    if (code == 0)
        code = export(&values, job);
    dpro_job_close(job);
    return code;
}

const struct cmd cmd_export = {
    .name = "export",
    .summary = "write what a trace holds in forms that other programs read",
    .usage = "--net-csv -o DIR PATH...",
    .description =
        "Reads the traces of a job (PATH is a trace directory, a file or a glob) and writes the\n"
        "transport logs of its ranks as CSV, one line a socket call: when, which bytes of which\n"
        "connection, and which gloo message began with them.",
    .examples = "  dpro export --net-csv -o csv/ dpro_trace/\n"
                "  python3 -c 'import pandas; print(pandas.read_csv(\"csv/net_rank0.csv.gz\"))'",
    .opts = export_opts,
    .values_size = sizeof(struct values),
    .needs = "a trace: a folder, files or a glob",
    .run = run,
};
