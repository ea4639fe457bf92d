/* graph/steps/find_steps.c: where iterations begin and end.
 *
 * PyTorch's own marks (ProfilerStep#N) are best; else what dpro's recorder timed; else the
 * optimizer's zero_grad or step, once an iteration; else the period of the main thread's sequence
 * of outermost ops. */
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/memory.h"
#include "base/sort.h"
#include "base/stats.h"
#include "graph/names/span_names.h"
#include "graph/rank_build.h"

typedef ARRAY(const struct trace_span *) span_array;
typedef ARRAY(int64_t) i64_array;

static const char *name_of(const struct rank_build *rank, const struct trace_span *span)
{
    return strtab_get(rank->names, span->name);
}

ORDER_OF_POINTERS(compare_spans, struct trace_span, ASCENDING(window) ?: ASCENDING(start_ns));

static int64_t span_end(const struct trace_span *span)
{
    return span->start_ns + span->dur_ns;
}

/* Whether the span is of one of the classes of marks. */
static bool is_of(const struct rank_build *rank, const struct trace_span *span, uint32_t classes)
{
    if (span->kind == SPAN_STEP)
        return classes & NAME_STEP;
    return span->kind <= SPAN_ANNOTATION && (rank->classes[span->name] & classes);
}

/* The number of a marked step: what the framework counts, or the one behind the name's '#'. */
static int64_t number_of(const struct rank_build *rank, const struct trace_span *mark)
{
    return mark->kind == SPAN_STEP ? mark->sequence
                                   : strtoll(strchr(name_of(rank, mark), '#') + 1, NULL, 10);
}

/* The CPU thread that drives the job: the one with most of the marks, else with most ops. */
static uint32_t find_main_track(const struct rank_build *rank, uint32_t classes)
{
    const struct trace_rank *trace = rank->trace;
    uint32_t best = NO_ID;
    uint64_t best_count = 0;
    for (uint32_t t = 0; t < trace->n_tracks; t++) {
        const struct trace_track *track = &trace->tracks[t];
        if (track->gpu || track->serial)
            continue;
        uint64_t count = 0;
        for (uint32_t i = track->first; i < track->first + track->n; i++) {
            const struct trace_span *span = &trace->spans[i];
            if (classes == 0 ? span->kind == SPAN_CPU_OP : is_of(rank, span, classes))
                count++;
        }
        if (count > best_count) {
            best_count = count;
            best = t;
        }
    }
    return best;
}

/* The CPU spans of a class on the main track. */
static span_array collect(const struct rank_build *rank, uint32_t class)
{
    const struct trace_track *track = &rank->trace->tracks[rank->main_track];
    span_array found = {0};
    for (uint32_t i = track->first; i < track->first + track->n; i++)
        if (is_of(rank, &rank->trace->spans[i], class))
            array_push(&found, &rank->trace->spans[i]);
    array_sort(&found, compare_spans);
    return found;
}

static void push_step(struct rank_build *rank, int64_t start, int64_t end, int64_t number,
                      uint32_t window)
{
    if (end <= start)
        return;
    struct step step = {.start_ns = start,
                        .end_ns = end,
                        .program_start_ns = start,
                        .program_end_ns = end,
                        .number = number,
                        .window = (uint16_t)window,
                        .timed = true};
    if (rank->steps.n > 0) {
        const struct step *before = &rank->steps.at[rank->steps.n - 1];
        step.follows = before->window == window && before->end_ns == start;
    }
    array_push(&rank->steps, step);
}

/* Two may mark the same iterations, such as the recorder and Keras: of marks that lie over each
 * other the first one tells. Ends may be a rounding beyond the next one's start. */
static void drop_second_marks(span_array *marks)
{
    size_t kept = 0;
    for (size_t i = 0; i < marks->n; i++) {
        const struct trace_span *last = kept ? marks->at[kept - 1] : NULL;
        if (!last || last->window != marks->at[i]->window ||
            marks->at[i]->start_ns >= span_end(last) - last->dur_ns / 100)
            marks->at[kept++] = marks->at[i];
    }
    marks->n = kept;
}

