/* dpro compare: two traces of a job, side by side. */
#include <string.h>

#include <dpro/dpro.h>

#include "cmd.h"
#include "gate.h"
#include "job.h"

struct values {
    struct cmd_values common;
    const char *fail_on;
};

#define AT(member) offsetof(struct values, member)
static const struct opt compare_opts[] = {
    CMD_OPT_JSON("dpro.compare/1", ""),
    OPT_VALUE("fail-on", "LIST", opt_read_string, fail_on, "thresholds such as 'iteration>3%'",
              "exit 1 when B takes longer than A by more than one of\nthese, such as "
              "'iteration>3%,backward>5ms'"),
    CMD_OPTS_GRAPH(
        "use iterations A to B of both, both included, in the\njobs' own numbers (default: "
        "all)",
        CMD_THREADS_READ),
    {.name = NULL},
};

/* How much longer B takes; in percent of A's iteration. */
static bool value_of(const void *of, const char *name, double *ms, double *pct)
{
    const struct dpro_compared_time *times = of, *part = times;
    for (size_t i = 0; strcmp(dpro_compare_part(i), name) != 0; i++)
        part++;
    *ms = (part->ns[1] - part->ns[0]) / 1e6;
    *pct = times->ns[0] > 0 ? 1e8 * *ms / times->ns[0] : 0;
    return part->ns[0] >= 0 && part->ns[1] >= 0 && times->ns[0] > 0;
}

static int check_thresholds(const char *fail_on, const struct dpro_comparison *comparison)
{
    struct dpro_compared_time times[DPRO_N_COMPARED];
    struct dpro_error err = {.code = 0};
    int code = cmd_finish_output(CMD_DONE);
    if (code == 0)
        code = cmd_done(dpro_compare_times(comparison, times, &err), &err);
    return code == 0 ? gate_check(fail_on, value_of, times) : code;
}

static int run(const void *given, const struct opt_list *paths)
{
    const struct values *all = given;
    const struct cmd_values *values = given;
    const char *names[DPRO_N_COMPARED + 1];
    for (size_t i = 0; i <= DPRO_N_COMPARED; i++)
        names[i] = dpro_compare_part(i);
    if (all->fail_on != NULL && gate_parse(all->fail_on, names) != 0)
        return CMD_USAGE;
    if (paths->n != 2)
        return cmd_needs(&cmd_compare);
    struct dpro_job *jobs[2] = {NULL, NULL};
    struct dpro_report reports[2];
    struct dpro_error err = {.code = 0};
    struct dpro_job_replay_options options = {.size = sizeof options, .no_validate = 1};
    struct dpro_against_report against;
    int code = 0;
    for (int i = 0; i < 2 && code == 0; i++)
        code = job_open(&paths->items[i], 1, values, &jobs[i]);
    if (code == 0)
        code = cmd_done(dpro_job_against(jobs[1], jobs[0], &against, &err), &err);
    for (int i = 0; i < 2 && code == 0; i++)
        code = cmd_done(dpro_job_replay(jobs[i], &options, &reports[i], &err), &err);
    against.a_name = paths->items[0];
    against.b_name = paths->items[1];
    struct dpro_comparison comparison = {.a = &reports[0],
                                         .b = &reports[1],
                                         .a_name = paths->items[0],
                                         .b_name = paths->items[1],
                                         .against = &against};
    if (code == 0)
        code = cmd_done(
            (values->json ? dpro_compare_json : dpro_compare_text)(&comparison, cmd_output(), &err),
            &err);
    if (code == 0 && all->fail_on != NULL)
        code = check_thresholds(all->fail_on, &comparison);
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
    .values_size = sizeof(struct values),
    .needs = "two folders, files or globs (in quotes) of traces",
    .run = run,
};
