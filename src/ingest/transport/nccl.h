/* What the NCCL profiler plugin logged: communicators, the collectives and point-to-point calls of
 * this process, and the steps of the proxy's work for them, each one chunk that was sent or
 * received on a channel. */
#pragma once

#include "base/base.h"

struct nccl_proxy_op;
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

struct nccl_step {      /* a chunk that the proxy sent or received */
    uint64_t parent;    /* number of its proxy op's event */
    uint32_t operation; /* index; NO_ID: not here */
    int32_t step, peer, channel;
    uint32_t flags; /* NCCL_OP_... */
    uint64_t size_bytes;
    int64_t start_ns, stop_ns;
    int64_t sent_ns, there_ns; /* its data were handed to the network; were there; 0: not seen */
};

struct nccl_log {
    int rank;
    struct strtab names;
    ARRAY(uint32_t) strings; /* the log's numbers -> ids in names */
    ARRAY(struct nccl_comm) comms;
    ARRAY(struct nccl_operation) operations;
    ARRAY(struct nccl_proxy_op) proxy_ops; /* until steps are joined to operations */
    ARRAY(struct nccl_step) steps;
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
