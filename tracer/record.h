/* record.h: the records of dpro's binary logs: what the transport tracer and the NCCL profiler
 * plugin write, and ingest reads. Shared by tracer/ and src/ingest/, and by nothing else.
 *
 * A log is a header, then records in no guaranteed order: each thread's records are in order, those
 * of two threads are as the flusher found them. Little-endian, 8-byte aligned. Every record starts
 * with its type, version and size, so that a reader passes over what it does not know, and a log
 * cut anywhere is readable up to the cut. Times are nanoseconds of CLOCK_REALTIME, as Kineto's. The
 * layout is described for others in doc/formats/log.md. */
#ifndef TRACER_RECORD_H
#define TRACER_RECORD_H

#include <stdint.h>

#define LOG_MAGIC   "dprolog" /* with its NUL: eight bytes */
#define LOG_VERSION 1

enum log_kind { LOG_TRANSPORT = 1, LOG_NCCL = 2 };

struct log_header {
    char magic[8];
    uint32_t version;      /* LOG_VERSION */
    uint32_t header_bytes; /* records start here */
    uint32_t kind;         /* enum log_kind */
    uint32_t pid;
    int32_t rank;     /* -1: was not known */
    uint32_t segment; /* how many older parts of this log were dropped or rotated away before */
    uint64_t net_ns;  /* inode of the network namespace: two processes with the same one share
                         addresses, loopback too; 0: unknown */
    uint64_t time_ns; /* inode of the time namespace */
    char boot_id[40]; /* of the machine: processes with the same one share its clocks */
    char host[64];
};

enum record_type {
    RECORD_ANCHOR = 1, /* one instant on three clocks */
    RECORD_LOSS = 2,   /* records that could not be kept */
    RECORD_MARK = 3,   /* a window's start or end, a step's */
    RECORD_STRING = 4, /* text with a number, referred to by later records of this log */

    RECORD_CONNECTION =
        16,           /* transport: a connection's two ends; again at the start of a segment */
    RECORD_CALL = 17, /* transport: one socket call */
    RECORD_GLOO = 18, /* transport: a gloo message's preamble */
    RECORD_ZMTP = 19, /* transport: a ZeroMQ frame */

    RECORD_NCCL_COMM = 32,  /* NCCL: a communicator */
    RECORD_NCCL_EVENT = 33, /* NCCL: one profiler event, from start to stop */
};

struct record { /* every record starts so */
    uint8_t type;
    uint8_t version;
    uint16_t size_bytes; /* of the record, this header included; a multiple of 8 */
    uint32_t thread;     /* kernel's thread id; 0: the tracer itself */
};

struct record_anchor {
    struct record head;
    int64_t realtime_ns, monotonic_ns;
    uint64_t tsc; /* 0: no such counter */
};

enum loss_cause {
    LOSS_RING_FULL = 1,
    LOSS_LOG_FULL = 2,
    LOSS_WRITE_FAILED = 3,
    LOSS_NO_RING = 4,
    LOSS_NO_EVENT = 5, /* too many NCCL events open at once */
};

struct record_loss {
    struct record head;
    uint32_t cause; /* enum loss_cause */
    uint32_t reserved;
    uint64_t n_records; /* lost since the log's start */
};

struct record_mark {
    struct record head;
    int64_t time_ns;
    char name[40]; /* NUL-padded: "timing", "/timing" (its end), ... */
};

struct record_string {
    struct record head;
    uint32_t string; /* its number, from 1; 0 elsewhere stands for no text */
    uint32_t reserved;
    char text[48]; /* NUL-padded, cut at 47 */
};

/* A number that is not known is 0. Written again when more of it becomes known: the last one
 * counts. */
struct record_nccl_comm {
    struct record head;
    uint32_t comm; /* number of the communicator in this log, from 1; never given twice */
    int32_t rank;  /* in the communicator; -1: not known */
    int32_t n_ranks, n_nodes;
    uint64_t hash;         /* NCCL's: the same on all ranks of the communicator */
    uint32_t nccl_version; /* 22304 is 2.23.4 */
    uint32_t interface;    /* version of the profiler interface in use, 1 to 6 */
    char name[64];         /* given by the program, mostly empty */
};

/* Numbers are the bits of NCCL's activation mask. */
enum nccl_event {
    NCCL_GROUP = 0,
    NCCL_COLL =
        1, /* start to stop is its enqueueing, as in P2P and the calls; children tell the rest */
    NCCL_P2P = 2,
    NCCL_PROXY_OP = 3,
    NCCL_PROXY_STEP = 4,
    NCCL_PROXY_CTRL = 5,
    NCCL_KERNEL_CH = 6,
    NCCL_NET = 7,
    NCCL_GROUP_CALL = 8, /* the calls: interface 5 and later */
    NCCL_COLL_CALL = 9,
    NCCL_P2P_CALL = 10,
    NCCL_LAUNCH = 11,
    NCCL_CE_COLL = 12, /* copy engine: interface 6 */
    NCCL_CE_SYNC = 13,
    NCCL_CE_BATCH = 14,
};

