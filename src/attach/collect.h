/* From the files that processes wrote to a trace directory. */
#pragma once

#include "base/base.h"
#include <dpro/error.h>
#include <sys/types.h>

#include <dpro/attach.h>

/* ---- fabric.c: the messages that Kineto exchanges with its daemon, and the socket for them ----
 *
 * The IPC protocol of dynolog, datagrams on a UNIX socket. Every message is {u64 payload bytes,
 * char type[32]} and the payload, in the machine's byte order. */

enum {
    FABRIC_HEADER = 40,
    FABRIC_MESSAGE_MAX = 4096, /* longer ones are none of ours */
    FABRIC_PIDS_MAX = 64,
    FABRIC_ACTIVITIES = 2, /* bit of `wants`: it would take a trace configuration now */
};

enum fabric_type {
    FABRIC_CONTEXT, /* "ctxt": a process has a GPU context; answered with how many there are */
    FABRIC_REQUEST, /* "req": a process asks for a configuration; answered with its text, or none */
};

struct fabric_message {
    enum fabric_type type;
    int32_t wants;                 /* REQUEST: FABRIC_ACTIVITIES while it is not recording */
    int32_t pids[FABRIC_PIDS_MAX]; /* REQUEST: the process, its parent, ... as it sees them */
    size_t n_pids;                 /* 1 or more */
};

/* False when the datagram is not one of these messages; whatever it holds, it is only looked at. */
bool fabric_parse(const void *data, size_t size, struct fabric_message *message);

/* Writes an answer of that type; returns its size, 0 when it does not fit. */
size_t fabric_answer(enum fabric_type type, const void *payload, size_t payload_size, void *out,
                     size_t out_size);

/* The daemon's socket, non-blocking, with the senders' credentials turned on: the abstract name
 * "dynolog", or a file of that name in KINETO_IPC_SOCKET_DIR where that is set, as in Kineto. */
int fabric_listen(struct dpro_error *err);
/* Closes it, and removes the file. */
void fabric_close(int fd);

/* ---- collect.c: from the files that processes wrote to a trace directory ---- */

struct attach_process {
    int32_t pids[FABRIC_PIDS_MAX]; /* as it sees itself and those above it */
    size_t n_pids;
    pid_t pid;                        /* as we see it */
    int rank, world_size, local_rank; /* from its environment; -1, 0, -1: not there */
    char host[72];                    /* the H of its folder host<H> */
    char *folder;                     /* where it writes, absolute; NULL: not told yet */
    const char *file;                 /* what it writes there */
    bool told;                        /* to record */
    bool done, lost;                  /* its trace is whole; will not come any more */
    int64_t heard_ns;                 /* last, CLOCK_MONOTONIC */
    int n_idle;                       /* times it asked for work after it should have recorded */
};

/* Fills in what the process's environment tells of its place in the job. */
void process_describe(struct attach_process *process);

/* Whether its trace is there and whole. */
bool process_is_done(const struct attach_process *process);

struct attach_window {
    int64_t start_ns, end_ns; /* CLOCK_REALTIME */
};

/* Puts the traces of all that are done in their places below `path`, packed, with a rank.json each
 * and a job.json, and removes those of processes that train nothing (launchers, data loaders).
 * Returns how many ranks there are; what can't be written ends the OUTCOME() around it. */
size_t attach_collect(const char *path, struct attach_process *processes, size_t n,
                      const struct attach_window *window, const struct dpro_sink *sink);
