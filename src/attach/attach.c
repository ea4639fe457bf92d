/* The daemon that Kineto's clients ask for a configuration. It has one thread, one socket and a
 * short table of processes.
 *
 * Kineto waits 50 ms for an answer, so every request is answered at once, mostly with "nothing".
 * The first process that asks fixes the time of the recording, far enough ahead for all others,
 * which ask every five seconds, to be told the same: the ranks' traces cover the same
 * iterations. */
#include <dpro/attach.h>

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "attach/collect.h"
#include "base/file.h"
#include "base/options.h"

#define MS INT64_C(1000000)

enum {
    MAX_PROCESSES = 1024,
    WARMUP_S = 1,        /* Kineto's own, before the recording */
    LAST_CALL_MS = 3000, /* Kineto needs the warm-up and a second or two to get ready */
    TICK_MS = 200,
    SILENT_MS = 60000, /* it asks every 5 s: after this long it is gone or stopped */
    MAX_IDLE = 3,      /* requests for work after the recording's end that mean it did not record */
};

struct attach {
    const char *path;
    struct dpro_attach_options options;
    int fd;
    struct arena texts; /* of processes */
    ARRAY(struct attach_process) processes;
    size_t n_others;             /* that asked and were not meant by options.pid */
    struct attach_window window; /* start_ns 0: not fixed yet */
};

/* Logs a line about a process: "rank 3 (process 7) asked too late". */
static __attribute__((format(printf, 4, 5))) void say(const struct attach *attach,
                                                      enum dpro_log_level level,
                                                      const struct attach_process *process,
                                                      const char *format, ...)
{
    char text[512], rank[32] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (process->rank >= 0)
        snprintf(rank, sizeof rank, "rank %d (", process->rank);
    log_line(&attach->options.sink, level, "%sprocess %d%s%s", rank,
             process->pid != 0 ? (int)process->pid : process->pids[0], *rank ? ")" : "", text);
}

static bool is_meant(const struct attach *attach, const struct fabric_message *message, pid_t pid)
{
    if (attach->options.pid == 0 || attach->options.pid == pid)
        return true;
    for (size_t i = 0; i < message->n_pids; i++)
        if (attach->options.pid == message->pids[i])
            return true;
    return false;
}

static struct attach_process *attach_find(struct attach *attach,
                                          const struct fabric_message *message, pid_t pid)
{
    EACH (struct attach_process, process, attach->processes)
        if (process->pid == pid && process->pids[0] == message->pids[0])
            return process;
    if (attach->processes.n == MAX_PROCESSES)
        return NULL;
    struct attach_process fresh = {.pid = pid, .n_pids = message->n_pids};
    memcpy(fresh.pids, message->pids, sizeof fresh.pids);
    process_describe(&fresh);
    array_push(&attach->processes, fresh);
    return &attach->processes.at[attach->processes.n - 1];
}

/* Makes the process's folder, where it may write; the process may be another user's (ours is then
 * root). */
static int make_folder(struct attach *attach, struct attach_process *process,
                       const struct ucred *sender, struct dpro_error *err)
{
    size_t first_made;
    bool known = process->rank >= 0;
    process->folder =
        arena_format(&attach->texts, "%s/host%s/%s%d", attach->path, process->host,
                     known ? "rank" : "pid", known ? process->rank : process->pids[0]);
    process->file =
        arena_format(&attach->texts, "%s/kineto_%d.json", process->folder, process->pids[0]);
    int rc = folder_make(process->folder, &first_made, err);
    if (rc == 0 && sender->uid != geteuid() && chown(process->folder, sender->uid, sender->gid) < 0)
        rc = dpro_error_set(err, DPRO_EIO, "%s: can't be given to the job's user: %s",
                            process->folder, strerror(errno));
    return rc;
}

/* Nobody else can be told to record. */
static bool is_too_late(const struct attach *attach)
{
    return time_now_ns(CLOCK_REALTIME) > attach->window.start_ns - LAST_CALL_MS * MS;
}

