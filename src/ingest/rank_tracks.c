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
                         int64_t ts_ns, uint32_t near)
{
    uint32_t begin = track->first, end = begin + track->n, low = MIN(MAX(near, begin), end);
    uint32_t high = low;
    for (uint32_t by = 1; high < end && rank->spans[high].start_ns < ts_ns; by *= 2) {
        low = high + 1;
        high += MIN(by, end - high);
    }
    for (uint32_t by = 1; low > begin && rank->spans[low - 1].start_ns >= ts_ns; by *= 2) {
        high = low - 1;
        low -= MIN(by, low - begin);
    }
    return LOWER_BOUND(i, low, high, rank->spans[i].start_ns < ts_ns);
}
