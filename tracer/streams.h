/* What the tracer knows of the process's descriptors and connections, and the bookkeeping around a
 * call. No locks, no allocation; safe in signal handlers. errno is kept by all of these. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "decode.h"
#include "record.h"

/* A descriptor's word: nothing known, nothing to trace, or the number of its stream's slot. */
enum { FD_UNKNOWN = 0, FD_OTHER = 1, FD_STREAM = 2 };
#define N_FDS (1u << 20)
extern _Atomic uint32_t stream_fds[N_FDS] __attribute__((visibility("hidden")));

/* What every call on a file, a pipe or an untraced socket costs. */
static inline bool stream_is_other(int fd)
{
    return (unsigned int)fd >= N_FDS ||
           atomic_load_explicit(&stream_fds[fd], memory_order_relaxed) == FD_OTHER;
}

/* Decides what this process does, from the environment. Called by whatever comes first. */
void streams_init(void);
void streams_after_fork(void);
/* False in a vfork'ed child. */
bool streams_are_ours(void);
/* Called when the first connection that is kept appears (DPRO_NET=all), set before streams_init. */
extern void (*stream_first_kept)(void) __attribute__((visibility("hidden")));

/* ---- around a call that moves bytes ---- */

struct stream;
struct call {
    struct stream *stream; /* NULL: nothing is traced */
    uint64_t owner;        /* what this call wrote into the flow's word of ownership */
    int64_t start_ns;      /* 0: not recorded */
    uint32_t number, moves;
    uint8_t direction, kind;
    uint16_t flags;
};

/* `flags` are the call's MSG_ flags. */
void call_begin(struct call *c, int fd, enum call_direction direction, enum call_kind kind,
                int flags);
/* `result` is what the call returned; `parts` is where its bytes lie, NULL when they were not to be
 * seen. */
void call_end(struct call *c, ssize_t result, size_t requested, const struct iovec *parts,
              size_t n_parts);
/* The same for calls of several messages that moved `result` bytes in all. */
void call_end_messages(struct call *c, ssize_t result, size_t requested,
                       const struct mmsghdr *messages, int n_messages);

/* ---- descriptors ---- */

/* All of these do nothing in a vfork'ed child, whose memory is its parent's. */
void stream_opened(int fd, int domain, int type); /* by socket() */
void stream_paired(const int fds[2], int domain, int type);
void stream_connected(int fd, const struct sockaddr *remote, socklen_t size);
void stream_accepted(int fd);
void stream_received(int fd); /* from another process */
void stream_closing(int fd);  /* before the kernel closes it */
void stream_closing_from(unsigned int first, unsigned int last);
void stream_looked_at(int fd); /* before it is duplicated */
void stream_duplicated(int from, int to);

/* ---- for the log ---- */

void streams_write_connections(void); /* log_options.on_segment */
void streams_write_totals(void);
uint64_t streams_memory(void);
