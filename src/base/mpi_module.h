/* What libdpro_mpi.so gives: messages between the processes that mpirun started. Only this header
 * is known on both sides, so that dpro itself needs no MPI. */
#pragma once

#include <stddef.h>

struct mpi_module {
    int version; /* MPI_MODULE_VERSION, of the same build */
    int n, me;
    /* Begins and ends; both from one thread, and nothing else meanwhile. Negative: MPI does not
     * start. */
    int (*join)(void);
    void (*leave)(void);
    void (*send)(int to, const void *data, size_t size);
    /* The size of the next message; `idle` is called all the time until it is there. */
    size_t (*await)(int from, void (*idle)(void *arg), void *arg);
    void (*receive)(int from, void *data, size_t size); /* all of it */
    /* A piece of what both ends are ready for: at most `most` bytes; returns how many came. */
    void (*give)(int to, const void *data, size_t size);
    size_t (*take)(int from, void *data, size_t most);
    void (*abort)(int code);
};

enum { MPI_MODULE_VERSION = 5 };

/* `failed` is called where a message can't be sent or received; all processes end with the exit
 * code that it returns. */
typedef const struct mpi_module *mpi_module_start(int (*failed)(const char *text));
#define MPI_MODULE_START "dpro_mpi_start"
