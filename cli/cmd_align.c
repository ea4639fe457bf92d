/* dpro align: the ranks' clocks on one axis. */
#include <dpro/dpro.h>

#include "cmd.h"
#include "job.h"

struct values {
    struct cmd_values common;
    const char *manifest;
};

#define AT(member) offsetof(struct values, member)
static const struct opt align_opts[] = {
    CMD_OPT_JSON("dpro.align/1", ""),
    OPT_VALUE(
        "perfetto-manifest", "FILE", opt_read_string, manifest, "a file",
        "also write the manifest with which Perfetto merges\nthe profiles onto the common axis"),
    CMD_OPT_RANKS_FROM,
    CMD_OPTS_TRACE(CMD_THREADS_READ),
    {.name = NULL},
};

static int tell(const struct values *values, struct dpro_job *job)
{
    const struct dpro_trace *trace;
    const struct dpro_graph *graph;
    struct dpro_error err = {.code = 0};
    if (dpro_job_trace(job, &trace, &err) < 0 || dpro_job_graph(job, &graph, &err) < 0)
        return cmd_fail(&err);
    if (values->manifest != NULL) {
        if (dpro_align_manifest(trace, graph, values->manifest, &err) < 0)
            return cmd_fail(&err);
        if (!values->common.quiet)
            cmd_say("wrote %s: put it into one tar or zip with the profiles and open that in "
                    "Perfetto",
                    values->manifest);
    }
    return cmd_done(values->common.json ? dpro_align_json(trace, graph, cmd_output(), &err)
                                        : dpro_align_text(trace, graph, cmd_output(), &err),
                    &err);
}

static int run(const void *given, const struct opt_list *paths)
{
    struct cmd_values values = *(const struct cmd_values *)given;
    struct dpro_job *job;
    values.job.without_profile = values.job.clocks_only = 1;
    int code = job_open(paths->items, paths->n, &values, &job);
    if (code == 0)
        code = tell(given, job);
    dpro_job_close(job);
    return code;
}

const struct cmd cmd_align = {
    .name = "align",
    .summary = "find how the hosts' clocks differ, from the job's own communication",
    .usage = "[OPTIONS] PATH...",
    .description =
        "Finds what has to be added to each host's clock (offset, drift) and how sure that is,\n"
        "from transport logs, NCCL logs and collectives: no message arrives before it was sent,\n"
        "and no rank leaves a collective before the last one entered it. 'dpro replay' does the\n"
        "same by itself.",
    .examples =
        "  dpro align runs/yesterday/                    hosts, offsets, drifts, uncertainties\n"
        "  dpro align runs/yesterday/ --json             for programs\n"
        "  dpro align TRACE --perfetto-manifest TRACE/perfetto_manifest.json\n"
        "                                                for other viewers of the profiles",
    .opts = align_opts,
    .values_size = sizeof(struct values),
    .needs = CMD_NEEDS_TRACES,
    .processes = CMD_TOGETHER,
    .run = run,
};
