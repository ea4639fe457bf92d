/* Iterations that nothing marks, by what an iteration of training is: passes forward and back, and
 * then the optimizer's step. */

#include "graph/steps/training.h"

static const struct trace_track *main_track(const struct training *t)
{
    return &t->rank->trace->tracks[t->rank->main_track];
}

/* When the main thread's first span of a window began. */
static int64_t window_start_ns(const struct training *t)
{
    EACH_OF (const struct trace_span, span, t->rank->trace->spans + main_track(t)->first,
             main_track(t)->n)
        if (span->window == t->window && span->kind <= SPAN_RUNTIME)
            return span->start_ns;
    return INT64_MAX;
}

/* ---- the loop's head ---- */

/* From the end of one iteration's work to the next one's forward pass. The head lies in it. */
struct gap {
    int64_t from_ns, to_ns;
    int64_t otherwise_ns; /* where no head shows */
};
typedef ARRAY(struct gap) gap_array;

/* How many spans of a name lie in a gap and in no op; *at_ns: the start of the last-th from the
 * end, or of the first one if they are less than twice as many. */
static size_t count_in_gap(const struct training *t, const struct gap *gap, uint32_t name,
                           size_t last, int64_t *at_ns)
{
    const struct trace_span *spans = t->rank->trace->spans + main_track(t)->first;
    uint32_t n_spans = main_track(t)->n;
    uint32_t i = LOWER_BOUND(k, 0, n_spans, spans[k].start_ns < gap->from_ns);
    SCRATCH i64_array starts = {0};
    for (; i < n_spans && spans[i].start_ns <= gap->to_ns; i++)
        if (spans[i].name == name && !training_in_work(t->rank->trace, &spans[i]))
            array_push(&starts, spans[i].start_ns);
    if (starts.n > 0 && at_ns)
        *at_ns = starts.at[starts.n < 2 * last ? 0 : starts.n - last];
    return starts.n;
}

/* Iterations begin with the first op or range of the window that comes in nine of ten gaps, and
 * once in most; the very first may come several times, but less than twice as often as before the
 * first pass. `ends` has where each gap's iteration ends by that. Where it comes more often, as a
 * validation pass loads batches, too, the last ones begin the next iteration. But if the window
 * begins with what comes in some gaps only, that leads up to an iteration, as a rollout does: then
 * these gaps' iterations begin with it. */
static void find_heads(const struct training *t, const gap_array *gaps, i64_array *ends)
{
    enum { MOST_TRIED = 50 };
    const struct trace_span *span = t->rank->trace->spans + main_track(t)->first;
    const struct trace_span *end = span + main_track(t)->n;
    int64_t until_ns = t->passes.n > 0 ? t->passes.at[0].start_ns : INT64_MAX, ns;
    struct gap before = {window_start_ns(t), until_ns, 0};
    uint32_t head = NO_ID, lead = NO_ID;
    size_t n_head = 0, n_lead = 0;
    for (size_t n_tried = 0; span < end && head == NO_ID && n_tried < MOST_TRIED; span++) {
        if (span->window != t->window || span->kind > SPAN_ANNOTATION ||
            training_in_work(t->rank->trace, span))
            continue;
        if (span->start_ns > until_ns)
            break;
        size_t n_before = count_in_gap(t, &before, span->name, 1, NULL), found = 0, n_few = 0;
        EACH (const struct gap, gap, *gaps) {
            size_t n = count_in_gap(t, gap, span->name, 1, NULL);
            found += n > 0;
            n_few += n > 0 && n < 2 * (n_tried == 0 ? n_before : 1);
        }
        if (n_tried++ == 0 && found * 2 <= gaps->n) {
            lead = span->name;
            n_lead = n_before;
        }
        if (found >= gaps->n - gaps->n / 10 && n_few * 2 > gaps->n) {
            head = span->name;
            n_head = n_before;
        }
    }
    EACH (const struct gap, gap, *gaps) {
        bool found = (lead != NO_ID && count_in_gap(t, gap, lead, n_lead, &ns) > 0) ||
                     (head != NO_ID && count_in_gap(t, gap, head, n_head, &ns) > 0);
        array_push(ends, found ? ns : gap->otherwise_ns);
    }
}

