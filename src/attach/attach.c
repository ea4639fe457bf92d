/* attach/attach.c: the daemon. One thread, one socket, a short table of processes.
 *
 * Kineto waits 50 ms for an answer, so every request is answered at once, mostly with "nothing".
 * The first process that asks fixes the time of the recording, far enough ahead for all others,
 * which ask every five seconds, to be told the same: the ranks' traces cover the same iterations.
 */
#include <dpro/attach.h>

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "attach/collect.h"
#include "attach/fabric.h"
#include "base/array.h"
#include "base/error.h"
#include "base/folder.h"
#include "base/log.h"

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
    ARRAY(struct process) processes;
    size_t n_others;      /* that asked and were not meant by options.pid */
    struct window window; /* start_ns 0: not fixed yet */
};

static int64_t now_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000 * MS + t.tv_nsec;
}

static const char *name_of(const struct process *process, char *text, size_t size)
{
    int pid = process->pid != 0 ? (int)process->pid : process->pids[0];
    if (process->rank >= 0)
        snprintf(text, size, "rank %d (process %d)", process->rank, pid);
    else
        snprintf(text, size, "process %d", pid);
    return text;
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

static struct process *find(struct attach *attach, const struct fabric_message *message, pid_t pid)
{
    for (size_t i = 0; i < attach->processes.n; i++) {
        struct process *process = &attach->processes.at[i];
        if (process->pid == pid && process->pids[0] == message->pids[0])
            return process;
    }
    if (attach->processes.n == MAX_PROCESSES || array_reserve(&attach->processes, 1) < 0)
        return NULL;
    struct process *fresh = &attach->processes.at[attach->processes.n++];
    *fresh = (struct process){.pid = pid, .n_pids = message->n_pids};
    memcpy(fresh->pids, message->pids, sizeof fresh->pids);
    process_describe(fresh);
    return fresh;
}

/* Makes the process's folder, where it may write; the process may be another user's (ours is then
 * root). */
static int make_folder(const struct attach *attach, struct process *process,
                       const struct ucred *sender, struct dpro_error *err)
{
    size_t first_made;
    int len = process->rank >= 0 ? asprintf(&process->folder, "%s/host%s/rank%d", attach->path,
                                            process->host, process->rank)
                                 : asprintf(&process->folder, "%s/host%s/pid%d", attach->path,
                                            process->host, process->pids[0]);
    if (len < 0) {
        process->folder = NULL;
        return dpro_error_nomem(err);
    }
    int rc = folder_make(process->folder, &first_made, err);
    if (rc == 0 && sender->uid != geteuid() && chown(process->folder, sender->uid, sender->gid) < 0)
        rc = dpro_error_set(err, DPRO_EIO, "%s: can't be given to the job's user: %s",
                            process->folder, strerror(errno));
    return rc;
}

/* Nobody else can be told to record. */
static bool is_too_late(const struct attach *attach)
{
    return now_ns(CLOCK_REALTIME) > attach->window.start_ns - LAST_CALL_MS * MS;
}

/* The answer to a request: a configuration, or nothing. */
static int answer_request(struct attach *attach, const struct fabric_message *message,
                          const struct ucred *sender, char *text, size_t size)
{
    struct dpro_error err;
    char name[64];
    int64_t now = now_ns(CLOCK_REALTIME);
    if (!is_meant(attach, message, sender->pid)) {
        attach->n_others++;
        return 0;
    }
    struct process *process = find(attach, message, sender->pid);
    if (!process)
        return 0;
    bool is_new = process->heard_ns == 0;
    process->heard_ns = now_ns(CLOCK_MONOTONIC);
    if (!(message->wants & FABRIC_ACTIVITIES)) {
        if (is_new)
            log_line(&attach->options.sink, DPRO_LOG_WARN,
                     "%s is being profiled already: waiting for that to end",
                     name_of(process, name, sizeof name));
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
            log_line(&attach->options.sink, DPRO_LOG_WARN,
                     "%s asked too late for this recording; choose a longer --delay-s",
                     name_of(process, name, sizeof name));
        return 0;
    }
    if (make_folder(attach, process, sender, &err) < 0) {
        process->lost = true; /* and said once */
        log_line(&attach->options.sink, DPRO_LOG_WARN, "%s: %s",
                 name_of(process, name, sizeof name), err.text);
        return 0;
    }
    process->told = true;
    log_line(&attach->options.sink, DPRO_LOG_INFO, "%s records %.1f s, beginning in %.0f s",
             name_of(process, name, sizeof name), attach->options.duration_ms / 1e3,
             (double)(attach->window.start_ns - now) / 1e9);
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
        size =
            fabric_answer(message.type, text,
                          len > 0 && (size_t)len < sizeof text ? (size_t)len : 0, out, sizeof out);
    }
    /* one that is gone by now, or does not read, is its own affair */
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
    FILE *file = fopen(text, "re");
    if (!file)
        return kill(pid, 0) < 0 && errno == ESRCH;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = '\0';
    const char *end = strrchr(text, ')'); /* of its name, which may hold anything */
    return n == 0 || (end && (strncmp(end, ") Z", 3) == 0 || strncmp(end, ") X", 3) == 0));
}

