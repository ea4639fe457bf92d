/* dpro verify: has a program train with a plan and without by turns, and tells what the plan is
 * worth.
 *
 * PyTorch's DDP is switched in the running job, which is run once. No other stack can change what
 * it sends meanwhile: there each turn is a run of the program, and all hosts make the same. So it
 * is where modules are computed otherwise on a CPU: what such a turn leaves of malloc's heap has
 * the next one fault pages that it never would by itself, and the job as it is was seen to take 8
 * to 15 % longer then. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <dpro/optimize.h>
#include <dpro/verify.h>

#include "cmd.h"
#include "launch.h"
#include "parts.h"

enum { DEFAULT_BLOCKS_OF_RUNS = 4, MOST_STRATEGIES = 16, PATH_SIZE = 2200 };

struct values { /* texts go into the environment as they are; NULL: not given */
    struct cmd_values common;
    const char *plan, *turns, *steps, *blocks, *settle, *warmup, *fail_on;
    struct opt_list against;
    bool stop;
};

static const char *const fail_choices[] = {"slower", NULL};
static const char *const turns_choices[] = {"steps", "runs", NULL};

static bool read_against(const char *text, void *field)
{
    double cap;
    bool is_plan = strncmp(text, "plan=", 5) == 0 && text[5] != '\0';
    return (is_plan || (strncmp(text, "cap=", 4) == 0 && opt_number(text + 4, &cap) && cap > 0)) &&
           strchr(text, ',') == NULL && opt_read_list(text, field);
}

