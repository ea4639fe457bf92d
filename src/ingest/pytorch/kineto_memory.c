/* What Kineto's profiles say about memory: blocks that were taken and given back ("[memory]"
 * instants), and which module ran when (the recorder's marks).
 *
 * Files list the instants of each thread in order, the threads one after the other. */
#include "ingest/pytorch/kineto.h"
#include "ingest/pytorch/kineto_words.h"

enum { DEVICE_CPU = 0 };

const struct kineto_memory kineto_no_memory = {
    .device_type = -1, .device_id = -1, .allocated_bytes = -1, .reserved_bytes = -1};

static int64_t total_of(int64_t bytes)
{
    return bytes >= 0 && bytes <= TRACE_BYTES_MAX ? bytes : -1;
}

/* -1: the CPU. */
static int32_t device_of(const struct kineto_memory *memory)
{
    if (memory->device_type == DEVICE_CPU || (memory->device_type < 0 && memory->device_id < 0))
        return -1;
    return memory->device_id >= 0 && memory->device_id <= INT32_MAX ? (int32_t)memory->device_id
                                                                    : 0;
}

void kineto_add_allocation(struct trace_part *part, uint32_t track, int64_t ts_ns,
                           const struct kineto_memory *memory)
{
    struct trace_allocation allocation = {.ns = ts_ns,
                                          .address = memory->address,
                                          .bytes = memory->bytes,
                                          .track = track,
                                          .device = device_of(memory),
                                          .allocated_bytes = total_of(memory->allocated_bytes),
                                          .reserved_bytes = total_of(memory->reserved_bytes)};
    part_add_allocation(part, &allocation);
}

void kineto_add_call(struct trace_part *part, uint32_t track, uint32_t name, int64_t start_ns,
                     int64_t end_ns)
{
    struct kineto_part *to = part_make_payload(part, &kineto_payload);
    size_t len = strtab_len(&part->names, name), n_module = len;
    const char *text = strtab_get(&part->names, name);
    if (!kineto_module(text, &n_module))
        return;
    array_add(&to->module_calls, .start_ns = start_ns, .end_ns = end_ns,
              .module = part_intern(part, text + (len - n_module), n_module), .track = track);
}

/* ---- joining ---- */

static bool memory_date(int64_t *ns, int64_t base_ns)
{
    return !__builtin_add_overflow(*ns, base_ns, ns) && trace_time_fits(*ns);
}

ORDER(by_start, struct trace_module_call,
      ASCENDING(start_ns) ?: DESCENDING(end_ns) ?: ASCENDING(module));

void kineto_join(struct rank_job *job)
{
    struct trace_rank *rank = job->rank;
    uint32_t window = 0;
    for (size_t w = 0; w < job->n_windows; w++) {
        const struct source *source = job->sources[w];
        const struct trace_part *part = &source->part;
        const struct kineto_part *of = part_payload(part, &kineto_payload);
        for (size_t i = 0; of && i < of->module_calls.n; i++) {
            struct trace_module_call call = of->module_calls.at[i];
            const struct trace_track *track = &part->tracks.at[call.track].track;
            if (!memory_date(&call.start_ns, part->base_ns) ||
                !memory_date(&call.end_ns, part->base_ns))
                continue; /* beyond 64 bits */
            call.track = rank_find_track(rank, false, track->pid, track->id);
            call.module = source->names[call.module];
            call.window = window;
            RANK_PUSH(rank, module_calls, call);
        }
        window += part->session.cuts.n ? (uint32_t)part->session.cuts.n : 1;
    }
    if (rank->n_module_calls)
        qsort(rank->module_calls, rank->n_module_calls, sizeof *rank->module_calls, by_start);
    kineto_join_flows(job);
}