/* Whose traces have come, and whose won't. Returns how many are still to come. */
static size_t look(struct attach *attach)
{
    size_t n_pending = 0;
    char name[64];
    for (size_t i = 0; i < attach->processes.n; i++) {
        struct process *process = &attach->processes.at[i];
        const char *why = NULL;
        if (!process->told || process->done || process->lost)
            continue;
        process_look(process);
        if (process->done) {
            log_line(&attach->options.sink, DPRO_LOG_INFO, "%s has written its trace",
                     name_of(process, name, sizeof name));
            continue;
        }
        if (is_gone(process->pid))
            why = "ended before it had written its trace";
        else if (now_ns(CLOCK_MONOTONIC) - process->heard_ns > SILENT_MS * MS)
            why = "does not answer any more";
        else if (process->n_idle >= MAX_IDLE)
            why = "wrote no trace: may it write to the folder, and does it see it (containers)?";
        process->lost = why != NULL;
        if (why)
            log_line(&attach->options.sink, DPRO_LOG_WARN, "%s %s",
                     name_of(process, name, sizeof name), why);
        else
            n_pending++;
    }
    return n_pending;
}

static int say_nobody(const struct attach *attach, struct dpro_error *err)
{
    const char *how = "start the job with KINETO_USE_DAEMON=1 in its environment, in this network "
                      "namespace";
    if (attach->options.pid != 0)
        return dpro_error_set(err, DPRO_EEMPTY, "process %lld did not ask for %u s%s: %s",
                              (long long)attach->options.pid, attach->options.wait_ms / 1000,
                              attach->n_others > 0 ? ", though others did" : "", how);
    return dpro_error_set(err, DPRO_EEMPTY, "no process asked for %u s: %s",
                          attach->options.wait_ms / 1000, how);
}

/* Until all traces are there or given up, the caller stops it, or nobody comes. */
static int record(struct attach *attach, struct dpro_attach_result *result, struct dpro_error *err)
{
    const struct dpro_attach_options *options = &attach->options;
    int64_t begun = now_ns(CLOCK_MONOTONIC);
    for (;;) {
        struct pollfd in = {.fd = attach->fd, .events = POLLIN};
        int n = poll(&in, 1, TICK_MS);
        if (n < 0 && errno != EINTR)
            return dpro_error_set(err, DPRO_EIO, "the socket 'dynolog': %s", strerror(errno));
        for (int i = 0; i < MAX_PROCESSES && answer_datagram(attach);
             i++) /* a flood doesn't keep us here */
            continue;
        result->n_processes = 0;
        for (size_t i = 0; i < attach->processes.n; i++) {
            result->n_processes += attach->processes.at[i].told;
            if (attach->processes.at[i].world_size > result->world_size)
                result->world_size = attach->processes.at[i].world_size;
        }
        result->n_pending = look(attach);
        if (options->stop && options->stop(options->stop_arg))
            return result->n_processes > 0
                       ? 0
                       : dpro_error_set(err, DPRO_ECANCEL, "stopped before any process recorded");
        if (result->n_processes == 0 && now_ns(CLOCK_MONOTONIC) - begun > options->wait_ms * MS)
            return say_nobody(attach, err);
        if (result->n_processes > 0 && result->n_pending == 0 && is_too_late(attach))
            return 0;
    }
}

int dpro_attach(const char *path, const struct dpro_attach_options *options,
                struct dpro_attach_result *result, struct dpro_error *err)
{
    struct attach attach = {.fd = -1};
    struct dpro_attach_result out = {.n_processes = 0};
    if (options)
        attach.options = *options;
    if (attach.options.duration_ms == 0)
        attach.options.duration_ms = 2000;
    if (attach.options.delay_ms == 0)
        attach.options.delay_ms = 10000;
    if (attach.options.delay_ms < DPRO_ATTACH_MIN_DELAY_MS)
        attach.options.delay_ms = DPRO_ATTACH_MIN_DELAY_MS;
    if (attach.options.wait_ms == 0)
        attach.options.wait_ms = 30000;
    char *absolute = realpath(path, NULL); /* the processes run elsewhere */
    if (!absolute)
        return dpro_error_set(err, DPRO_EIO, "%s: %s", path, strerror(errno));
    attach.path = absolute;
    int rc = 0;
    if (strpbrk(absolute, "#\r\n"))
        rc = dpro_error_set(err, DPRO_EUSAGE,
                            "%s: Kineto can't be told of a folder with # or a "
                            "line break in its name; choose another",
                            absolute);
    if (rc == 0)
        rc = attach.fd = fabric_listen(err);
    if (rc >= 0)
        rc = record(&attach, &out, err);
    if (attach.fd >= 0)
        fabric_close(attach.fd);
    if (rc >= 0)
        rc = collect(absolute, attach.processes.at, attach.processes.n, &attach.window,
                     &attach.options.sink, &out.n_ranks, err);
    if (rc == 0 && out.n_ranks == 0 && out.n_pending == 0)
        rc = dpro_error_set(
            err, DPRO_EEMPTY,
            "%zu process%s asked, and none left a trace of training: attach when the job "
            "trains, or for longer with --duration-ms",
            out.n_processes, out.n_processes == 1 ? "" : "es");
    if (rc == 0)
        *result = out;
    for (size_t i = 0; i < attach.processes.n; i++) {
        free(attach.processes.at[i].folder);
        free(attach.processes.at[i].file);
    }
    array_fini(&attach.processes);
    free(absolute);
    return rc;
}
