/* log.h: the log writer inside somebody else's process: a ring per thread, filled without locks,
 * allocation or system calls, and one thread that empties the rings into a file.
 *
 * Records that do not fit are counted, never waited for. When the file can't be written, that is
 * said once on stderr and recording ends; the job goes on. Rings are mapped when a thread records
 * for the first time and go to the next thread when theirs ended. After fork the child records
 * nothing until it calls log_start itself. */
#ifndef TRACER_LOG_H
#define TRACER_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "record.h"

struct log_options {
    enum log_kind kind;
    int rank;           /* -1: unknown */
    uint64_t max_bytes; /* of the file; 0: 512 MiB */
    bool keep_newest;   /* when full: drop the oldest (two segments, PATH.old and PATH), else stop */
    /* Called by the flusher at the start of every segment, to write again with log_write_now what
     * later records refer to; may be NULL. */
    void (*on_segment)(void);
};

/* Opens `path` and starts the flusher. Returns 0, or -errno; -EALREADY when recording. A log stopped
 * before with the same path is gone on with. */
int log_start(const char *path, const struct log_options *options);
/* Empties the rings into the file and ends the flusher, waiting at most a second. */
void log_stop(void);
/* True between log_start and log_stop, cheap: what hooks look at first. */
bool log_on(void);

/* Room for a record in the calling thread's ring, NULL when there is none (counted). Filled in by the
 * caller, head included; seen by the flusher after log_commit. Safe in signal handlers: a record
 * asked for while another one of this thread is not committed yet is refused. */
void *log_reserve(size_t size_bytes);
void log_commit(void);
/* From on_segment only: straight into the file. */
void log_write_now(const void *record, size_t size_bytes);

int64_t log_now(void); /* CLOCK_REALTIME, ns */
uint32_t log_thread(void); /* gettid, cached */
void log_mark(const char *name);

struct log_stats {
    uint64_t n_records, n_lost, file_bytes, memory_bytes; /* memory: rings mapped */
};
struct log_stats log_stats(void);

#endif
