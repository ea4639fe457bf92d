/* dpro attach: records a job that runs already. */
#include <signal.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

#include <dpro/attach.h>
#include <dpro/recording.h>

#include "cmd.h"

struct values {
    struct cmd_values common;
    const char *output;
    uint64_t pid;
    uint32_t duration_ms, delay_s, wait_s;
    bool force;
};

enum { MOST_S = 1000000, LEAST_DELAY_S = DPRO_ATTACH_MIN_DELAY_MS / 1000 };

#define AT(member) offsetof(struct values, member)
static const struct opt attach_opts[] = {
    OPT_OUTPUT("the trace directory, made when it is missing\n(default: dpro_trace)"),
    {.name = "pid",
     .arg = "N",
     .read = opt_read_u64,
     .offset = AT(pid),
     .form = "a process id",
     .help = "only process N and those it started (default: all\nthat ask)",
     .least = 1,
     .most = INT32_MAX},
    OPT_WHOLE("duration-ms", opt_read_u32, duration_ms, 1, MOST_S * 1000,
              "how long to record, in milliseconds (default: 2000);\ntake ten iterations"),
    OPT_WHOLE("delay-s", opt_read_u32, delay_s, LEAST_DELAY_S, MOST_S,
              "seconds from the first process that asks to the\nrecording, for the others to ask, "
              "too (default: 10)"),
    OPT_WHOLE("wait", opt_read_u32, wait_s, 1, MOST_S,
              "seconds to wait for the first one (default: 30)"),
    CMD_OPT_FORCE,
    CMD_OPT_QUIET("only warnings and errors"),
    CMD_OPT_HELP,
    {.name = NULL},
};

static volatile sig_atomic_t stopped;

static void on_signal(int number)
{
    (void)number;
    stopped = 1;
}

static int is_stopped(void *arg)
{
    (void)arg;
    return stopped;
}

static void on_log(void *arg, enum dpro_log_level level, const char *text)
{
    (void)arg;
    if (level != DPRO_LOG_ERROR) /* an error comes back from the call */
        cmd_say("%s", text);
}

static int run(const void *given, const struct opt_list *args)
{
    const struct values *values = given;
    static const int stops[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = on_signal};
    struct dpro_attach_options options = {
        .size = sizeof options,
        .pid = (int64_t)values->pid,
        .duration_ms = values->duration_ms,
        .delay_ms = values->delay_s * 1000,
        .wait_ms = values->wait_s * 1000,
        .stop = is_stopped,
        .sink = {.log = on_log, .level = values->common.quiet ? DPRO_LOG_WARN : DPRO_LOG_INFO},
    };
    const char *output = values->output != NULL ? values->output : "dpro_trace";
    struct dpro_attach_result result;
    struct dpro_error err = {.code = 0};
    struct stat info;
    bool existed = stat(output, &info) == 0;
    if (args->n > 0) {
        cmd_say("attach takes options only, not '%s': --pid chooses a process, -o the folder",
                args->items[0]);
        return CMD_USAGE;
    }
    int rc = dpro_recording_prepare(output, values->force, &err);
    if (rc < 0)
        return cmd_fail(&err);
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++)
        sigaction(stops[i], &action, NULL);
    if (!values->common.quiet)
        cmd_say("waiting for processes that were started with KINETO_USE_DAEMON=1; Ctrl-C ends it");
    rc = dpro_attach(output, &options, &result, &err);
    if (!existed)
        rmdir(output); /* as long as nothing came into it */
    if (rc == DPRO_ECANCEL) {
        cmd_say("%s", err.text);
        return CMD_INPUT;
    }
    if (rc < 0)
        return cmd_fail(&err);
    if (result.n_pending > 0)
        cmd_say("%zu of %zu processes have not written their traces yet; their files will come "
                "into %s as PyTorch writes them",
                result.n_pending, result.n_processes, output);
    if (result.n_ranks == 0)
        return CMD_INPUT;
    if (values->common.quiet)
        return CMD_DONE;
    if ((size_t)result.world_size > result.n_ranks)
        cmd_say("recorded %zu of %d ranks; run 'dpro attach' on the other nodes at the same time, "
                "and copy the folders into one",
                result.n_ranks, result.world_size);
    else
        cmd_say("recorded %zu rank%s", result.n_ranks, result.n_ranks > 1 ? "s" : "");
    cmd_say("next: dpro replay %s", output);
    return CMD_DONE;
}

const struct cmd cmd_attach = {
    .name = "attach",
    .summary = "record a job that runs already",
    .usage = "[OPTIONS]",
    .description =
        "Tells the PyTorch processes of this machine that were started with KINETO_USE_DAEMON=1 "
        "in\ntheir environment to profile themselves for a while, all at the same time, and makes "
        "a\n"
        "trace directory of what they write. The job goes on unharmed.",
    .examples =
        "  dpro attach -o runs/today                       all such processes, two seconds\n"
        "  dpro attach -o runs/today --pid 4711            one job: its torchrun's id\n"
        "  dpro attach -o runs/today --duration-ms 20000   slow steps",
    .opts = attach_opts,
    .values_size = sizeof(struct values),
    .words = (const char *const[]){NULL},
    .processes = CMD_BY_EACH,
    .run = run,
};
