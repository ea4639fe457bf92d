/* dpro tune: has a job record itself, search a plan in the recording, measure what it found by
 * turns, and go on with what is fastest. All of it happens in the job's processes
 * (python/dpro/tune.py); this gives them what they need. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <dpro/optimize.h>
#include <dpro/recording.h>

#include "cmd.h"
#include "launch.h"
#include "parts.h"
#include "status.h"
#include "units.h"

struct values { /* texts go into the environment as they are; NULL: not given */
    struct cmd_values common;
    const char *output, *allow, *warmup, *iterations;
    uint64_t memory_bytes;
    uint32_t budget_steps, n_finalists;
    struct opt_list tries;
    bool force, restarts;
};

enum { DEFAULT_FINALISTS = 5 };

static bool read_ways(const char *text, void *field)
{
    *(const char **)field = text;
    return strcmp(text, "compile") == 0 || strcmp(text, "bf16") == 0 ||
           strcmp(text, "compile,bf16") == 0 || strcmp(text, "bf16,compile") == 0;
}

static bool read_try(const char *text, void *field)
{
    const char *value = strchr(text, '=');
    return value != NULL && value != text && value[1] != '\0' && opt_read_list(text, field);
}

/* "200", "200steps" */
static bool read_steps(const char *text, void *field)
{
    char digits[16];
    size_t n = strspn(text, "0123456789");
    snprintf(digits, sizeof digits, "%.*s", (int)(n < sizeof digits ? n : sizeof digits), text);
    return (text[n] == '\0' || strcmp(text + n, "steps") == 0) && opt_read_u32(digits, field) &&
           *(uint32_t *)field > 0;
}

static bool read_size(const char *text, void *field)
{
    return units_read_bytes(text, field);
}

#define AT(member) offsetof(struct values, member)
static const struct opt tune_opts[] = {
    OPT_OUTPUT("the folder of the plan; the recording and all turns come\ninto it, too"),
    OPT_VALUE("allow", "WHAT", read_ways, allow, "compile, bf16 or compile,bf16",
              "also modules compiled (compile: fused ops round otherwise)\nor computed in 16 bits "
              "(bf16), which are measured first"),
    OPT_VALUE("memory", "SIZE", read_size, memory_bytes, "a size above 0 such as 16GiB or 500MB",
              "what a rank may hold: what holds more is out"),
    OPT_VALUE(
        "budget", "STEPS", read_steps, budget_steps, "a number of steps such as 200",
        "steps that turns may take (default: three minutes, at\nleast 240 and at most 10000)"),
    OPT_WHOLE("finalists", opt_read_u32, n_finalists, 2, DPRO_MOST_FINALISTS,
              "how many plans that the model can't tell apart are\n"
              "measured (default: 5)"),
    OPT_WHOLE("warmup", opt_read_string, warmup, 0, UINT32_MAX,
              "steps to pass over before anything is recorded\n(default: 10)"),
    OPT_WHOLE("iterations", opt_read_string, iterations, 1, UINT32_MAX,
              "steps to record (default: 10)"),
    OPT_FLAG("restart", restarts,
             "take short runs of the job for turns, one after the other,\nfor what no running job "
             "can change: plans in DIR, and\nvariables of what the job uses; the same command goes "
             "on\nwhere it was ended"),
    OPT_LIST("try", "NAME=VALUE", read_try, tries, "NAME=VALUE or NAME=VALUE,VALUE",
             "with --restart: the values of a variable to measure, in\nplace of those that dpro "
             "knows; repeatable"),
    CMD_OPT_FORCE,
    CMD_OPT_HELP,
    {.name = NULL, .help = "options of the program itself come after '--'"},
};

static int set_environment(const struct values *values, const char *trace)
{
    char search[200], budget[24], memory[32] = "", *dpro = realpath("/proc/self/exe", NULL);
    char *folder = strndup(trace, (size_t)(strrchr(trace, '/') - trace));
    int n = snprintf(search, sizeof search, "--finalists %u",
                     values->n_finalists ? values->n_finalists : DEFAULT_FINALISTS);
    if (values->allow != NULL)
        n += snprintf(search + n, sizeof search - (size_t)n, " --allow %s", values->allow);
    if (values->memory_bytes > 0) {
        snprintf(memory, sizeof memory, "%llu", (unsigned long long)values->memory_bytes);
        snprintf(search + n, sizeof search - (size_t)n, " --memory %s", memory);
    }
    snprintf(budget, sizeof budget, "%u", values->budget_steps);
    unsetenv("DPRO_PLAN");
    unsetenv("DPRO_VERIFY");
    int code = launch_set_all({"DPRO_TUNE", folder}, {"DPRO_TUNE_DPRO", dpro},
                              {"DPRO_TUNE_SEARCH", search}, {"DPRO_TUNE_BUDGET", budget},
                              {"DPRO_TUNE_MEMORY", memory}, {"DPRO_OUT", trace},
                              {"DPRO_PROBE", values->allow}, {"DPRO_WARMUP", values->warmup},
                              {"DPRO_ITERATIONS", values->iterations});
    free(dpro);
    free(folder);
    return code;
}

/* What a killed job can't say itself. */
static void tell_killed(int fd)
{
    struct status *list;
    size_t n = status_read(fd, &list);
    for (size_t i = 0; i < n; i++)
        if (list[i].rank == 0 &&
            (list[i].flags & (STATUS_STEPPED | STATUS_ENDED)) == STATUS_STEPPED)
            cmd_say("tune: the job was killed, or left at once, after step %ld, %s", list[i].step,
                    list[i].text[0] ? list[i].text : "before all was recorded");
    free(list);
}

