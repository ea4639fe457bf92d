/* dpro profile: runs a program with all in its environment that makes its Python processes record
 * themselves, then tells what they recorded. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <dpro/recording.h>
#include <dpro/verify.h>

#include "cmd.h"
#include "launch.h"
#include "parts.h"
#include "status.h"

enum { DEFAULT_WARMUP = 10, DEFAULT_ITERATIONS = 10, MAX_PROBLEMS = 3, N_PROBE_STEPS = 3 };

struct values { /* texts go into the environment as they are; NULL: not given */
    struct cmd_values common;
    const char *output, *plan, *warmup, *iterations, *net, *net_max_mb, *net_keep, *net_peers;
    const char *probe, *probe_limit;
    bool no_nccl, force;
};

static const char *const net_choices[] = {"window", "all", "off", NULL};
static const char *const keep_choices[] = {"oldest", "newest", NULL};

/* Slips are better told before the job starts; what an address is, the tracer knows. */
static bool read_peers(const char *text, void *field)
{
    static const char address[] = "0123456789abcdefABCDEF.:[]";
    const char *p = text;
    *(const char **)field = text;
    if (strcmp(text, "job") == 0 || strcmp(text, "all") == 0)
        return true;
    for (;;) {
        size_t len = strspn(p, address);
        if (strcspn(p, ".:") >= len || (p[len] != ',' && p[len] != '\0'))
            return false;
        if (p[len] == '\0')
            return true;
        p += len + 1;
    }
}

static bool read_ways(const char *text, void *field)
{
    static const char *const ways[] = {"compile", "bf16", "batch", "recompute"};
    *(const char **)field = text;
    for (const char *p = text;; p++) {
        size_t len = strcspn(p, ","), i = 0;
        while (i < sizeof ways / sizeof *ways &&
               (strlen(ways[i]) != len || strncmp(p, ways[i], len) != 0))
            i++;
        if (i == sizeof ways / sizeof *ways)
            return false;
        p += len;
        if (*p == '\0')
            return true;
    }
}

#define AT(member) offsetof(struct values, member)
static const struct opt profile_opts[] = {
    OPT_OUTPUT("the trace directory, made when it is missing\n(default: dpro_trace)"),
    OPT_PATH("plan", "DIR", plan, "the folder of a plan",
             "train with the buckets of this plan, which dpro optimize\nwrote"),
    OPT_WHOLE("warmup", opt_read_string, warmup, 0, UINT32_MAX,
              "steps to pass over before anything is recorded\n(default: 10)"),
    OPT_WHOLE("iterations", opt_read_string, iterations, 1, UINT32_MAX,
              "steps to record (default: 10)"),
    OPT_VALUE("probe", "WAYS", read_ways, probe, "some of compile,bf16,batch,recompute",
              "measure what the model's modules take by torch.compile, in\n"
              "bfloat16, with other batches, computed again in their\n"
              "backward pass, after all else: one rank a kind of device\n"
              "does, the others wait (PyTorch only)"),
    OPT_WHOLE("probe-limit", opt_read_string, probe_limit, 1, UINT32_MAX,
              "seconds that measuring them may take (default: 60)"),
    OPT_CHOICE(
        "net", "WHEN", opt_read_string, net, net_choices,
        "the transport log: window, while steps are recorded\n(default); all, from the start "
        "of every process, also\nof programs without PyTorch; off, never"),
    OPT_WHOLE("net-max-mb", opt_read_string, net_max_mb, 1, UINT32_MAX,
              "the most a transport log may take, in MB (default: 512)"),
    OPT_CHOICE("net-keep", "WHICH", opt_read_string, net_keep, keep_choices,
               "what stays when it would take more: oldest (default) or\nnewest"),
    OPT_VALUE("net-peers", "SPEC", read_peers, net_peers,
              "job, all, or addresses such as 10.0.0.7,fd00::7",
              "connections to log: job, those between its processes\n(default); all; or "
              "ADDR[,ADDR...]"),
    OPT_FLAG("no-nccl", no_nccl, "don't load the NCCL profiler plugin"),
    CMD_OPT_FORCE,
    CMD_OPT_QUIET("don't tell what was recorded: only errors"),
    CMD_OPT_HELP,
    {.name = NULL, .help = "options of the program itself come after '--'"},
};

