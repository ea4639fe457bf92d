/* Where iterations begin and end. The first of these that the trace has: the steps of a TensorFlow
 * session; marks, ProfilerStep#N or those that --step-mark names; the steps that dpro's recorder
 * timed; the optimizer's steps; calls of an executor; a range of the user that is nearly all of
 * each iteration; ops that update weights; ranges that repeat; passes forward and back, or a
 * DataLoader's calls if they hold no fewer of them; the period of the main thread's sequence of
 * outermost ops. Where in doubt, all there is is one iteration. */

#include "graph/steps/training.h"

/* The number of the i-th marked step: what the framework counts, or the one behind the name's '#'.
 */
static int64_t number_of(const struct rank_build *rank, const span_array *marks, size_t i)
{
    const struct trace_span *mark = marks->at[i];
    if (rank->steps.named)
        return (int64_t)i;
    return mark->kind == SPAN_STEP ? mark->sequence
                                   : strtoll(strchr(span_name(rank, mark), '#') + 1, NULL, 10);
}

/* The CPU thread that drives the job: the one with most of the marks, else with most ops that are
 * not autograd's. */
static uint32_t find_main_track(const struct rank_build *rank, uint32_t classes,
                                const bool *in_backward)
{
    const struct trace_rank *trace = rank->trace;
    uint32_t best = NO_ID;
    uint64_t best_count = 0;
    for (uint32_t t = 0; t < trace->n_tracks; t++) {
        const struct trace_track *track = &trace->tracks[t];
        if (track->gpu || track->serial)
            continue;
        uint64_t count = 0;
        EACH_OF (const struct trace_span, span, trace->spans + track->first, track->n)
            if (classes != 0 ? steps_is_mark(rank, span, classes)
                             : span->kind == SPAN_CPU_OP &&
                                   !(in_backward && in_backward[span - trace->spans]))
                count++;
        if (count > best_count) {
            best_count = count;
            best = t;
        }
    }
    return best;
}

/* Two may mark the same iterations, such as the recorder and Keras: of marks that lie over each
 * other the first one tells. Ends may be a rounding beyond the next one's start. */
static void drop_second_marks(span_array *marks)
{
    size_t kept = 0;
    for (size_t i = 0; i < marks->n; i++) {
        const struct trace_span *last = kept ? marks->at[kept - 1] : NULL;
        if (!last || last->window != marks->at[i]->window ||
            marks->at[i]->start_ns >= span_end_ns(last) - last->dur_ns / 100)
            marks->at[kept++] = marks->at[i];
    }
    marks->n = kept;
}

/* Ranges that --step-mark names may be but a part of their iterations: then the last one goes on to
 * the window's end, but no longer than the longest before it. */
static int64_t end_of_last(const struct rank_build *rank, const struct trace_span *mark)
{
    const struct step *step = rank->steps.at + rank->steps.n;
    int64_t longest = 0, end = span_end_ns(mark);
    if (!rank->steps.named)
        return end;
    for (size_t i = rank->steps.n; i-- > 0 && (--step)->window == mark->window;)
        longest = MAX(longest, step->end_ns - step->start_ns);
    return (longest - mark->dur_ns) * 10 > longest
               ? MAX(end, MIN(mark->start_ns + longest, rank->trace->windows[mark->window].end_ns))
               : end;
}

/* ProfilerStep#N: an iteration reaches to the next mark, so that what the profiler itself does
 * between two steps belongs to the first; the last one ends with its own mark. */
static void steps_from_marks(struct rank_build *rank, uint32_t class)
{
    SCRATCH span_array marks = steps_marks(rank, class);
    drop_second_marks(&marks);
    for (size_t i = 0; i < marks.n; i++) {
        const struct trace_span *mark = marks.at[i];
        const struct trace_span *next = i + 1 < marks.n ? marks.at[i + 1] : NULL;
        int64_t number = number_of(rank, &marks, i);
        bool goes_on = next && next->window == mark->window &&
                       number_of(rank, &marks, i + 1) - 1 == number &&
                       next->start_ns > mark->start_ns;
        steps_push(rank, mark->start_ns, goes_on ? next->start_ns : end_of_last(rank, mark), number,
                   mark->window);
    }
    if (rank->steps.named && marks.n > 0)
        rank->steps.mark = marks.at[0]->name;
}

/* A session's steps: one a window. Where the next one was asked for as soon as all were done with
 * this one it begins there, so that the client's own time belongs to the step; the last one is as
 * long beyond its ops as the shortest of the others. */
