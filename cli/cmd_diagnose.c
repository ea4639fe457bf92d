/* dpro diagnose: why an iteration is slow, in milliseconds that add up. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <dpro/dpro.h>

#include "cmd.h"
#include "gate.h"
#include "job.h"
#include "launch.h"
#include "progress.h"

struct values {
    struct cmd_values common;
    const char *output, *fail_on, *save, *against;
    const char *junit, *sarif, *metrics;
};

#define AT(member) offsetof(struct values, member)
static const struct opt diagnose_opts[] = {
    OPT_OUTPUT("also write a page, a timeline and JSON into DIR:\nreport.html, which opens on the "
               "diagnosis,\ntimeline.json.gz (for Perfetto), replay.json,\ndiagnose.json"),
    CMD_OPT_JSON("dpro.diagnose/1", ""),
    OPT_PATH("against", "GOOD", against, "traces, or a file of --save",
             "why the job is slower than in GOOD, another trace\nof it; or compare with a file of "
             "--save"),
    OPT_PATH("save", "FILE", save, "a file", "save the diagnosis, for --against"),
    OPT_VALUE("fail-on", "LIST", opt_read_string, fail_on,
              "thresholds such as 'exposed>15%,lost>20%'",
              "exit 1 when one of these thresholds is exceeded, such\nas "
              "'straggler>5ms,exposed>15%,lost>20%'"),
    OPT_PATH(
        "junit", "FILE", junit, "a file",
        "with --fail-on: a test case a threshold, as JUnit\nwrites them; this and the next two "
        "need python3"),
    OPT_PATH("sarif", "FILE", sarif, "a file",
             "exceeded thresholds and causes as SARIF 2.1.0, for\ncode scanning"),
    OPT_PATH("metrics", "FILE", metrics, "a file",
             "the iteration, causes, and of each rank exposed\ncommunication, waiting and memory, "
             "for Prometheus'\nnode exporter (name it .prom)"),
    CMD_OPT_DIMS,
    CMD_OPT_RANKS_FROM,
    CMD_OPTS_GRAPH("use iterations A to B, both included, in the job's\nown numbers (default: all)",
                   "threads that read, build and replay (default: 0,\none a core); results are the "
                   "same at any number"),
    {.name = NULL},
};

/* ---- thresholds ---- */

enum { MOST_NAMES = 64 };

/* Sums of causes. */
static const struct {
    const char *name, *causes[6];
} sums[] = {{"lost", {NULL}}, /* all of the replay beyond the ideal */
            {"exposed", {"communication", "bucket_order", "small_messages", "slow_link"}},
            {"straggler", {"slow_rank", "uneven_work"}}};
enum { N_SUMS = sizeof sums / sizeof *sums };

static void list_names(const char *names[MOST_NAMES])
{
    size_t n = 0;
    while (n < N_SUMS) {
        names[n] = sums[n].name;
        n++;
    }
    for (size_t i = 0; dpro_cause_key(i) != NULL && n + 1 < MOST_NAMES; i++)
        names[n++] = dpro_cause_key(i);
    names[n] = NULL;
}

/* The blame of a cause, large or small. False: this recording can't tell it. */
static bool blame_of(const struct dpro_diagnosis_view *view, const char *cause, int64_t *ns)
{
    *ns = 0;
    for (uint32_t i = 0; i < view->n_causes; i++)
        if (strcmp(view->causes[i].cause, cause) == 0)
            *ns = view->causes[i].blame_ns;
    for (uint32_t i = 0; i < view->n_abstained; i++)
        if (strcmp(view->abstained[i].cause, cause) == 0) {
            *ns = view->abstained[i].blame_ns;
            return view->abstained[i].needs == NULL;
        }
    return true;
}

