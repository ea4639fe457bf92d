/* Of a file that ends early the segments are not taken: they are as they were after requests that
 * are missing. Entries of private pools (of CUDA graphs) are no requests of the allocator's other
 * pools and stay out of the histories, but are allocations. */
#include "ingest/pytorch/snapshot.h"

#include "ingest/load.h"

/* ---- devices ---- */

struct devices {
    struct snapshot_part *of;
    struct map by_list;   /* map_key(list of device_traces) -> number */
    int32_t otherwise;    /* of an entry whose list did not end */
    ARRAY(int32_t) those; /* there is something of; ascending */
};

static int32_t device_of(const struct devices *devices, const struct snapshot_entry *entry)
{
    uint64_t otherwise = (uint64_t)devices->otherwise;
    return entry->list == NO_ID
               ? devices->otherwise
               : (int32_t)map_or(&devices->by_list, map_key(entry->list), otherwise);
}

static int32_t device_number(int64_t device)
{
    return device >= 0 && device <= INT32_MAX ? (int32_t)device : 0;
}

static void add_device(struct devices *devices, struct map *seen, int32_t device)
{
    if (map_insert(seen, map_key((uint64_t)device), 1))
        array_push(&devices->those, device);
}

ORDER(by_number, int32_t, COMPARE(*x, *y));

static void find_devices(struct devices *devices)
{
    struct snapshot_part *of = devices->of;
    SCRATCH struct map seen = {0};
    uint64_t n = 0;
    for (size_t i = 0; i < of->lists.n; i++)
        if (of->lists.at[i].in == of->device_traces && n < INT32_MAX)
            map_set(&devices->by_list, map_key(of->lists.at[i].list), n++);
    if (of->segments.n)
        devices->otherwise = device_number(of->segments.at[0].device);
    for (size_t i = 0; i < of->entries.n; i++) {
        of->entries.at[i].device = device_of(devices, &of->entries.at[i]);
        add_device(devices, &seen, of->entries.at[i].device);
    }
    for (size_t i = 0; i < of->segments.n && of->whole; i++)
        add_device(devices, &seen, device_number(of->segments.at[i].device));
    array_sort(&devices->those, by_number);
}

/* ---- streams ---- */

typedef ARRAY(uint64_t) stream_handles;

/* Sorts them, each once. */
static void number_streams(stream_handles *handles)
{
    size_t n = 0;
    sort_u64(handles->at, handles->n);
    for (size_t i = 0; i < handles->n; i++)
        if (i == 0 || handles->at[i] != handles->at[i - 1])
            handles->at[n++] = handles->at[i];
    handles->n = n;
}

static uint32_t stream_number(const stream_handles *handles, int64_t handle)
{
    return (uint32_t)LOWER_BOUND(i, (size_t)0, handles->n, handles->at[i] < (uint64_t)handle);
}

/* ---- histories ---- */

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

ORDER(by_address, struct allocator_segment, ASCENDING(address));

static void take_segments(struct allocator_history *history, const struct snapshot_part *of,
                          const stream_handles *streams)
{
    EACH (const struct snapshot_segment, from, of->segments) {
        if (!of->whole || device_number(from->device) != history->device)
            continue;
        struct allocator_segment segment = from->is;
        segment.stream = stream_number(streams, from->stream);
        segment.first_block = history->n_blocks;
        memcpy(history->blocks + history->n_blocks, of->blocks.at + from->is.first_block,
               segment.n_blocks * sizeof *history->blocks);
        history->n_blocks += segment.n_blocks;
        history->segments[history->n_segments++] = segment;
    }
    if (history->n_segments)
        qsort(history->segments, history->n_segments, sizeof *history->segments, by_address);
}

static void take_entries(struct allocator_history *history, const struct snapshot_part *of,
                         const stream_handles *streams)
{
    EACH (const struct snapshot_entry, entry, of->entries) {
        if (entry->private_pool || entry->device != history->device)
            continue;
        struct allocator_request request = entry->is;
        request.stream = stream_number(streams, entry->stream);
        history->requests[history->n_requests++] = request;
    }
}

void snapshot_fill(struct arena *arena, const struct snapshot_part *of,
                   struct allocator_history *history)
{
    SCRATCH stream_handles streams = {0};
    size_t n_requests = 0, n_segments = 0, n_blocks = 0;
    array_push(&streams, (uint64_t)(0));
    EACH (const struct snapshot_entry, entry, of->entries) {
        if (entry->private_pool || entry->device != history->device)
            continue;
        array_push(&streams, (uint64_t)(entry->stream));
        n_requests++;
    }
    for (size_t i = 0; i < of->segments.n && of->whole; i++) {
        if (device_number(of->segments.at[i].device) != history->device)
            continue;
        array_push(&streams, (uint64_t)(of->segments.at[i].stream));
        n_segments++;
        n_blocks += of->segments.at[i].is.n_blocks;
    }
    number_streams(&streams);
    history->requests = arena_alloc(arena, n_requests * sizeof *history->requests);
    history->segments = arena_alloc(arena, n_segments * sizeof *history->segments);
    history->blocks = arena_alloc(arena, n_blocks * sizeof *history->blocks);
    take_segments(history, of, &streams);
    take_entries(history, of, &streams);
}

