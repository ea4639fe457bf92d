/* dpro replay: load, build, replay, validate, report. */
#include <math.h>
#include <string.h>

#include <dpro/dpro.h>

#include "cmd.h"
#include "job.h"
#include "units.h"

struct percent {
    bool is_set;
    double value;
};

struct values {
    struct cmd_values common;
    const char *output;
    struct opt_list delays;
    struct dpro_job_replay_options options;
    struct percent fail_on;
};

static bool read_percent(const char *text, void *field)
{
    struct percent *percent = field;
    char number[64];
    size_t len = strlen(text);
    if (len > 0 && text[len - 1] == '%')
        len--;
    if (len == 0 || len >= sizeof number || text[0] == '-')
        return false;
    memcpy(number, text, len);
    number[len] = '\0';
    percent->is_set = true;
    return opt_number(number, &percent->value);
}

#define AT(member) offsetof(struct values, member)
static const struct opt replay_opts[] = {
    OPT_OUTPUT("also write a page, a timeline and JSON into DIR:\nreport.html, which opens on the "
               "diagnosis,\ntimeline.json.gz (for Perfetto), replay.json,\ndiagnose.json"),
    CMD_OPT_JSON("dpro.replay/1", ""),
    CMD_OPT_DELAY(
        "what if ops took longer or shorter: KIND=RATIO or\nOP=RATIO times as long, OP=+MS "
        "each MS milliseconds\nmore, KIND=+MS all of a rank's together; @RANK "
        "or\n@FIRST-LAST before the = for some ranks only; may be\nrepeated"),
    OPT_WHOLE(
        "samples", opt_read_u32, options.samples, 0, UINT32_MAX,
        "also replay N iterations drawn from the measured\nones, for p50 and p95 (default: 0)"),
    OPT_WHOLE("seed", opt_read_u64, options.seed, 0, UINT64_MAX,
              "of those draws; equal seeds give equal results"),
    OPT_VALUE("bandwidth", "BW", units_read_rate, options.bandwidth_bytes_per_s,
              "a rate above 0 with its unit, such as 1gbit, 500mbit, 100Gbit/s or 12.5GB/s",
              "link rate for the Daydream baseline (default: the\nfastest transfer seen), as in "
              "1gbit, 12.5GB/s"),
    OPT_SWITCH(
        "keep-profiler", common.job.keep_profiler,
        "leave in what recording cost the job (a trace of\ndpro's recorder says it; default: "
        "take it out)"),
    OPT_SWITCH("no-validate", options.no_validate,
               "don't predict each measured iteration from the others"),
    OPT_VALUE("fail-on", "PCT", read_percent, fail_on, "a percentage of 0 or more",
              "exit 1 when the replay is more than PCT percent off\nthe measured iteration time"),
    CMD_OPT_DIMS,
    CMD_OPT_RANKS_FROM,
    OPT_VALUE("iteration", "N", cmd_read_iteration, common, "the number of an iteration",
              "show iteration N: its critical path, its timeline\n(default: the one nearest to the "
              "mean)"),
    CMD_OPTS_GRAPH("use iterations A to B, both included, in the job's\nown numbers (default: all)",
                   "threads that read, build and predict (default: 0,\none a core); results are "
                   "the same at any number"),
    {.name = NULL},
};

static double error_pct(const struct dpro_report *results)
{
    uint32_t n;
    const int64_t *measured = dpro_graph_measured_ns(results->graph, &n);
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)measured[i];
    int64_t predicted = dpro_replay_view(results->replay)->iteration_ns + results->profiler_ns;
    return 100.0 * ((double)predicted * n / sum - 1.0);
}

/* For the page, which is the same without it where a job can't be diagnosed. */
static void diagnose(struct dpro_job *job, struct dpro_diagnose_report *diagnosis,
                     struct dpro_report *results)
{
    enum { MOST_OPS = 2000000 }; /* more take many seconds */
    struct dpro_error unknown;
    if (!results->what_if && dpro_graph_n_ops(results->graph) <= MOST_OPS &&
        dpro_job_diagnose(job, NULL, diagnosis, &unknown) == 0)
        results->diagnosis = diagnosis;
}

static int report(const struct values *values, const struct dpro_report *results)
{
    struct dpro_error err = {.code = 0};
    if (values->output != NULL) {
        if (dpro_report_folder(results, values->output, &err) < 0)
            return cmd_fail(&err);
        if (!values->common.quiet)
            cmd_say("wrote report.html, timeline.json.gz%s to %s",
                    results->diagnosis ? ", replay.json and diagnose.json" : " and replay.json",
                    values->output);
    }
    if ((values->common.json ? dpro_report_json : dpro_report_text)(results, cmd_output(), &err) <
        0)
        return cmd_fail(&err);
    if (cmd_finish_output(CMD_DONE) != CMD_DONE)
        return CMD_SYSTEM;
    double error = values->fail_on.is_set ? error_pct(results) : 0;
    if (fabs(error) <= values->fail_on.value)
        return CMD_DONE;
    cmd_say("the replay is %+.3g %% off the measured iteration time, more than --fail-on %g %%",
            error, values->fail_on.value);
    return CMD_CHECK_FAILED;
}

static int run(const void *given, const struct opt_list *paths)
{
    const struct values *values = given;
    struct dpro_job_replay_options options = values->options;
    struct dpro_diagnose_report diagnosis;
    struct dpro_report results;
    struct dpro_job *job;
    struct dpro_error err = {.code = 0};
    if (values->fail_on.is_set && values->delays.n > 0) {
        cmd_say("--fail-on compares the replay with the measured iterations, and --delay changes "
                "the replay: give one of them");
        return CMD_USAGE;
    }
    if (options.seed != 0 && options.samples == 0) {
        cmd_say("--seed needs --samples: say how many iterations to draw, or leave --seed out");
        return CMD_USAGE;
    }
    options.size = sizeof options;
    options.delays = values->delays.items;
    options.n_delays = values->delays.n;
    int code = job_open(paths->items, paths->n, given, &job);
    if (code == 0)
        code = cmd_done(dpro_job_replay(job, &options, &results, &err), &err);
    if (code == 0 && values->output != NULL)
        diagnose(job, &diagnosis, &results);
    if (code == 0) {
        code = report(values, &results);
        dpro_job_tell_stage(job, "reported");
    }
    dpro_job_close(job);
    return code;
}

const struct cmd cmd_replay = {
    .name = "replay",
    .summary = "predict the iteration time from traces, and say what it is spent on",
    .usage = "[OPTIONS] PATH...",
    .description =
        "Reads the traces of a job's ranks (profiles and graphs of PyTorch, TensorFlow or MXNet;\n"
        "PATH is a file, a folder or a glob), joins the ranks, replays a training iteration and\n"
        "reports: how long it takes, how sure that is, what each rank spends it on, and the\n"
        "critical path over all ranks.",
    .examples =
        "  dpro replay runs/yesterday/                   a folder, one file or more a rank\n"
        "  dpro replay runs/yesterday/ -o out/           and a page and a timeline to look at\n"
        "  dpro replay 'runs/*/rank*.json.gz' --json     for programs\n"
        "  dpro replay runs/yesterday/ --delay BW=0.5    what if backward took half as long",
    .opts = replay_opts,
    .values_size = sizeof(struct values),
    .needs = CMD_NEEDS_TRACES,
    .processes = CMD_TOGETHER,
    .run = run,
};
