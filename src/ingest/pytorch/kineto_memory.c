/* ingest/pytorch/kineto_memory.c: what Kineto's profiles tell of memory: blocks that were taken and
 * given back ("[memory]" instants), and which module ran when (the recorder's marks).
 *
 * Files list the instants of each thread in order, the threads one after the other. */
#include <inttypes.h>

#include "base/memory.h"
#include "base/sort.h"
#include "ingest/load.h"
#include "ingest/pytorch/kineto.h"
#include "ingest/pytorch/kineto_words.h"

enum { DEVICE_CPU = 0 };

/* No device is larger: 256 TiB. */
static const int64_t MAX_BYTES = INT64_C(1) << 48;

const struct kineto_memory kineto_no_memory = {
    .device_type = -1, .device_id = -1, .allocated_bytes = -1, .reserved_bytes = -1};

static int64_t total_of(int64_t bytes)
{
    return bytes >= 0 && bytes <= MAX_BYTES ? bytes : -1;
}

/* -1: the CPU. */
static int32_t device_of(const struct kineto_memory *memory)
{
    if (memory->device_type == DEVICE_CPU || (memory->device_type < 0 && memory->device_id < 0))
        return -1;
    return memory->device_id >= 0 && memory->device_id <= INT32_MAX ? (int32_t)memory->device_id
                                                                    : 0;
}

void kineto_add_allocation(struct kineto_part *to, uint32_t track, int64_t ts_ns,
                           const struct kineto_memory *memory)
{
    if (memory->bytes == 0 || memory->bytes > MAX_BYTES || memory->bytes < -MAX_BYTES) {
        to->n_bad_allocations++;
        return;
    }
    struct trace_allocation allocation = {.ns = ts_ns,
                                          .address = memory->address,
                                          .bytes = memory->bytes,
                                          .track = track,
                                          .device = device_of(memory),
                                          .allocated_bytes = total_of(memory->allocated_bytes),
                                          .reserved_bytes = total_of(memory->reserved_bytes)};
    if (to->allocations.n >= NO_ID - 1)
        mem_fail();
    array_push(&to->allocations, allocation);
}

void kineto_add_call(struct trace_part *part, uint32_t track, uint32_t name, int64_t start_ns,
                     int64_t end_ns)
{
    struct kineto_part *to = part_make_payload(part, &kineto_payload);
    size_t len = strtab_len(&part->names, name), n_module = len;
    const char *text = strtab_get(&part->names, name);
    if (!kineto_module(text, &n_module))
        return;
    struct trace_module_call call = {.start_ns = start_ns,
                                     .end_ns = end_ns,
                                     .module = part_intern(part, text + (len - n_module), n_module),
                                     .track = track};
    if (to->module_calls.n >= NO_ID - 1)
        mem_fail();
    array_push(&to->module_calls, call);
}

/* ---- joining ---- */

static bool date(int64_t *ns, int64_t base_ns)
{
    return !__builtin_add_overflow(*ns, base_ns, ns) && trace_time_fits(*ns);
}

/* Dates what the file tells, and drops what leads beyond 64 bits: times, and the sum of all sizes
 * (*total), so that no sum of some of them does. */
static void check(struct kineto_part *of, int64_t base_ns, int64_t *total)
{
    size_t n = 0;
    for (size_t i = 0; i < of->allocations.n; i++) {
        struct trace_allocation allocation = of->allocations.at[i];
        int64_t sum, size = allocation.bytes < 0 ? -allocation.bytes : allocation.bytes;
        if (!date(&allocation.ns, base_ns) || __builtin_add_overflow(*total, size, &sum)) {
            of->n_bad_allocations++;
            continue;
        }
        *total = sum;
        of->allocations.at[n++] = allocation;
    }
    of->allocations.n = n;
    n = 0;
    for (size_t i = 0; i < of->module_calls.n; i++) {
        struct trace_module_call call = of->module_calls.at[i];
        if (date(&call.start_ns, base_ns) && date(&call.end_ns, base_ns))
            of->module_calls.at[n++] = call;
    }
    of->module_calls.n = n;
}

