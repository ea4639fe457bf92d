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

enum { TAG = 1, MOST = 1 << 30 };

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

static void doze(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

static int finish(MPI_Request *request, bool is_awaited)
{
    int done = 0, code;
    if (is_awaited)
        return MPI_Wait(request, MPI_STATUS_IGNORE);
    while ((code = MPI_Test(request, &done, MPI_STATUS_IGNORE)) == MPI_SUCCESS && !done)
        doze();
    return code;
}

/* is_awaited: the other process is at the other end already. */
static void send_some(int to, const void *data, size_t size, bool is_awaited)
{
    MPI_Request request;
    int code = MPI_Isend(data, (int)size, MPI_BYTE, to, TAG, MPI_COMM_WORLD, &request);
    check(code != MPI_SUCCESS ? code : finish(&request, is_awaited), "send to", to);
}

static void receive_some(int from, void *data, size_t size, bool is_awaited)
{
    MPI_Request request;
    int code = MPI_Irecv(data, (int)size, MPI_BYTE, from, TAG, MPI_COMM_WORLD, &request);
    check(code != MPI_SUCCESS ? code : finish(&request, is_awaited), "receive from", from);
}

/* A large message needs both ends to call MPI all along: it follows once the receiver asks. */
static void send(int to, const void *data, size_t size)
{
    uint64_t total = size;
    char ask;
    send_some(to, &total, sizeof total, false);
    if (size > 0)
        receive_some(to, &ask, 1, false);
    for (const char *at = data; size > 0;) {
        size_t n = size < MOST ? size : MOST;
        send_some(to, at, n, true);
        at += n;
        size -= n;
    }
}

static size_t await(int from, void (*idle)(void *arg), void *arg)
{
    uint64_t total = 0;
    int code, there = 0;
    while ((code = MPI_Iprobe(from, TAG, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE)) ==
               MPI_SUCCESS &&
           !there) {
        idle(arg);
        doze();
    }
    check(code, "receive from", from);
    receive_some(from, &total, sizeof total, true);
    return total;
}

static void receive(int from, void *data, size_t size)
{
    char ask = 0;
    if (size > 0)
        send_some(from, &ask, 1, true);
    for (char *at = data; size > 0;) {
        size_t n = size < MOST ? size : MOST;
        receive_some(from, at, n, true);
        at += n;
        size -= n;
    }
}

static void give(int to, const void *data, size_t size)
{
    send_some(to, data, size, true);
}

static size_t take(int from, void *data, size_t most)
{
    MPI_Status status;
    int n = 0;
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
        .send = send,
        .await = await,
        .receive = receive,
        .give = give,
        .take = take,
        .abort = end_all,
    };
    say_failed = failed;
    choose_network();
    unbind();
    return &module;
}