/* ---- the optimizer's steps ---- */

/* An iteration goes on after its step to the next one's head, the last one to the window's end, so
 * that what it waits for is its own. One cut where gradients are zeroed may have begun before. */
static void end_at_heads(const struct training *t, step_part_array *parts, bool at_start)
{
    SCRATCH gap_array gaps = {0};
    SCRATCH i64_array ends = {0};
    for (size_t i = 0; i < parts->n; i++) {
        int64_t cut = parts->at[i].end_ns, from = cut;
        size_t next = LOWER_BOUND(k, 0, t->passes.n, t->passes.at[k].start_ns < cut);
        if (at_start)
            from = next > 0 ? t->passes.at[next - 1].end_ns : parts->at[i].start_ns;
        if (next < t->passes.n) {
            const struct pass *pass = &t->passes.at[next];
            array_add(&gaps, from, pass->start_ns,
                      pass->has_forward && !at_start ? pass->start_ns : cut);
        } else if (i + 1 < parts->n) {
            array_add(&gaps, from, parts->at[i + 1].end_ns - 1, cut);
        }
    }
    find_heads(t, &gaps, &ends);
    for (size_t i = 0; i < parts->n; i++) {
        parts->at[i].end_ns =
            i < ends.n ? ends.at[i] : MAX(parts->at[i].end_ns, training_end_ns(t));
        if (i + 1 < parts->n)
            parts->at[i + 1].start_ns = parts->at[i].end_ns;
    }
}

static int64_t cut_of(const struct trace_span *mark, bool at_start)
{
    return at_start ? mark->start_ns : span_end_ns(mark);
}

/* Cuts a window where an optimizer's step ended, or where its zero_grad began, with a backward pass
 * since the cut before. Several optimizers in a row are one cut, as are those that step within a
 * backward pass. */
static void cut_at_marks(const struct training *t, const span_array *marks, bool at_start,
                         step_part_array *parts)
{
    int64_t start = window_start_ns(t);
    const struct trace_span *first = NULL;
    for (size_t i = 0; i < marks->n; i++) {
        const struct trace_span *mark = marks->at[i];
        int64_t cut = cut_of(mark, at_start);
        if (mark->window != t->window || training_in_pass(t, cut))
            continue;
        first = first ?: mark;
        struct step_part *last = parts->n > 0 ? &parts->at[parts->n - 1] : NULL;
        bool again = last && t->backward.n > 0 &&
                     training_backward_before(t, cut) == training_backward_before(t, last->end_ns);
        if (again ? at_start : t->backward.n == 0 && mark->name != first->name)
            continue;
        if (again)
            last->end_ns = cut;
        else if (cut > start)
            last = step_parts_add(parts, t, start, cut);
        if (last)
            array_push(&last->names, mark->name);
        start = cut;
    }
    if (first && at_start && training_end_ns(t) > start &&
        (t->backward.n == 0 || training_backward_before(t, start) < t->backward.n)) {
        struct step_part *last = step_parts_add(parts, t, start, training_end_ns(t));
        array_push(&last->names, first->name);
    }
    step_parts_finish(parts, t);
}

static bool have_one_name(const step_part_array *parts)
{
    EACH (const struct step_part, part, *parts)
        if (part->names.n != 1 || part->names.at[0] != parts->at[0].names.at[0])
            return false;
    return true;
}

/* By what an optimizer calls in a window; one step is all there is, unless the next one had begun.
 * False: nothing tells how many steps are an iteration. */