static int set_environment(const struct values *values, const char *trace,
                           const struct parts *parts)
{
    const char *net = values->net != NULL ? values->net : getenv("DPRO_NET");
    int code = launch_set_all(
        {"DPRO_OUT", trace}, {"DPRO_WARMUP", values->warmup},
        {"DPRO_ITERATIONS", values->iterations}, {"DPRO_PROBE", values->probe},
        {"DPRO_PROBE_LIMIT", values->probe_limit}, {"DPRO_NET", values->net},
        {"DPRO_NET_MAX_MB", values->net_max_mb}, {"DPRO_NET_KEEP", values->net_keep},
        {"DPRO_NET_PEERS", values->net_peers}, {"DPRO_NCCL", values->no_nccl ? "off" : NULL},
        {"DPRO_SUMMARY", "off"}); /* dpro profile tells what was recorded */
    return code != 0 ? code : launch_set_recording(parts, net, !values->no_nccl);
}

/* The paths of ranks 0, 1, 2, 5 as "0-2, 5". */
static void print_ranks(char *text, size_t size, const struct dpro_recording_rank *ranks, size_t n)
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0, last; i < n && used < size; i = last + 1) {
        for (last = i; last + 1 < n && ranks[last + 1].rank == ranks[last].rank + 1;)
            last++;
        used += (size_t)snprintf(text + used, size - used, last > i ? "%s%d-%d" : "%s%d",
                                 i > 0 ? ", " : "", ranks[i].rank, ranks[last].rank);
    }
}

struct summary { /* of the last attempt that recorded something */
    struct dpro_recording_rank *ranks;
    size_t n_ranks, n_incomplete;
    int world_size, attempt, least_steps, most_steps;
    unsigned parts; /* that all ranks have */
    bool all_ranks; /* one of them has the timing of all */
};

static int summarize(const struct dpro_recording *recording, struct summary *sum)
{
    size_t n = dpro_recording_n_ranks(recording);
    *sum = (struct summary){.parts = ~0u, .least_steps = INT32_MAX};
    sum->ranks = calloc(n + 1, sizeof *sum->ranks);
    if (sum->ranks == NULL)
        return cmd_no_memory();
    for (size_t i = 0; i < n; i++)
        if (dpro_recording_rank(recording, i).parts & DPRO_RECORDING_TIMING)
            sum->attempt = dpro_recording_rank(recording, i).attempt;
    for (size_t i = 0; i < n; i++) {
        struct dpro_recording_rank rank = dpro_recording_rank(recording, i);
        if (rank.attempt != sum->attempt || !(rank.parts & DPRO_RECORDING_TIMING))
            continue;
        sum->ranks[sum->n_ranks++] = rank;
        sum->n_incomplete += !rank.complete;
        sum->parts &= rank.parts;
        sum->all_ranks |= (rank.parts & DPRO_RECORDING_ALL_RANKS) != 0;
        if (rank.world_size > sum->world_size)
            sum->world_size = rank.world_size;
        if (rank.n_steps >= 0 && rank.n_steps < sum->least_steps)
            sum->least_steps = rank.n_steps;
        if (rank.n_steps > sum->most_steps)
            sum->most_steps = rank.n_steps;
    }
    return 0;
}

static long number_of(const char *given, const char *variable, long otherwise)
{
    const char *text = given != NULL ? given : getenv(variable);
    uint32_t value;
    return text != NULL && opt_read_u32(text, &value) ? (long)value : otherwise;
}

