/* Asks a pass for candidates. A pass from a file runs in a child process, where it may crash, loop
 * or overwrite memory; the parent only reads data from a pipe, for a limited time. */
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "optimize/registry.h"

enum { TIME_LIMIT_MS = 5000, MS = 1000000 };

bool pass_propose(const struct dpro_pass *pass, const struct dpro_pass_view *view,
                  struct candidates *candidates, struct dpro_edit *room)
{
    enum { MOST_EDITS = 1 << 20 };
    for (uint32_t i = 0; i < DPRO_PASS_MAX_CANDIDATES && candidates->edits.n < MOST_EDITS; i++) {
        struct dpro_candidate candidate = {room, 0};
        size_t first = candidates->edits.n;
        if (!pass->propose(pass, view, i, &candidate))
            break;
        if (candidate.n_edits > DPRO_PASS_MAX_EDITS)
            return false;
        array_append(&candidates->edits, room, candidate.n_edits);
        candidates_add(candidates, first);
    }
    return true;
}

/* ---- a file's pass ---- */

/* What goes over the pipe: this head, then a count and that many edits for each candidate. */
struct process_head {
    struct child_answer answer;
    uint32_t n_candidates;
};

/* ---- in the child ---- */

static const struct dpro_pass *process_load(const char *path, struct child_answer *answer)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        snprintf(answer->why, sizeof answer->why, "can't be loaded: %s", dlerror());
        return NULL;
    }
    const struct dpro_pass *pass = dlsym(handle, "dpro_pass");
    if (!pass)
        snprintf(answer->why, sizeof answer->why, "holds no symbol dpro_pass; see dpro/pass.h");
    else if (pass->abi != DPRO_PASS_ABI)
        snprintf(answer->why, sizeof answer->why,
                 "was made for version %u of dpro/pass.h, this is %d; compile it again", pass->abi,
                 DPRO_PASS_ABI);
    else if (!pass->propose || !pass->name || !*pass->name)
        snprintf(answer->why, sizeof answer->why, "has no name, or no propose()");
    return *answer->why ? NULL : pass;
}

static int answer_all(int fd, const char *path, const struct dpro_pass_view *view)
{
    static const int to_default[] = {SIGINT, SIGTERM, SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};
    for (size_t i = 0; i < sizeof to_default / sizeof *to_default; i++)
        signal(to_default[i], SIG_DFL);
    signal(SIGINT, SIG_IGN); /* Ctrl-C stops the search, which then ends this process */
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    dup2(STDERR_FILENO, STDOUT_FILENO); /* what it prints is no part of our output */
    struct process_head head = {0};
    struct candidates candidates = {0};
    const struct dpro_pass *pass = process_load(path, &head.answer);
    if (pass) {
        snprintf(head.answer.name, sizeof head.answer.name, "%s", pass->name);
        head.answer.changes_numerics = pass->changes_numerics != 0;
        if (view && !pass_propose(pass, view, &candidates,
                                  mem_alloc(DPRO_PASS_MAX_EDITS * sizeof(struct dpro_edit))))
            snprintf(head.answer.why, sizeof head.answer.why,
                     "proposed more edits than there is room for");
    }
    FILE *to = fdopen(fd, "w");
    if (!to)
        return 1;
    head.n_candidates = (uint32_t)candidates.list.n;
    fwrite(&head, sizeof head, 1, to);
    EACH (const struct candidate, c, candidates.list) {
        fwrite(&c->n, sizeof c->n, 1, to);
        fwrite(candidates.edits.at + c->first, sizeof(struct dpro_edit), c->n, to);
    }
    return fclose(to) != 0;
}

/* ---- in the parent ---- */

typedef ARRAY(char) bytes_array;

/* Everything up to the end. 1: it came in time; else 0. */
static int process_receive(int fd, bytes_array *bytes)
{
    int64_t until = time_now_ns(CLOCK_MONOTONIC) / MS + TIME_LIMIT_MS;
    for (;;) {
        int64_t left = until - time_now_ns(CLOCK_MONOTONIC) / MS;
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        int n = left > 0 ? poll(&poll_fd, 1, (int)left) : 0;
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0; /* what is missing, process_understand() sees */
        array_reserve(bytes, 65536);
        ssize_t got = read(fd, bytes->at + bytes->n, 65536);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return 1;
        bytes->n += (size_t)got;
    }
}

static bool process_take(const char **at, const char *end, void *to, size_t n)
{
    if ((size_t)(end - *at) < n)
        return false;
    memcpy(to, *at, n);
    *at += n;
    return true;
}

/* Whether it is whole. */
static bool process_understand(const bytes_array *bytes, struct candidates *candidates,
                               struct child_answer *answer)
{
    const char *at = bytes->at, *end = at + bytes->n;
    struct process_head head;
    if (!process_take(&at, end, &head, sizeof head))
        return false;
    *answer = head.answer;
    answer->name[sizeof answer->name - 1] = answer->why[sizeof answer->why - 1] = '\0';
    if (head.n_candidates && !candidates)
        return false; /* nobody asked */
    for (uint32_t i = 0; i < head.n_candidates; i++) {
        size_t first = candidates->edits.n;
        uint32_t n;
        if (!process_take(&at, end, &n, sizeof n) || n > DPRO_PASS_MAX_EDITS)
            return false;
        array_reserve(&candidates->edits, n);
        if (!process_take(&at, end, candidates->edits.at + first, n * sizeof(struct dpro_edit)))
            return false;
        candidates->edits.n += n;
        candidates_add(candidates, first);
    }
    return true;
}

/* -1: no process could be started. */
static pid_t process_start(const char *path, const struct dpro_pass_view *view, int *fd)
{
    int fds[2];
    fflush(NULL); /* or the child prints what is buffered once more */
    pid_t pid = pipe(fds) < 0 ? -1 : fork();
    if (pid < 0)
        return -1;
    if (pid == 0) {
        close(fds[0]);
        _exit(WITHIN_SCOPE(1, answer_all(fds[1], path, view)));
    }
    close(fds[1]);
    *fd = fds[0];
    return pid;
}

struct child_answer child_run(const char *path, const struct dpro_pass_view *view,
                              struct candidates *candidates)
{
    int fd, status = 0;
    size_t n_list = candidates ? candidates->list.n : 0;
    size_t n_edits = candidates ? candidates->edits.n : 0;
    bytes_array bytes = {0};
    struct child_answer answer = {0};
    pid_t pid = process_start(path, view, &fd);
    if (pid < 0) {
        snprintf(answer.why, sizeof answer.why, "got no process to run in: %s", strerror(errno));
        return answer;
    }
    bool in_time = WITHIN_SCOPE(0, process_receive(fd, &bytes));
    close(fd);
    kill(pid, SIGKILL); /* its answer is complete, or too late */
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    memory_check();
    bool whole = in_time && process_understand(&bytes, candidates, &answer);
    array_fini(&bytes);
    if (whole)
        return answer;
    if (candidates) {
        candidates->list.n = n_list;
        candidates->edits.n = n_edits;
    }
    if (!in_time)
        snprintf(answer.why, sizeof answer.why, "gave no answer within %d s", TIME_LIMIT_MS / 1000);
    else if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
        snprintf(answer.why, sizeof answer.why, "crashed (%s)", strsignal(WTERMSIG(status)));
    else
        snprintf(answer.why, sizeof answer.why, "ended without an answer");
    return answer;
}