static bool steps_at_marks(struct rank_build *rank, const struct training *t,
                           const span_array *marks, bool at_start)
{
    enum { ENOUGH = 4 }; /* of two optimizers that take turns, one would have come twice */
    step_part_array parts = {0};
    cut_at_marks(t, marks, at_start, &parts);
    size_t n = parts.n, period = n > 0 ? step_parts_period(&parts) : 0;
    if (period == 0 && n >= ENOUGH && have_one_name(&parts))
        period = 1;
    bool alone = n == 1 && training_backward_before(t, parts.at[0].end_ns) == t->backward.n;
    if (n > 0)
        rank->steps.mark = parts.at[n - 1].names.at[0];
    rank->steps.n_updates = at_start ? 0 : alone ? 1 : (uint32_t)period;
    if (alone) {
        steps_whole_window(rank, t->window);
    } else if (period > 0) {
        step_parts_join(&parts, period);
        end_at_heads(t, &parts, at_start);
        step_parts_push(&parts, rank, t->window);
    }
    step_parts_fini(&parts);
    return alone || period > 0;
}

/* A step that is skipped, as its scaled gradients overflowed, is an iteration without an update,
 * whose gradients are zeroed as the others' are. Where most are zeroed more often, each loss has
 * its own. */
static bool skips_updates(const struct training *t, const span_array *marks,
                          const span_array *zeros)
{
    step_part_array updated = {0}, zeroed = {0};
    cut_at_marks(t, marks, false, &updated);
    cut_at_marks(t, zeros, true, &zeroed);
    bool skips = zeroed.n > updated.n + 1 && zeroed.n * 2 <= updated.n * 3;
    step_parts_fini(&updated);
    step_parts_fini(&zeroed);
    return skips;
}

void steps_from_optimizer(struct rank_build *rank, uint32_t class)
{
    SCRATCH span_array marks = steps_marks(rank, class);
    SCRATCH span_array zeros = steps_marks(rank, NAME_ZERO_GRAD);
    SCRATCH bool *in_backward = training_find_backward(rank);
    for (uint32_t w = 0; w < rank->trace->n_windows && marks.n > 0; w++) {
        struct training t;
        bool has_marks = false; /* where one lies in each backward pass, passes tell more */
        training_find(&t, rank, w, in_backward);
        bool at_start = class == NAME_ZERO_GRAD || skips_updates(&t, &marks, &zeros);
        for (size_t i = 0; i < marks.n; i++)
            has_marks |=
                marks.at[i]->window == w && !training_in_pass(&t, cut_of(marks.at[i], at_start));
        if (!steps_at_marks(rank, &t, at_start ? &zeros : &marks, at_start) && has_marks)
            steps_whole_window(rank, w);
        training_fini(&t);
    }
}

bool steps_from_updates(struct rank_build *rank, const struct training *t)
{
    SCRATCH span_array marks = {0};
    for (size_t i = 0; i < t->ops.n; i++)
        if (name_writes_many(span_name(rank, t->ops.at[i])))
            array_push(&marks, t->ops.at[i]);
    return t->passes.n > 0 && steps_at_marks(rank, t, &marks, false);
}

/* ---- passes forward and back ---- */

/* Where no op's number tells where the second pass begins, an iteration begins with the first op
 * between them. */
static void find_gaps(const struct training *t, gap_array *gaps)
{
    for (size_t i = 0; i + 1 < t->passes.n; i++) {
        const struct pass *next = &t->passes.at[i + 1];
        int64_t from = t->passes.at[i].end_ns, otherwise = next->start_ns;
        size_t o = LOWER_BOUND(k, 0, t->ops.n, t->ops.at[k]->start_ns < from);
        if (!next->has_forward && o < t->ops.n)
            otherwise = MIN(t->ops.at[o]->start_ns, otherwise);
        array_add(gaps, from, next->start_ns, otherwise);
    }
}

static bool may_update(const struct training *t, const struct trace_span *op)
{
    bool into_input;
    const char *name = span_name(t->rank, op);
    return name_writes_many(name) || name_updates(name, &into_input);
}

/* Whether each part of the recording that computes gradients also updates parameters. The last part
 * does not count, as the recording may end before its update. */
