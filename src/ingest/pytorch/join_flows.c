/* What Kineto's profiles tell beside spans: flows between the spans that they bind (from a forward
 * op to its backward op, from a launch to what it launched); blocks of memory that were taken and
 * given back ("[memory]" instants: those of each thread in order, the threads one after the other);
 * which module ran when (the recorder's marks). */
#include "ingest/pytorch/kineto.h"

#include "ingest/pytorch/kineto_words.h"

#define AT(member) offsetof(struct kineto_part, member)
const struct payload_kind kineto_payload = {
    sizeof(struct kineto_part), .of_spans = true,
    .arrays = {AT(rows), AT(processes), AT(links), AT(launches), AT(module_calls)}};

/* The CPU op that a fwdbwd flow is bound to: of those that start just then the innermost that
 * autograd numbered, else the innermost; else the one around. */
static uint32_t op_at(const struct trace_rank *rank, uint32_t t, int64_t ts_ns)
{
    const struct trace_track *track = &rank->tracks[t];
    uint32_t first = rank_first_from(rank, track, ts_ns), best = NO_ID;
    uint32_t end = track->first + track->n;
    for (uint32_t i = first; i < end && rank->spans[i].start_ns == ts_ns; i++)
        if (rank->spans[i].kind == SPAN_CPU_OP &&
            (best == NO_ID || rank->spans[i].sequence >= 0 || rank->spans[best].sequence < 0))
            best = i;
    if (best != NO_ID || first == track->first)
        return best;
    for (uint32_t i = first - 1; i != NO_ID; i = rank->spans[i].parent) {
        const struct trace_span *span = &rank->spans[i];
        if (span->kind == SPAN_CPU_OP && span_end_ns(span) >= ts_ns)
            return i;
    }
    return NO_ID;
}

static void join_links(struct trace_rank *rank, const struct trace_part *part,
                       const struct kineto_part *flows)
{
    SCRATCH struct map starts = {0};
    for (int pass = 0; pass < 2; pass++) {
        EACH (const struct kineto_flow, flow, flows->links) {
            const struct trace_track *at = &part->tracks.at[flow->track].track;
            uint32_t t = rank_find_track(rank, false, at->pid, at->id);
            uint64_t from;
            int64_t ts_ns;
            if (flow->start != (pass == 0) || t == NO_ID ||
                __builtin_add_overflow(flow->ts_ns, part->base_ns, &ts_ns))
                continue;
            if (pass == 1 && !map_get(&starts, flow->id + 1, &from))
                continue;
            uint32_t op = op_at(rank, t, ts_ns);
            if (op == NO_ID || flow->id + 1 == 0)
                continue;
            if (pass == 0)
                map_set(&starts, flow->id + 1, op);
            else
                RANK_PUSH(rank, links, (struct trace_link){(uint32_t)from, op});
        }
    }
}

/* Files whose spans carry no correlation: launch flows tell it, at the start of both ends. */
static void join_launches(struct trace_rank *rank, const struct trace_part *part,
                          const struct kineto_part *flows)
{
    if (flows->has_correlation)
        return;
    EACH (const struct kineto_flow, flow, flows->launches) {
        const struct trace_track *at = &part->tracks.at[flow->track].track;
        uint32_t t = rank_find_track(rank, !flow->start, at->pid, at->id);
        int64_t ts_ns;
        if (t == NO_ID || __builtin_add_overflow(flow->ts_ns, part->base_ns, &ts_ns))
            continue;
        uint32_t first = rank->tracks[t].first, end = first + rank->tracks[t].n;
        for (uint32_t s = rank_first_from(rank, &rank->tracks[t], ts_ns);
             s < end && rank->spans[s].start_ns == ts_ns; s++) {
            struct trace_span *span = &rank->spans[s];
            bool fits = flow->start ? span->kind == SPAN_RUNTIME ||
                                          (flows->has_devices && span->kind == SPAN_CPU_OP)
                                    : span->kind == SPAN_KERNEL || span->kind == SPAN_MEMCPY ||
                                          span->kind == SPAN_MEMSET;
            if (fits && !span->correlation) {
                span->correlation = flow->id;
                break;
            }
        }
    }
}

struct cpu_end {
    int64_t end_ns;
    uint32_t span;
};
ORDER(by_end, struct cpu_end, ASCENDING(end_ns) ?: ASCENDING(span));

/* Devices of whose work the file does not say which op launched it: at the latest the last op that
 * was over when it began. */
static void infer_launches(struct trace_rank *rank)
{
    SCRATCH ARRAY(struct cpu_end) ends = {0};
    for (uint32_t i = 0; i < rank->n_spans; i++)
        if (rank->spans[i].kind == SPAN_CPU_OP)
            array_add(&ends, time_add(rank->spans[i].start_ns, rank->spans[i].dur_ns), i);
    array_sort(&ends, by_end);
    for (uint32_t i = 0; i < rank->n_spans && ends.n; i++) {
        struct trace_span *work = &rank->spans[i];
        size_t at = 0;
        if (work->correlation ||
            (work->kind != SPAN_KERNEL && work->kind != SPAN_MEMCPY && work->kind != SPAN_MEMSET))
            continue;
        at = LOWER_BOUND(e, 0, ends.n, ends.at[e].end_ns <= work->start_ns);
        struct trace_span *op = at ? &rank->spans[ends.at[at - 1].span] : NULL;
        if (!op || op->window != work->window)
            continue;
        if (!op->correlation)
            op->correlation = UINT64_C(1) << 62 | ends.at[at - 1].span;
        work->correlation = op->correlation;
    }
}

static void kineto_join_flows(struct rank_job *job)
{
    bool has_devices = false;
    for (size_t w = 0; w < job->n_windows; w++) {
        const struct trace_part *part = &job->sources[w]->part;
        const struct kineto_part *flows = part_payload(part, &kineto_payload);
        if (flows) {
            join_links(job->rank, part, flows);
            join_launches(job->rank, part, flows);
            has_devices |= flows->has_devices;
        }
    }
    if (has_devices)
        infer_launches(job->rank);
}

/* ---- memory and modules ---- */

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
