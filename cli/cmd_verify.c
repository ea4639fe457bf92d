/* cmd_verify.c: dpro verify: runs a program that trains with its own buckets and with a plan's by
 * turns, and tells what the plan is worth. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <dpro/verify.h>

#include "cmd.h"
#include "launch.h"
#include "parts.h"

struct values { /* texts go into the environment as they are; NULL: not given */
    const char *plan, *steps, *blocks, *settle, *warmup, *fail_on;
    struct opt_list against;
    bool stop, json, help;
};

static const char *const fail_choices[] = {"slower", NULL};

static bool read_at_least(const char *text, uint32_t least, void *field)
{
    uint32_t value;
    return opt_read_u32(text, &value) && value >= least && opt_read_string(text, field);
}

static bool read_whole(const char *text, void *field)
{
    return read_at_least(text, 0, field);
}

static bool read_positive(const char *text, void *field)
{
    return read_at_least(text, 1, field);
}

static bool read_blocks(const char *text, void *field)
{
    uint32_t value;
    return opt_read_u32(text, &value) && value <= 1000 && read_positive(text, field);
}

static bool read_settle(const char *text, void *field)
{
    return read_at_least(text, 2, field);
}

static bool read_against(const char *text, void *field)
{
    double cap;
    bool is_plan = strncmp(text, "plan=", 5) == 0 && text[5] != '\0';
    return (is_plan || (strncmp(text, "cap=", 4) == 0 && opt_number(text + 4, &cap) && cap > 0)) &&
           strchr(text, ',') == NULL && opt_read_list(text, field);
}

static bool read_fail_on(const char *text, void *field)
{
    return strcmp(text, fail_choices[0]) == 0 && opt_read_string(text, field);
}

#define AT(member) offsetof(struct values, member)
static const struct opt verify_opts[] = {
    {"plan", 0, "DIR", opt_read_string, AT(plan), "the folder of a plan",
     "the plan, as dpro optimize wrote it", NULL, OPT_COMPLETE_PATH},
    {"steps", 0, "N", read_positive, AT(steps), "a whole number of 1 or more",
     "steps of a turn that are timed (default: 6)", NULL, OPT_COMPLETE_NOTHING},
    {"blocks", 0, "N", read_blocks, AT(blocks), "a whole number from 1 to 1000",
     "blocks of mirrored turns, own plan plan own; more make\nthe interval smaller (default: 8)",
     NULL, OPT_COMPLETE_NOTHING},
    {"settle", 0, "N", read_settle, AT(settle), "a whole number of 2 or more",
     "steps at the begin of a turn that do not count\n(default: 2)", NULL, OPT_COMPLETE_NOTHING},
    {"warmup", 0, "N", read_whole, AT(warmup), "a whole number",
     "steps to pass over before the first turn (default: 10)", NULL, OPT_COMPLETE_NOTHING},
    {"against", 0, "cap=MB", read_against, AT(against),
     "cap= and a bucket size in MB, or plan= and the folder of a plan",
     "also measure DDP's buckets of this size, or another plan\n(plan=DIR); repeatable", NULL,
     OPT_COMPLETE_NOTHING},
    {"stop", 0, NULL, opt_read_flag, AT(stop), NULL, "end the job when all is measured", NULL,
     OPT_COMPLETE_NOTHING},
    {"fail-on", 0, "WHAT", read_fail_on, AT(fail_on), "slower",
     "slower: exit 1 when the plan is slower than the job's\nown buckets by more than noise",
     fail_choices, OPT_COMPLETE_NOTHING},
    {"json", 0, NULL, opt_read_flag, AT(json), NULL,
     "print JSON (dpro.verify/1) and nothing else; what the\nprogram prints goes to stderr", NULL,
     OPT_COMPLETE_NOTHING},
    {"help", 'h', NULL, opt_read_flag, AT(help), NULL, "this text", NULL, OPT_COMPLETE_NOTHING},
    {.name = NULL, .help = "options of the program itself come after '--'"},
};

/* What DPRO_VERIFY_AGAINST holds: bucket sizes, and absolute paths of plans. */
static int list_against(const struct opt_list *against, char *text, size_t size)
{
    struct dpro_plan_summary plan;
    struct dpro_error err = {.code = 0};
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < against->n; i++) {
        const char *item = strchr(against->items[i], '=') + 1;
        char *path = NULL;
        if (against->items[i][0] == 'p') {
            if (dpro_plan_read(item, &plan, &err) < 0)
                return cmd_fail(&err);
            path = realpath(item, NULL);
        }
        int n = snprintf(text + used, size - used, "%s%s", i > 0 ? "," : "", path ? path : item);
        bool has_comma = path != NULL && strchr(path, ',') != NULL;
        free(path);
        if (has_comma) {
            cmd_say("%s: a plan to measure against can't have a comma in its path", item);
            return CMD_USAGE;
        }
        if (n < 0 || (size_t)n >= size - used) {
            cmd_say("too many of --against");
            return CMD_USAGE;
        }
        used += (size_t)n;
    }
    return 0;
}

static int set_environment(const struct values *values, const char *result,
                           const struct parts *parts)
{
    const char *const texts[][2] = {
        {"DPRO_VERIFY", result},
        {"DPRO_VERIFY_STEPS", values->steps},
        {"DPRO_VERIFY_BLOCKS", values->blocks},
        {"DPRO_VERIFY_SETTLE", values->settle},
        {"DPRO_VERIFY_STOP", values->stop ? "1" : NULL},
        {"DPRO_WARMUP", values->warmup},
    };
    char against[4096];
    int code = list_against(&values->against, against, sizeof against);
    unsetenv("DPRO"); /* nothing is recorded */
    for (size_t i = 0; i < sizeof texts / sizeof *texts && code == 0; i++)
        code = launch_set_env(texts[i][0], texts[i][1]);
    if (code == 0)
        code = launch_set_env("DPRO_VERIFY_AGAINST", against);
    if (code == 0)
        code = launch_set_path("DPRO_PLAN", values->plan);
    if (code == 0)
        code = launch_prepend_env("PYTHONPATH", parts->site);
    return code;
}

