/* A command that mpirun started as several processes. */
#include "together.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "parts.h"
#include "say.h"

static struct dpro_processes *others;
static int spoken = -1; /* stderr, of one that is silent */

/* What is wrong with the command or its input, the first process says: once joined, it is there. */
static void fall_silent(void)
{
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    fflush(stdout);
    spoken = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    if (null < 0 || dup2(null, STDOUT_FILENO) < 0 || dup2(null, STDERR_FILENO) < 0)
        exit(CMD_SYSTEM);
    close(null);
}

static void speak(void)
{
    if (spoken >= 0)
        dup2(spoken, STDERR_FILENO);
}

static int say_failed(const char *text)
{
    speak();
    cmd_say("%s", text);
    fflush(stderr);
    return CMD_SYSTEM;
}

void together_hold(void)
{
    if (dpro_processes_started() > 0)
        setvbuf(stderr, NULL, _IOFBF, BUFSIZ);
}

void together_release(int code)
{
    enum { SECONDS = 2 };
    if (dpro_processes_started() <= 0)
        return;
    if (code != 0)
        sleep(SECONDS);
    fflush(stderr);
    setvbuf(stderr, NULL, _IONBF, 0);
}

static int join(const char *module)
{
    struct dpro_error err = {.code = 0};
    char host[65] = "";
    if (module == NULL) {
        gethostname(host, sizeof host - 1);
        cmd_say("mpirun started several processes, but dpro on %s was built without MPI; install "
                "libopenmpi-dev there and build it again, or run it without mpirun",
                host);
        return CMD_SYSTEM;
    }
    return cmd_done(dpro_processes_join(module, say_failed, &others, &err), &err);
}

int together_join(void)
{
    int number = dpro_processes_started();
    struct parts parts;
    if (number < 0)
        return 0;
    together_hold();
    int code = parts_find(&parts);
    if (code == 0)
        code = join(parts.mpi);
    together_release(code);
    if (code == 0 && number > 0)
        fall_silent();
    parts_fini(&parts);
    return code;
}

struct dpro_processes *together(void)
{
    return others;
}

void together_help(struct dpro_job *job)
{
    struct dpro_error err = {.code = 0};
    if (dpro_job_help(job, &err) == 0)
        exit(together_leave(CMD_DONE));
    speak();
    dpro_processes_abort(others, cmd_fail(&err));
}

int together_leave(int code)
{
    bool first = dpro_processes_number(others) == 0;
    dpro_processes_leave(others);
    others = NULL;
    return first ? code : CMD_DONE;
}
