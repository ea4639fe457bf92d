/* The iterations of programs that ask an engine for work, as MXNet's.
 *
 * The program's own steps, which the recorder timed, end while their work goes on. So an iteration
 * is what the engine does between two waits for all work, or between exchanges with servers. */

#include "graph/steps/step_list.h"

/* Where a program only asks an engine for work, its steps end while their work goes on. If it waits
 * for all of it in every step, an iteration ends with that wait. */
static void steps_from_waits(struct rank_build *rank, uint32_t window)
{
    const struct trace_track *track = &rank->trace->tracks[rank->main_track];
    const struct recording *recording = rank->trace->recording;
    int64_t cut = ABSENT;
    size_t n_before = rank->steps.n, n_inside = 0;
    uint32_t i = track->first;
    EACH (const struct recorded_step, step, recording->steps) {
        int64_t end = ABSENT;
        if (step->start_ns < rank->trace->windows[window].start_ns ||
            step->end_ns > rank->trace->windows[window].end_ns)
            continue;
        n_inside++;
        for (; i < track->first + track->n && rank->trace->spans[i].start_ns < step->end_ns; i++) {
            const struct trace_span *span = &rank->trace->spans[i];
            if (strcmp(span_name(rank, span), "MXNDArrayWaitAll") == 0 &&
                span_end_ns(span) >= step->start_ns && span_end_ns(span) < step->end_ns)
                end = span_end_ns(span);
        }
        if (cut != ABSENT && end != ABSENT)
            steps_push(rank, cut, end, step->number, window);
        cut = end;
    }
    if (rank->steps.n - n_before + 2 < n_inside)
        rank->steps.n = n_before; /* not in every step */
}

/* How many exchanges an iteration has, one a key; 0: which key some are of nobody knows. */
static size_t count_keys(const struct rank_build *rank, uint32_t window)
{
    SCRATCH struct map keys = {0};
    SCRATCH span_array exchanges = steps_exchanges(rank, window);
    for (size_t i = 0; i < exchanges.n; i++) {
        uint32_t key = rank->trace->details[exchanges.at[i]->detail].process_group;
        if (key == 0)
            return 0;
        map_set(&keys, (uint64_t)key + 1, 1);
    }
    return keys.n;
}

void steps_from_recording(struct rank_build *rank, uint32_t class)
{
    const struct recording *recording = rank->trace->recording;
    (void)class;
    for (uint32_t w = 0; recording && w < rank->trace->n_windows; w++) {
        const struct trace_window *window = &rank->trace->windows[w];
        size_t n_before = rank->steps.n;
        steps_from_waits(rank, w);
        if (rank->steps.n > n_before)
            continue;
        EACH (const struct recorded_step, step, recording->steps)
            if (step->start_ns >= window->start_ns && step->end_ns <= window->end_ns)
                steps_push(rank, step->start_ns, step->end_ns, step->number, w);
        steps_cut_at_exchanges(rank, w, n_before, count_keys(rank, w));
    }
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
 * engine may begin some of them, not always the same, when the loop is in its next one. Then an
 * iteration is what lies between the last exchange to begin in one and in the next. */
void steps_cut_at_exchanges(struct rank_build *rank, uint32_t window, size_t first, size_t n)
{
    if (n == 0)
        return;
    span_array exchanges = steps_exchanges(rank, window);
    size_t n_before = rank->steps.n, n_loops = n_before - first;
    /* each that was asked for, but for what the recording's ends cut off */
    if (exchanges.n + n >= n_loops * n && exchanges.n <= (n_loops + 2) * n &&
        !begin_evenly(rank, &exchanges, first, n)) {
        int64_t number = 0;
        for (size_t i = last_in_iteration(&exchanges, n); i + n < exchanges.n; i += n)
            steps_push(rank, exchanges.at[i]->start_ns + 1, exchanges.at[i + n]->start_ns + 1,
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
                step->number = rank->steps.at[s].number;
            }
    }
    memmove(&rank->steps.at[first], &rank->steps.at[n_before],
            (rank->steps.n - n_before) * sizeof *rank->steps.at);
    rank->steps.n -= n_loops;
    rank->steps.end_with_exchange = true;
}
