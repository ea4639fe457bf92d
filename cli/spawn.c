/* A program in the foreground. Signals are blocked and fetched rather than handled: there is no
 * moment at which one gets lost between the program's start and the wait for it. */
#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const int passed_on[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

/* One that was ignored when dpro started (nohup) stays ignored, here and in the program. */
static void choose_signals(sigset_t *set)
{
    struct sigaction now;
    sigemptyset(set);
    sigaddset(set, SIGCHLD);
    for (size_t i = 0; i < sizeof passed_on / sizeof *passed_on; i++)
        if (sigaction(passed_on[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            sigaddset(set, passed_on[i]);
}

static int wait_for(pid_t child, const sigset_t *set)
{
    for (;;) {
        siginfo_t info;
        int status, number = sigwaitinfo(set, &info);
        if (number > 0 && number != SIGCHLD && info.si_code <= 0) /* sent by a process */
            kill(child, number);
        pid_t ended = waitpid(child, &status, WNOHANG);
        if (ended < 0 && errno != EINTR)
            return -errno;
        if (ended != child)
            continue;
        /* the Ctrl-C that ended the program was meant for it, and came here, too */
        static const struct timespec at_once = {0};
        while (sigtimedwait(set, NULL, &at_once) > 0)
            continue;
        return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    }
}

int spawn_program(char *const argv[])
{
    struct sigaction plain = {.sa_handler = SIG_DFL}, reaped;
    sigset_t set, before;
    int report[2], failed = 0, result;
    pid_t child;

    choose_signals(&set);
    if (pipe2(report, O_CLOEXEC) < 0)
        return -errno;
    sigaction(SIGCHLD, &plain,
              &reaped); /* inherited as ignored it would leave nothing to wait for */
    sigprocmask(SIG_BLOCK, &set, &before);
    child = fork();
    if (child == 0) {
        sigaction(SIGCHLD, &reaped, NULL);
        sigprocmask(SIG_SETMASK, &before, NULL);
        execvp(argv[0], argv);
        failed = errno;
        if (write(report[1], &failed, sizeof failed) < 0)
            failed = 0; /* nobody left to tell */
        _exit(127);
    }
    result = child < 0 ? -errno : 0;
    close(report[1]);
    if (child > 0) {
        ssize_t n;
        do
            n = read(report[0], &failed, sizeof failed); /* ends when the program runs */
        while (n < 0 && errno == EINTR);
        result = wait_for(child, &set);
        if (n == (ssize_t)sizeof failed)
            result = -failed;
    }
    close(report[0]);
    sigprocmask(SIG_SETMASK, &before, NULL);
    sigaction(SIGCHLD, &reaped, NULL);
    return result;
}