/* The recorder has said its warnings while the job ran: this says where they are to be found. */
static void tell_problems(const struct dpro_recording *recording, const char *trace)
{
    size_t n_warnings = 0, n_told = 0;
    const char *folder = NULL;
    for (size_t i = 0; i < dpro_recording_n_ranks(recording); i++) {
        struct dpro_recording_rank rank = dpro_recording_rank(recording, i);
        if (rank.problem != NULL && n_told++ < MAX_PROBLEMS)
            cmd_say("%s", rank.problem);
        if (rank.n_warnings > 0 && folder == NULL)
            folder = rank.folder;
        n_warnings += rank.n_warnings;
    }
    if (n_told > MAX_PROBLEMS)
        cmd_say("%zu more rank.json files can't be read", n_told - MAX_PROBLEMS);
    if (n_warnings > 0)
        cmd_say("%zu warning%s: see %s/%s/rank.json%s", n_warnings, n_warnings > 1 ? "s" : "",
                trace, folder,
                dpro_recording_n_ranks(recording) > 1 ? " and the other ranks'" : "");
}

/* What the processes of this node wrote about themselves. */
struct told {
    struct status *list;
    size_t n;
    long first, last; /* steps of the timing window; the last one to be recorded at all */
    long last_of_all;
};

/* The table of windows in doc/formats/trace-directory.md. */
static void find_steps(const struct values *values, struct told *told)
{
    long warmup = number_of(values->warmup, "DPRO_WARMUP", DEFAULT_WARMUP);
    long iterations = number_of(values->iterations, "DPRO_ITERATIONS", DEFAULT_ITERATIONS);
    if (warmup < 2)
        warmup = 2;
    told->first = warmup + iterations + 2;
    told->last = told->first + iterations - 1;
    told->last_of_all = warmup + 3 * iterations + 8;
    if (values->probe != NULL || getenv("DPRO_PROBE") != NULL)
        told->last_of_all += N_PROBE_STEPS;
}

/* How much is to be learnt from a process, where several tell why nothing was recorded. When one
 * is killed, the others end with an error of their own, which is not the cause. */
static long weight(const struct status *status)
{
    return (status->flags & STATUS_FAILED    ? 4L << 32
            : status->flags & STATUS_STEPPED ? 2L << 32
                                             : 0) +
           (status_was_killed(status) ? 1L << 32 : 0) + status->step;
}

/* The process of `rank`, of any for -1, that says most; NULL: none. */
static const struct status *process_of(const struct told *told, int rank)
{
    const struct status *best = NULL;
    for (size_t i = 0; i < told->n; i++) {
        const struct status *status = &told->list[i];
        if ((rank < 0 || status->rank == rank) && (best == NULL || weight(status) > weight(best)))
            best = status;
    }
    return best;
}

static bool has_rank(const struct summary *sum, int rank)
{
    for (size_t i = 0; i < sum->n_ranks; i++)
        if (sum->ranks[i].rank == rank)
            return true;
    return false;
}

/* A process of this node that was to record as another rank than those that did; NULL: none. */
static const struct status *missing_here(const struct told *told, const struct summary *sum)
{
    const struct status *best = NULL;
    for (size_t i = 0; i < told->n; i++) {
        const struct status *status = &told->list[i];
        if (status->world_size > 1 && status->rank >= 0 && !has_rank(sum, status->rank) &&
            (best == NULL || weight(status) > weight(best)))
            best = status;
    }
    return best;
}

static void tell_incomplete(const struct told *told, const struct summary *sum)
{
    char why[1400];
    for (size_t i = 0; i < sum->n_ranks; i++) {
        const struct status *status =
            sum->ranks[i].complete ? NULL : process_of(told, sum->ranks[i].rank);
        if (status == NULL || (!(status->flags & STATUS_FAILED) && !status_was_killed(status)))
            continue;
        status_reason(status, told->first, told->last, why, sizeof why);
        cmd_say("rank %d did not record all: %s", sum->ranks[i].rank, why);
        return;
    }
    cmd_say("%zu of them ended before all was recorded, which takes %ld steps: run the job longer, "
            "or choose fewer by --warmup and --iterations",
            sum->n_incomplete, told->last_of_all);
}

