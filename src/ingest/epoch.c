/* Puts profiles that count from their own start on the clock of the rank's logs.
 *
 * TensorFlow before 2.13 does not write when its profile began. dpro's recorder timed the same
 * steps by the clock of the logs, so that the difference is the same for each of them, but for what
 * the two calls took. */
#include "ingest/epoch.h"

void rank_shift(struct trace_rank *rank, int64_t by_ns)
{
    for (uint32_t i = 0; i < rank->n_spans; i++)
        rank->spans[i].start_ns += by_ns;
    for (uint32_t w = 0; w < rank->n_windows; w++) {
        rank->windows[w].start_ns += by_ns;
        rank->windows[w].end_ns += by_ns;
        rank->windows[w].whole_start_ns += by_ns;
        rank->windows[w].whole_end_ns += by_ns;
    }
}

bool rank_on_epoch(const struct trace_rank *rank)
{
    return rank->n_windows == 0 || time_on_epoch(rank->windows[0].start_ns);
}

/* By the median difference of the steps of equal number. */
void rank_put_on_epoch(struct trace_rank *rank)
{
    const struct recording *recording = rank->recording;
    if (rank_on_epoch(rank) || !recording || recording->steps.n == 0)
        return;
    SCRATCH int64_t *differences = mem_alloc((recording->steps.n + 1) * sizeof *differences);
    size_t n = 0;
    for (uint32_t i = 0; i < rank->n_spans && n < recording->steps.n; i++) {
        const struct trace_span *span = &rank->spans[i];
        for (size_t s = 0; span->kind == SPAN_STEP && s < recording->steps.n; s++)
            if (recording->steps.at[s].number == span->sequence) {
                differences[n++] = recording->steps.at[s].start_ns - span->start_ns;
                break;
            }
    }
    if (n > 0) {
        int64_t by_ns = stats_median_upper_i64(differences, n);
        if (by_ns >= 0 && by_ns < TRACE_TIME_MAX / 2)
            rank_shift(rank, by_ns);
    }
}
