/* Hands log lines to the caller's sinks.
 *
 * One lock for all sinks, as two sinks may write to the same terminal. */

#include <pthread.h>

#include "base/utf8.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void log_line(const struct dpro_sink *sink, enum dpro_log_level level, const char *format, ...)
{
    if (!sink || !sink->log || level > sink->level)
        return;
    char raw[2048], text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(raw, sizeof raw, format, args);
    va_end(args);
    utf8_escape(text, sizeof text, raw, strlen(raw));
    struct memory_frame *frame = memory_step_out();
    pthread_mutex_lock(&lock);
    sink->log(sink->arg, level, text);
    pthread_mutex_unlock(&lock);
    memory_step_in(frame);
}

void log_progress_more(const struct dpro_sink *sink, const char *stage, const char *unit,
                       uint64_t *done, uint64_t more, uint64_t total)
{
    if (!sink || !sink->progress)
        return;
    struct memory_frame *frame = memory_step_out();
    pthread_mutex_lock(&lock);
    *done += more;
    sink->progress(sink->arg, stage, unit, *done, total);
    pthread_mutex_unlock(&lock);
    memory_step_in(frame);
}

void log_progress(const struct dpro_sink *sink, const char *stage, const char *unit, uint64_t done,
                  uint64_t total)
{
    uint64_t before = 0;
    log_progress_more(sink, stage, unit, &before, done, total);
}
