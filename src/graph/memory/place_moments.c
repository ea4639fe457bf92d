/* The op in which each moment is: the last op of its thread that had begun. The moment is in the op
 * or behind it. A thread without ops works for the main thread. */
#include "graph/memory/memory_build.h"

struct op_time {
    int64_t start_ns, end_ns;
    uint32_t track, op, function;
    int64_t function_end_ns; /* of the span, where it is a function of autograd; else 0 */
};
typedef ARRAY(struct op_time) op_times;

ORDER(by_track, struct op_time, ASCENDING(track) ?: ASCENDING(start_ns) ?: ASCENDING(op));

/* Which call of autograd's outermost functions each op is in. */
static void number_functions(op_times *list)
{
    uint32_t n = 0, track = NO_ID;
    int64_t end_ns = 0;
    EACH (struct op_time, it, *list) {
        if (it->track != track || it->start_ns >= end_ns) {
            end_ns = it->function_end_ns;
            n += end_ns > 0;
        }
        track = it->track;
        it->function = end_ns > 0 ? n : 0;
    }
}

/* The ops of CPU threads as the iteration ran them, thread by thread. */
static op_times list_ops(const struct memory_build *b)
{
    const struct rank_build *rank = b->rank;
    op_times list = {0};
    for (uint32_t o = 0; o < rank->n_timed; o++) {
        uint32_t slice = rank->match[build_at(rank, b->step, o)];
        if (slice == NO_ID || o == rank->boundary ||
            b->trace->tracks[slice_span(rank, slice)->track].gpu)
            continue;
        const struct slice *it = &rank->slices.at[slice];
        const struct trace_span *span = slice_span(rank, slice);
        bool is_function = rank->classes[span->name] & NAME_BACKWARD;
        array_add(&list, it->start_ns, it->end_ns, span->track, o,
                  .function_end_ns = is_function ? span_end_ns(span) : 0);
    }
    array_sort(&list, by_track);
    number_functions(&list);
    return list;
}

/* The last op of a thread that began at a time or before; NULL: none did. */
static const struct op_time *op_at(const op_times *list, uint32_t track, int64_t ns)
{
    size_t end = LOWER_BOUND(i, 0, list->n,
                             list->at[i].track < track ||
                                 (list->at[i].track == track && list->at[i].start_ns <= ns));
    return end > 0 && list->at[end - 1].track == track ? &list->at[end - 1] : NULL;
}

static uint16_t share_of(const struct op_time *op, int64_t ns)
{
    double passed = (double)(ns - op->start_ns), whole = (double)(op->end_ns - op->start_ns);
    return ns >= op->end_ns ? UINT16_MAX : (uint16_t)(passed / whole * UINT16_MAX);
}

void memory_place_moments(struct memory_build *b)
{
    SCRATCH op_times list = list_ops(b);
    struct graph_memory *to = b->to;
    to->n_moments = (uint32_t)b->moments.n;
    to->moments = mem_alloc((b->moments.n + 1) * sizeof *to->moments);
    for (size_t i = 0; i < b->moments.n; i++) {
        const struct moment_build *moment = &b->moments.at[i];
        const struct op_time *op = op_at(&list, moment->track, moment->ns);
        if (!op)
            op = op_at(&list, b->rank->main_track, moment->ns);
        to->moments[i] = (struct graph_moment){.op = op ? op->op : DPRO_NO_OP,
                                               .function = op ? op->function : 0,
                                               .share = op ? share_of(op, moment->ns) : 0,
                                               .gives = moment->gives,
                                               .block = b->blocks.at[moment->block].is};
    }
}
