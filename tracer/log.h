/* The log writer inside somebody else's process: a queue of small chunks per thread, filled without
 * locks, allocation or I/O, and one thread that empties the queues into a file.
 *
 * Records that do not fit are counted, never waited for. When the file can't be written, that is
 * said once on stderr and recording ends; the job goes on. A thread gets its queue when it records
 * for the first time; it goes to another one when that thread has ended. After fork the child
 * records nothing until it calls log_start itself. Everything the log does with files goes past
 * libc's functions, so that it is never seen by what is interposed there. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "record.h"

struct log_options {
    enum log_kind kind;
    int rank;           /* -1: unknown */
    uint64_t max_bytes; /* of the file; 0: 512 MiB */
    bool keep_newest; /* when full: drop the oldest (two segments, PATH.old and PATH), else stop */
    /* Called by the flusher at the start of every segment, the first one included, to write with
     * log_write_now what later records refer to; may be NULL. */
    void (*on_segment)(void);
};

/* Opens `path` and starts the flusher. Returns 0, or -errno; -EALREADY when recording. A log
 * stopped before with the same path is gone on with; any other file there is replaced. */
int log_start(const char *path, const struct log_options *options);
/* Empties the queues into the file and ends the flusher, waiting at most a second. Says on stderr,
 * once, when records were lost. */
void log_stop(void);
/* True between log_start and log_stop, cheap: what hooks look at first. */
bool log_on(void);

/* Room for a record in the calling thread's queue, NULL when there is none (counted). `size_bytes`
 * is a multiple of 8, at most LOG_RECORD_MAX. Filled in by the caller, head included; seen by the
 * flusher after log_commit. Safe in signal handlers: a record asked for while another one of this
 * thread is not committed yet is refused. errno is kept. */
#define LOG_RECORD_MAX 1024
void *log_reserve(size_t size_bytes);
void log_commit(void);
/* The head of a record of the calling thread. */
struct record log_head(enum record_type type, size_t size_bytes);
/* Counts a loss that log_reserve does not know of: LOSS_NO_EVENT and above. */
void log_count(enum loss_cause cause);
/* From on_segment only: straight into the file. */
void log_write_now(const void *record, size_t size_bytes);

int64_t log_now(void);     /* CLOCK_REALTIME, ns */
uint32_t log_thread(void); /* gettid, cached */
void log_mark(const char *name);
/* One line on stderr, "dpro: " before it; at most 400 bytes. */
void log_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

struct log_stats {
    uint64_t n_records, n_lost, file_bytes, memory_bytes; /* memory: what was used so far */
};
struct log_stats log_stats(void);
