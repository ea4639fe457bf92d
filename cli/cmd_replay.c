/* dpro replay: load, build, replay, validate, report. */
#include <math.h>
#include <string.h>
#include <time.h>

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
    struct dpro_replay_options options;
    double bandwidth_bytes_per_s;
    struct percent fail_on;
    bool keep_profiler, no_validate;
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
    OPT_OUTPUT(
        "also write a page, a timeline and JSON into DIR:\nreport.html, timeline.json.gz (for "
        "Perfetto),\nreplay.json"),
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
    OPT_VALUE("bandwidth", "BW", units_read_rate, bandwidth_bytes_per_s,
              "a rate above 0 with its unit, such as 1gbit, 500mbit, 100Gbit/s or 12.5GB/s",
              "link rate for the Daydream baseline (default: the\nfastest transfer seen), as in "
              "1gbit, 12.5GB/s"),
    OPT_FLAG("keep-profiler", keep_profiler,
             "leave in what recording cost the job (a trace of\ndpro's recorder says it; default: "
             "take it out)"),
    OPT_FLAG("no-validate", no_validate, "don't predict each measured iteration from the others"),
    OPT_VALUE("fail-on", "PCT", read_percent, fail_on, "a percentage of 0 or more",
              "exit 1 when the replay is more than PCT percent off\nthe measured iteration time"),
    CMD_OPT_DIMS,
    CMD_OPT_RANKS_FROM,
    CMD_ROW("iteration", 0, "N", cmd_read_iteration, shown, "the number of an iteration",
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
    int64_t predicted = dpro_replay_iteration_ns(results->replay) + results->profiler_ns;
    return 100.0 * ((double)predicted * n / sum - 1.0);
}

static int report(const struct values *values, const struct dpro_report *results)
{
    struct dpro_error err = {.code = 0};
    if (values->output != NULL) {
        if (dpro_report_folder(results, values->output, &err) < 0)
            return cmd_fail(&err);
        if (!values->common.quiet)
            cmd_say("wrote report.html, timeline.json.gz and replay.json to %s", values->output);
    }
    if ((values->common.json ? dpro_report_json : dpro_report_text)(results, cmd_output(), &err) <
        0)
        return cmd_fail(&err);
    if (cmd_finish_output(CMD_DONE) != CMD_DONE)
        return CMD_SYSTEM;
    double error = values->fail_on.is_set ? error_pct(results) : 0;
    if (fabs(error) <= values->fail_on.value)
        return CMD_DONE;
    cmd_say("the replay is %+.2f %% off the measured iteration time, more than --fail-on %g %%",
            error, values->fail_on.value);
    return CMD_CHECK_FAILED;
}

static int run(const void *given, const struct opt_list *paths)
{
    const struct values *values = given;
    struct dpro_validation validation = {.method = "none"};
    struct dpro_daydream daydream;
    struct dpro_report results = {.what_if = values->delays.n > 0,
                                  .n_samples = values->options.samples};
    struct job job;
    struct dpro_replay *replay = NULL;
    struct dpro_error err = {.code = 0};
    struct timespec since;
    if (values->fail_on.is_set && values->delays.n > 0) {
        cmd_say("--fail-on compares with what was measured, which --delay changes: give one of "
                "them");
        return CMD_USAGE;
    }
    int code = job_load(paths->items, paths->n, given, &job);
    if (code != 0)
        return code;
    struct dpro_replay_options plain = {.threads = job.threads, .sink = job.sink};
    struct dpro_replay_options replay_options = values->options;
    replay_options.threads = job.threads;
    replay_options.sink = job.sink;
    replay_options.delays = values->delays.items;
    replay_options.n_delays = values->delays.n;
    clock_gettime(CLOCK_MONOTONIC, &since);
    if (dpro_graph_n_collectives(job.graph) > 0) {
        if (dpro_replay_daydream(job.graph, values->bandwidth_bytes_per_s, &daydream, &err) < 0)
            goto failed;
        results.daydream = &daydream;
    }
    /* beside the replay where both are of the same graph */
    bool validates = !values->no_validate;
    if (validates && !values->keep_profiler && dpro_graph_profiler_op_ns(job.graph) > 0) {
        validates = false;
        if (dpro_replay_validate(job.graph, &plain, &validation, &err) < 0)
            goto failed;
        job_tell_stage(&job.sink, &since, "validated");
    }
    if (!values->keep_profiler && job_take_out_profiler(&job, &plain, &results.profiler_op_ns,
                                                        &results.profiler_ns, &err) < 0)
        goto failed;
    if (results.what_if && dpro_replay_predict(job.graph, &plain, &results.as_it_is_ns, &err) < 0)
        goto failed;
    int rc = validates ? dpro_replay_run_and_validate(job.graph, &replay_options, &replay,
                                                      &validation, &err)
                       : dpro_replay_run(job.graph, &replay_options, &replay, &err);
    if (rc < 0)
        goto failed;
    job_tell_stage(&job.sink, &since, validates ? "replayed and validated" : "replayed");
    results.sink = job.sink;
    results.trace = job.trace;
    results.graph = job.graph;
    results.replay = replay;
    results.validation = &validation;
    code = report(values, &results);
    job_tell_stage(&job.sink, &since, "reported");
    goto done;
failed:
    code = cmd_fail(&err);
done:
    dpro_replay_destroy(replay);
    job_fini(&job);
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