#define AT(member) offsetof(struct values, member)
static const struct opt verify_opts[] = {
    OPT_PATH("plan", "DIR", plan, "the folder of a plan", "the plan, as dpro optimize wrote it"),
    OPT_CHOICE("turns", "WHAT", opt_read_string, turns, turns_choices,
               "steps: of one run of the job (PyTorch's DDP); runs: each\nturn is a run (default: "
               "steps where that can be, but runs\nwhere modules are computed otherwise on a CPU)"),
    OPT_WHOLE("steps", opt_read_string, steps, 1, UINT32_MAX,
              "steps of a turn that are timed (default: 6; where a turn\nis a run of the job, 30)"),
    OPT_WHOLE(
        "blocks", opt_read_string, blocks, 1, 1000,
        "blocks of mirrored turns, baseline plan plan baseline;\nmore make the interval smaller "
        "(default: 8; of runs, 4)"),
    OPT_WHOLE(
        "settle", opt_read_string, settle, 2, UINT32_MAX,
        "steps at the begin of a turn that do not count\n(default: 2; only where turns are steps)"),
    OPT_WHOLE("warmup", opt_read_string, warmup, 0, UINT32_MAX,
              "steps to pass over before the first turn, or in each run\n(default: 10)"),
    OPT_LIST("against", "cap=MB", read_against, against,
             "cap= and a bucket size in MB, or plan= and the folder of a plan",
             "also measure DDP's buckets of this size, or another plan\n(plan=DIR, on any stack); "
             "repeatable"),
    OPT_FLAG("stop", stop, "end the job when all is measured, or each run when its\nturn is"),
    OPT_CHOICE(
        "fail-on", "WHAT", opt_read_string, fail_on, fail_choices,
        "slower: exit 1 when the plan is slower than what the job\ndoes by itself by more than "
        "noise"),
    CMD_OPT_JSON("dpro.verify/1", "; what the\nprogram prints goes to stderr"),
    CMD_OPT_HELP,
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

static int set_environment(const struct values *values, const struct parts *parts)
{
    static const char *const others[] = {"DPRO", "DPRO_PLAN", "DPRO_VERIFY_TURN"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        unsetenv(others[i]);
    int code = launch_set_all({"DPRO_VERIFY_STEPS", values->steps},
                              {"DPRO_VERIFY_STOP", values->stop ? "1" : NULL},
                              {"DPRO_WARMUP", values->warmup});
    if (code == 0)
        code = launch_prepend_env("PYTHONPATH", parts->site);
    return code;
}

/* The program's standard output is not to come between ours. */
static int run_program(const struct values *values, const struct opt_list *args, bool *started)
{
    int out = values->common.json ? dup(STDOUT_FILENO) : -1, code;
    if (out >= 0)
        dup2(STDERR_FILENO, STDOUT_FILENO);
    code = launch_run("verify", args, started);
    if (out >= 0) {
        dup2(out, STDOUT_FILENO);
        close(out);
    }
    return code;
}

/* What a run left at `path`, by one of the names of python/dpro/verify_file.py: steps of rank 0, of
 * another rank, or the word of a process that serves. */
static bool find_steps(char *path, size_t size)
{
    static const char *const endings[] = {"", ".other", ".serves"};
    size_t n = strlen(path);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        snprintf(path + n, size - n, "%s", endings[i]);
        if (access(path, F_OK) == 0)
            return true;
    }
    return false;
}

/* `problem`: why there are no more runs, NULL: these are all. */
static int tell(const struct values *values, const char *const *paths, size_t n_runs,
                const struct dpro_plan_summary *plan, const char *problem)
{
    struct dpro_verify *verify = NULL;
    struct dpro_error err = {.code = 0};
    int code = CMD_DONE;
    if (dpro_verify_read(paths, n_runs, plan, problem, &verify, &err) < 0)
        return cmd_fail(&err);
    if (problem != NULL)
        cmd_say("%s", problem);
    if (dpro_verify_is_elsewhere(verify))
        cmd_say("rank 0 of the job, on another node, has the result");
    else if ((values->common.json ? dpro_verify_json : dpro_verify_text)(verify, stdout, &err) < 0)
        code = cmd_fail(&err);
    else if (values->fail_on != NULL && dpro_verify_is_slower(verify))
        code = CMD_CHECK_FAILED;
    dpro_verify_destroy(verify);
    return code;
}

/* Turns are of the job's steps. */
static int verify_in_one_run(const struct values *values, const struct opt_list *args,
                             const char *folder, const struct dpro_plan_summary *plan)
{
    char path[PATH_SIZE], against[4096];
    const char *const paths[] = {path};
    bool started = false;
    int code = list_against(&values->against, against, sizeof against), told = CMD_INPUT;
    snprintf(path, sizeof path, "%s/verify.json", folder);
    if (code == 0)
        code = launch_set_all({"DPRO_VERIFY", path}, {"DPRO_VERIFY_BLOCKS", values->blocks},
                              {"DPRO_VERIFY_SETTLE", values->settle},
                              {"DPRO_VERIFY_AGAINST", against});
    if (code == 0)
        code = launch_set_plan(values->plan, plan->stack, true);
    if (code == 0)
        code = run_program(values, args, &started);
    if (!started)
        return code;
    if (find_steps(path, sizeof path))
        told = tell(values, paths, 1, plan, NULL);
    else
        cmd_say(
            "nothing was measured: no Python process made a step of a torch optimizer, as far as "
            "dpro can see (python -I and -E keep it out)");
    return code != 0 ? code : told;
}

/* What a run trains with. */
struct strategy {
    const char *name;
    const char *plan; /* its folder; NULL: it is the job as it is, or DDP's buckets of a size */
};

static bool is_ddps(const struct dpro_plan_summary *plan)
{
    return strcmp(plan->stack, "ddp") == 0;
}

static bool changes_modules(const struct dpro_plan_summary *plan)
{
    return plan->n_compiled + plan->n_bf16 + plan->n_recomputed > 0 || plan->micro_batches > 1;
}

/* Whether a plan among those to be measured has modules computed otherwise on what may be a CPU. */
static int find_changed_heap(const struct values *values, const struct dpro_plan_summary *plan,
                             bool *changed)
{
    struct dpro_plan_summary other;
    struct dpro_error err = {.code = 0};
    *changed = changes_modules(plan);
    for (size_t i = 0; i < values->against.n; i++) {
        if (values->against.items[i][0] != 'p')
            continue;
        if (dpro_plan_read(strchr(values->against.items[i], '=') + 1, &other, &err) < 0)
            return cmd_fail(&err);
        *changed |= changes_modules(&other);
    }
    *changed &= strcmp(plan->device, "cuda") != 0;
    return 0;
}

/* Whether each turn is a run of the job. */
static int choose_turns(const struct values *values, const struct dpro_plan_summary *plan,
                        bool *runs)
{
    bool steps = values->turns != NULL && strcmp(values->turns, "steps") == 0;
    *runs = !is_ddps(plan) || (values->turns != NULL && !steps);
    if (steps && *runs) {
        cmd_say("--turns steps: only PyTorch's DDP can be switched in a running job, and this plan "
                "is for %s",
                plan->stack);
        return CMD_USAGE;
    }
    if (steps || *runs)
        return 0;
    int code = find_changed_heap(values, plan, runs);
    if (code == 0 && *runs)
        cmd_say("verify: each turn is a run of the job: in one process, modules compiled, "
                "recomputed or in 16 bits on a CPU would change the time of later turns%s",
                values->stop ? "" : "; with --stop a run ends with its turn");
    return code;
}

static int check_against(const char *item, const struct dpro_plan_summary *plan)
{
    struct dpro_plan_summary other;
    struct dpro_error err = {.code = 0};
    if (item[0] != 'p') {
        if (is_ddps(plan))
            return 0;
        cmd_say("--against %s: buckets by size are PyTorch's DDP's, and this plan is for %s", item,
                plan->stack);
        return CMD_USAGE;
    }
    if (dpro_plan_read(strchr(item, '=') + 1, &other, &err) < 0)
        return cmd_fail(&err);
    if (strcmp(other.stack, plan->stack) != 0) {
        cmd_say("--against %s: it is for %s, the plan to measure for %s", item, other.stack,
                plan->stack);
        return CMD_INPUT;
    }
    return 0;
}

/* Baseline, plan, and those that --against names. */
static int list_strategies(const struct values *values, const struct dpro_plan_summary *plan,
                           struct strategy *strategies, size_t *n)
{
    strategies[0] = (struct strategy){"baseline", NULL};
    strategies[1] = (struct strategy){"plan", values->plan};
    *n = 2;
    for (size_t i = 0; i < values->against.n; i++) {
        const char *item = values->against.items[i];
        int code = check_against(item, plan);
        if (code != 0)
            return code;
        for (size_t s = 0; s < *n; s++)
            if (*n == MOST_STRATEGIES || strcmp(strategies[s].name, item) == 0) {
                cmd_say("--against %s: %s", item,
                        *n == MOST_STRATEGIES ? "too many of them" : "it is given twice");
                return CMD_USAGE;
            }
        strategies[(*n)++] = (struct strategy){item, item[0] == 'p' ? strchr(item, '=') + 1 : NULL};
    }
    return 0;
}

struct turn {
    const struct strategy *strategy;
    size_t number, block;
    bool is_first;        /* of its strategy */
    char path[PATH_SIZE]; /* what the run left */
    char problem[700];    /* why it is not to be used; "": it is */
};

static int set_turn(const struct turn *turn, const struct dpro_plan_summary *plan)
{
    char block[24], number[24];
    snprintf(block, sizeof block, "%zu", turn->block);
    snprintf(number, sizeof number, "%zu", turn->number);
    int code =
        launch_set_all({"DPRO_VERIFY", turn->path}, {"DPRO_VERIFY_TURN", turn->strategy->name},
                       {"DPRO_VERIFY_BLOCK", block}, {"DPRO_VERIFY_RUN", number});
    if (code == 0 && turn->strategy->plan != NULL)
        code = launch_set_plan(turn->strategy->plan, plan->stack, turn->is_first);
    return code;
}

/* Returns the exit code; turn->path becomes that of the steps. */
static int run_turn(const struct values *values, const struct opt_list *args, struct turn *turn,
                    const struct dpro_plan_summary *plan)
{
    struct dpro_error err = {.code = 0};
    bool started = false;
    char **kept = launch_keep_env();
    if (kept == NULL)
        return CMD_SYSTEM;
    int code = set_turn(turn, plan);
    if (code == 0)
        code = run_program(values, args, &started);
    if (launch_restore_env(kept) != 0)
        code = CMD_SYSTEM;
    launch_free_env(kept);
    if (started && code != 0) {
        snprintf(turn->problem, sizeof turn->problem, "it ended with exit code %d", code);
    } else if (started && !find_steps(turn->path, sizeof turn->path)) {
        snprintf(turn->problem, sizeof turn->problem,
                 "no Python process made a step of training with PyTorch, TensorFlow or MXNet, as "
                 "far as dpro can see (python -I and -E keep it out)");
        code = CMD_INPUT;
    } else if (started && dpro_verify_check_run(turn->path, &err) < 0) {
        snprintf(turn->problem, sizeof turn->problem, "%s", err.text);
        code = CMD_INPUT;
    }
    return code;
}

static int tell_runs(const struct values *values, const char *const *paths, size_t done,
                     const struct dpro_plan_summary *plan, const char *problem, int code)
{
    int told = tell(values, paths, done, plan, problem);
    if (problem != NULL && strcmp(plan->stack, "horovod") != 0)
        cmd_say("where dpro verify runs for this job on other hosts, too, end it there");
    return code != 0 ? code : told;
}

static int verify_in_runs(const struct values *values, const struct opt_list *args,
                          const char *folder, const struct dpro_plan_summary *plan)
{
    struct strategy strategies[MOST_STRATEGIES];
    struct turn turn = {.problem = ""};
    char blocks[24], problem[sizeof turn.problem + 100];
    uint32_t n_blocks = DEFAULT_BLOCKS_OF_RUNS;
    size_t n, n_runs, done = 0;
    char **paths;
    int code = list_strategies(values, plan, strategies, &n);
    if (code == 0 && values->settle != NULL) {
        cmd_say("--settle is for turns within one run, but here each turn is a run of its own: "
                "--warmup leaves out its first steps");
        code = CMD_USAGE;
    }
    if (code != 0)
        return code;
    if (values->blocks != NULL)
        opt_read_u32(values->blocks, &n_blocks);
    n_runs = 2 * n * n_blocks;
    paths = calloc(n_runs, sizeof *paths);
    if (paths == NULL)
        return cmd_no_memory();
    snprintf(blocks, sizeof blocks, "%u", n_blocks);
    code = launch_set_env("DPRO_VERIFY_BLOCKS", blocks);
    while (code == 0 && done < n_runs) {
        size_t half = done / n, at = half % 2 == 0 ? done % n : n - 1 - done % n;
        turn.strategy = &strategies[at];
        turn.number = done + 1;
        turn.block = half / 2;
        turn.is_first = done < n;
        snprintf(turn.path, sizeof turn.path, "%s/turn%zu.json", folder, done);
        cmd_say("verify: run %zu of %zu: %s", done + 1, n_runs, strategies[at].name);
        code = run_turn(values, args, &turn, plan);
        if (code == 0 && (paths[done] = strdup(turn.path)) != NULL)
            done++;
        else if (code == 0)
            code = CMD_SYSTEM;
    }
    snprintf(problem, sizeof problem, "run %zu of %zu (%s): %s", done + 1, n_runs,
             turn.strategy->name, turn.problem);
    if (code == 0 || turn.problem[0] != '\0')
        code = tell_runs(values, (const char *const *)paths, done, plan, code != 0 ? problem : NULL,
                         code);
    while (done > 0)
        free(paths[--done]);
    free(paths);
    return code;
}

static void remove_folder(const char *folder)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    while (dir != NULL && (entry = readdir(dir)) != NULL)
        if (entry->d_name[0] != '.')
            unlinkat(dirfd(dir), entry->d_name, 0);
    if (dir != NULL)
        closedir(dir);
    rmdir(folder);
}