static void steps_from_session(struct rank_build *rank, uint32_t class)
{
    const struct trace_rank *trace = rank->trace;
    int64_t shortest_rest = INT64_MAX;
    (void)class;
    for (uint32_t w = 0; w < trace->n_windows; w++) {
        const struct trace_window *window = &trace->windows[w];
        int64_t end = window->end_ns, whole_ns = window->whole_end_ns - window->whole_start_ns;
        if (w + 1 < trace->n_windows && trace->windows[w + 1].start_ns >= end &&
            trace->windows[w + 1].whole_start_ns - window->whole_end_ns <= whole_ns) {
            end = trace->windows[w + 1].start_ns;
            shortest_rest = MIN(shortest_rest, end - window->end_ns);
        } else if (shortest_rest != INT64_MAX) {
            end += shortest_rest;
        }
        steps_push(rank, window->start_ns, end, w, w);
        /* steps of one run follow each other though each has a window of its own */
        if (w > 0 && rank->steps.n > 1)
            rank->steps.at[rank->steps.n - 1].follows =
                rank->steps.at[rank->steps.n - 2].end_ns == window->start_ns;
    }
}

/* ---- what Horovod works at while an iteration ends ---- */

/* The round that begins nearest to a time; NO_ID: none is known. */
static uint32_t nearest_round(const struct fused_rank *fused, int64_t time_ns)
{
    uint32_t best = NO_ID;
    int64_t least = INT64_MAX;
    for (uint32_t r = 0; r < fused->n_rounds; r++) {
        if (fused->starts_ns[r] != ABSENT && llabs(fused->starts_ns[r] - time_ns) < least) {
            least = llabs(fused->starts_ns[r] - time_ns);
            best = r;
        }
    }
    return best;
}

/* Whether an iteration ends when a round has begun, with most of it still to come. */
static bool cuts_a_round(const struct rank_build *rank)
{
    const struct fused_rank *fused = &rank->trace->fused;
    for (size_t s = 0; s < rank->steps.n; s++) {
        int64_t end = rank->steps.at[s].end_ns;
        for (uint32_t r = 0; r < fused->n_rounds; r++)
            if (fused->starts_ns[r] != ABSENT && fused->starts_ns[r] < end &&
                fused->ends_ns[r] - end > end - fused->starts_ns[r])
                return true;
    }
    return false;
}

/* Where the program waits only for its loss, an iteration ends in the midst of a round, at another
 * place in it on every rank and each time. Then the iterations are those of the rounds: from the
 * first tensor that is handed over in one to that of the next. */
static void cut_at_rounds(struct rank_build *rank)
{
    const struct fused_rank *fused = &rank->trace->fused;
    size_t n = 0;
    if (!cuts_a_round(rank))
        return;
    for (size_t s = 0; s < rank->steps.n; s++) {
        struct step step = rank->steps.at[s];
        uint32_t r = nearest_round(fused, step.start_ns), next = r == NO_ID ? NO_ID : r + 1;
        if (next == NO_ID || next >= fused->n_rounds || fused->starts_ns[next] == ABSENT ||
            fused->starts_ns[next] <= fused->starts_ns[r] ||
            (n > 0 && rank->steps.at[n - 1].start_ns >= fused->starts_ns[r]))
            continue;
        step.start_ns = step.program_start_ns = fused->starts_ns[r];
        step.end_ns = step.program_end_ns = fused->starts_ns[next];
        step.follows = n > 0 && rank->steps.at[n - 1].end_ns == step.start_ns &&
                       rank->steps.at[n - 1].window == step.window;
        rank->steps.at[n++] = step;
    }
    if (n > 0)
        rank->steps.n = n;
}

/* The first of these that finds iterations tells. The main thread is the one with most spans of
 * the class, or with most ops. */
static const struct {
    enum step_source source;
    uint32_t class;
    void (*find)(struct rank_build *rank, uint32_t class);
} sources[] = {
    {STEPS_SESSION, 0, steps_from_session},
    {STEPS_MARKED, NAME_STEP, steps_from_marks},
    {STEPS_RECORDED, 0, steps_from_recording},
    {STEPS_OPTIMIZER, NAME_OPTIMIZER_STEP, steps_from_optimizer},
    {STEPS_OPTIMIZER, NAME_ZERO_GRAD, steps_from_optimizer},
    {STEPS_PERIOD, NAME_EXECUTOR_CALL, steps_from_executor},
};

/* Drops the iterations from the first-th up to the middle-th. */
static void drop_found(struct rank_build *rank, size_t first, size_t middle)
{
    memmove(rank->steps.at + first, rank->steps.at + middle,
            (rank->steps.n - middle) * sizeof *rank->steps.at);
    rank->steps.n -= middle - first;
}

/* A DataLoader may be called for each micro-batch, or by a validation pass: of its iterations and
 * those by passes, the ones that hold more are taken. */
static enum step_source look_for_passes(struct rank_build *rank, const struct training *t)
{
    bool covered, update;
    size_t first = rank->steps.n;
    uint32_t mark = rank->steps.mark;
    enum step_source source = steps_from_passes(rank, t, &update) ? STEPS_PASSES : STEPS_NONE;
    size_t middle = rank->steps.n;
    if (steps_from_ranges(rank, t, false, &covered) == RANGES_NONE)
        return source;
    if (source == STEPS_PASSES && rank->steps.n - middle > middle - first) {
        rank->steps.n = middle;
        rank->steps.mark = mark;
        return source;
    }
    drop_found(rank, first, middle);
    return STEPS_RANGES;
}