/* ProfilerStep#N: an iteration reaches to the next mark, so that what the profiler itself does
 * between two steps belongs to the first; the last one ends with its own mark. */
static void steps_from_marks(struct rank_build *rank, uint32_t class)
{
    span_array marks = collect(rank, class);
    drop_second_marks(&marks);
    for (size_t i = 0; i < marks.n; i++) {
        const struct trace_span *mark = marks.at[i];
        const struct trace_span *next = i + 1 < marks.n ? marks.at[i + 1] : NULL;
        int64_t number = number_of(rank, mark);
        bool goes_on = next && next->window == mark->window &&
                       number_of(rank, next) - 1 == number && next->start_ns > mark->start_ns;
        push_step(rank, mark->start_ns, goes_on ? next->start_ns : span_end(mark), number,
                  mark->window);
    }
    array_fini(&marks);
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
        push_step(rank, window->start_ns, end, w, w);
        /* steps of one run follow each other though each has a window of its own */
        if (w > 0 && rank->steps.n > 1)
            rank->steps.at[rank->steps.n - 1].follows =
                rank->steps.at[rank->steps.n - 2].end_ns == window->start_ns;
    }
}

/* ---- by what an engine did ---- */

ORDER_OF_POINTERS(compare_starts, struct trace_span, ASCENDING(start_ns) ?: ASCENDING(name));

/* The exchanges with servers in a window. */
static span_array list_exchanges(const struct rank_build *rank, uint32_t window)
{
    span_array exchanges = {0};
    for (uint32_t i = 0; i < rank->trace->n_spans; i++) {
        const struct trace_span *span = &rank->trace->spans[i];
        if (span->window == window && span->kind == SPAN_ANNOTATION && span->detail != NO_ID &&
            (rank->classes[span->name] & NAME_EXCHANGE))
            array_push(&exchanges, span);
    }
    array_sort(&exchanges, compare_starts);
    return exchanges;
}

/* The recorded step that a time is in; NULL: none. */
static const struct recorded_step *recorded_at(const struct recording *recording, int64_t ns)
{
    for (size_t s = 0; s < recording->steps.n; s++)
        if (recording->steps.at[s].start_ns <= ns && ns < recording->steps.at[s].end_ns)
            return &recording->steps.at[s];
    return NULL;
}

/* Where a program only asks an engine for work, its steps end while their work goes on. If it waits
 * for all of it in every step, an iteration ends with that wait. */
static void steps_from_waits(struct rank_build *rank, uint32_t window)
{
    const struct trace_track *track = &rank->trace->tracks[rank->main_track];
    const struct recording *recording = rank->trace->recording;
    int64_t cut = ABSENT;
    size_t n_before = rank->steps.n, n_inside = 0;
    uint32_t i = track->first;
    for (size_t s = 0; s < recording->steps.n; s++) {
        const struct recorded_step *step = &recording->steps.at[s];
        int64_t end = ABSENT;
        if (step->start_ns < rank->trace->windows[window].start_ns ||
            step->end_ns > rank->trace->windows[window].end_ns)
            continue;
        n_inside++;
        for (; i < track->first + track->n && rank->trace->spans[i].start_ns < step->end_ns; i++) {
            const struct trace_span *span = &rank->trace->spans[i];
            if (strcmp(name_of(rank, span), "MXNDArrayWaitAll") == 0 &&
                span_end(span) >= step->start_ns && span_end(span) < step->end_ns)
                end = span_end(span);
        }
        if (cut != ABSENT && end != ABSENT)
            push_step(rank, cut, end, step->number, window);
        cut = end;
    }
    if (rank->steps.n - n_before + 2 < n_inside)
        rank->steps.n = n_before; /* not in every step */
}

/* Adds an iteration of the engine. The program's own step, which ends about when its gradients
 * leave, is the one around its middle. */
