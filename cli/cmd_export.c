/* dpro export: what a trace holds, in forms that other programs read. */
#include <dpro/dpro.h>

#include "cmd.h"
#include "job.h"

struct values {
    struct cmd_values common;
    const char *output, *csv;
    bool net_csv, list;
};

#define AT(member) offsetof(struct values, member)
static const struct opt export_opts[] = {
    {.name = "csv",
     .arg = "DIR",
     .read = opt_read_string,
     .offset = AT(csv),
     .form = "a folder",
     .help = "every table of the job, NAME.csv in DIR: ops, edges,\ncollectives, messages, "
             "iterations, memory, critical\npath, ...",
     .complete = OPT_COMPLETE_FOLDER},
    OPT_FLAG("list", list, "list the tables and their columns, as Markdown"),
    OPT_FLAG("net-csv", net_csv,
             "the transport logs, one line a socket call:\nnet_rank<R>.csv.gz for each rank"),
    OPT_OUTPUT("write the transport logs into DIR"),
    CMD_OPTS_GRAPH("use iterations A to B, both included, in the job's\nown numbers (default: all)",
                   CMD_THREADS_READ),
    {.name = NULL},
};

static int export_net(const struct values *values, struct dpro_job *job)
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

static int export_tables(const struct values *values, struct dpro_job *job)
{
    struct dpro_report report;
    struct dpro_tables *tables = NULL;
    struct dpro_error err = {.code = 0};
    const struct dpro_job_replay_options options = {.size = sizeof options, .no_validate = 1};
    int rc = dpro_job_replay(job, &options, &report, &err);
    if (rc == 0)
        rc = dpro_tables_create(report.graph, report.replay, &tables, &err);
    if (rc == 0)
        rc = dpro_tables_csv(tables, values->csv, &report.sink, &err);
    dpro_tables_destroy(tables);
    if (rc == 0 && !values->common.quiet)
        cmd_say("wrote %u tables to %s; 'dpro export --list' says what their columns are",
                dpro_n_tables(), values->csv);
    return rc < 0 ? cmd_fail(&err) : CMD_DONE;
}

static int run(const void *given, const struct opt_list *paths)
{
    struct values values = *(const struct values *)given;
    struct dpro_error err = {.code = 0};
    struct dpro_job *job;
    if (values.list + values.net_csv + (values.csv != NULL) != 1) {
        cmd_say(
            "export needs to be told what, by one of --csv DIR, --net-csv and --list; see 'dpro "
            "help export'");
        return CMD_USAGE;
    }
    if (values.output && !values.net_csv) {
        cmd_say("-o is where --net-csv writes; --csv names its own folder, and --list writes none");
        return CMD_USAGE;
    }
    if (values.list)
        return dpro_tables_list(cmd_output(), &err) < 0 ? cmd_fail(&err)
                                                        : cmd_finish_output(CMD_DONE);
    if (paths->n == 0 || (values.net_csv && !values.output)) {
        cmd_say("export needs %s; see 'dpro help export'",
                paths->n == 0 ? "a trace: a folder, files or a glob"
                              : "a folder to write into: -o DIR");
        return CMD_USAGE;
    }
    values.common.job.without_profile = values.net_csv;
    int code = job_open(paths->items, paths->n, &values.common, &job);
    if (code == 0)
        code = (values.csv ? export_tables : export_net)(&values, job);
    dpro_job_close(job);
    return code;
}

const struct cmd cmd_export = {
    .name = "export",
    .summary = "write what a trace holds in forms that other programs read",
    .usage = "--csv DIR PATH...",
    .description =
        "Reads the traces of a job (PATH is a trace directory, a file or a glob), and writes the\n"
        "tables of the job as CSV: its ops and edges, collectives, messages, iterations, memory,\n"
        "aligned clocks and critical path. Or the transport logs of its ranks, one line a socket\n"
        "call: when, which bytes of which connection, and which gloo message began with them.",
    .examples = "  dpro export --csv tables/ dpro_trace/\n"
                "  python3 -c 'import pandas; print(pandas.read_csv(\"tables/ops.csv\"))'\n"
                "  dpro export --list                            what the columns are\n"
                "  dpro export --net-csv -o csv/ dpro_trace/",
    .opts = export_opts,
    .values_size = sizeof(struct values),
    .run = run,
};
