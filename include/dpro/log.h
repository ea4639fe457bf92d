/* Messages and progress, handed to the caller's functions. */
#ifndef DPRO_LOG_H
#define DPRO_LOG_H

#include <stdint.h>

#include <dpro/error.h>

#ifdef __cplusplus
extern "C" {
#endif

enum dpro_log_level {
    DPRO_LOG_ERROR, /* stopped */
    DPRO_LOG_WARN,  /* the result is affected */
    DPRO_LOG_INFO,  /* stages and times */
    DPRO_LOG_DEBUG, /* per file */
    DPRO_LOG_TRACE, /* per op */
};

/* Called with one line of text, from any thread, one call at a time. */
typedef void dpro_log_fn(void *arg, enum dpro_log_level level, const char *text);

/* Called now and then while a long stage runs, from any thread, one call at a time. `done` and
 * `total` count in `unit` ("bytes", "ops"); total is 0 when unknown. */
typedef void dpro_progress_fn(void *arg, const char *stage, const char *unit, uint64_t done,
                              uint64_t total);

/* Where a stage's messages and progress go; zeroed = nowhere. */
struct dpro_sink {
    dpro_log_fn *log;
    dpro_progress_fn *progress;
    void *arg;
    enum dpro_log_level level; /* the most talkative level wanted */
};

#ifdef __cplusplus
}
#endif
#endif