static bool all_update(const struct training *t, const step_part_array *parts)
{
    size_t o = 0, b = 0;
    for (size_t i = 0; i + 1 < parts->n; i++) {
        size_t n_gradients = 0, n_functions = parts->at[i].backward.n, n = 0;
        for (; b < t->backward.n && t->backward.at[b]->start_ns < parts->at[i].end_ns; b++)
            n_gradients += (t->rank->classes[t->backward.at[b]->name] & NAME_ACCUMULATE) != 0;
        for (; o < t->ops.n && t->ops.at[o]->start_ns < parts->at[i].end_ns; o++)
            if (t->ops.at[o]->start_ns >= t->passes.at[i].end_ns && may_update(t, t->ops.at[o]))
                n += name_writes_many(span_name(t->rank, t->ops.at[o])) ? n_functions + 4 : 1;
        if (n < name_updates_needed(n_gradients, n_functions))
            return false;
    }
    return parts->n > 1;
}

/* Parts are alike if they communicate with the same calls, and do the same after the backward pass:
 * of micro-batches the last one does more. Where all update, which is returned, what else some do
 * is an evaluation, or a checkpoint. */
static bool name_parts(const struct training *t, step_part_array *parts)
{
    const struct rank_build *rank = t->rank;
    bool update = all_update(t, parts);
    const uint32_t sync =
        NAME_STREAM_SYNC | NAME_DEVICE_SYNC | NAME_STREAM_WAIT | NAME_EVENT_RECORD;
    const uint32_t comm = NAME_COMM_CALL | NAME_COMM_PARAM | NAME_COMM_RUN;
    size_t o = 0;
    for (size_t i = 0; i < parts->n; i++)
        for (; o < t->ops.n && t->ops.at[o]->start_ns < parts->at[i].end_ns; o++)
            if (t->ops.at[o]->start_ns >= t->passes.at[i].end_ns &&
                !(rank->classes[t->ops.at[o]->name] & sync) && !update)
                array_push(&parts->at[i].names, t->ops.at[o]->name);
    EACH_OF (const struct trace_span, span, rank->trace->spans, rank->trace->n_spans) {
        if (span->window != t->window || span->kind > SPAN_ANNOTATION ||
            !(rank->classes[span->name] & comm))
            continue;
        size_t i = LOWER_BOUND(k, 0, parts->n, parts->at[k].end_ns <= span->start_ns);
        if (i < parts->n)
            array_push(&parts->at[i].names, span->name);
    }
    return update;
}

bool steps_from_passes(struct rank_build *rank, const struct training *t, bool *update)
{
    step_part_array parts = {0};
    gap_array gaps = {0};
    i64_array ends = {0};
    int64_t start = window_start_ns(t);
    find_gaps(t, &gaps);
    find_heads(t, &gaps, &ends);
    array_push(&ends, training_end_ns(t));
    for (size_t i = 0; i < ends.n; i++) {
        step_parts_add(&parts, t, start, ends.at[i]);
        start = ends.at[i];
    }
    FREE_ALL(&gaps, &ends);
    *update = name_parts(t, &parts);
    step_parts_finish(&parts, t);
    size_t period = parts.n > 0 ? step_parts_period(&parts) : 0;
    if (period > 0 && parts.n > 1) {
        step_parts_join(&parts, period);
        step_parts_push(&parts, rank, t->window);
    } else
        steps_whole_window(rank, t->window);
    step_parts_fini(&parts);
    return period > 0;
}

/* ---- ranges of the user ---- */

struct steps_range {
    int64_t start_ns, end_ns;
    uint32_t name;
    uint32_t plain; /* its name's hash without digits */
};
typedef ARRAY(struct steps_range) range_array;

static uint32_t hash_without_digits(const char *name)
{
    uint64_t hash = 1;
    for (; *name; name++)
        if (*name < '0' || *name > '9')
            hash = map_mix(hash + (unsigned char)*name);
    return (uint32_t)hash;
}

static bool covers_window(const struct training *t, const struct trace_span *span)
{
    int64_t start = window_start_ns(t), end = training_end_ns(t);
    return MIN(span_end_ns(span), end) - MAX(span->start_ns, start) >= (end - start) / 10 * 9;
}

/* The outermost ranges of the main thread that are no framework's marks and lie in no op. Those
 * around nearly everything are left out: returns whether there is one. *own: whether any is the
 * user's, and not a DataLoader's. */