static void push_engine_step(struct rank_build *rank, int64_t start, int64_t end, uint32_t window)
{
    const struct recorded_step *own =
        recorded_at(rank->trace->recording, start + (end - start) / 2);
    const struct step *before = rank->steps.n ? &rank->steps.at[rank->steps.n - 1] : NULL;
    if (!own || (before && own->start_ns < before->program_end_ns))
        return;
    size_t n = rank->steps.n;
    push_step(rank, start, end, own->number, window);
    if (rank->steps.n > n) {
        rank->steps.at[n].program_start_ns = own->start_ns;
        rank->steps.at[n].program_end_ns = own->end_ns;
    }
}

/* Else an iteration is what lies between the last exchange to begin in one and in the next: all of
 * its exchanges, each key's once, begin in it. */
static void steps_from_exchanges(struct rank_build *rank, uint32_t window)
{
    struct map keys = {0}; /* of the iteration at hand */
    int64_t cut = ABSENT, last = ABSENT;
    span_array exchanges = list_exchanges(rank, window);
    for (size_t i = 0; i < exchanges.n; i++) {
        const struct trace_span *span = exchanges.at[i];
        uint32_t key = rank->trace->details[span->detail].process_group;
        if (key == 0)
            break; /* which key it is nobody knows */
        if (map_get(&keys, (uint64_t)key + 1, NULL)) {
            if (cut != ABSENT)
                push_engine_step(rank, cut, last + 1, window);
            cut = last + 1;
            map_fini(&keys);
        }
        map_set(&keys, (uint64_t)key + 1, 1);
        last = span->start_ns;
    }
    map_fini(&keys);
    array_fini(&exchanges);
}

/* The steps that dpro's recorder timed, those that lie in a window. */
static void steps_from_recording(struct rank_build *rank, uint32_t class)
{
    const struct recording *recording = rank->trace->recording;
    (void)class;
    for (uint32_t w = 0; recording && w < rank->trace->n_windows; w++) {
        const struct trace_window *window = &rank->trace->windows[w];
        size_t n_before = rank->steps.n;
        steps_from_waits(rank, w);
        if (rank->steps.n > n_before)
            continue;
        steps_from_exchanges(rank, w);
        rank->steps.end_with_exchange |= rank->steps.n > n_before;
        if (rank->steps.n > n_before)
            continue;
        for (size_t s = 0; s < recording->steps.n; s++) {
            const struct recorded_step *step = &recording->steps.at[s];
            if (step->start_ns >= window->start_ns && step->end_ns <= window->end_ns)
                push_step(rank, step->start_ns, step->end_ns, step->number, w);
        }
    }
}

/* When autograd's functions began, on any thread. */
static i64_array find_backward(const struct rank_build *rank)
{
    i64_array starts = {0};
    for (uint32_t i = 0; i < rank->trace->n_spans; i++) {
        const struct trace_span *span = &rank->trace->spans[i];
        if (span->kind == SPAN_CPU_OP && (rank->classes[span->name] & NAME_BACKWARD))
            array_push(&starts, span->start_ns);
    }
    sort_i64(starts.at, starts.n);
    return starts;
}

static size_t count_before(const i64_array *times, int64_t ns)
{
    return LOWER_BOUND(i, 0, times->n, times->at[i] < ns);
}

/* Once an iteration: zero_grad's start or step's end. With several optimizers, the first one's:
 * that of its name, with a backward pass since the one before. */
static void steps_from_optimizer(struct rank_build *rank, uint32_t class)
{
    i64_array backward = find_backward(rank);
    span_array marks = collect(rank, class);
    const struct trace_span *before = NULL, *latest = NULL;
    int64_t number = 0;
    for (size_t i = 0; i < marks.n; i++) {
        const struct trace_span *mark = marks.at[i];
        if (mark->name != marks.at[0]->name)
            continue;
        bool again =
            latest && backward.n > 0 && latest->window == mark->window &&
            count_before(&backward, latest->start_ns) == count_before(&backward, mark->start_ns);
        latest = mark;
        if (again)
            continue;
        if (before && before->window == mark->window) {
            bool at_start = class == NAME_ZERO_GRAD;
            push_step(rank, at_start ? before->start_ns : span_end(before),
                      at_start ? mark->start_ns : span_end(mark), number++, mark->window);
        }
        before = mark;
    }
    array_fini(&backward);
    array_fini(&marks);
}

