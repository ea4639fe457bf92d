/* A snapshot's settings of the allocator, and, where the profile has no allocations of a GPU, those
 * of the snapshot. Of a file that ends early the segments are not used: they are as they were after
 * requests that are missing. */
#include "ingest/pytorch/snapshot.h"

#include "ingest/load.h"

static int32_t device_number(int64_t device)
{
    return device >= 0 && device <= INT32_MAX ? (int32_t)device : 0;
}

/* An entry's device is told by the list that it stands in: the n-th list is the n-th device's.
 * Where a list is cut off, its entries get the first segment's device. */
static void find_devices(struct snapshot_part *of)
{
    SCRATCH struct map by_list = {0};
    uint64_t n = 0, otherwise = 0;
    for (size_t i = 0; i < of->lists.n; i++)
        if (of->lists.at[i].in == of->device_traces && n < INT32_MAX)
            map_set(&by_list, map_key(of->lists.at[i].list), n++);
    if (of->segments.n)
        otherwise = (uint64_t)device_number(of->segments.at[0].device);
    EACH (struct snapshot_entry, entry, of->entries)
        entry->device =
            (int32_t)(entry->list == NO_ID ? otherwise
                                           : map_or(&by_list, map_key(entry->list), otherwise));
}

static void set_settings(struct trace_build *build, struct rank_job *job,
                         const struct source *source, const struct snapshot_part *of,
                         struct allocator_settings *settings)
{
    const char *conf = strtab_get(&build->trace->names, source->names[of->conf]);
    *settings = allocator_settings_default();
    if (of->has_settings)
        *settings = allocator_settings_read(build, job, source->path, conf);
    if (of->max_split_bytes >= 0)
        settings->max_split_bytes = (uint64_t)of->max_split_bytes;
    else if (of->max_split_bytes == -1)
        settings->max_split_bytes = ALLOCATOR_UNLIMITED;
    if (of->collection >= 0)
        settings->garbage_collection_threshold = of->collection;
    if (of->expandable >= 0)
        settings->expandable_segments = of->expandable;
}

void snapshot_describe(struct trace_build *build, struct rank_job *job)
{
    struct source *source = job->snapshot =
        job_source(build, job, &snapshot_payload, "another memory snapshot of", "");
    if (!source)
        return;
    struct snapshot_part *of = part_payload(&source->part, &snapshot_payload);
    struct allocator_settings *settings = arena_array(&build->trace->arena, 1, sizeof *settings);
    find_devices(of);
    set_settings(build, job, source, of, settings);
    job->rank->snapshot_settings = settings;
    if (of->n_broken)
        rank_warn(build, job, "%s: %s entries, segments or blocks make no sense, skipped",
                  source->path, COUNT_TEXT(of->n_broken));
}

/* ---- allocations ---- */

static bool tells_of_gpus(const struct trace_rank *rank)
{
    for (uint32_t i = 0; i < rank->n_allocations; i++)
        if (rank->allocations[i].device >= 0)
            return true;
    return false;
}

/* What a device's allocator has at a time. */
struct totals {
    int32_t device;
    int64_t allocated_bytes, reserved_bytes; /* below 0: not known */
};
typedef ARRAY(struct totals) totals_array;

static struct totals *totals_of(totals_array *all, int32_t device)
{
    for (size_t i = 0; i < all->n; i++)
        if (all->at[i].device == device)
            return &all->at[i];
    array_add(all, .device = device);
    return &all->at[all->n - 1];
}

/* Adds what an entry changes, or with sign -1 undoes it. Blocks take whole units; what is left of
 * one that was not split is not in the record. */
static void join_change(struct totals *totals, const struct snapshot_entry *entry, int sign)
{
    enum { UNIT = 512 };
    int64_t bytes = sign * (int64_t)entry->bytes;
    int64_t taken = sign * ((int64_t)MAX(entry->bytes, 1) + UNIT - 1) / UNIT * UNIT;
    switch ((enum snapshot_act)entry->what) {
    case SNAPSHOT_TAKE:
        totals->allocated_bytes += taken;
        break;
    case SNAPSHOT_GIVE:
        totals->allocated_bytes -= taken;
        break;
    case SNAPSHOT_SEGMENT_TAKEN:
        totals->reserved_bytes += bytes;
        break;
    case SNAPSHOT_SEGMENT_GIVEN:
        totals->reserved_bytes -= bytes;
        break;
    }
}

/* Before the first entry: what is there in the end, with all entries undone. */
static void find_totals(const struct snapshot_part *of, totals_array *all)
{
    EACH (const struct snapshot_segment, segment, of->segments) {
        struct totals *totals = totals_of(all, device_number(segment->device));
        totals->reserved_bytes += (int64_t)segment->bytes;
        totals->allocated_bytes += (int64_t)segment->taken_bytes;
    }
    EACH (const struct snapshot_entry, entry, of->entries)
        join_change(totals_of(all, entry->device), entry, -1);
}

/* Whether all sizes together fit 64 bits, with room for units. */
static bool sums_fit(const struct snapshot_part *of)
{
    int64_t sum = 0;
    bool fits = true;
    for (size_t i = 0; i < of->entries.n && fits; i++)
        fits = !__builtin_add_overflow(sum, (int64_t)of->entries.at[i].bytes + 1024, &sum);
    for (size_t i = 0; i < of->segments.n && fits; i++)
        fits = !__builtin_add_overflow(sum, 2 * (int64_t)of->segments.at[i].bytes, &sum);
    return fits;
}

/* Their order is sure, their times are whole microseconds. */
void snapshot_join(struct rank_job *job)
{
    struct trace_rank *rank = job->rank;
    struct source *source = job->snapshot;
    SCRATCH totals_array all = {0};
    if (!source || tells_of_gpus(rank))
        return;
    const struct snapshot_part *of = part_payload(&source->part, &snapshot_payload);
    rank->n_allocations = 0;
    if (!sums_fit(of))
        return;
    int64_t last_ns = INT64_MIN;
    if (of->whole)
        find_totals(of, &all);
    EACH (const struct snapshot_entry, entry, of->entries) {
        struct totals *totals = totals_of(&all, entry->device);
        int64_t bytes = (int64_t)entry->bytes;
        bool takes = entry->what == SNAPSHOT_TAKE;
        join_change(totals, entry, 1);
        if ((!takes && entry->what != SNAPSHOT_GIVE) || bytes == 0 || entry->ns == 0)
            continue;
        last_ns = MAX(last_ns, entry->ns);
        RANK_PUSH(rank, allocations,
                  (struct trace_allocation){
                      .ns = last_ns,
                      .address = entry->address,
                      .bytes = takes ? bytes : -bytes,
                      .track = NO_ID,
                      .device = entry->device,
                      .window = trace_window_at(rank, last_ns),
                      .allocated_bytes = of->whole ? MAX(totals->allocated_bytes, -1) : -1,
                      .reserved_bytes = of->whole ? MAX(totals->reserved_bytes, -1) : -1});
    }
}
