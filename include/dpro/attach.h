/* Recording PyTorch jobs that run already.
 *
 * Processes started with KINETO_USE_DAEMON=1 ask a local daemon every five seconds whether they
 * should profile themselves. This is that daemon: it tells all of them to record the same span of
 * time, and makes a trace directory of the files they write. */
#ifndef DPRO_ATTACH_H
#define DPRO_ATTACH_H

#include <stddef.h>
#include <stdint.h>

#include <dpro/error.h>
#include <dpro/log.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dpro_attach_options {
    size_t size;          /* of the struct (error.h) */
    int64_t pid;          /* only this process and those it started; 0: all */
    uint32_t duration_ms; /* of the recording; 0: 2000 */
    uint32_t delay_ms;    /* from the first process that asks to the recording's start, in which the
                             others ask; 0: 10000, at least DPRO_ATTACH_MIN_DELAY_MS */
    uint32_t wait_ms;     /* for the first process; 0: 30000 */
    int (*stop)(void *arg); /* called several times a second, non-zero ends it; may be NULL */
    void *stop_arg;
    struct dpro_sink sink; /* INFO: what happens; WARN: what went wrong with one process */
};

enum { DPRO_ATTACH_MIN_DELAY_MS = 8000 };

struct dpro_attach_result {
    size_t n_processes; /* that were told to record */
    size_t n_ranks;     /* whose traces are there */
    size_t n_pending;   /* that had not written theirs when it was stopped */
    int world_size;     /* 0: unknown */
};

/* Records into the trace directory `path`, which dpro_recording_prepare made. Returns when all
 * traces are written, or can't be expected any more. DPRO_EEMPTY when no process asked or none left
 * a trace; DPRO_EIO when another daemon is there; DPRO_ECANCEL when it was stopped before any
 * process was told to record, DPRO_EUSAGE when the options are those of a later version. */
DPRO_API int dpro_attach(const char *path, const struct dpro_attach_options *options,
                         struct dpro_attach_result *result, struct dpro_error *err);

#ifdef __cplusplus
}
#endif
#endif
