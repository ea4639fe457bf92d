/* Finding a rank's tracks, and spans on them by their start. */

#include "ingest/rank_job.h"

ORDER(track_order, struct trace_track, ASCENDING(gpu) ?: ASCENDING(pid) ?: ASCENDING(id));

int track_compare(const void *a, const void *b)
{
    return track_order(a, b);
}

void rank_make_room(struct trace_rank *rank, uint64_t n_tracks, uint64_t n_spans,
                    uint64_t n_details)
{
    n_tracks += rank->n_tracks;
    n_spans += rank->n_spans;
    n_details += rank->n_details;
    if (MAX(n_spans, n_details) >= NO_ID)
        mem_fail();
    rank->tracks = mem_resize(rank->tracks, n_tracks, sizeof *rank->tracks);
    rank->spans = mem_resize(rank->spans, n_spans, sizeof *rank->spans);
    rank->details = mem_resize(rank->details, n_details, sizeof *rank->details);
}

void rank_add_track(struct trace_rank *rank, uint32_t name)
{
    uint32_t t = rank->n_tracks++;
    rank->tracks[t] =
        (struct trace_track){.pid = rank->pid, .id = t, .name = name, .first = rank->n_spans};
}

void rank_add_span(struct trace_rank *rank, struct trace_span span,
                   const struct trace_detail *detail)
{
    span.track = rank->n_tracks - 1;
    if (detail) {
        span.detail = rank->n_details;
        rank->details[rank->n_details++] = *detail;
    }
    rank->spans[rank->n_spans++] = span;
    rank->tracks[span.track].n++;
}

uint32_t rank_find_track(const struct trace_rank *rank, bool gpu, uint64_t pid, int64_t id)
{
    struct trace_track key = {.gpu = gpu, .pid = pid, .id = id};
    const struct trace_track *found =
        bsearch(&key, rank->tracks, rank->n_tracks, sizeof *rank->tracks, track_order);
    return found ? (uint32_t)(found - rank->tracks) : NO_ID;
}

uint32_t rank_first_from(const struct trace_rank *rank, const struct trace_track *track,
                         int64_t ts_ns)
{
    return LOWER_BOUND(i, track->first, track->first + track->n, rank->spans[i].start_ns < ts_ns);
}

/* ---- profiles that count from their own start ----
 *
 * TensorFlow before 2.13 does not write when its profile began. dpro's recorder timed the same
 * steps by the clock of the logs, so that the difference is the same for each of them, but for what
 * the two calls took. */

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
