/* Calls of modules, from the recorder's marks around their forward passes, and which spans are part
 * of each.
 *
 * Autograd gives an op of the forward pass and its backward pass one sequence number. Of several
 * ops with one number the last made the backward function: a number is taken when the function is
 * made, and ops before that made none carry it, too. */
#include "graph/memory/memory_build.h"

/* ---- calls ---- */

/* What runs a module's forward again during the backward pass. */
static bool is_in_backward(const struct memory_build *b, const struct trace_module_call *mark)
{
    uint32_t at = memory_span_at(b->trace, mark->track, mark->start_ns);
    return build_within(b->rank, at, NAME_BACKWARD) != NO_ID;
}

struct calls_mark {
    int64_t start_ns, end_ns;
    uint32_t track, call;
};
typedef ARRAY(struct calls_mark) mark_array;

static struct map class_names(const struct memory_build *b)
{
    struct map classes = {0};
    for (uint32_t i = 0; b->held && i < b->held->n_modules; i++)
        map_set(&classes, map_key(b->held->modules[i].name), b->held->modules[i].class);
    return classes;
}

static mark_array list_calls(struct memory_build *b)
{
    mark_array marks = {0};
    SCRATCH struct map classes = class_names(b);
    EACH_OF (const struct trace_module_call, mark, b->trace->module_calls,
             b->trace->n_module_calls) {
        uint64_t class = 0;
        if (mark->window != b->window || mark->start_ns < b->start_ns ||
            mark->start_ns >= b->end_ns || mark->track == NO_ID || is_in_backward(b, mark))
            continue;
        map_get(&classes, map_key(mark->module), &class);
        array_add(&marks, mark->start_ns, mark->end_ns, mark->track, (uint32_t)b->calls.n);
        array_add(&b->calls, .module = mark->module, .class = (uint32_t) class,
                  .parent = MEMORY_NONE, .forward_first = memory_place_of(b, mark->start_ns),
                  .forward_last = memory_place_of(b, mark->end_ns), .first_forward_op = DPRO_NO_OP,
                  .first_backward_op = DPRO_NO_OP);
    }
    return marks;
}

ORDER(by_track, struct calls_mark, ASCENDING(track) ?: ASCENDING(call));

/* The innermost call that goes on at a time, of the thread's calls up to the one before `next`. */
static uint32_t calls_innermost(const struct memory_build *b, const mark_array *marks,
                                const uint32_t *mark_of, uint32_t call, int64_t ns)
{
    while (call != MEMORY_NONE && marks->at[mark_of[call]].end_ns < ns)
        call = b->calls.at[call].parent;
    return call;
}

/* ---- spans ---- */

bool memory_is_function(const struct memory_build *b, uint32_t span)
{
    const struct trace_span *it = &b->trace->spans[span];
    return (b->rank->classes[it->name] & NAME_BACKWARD) &&
           (it->parent == NO_ID || !b->span_calls[it->parent].backward);
}

/* What of a thread is forward, by the marks around it, and what is backward. */
static void walk_track(struct memory_build *b, const struct trace_track *track,
                       const mark_array *marks, size_t next, size_t end, const uint32_t *mark_of)
{
    uint32_t call = MEMORY_NONE;
    for (uint32_t s = track->first; s < track->first + track->n; s++) {
        const struct trace_span *span = &b->trace->spans[s];
        struct span_call *to = &b->span_calls[s];
        if (!memory_is_in_step(b, s))
            continue;
        for (; next < end && marks->at[next].start_ns <= span->start_ns; next++) {
            uint32_t inner = marks->at[next].call;
            b->calls.at[inner].parent =
                calls_innermost(b, marks, mark_of, call, marks->at[next].start_ns);
            call = inner;
        }
        call = calls_innermost(b, marks, mark_of, call, span->start_ns);
        to->backward = (b->rank->classes[span->name] & NAME_BACKWARD) ||
                       (span->parent != NO_ID && b->span_calls[span->parent].backward);
        if (!to->backward && call == MEMORY_NONE)
            to->backward = b->rank->phases[s] == DPRO_OP_BW;
        else if (!to->backward)
            to->call = call;
    }
    for (; next < end; next++) { /* with nothing in it */
        uint32_t inner = marks->at[next].call;
        b->calls.at[inner].parent =
            calls_innermost(b, marks, mark_of, call, marks->at[next].start_ns);
        call = inner;
    }
}

static void walk_tracks(struct memory_build *b, const mark_array *marks)
{
    uint32_t *mark_of = arena_alloc(&b->scratch, (marks->n + 1) * sizeof *mark_of);
    for (size_t i = 0; i < marks->n; i++)
        mark_of[marks->at[i].call] = (uint32_t)i;
    size_t next = 0;
    for (uint32_t t = 0; t < b->trace->n_tracks; t++) {
        size_t first = next;
        while (next < marks->n && marks->at[next].track == t)
            next++;
        if (!b->trace->tracks[t].gpu)
            walk_track(b, &b->trace->tracks[t], marks, first, next, mark_of);
    }
}

static uint64_t sequence_key(uint32_t thread, int32_t sequence)
{
    return map_mix((uint64_t)thread << 32 | (uint32_t)sequence) | 1;
}

