/* What a rank's main thread and autograd did in a window.
 *
 * A function of autograd has the sequence number of the op that recorded it. From that op to the
 * function the two passes are under way, so that no iteration ends in between. */
#include "graph/steps/training.h"

/* An op of the main thread that may have a function of autograd, as those have which a backward
 * pass runs to be differentiated itself. */
struct forward {
    int32_t sequence;
    int64_t start_ns, outer_ns; /* its start, and that of the outermost op that it lies in */
};
typedef ARRAY(struct forward) forward_array;

ORDER(by_sequence, struct forward, ASCENDING(sequence) ?: ASCENDING(start_ns));
ORDER(by_start, struct pass, ASCENDING(start_ns) ?: ASCENDING(end_ns));
ORDER_OF_POINTERS(backward_by_start, struct trace_span, ASCENDING(start_ns) ?: ASCENDING(name));

/* Whether autograd runs in a compiler, which traces the passes. */
static bool in_compiler(const struct rank_build *rank, const struct trace_span *span)
{
    while (span->parent != NO_ID) {
        span = &rank->trace->spans[span->parent];
        if (name_compiles(span_name(rank, span)))
            return true;
    }
    return false;
}

bool *training_find_backward(const struct rank_build *rank)
{
    const struct trace_rank *trace = rank->trace;
    bool *in_backward = mem_array(trace->n_spans + (size_t)1, sizeof *in_backward);
    for (uint32_t i = 0; i < trace->n_spans; i++) {
        const struct trace_span *span = &trace->spans[i];
        in_backward[i] = (span->parent != NO_ID && in_backward[span->parent]) ||
                         (span->kind == SPAN_CPU_OP &&
                          (span->fwd_thread > 0 || (rank->classes[span->name] & NAME_BACKWARD)) &&
                          !in_compiler(rank, span));
    }
    return in_backward;
}

bool training_in_work(const struct trace_rank *trace, const struct trace_span *span)
{
    while (span->parent != NO_ID) {
        span = &trace->spans[span->parent];
        if (span->kind == SPAN_CPU_OP || span->kind == SPAN_RUNTIME)
            return true;
    }
    return false;
}

static void find_main_ops(struct training *t, const bool *in_backward, forward_array *forwards)
{
    const struct trace_rank *trace = t->rank->trace;
    const struct trace_track *track = &trace->tracks[t->rank->main_track];
    for (uint32_t i = track->first; i < track->first + track->n; i++) {
        const struct trace_span *span = &trace->spans[i];
        if (span->window == t->window && span->kind == SPAN_ANNOTATION &&
            (t->rank->classes[span->name] & NAME_LOADER))
            array_push(&t->loads, span->start_ns);
        if (span->window != t->window || (span->kind != SPAN_CPU_OP && span->kind != SPAN_RUNTIME))
            continue;
        if (in_backward[i]) {
            if (span->kind == SPAN_CPU_OP && span->sequence >= 0 && span->fwd_thread == 0 &&
                !(t->rank->classes[span->name] & NAME_BACKWARD))
                array_add(forwards, span->sequence, span->start_ns, span->start_ns);
            continue;
        }
        if (t->ops.n == 0 || !training_in_work(trace, span))
            array_push(&t->ops, span);
        if (span->kind == SPAN_CPU_OP && span->sequence >= 0)
            array_add(forwards, span->sequence, span->start_ns, t->ops.at[t->ops.n - 1]->start_ns);
    }
    array_sort(forwards, by_sequence);
}

/* Sequence numbers are counted by each thread. The main thread is the one of most functions. */
static uint32_t most_numbered_thread(const struct training *t)
{
    SCRATCH struct map counts = {0};
    uint64_t most = 0;
    uint32_t best = 0;
    for (size_t i = 0; i < t->backward.n; i++) {
        uint32_t thread = t->backward.at[i]->fwd_thread;
        uint64_t n = map_add(&counts, thread + UINT64_C(1), 1);
        if (thread > 0 && n > most) {
            most = n;
            best = thread;
        }
    }
    return best;
}

