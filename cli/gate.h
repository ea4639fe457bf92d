/* Thresholds of --fail-on, such as 'exposed>15%,slow_rank>5ms'. */
#pragma once

#include <stdbool.h>

/* What has that name, in milliseconds and in percent of the iteration; false: it can't be told. */
typedef bool gate_value(const void *of, const char *name, double *ms, double *pct);

/* Whether all parse and have one of the names (NULL-terminated): 0; else CMD_USAGE, after having
 * said what is wrong and which names there are. */
int gate_parse(const char *thresholds, const char *const *names);
/* Says in one line which are exceeded, and by what value; returns CMD_CHECK_FAILED, or CMD_DONE. */
int gate_check(const char *thresholds, gate_value *value, const void *of);
