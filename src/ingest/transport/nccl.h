/* What the NCCL profiler plugin logged: communicators, the collectives and point-to-point calls of
 * this process, and the proxy's work for them: per channel and peer an op, and its steps, each one
 * chunk that was sent or received. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/array.h"
#include "base/strtab.h"

struct payload_kind;
struct trace_build;
struct dpro_error;

struct nccl_comm {
    uint32_t number; /* in the log */
    int32_t rank;
    uint64_t hash; /* equal on all its ranks */
};

struct nccl_operation { /* a collective, or one send or recv */
    uint64_t event;
    int64_t start_ns;         /* of its enqueueing */
    uint64_t sequence;        /* collectives: in the communicator, per function */
    uint32_t comm;            /* index; NO_ID: unknown */
    uint32_t thread;          /* that called */
    uint32_t func, algorithm; /* string ids, of this log's table */
    bool point_to_point;
    uint32_t span; /* the profile's span around the call; NO_ID */
};

enum { NCCL_OP_SENDS = 1, NCCL_OP_RECEIVES = 2, NCCL_OP_FOREIGN = 8 }; /* as recorded */

struct nccl_proxy_op {
    uint64_t event, parent;
    uint32_t operation; /* index; NO_ID: not here */
    int32_t peer, channel, n_steps;
    uint32_t flags; /* NCCL_OP_... */
    uint64_t size_bytes;
};

struct nccl_step {
    uint64_t parent;
    uint32_t proxy_op; /* index; NO_ID: not here */
    int32_t step;
    uint64_t size_bytes;
    int64_t start_ns, stop_ns;
    int64_t gpu_wait_ns, net_wait_ns, flush_wait_ns; /* when each began; 0: never */
};

/* When its data were handed to the network, and when they were there; 0: not seen. */
static inline int64_t nccl_step_sent_ns(const struct nccl_step *step)
{
    return step->net_wait_ns ? step->net_wait_ns : step->start_ns;
}

static inline int64_t nccl_step_there_ns(const struct nccl_step *step)
{
    int64_t used = step->gpu_wait_ns ? step->gpu_wait_ns : step->stop_ns;
    return step->flush_wait_ns ? step->flush_wait_ns : used;
}

struct nccl_log {
    int rank;
    struct strtab names;
    ARRAY(uint32_t) strings; /* the log's numbers -> ids in names */
    ARRAY(struct nccl_comm) comms;
    ARRAY(struct nccl_operation) operations;
    ARRAY(struct nccl_proxy_op) proxy_ops;
    ARRAY(struct nccl_step) steps;
    bool of_rings;     /* it has the steps within a node, too */
    uint64_t n_others; /* events of other kinds */
    uint64_t n_lost;
};

extern const struct payload_kind nccl_payload;
/* Takes a record that NCCL logs only have; false: it is not valid. */
bool nccl_log_add(struct nccl_log *log, const unsigned char *at, size_t size);
/* Finds parents by their numbers, once all is read. */
void nccl_log_join(struct nccl_log *log);
/* Moves the logs to the trace and finds the spans of their operations. */
void nccl_build(struct trace_build *build);
