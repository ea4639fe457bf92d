/* libdpro_mpi.so, through which dpro speaks to its other processes under mpirun.
 *
 * MPI waits by asking without end, which takes a core from those who work: here waiting for another
 * process sleeps. */
#include <mpi.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mpi_module.h"

enum { TAG = 1 };

__attribute__((visibility("default"))) mpi_module_start dpro_mpi_start;

static struct mpi_module module;
static int (*say_failed)(const char *text);

static void check(int code, const char *what, int other)
{
    char why[MPI_MAX_ERROR_STRING] = "", text[MPI_MAX_ERROR_STRING + 96];
    int length;
    if (code == MPI_SUCCESS)
        return;
    MPI_Error_string(code, why, &length);
    snprintf(text, sizeof text, "process %d of mpirun can't %s process %d: %s", module.me, what,
             other, why);
    MPI_Abort(MPI_COMM_WORLD, say_failed(text));
}

/* Waits for what `ask` tells: soon it may be there at once, later sleeping costs others nothing. */
static void wait_for(int (*ask)(void *what, int *done), void *what, const char *action, int other,
                     void (*idle)(void *arg), void *arg)
{
    enum { SOON = 10000 };
    int done = 0;
    for (int tries = 0; !done; tries++) {
        check(ask(what, &done), action, other);
        if (done || tries < SOON)
            continue;
        if (idle)
            idle(arg);
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
}

static int ask_sent(void *request, int *done)
{
    return MPI_Test(request, done, MPI_STATUS_IGNORE);
}

static int ask_there(void *from, int *done)
{
    return MPI_Iprobe(*(int *)from, TAG, MPI_COMM_WORLD, done, MPI_STATUS_IGNORE);
}

static void give(int to, const void *data, size_t size)
{
    MPI_Request request;
    check(MPI_Isend(data, (int)size, MPI_BYTE, to, TAG, MPI_COMM_WORLD, &request), "send to", to);
    wait_for(ask_sent, &request, "send to", to, NULL, NULL);
}

static size_t take(int from, void *data, size_t most, void (*idle)(void *arg), void *arg)
{
    MPI_Status status;
    int n = 0;
    wait_for(ask_there, &from, "receive from", from, idle, arg);
    check(MPI_Recv(data, (int)most, MPI_BYTE, from, TAG, MPI_COMM_WORLD, &status), "receive from",
          from);
    MPI_Get_count(&status, MPI_BYTE, &n);
    return (size_t)n;
}

static int join(void)
{
    int level;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level) != MPI_SUCCESS)
        return -1;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_size(MPI_COMM_WORLD, &module.n);
    MPI_Comm_rank(MPI_COMM_WORLD, &module.me);
    return 0;
}

static void leave(void)
{
    MPI_Finalize();
}

static void end_all(int code)
{
    MPI_Abort(MPI_COMM_WORLD, code);
}

/* Where the user says nothing, mpirun binds each of two processes to one core, with all of its
 * threads: a process of dpro has threads of its own, and uses the cores of those that wait. */
static void unbind(void)
{
    cpu_set_t all;
    memset(&all, 0xff, sizeof all);
    if (!getenv("OMPI_MCA_hwloc_base_binding_policy"))
        sched_setaffinity(0, sizeof all, &all);
}

/* Looking for fast networks takes longer than to read a small trace, and little is sent. */
static void choose_network(void)
{
    setenv("OMPI_MCA_pml", "ob1", 0);
    setenv("OMPI_MCA_btl", "^openib,ofi", 0);
}

const struct mpi_module *dpro_mpi_start(int (*failed)(const char *text))
{
    module = (struct mpi_module){
        .version = MPI_MODULE_VERSION,
        .join = join,
        .leave = leave,
        .give = give,
        .take = take,
        .abort = end_all,
    };
    say_failed = failed;
    choose_network();
    unbind();
    return &module;
}
