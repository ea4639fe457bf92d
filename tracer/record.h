/* record.h: the records of dpro's binary logs: what the transport tracer and the NCCL profiler
 * plugin write, and ingest reads. Shared by tracer/ and src/ingest/, and by nothing else.
 *
 * A log is a header, then records in no guaranteed order: each thread's records are in order, those
 * of two threads are as the flusher found them. Little-endian, 8-byte aligned. Every record starts
 * with its type, version and size, so that a reader passes over what it does not know, and a log cut
 * anywhere is readable up to the cut. Times are nanoseconds of CLOCK_REALTIME, as Kineto's. The
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
    int32_t rank;         /* -1: was not known */
    uint32_t segment;     /* how many older parts of this log were dropped or rotated away before */
    uint64_t net_ns;      /* inode of the network namespace: two processes with the same one share
                             addresses, loopback too; 0: unknown */
    uint64_t time_ns;     /* inode of the time namespace */
    char boot_id[40];     /* of the machine: processes with the same one share its clocks */
    char host[64];
};

enum record_type {
    RECORD_ANCHOR = 1, /* one instant on three clocks */
    RECORD_LOSS = 2,   /* records that could not be kept */
    RECORD_MARK = 3,   /* a window's start or end, a step's */
    RECORD_STRING = 4, /* text with a number, referred to by later records of this log */

    RECORD_CONNECTION = 16, /* transport: a connection's two ends; again at the start of a segment */
    RECORD_CALL = 17,       /* transport: one socket call */
    RECORD_GLOO = 18,       /* transport: a gloo message's preamble */
    RECORD_ZMTP = 19,       /* transport: a ZeroMQ frame */

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

enum loss_cause { LOSS_RING_FULL = 1, LOSS_LOG_FULL = 2, LOSS_WRITE_FAILED = 3, LOSS_NO_RING = 4 };

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

#endif
