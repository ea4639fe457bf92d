/* dpro compare: two traces of a job, side by side. */
#include <dpro/dpro.h>

#include "cmd.h"
#include "job.h"

static const struct opt compare_opts[] = {
    CMD_OPT_JSON("dpro.compare/1", ""),
    CMD_OPTS_GRAPH(
        "use iterations A to B of both, both included, in the\njobs' own numbers (default: "
        "all)",
        CMD_THREADS_READ),
    {.name = NULL},
};

/* Opens a side as it runs without a profiler; *job is closed in any case. */
static int load_side(const char *path, const struct cmd_values *values, struct dpro_job **job,
                     struct dpro_report *report)
{
    struct dpro_job_replay_options options = {.size = sizeof options, .no_validate = 1};
    struct dpro_error err = {.code = 0};
    int code = job_open(&path, 1, values, job);
    return code != 0 ? code : cmd_done(dpro_job_replay(*job, &options, report, &err), &err);
}

static int run(const void *given, const struct opt_list *paths)
{
    const struct cmd_values *values = given;
    if (paths->n != 2)
        return cmd_needs(&cmd_compare);
    struct dpro_job *jobs[2] = {NULL, NULL};
    struct dpro_report reports[2];
    struct dpro_error err = {.code = 0};
    int code = 0;
    for (int i = 0; i < 2 && code == 0; i++)
        code = load_side(paths->items[i], values, &jobs[i], &reports[i]);
    struct dpro_comparison comparison = {
        .a = &reports[0], .b = &reports[1], .a_name = paths->items[0], .b_name = paths->items[1]};
    if (code == 0)
        code = cmd_done(
            (values->json ? dpro_compare_json : dpro_compare_text)(&comparison, cmd_output(), &err),
            &err);
    for (int i = 0; i < 2; i++)
        dpro_job_close(jobs[i]);
    return code;
}

const struct cmd cmd_compare = {
    .name = "compare",
    .summary = "compare two traces of a job, and what a plan promised with what it brought",
    .usage = "[OPTIONS] A B",
    .description =
        "Replays two traces of a job (each a folder, a file or a quoted glob) and sets them side\n"
        "by side: iteration time, what each rank spends it on, communication and buckets, and\n"
        "which ops take longer or shorter. When B was recorded under a plan, what the plan\n"
        "expected stands beside what it brought.",
    .examples = "  dpro compare before/ after/\n"
                "  dpro compare TRACE TRACE2 --json                 for programs",
    .opts = compare_opts,
    .values_size = sizeof(struct cmd_values),
    .needs = "two folders, files or globs (in quotes) of traces",
    .run = run,
};