/* Of iterations that begin with a range of the user, from the first-th on, and those that end with
 * an update of parameters. A range that is nearly all of one may hold several updates. One that is
 * a part of it may come in some iterations only, as a checkpoint does, or in each micro-batch. */
static enum step_source look_for_updates(struct rank_build *rank, const struct training *t,
                                         size_t first, enum ranges_found ranges)
{
    bool update = false;
    size_t middle = rank->steps.n, n_ranges = middle - first;
    uint32_t mark = rank->steps.mark;
    enum step_source source = STEPS_OPTIMIZER;
    if (!steps_from_updates(rank, t)) {
        if (ranges == RANGES_NONE)
            return look_for_passes(rank, t);
        source = steps_from_passes(rank, t, &update) && update ? STEPS_PASSES : STEPS_NONE;
    }
    size_t n = rank->steps.n - middle;
    if (ranges != RANGES_NONE &&
        (source == STEPS_NONE ||
         (ranges == RANGES_WHOLE ? n_ranges < 2 * n : update && n <= n_ranges))) {
        rank->steps.n = middle;
        rank->steps.mark = mark;
        return STEPS_RANGES;
    }
    drop_found(rank, first, middle);
    return source;
}

static enum step_source look_for_loop(struct rank_build *rank, uint32_t window,
                                      const bool *in_backward)
{
    enum step_source source = STEPS_NONE;
    size_t first = rank->steps.n;
    struct training t;
    bool covered; /* by a range of the user: what repeats within is no iteration */
    training_find(&t, rank, window, in_backward);
    enum ranges_found ranges = steps_from_ranges(rank, &t, t.passes.n > 0, &covered);
    if (t.passes.n > 0)
        source = look_for_updates(rank, &t, first, ranges);
    else if (ranges != RANGES_NONE)
        source = STEPS_RANGES;
    else if (!covered && steps_from_period(rank, window))
        source = STEPS_PERIOD;
    else
        steps_whole_window(rank, window);
    training_fini(&t);
    return source;
}

/* Of each window the iterations of its loop; all there is as one where no loop shows. */
static void look_for_loops(struct rank_build *rank)
{
    SCRATCH bool *in_backward = training_find_backward(rank);
    rank->main_track = find_main_track(rank, 0, in_backward);
    for (uint32_t w = 0; w < rank->trace->n_windows; w++) {
        enum step_source source = STEPS_NONE;
        if (rank->main_track != NO_ID)
            source = look_for_loop(rank, w, in_backward);
        else
            steps_whole_window(rank, w);
        rank->steps.source = MAX(rank->steps.source, source);
    }
}

/* Of a recording without what CPUs do, by what the GPU's longest stream repeats: where CPUs are
 * ahead, its work lies elsewhere than their marks. */
static void look_at_gpu(struct rank_build *rank)
{
    const struct trace_rank *trace = rank->trace;
    uint32_t best = NO_ID;
    for (uint32_t t = 0; t < trace->n_tracks; t++) {
        const struct trace_track *track = &trace->tracks[t];
        EACH_OF (const struct trace_span, span, trace->spans + track->first, track->n)
            if (!track->gpu && (span->kind == SPAN_CPU_OP || span->kind == SPAN_RUNTIME))
                return;
        if (track->gpu && (best == NO_ID || track->n > trace->tracks[best].n))
            best = t;
    }
    rank->main_track = best;
    for (uint32_t w = 0; w < trace->n_windows && best != NO_ID; w++)
        steps_from_period(rank, w);
    rank->main_track = NO_ID;
    rank->steps.source = rank->steps.n > 0 ? STEPS_PERIOD : STEPS_NONE;
}

void build_steps(struct rank_build *rank)
{
    const struct trace_window *windows = rank->trace->windows;
    rank->steps.source = STEPS_NONE;
    if (!rank->steps.named)
        look_at_gpu(rank);
    for (size_t i = 0; i < sizeof sources / sizeof *sources && rank->steps.n == 0; i++) {
        bool session = sources[i].source == STEPS_SESSION;
        if ((session && !rank->trace->in_session) ||
            (rank->steps.named && sources[i].source != STEPS_MARKED))
            continue;
        rank->main_track = find_main_track(rank, sources[i].class, NULL);
        if (!session && rank->main_track == NO_ID)
            continue;
        sources[i].find(rank, sources[i].class);
        rank->steps.source = rank->steps.n > 0 ? sources[i].source : STEPS_NONE;
    }
    if (rank->steps.n == 0 && !rank->steps.named)
        look_for_loops(rank);
    if (rank->trace->fused.n_rounds > 0)
        cut_at_rounds(rank);

    /* Times come from windows without an execution trace, if there are any. */
    bool clean = false;
    for (size_t s = 0; s < rank->steps.n; s++)
        clean |= !windows[rank->steps.at[s].window].has_execution_trace;
    for (size_t s = 0; s < rank->steps.n; s++)
        rank->steps.at[s].timed = !clean || !windows[rank->steps.at[s].window].has_execution_trace;
}
