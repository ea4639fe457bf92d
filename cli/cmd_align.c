/* cmd_align.c: dpro align: the ranks' clocks on one axis. */
#include <errno.h>
#include <stdlib.h>

#include <dpro/dpro.h>

#include "cmd.h"
#include "progress.h"

struct values {
    const char *manifest, *rank_regex;
    int threads, verbosity;
    bool json, quiet, help;
};

#define AT(member) offsetof(struct values, member)
static const struct opt align_opts[] = {
    {"json", 0, NULL, opt_read_flag, AT(json), NULL, "print JSON (dpro.align/1) and nothing else",
     NULL, OPT_COMPLETE_NOTHING},
    {"perfetto-manifest", 0, "FILE", opt_read_string, AT(manifest), "a file",
     "also write the manifest with which Perfetto merges\nthe profiles onto the common axis", NULL,
     OPT_COMPLETE_NOTHING},
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

static int tell(const struct values *values, const struct dpro_trace *trace,
                const struct dpro_graph *graph)
{
    struct dpro_error err = {.code = 0};
    if (values->manifest != NULL) {
        if (dpro_align_manifest(trace, graph, values->manifest, &err) < 0)
            return cmd_fail(&err);
        if (!values->quiet)
            cmd_say("wrote %s: put it into one tar or zip with the profiles and open that in "
                    "Perfetto",
                    values->manifest);
    }
    progress_clear();
    errno = 0;
    int rc = values->json ? dpro_align_json(trace, graph, stdout, &err)
                          : dpro_align_text(trace, graph, stdout, &err);
    return rc < 0 ? cmd_fail(&err) : CMD_DONE;
}

static int align_paths(const struct values *values, const struct opt_list *paths)
{
    struct dpro_sink sink = progress_start(values->verbosity, values->quiet);
    struct dpro_trace_options trace_options = {.rank_regex = values->rank_regex,
                                               .threads = values->threads,
                                               .without_profile = 1,
                                               .sink = sink};
    struct dpro_graph_options graph_options = {.clocks_only = 1, .sink = sink};
    struct dpro_trace *trace = NULL;
    struct dpro_graph *graph = NULL;
    struct dpro_error err = {.code = 0};
    int code;
    if (dpro_trace_load(paths->items, paths->n, &trace_options, &trace, &err) < 0) {
        code = cmd_fail(&err);
        /* a path that can't be read is bad input, not a failing system */
        return code == CMD_SYSTEM && err.code == DPRO_EIO ? CMD_INPUT : code;
    }
    if (dpro_graph_build(trace, &graph_options, &graph, &err) < 0)
        code = cmd_fail(&err);
    else
        code = tell(values, trace, graph);
    dpro_graph_destroy(graph);
    dpro_trace_destroy(trace);
    return code;
}

static int run(int argc, char **argv)
{
    struct values values = {.manifest = NULL};
    struct opt_list paths = {NULL, 0};
    int code = opt_parse("align", align_opts, argc, argv, &values, &paths);
    if (code == 0 && values.help) {
        cmd_print_help(&cmd_align, stdout);
    } else if (code == 0 && paths.n == 0) {
        cmd_say("align needs a folder, file or glob of traces; see 'dpro help align'");
        code = CMD_USAGE;
    } else if (code == 0) {
        code = align_paths(&values, &paths);
    }
    free(paths.items);
    return code;
}

const struct cmd cmd_align = {
    .name = "align",
    .summary = "find how the hosts' clocks differ, from the job's own communication",
    .usage = "[OPTIONS] PATH...",
    .description =
        "No message arrives before it was sent, and no rank leaves a collective before the last\n"
        "one entered it: from transport logs, NCCL logs and collectives, align finds what has to\n"
        "be added to each host's clock (offset, drift) and how sure that is. 'dpro replay' does\n"
        "the same by itself.",
    .examples =
        "  dpro align runs/yesterday/                    hosts, offsets, drifts, uncertainties\n"
        "  dpro align runs/yesterday/ --json             for programs\n"
        "  dpro align TRACE --perfetto-manifest TRACE/perfetto_manifest.json\n"
        "                                                for other viewers of the profiles",
    .opts = align_opts,
    .run = run,
};