void kineto_reserve_memory(struct trace_build *build, struct rank_job *job)
{
    size_t n_allocations = 0, n_calls = 0;
    int64_t total = 0;
    for (size_t w = 0; w < job->n_windows; w++) {
        struct source *source = job->sources[w];
        struct kineto_part *of = source_payload(source, &kineto_payload);
        char some[32], all[32];
        if (!of)
            continue;
        uint64_t n_read = of->allocations.n + of->n_bad_allocations;
        check(of, source->part.base_ns, &total);
        if (of->n_bad_allocations)
            build_warn(
                build, "%s: %s of %s memory events have no time or size that makes sense, skipped",
                source->path, count_text(some, of->n_bad_allocations), count_text(all, n_read));
        n_allocations += of->allocations.n;
        n_calls += of->module_calls.n;
    }
    if (n_allocations >= NO_ID || n_calls >= NO_ID)
        mem_fail();
    struct arena *arena = &build->trace->arena;
    job->rank->allocations = arena_alloc(arena, n_allocations * sizeof *job->rank->allocations);
    job->rank->module_calls = arena_alloc(arena, n_calls * sizeof *job->rank->module_calls);
}

static uint32_t track_of(const struct trace_rank *rank, const struct trace_part *part,
                         uint32_t track)
{
    const struct trace_track *at = &part->tracks.at[track].track;
    return rank_find_track(rank, false, at->pid, at->id);
}

ORDER_OF_INDICES(by_time, struct trace_allocation, ASCENDING(ns));
ORDER_OF_INDICES(by_start, struct trace_module_call, ASCENDING(start_ns) ?: DESCENDING(end_ns));

/* The order of n elements; equal ones stay in theirs. */
static uint32_t *order_of(void *elements, uint32_t n,
                          int (*compare)(const void *, const void *, void *))
{
    uint32_t *order = n ? mem_alloc(n * sizeof *order) : NULL;
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    if (n)
        qsort_r(order, n, sizeof *order, compare, elements);
    return order;
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

static void join_allocations(struct rank_job *job, const struct trace_allocation *all, uint32_t n)
{
    struct trace_rank *rank = job->rank;
    uint32_t *order = order_of((void *)all, n, by_time);
    for (uint32_t i = 0; i < n; i++)
        if (is_twice(rank->allocations, rank->n_allocations, &all[order[i]]))
            job->n_duplicates++;
        else
            rank->allocations[rank->n_allocations++] = all[order[i]];
    mem_free(order);
}

static void join_calls(struct trace_rank *rank, const struct trace_module_call *all, uint32_t n)
{
    uint32_t *order = order_of((void *)all, n, by_start);
    for (uint32_t i = 0; i < n; i++)
        rank->module_calls[rank->n_module_calls++] = all[order[i]];
    mem_free(order);
}

void kineto_join_memory(struct rank_job *job)
{
    const struct trace_rank *rank = job->rank;
    ARRAY(struct trace_allocation) allocations = {0};
    ARRAY(struct trace_module_call) calls = {0};
    uint32_t window = 0;
    for (size_t w = 0; w < job->n_windows; w++) {
        const struct source *source = job->sources[w];
        const struct kineto_part *of = part_payload(&source->part, &kineto_payload);
        for (size_t i = 0; of && i < of->allocations.n; i++) {
            struct trace_allocation allocation = of->allocations.at[i];
            allocation.track = track_of(rank, &source->part, allocation.track);
            allocation.window = window;
            array_push(&allocations, allocation);
        }
        for (size_t i = 0; of && i < of->module_calls.n; i++) {
            struct trace_module_call call = of->module_calls.at[i];
            call.track = track_of(rank, &source->part, call.track);
            call.module = source->names[call.module];
            call.window = window;
            array_push(&calls, call);
        }
        size_t n_cuts = source->part.session.cuts.n;
        window += n_cuts ? (uint32_t)n_cuts : 1;
    }
    join_allocations(job, allocations.at, (uint32_t)allocations.n);
    join_calls(job->rank, calls.at, (uint32_t)calls.n);
    array_fini(&allocations);
    array_fini(&calls);
}