/* The answer to a request: a configuration, or nothing. */
static int answer_request(struct attach *attach, const struct fabric_message *message,
                          const struct ucred *sender, char *text, size_t size)
{
    struct dpro_error err;
    int64_t now = time_now_ns(CLOCK_REALTIME);
    if (!is_meant(attach, message, sender->pid)) {
        attach->n_others++;
        return 0;
    }
    struct attach_process *process = attach_find(attach, message, sender->pid);
    if (!process)
        return 0;
    bool is_new = process->heard_ns == 0;
    process->heard_ns = time_now_ns(CLOCK_MONOTONIC);
    if (!(message->wants & FABRIC_ACTIVITIES)) {
        if (is_new)
            say(attach, DPRO_LOG_WARN, process,
                " is being profiled already: waiting for that to end");
        return 0;
    }
    if (process->lost)
        return 0;
    if (process->told) {
        process->n_idle += attach->window.end_ns < now;
        return 0;
    }
    if (attach->window.start_ns == 0) {
        attach->window.start_ns = now + attach->options.delay_ms * MS;
        attach->window.end_ns = attach->window.start_ns + attach->options.duration_ms * MS;
    }
    if (is_too_late(attach)) {
        if (is_new)
            say(attach, DPRO_LOG_WARN, process,
                " asked too late for this recording; choose a longer --delay-s");
        return 0;
    }
    if (make_folder(attach, process, sender, &err) < 0) {
        process->lost = true; /* and said once */
        say(attach, DPRO_LOG_WARN, process, ": %s", err.text);
        return 0;
    }
    process->told = true;
    say(attach, DPRO_LOG_INFO, process, " records %.1f s, beginning in %.0f s",
        attach->options.duration_ms / 1e3, (double)(attach->window.start_ns - now) / 1e9);
    return snprintf(text, size,
                    "PROFILE_REPORT_INPUT_SHAPES=true\n"
                    "PROFILE_START_TIME=%lld\n"
                    "ACTIVITIES_WARMUP_PERIOD_SECS=%d\n"
                    "ACTIVITIES_DURATION_MSECS=%u\n"
                    "ACTIVITIES_LOG_FILE=%s/kineto.json\n",
                    (long long)(attach->window.start_ns / MS), WARMUP_S,
                    attach->options.duration_ms, process->folder);
}

/* Takes one datagram and answers it; false when there is none. What comes from another user, other
 * than to root, is passed over: we would name it a place to write to. */
static bool answer_datagram(struct attach *attach)
{
    char data[FABRIC_MESSAGE_MAX], out[FABRIC_HEADER + 8192], text[8192];
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(struct ucred))];
    } control;
    struct sockaddr_un from;
    struct iovec part = {data, sizeof data};
    struct msghdr header = {.msg_name = &from,
                            .msg_namelen = sizeof from,
                            .msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = &control,
                            .msg_controllen = sizeof control};
    struct fabric_message message;
    struct ucred sender = {.pid = 0};
    ssize_t n = recvmsg(attach->fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0)
        return errno == EINTR;
    struct cmsghdr *at = CMSG_FIRSTHDR(&header);
    if (at && at->cmsg_level == SOL_SOCKET && at->cmsg_type == SCM_CREDENTIALS)
        memcpy(&sender, CMSG_DATA(at), sizeof sender);
    if ((header.msg_flags & MSG_TRUNC) || at == NULL || header.msg_namelen == 0 ||
        (sender.uid != geteuid() && geteuid() != 0) || !fabric_parse(data, (size_t)n, &message))
        return true;
    size_t size;
    if (message.type == FABRIC_CONTEXT) {
        int32_t count = 1; /* instances on that GPU: Kineto only logs it */
        size = fabric_answer(message.type, &count, sizeof count, out, sizeof out);
    } else {
        int len = answer_request(attach, &message, &sender, text, sizeof text);
        bool fits = len > 0 && (size_t)len < sizeof text;
        size = fabric_answer(message.type, text, fits ? (size_t)len : 0, out, sizeof out);
    }
    /* the sender may be gone by now, or not read: nothing depends on it */
    sendto(attach->fd, out, size, MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&from,
           header.msg_namelen);
    return true;
}

/* Also of one that nobody has waited for yet. */
static bool is_gone(pid_t pid)
{
    char text[512];
    if (pid == 0)
        return false;
    snprintf(text, sizeof text, "/proc/%d/stat", (int)pid);
    if (file_read_small(text, text, sizeof text) == 0)
        return kill(pid, 0) < 0 && errno == ESRCH;
    const char *end = strrchr(text, ')'); /* of its name, which may hold anything */
    return end && (strncmp(end, ") Z", 3) == 0 || strncmp(end, ") X", 3) == 0);
}

/* Why a process's trace is not to be expected any more; NULL: it is. */
static const char *why_lost(const struct attach_process *process)
{
    if (is_gone(process->pid))
        return "ended before it had written its trace";
    if (time_now_ns(CLOCK_MONOTONIC) - process->heard_ns > SILENT_MS * MS)
        return "does not answer any more";
    return process->n_idle >= MAX_IDLE
               ? "wrote no trace: may it write to the folder, and does it see it (containers)?"
               : NULL;
}