static bool value_of(const void *of, const char *name, double *ms, double *pct)
{
    const struct dpro_diagnose_report *report = of;
    const struct dpro_diagnosis_view *view = dpro_diagnosis_view(report->diagnosis);
    int64_t sum = 0, ns;
    const char *const *causes = (const char *const[]){name, NULL}, *untold[6];
    size_t n_untold = 0;
    bool told = false;
    for (size_t i = 0; i < N_SUMS; i++)
        if (strcmp(name, sums[i].name) == 0)
            causes = sums[i].causes;
    for (; *causes != NULL; causes++) {
        if (blame_of(view, *causes, &ns))
            told = true;
        else
            untold[n_untold++] = *causes;
        sum += ns;
    }
    for (size_t i = 0; told && i < n_untold; i++)
        cmd_say("--fail-on: this recording can't tell %s, so the sum %s leaves it out", untold[i],
                name);
    if (strcmp(name, "lost") == 0) {
        sum = view->explained_ns - view->ideal_ns;
        told = true;
    }
    *ms = (double)sum / 1e6;
    *pct = view->explained_ns > 0 ? 100.0 * (double)sum / (double)view->explained_ns : 0;
    return told;
}

/* ---- the command ---- */

/* What other programs read. The Python package writes it, of both answers. */
static int write_for_others(const struct values *values, struct dpro_job *job,
                            const struct dpro_diagnose_report *report, const char *trace)
{
    const struct dpro_job_replay_options options = {.size = sizeof options, .no_validate = 1};
    const char *given[] = {"",
                           trace,
                           values->fail_on ? values->fail_on : "",
                           values->junit ? values->junit : "",
                           values->sarif ? values->sarif : "",
                           values->metrics ? values->metrics : ""};
    struct opt_list args = {.items = given, .n = sizeof given / sizeof *given};
    struct dpro_error err = {.code = 0};
    struct dpro_report replayed;
    char path[32];
    FILE *answers = tmpfile();
    if (answers == NULL) {
        cmd_say("no temporary file can be made: %s; set TMPDIR", strerror(errno));
        return CMD_SYSTEM;
    }
    snprintf(path, sizeof path, "/dev/fd/%d", fileno(answers));
    given[0] = path;
    int code = cmd_done(dpro_diagnose_json(report, answers, &err), &err);
    if (code == 0)
        code = cmd_done(dpro_job_replay(job, &options, &replayed, &err), &err);
    if (code == 0)
        code = cmd_done(dpro_report_json(&replayed, answers, &err), &err);
    if (code == 0)
        code = launch_module("diagnose", "dpro.ci", &args);
    fclose(answers);
    return code;
}

static int write_files(const struct values *values, struct dpro_job *job,
                       const struct dpro_diagnose_report *report, const char *trace)
{
    const char *const files[] = {values->junit, values->sarif, values->metrics, values->save};
    struct dpro_error err = {.code = 0};
    struct dpro_report replayed;
    int code = 0;
    for (size_t i = 0; i < sizeof files / sizeof *files && code == 0; i++)
        if (files[i] != NULL)
            code = job_check_output(job, files[i]);
    if (code == 0 && (values->junit || values->sarif || values->metrics))
        code = write_for_others(values, job, report, trace);
    if (code != 0)
        return code;
    if (values->save != NULL && dpro_diagnose_save(report, values->save, &err) < 0)
        return cmd_fail(&err);
    if (values->output == NULL)
        return CMD_DONE;
    if (dpro_job_replay(job, NULL, &replayed, &err) < 0)
        return cmd_fail(&err);
    replayed.diagnosis = report;
    if (dpro_report_folder(&replayed, values->output, &err) < 0)
        return cmd_fail(&err);
    if (!values->common.quiet)
        cmd_say("wrote report.html, timeline.json.gz, replay.json and diagnose.json to %s",
                values->output);
    return CMD_DONE;
}

/* A file that can't be read is bad input. */
static int code_of(struct dpro_error *err)
{
    int code = err->code < 0 ? cmd_fail(err) : 0;
    return code == CMD_SYSTEM && err->code == DPRO_EIO ? CMD_INPUT : code;
}

