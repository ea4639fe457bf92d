/* Handing messages and progress to the caller's functions. */
#pragma once

#include <dpro/log.h>

/* Formats one line and hands it over when `sink` wants that level; from any thread, one call at a
 * time. A NULL sink is one that wants nothing. */
void log_line(const struct dpro_sink *sink, enum dpro_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

void log_progress(const struct dpro_sink *sink, const char *stage, const char *unit, uint64_t done,
                  uint64_t total);
/* The same for stages with several threads: `more` is done beyond *done, which is counted only if
 * somebody watches. So calls come in order. */
void log_progress_more(const struct dpro_sink *sink, const char *stage, const char *unit,
                       uint64_t *done, uint64_t more, uint64_t total);
