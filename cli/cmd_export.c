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

static int run(const void *given, const struct opt_list *paths)
{
    const struct values *values = given;
    struct job job;
    struct dpro_error err = {.code = 0};
    if (!values->net_csv || values->output == NULL) {
        cmd_say("export needs %s; see 'dpro help export'",
                !values->net_csv ? "to be told what: --net-csv" : "a folder to write into: -o DIR");
        return CMD_USAGE;
    }
    int code = job_read(paths->items, paths->n, given, true, NULL, &job);
    if (code != 0)
        return code;
    code = cmd_done(dpro_trace_export_net_csv(job.trace, values->output, &err), &err);
    uint32_t n = dpro_trace_transport(job.trace).n_processes;
    if (code == 0 && !values->common.quiet)
        cmd_say("wrote the transport log%s of %u process%s to %s", n == 1 ? "" : "s", n,
                n == 1 ? "" : "es", values->output);
    job_fini(&job);
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