enum nccl_flag {
    NCCL_SEND = 1, /* proxy op and step: of which direction; neither flag: not known */
    NCCL_RECV = 2,
    NCCL_CAPTURED = 4, /* call: while a CUDA graph was captured */
    NCCL_FOREIGN =
        8, /* proxy op for another process (PXN): `parent` is a number in that process' log */
    NCCL_OPEN = 16, /* not stopped when the recording or its communicator ended: stop_ns is 0 */
};

/* Times of states are 0 when the event never was in it, else the first time. */
struct record_nccl_event {
    struct record head;
    uint64_t event;  /* its number, not 0, unique in this log */
    uint64_t parent; /* 0: none, or not recorded; parents may stop before their children start */
    int64_t start_ns, stop_ns;
    uint32_t comm; /* 0: not known */
    int32_t rank;  /* in the communicator, of the process that asked for it; -1: not known */
    uint8_t type;  /* enum nccl_event: which of the below follows, and so the record's size */
    uint8_t flags; /* enum nccl_flag */
    uint16_t reserved;
    uint32_t pid; /* proxy op: process that asked for it */
    union {       /* numbers of func, datatype, algorithm, protocol, sync are strings' */
        struct {
            uint64_t sequence; /* in the communicator, per func */
            uint64_t count, size_bytes;
            uint64_t send_buffer, recv_buffer;
            uint64_t group; /* number of the group event; `parent` is it before interface 5 */
            uint32_t func, datatype, algorithm, protocol;
            int32_t root;
            uint16_t n_channels, n_warps;
        } coll;
        struct {
            uint64_t count, size_bytes;
            uint64_t buffer;
            uint64_t group;
            uint32_t func, datatype;
            int32_t peer;
            uint32_t n_channels; /* 0: not known */
        } p2p;
        struct {
            int64_t posted_ns; /* interface 4 and later: in progress; before: first step posted */
            int64_t ready_ns;  /* before 4: send: first clear to send; recv: first received */
            int64_t transmitted_ns, done_ns; /* before 4: first step */
            uint64_t size_bytes;             /* before 4: transferred; later 0: its steps have it */
            int32_t peer, channel, n_steps;
            uint32_t chunk_bytes;
            uint32_t steps_done; /* before 4 */
            uint32_t reserved;
        } proxy_op;
        struct {
            int64_t gpu_wait_ns;   /* send: for the GPU's data; recv: for the GPU to consume it */
            int64_t peer_wait_ns;  /* send: for the peer's clear to send */
            int64_t net_wait_ns;   /* for the network */
            int64_t flush_wait_ns; /* recv: for the flush to the GPU */
            uint64_t size_bytes;   /* 0: not known */
            int32_t step;
            uint32_t reserved;
        } proxy_step;
        struct {
            int64_t idle_ns, active_ns, sleep_ns, wakeup_ns, append_ns, append_end_ns;
            uint32_t n_appended;
            uint32_t reserved;
        } proxy_ctrl;
        struct {
            uint64_t gpu_start, gpu_stop; /* the GPU's own timer, ns; 0 before interface 4 */
            uint32_t channel;
            uint32_t reserved;
        } kernel_ch;
        struct {
            uint64_t plugin;     /* 0x10001: InfiniBand; 0x20001: sockets; other: only times */
            uint64_t size_bytes; /* of the work request, of the socket call */
            uint64_t request;    /* InfiniBand */
            int32_t device;      /* InfiniBand */
            int32_t op;          /* InfiniBand: verbs opcode; sockets: 0 send, 1 recv */
            int32_t object;      /* queue pair's number; file descriptor */
            uint32_t n_updates;
        } net;
        struct {
            uint64_t count, size_bytes;
            uint64_t stream;
            int64_t start_returned_ns,
                end_called_ns; /* group: ncclGroupStart ended, GroupEnd began */
            uint32_t func, datatype;
            int32_t root;
            int32_t depth; /* group: of nesting; 1: NCCL's own around a single call */
        } call;            /* group, collective, p2p; launch has the stream only */
        struct {
            uint64_t sequence;
            uint64_t count, size_bytes;
            uint64_t send_buffer, recv_buffer;
            uint64_t stream;
            uint32_t func, datatype, sync;
            int32_t root;
            uint32_t batch_size, n_batches;
        } ce_coll;
        struct {
            int32_t n_ranks;
            uint32_t complete; /* at the end of the collective, else at its start */
        } ce_sync;
        struct {
            uint64_t size_bytes;
            int32_t n_ops;
            uint32_t intra_sync;
        } ce_batch;
    };
};

#endif
