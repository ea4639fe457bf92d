/* cmd_compare.c: dpro compare: two traces of a job, side by side. */
#include <errno.h>
#include <stdlib.h>

#include <dpro/dpro.h>

#include "cmd.h"
#include "job.h"
#include "progress.h"

struct values {
    const char *rank_regex;
    struct job_steps steps;
    int threads, verbosity;
    bool json, no_align, raw_receives, quiet, help;
};

#define AT(member) offsetof(struct values, member)
static const struct opt compare_opts[] = {
    {"json", 0, NULL, opt_read_flag, AT(json), NULL, "print JSON (dpro.compare/1) and nothing else",
     NULL, OPT_COMPLETE_NOTHING},
    {"steps", 0, "A:B", job_read_steps, AT(steps),
     "A:B, A:, :B or A, iteration numbers with A <= B",
     "use iterations A to B of both, both included, in the\njobs' own numbers (default: all)", NULL,
     OPT_COMPLETE_NOTHING},
    {"rank-regex", 0, "RE", opt_read_regex, AT(rank_regex),
     "an extended regular expression with a group, such as 'host-([0-9]+)'",
     "take a file's rank from the first group of RE in its\nname (default: the file's metadata, "
     "then its name)",
     NULL, OPT_COMPLETE_NOTHING},
    {"no-align", 0, NULL, opt_read_flag, AT(no_align), NULL,
     "use the ranks' clocks as recorded, to compare", NULL, OPT_COMPLETE_NOTHING},
    {"raw-receives", 0, NULL, opt_read_flag, AT(raw_receives), NULL,
     "let a RECV last as its calls did, not from its\nSEND's start on, to compare", NULL,
     OPT_COMPLETE_NOTHING},
    {"threads", 0, "N", opt_read_int, AT(threads), "a whole number",
     "files read at once (default: 0, one a core)", NULL, OPT_COMPLETE_NOTHING},
    {"verbose", 'v', NULL, opt_read_count, AT(verbosity), NULL,
     "say on stderr what is being done; -vv: per file", NULL, OPT_COMPLETE_NOTHING},
    {"quiet", 'q', NULL, opt_read_flag, AT(quiet), NULL, "no progress, no notes: only errors", NULL,
     OPT_COMPLETE_NOTHING},
    {"help", 'h', NULL, opt_read_flag, AT(help), NULL, "this text", NULL, OPT_COMPLETE_NOTHING},
    {.name = NULL},
};

struct side { /* zeroed: nothing */
    struct job job;
    struct dpro_replay *replay;
    struct dpro_report report;
};

/* Both as they run without a profiler. */
static int load_side(const char *path, const struct job_options *options, struct side *side)
{
    struct dpro_replay_options replay_options = {.sink = options->sink};
    struct dpro_error err = {.code = 0};
    int code = job_load(&path, 1, options, &side->job);
    if (code != 0)
        return code;
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

static int compare_paths(const struct values *values, const struct opt_list *paths)
{
    struct job_options options = {.rank_regex = values->rank_regex,
                                  .steps = values->steps,
                                  .threads = values->threads,
                                  .no_align = values->no_align,
                                  .raw_receives = values->raw_receives,
                                  .sink = progress_start(values->verbosity, values->quiet)};
    struct side a = {.replay = NULL}, b = {.replay = NULL};
    struct dpro_error err = {.code = 0};
    int code = load_side(paths->items[0], &options, &a);
    if (code == 0)
        code = load_side(paths->items[1], &options, &b);
    if (code == 0) {
        struct dpro_comparison comparison = {
            .a = &a.report, .b = &b.report, .a_name = paths->items[0], .b_name = paths->items[1]};
        progress_clear();
        errno = 0;
        if ((values->json ? dpro_compare_json : dpro_compare_text)(&comparison, stdout, &err) < 0)
            code = cmd_fail(&err);
    }
    side_fini(&a);
    side_fini(&b);
    return code;
}

static int run(int argc, char **argv)
{
    struct values values = {.rank_regex = NULL};
    struct opt_list paths = {NULL, 0};
    int code = opt_parse("compare", compare_opts, argc, argv, &values, &paths);
    if (code == 0 && values.help) {
        cmd_print_help(&cmd_compare, stdout);
    } else if (code == 0 && paths.n != 2) {
        cmd_say("compare needs two folders, files or globs (in quotes) of traces, not %zu; see "
                "'dpro help compare'",
                paths.n);
        code = CMD_USAGE;
    } else if (code == 0) {
        code = compare_paths(&values, &paths);
    }
    free(paths.items);
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
    .run = run,
};
