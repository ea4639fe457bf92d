/* cmd_export.c: dpro export: what a trace holds, in forms that other programs read. */
#include <stdlib.h>

#include <dpro/dpro.h>

#include "cmd.h"
#include "progress.h"

struct values {
    const char *output, *rank_regex;
    int threads, verbosity;
    bool net_csv, quiet, help;
};

#define AT(member) offsetof(struct values, member)
static const struct opt export_opts[] = {
    {"net-csv", 0, NULL, opt_read_flag, AT(net_csv), NULL,
     "the transport logs, one line a socket call:\nnet_rank<R>.csv.gz for each rank", NULL,
     OPT_COMPLETE_NOTHING},
    {"output", 'o', "DIR", opt_read_string, AT(output), "a folder", "write into DIR", NULL,
     OPT_COMPLETE_FOLDER},
    {"rank-regex", 0, "RE", opt_read_regex, AT(rank_regex),
     "an extended regular expression with a group, such as 'host-([0-9]+)'",
     "take a file's rank from the first group of RE in its\nname (default: the file's metadata, "
     "then its name)",
     NULL, OPT_COMPLETE_NOTHING},
    {"threads", 0, "N", opt_read_int, AT(threads), "a whole number",
     "files read at once (default: 0, one a core)", NULL, OPT_COMPLETE_NOTHING},
    {"verbose", 'v', NULL, opt_read_count, AT(verbosity), NULL,
     "say on stderr what is being done; -vv: per file", NULL, OPT_COMPLETE_NOTHING},
    {"quiet", 'q', NULL, opt_read_flag, AT(quiet), NULL, "no progress, no notes: only errors", NULL,
     OPT_COMPLETE_NOTHING},
    {"help", 'h', NULL, opt_read_flag, AT(help), NULL, "this text", NULL, OPT_COMPLETE_NOTHING},
    {.name = NULL},
};

static int export_paths(const struct values *values, const struct opt_list *paths)
{
    struct dpro_trace_options options = {.rank_regex = values->rank_regex,
                                         .threads = values->threads,
                                         .without_profile = 1,
                                         .sink = progress_start(values->verbosity, values->quiet)};
    struct dpro_trace *trace = NULL;
    struct dpro_error err = {.code = 0};
    int code = CMD_DONE;
    if (dpro_trace_load(paths->items, paths->n, &options, &trace, &err) < 0) {
        code = cmd_fail(&err);
        /* a path that can't be read is bad input, not a failing system */
        return code == CMD_SYSTEM && err.code == DPRO_EIO ? CMD_INPUT : code;
    }
    if (dpro_trace_export_net_csv(trace, values->output, &err) < 0)
        code = cmd_fail(&err);
    else if (!values->quiet)
        cmd_say("wrote the transport logs of %u processes to %s",
                dpro_trace_transport(trace).n_processes, values->output);
    dpro_trace_destroy(trace);
    return code;
}

static int run(int argc, char **argv)
{
    struct values values = {.net_csv = false};
    struct opt_list paths = {NULL, 0};
    int code = opt_parse("export", export_opts, argc, argv, &values, &paths);
    if (code == 0 && values.help) {
        cmd_print_help(&cmd_export, stdout);
    } else if (code == 0 && (paths.n == 0 || !values.net_csv || values.output == NULL)) {
        cmd_say("export needs %s; see 'dpro help export'",
                paths.n == 0      ? "a trace: a folder, files or a glob"
                : !values.net_csv ? "to be told what: --net-csv"
                                  : "a folder to write into: -o DIR");
        code = CMD_USAGE;
    } else if (code == 0) {
        code = export_paths(&values, &paths);
    }
    free(paths.items);
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
    .run = run,
};