/* The shortest period at which the sequence repeats in nine of ten places; 0: none. */
static size_t find_period(const uint32_t *names, size_t n)
{
    n = MIN(n, 20000); /* enough to see a loop; keeps the search short */
    for (size_t period = 1; period <= n / 2; period++) {
        size_t all = n - period, wrong = 0;
        for (size_t i = 0; i < all && wrong <= all / 10; i++)
            wrong += names[i] != names[i + period];
        if (wrong <= all / 10 && wrong < all)
            return period;
    }
    return 0;
}

/* A call of the program's loop. */
struct call {
    int64_t start_ns, end_ns;
    uint32_t name;
    bool waited; /* before it the program waited for what it had asked for */
};
typedef ARRAY(struct call) call_array;

/* Where in a period its iterations begin. Of a program that asks for exchanges with servers: where
 * it first waits after the last of them, which is the same place on every rank. Else after the
 * stretch that is usually the longest idle one, as the best guess at a loop's head that the
 * timeline alone allows; of one period alone it would be chance. */
static size_t find_head(const struct rank_build *rank, const call_array *calls, size_t period)
{
    i64_array idle = {0};
    int64_t longest = -1;
    size_t last = 0, head = 0;
    for (size_t i = 0; i < period; i++)
        if (rank->classes[calls->at[i].name] & NAME_EXCHANGE_CALL)
            last = i + 1;
    for (size_t i = last; last > 0 && i < last + period && i < calls->n; i++)
        if (calls->at[i].waited)
            return i % period;
    for (size_t place = 1; place <= period; place++) {
        idle.n = 0;
        for (size_t i = place; i < calls->n; i += period)
            array_push(&idle, calls->at[i].start_ns - calls->at[i - 1].end_ns);
        if (idle.n == 0)
            break;
        int64_t usual = stats_median_upper_i64(idle.at, idle.n);
        if (usual > longest) {
            longest = usual;
            head = place % period;
        }
    }
    array_fini(&idle);
    return head;
}

/* Of the window's exchanges the one that begins last in an iteration, where each has n of them: the
 * first of those places after which it is idle longest, over all of them. */
static size_t last_in_iteration(const span_array *exchanges, size_t n)
{
    size_t best = 0;
    int64_t longest = -1;
    for (size_t place = 0; place < n; place++) {
        int64_t idle = 0;
        for (size_t i = place; i + 1 < exchanges->n; i += n)
            idle += exchanges->at[i + 1]->start_ns - exchanges->at[i]->start_ns;
        if (idle > longest) {
            longest = idle;
            best = place;
        }
    }
    return best;
}

/* Whether as many exchanges begin in each step from the first-th on. */
static bool begin_evenly(const struct rank_build *rank, const span_array *exchanges, size_t first,
                         size_t n)
{
    size_t e = 0;
    for (size_t s = first; s < rank->steps.n; s++) {
        size_t in_step = 0;
        while (e < exchanges->n && exchanges->at[e]->start_ns < rank->steps.at[s].start_ns)
            e++;
        for (; e < exchanges->n && exchanges->at[e]->start_ns < rank->steps.at[s].end_ns; e++)
            in_step++;
        if (in_step != n)
            return false;
    }
    return true;
}

/* A loop asks for n exchanges in each of its iterations, the steps from the first-th on, and the
 * engine may begin with some of them when the loop is in its next one, and not each time with the
 * same. Then an iteration is what lies between the last exchange to begin in one and in the next.
 */