/* Looks which traces have come, and which won't. Returns how many are still to come. */
static size_t attach_look(struct attach *attach)
{
    size_t n_pending = 0;
    EACH (struct attach_process, process, attach->processes) {
        if (!process->told || process->done || process->lost)
            continue;
        process->done = process_is_done(process);
        const char *why = process->done ? NULL : why_lost(process);
        process->lost = why != NULL;
        if (process->done)
            say(attach, DPRO_LOG_INFO, process, " has written its trace");
        else if (why)
            say(attach, DPRO_LOG_WARN, process, " %s", why);
        else
            n_pending++;
    }
    return n_pending;
}

static _Noreturn void fail_alone(const struct attach *attach)
{
    const char *how = "start the job with KINETO_USE_DAEMON=1 in its environment, in this network "
                      "namespace";
    unsigned waited_s = attach->options.wait_ms / 1000;
    if (attach->options.pid != 0)
        fail_with(DPRO_EEMPTY, "process %lld did not ask for %u s%s: %s",
                  (long long)attach->options.pid, waited_s,
                  attach->n_others > 0 ? ", though others did" : "", how);
    fail_with(DPRO_EEMPTY, "no process asked for %u s: %s", waited_s, how);
}

static bool user_stops(const struct dpro_attach_options *options)
{
    struct memory_frame *frame = memory_step_out();
    bool stops = options->stop && options->stop(options->stop_arg);
    memory_step_in(frame);
    return stops;
}

/* Until all traces are there or given up, the caller stops it, or nobody comes. */
static void attach_record(struct attach *attach, struct dpro_attach_result *result)
{
    const struct dpro_attach_options *options = &attach->options;
    int64_t begun = time_now_ns(CLOCK_MONOTONIC);
    for (;;) {
        struct pollfd in = {.fd = attach->fd, .events = POLLIN};
        int n = poll(&in, 1, TICK_MS);
        if (n < 0 && errno != EINTR)
            fail_with(DPRO_EIO, "the socket 'dynolog': %s", strerror(errno));
        for (int i = 0; i < MAX_PROCESSES && answer_datagram(attach);
             i++) /* so many at once: a flood must not stop the rest */
            continue;
        result->n_processes = 0;
        EACH (const struct attach_process, process, attach->processes) {
            result->n_processes += process->told;
            result->world_size = MAX(result->world_size, process->world_size);
        }
        result->n_pending = attach_look(attach);
        bool stops = user_stops(options);
        if (result->n_processes > 0 && (stops || (result->n_pending == 0 && is_too_late(attach))))
            return;
        if (stops)
            fail_with(DPRO_ECANCEL, "stopped before any process recorded: start the job with "
                                    "KINETO_USE_DAEMON=1");
        if (result->n_processes == 0 &&
            time_now_ns(CLOCK_MONOTONIC) - begun > options->wait_ms * MS)
            fail_alone(attach);
    }
}

static void attach_all(const char *path, const struct dpro_attach_options *options,
                       struct dpro_attach_result *result)
{
    struct attach attach = {.fd = -1};
    struct dpro_attach_options *o = &attach.options;
    struct dpro_attach_result out = {.n_processes = 0};
    struct dpro_error why;
    fail_on(OPTIONS_TAKE(o, options, &why), &why);
    o->duration_ms = o->duration_ms ? o->duration_ms : 2000;
    o->delay_ms = MAX(o->delay_ms ? o->delay_ms : 10000, DPRO_ATTACH_MIN_DELAY_MS);
    o->wait_ms = o->wait_ms ? o->wait_ms : 30000;
    char absolute[PATH_MAX]; /* the processes run elsewhere */
    if (!realpath(path, absolute))
        fail_with(DPRO_EIO, "%s: %s", path, strerror(errno));
    attach.path = absolute;
    if (strpbrk(absolute, "#\r\n"))
        fail_with(DPRO_EUSAGE,
                  "%s: Kineto can't be told of a folder with # or a line break in its name; choose "
                  "another",
                  absolute);
    attach.fd = fabric_listen(&why);
    fail_on(attach.fd, &why);
    int rc = OUTCOME(&why, attach_record(&attach, &out));
    fabric_close(attach.fd);
    memory_check();
    fail_on(rc, &why);
    out.n_ranks =
        attach_collect(absolute, attach.processes.at, attach.processes.n, &attach.window, &o->sink);
    if (out.n_ranks == 0 && out.n_pending == 0)
        fail_with(DPRO_EEMPTY,
                  "%zu process%s asked, and none left a trace of training: attach when the job "
                  "trains, or for longer with --duration-ms",
                  out.n_processes, out.n_processes == 1 ? "" : "es");
    *result = out;
    array_fini(&attach.processes);
    arena_fini(&attach.texts);
}

int dpro_attach(const char *path, const struct dpro_attach_options *options,
                struct dpro_attach_result *result, struct dpro_error *err)
{
    return OUTCOME(err, attach_all(path, options, result));
}