/* The op that recorded a function: the last one of its number before it. */
static const struct forward *forward_of(const forward_array *forwards,
                                        const struct trace_span *backward)
{
    size_t i = LOWER_BOUND(k, 0, forwards->n,
                           forwards->at[k].sequence < backward->sequence ||
                               (forwards->at[k].sequence == backward->sequence &&
                                forwards->at[k].start_ns < backward->start_ns));
    return i > 0 && forwards->at[i - 1].sequence == backward->sequence ? &forwards->at[i - 1]
                                                                       : NULL;
}

/* Whether an op of the main thread begins after a time and before another one. */
static bool has_op_between(const struct training *t, int64_t after_ns, int64_t before_ns)
{
    size_t i = LOWER_BOUND(k, 0, t->ops.n, t->ops.at[k]->start_ns <= after_ns);
    return i < t->ops.n && t->ops.at[i]->start_ns < before_ns;
}

static void find_passes(struct training *t, const forward_array *forwards)
{
    uint32_t thread = most_numbered_thread(t);
    size_t n = 0;
    for (size_t i = 0; i < t->backward.n; i++) {
        const struct trace_span *span = t->backward.at[i];
        bool numbered = thread > 0 && span->sequence >= 0 && span->fwd_thread == thread;
        const struct forward *forward = numbered ? forward_of(forwards, span) : NULL;
        if (numbered && !forward)
            array_push(&t->lost_ns, span->start_ns);
        array_add(&t->passes, .start_ns = forward ? forward->outer_ns : span->start_ns,
                  .end_ns = span_end_ns(span), .has_forward = forward != NULL);
    }
    array_sort(&t->passes, by_start);
    EACH (const struct pass, pass, t->passes) {
        struct pass *last = n > 0 ? &t->passes.at[n - 1] : NULL;
        if (last && (pass->start_ns < last->end_ns ||
                     (!pass->has_forward && !has_op_between(t, last->end_ns, pass->start_ns))))
            last->end_ns = MAX(last->end_ns, pass->end_ns);
        else
            t->passes.at[n++] = *pass;
    }
    t->passes.n = n;
}

void training_find(struct training *t, const struct rank_build *rank, uint32_t window,
                   const bool *in_backward)
{
    const struct trace_rank *trace = rank->trace;
    SCRATCH forward_array forwards = {0};
    *t = (struct training){.rank = rank, .window = window};
    for (uint32_t i = 0; i < trace->n_spans; i++) {
        const struct trace_span *span = &trace->spans[i];
        if (in_backward[i] && span->window == window &&
            (span->parent == NO_ID || !in_backward[span->parent]))
            array_push(&t->backward, span);
    }
    array_sort(&t->backward, backward_by_start);
    find_main_ops(t, in_backward, &forwards);
    find_passes(t, &forwards);
}

void training_fini(struct training *t)
{
    FREE_ALL(&t->ops, &t->backward, &t->passes, &t->lost_ns, &t->loads);
}

size_t training_backward_before(const struct training *t, int64_t ns)
{
    return LOWER_BOUND(i, 0, t->backward.n, t->backward.at[i]->start_ns < ns);
}

bool training_in_pass(const struct training *t, int64_t ns)
{
    size_t i = LOWER_BOUND(k, 0, t->passes.n, t->passes.at[k].start_ns < ns);
    return i > 0 && ns < t->passes.at[i - 1].end_ns;
}