static void cut_at_exchanges(struct rank_build *rank, uint32_t window, size_t first, size_t n)
{
    if (n == 0)
        return;
    span_array exchanges = list_exchanges(rank, window);
    size_t n_before = rank->steps.n, n_loops = n_before - first;
    /* each that was asked for, but for what the recording's ends cut off */
    if (exchanges.n + n >= n_loops * n && exchanges.n <= (n_loops + 2) * n &&
        !begin_evenly(rank, &exchanges, first, n)) {
        int64_t number = 0;
        for (size_t i = last_in_iteration(&exchanges, n); i + n < exchanges.n; i += n)
            push_step(rank, exchanges.at[i]->start_ns + 1, exchanges.at[i + n]->start_ns + 1,
                      number++, window);
    }
    array_fini(&exchanges);
    if (rank->steps.n == n_before)
        return;
    for (size_t e = n_before; e < rank->steps.n; e++) {
        struct step *step = &rank->steps.at[e];
        int64_t middle = step->start_ns + (step->end_ns - step->start_ns) / 2;
        for (size_t s = first; s < n_before; s++)
            if (rank->steps.at[s].start_ns <= middle && middle < rank->steps.at[s].end_ns) {
                step->program_start_ns = rank->steps.at[s].start_ns;
                step->program_end_ns = rank->steps.at[s].end_ns;
            }
    }
    memmove(&rank->steps.at[first], &rank->steps.at[n_before],
            (rank->steps.n - n_before) * sizeof *rank->steps.at);
    rank->steps.n -= n_loops;
    rank->steps.end_with_exchange = true;
}

/* The iterations of the main thread's loop. */
static void steps_from_period(struct rank_build *rank, uint32_t window)
{
    const struct trace_track *track = &rank->trace->tracks[rank->main_track];
    call_array calls = {0};
    ARRAY(uint32_t) names = {0};
    int64_t end = INT64_MIN, waited_until = INT64_MIN;
    for (uint32_t i = track->first; i < track->first + track->n; i++) {
        const struct trace_span *span = &rank->trace->spans[i];
        if (span->window != window || span->kind != SPAN_CPU_OP || span->start_ns < end)
            continue;
        end = span_end(span);
        if (rank->classes[span->name] & NAME_HOST_WAIT) { /* idle, and that is where loops end */
            waited_until = end;
            continue;
        }
        struct call call = {span->start_ns, end, span->name,
                            calls.n > 0 && waited_until > calls.at[calls.n - 1].start_ns};
        array_push(&calls, call);
        array_push(&names, span->name);
    }
    size_t period = calls.n >= 6 ? find_period(names.at, names.n) : 0;
    /* a loop over one op is a loop inside an iteration, not training */
    if (period >= 3) {
        int64_t number = 0;
        size_t n_asked = 0, n_before = rank->steps.n, i = find_head(rank, &calls, period);
        for (size_t k = 0; k < period; k++)
            n_asked += (rank->classes[calls.at[k].name] & NAME_EXCHANGE_CALL) != 0;
        for (; i + period < calls.n; i += period)
            push_step(rank, calls.at[i].start_ns, calls.at[i + period].start_ns, number++, window);
        /* the last one is whole if the program waited for it */
        if (i + period == calls.n && waited_until >= calls.at[calls.n - 1].end_ns)
            push_step(rank, calls.at[i].start_ns, waited_until, number, window);
        cut_at_exchanges(rank, window, n_before, n_asked);
    }
    array_fini(&calls);
    array_fini(&names);
}

/* Ops of the executor's threads, by start. */
static i64_array find_pooled(const struct rank_build *rank)
{
    i64_array starts = {0};
    for (uint32_t i = 0; i < rank->trace->n_spans; i++)
        if (rank->trace->tracks[rank->trace->spans[i].track].pool)
            array_push(&starts, rank->trace->spans[i].start_ns);
    sort_i64(starts.at, starts.n);
    return starts;
}

/* Calls that run as many ops, but for a tenth, call the same function. A number for each. */
static uint32_t function_of(i64_array *functions, int64_t n_ops)
{
    for (size_t f = 0; f < functions->n; f++)
        if (llabs(functions->at[f] - n_ops) * 10 <= functions->at[f])
            return (uint32_t)f;
    array_push(functions, n_ops);
    return (uint32_t)functions->n - 1;
}