/* Those of the options, and the plans that lie in the plan's folder: its search could not tell them
 * from it. The texts from `n_given` on, and the list, are to be freed. */
static struct opt_list with_finalists(const struct values *values)
{
    struct opt_list all = {.n = 0};
    for (size_t i = 0; i < values->against.n; i++)
        opt_read_list(values->against.items[i], &all);
    for (unsigned i = 1; i <= DPRO_MOST_FINALISTS && strchr(values->plan, ',') == NULL; i++) {
        char *item = NULL, *file = NULL;
        if (asprintf(&item, "plan=%s/finalist-%u", values->plan, i) < 0 ||
            asprintf(&file, "%s/plan.json", item + strlen("plan=")) < 0 ||
            access(file, F_OK) != 0 || !opt_read_list(item, &all))
            free(item);
        free(file);
    }
    return all;
}

static int verify(const struct values *values, const struct opt_list *args)
{
    struct dpro_plan_summary plan;
    struct dpro_error err = {.code = 0};
    struct parts parts;
    const char *temporary = getenv("TMPDIR");
    char folder[2048];
    bool runs;
    int code = launch_check(args);
    if (code != 0)
        return code;
    if (dpro_plan_read(values->plan, &plan, &err) < 0)
        return cmd_fail(&err);
    if (strcmp(plan.stack, "byteps") == 0) {
        cmd_say("%s: a plan for BytePS can't be verified, as no process tells whether the job uses "
                "it: record the job with 'dpro profile --plan' and 'dpro compare' both recordings",
                values->plan);
        return CMD_INPUT;
    }
    code = choose_turns(values, &plan, &runs);
    if (code != 0)
        return code;
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
    code = set_environment(values, &parts);
    if (code == 0)
        code = (runs ? verify_in_runs : verify_in_one_run)(values, args, folder, &plan);
    remove_folder(folder);
done:
    parts_fini(&parts);
    return code;
}