/* Whether --against names a diagnosis: a file that says so near its begin, else traces. */
static bool is_saved(const char *path)
{
    char text[4096] = "";
    struct stat is;
    FILE *file = stat(path, &is) == 0 && S_ISREG(is.st_mode) ? fopen(path, "rb") : NULL;
    if (file == NULL)
        return false;
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return strstr(text, "\"schema\"") != NULL;
}

/* The other job, which this process alone reads; it is closed in any case. */
static int set_against(const struct values *values, const char *path, struct dpro_job *job,
                       struct dpro_job **than, struct dpro_against_report *against)
{
    struct dpro_job_options options = values->common.job;
    struct dpro_error err = {.code = 0};
    options.size = sizeof options;
    options.sink = progress_start(values->common.verbosity, values->common.quiet);
    if (dpro_job_open(&values->against, 1, &options, than, &err) == 0)
        dpro_job_against(job, *than, against, &err);
    against->a_name = values->against;
    against->b_name = path;
    return code_of(&err);
}

static int run(const void *given, const struct opt_list *paths)
{
    const struct values *values = given;
    const char *names[MOST_NAMES];
    struct dpro_diagnose_report report;
    struct dpro_saved_diagnosis *baseline = NULL;
    struct dpro_against_report against;
    struct dpro_job *job = NULL, *than = NULL;
    struct dpro_error err = {.code = 0};
    int code = 0;
    list_names(names);
    if (values->fail_on != NULL)
        code = gate_parse(values->fail_on, names);
    if (values->junit != NULL && values->fail_on == NULL) {
        cmd_say("--junit writes a test case for each threshold: give thresholds by --fail-on");
        code = CMD_USAGE;
    }
    bool saved = values->against != NULL && is_saved(values->against);
    if (code == 0 && saved && dpro_saved_diagnosis_read(values->against, &baseline, &err) < 0)
        code = code_of(&err);
    if (code == 0)
        code = job_open(paths->items, paths->n, given, &job);
    if (code == 0 && values->against != NULL && !saved)
        code = set_against(values, paths->items[0], job, &than, &against);
    if (code == 0)
        code = cmd_done(dpro_job_diagnose(job, NULL, &report, &err), &err);
    if (code == 0 && baseline != NULL)
        code = cmd_done(dpro_saved_diagnosis_check(baseline, report.graph, &err), &err);
    if (code == 0) {
        report.baseline = baseline;
        report.against = than != NULL ? &against : NULL;
        code = write_files(values, job, &report, paths->items[0]);
    }
    if (code == 0)
        code = cmd_done((values->common.json ? dpro_diagnose_json
                                             : dpro_diagnose_text)(&report, cmd_output(), &err),
                        &err);
    if (code == 0)
        code = cmd_finish_output(CMD_DONE);
    if (code == 0 && values->fail_on != NULL)
        code = gate_check(values->fail_on, value_of, &report);
    dpro_job_close(job);
    dpro_job_close(than);
    dpro_saved_diagnosis_destroy(baseline);
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
    .examples = "  dpro diagnose TRACE -o out/                     and a page to look at\n"
                "  dpro diagnose TRACE --against LAST_WEEKS        why slower than that trace\n"
                "  dpro diagnose TRACE --save good.json            and later:\n"
                "  dpro diagnose TRACE2 --against good.json --fail-on 'exposed>15%'\n"
                "  dpro diagnose TRACE --fail-on 'lost>40%' --junit dpro.xml --sarif dpro.sarif\n"
                "  dpro diagnose TRACE --metrics /var/lib/node_exporter/dpro.prom",
    .opts = diagnose_opts,
    .values_size = sizeof(struct values),
    .needs = CMD_NEEDS_TRACES,
    .processes = CMD_TOGETHER,
    .run = run,
};
