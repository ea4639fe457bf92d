/* The records of dpro's binary logs: what the transport tracer and the NCCL profiler plugin write,
 * and ingest reads. Shared by tracer/ and src/ingest/, and by nothing else.
 *
 * A log is a header, then records in no guaranteed order: each thread's records are in order, those
 * of two threads are as the flusher found them. Little-endian, 8-byte aligned. Every record starts
 * with its type, version and size, so that a reader passes over what it does not know, and a log
 * cut anywhere is readable up to the cut. Times are nanoseconds of CLOCK_REALTIME, as Kineto's. The
 * layout is described for others in doc/formats/log.md. */
#pragma once

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

    RECORD_CONNECTION = 16, /* transport: a connection's two ends */
    RECORD_CALL = 17,       /* transport: one socket call */
    RECORD_GLOO = 18,       /* transport: a gloo message's preamble */
    RECORD_ZMTP = 19,       /* transport: a ZeroMQ frame */
    RECORD_TOTAL = 20,      /* transport: bytes of a connection until it, or the window, ended */

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
    LOSS_RING_FULL = 1, /* the writer's memory was full */
    LOSS_LOG_FULL = 2,
    LOSS_WRITE_FAILED = 3,
    LOSS_NO_RING = 4,  /* more threads than there is room for */
    LOSS_NO_EVENT = 5, /* too many NCCL events open at once */
    /* these count something else than records: */
    LOSS_FRAMING = 6,       /* streams whose protocol could not be followed any further */
    LOSS_NO_CONNECTION = 7, /* connections beyond what there is room for */
};
#define N_LOSS_CAUSES 8

struct record_loss {
    struct record head;
    uint32_t cause; /* enum loss_cause */
    uint32_t reserved;
    uint64_t n_records; /* lost since the log's start; what LOSS_FRAMING and above say they count */
};

struct record_mark {
    struct record head;
    int64_t time_ns;
    char name[40]; /* NUL-padded: "timing", "/timing" (its end), ... */
};

/* ---- transport ---- */

enum connection_family { FAMILY_UNIX = 1, FAMILY_IPV4 = 4, FAMILY_IPV6 = 6 };
enum connection_protocol { PROTOCOL_UNKNOWN = 0, PROTOCOL_GLOO = 1, PROTOCOL_ZMTP = 2 };
enum connection_origin {
    ORIGIN_CONNECT = 1,
    ORIGIN_ACCEPT = 2,
    ORIGIN_PAIR = 3,  /* socketpair */
    ORIGIN_FOUND = 4, /* inherited, received from another process, or made where it was not seen */
};
enum connection_flags {
    CONNECTION_WHOLE = 1, /* seen from its first byte: offsets are the stream's own. Otherwise they
                             count from where the tracer first saw it */
};

/* The ends of a connection. It is written before or after the first record that refers to it, and
 * may come several times; what is known later (protocol) stands in the last one. */
struct record_connection {
    struct record head;
    int64_t time_ns;
    uint32_t connection; /* counted from 1 in this process, never used again */
    int32_t fd;          /* its first descriptor */
    uint32_t peer;    /* socketpair: the other end's number; 0: not in this process, or unknown */
    uint8_t family;   /* enum connection_family */
    uint8_t protocol; /* enum connection_protocol */
    uint8_t origin;   /* enum connection_origin */
    uint8_t flags;    /* enum connection_flags */
    uint16_t local_port, remote_port; /* host order; 0 for UNIX sockets */
    uint32_t scope;                   /* of link-local IPv6 addresses: the interface's number */
    uint64_t inode;                   /* of the socket */
    /* IPv4: 4 bytes, IPv6: 16 bytes, in network order; UNIX: the end of the path, abstract names
       with their leading NUL written as '@'; NUL-padded */
    uint8_t local[40], remote[40];
};

enum call_direction { DIRECTION_SEND = 0, DIRECTION_RECEIVE = 1 };
enum call_kind {
    CALL_READ = 1,
    CALL_READV,
    CALL_RECV,
    CALL_RECVFROM,
    CALL_RECVMSG,
    CALL_RECVMMSG,
    CALL_WRITE,
    CALL_WRITEV,
    CALL_SEND,
    CALL_SENDTO,
    CALL_SENDMSG,
    CALL_SENDMMSG,
    CALL_SENDFILE,
    CALL_SPLICE,
};
enum call_flags {
    /* Others ran on this stream at the same time, and which of them the kernel served first could
       not be told: their offsets may be exchanged. */
    CALL_ORDER_UNKNOWN = 1,
    CALL_DONTWAIT = 2, /* the call itself asked not to wait (MSG_DONTWAIT) */
    CALL_WAITALL = 4,  /* MSG_WAITALL */
};

/* One call that moved bytes: [offset, offset + returned) of this direction of the connection. */
struct record_call {
    struct record head;
    uint32_t connection;
    uint8_t direction; /* enum call_direction */
    uint8_t call;      /* enum call_kind */
    uint16_t flags;    /* enum call_flags */
    int64_t start_ns, end_ns;
    uint64_t offset;
    uint32_t requested; /* bytes; saturates */
    uint32_t returned;
};

/* A gloo message's first 48 bytes, seen whole. It is 48 + length bytes long when it carries data
 * (opcode 0 or 1), else 48. */
struct record_gloo {
    struct record head;
    uint32_t connection;
    uint8_t direction;
    uint8_t opcode; /* 0 data for a buffer, 1 data, 2 notify-send-ready, 3 notify-recv-ready */
    uint16_t reserved;
    uint64_t position;      /* stream offset of its first byte */
    uint64_t slot;          /* prefix << 56 | tag << 24 | delta */
    uint64_t length;        /* of the data, or of what is announced */
    uint64_t buffer_offset; /* where in the sender's buffer the data lies */
};

enum zmtp_flags { ZMTP_MORE = 1, ZMTP_LONG = 2, ZMTP_COMMAND = 4 };

/* A ZeroMQ frame of a connection whose greeting was seen. `body` holds the first n_body bytes of
 * the first two frames of a message (ps-lite: its meta data, in which the scheduler lists nodes,
 * and its keys), nothing of the others. */
#define ZMTP_BODY_MAX 424
#define ZMTP_KEYS_MAX 96
struct record_zmtp { /* its size ends with the body, rounded up to 8 */
    struct record head;
    uint32_t connection;
    uint8_t direction;
    uint8_t flags;     /* enum zmtp_flags */
    uint8_t index;     /* of the frame in its message; 255: 255 or more */
    uint8_t n_body;    /* 255: 255 or more, all of the body that the record has room for */
    uint64_t position; /* stream offset of the frame's flags byte */
    uint64_t length;   /* of the body on the wire */
    uint8_t body[ZMTP_BODY_MAX];
};

/* What had gone through a connection when it was closed, or when recording stopped. */
struct record_total {
    struct record head;
    int64_t time_ns;
    uint32_t connection;
    uint32_t closed; /* 1: it was closed; 0: recording stopped */
    uint64_t sent_bytes, received_bytes;
};

/* ---- NCCL ---- */

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

/* Numbers are the bits of NCCL's activation mask. From start to stop a collective, a p2p operation
 * and the calls are enqueued, no more: when they ran, their proxy ops and kernel channels tell. */
enum nccl_event {
    NCCL_GROUP = 0,
    NCCL_COLL = 1,
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
