/* The messages that Kineto exchanges with its daemon, and the socket for them: the IPC protocol of
 * dynolog, datagrams on a UNIX socket. Every message is {u64 payload bytes, char type[32]} and the
 * payload, in the machine's byte order. */
#pragma once

#include "base/base.h"

#include <dpro/error.h>

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