int64_t training_end_ns(const struct training *t)
{
    int64_t end = t->passes.n > 0 ? t->passes.at[t->passes.n - 1].end_ns : INT64_MIN;
    size_t n = t->ops.n, n_alike = 0;
    if (n > 1 && (t->rank->classes[t->ops.at[n - 1]->name] & NAME_DEVICE_SYNC)) {
        for (size_t i = 0; i < n; i++)
            n_alike += t->ops.at[i]->name == t->ops.at[n - 1]->name;
        n -= n_alike == 1 || n_alike * 2 <= t->passes.n; /* the iterations have none */
    }
    return n > 0 ? MAX(end, span_end_ns(t->ops.at[n - 1])) : end;
}

/* ---- parts ---- */

struct step_part *step_parts_add(step_part_array *parts, const struct training *t, int64_t start_ns,
                                 int64_t end_ns)
{
    size_t first = training_backward_before(t, start_ns), n_numbered = 0;
    size_t end = training_backward_before(t, end_ns);
    size_t n_lost = count_before(&t->lost_ns, end_ns) - count_before(&t->lost_ns, start_ns);
    array_add(parts, .start_ns = start_ns, .end_ns = end_ns);
    struct step_part *part = &parts->at[parts->n - 1];
    for (size_t i = first; i < end; i++) {
        array_push(&part->backward, t->backward.at[i]->name);
        n_numbered += t->backward.at[i]->sequence >= 0;
    }
    part->n_passes = LOWER_BOUND(k, 0, t->passes.n, t->passes.at[k].start_ns < end_ns) -
                     LOWER_BOUND(k, 0, t->passes.n, t->passes.at[k].start_ns < start_ns);
    part->is_fragment =
        parts->n == 1 && (n_lost * 10 > n_numbered || (end == first && t->backward.n > 0));
    return part;
}

void step_parts_finish(step_part_array *parts, const struct training *t)
{
    size_t o = 0;
    EACH (struct step_part, part, *parts) {
        size_t n = 0;
        part->n_loads =
            count_before(&t->loads, part->end_ns) - count_before(&t->loads, part->start_ns);
        for (; o < t->ops.n && t->ops.at[o]->start_ns < part->end_ns; o++)
            if (t->ops.at[o]->kind == SPAN_CPU_OP && t->ops.at[o]->start_ns >= part->start_ns)
                array_push(&part->ops, t->ops.at[o]->name);
        sort_u32(part->ops.at, part->ops.n);
        sort_u32(part->backward.at, part->backward.n);
        sort_u32(part->names.at, part->names.n);
        for (size_t i = 0; i < part->names.n; i++)
            if (n == 0 || part->names.at[n - 1] != part->names.at[i])
                part->names.at[n++] = part->names.at[i];
        part->names.n = n;
    }
}

void step_parts_fini(step_part_array *parts)
{
    EACH (struct step_part, part, *parts)
        FREE_ALL(&part->backward, &part->names, &part->ops);
    array_fini(parts);
}

/* How many of sorted values a are not among sorted values b. */
static size_t count_lacking(const uint32_t *a, size_t n_a, const uint32_t *b, size_t n_b)
{
    size_t n = 0, k = 0;
    for (size_t i = 0; i < n_a; i++) {
        while (k < n_b && b[k] < a[i])
            k++;
        if (k < n_b && b[k] == a[i])
            k++;
        else
            n++;
    }
    return n;
}
#define LACKING(a, b, values)                                                                      \
    count_lacking((a)->values.at, (a)->values.n, (b)->values.at, (b)->values.n)

/* Whether two did the same work backward in a pass, but for a tenth. */
static bool same_backward(const struct step_part *a, const struct step_part *b)
{
    size_t in_a = MAX(a->n_passes, 1), in_b = MAX(b->n_passes, 1), differ = 0;
    for (size_t i = 0, k = 0; i < a->backward.n || k < b->backward.n;) {
        uint32_t name = MIN(i < a->backward.n ? a->backward.at[i] : UINT32_MAX,
                            k < b->backward.n ? b->backward.at[k] : UINT32_MAX);
        size_t n_a = 0, n_b = 0;
        for (; i < a->backward.n && a->backward.at[i] == name; i++)
            n_a += in_b;
        for (; k < b->backward.n && b->backward.at[k] == name; k++)
            n_b += in_a;
        differ += MAX(n_a, n_b) - MIN(n_a, n_b);
    }
    return differ * 10 <= MAX(a->backward.n * in_b, b->backward.n * in_a);
}

