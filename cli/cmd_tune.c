/* dpro tune: has a job record itself, search a plan in the recording, measure what it found by
 * turns, and go on with what is fastest. All of it happens in the job's processes
 * (python/dpro/tune.py); this gives them what they need. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <dpro/recording.h>

#include "cmd.h"
#include "launch.h"
#include "parts.h"
#include "units.h"

struct values { /* texts go into the environment as they are; NULL: not given */
    struct cmd_values common;
    const char *output, *allow, *warmup, *iterations;
    uint64_t memory_bytes;
    uint32_t budget_steps;
    bool force;
};

static bool read_ways(const char *text, void *field)
{
    *(const char **)field = text;
    return strcmp(text, "compile") == 0 || strcmp(text, "bf16") == 0 ||
           strcmp(text, "compile,bf16") == 0 || strcmp(text, "bf16,compile") == 0;
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
    OPT_VALUE("budget", "STEPS", read_steps, budget_steps, "a number of steps such as 200",
              "steps that turns may take (default: three minutes, at\nleast 240 and at most 2000)"),
    OPT_WHOLE("warmup", opt_read_string, warmup, 0, UINT32_MAX,
              "steps to pass over before anything is recorded\n(default: 10)"),
    OPT_WHOLE("iterations", opt_read_string, iterations, 1, UINT32_MAX,
              "steps to record (default: 10)"),
    CMD_OPT_FORCE,
    CMD_OPT_HELP,
    {.name = NULL, .help = "options of the program itself come after '--'"},
};

static int set_environment(const struct values *values, const char *trace)
{
    char search[200], budget[24], memory[32] = "", *dpro = realpath("/proc/self/exe", NULL);
    char *folder = strndup(trace, (size_t)(strrchr(trace, '/') - trace));
    int n = 0;
    search[0] = '\0';
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

/* The trace goes into the plan's folder. */
static int tune(const struct values *values, const struct opt_list *args)
{
    struct dpro_error err = {.code = 0};
    struct parts parts;
    char *trace = NULL, *whole = NULL;
    bool started;
    int code = parts_find(&parts);
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
    if (whole != NULL) { /* as long as nothing came into them */
        rmdir(whole);
        rmdir(values->output);
    }
    free(whole);
    free(trace);
    parts_fini(&parts);
    return code;
}

static int run(const void *given, const struct opt_list *args)
{
    const struct values *values = given;
    int code;
    if (values->output == NULL || args->items[0][0] == '\0')
        return cmd_needs(&cmd_tune);
    code = launch_check(args);
    return code != 0 ? code : tune(values, args);
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