/* An iteration calls the executor for the same functions, one after the other; it begins with the
 * largest of them. */
static void steps_from_calls(struct rank_build *rank, const span_array *all, uint32_t window)
{
    enum { MOST_FUNCTIONS = 1000 };
    i64_array ops = find_pooled(rank), functions = {0};
    ARRAY(uint32_t) called = {0};
    size_t first = 0, n = all->n;
    while (first < n && all->at[first]->window != window)
        first++;
    while (n > first && all->at[n - 1]->window != window)
        n--;
    const struct trace_span *const *calls = all->at + first;
    n -= first;
    for (size_t i = 0; i + 1 < n && functions.n < MOST_FUNCTIONS; i++) {
        size_t n_ops =
            count_before(&ops, calls[i + 1]->start_ns) - count_before(&ops, calls[i]->start_ns);
        array_push(&called, function_of(&functions, (int64_t)n_ops));
    }
    size_t period = called.n >= 2 ? find_period(called.at, called.n) : 0, phase = 0;
    for (size_t i = 1; i < period; i++)
        if (functions.at[called.at[i]] > functions.at[called.at[phase]])
            phase = i;
    int64_t number = 0;
    for (size_t i = phase; period > 0 && i + period < n; i += period)
        push_step(rank, calls[i]->start_ns, calls[i + period]->start_ns, number++, window);
    array_fini(&ops);
    array_fini(&functions);
    array_fini(&called);
}

static void steps_from_executor(struct rank_build *rank, uint32_t class)
{
    span_array calls = collect(rank, class);
    for (uint32_t w = 0; w < rank->trace->n_windows; w++)
        steps_from_calls(rank, &calls, w);
    array_fini(&calls);
}

/* All there is, as one iteration: from the first to the last op of the window. */
static void whole_window(struct rank_build *rank, uint32_t window)
{
    int64_t start = INT64_MAX, end = INT64_MIN;
    for (uint32_t i = 0; i < rank->trace->n_spans; i++) {
        const struct trace_span *span = &rank->trace->spans[i];
        if (span->window != window)
            continue;
        start = MIN(start, span->start_ns);
        end = MAX(end, span_end(span));
    }
    if (start != INT64_MAX)
        push_step(rank, start, MAX(end, start + 1), 0, window);
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
    {STEPS_OPTIMIZER, NAME_ZERO_GRAD, steps_from_optimizer},
    {STEPS_OPTIMIZER, NAME_OPTIMIZER_STEP, steps_from_optimizer},
    {STEPS_PERIOD, NAME_EXECUTOR_CALL, steps_from_executor},
};

/* Of each window the iterations of its loop; all there is as one where no loop shows. */
static void look_for_loops(struct rank_build *rank)
{
    rank->main_track = find_main_track(rank, 0);
    for (uint32_t w = 0; w < rank->trace->n_windows; w++) {
        size_t before = rank->steps.n;
        if (rank->main_track != NO_ID)
            steps_from_period(rank, w);
        if (rank->steps.n > before)
            rank->steps.source = STEPS_PERIOD;
        else
            whole_window(rank, w);
    }
}

void build_steps(struct rank_build *rank)
{
    const struct trace_window *windows = rank->trace->windows;
    rank->steps.source = STEPS_NONE;
    for (size_t i = 0; i < sizeof sources / sizeof *sources && rank->steps.n == 0; i++) {
        bool session = sources[i].source == STEPS_SESSION;
        if (session && !rank->trace->in_session)
            continue;
        rank->main_track = find_main_track(rank, sources[i].class);
        if (!session && rank->main_track == NO_ID)
            continue;
        sources[i].find(rank, sources[i].class);
        rank->steps.source = rank->steps.n > 0 ? sources[i].source : STEPS_NONE;
    }
    if (rank->steps.n == 0)
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
