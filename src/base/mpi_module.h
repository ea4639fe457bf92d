/* What libdpro_mpi.so gives: messages between the processes that mpirun started. Only this header
 * is known on both sides, so that dpro itself needs no MPI. */
#pragma once

#include "base/base.h"

struct mpi_module {
    int version; /* MPI_MODULE_VERSION, of the same build */
    int n, me;
    /* Begins and ends; both from one thread, and nothing else meanwhile. Negative: MPI does not
     * start. */
    int (*join)(void);
    void (*leave)(void);
    /* A piece of a message: at most `most` bytes; returns how many came. `idle` is called again and
     * again until it is there. */
    void (*give)(int to, const void *data, size_t size);
    size_t (*take)(int from, void *data, size_t most, void (*idle)(void *arg), void *arg);
    void (*abort)(int code);
};

enum { MPI_MODULE_VERSION = 6 };

/* `failed` is called where a message can't be sent or received; all processes end with the exit
 * code that it returns. */
typedef const struct mpi_module *mpi_module_start(int (*failed)(const char *text));
#define MPI_MODULE_START "dpro_mpi_start"
