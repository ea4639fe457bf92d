/* cmd_attach.c: dpro attach: records a job that runs already. */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <dpro/attach.h>
#include <dpro/recording.h>

#include "cmd.h"

struct values {
    const char *output;
    uint64_t pid;
    uint32_t duration_ms, delay_s, wait_s;
    bool force, quiet, help;
};

enum { MOST_S = 1000000, LEAST_DELAY_S = DPRO_ATTACH_MIN_DELAY_MS / 1000 };

static bool read_pid(const char *text, void *field)
{
    uint64_t pid;
    if (!opt_read_u64(text, &pid) || pid == 0 || pid > INT32_MAX)
        return false;
    *(uint64_t *)field = pid;
    return true;
}

static bool read_between(const char *text, uint32_t least, uint32_t most, void *field)
{
    uint32_t value;
    if (!opt_read_u32(text, &value) || value < least || value > most)
        return false;
    *(uint32_t *)field = value;
    return true;
}

static bool read_duration(const char *text, void *field)
{
    return read_between(text, 1, MOST_S * 1000, field);
}

static bool read_delay(const char *text, void *field)
{
    return read_between(text, LEAST_DELAY_S, MOST_S, field);
}

static bool read_wait(const char *text, void *field)
{
    return read_between(text, 1, MOST_S, field);
}

#define AT(member) offsetof(struct values, member)
static const struct opt attach_opts[] = {
    {"output", 'o', "DIR", opt_read_string, AT(output), "a folder",
     "the trace directory, made when it is missing\n(default: dpro_trace)", NULL,
     OPT_COMPLETE_FOLDER},
    {"pid", 0, "N", read_pid, AT(pid), "a process id",
     "only process N and those it started (default: all\nthat ask)", NULL, OPT_COMPLETE_NOTHING},
    {"duration-ms", 0, "N", read_duration, AT(duration_ms), "a whole number of 1 or more",
     "how long to record, in milliseconds (default: 2000);\ntake ten iterations", NULL,
     OPT_COMPLETE_NOTHING},
    {"delay-s", 0, "N", read_delay, AT(delay_s), "a whole number of 8 or more",
     "seconds from the first process that asks to the\nrecording, for the others to ask, too "
     "(default: 10)",
     NULL, OPT_COMPLETE_NOTHING},
    {"wait", 0, "N", read_wait, AT(wait_s), "a whole number of 1 or more",
     "seconds to wait for the first one (default: 30)", NULL, OPT_COMPLETE_NOTHING},
    {"force", 0, NULL, opt_read_flag, AT(force), NULL, "replace the recording that DIR holds", NULL,
     OPT_COMPLETE_NOTHING},
    {"quiet", 'q', NULL, opt_read_flag, AT(quiet), NULL, "only warnings and errors", NULL,
     OPT_COMPLETE_NOTHING},
    {"help", 'h', NULL, opt_read_flag, AT(help), NULL, "this text", NULL, OPT_COMPLETE_NOTHING},
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

static int attach(const struct values *values)
{
    static const int stops[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = on_signal};
    struct dpro_attach_options options = {
        .pid = (int64_t)values->pid,
        .duration_ms = values->duration_ms,
        .delay_ms = values->delay_s * 1000,
        .wait_ms = values->wait_s * 1000,
        .stop = is_stopped,
        .sink = {.log = on_log, .level = values->quiet ? DPRO_LOG_WARN : DPRO_LOG_INFO},
    };
    const char *output = values->output != NULL ? values->output : "dpro_trace";
    struct dpro_attach_result result;
    struct dpro_error err = {.code = 0};
    struct stat info;
    bool existed = stat(output, &info) == 0;
    int rc = dpro_recording_prepare(output, values->force, &err);
    if (rc < 0)
        return cmd_fail(&err);
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++)
        sigaction(stops[i], &action, NULL);
    if (!values->quiet)
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
        cmd_say("%zu of %zu processes have not written their traces yet: they will lie in %s as "
                "they are",
                result.n_pending, result.n_processes, output);
    if (result.n_ranks == 0)
        return CMD_INPUT;
    if (values->quiet)
        return CMD_DONE;
    if ((size_t)result.world_size > result.n_ranks)
        cmd_say("recorded %zu of %d ranks; the others' nodes must be attached to at the same time, "
                "and the folders be copied into one",
                result.n_ranks, result.world_size);
    else
        cmd_say("recorded %zu rank%s", result.n_ranks, result.n_ranks > 1 ? "s" : "");
    cmd_say("next: dpro replay %s", output);
    return CMD_DONE;
}

static int run(int argc, char **argv)
{
    struct values values = {.output = NULL};
    struct opt_list args = {NULL, 0};
    int code = opt_parse("attach", attach_opts, argc, argv, &values, &args);
    if (code == 0 && values.help) {
        cmd_print_help(&cmd_attach, stdout);
    } else if (code == 0 && args.n > 0) {
        cmd_say("attach takes options only, not '%s': --pid chooses a process, -o the folder",
                args.items[0]);
        code = CMD_USAGE;
    } else if (code == 0) {
        code = attach(&values);
    }
    free(args.items);
    return code;
}

static const char *const no_words[] = {NULL};

const struct cmd cmd_attach = {
    .name = "attach",
    .summary = "record a job that runs already",
    .usage = "[OPTIONS]",
    .description =
        "Tells the PyTorch processes of this machine that were started with KINETO_USE_DAEMON=1 "
        "in\n"
        "their environment to profile themselves for a while, all at the same time, and makes a\n"
        "trace directory of what they write. The job goes on unharmed.",
    .examples =
        "  dpro attach -o runs/today                       all such processes, two seconds\n"
        "  dpro attach -o runs/today --pid 4711            one job: its torchrun's id\n"
        "  dpro attach -o runs/today --duration-ms 20000   slow steps",
    .opts = attach_opts,
    .words = no_words,
    .run = run,
};