static void tell_recorded(const struct told *told, const char *trace, const struct summary *sum)
{
    char ranks[200], steps[64], more[64], why[1400];
    size_t n_ranks = sum->all_ranks && sum->world_size > 0 ? (size_t)sum->world_size : sum->n_ranks;
    const struct status *missing = missing_here(told, sum);
    print_ranks(ranks, sizeof ranks, sum->ranks, sum->n_ranks);
    if (sum->most_steps == 0)
        snprintf(steps, sizeof steps, "a profile, without the times of its steps");
    else if (sum->least_steps == sum->most_steps)
        snprintf(steps, sizeof steps, "%d step%s", sum->most_steps,
                 sum->most_steps == 1 ? "" : "s");
    else
        snprintf(steps, sizeof steps, "%d to %d steps", sum->least_steps, sum->most_steps);
    snprintf(more, sizeof more, "%s%s%s",
             sum->parts & DPRO_RECORDING_STRUCTURE ? ", structure" : "",
             sum->parts & DPRO_RECORDING_TRANSPORT ? ", transport" : "",
             sum->parts & DPRO_RECORDING_NCCL ? ", NCCL" : "");
    if (sum->world_size <= (int)sum->n_ranks || sum->all_ranks) {
        cmd_say("recorded %zu rank%s: %s%s", n_ranks, n_ranks > 1 ? "s" : "", steps, more);
    } else if (missing != NULL) {
        status_reason(missing, told->first, told->last, why, sizeof why);
        cmd_say("recorded rank%s %s of %d: %s%s", sum->n_ranks > 1 ? "s" : "", ranks,
                sum->world_size, steps, more);
        cmd_say("rank %d recorded nothing: %s", missing->rank, why);
    } else {
        cmd_say("recorded rank%s %s of %d: %s%s; run 'dpro profile' on the other ranks' nodes, "
                "too, and copy the folders into one",
                sum->n_ranks > 1 ? "s" : "", ranks, sum->world_size, steps, more);
    }
    if (sum->attempt > 0)
        cmd_say("the job was started again %d time%s: this is its last attempt that recorded",
                sum->attempt, sum->attempt > 1 ? "s" : "");
    if (sum->n_incomplete > 0)
        tell_incomplete(told, sum);
    cmd_say("next: dpro replay %s", trace);
}

static void tell_nothing(const struct told *told, const struct dpro_recording *recording,
                         const char *program)
{
    const struct status *status = process_of(told, -1);
    char why[1400];
    if (status != NULL && (status->flags & (STATUS_STEPPED | STATUS_FAILED))) {
        status_reason(status, told->first, told->last, why, sizeof why);
        if (status->world_size > 1)
            cmd_say("nothing recorded: rank %d: %s", status->rank, why);
        else
            cmd_say("nothing recorded: %s", why);
    } else if (dpro_recording_n_logs(recording) > 0) {
        cmd_say("recorded the transport of %zu process%s; no step of training",
                dpro_recording_n_logs(recording), dpro_recording_n_logs(recording) > 1 ? "es" : "");
    } else if (dpro_recording_n_ranks(recording) > 0) {
        cmd_say("nothing recorded: no step of the timing window (%ld to %ld) is in %s/rank.json, "
                "whose \"warnings\" and \"ended_early\" tell why",
                told->first, told->last, dpro_recording_rank(recording, 0).folder);
    } else if (status != NULL) {
        status_reason(status, told->first, told->last, why, sizeof why);
        cmd_say("nothing recorded: %zu process%s loaded a framework; %s", told->n,
                told->n > 1 ? "es" : "", why);
    } else {
        cmd_say("there was nothing to record: no Python process of %s loaded PyTorch, TensorFlow "
                "or MXNet, as far as dpro can see (python -I and -E keep it out)",
                program);
    }
}

