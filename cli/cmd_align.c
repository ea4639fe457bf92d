/* cmd_align.c: dpro align: the ranks' clocks on one axis. */
#include <errno.h>
#include <stdlib.h>

#include <dpro/dpro.h>

#include "cmd.h"
#include "job.h"
#include "progress.h"

struct values {
    struct job_values job;
    const char *manifest;
};

#define AT(member) offsetof(struct values, member)
static const struct opt align_opts[] = {
    JOB_OPT_JSON("dpro.align/1"),
    {"perfetto-manifest", 0, "FILE", opt_read_string, AT(manifest), "a file",
     "also write the manifest with which Perfetto merges\nthe profiles onto the common axis", NULL,
     OPT_COMPLETE_NOTHING},
    JOB_OPT_RANK_REGEX,
    JOB_OPT_THREADS(JOB_THREADS_READ),
    JOB_OPT_VERBOSE,
    JOB_OPT_QUIET,
    JOB_OPT_HELP,
    {.name = NULL},
};

static int tell(const struct values *values, const struct dpro_trace *trace,
                const struct dpro_graph *graph)
{
    struct dpro_error err = {.code = 0};
    if (values->manifest != NULL) {
        if (dpro_align_manifest(trace, graph, values->manifest, &err) < 0)
            return cmd_fail(&err);
        if (!values->job.quiet)
            cmd_say("wrote %s: put it into one tar or zip with the profiles and open that in "
                    "Perfetto",
                    values->manifest);
    }
    progress_clear();
    errno = 0;
    int rc = values->job.json ? dpro_align_json(trace, graph, stdout, &err)
                              : dpro_align_text(trace, graph, stdout, &err);
    return rc < 0 ? cmd_fail(&err) : CMD_DONE;
}

static int align_paths(const struct job_values *given, const struct opt_list *paths)
{
    struct job job;
    struct dpro_error err = {.code = 0};
    int code = job_read(paths->items, paths->n, given, true, &job);
    if (code != 0)
        return code;
    struct dpro_graph_options options = {.clocks_only = 1, .sink = job.sink};
    if (dpro_graph_build(job.trace, &options, &job.graph, &err) < 0)
        code = cmd_fail(&err);
    else
        code = tell((const struct values *)given, job.trace, job.graph);
    job_fini(&job);
    return code;
}

static int run(int argc, char **argv)
{
    struct values values = {.manifest = NULL};
    return job_run(&cmd_align, JOB_NEEDS, argc, argv, &values.job, align_paths);
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
