/* Whether times count since the epoch, and putting those that don't on the clock of the rank's
 * logs. */
#pragma once

#include "ingest/trace.h"

/* Whether a time is since the epoch (after 2001) rather than since some boot or start. */
static inline bool time_on_epoch(int64_t ns)
{
    return ns >= 1000000000LL * 1000000000;
}
bool rank_on_epoch(const struct trace_rank *rank);
void rank_shift(struct trace_rank *rank, int64_t by_ns);
/* Puts a profile without a date on the recorder's clock. */
void rank_put_on_epoch(struct trace_rank *rank);
