/* What people write with a unit. For option tables: false when it can't be read. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* A rate in bytes a second (double): bits ("1gbit", "100Gbit/s", "10Gbps", "10 Gb/s") or bytes
 * ("12.5GB/s", "900MiB/s"). */
bool units_read_rate(const char *text, void *field);

/* "1.2x" as a ratio (double) of 0 or more. */
bool units_read_ratio(const char *text, double *ratio);

/* Microseconds, milliseconds, nanoseconds ("10us", "0.5ms", "200ns") as ns. */
bool units_read_ns(const char *text, double *ns);

/* Megabytes as PyTorch counts them, 1048576 bytes ("5", "0.5"), above 0, as bytes. */
bool units_read_mb(const char *text, double *bytes);

/* A size above 0: plain bytes ("4096"), or with a unit ("16GiB", "500MB", "0.5 TB"). */
bool units_read_bytes(const char *text, uint64_t *bytes);

/* "80%" as 0.8; above 0. */
bool units_read_percent(const char *text, double *share);

/* Splits text before the first or last `mark`: copies the left side into out; the right side, or
 * NULL when there is no mark, goes to *right. False when it does not fit. */
bool units_split(const char *text, char mark, bool last, char *out, unsigned size,
                 const char **right);