static bool training_repeats(const struct step_part *part, const struct step_part *before,
                             bool last)
{
    return same_backward(part, before) && LACKING(part, before, names) == 0 &&
           (last || LACKING(before, part, names) == 0);
}

static size_t first_whole(const step_part_array *parts)
{
    return parts->n > 1 && parts->at[0].is_fragment;
}

static bool take_turns(const struct step_part *a, const struct step_part *b)
{
    return (a->n_loads > 0) != (b->n_loads > 0) ||
           (LACKING(a, b, ops) > 0 && LACKING(b, a, ops) > 0);
}

static uint32_t hash_contents(const struct step_part *part)
{
    uint64_t hash = part->n_loads;
    for (size_t i = 0; i < part->ops.n; i++)
        hash = map_mix(hash + part->ops.at[i]);
    return (uint32_t)hash;
}

/* Of n parts that repeat: at what period they take turns; 1: they do not, as where more than half
 * of a period's are alike, so that the others only do something else, too, such as compile; 0: they
 * seem to, but are too few to tell. */
static size_t period_of_turns(const struct step_part *at, size_t n)
{
    enum { FEW = 4 };
    SCRATCH ARRAY(uint32_t) contents = {0};
    bool turns = false;
    for (size_t i = 0; i < n; i++)
        array_push(&contents, hash_contents(&at[i]));
    size_t period = steps_find_period(contents.at, n, 0), n_alike = 0;
    for (size_t i = 0; i < period && n_alike * 2 <= period; i++) {
        n_alike = 0;
        for (size_t k = 0; k < period; k++)
            n_alike += contents.at[k] == contents.at[i];
    }
    if (n_alike * 2 > period)
        return 1;
    for (size_t i = 1; i < (period > 0 ? period : n < FEW ? n : 0); i++)
        turns |=
            period > 0 ? take_turns(&at[0], &at[i]) : (at[i].n_loads > 0) != (at[0].n_loads > 0);
    return turns ? period : 1;
}

size_t step_parts_period(const step_part_array *parts)
{
    enum { ENOUGH = 1000 }; /* to see a loop; keeps the search short */
    size_t first = first_whole(parts), n = MIN(parts->n - first, ENOUGH);
    const struct step_part *at = parts->at + first;
    if (n == 1)
        return 1;
    for (size_t period = 1; period <= n / 2; period++) {
        size_t all = n - period, wrong = 0;
        for (size_t i = 0; i < all && wrong <= all / 10; i++)
            wrong += !training_repeats(&at[i + period], &at[i], first + i + period + 1 == parts->n);
        if (wrong <= all / 10)
            return period > 1 ? period : period_of_turns(at, n);
    }
    return 0;
}

void step_parts_join(step_part_array *parts, size_t period)
{
    size_t n = first_whole(parts);
    for (size_t i = n; i < parts->n; i += period) {
        size_t end = MIN(i + period, parts->n);
        parts->at[i].end_ns = parts->at[end - 1].end_ns;
        parts->at[i].is_fragment = end - i < period;
        for (size_t k = i + 1; k < end; k++)
            FREE_ALL(&parts->at[k].backward, &parts->at[k].names, &parts->at[k].ops);
        parts->at[n++] = parts->at[i];
    }
    parts->n = n;
}

void step_parts_push(const step_part_array *parts, struct rank_build *rank, uint32_t window)
{
    int64_t number = 0;
    EACH (const struct step_part, part, *parts)
        if (!part->is_fragment || parts->n == 1)
            steps_push(rank, part->start_ns, part->end_ns, number++, window);
}
