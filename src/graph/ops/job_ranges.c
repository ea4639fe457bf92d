/* Where the job was in long gaps between its ops, and when it called for its GPU. */

#include "graph/ops/match_slices.h"

enum { LONG_PARTS = 100 }; /* of an iteration: shorter gaps explain nothing */

job_ranges list_ranges(const struct rank_build *rank, int64_t start_ns, int64_t end_ns)
{
    const struct trace_rank *trace = rank->trace;
    job_ranges ranges = {0};
    EACH_OF (const struct trace_span, span, trace->spans, trace->n_spans) {
        bool is_there = span->start_ns < end_ns && span_end_ns(span) > start_ns;
        bool is_range =
            span->kind == SPAN_ANNOTATION || span->kind == SPAN_PYTHON || span->kind == SPAN_OTHER;
        if (is_there && is_range && !trace->tracks[span->track].gpu &&
            !(rank->classes[span->name] & NAME_STEP))
            array_add(&ranges, span->start_ns, span_end_ns(span), span->name,
                      text_begins(strtab_get(rank->names, span->name), "<built-in"));
    }
    EACH_OF (const struct trace_module_call, call, trace->module_calls, trace->n_module_calls)
        if (call->start_ns < end_ns && call->end_ns > start_ns &&
            *strtab_get(rank->names, call->module))
            array_add(&ranges, call->start_ns, call->end_ns, call->module, false);
    return ranges;
}

uint32_t range_in(const job_ranges *ranges, int64_t start_ns, int64_t end_ns, int64_t most_ns)
{
    const struct job_range *best = NULL;
    most_ns = MAX(most_ns, 2 * (end_ns - start_ns));
    EACH (const struct job_range, range, *ranges) {
        int64_t covered = MIN(range->end_ns, end_ns) - MAX(range->start_ns, start_ns);
        int64_t ns = range->end_ns - range->start_ns;
        bool shorter =
            !best || (range->built_in == best->built_in ? ns < best->end_ns - best->start_ns
                                                        : best->built_in);
        if (covered >= (end_ns - start_ns) / 5 * 4 && ns < most_ns && shorter)
            best = range;
    }
    return best ? best->name : NO_ID;
}

static bool is_cpu_thread(const struct rank_build *rank, const struct track *track)
{
    return track->source == NO_ID || !rank->trace->tracks[track->source].gpu;
}

/* The outermost op of the framework around a call. */
static uint32_t caller_of(const struct rank_build *rank, uint32_t span)
{
    uint32_t caller = 0;
    for (uint32_t at = rank->trace->spans[span].parent; at != NO_ID;
         at = rank->trace->spans[at].parent)
        if (rank->trace->spans[at].kind == SPAN_CPU_OP &&
            !(rank->classes[rank->trace->spans[at].name] & NAME_STEP))
            caller = rank->trace->spans[at].name;
    return caller;
}

void build_where(struct rank_build *rank)
{
    uint32_t at = rank->steps.reference;
    const struct step *step = &rank->steps.at[at];
    int64_t ns = step->end_ns - step->start_ns, busy_until = step->start_ns;
    SCRATCH slice_list slices = slices_by_start(rank, at, is_cpu_thread);
    SCRATCH job_ranges ranges = list_ranges(rank, step->start_ns, step->end_ns);
    SCRATCH uint32_t *op_of = mem_array(rank->slices.n + 1, sizeof *op_of); /* 1 + op */
    for (uint32_t o = 0; o < rank->n_timed; o++)
        if (rank->match[build_at(rank, at, o)] != NO_ID)
            op_of[rank->match[build_at(rank, at, o)]] = o + 1;
    EACH (const uint32_t, index, slices) {
        const struct slice *slice = &rank->slices.at[*index];
        const struct trace_span *span = slice_span(rank, *index);
        bool syncs = rank->classes[span->name] & (NAME_STREAM_SYNC | NAME_DEVICE_SYNC);
        bool is_late = slice->start_ns - busy_until > ns / LONG_PARTS;
        if ((syncs || is_late) && op_of[*index] > 0) {
            struct local_op *op = &rank->ops.at[op_of[*index] - 1];
            int64_t from_ns = syncs ? span->start_ns : busy_until;
            int64_t to_ns = syncs ? span_end_ns(span) : slice->start_ns;
            uint32_t range = range_in(&ranges, from_ns, to_ns, ns);
            op->range = range == NO_ID ? 0 : range;
            op->caller = syncs ? caller_of(rank, slice->span) : 0;
        }
        busy_until =
            MAX(busy_until, MAX(slice->end_ns, span->kind == SPAN_RUNTIME ? span_end_ns(span) : 0));
    }
}