/* The trace goes into the plan's folder. */
static int tune(const struct values *values, const struct opt_list *args)
{
    struct dpro_error err = {.code = 0};
    struct parts parts;
    char *trace = NULL, *whole = NULL;
    bool started = false;
    int code = parts_find(&parts), status = status_open();
    if (code == 0 && asprintf(&trace, "%s/trace", values->output) < 0)
        code = cmd_no_memory();
    if (code == 0 && dpro_recording_prepare(trace, values->force, &err) < 0)
        code = cmd_fail(&err);
    if (code == 0 && (whole = realpath(trace, NULL)) == NULL) {
        cmd_say("%s: %s", trace, strerror(errno));
        code = CMD_SYSTEM;
    }
    if (code == 0)
        code = set_environment(values, whole);
    if (code == 0)
        code = launch_set_recording(&parts, getenv("DPRO_NET"), true);
    if (code == 0)
        code = launch_run("tune", args, &started);
    tell_killed(status);
    if (whole != NULL && rmdir(whole) == 0) { /* as long as nothing came into it */
        if (started)
            cmd_say("there was nothing to tune: no Python process of %s loaded PyTorch and ended a "
                    "step, as far as dpro can see (python -I and -E keep it out)",
                    args->items[0]);
        rmdir(values->output);
    }
    free(whole);
    free(trace);
    parts_fini(&parts);
    return code;
}

/* By python/dpro/tune_restart.py, which drops the first folder of PYTHONPATH. */
static int tune_by_runs(const struct values *values, const struct opt_list *args)
{
    static const char *const program[] = {"python3", "-m", "dpro.tune_restart"};
    struct opt_list list = {.n = 0};
    struct parts parts;
    char budget[24], memory[32], n_tries[24], *package = NULL;
    bool started;
    int code = parts_find(&parts);
    snprintf(budget, sizeof budget, "%u", values->budget_steps);
    snprintf(memory, sizeof memory, "%llu", (unsigned long long)values->memory_bytes);
    snprintf(n_tries, sizeof n_tries, "%zu", values->tries.n);
    if (code == 0 && mkdir(values->output, 0777) < 0 && errno != EEXIST) {
        cmd_say("%s: %s", values->output, strerror(errno));
        code = CMD_SYSTEM;
    }
    char *folder = realpath(values->output, NULL);
    if (code == 0 && asprintf(&package, "%s/../..", parts.site) < 0)
        code = cmd_no_memory();
    if (code == 0)
        code = launch_set_all({"DPRO_TUNE_BUDGET", budget}, {"DPRO_TUNE_MEMORY", memory},
                              {"DPRO_WARMUP", values->warmup});
    if (code == 0)
        code = launch_prepend_env("PYTHONPATH", parts.site);
    if (code == 0)
        code = launch_prepend_env("PYTHONPATH", package);
    if (code == 0) {
        for (size_t i = 0; i < sizeof program / sizeof *program; i++)
            opt_read_list(program[i], &list);
        opt_read_list(folder, &list);
        opt_read_list(n_tries, &list);
        for (size_t i = 0; i < values->tries.n; i++)
            opt_read_list(values->tries.items[i], &list);
        for (size_t i = 0; i < args->n; i++)
            opt_read_list(args->items[i], &list);
        code = launch_run("tune", &list, &started);
    }
    free(list.items);
    free(folder);
    free(package);
    parts_fini(&parts);
    return code;
}

static int run(const void *given, const struct opt_list *args)
{
    const struct values *values = given;
    int code;
    if (values->output == NULL || args->items[0][0] == '\0')
        return cmd_needs(&cmd_tune);
    if (values->tries.n > 0 && !values->restarts) {
        cmd_say("--try sets variables with which the job is started: add --restart");
        return CMD_USAGE;
    }
    if (values->restarts && (values->allow || values->iterations || values->n_finalists > 0)) {
        cmd_say("--restart records nothing: leave out --allow, --iterations and --finalists, or "
                "--restart");
        return CMD_USAGE;
    }
    code = launch_check(args);
    return code != 0 ? code : (values->restarts ? tune_by_runs : tune)(values, args);
}

const struct cmd cmd_tune = {
    .name = "tune",
    .summary = "find the plan that makes a running job fastest, and go on with it",
    .usage = "-o DIR [OPTIONS] [--] PROGRAM [ARG...]",
    .description =
        "Runs PROGRAM, the job's code unchanged: a training job of PyTorch. Its first steps are\n"
        "recorded; while it trains on, dpro searches what would make it faster, and the job then\n"
        "trains with each of the best found by turns, until a measurement says which is fastest.\n"
        "It goes on with that, which is written to DIR as a plan for the next runs. On any doubt\n"
        "the job goes on as it was. The exit code is the program's.",
    .examples =
        "  dpro tune -o plan/ -- torchrun --nproc-per-node=8 train.py\n"
        "  dpro tune -o plan/ --budget 200 --allow compile,bf16 -- torchrun train.py\n"
        "  dpro profile --plan plan/ -o TRACE -- torchrun train.py    another run with the plan",
    .opts = tune_opts,
    .values_size = sizeof(struct values),
    .needs = "a folder and a program to run, as in 'dpro tune -o plan/ -- torchrun train.py'",
    .processes = CMD_BY_EACH,
    .run = run,
};