static void join_histories(struct trace_build *build, struct rank_job *job,
                           const struct source *source)
{
    struct trace_rank *rank = job->rank;
    struct snapshot_part *of = part_payload(&source->part, &snapshot_payload);
    struct arena *arena = &build->trace->arena;
    struct devices devices = {.of = of};
    struct allocator_settings settings;
    find_devices(&devices);
    set_settings(build, job, source, of, &settings);
    rank->allocators = arena_array(arena, devices.those.n, sizeof *rank->allocators);
    for (size_t d = 0; d < devices.those.n; d++) {
        struct allocator_history *history = &rank->allocators[rank->n_allocators++];
        history->settings = settings;
        history->device = devices.those.at[d];
        snapshot_fill(arena, of, history);
    }
    if (of->n_broken)
        rank_warn(build, job, "%s: %s entries, segments or blocks make no sense, skipped",
                  source->path, COUNT_TEXT(of->n_broken));
    FREE_ALL(&devices.by_list, &devices.those);
}

void snapshot_describe(struct trace_build *build, struct rank_job *job)
{
    job->snapshot = job_source(build, job, &snapshot_payload, "another memory snapshot of", "");
    if (job->snapshot)
        join_histories(build, job, job->snapshot);
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
static void join_change(struct totals *totals, const struct allocator_request *request, int sign)
{
    enum { UNIT = 512 };
    int64_t bytes = sign * (int64_t)request->bytes;
    int64_t taken = sign * ((int64_t)MAX(request->bytes, 1) + UNIT - 1) / UNIT * UNIT;
    switch ((enum allocator_act)request->what) {
    case ALLOCATOR_TAKE:
        totals->allocated_bytes += taken;
        break;
    case ALLOCATOR_GIVE_REQUESTED:
        totals->allocated_bytes -= taken;
        break;
    case ALLOCATOR_SEGMENT_TAKEN:
    case ALLOCATOR_MAPPED:
        totals->reserved_bytes += bytes;
        break;
    case ALLOCATOR_SEGMENT_GIVEN:
    case ALLOCATOR_UNMAPPED:
        totals->reserved_bytes -= bytes;
        break;
    default:
        break;
    }
}

/* Before the first entry: what is there in the end, with all entries undone. */
static void find_totals(const struct snapshot_part *of, totals_array *all)
{
    for (size_t i = 0; i < of->segments.n; i++) {
        const struct allocator_segment *segment = &of->segments.at[i].is;
        struct totals *totals = totals_of(all, device_number(of->segments.at[i].device));
        totals->reserved_bytes += (int64_t)segment->size_bytes;
        for (uint32_t b = 0; b < segment->n_blocks; b++)
            if (of->blocks.at[segment->first_block + b].state == ALLOCATOR_TAKEN)
                totals->allocated_bytes +=
                    (int64_t)of->blocks.at[segment->first_block + b].size_bytes;
    }
    for (size_t i = 0; i < of->entries.n; i++)
        join_change(totals_of(all, of->entries.at[i].device), &of->entries.at[i].is, -1);
}

/* Whether all sizes together fit 64 bits, with room for units. */
static bool sums_fit(const struct snapshot_part *of)
{
    int64_t sum = 0;
    bool fits = true;
    for (size_t i = 0; i < of->entries.n && fits; i++)
        fits = !__builtin_add_overflow(sum, (int64_t)of->entries.at[i].is.bytes + 1024, &sum);
    for (size_t i = 0; i < of->segments.n && fits; i++)
        fits = !__builtin_add_overflow(sum, 2 * (int64_t)of->segments.at[i].is.size_bytes, &sum);
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
        int64_t bytes = (int64_t)entry->is.bytes;
        bool takes = entry->is.what == ALLOCATOR_TAKE;
        join_change(totals, &entry->is, 1);
        if ((!takes && entry->is.what != ALLOCATOR_GIVE_REQUESTED) || bytes == 0 ||
            entry->is.ns == 0)
            continue;
        last_ns = MAX(last_ns, entry->is.ns);
        RANK_PUSH(rank, allocations,
                  (struct trace_allocation){
                      .ns = last_ns,
                      .address = entry->is.id,
                      .bytes = takes ? bytes : -bytes,
                      .track = NO_ID,
                      .device = entry->device,
                      .window = trace_window_at(rank, last_ns),
                      .allocated_bytes = of->whole ? MAX(totals->allocated_bytes, -1) : -1,
                      .reserved_bytes = of->whole ? MAX(totals->reserved_bytes, -1) : -1});
    }
}
