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

struct side { /* zeroed: nothing */
    struct job job;
    struct dpro_replay *replay;
    struct dpro_report report;
};

/* Both as they run without a profiler. */
static int load_side(const char *path, const struct cmd_values *values, struct side *side)
{
    struct dpro_error err = {.code = 0};
    int code = job_load(&path, 1, values, &side->job);
    if (code != 0)
        return code;
    struct dpro_replay_options replay_options = {.threads = values->threads,
                                                 .sink = side->job.sink};
    if (job_take_out_profiler(&side->job, &replay_options, &side->report.profiler_op_ns,
                              &side->report.profiler_ns, &err) < 0 ||
        dpro_replay_run(side->job.graph, &replay_options, &side->replay, &err) < 0)
        return cmd_fail(&err);
    side->report.trace = side->job.trace;
    side->report.graph = side->job.graph;
    side->report.replay = side->replay;
    return 0;
}

static void side_fini(struct side *side)
{
    dpro_replay_destroy(side->replay);
    job_fini(&side->job);
}

static int run(const void *given, const struct opt_list *paths)
{
    const struct cmd_values *values = given;
    if (paths->n != 2)
        return cmd_needs(&cmd_compare);
    struct side a = {.replay = NULL}, b = {.replay = NULL};
    struct dpro_error err = {.code = 0};
    int code = load_side(paths->items[0], values, &a);
    if (code == 0)
        code = load_side(paths->items[1], values, &b);
    struct dpro_comparison comparison = {
        .a = &a.report, .b = &b.report, .a_name = paths->items[0], .b_name = paths->items[1]};
    if (code == 0)
        code = cmd_done(
            (values->json ? dpro_compare_json : dpro_compare_text)(&comparison, cmd_output(), &err),
            &err);
    side_fini(&a);
    side_fini(&b);
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