/* Sequence number -> 1 + the call of its forward op; 0: code of no module. Where flows lead from
 * forward ops to backward ones, by thread as well, as threads count for themselves. */
static struct map calls_by_sequence(const struct memory_build *b)
{
    struct map calls = {0};
    for (uint32_t s = 0; s < b->trace->n_spans; s++) {
        const struct trace_span *span = &b->trace->spans[s];
        if (span->sequence >= 0 && span->fwd_thread == 0 && memory_is_in_step(b, s) &&
            !b->span_calls[s].backward)
            map_set(&calls, sequence_key(0, span->sequence), b->span_calls[s].call + UINT64_C(1));
    }
    EACH_OF (const struct trace_link, link, b->trace->links, b->trace->n_links) {
        const struct trace_span *to = &b->trace->spans[link->to];
        if (to->sequence >= 0 && memory_is_in_step(b, link->from) &&
            !b->span_calls[link->from].backward)
            map_set(&calls, sequence_key(to->fwd_thread, to->sequence),
                    b->span_calls[link->from].call + UINT64_C(1));
    }
    return calls;
}

static uint32_t call_of_backward(const struct map *calls, const struct trace_span *span)
{
    uint64_t call = 0;
    if (span->sequence >= 0 &&
        !map_get(calls, sequence_key(span->fwd_thread, span->sequence), &call))
        map_get(calls, sequence_key(0, span->sequence), &call);
    return (uint32_t)(call - 1); /* MEMORY_NONE where none is known */
}

static void resolve_backward(struct memory_build *b, int64_t *first_ns, int64_t *last_ns)
{
    SCRATCH struct map calls = calls_by_sequence(b);
    for (uint32_t s = 0; s < b->trace->n_spans; s++) { /* those around others come first */
        const struct trace_span *span = &b->trace->spans[s];
        if (!memory_is_in_step(b, s) || !b->span_calls[s].backward)
            continue;
        if (!memory_is_function(b, s)) {
            if (span->parent != NO_ID && b->span_calls[span->parent].backward)
                b->span_calls[s].call = b->span_calls[span->parent].call;
            continue;
        }
        uint32_t call = call_of_backward(&calls, span);
        b->span_calls[s].call = call;
        if (call == MEMORY_NONE)
            continue;
        first_ns[call] = MIN(first_ns[call], span->start_ns);
        last_ns[call] = MAX(last_ns[call], span_end_ns(span));
    }
}

/* A call's backward pass is that of the calls within it, too. Inner calls come later. */
static void find_backward_ranges(struct memory_build *b)
{
    size_t n = b->calls.n;
    int64_t *first_ns = arena_alloc(&b->scratch, (n + 1) * sizeof *first_ns);
    int64_t *last_ns = arena_alloc(&b->scratch, (n + 1) * sizeof *last_ns);
    for (size_t c = 0; c < n; c++) {
        first_ns[c] = INT64_MAX;
        last_ns[c] = INT64_MIN;
    }
    resolve_backward(b, first_ns, last_ns);
    for (size_t c = n; c-- > 0;) {
        struct graph_call *call = &b->calls.at[c];
        if (last_ns[c] == INT64_MIN)
            continue;
        call->backward_first = memory_place_of(b, first_ns[c]);
        call->backward_last = memory_place_of(b, last_ns[c]);
        if (call->parent == MEMORY_NONE)
            continue;
        first_ns[call->parent] = MIN(first_ns[call->parent], first_ns[c]);
        last_ns[call->parent] = MAX(last_ns[call->parent], last_ns[c]);
    }
}

/* ---- ops ---- */

uint32_t memory_span_of_op(const struct memory_build *b, uint32_t op)
{
    uint32_t slice = b->rank->match[build_at(b->rank, b->step, op)];
    if (slice == NO_ID)
        return NO_ID;
    const struct slice *it = &b->rank->slices.at[slice];
    if (!b->trace->tracks[b->trace->spans[it->span].track].gpu)
        return it->span;
    return it->launch == NO_ID ? NO_ID : b->rank->slices.at[it->launch].span;
}

static void find_op_calls(struct memory_build *b)
{
    uint32_t n = b->to->n_op_calls = b->rank->n_timed;
    b->to->op_calls = mem_alloc((n + (size_t)1) * sizeof *b->to->op_calls);
    for (uint32_t op = 0; op < n; op++) {
        bool of_none = op == b->rank->boundary || (b->rank->ops.at[op].flags & GRAPH_OP_UNIT);
        uint32_t span = of_none ? NO_ID : memory_span_of_op(b, op);
        const struct span_call *of = span == NO_ID ? NULL : &b->span_calls[span];
        b->to->op_calls[op] =
            of && of->call != MEMORY_NONE ? 2 * of->call + of->backward : MEMORY_NONE;
    }
}

void memory_find_calls(struct memory_build *b)
{
    SCRATCH mark_array marks = list_calls(b);
    array_sort(&marks, by_track);
    b->span_calls =
        arena_alloc(&b->scratch, (b->trace->n_spans + (size_t)1) * sizeof *b->span_calls);
    for (uint32_t s = 0; s < b->trace->n_spans; s++)
        b->span_calls[s] = (struct span_call){MEMORY_NONE, false};
    walk_tracks(b, &marks);
    find_backward_ranges(b);
    if (b->calls.n > 0)
        find_op_calls(b);
}
