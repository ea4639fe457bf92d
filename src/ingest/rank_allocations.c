/* A rank's allocations from the parts of its files. Files list those of each thread or node in
 * order, one thread after the other: they are sorted by time, those of one time in the file's
 * order. */

#include "ingest/load.h"
#include "ingest/rank_job.h"

/* Dates them, and drops what leads beyond 64 bits: times, and the sum of all sizes (*total), so
 * that no sum of some of them does. */
static void allocations_check(struct trace_part *part, int64_t *total)
{
    size_t n = 0;
    for (size_t i = 0; i < part->allocations.n; i++) {
        struct trace_allocation allocation = part->allocations.at[i];
        int64_t sum, size = allocation.bytes < 0 ? -allocation.bytes : allocation.bytes;
        if (__builtin_add_overflow(allocation.ns, part->base_ns, &allocation.ns) ||
            !trace_time_fits(allocation.ns) || __builtin_add_overflow(*total, size, &sum)) {
            part->losses.n_allocations++;
            continue;
        }
        *total = sum;
        part->allocations.at[n++] = allocation;
    }
    part->allocations.n = n;
}

void rank_check_allocations(struct trace_build *build, struct rank_job *job)
{
    int64_t total = 0;
    for (size_t i = 0; i < job->n_sources; i++) {
        struct source *source = job->sources[i];
        struct trace_part *part = &source->part;
        uint64_t n_read = part->allocations.n + part->losses.n_allocations;
        allocations_check(part, &total);
        if (part->losses.n_allocations)
            rank_warn(build, job,
                      "%s: %s of %s memory events have no time or size that makes sense, skipped",
                      source->path, COUNT_TEXT(part->losses.n_allocations), COUNT_TEXT(n_read));
    }
}

static uint32_t track_of(const struct trace_rank *rank, const struct trace_part *part,
                         uint32_t track)
{
    if (track == NO_ID)
        return NO_ID;
    const struct trace_track *at = &part->tracks.at[track].track;
    return rank_find_track(rank, at->gpu, at->pid, at->id);
}

/* The same event written twice: at no one time is a block taken twice in a row. Of a block without
 * an address that can't be told. */
static bool is_twice(const struct trace_allocation *at, uint32_t n,
                     const struct trace_allocation *next)
{
    enum { MOST = 64 };
    for (uint32_t i = n; next->address && i > 0 && n - i < MOST && at[i - 1].ns == next->ns; i--)
        if (at[i - 1].address == next->address && at[i - 1].device == next->device)
            return at[i - 1].bytes == next->bytes;
    return false;
}

ORDER_OF_INDICES(by_time, struct trace_allocation, ASCENDING(ns));

void rank_join_allocations(struct rank_job *job)
{
    struct trace_rank *rank = job->rank;
    SCRATCH ARRAY(struct trace_allocation) all = {0};
    uint32_t window = 0;
    for (size_t s = 0; s < job->n_sources; s++) {
        const struct trace_part *part = &job->sources[s]->part;
        bool by_time = s >= job->n_windows || part->session.cuts.n > 0;
        for (size_t i = 0; i < part->allocations.n; i++) {
            struct trace_allocation allocation = part->allocations.at[i];
            allocation.track = track_of(rank, part, allocation.track);
            allocation.window = by_time ? trace_window_at(rank, allocation.ns) : window;
            array_push(&all, allocation);
        }
        window += part->session.cuts.n ? (uint32_t)part->session.cuts.n : 1;
    }
    SCRATCH uint32_t *order = sorted_indices(all.n, all.at, by_time);
    for (uint32_t i = 0; i < all.n; i++)
        if (is_twice(rank->allocations, rank->n_allocations, &all.at[order[i]]))
            job->n_duplicates++;
        else
            RANK_PUSH(rank, allocations, all.at[order[i]]);
}