static void tell(const struct values *values, const char *trace, const char *program, int status)
{
    struct dpro_error err = {.code = 0};
    struct dpro_recording *recording = NULL;
    struct summary sum = {.n_ranks = 0};
    struct told told = {.n = 0};
    told.n = status_read(status, &told.list);
    find_steps(values, &told);
    if (dpro_recording_read(trace, &recording, &err) < 0) {
        cmd_say("%s", err.text); /* the job took its folder away */
    } else if (summarize(recording, &sum) == 0) {
        tell_problems(recording, trace);
        if (sum.n_ranks > 0)
            tell_recorded(&told, trace, &sum);
        else
            tell_nothing(&told, recording, program);
    }
    free(told.list);
    free(sum.ranks);
    dpro_recording_destroy(recording);
}

static int use_plan(const char *path, const struct dpro_plan_summary *plan)
{
    const char *n_servers = getenv("DMLC_NUM_SERVER"); /* MXNet's and BytePS's */
    if (plan->n_servers > 0 && n_servers != NULL && strtoul(n_servers, NULL, 10) != plan->n_servers)
        cmd_say("%s: the plan is for %u parameter servers, but DMLC_NUM_SERVER is %.20s, so its "
                "promise does not hold; start the job with %u, or make a plan by 'dpro optimize "
                "--servers %.20s'",
                path, plan->n_servers, n_servers, plan->n_servers, n_servers);
    return launch_set_plan(path, plan->stack, true);
}

static int run(const void *given, const struct opt_list *args)
{
    const struct values *values = given;
    const char *output = values->output;
    struct dpro_error err = {.code = 0};
    struct dpro_plan_summary plan;
    struct parts parts;
    struct stat info;
    char *trace = NULL;
    bool existed, started;
    int code, status;
    if (args->items[0][0] == '\0')
        return cmd_needs(&cmd_profile);

    if (output == NULL)
        output = getenv("DPRO_OUT");
    if (output == NULL || output[0] == '\0')
        output = "dpro_trace";
    existed = stat(output, &info) == 0;
    code = parts_find(&parts);
    if (code != 0)
        goto done;
    code = launch_check(args);
    if (code != 0)
        goto done;
    if (values->plan && dpro_plan_read(values->plan, &plan, &err) < 0) {
        code = cmd_fail(&err);
        goto done;
    }
    if (dpro_recording_prepare(output, values->force, &err) < 0) {
        code = cmd_fail(&err);
        goto done;
    }
    trace = realpath(output, NULL);
    if (trace == NULL) {
        cmd_say("%s: %s", output, strerror(errno));
        code = CMD_SYSTEM;
        goto done;
    }
    code = set_environment(values, trace, &parts);
    if (code == 0 && values->plan)
        code = use_plan(values->plan, &plan);
    if (code != 0)
        goto done;
    status = status_open();
    code = launch_run("profile", args, &started);
    if (started && !values->common.quiet)
        tell(values, trace, args->items[0], status);
done:
    if (trace != NULL && !existed)
        rmdir(trace); /* as long as nothing came into it */
    free(trace);
    parts_fini(&parts);
    return code;
}

const struct cmd cmd_profile = {
    .name = "profile",
    .summary = "run a training job and record it, the job's code unchanged",
    .usage = "[OPTIONS] [--] PROGRAM [ARG...]",
    .description = "Runs PROGRAM as it would run without dpro, and records what its PyTorch, "
                   "TensorFlow and\n"
                   "MXNet processes do in a few training steps after a warm-up: profile, graph, "
                   "buckets,\n"
                   "transport. A PROGRAM ending in .py is run by python3. Options of the program "
                   "come after\n"
                   "'--'. The exit code is the program's.",
    .examples = "  dpro profile -o runs/today -- torchrun --nproc-per-node=8 train.py --epochs 1\n"
                "  dpro profile train.py -o runs/today           one process\n"
                "  dpro replay runs/today                        then: what holds it back\n"
                "  dpro profile --plan plan/ -o runs/new -- torchrun --nproc-per-node=8 train.py\n"
                "                                                with what dpro optimize found",
    .opts = profile_opts,
    .values_size = sizeof(struct values),
    .needs = "a program to run, as in 'dpro profile -o TRACE -- torchrun train.py'",
    .processes = CMD_BY_EACH,
    .run = run,
};