/* The program's standard output is not to come between ours. */
static int run_program(const struct values *values, const struct opt_list *args, bool *started)
{
    int out = values->json ? dup(STDOUT_FILENO) : -1, code;
    if (out >= 0)
        dup2(STDERR_FILENO, STDOUT_FILENO);
    code = launch_run("verify", args, started);
    if (out >= 0) {
        dup2(out, STDOUT_FILENO);
        close(out);
    }
    return code;
}

static int tell(const struct values *values, const char *result,
                const struct dpro_plan_summary *plan)
{
    struct dpro_verify *verify = NULL;
    struct dpro_error err = {.code = 0};
    int code = CMD_DONE;
    if (access(result, F_OK) < 0) {
        cmd_say(
            "nothing was measured: no Python process made a step of a torch optimizer, as far as "
            "dpro can see (python -I and -E keep it out)");
        return CMD_INPUT;
    }
    if (dpro_verify_read(result, plan, &verify, &err) < 0)
        return cmd_fail(&err);
    if (dpro_verify_is_elsewhere(verify))
        cmd_say("rank 0 of the job, on another node, has the result");
    else if ((values->json ? dpro_verify_json : dpro_verify_text)(verify, stdout, &err) < 0)
        code = cmd_fail(&err);
    else if (values->fail_on != NULL && dpro_verify_is_slower(verify))
        code = CMD_CHECK_FAILED;
    dpro_verify_destroy(verify);
    return code;
}

static int verify_in(const struct values *values, const struct opt_list *args, const char *folder,
                     const struct dpro_plan_summary *plan, const struct parts *parts)
{
    char result[4096];
    bool started = false;
    int code, told;
    if (snprintf(result, sizeof result, "%s/verify.json", folder) >= (int)sizeof result) {
        cmd_say("%s: %s", folder, strerror(ENAMETOOLONG));
        return CMD_SYSTEM;
    }
    code = set_environment(values, result, parts);
    if (code == 0)
        code = run_program(values, args, &started);
    if (started) {
        told = tell(values, result, plan);
        code = code != 0 ? code : told;
    }
    unlink(result);
    strcat(result, ".part");
    unlink(result);
    return code;
}

static int verify(const struct values *values, const struct opt_list *args)
{
    struct dpro_plan_summary plan;
    struct dpro_error err = {.code = 0};
    struct parts parts;
    const char *temporary = getenv("TMPDIR");
    char folder[2048];
    int code = launch_check(args);
    if (code != 0)
        return code;
    if (dpro_plan_read(values->plan, &plan, &err) < 0)
        return cmd_fail(&err);
    if (strcmp(plan.framework, "pytorch") != 0 || strcmp(plan.stack, "ddp") != 0) {
        cmd_say("%s: the plan is for %s, not pytorch's DDP, whose buckets verify changes in the "
                "running job: record the job with 'dpro profile --plan' and 'dpro compare' both "
                "recordings",
                values->plan, plan.framework);
        return CMD_INPUT;
    }
    if (temporary == NULL || temporary[0] != '/' || strlen(temporary) > sizeof folder - 32)
        temporary = "/tmp";
    code = parts_find(&parts);
    if (code != 0)
        goto done;
    snprintf(folder, sizeof folder, "%s/dpro-verify-XXXXXX", temporary);
    if (mkdtemp(folder) == NULL) {
        cmd_say("%s: %s", temporary, strerror(errno));
        code = CMD_SYSTEM;
        goto done;
    }
    code = verify_in(values, args, folder, &plan, &parts);
    rmdir(folder);
done:
    parts_fini(&parts);
    return code;
}

static int run(int argc, char **argv)
{
    struct values values = {.plan = NULL};
    struct opt_list args = {NULL, 0};
    int code = opt_parse("verify", verify_opts, argc, argv, &values, &args);
    if (code == 0 && values.help) {
        cmd_print_help(&cmd_verify, stdout);
    } else if (code == 0 && (values.plan == NULL || args.n == 0 || args.items[0][0] == '\0')) {
        cmd_say("verify needs a plan and a program to run, as in 'dpro verify --plan plan/ -- "
                "torchrun train.py'; see 'dpro help verify'");
        code = CMD_USAGE;
    } else if (code == 0) {
        code = verify(&values, &args);
    }
    free(values.against.items);
    free(args.items);
    return code;
}

const struct cmd cmd_verify = {
    .name = "verify",
    .summary = "measure what a plan is worth, in one run of the job",
    .usage = "--plan DIR [OPTIONS] [--] PROGRAM [ARG...]",
    .description = "Runs PROGRAM, the job's code unchanged. After a warm-up its "
                   "DistributedDataParallel models\n"
                   "train with the job's own buckets and with the plan's by turns, in mirrored "
                   "order, so that\n"
                   "whatever drifts meanwhile cancels out; steps are timed without a profiler. "
                   "Then: what the\n"
                   "plan saves, with a 95 % interval, beside what was expected. The exit code is "
                   "the program's\n"
                   "if that is not 0.",
    .examples =
        "  dpro verify --plan plan/ -- torchrun --nproc-per-node=2 train.py\n"
        "  dpro verify --plan plan/ --against cap=1 --against cap=5 -- torchrun train.py\n"
        "                                                beside what a person would try\n"
        "  dpro verify --plan plan/ --fail-on slower --json -- torchrun train.py > gain.json",
    .opts = verify_opts,
    .run = run,
};