static int run(const void *given, const struct opt_list *args)
{
    struct values values = *(const struct values *)given;
    size_t n_given = values.against.n;
    if (values.plan == NULL || args->items[0][0] == '\0')
        return cmd_needs(&cmd_verify);
    values.against = with_finalists(&values);
    int code = verify(&values, args);
    while (values.against.n > n_given)
        free((char *)values.against.items[--values.against.n]);
    free(values.against.items);
    return code;
}

const struct cmd cmd_verify = {
    .name = "verify",
    .summary = "measure what a plan is worth, with it and without by turns",
    .usage = "--plan DIR [OPTIONS] [--] PROGRAM [ARG...]",
    .description =
        "Has PROGRAM, the job's code unchanged, train with the plan and without by "
        "turns, in mirrored\n"
        "order, so that whatever drifts meanwhile cancels out. PyTorch's "
        "DistributedDataParallel\n"
        "models change their buckets in one run of the job; of Horovod, TensorFlow and "
        "MXNet, and\n"
        "where modules are computed otherwise on a CPU, each turn is a run, on all hosts "
        "where the\n"
        "command is started. Steps are timed after a warm-up, without a profiler. Then: "
        "what the\n"
        "plan saves, with a 95 % interval, beside what was expected. The exit code is the "
        "program's\n"
        "if that is not 0.",
    .examples =
        "  dpro verify --plan plan/ -- torchrun --nproc-per-node=2 train.py\n"
        "  dpro verify --plan plan/ --against cap=1 --against cap=5 -- torchrun train.py\n"
        "                                                beside what a person would try\n"
        "  dpro verify --plan plan/ --stop -- horovodrun -np 4 python train.py      16 runs\n"
        "  dpro verify --plan plan/ --fail-on slower --json -- torchrun train.py > gain.json",
    .opts = verify_opts,
    .values_size = sizeof(struct values),
    .needs = "a plan and a program to run, as in 'dpro verify --plan plan/ -- torchrun train.py'",
    .processes = CMD_BY_EACH,
    .run = run,
};
