/* dpro diagnose: why an iteration is slow, in milliseconds that add up. */
#include <dpro/dpro.h>

#include "cmd.h"
#include "job.h"

static const struct opt diagnose_opts[] = {
    CMD_OPT_JSON("dpro.diagnose/1", ""),
    CMD_OPT_DIMS,
    CMD_OPT_RANKS_FROM,
    CMD_OPTS_GRAPH("use iterations A to B, both included, in the job's\nown numbers (default: all)",
                   "threads that read, build and replay (default: 0,\none a core); results are the "
                   "same at any number"),
    {.name = NULL},
};

static int run(const void *given, const struct opt_list *paths)
{
    const struct cmd_values *values = given;
    struct dpro_diagnose_report report;
    struct dpro_job *job;
    struct dpro_error err = {.code = 0};
    int code = job_open(paths->items, paths->n, given, &job);
    if (code == 0)
        code = cmd_done(dpro_job_diagnose(job, NULL, &report, &err), &err);
    if (code == 0)
        code = cmd_done(
            (values->json ? dpro_diagnose_json : dpro_diagnose_text)(&report, cmd_output(), &err),
            &err);
    dpro_job_close(job);
    return code;
}

const struct cmd cmd_diagnose = {
    .name = "diagnose",
    .summary = "say why an iteration is slow: causes, in milliseconds that add up",
    .usage = "[OPTIONS] PATH...",
    .description =
        "Replays a job's iterations with and without each cause of lost time (slow ranks,\n"
        "communication, launching, ...) and blames the causes for what an iteration takes longer\n"
        "than it had to: the ideal, all blames and what the replay does not explain add up to the\n"
        "iteration.",
    .examples = "  dpro diagnose TRACE\n"
                "  dpro diagnose TRACE --json                      for programs",
    .opts = diagnose_opts,
    .values_size = sizeof(struct cmd_values),
    .needs = CMD_NEEDS_TRACES,
    .processes = CMD_TOGETHER,
    .run = run,
};