static bool find_ranges(const struct training *t, range_array *ranges, bool *own)
{
    const struct rank_build *rank = t->rank;
    const struct trace_track *track = &rank->trace->tracks[rank->main_track];
    int64_t end = INT64_MIN;
    bool covered = false;
    *own = false;
    EACH_OF (const struct trace_span, span, rank->trace->spans + track->first, track->n) {
        uint32_t class = rank->classes[span->name];
        if (span->window != t->window || span->start_ns < end ||
            (span->kind != SPAN_ANNOTATION && span->kind != SPAN_CPU_OP))
            continue;
        if (span->kind == SPAN_ANNOTATION && (class & ~(uint32_t)NAME_LOADER) == 0) {
            if (!(class & NAME_LOADER) && covers_window(t, span)) {
                covered = true;
                continue;
            }
            *own |= !(class & NAME_LOADER);
            array_add(ranges, span->start_ns, span_end_ns(span), span->name,
                      hash_without_digits(span_name(rank, span)));
        }
        end = span_end_ns(span);
    }
    return covered;
}

/* The shortest period at which ranges repeat. */
static size_t period_of_ranges(const range_array *ranges, bool plain)
{
    SCRATCH ARRAY(uint32_t) names = {0};
    EACH (const struct steps_range, range, *ranges)
        array_push(&names, plain ? range->plain : range->name);
    return steps_find_period(names.at, names.n, 0);
}

/* Whether each iteration that begins with every period-th range from the first-th on holds a whole
 * pass, if there are any, and they are most of what the main thread did. */
static bool are_iterations(const struct training *t, const range_array *ranges, size_t first,
                           size_t period)
{
    size_t n_before = 0;
    for (size_t i = first; i < ranges->n; i += period) {
        int64_t start = ranges->at[i].start_ns;
        size_t n = training_backward_before(t, start);
        if (training_in_pass(t, start) || (t->backward.n > 0 && i > first && n == n_before))
            return false;
        n_before = n;
    }
    int64_t begin = window_start_ns(t), end = training_end_ns(t);
    return end - ranges->at[first].start_ns >= (end - begin) / 10 * 9 &&
           (t->backward.n == 0 || n_before < t->backward.n);
}

/* From one range to the next. The last one ends with its own ranges where these are nearly all of
 * the others', else with the window. Returns whether one range is nearly all of each. */
static bool push_ranges(struct rank_build *rank, const struct training *t,
                        const range_array *ranges, size_t first, size_t period)
{
    int64_t number = 0, in_ranges = 0, in_steps = 0;
    size_t i = first;
    for (; i + period < ranges->n; i += period) {
        int64_t start = ranges->at[i].start_ns, end = ranges->at[i + period].start_ns;
        for (size_t k = i; k < i + period; k++)
            in_ranges += ranges->at[k].end_ns - ranges->at[k].start_ns;
        in_steps += end - start;
        steps_push(rank, start, end, number++, t->window);
    }
    bool cover = in_ranges >= in_steps / 10 * 9;
    if (i + period <= ranges->n)
        steps_push(rank, ranges->at[i].start_ns,
                   cover ? ranges->at[i + period - 1].end_ns : training_end_ns(t), number,
                   t->window);
    return cover && period == 1;
}

enum ranges_found steps_from_ranges(struct rank_build *rank, const struct training *t,
                                    bool with_own, bool *covered)
{
    SCRATCH range_array ranges = {0};
    bool found = false, whole = false, own;
    *covered = find_ranges(t, &ranges, &own);
    if (with_own && !own)
        return RANGES_NONE;
    for (int plain = 0; plain <= (t->passes.n > 0) && !found && ranges.n > 1; plain++) {
        size_t period = period_of_ranges(&ranges, plain);
        for (size_t first = 0; first < period && !found && first + period < ranges.n; first++) {
            found = !(*covered && t->passes.n == 0) && are_iterations(t, &ranges, first, period);
            if (found) {
                whole = push_ranges(rank, t, &ranges, first, period);
                rank->steps.mark = ranges.at[first].name;
            }
        }
    }
    return !found ? RANGES_NONE : whole ? RANGES_WHOLE : RANGES_BEGIN;
}
