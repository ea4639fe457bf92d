/* Iterations by what recurs: the main thread's sequence of outermost ops, or its calls of an
 * executor. */
#include <stdlib.h>

#include "base/stats.h"
#include "graph/steps/step_list.h"

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

void steps_from_period(struct rank_build *rank, uint32_t window)
{
    const struct trace_track *track = &rank->trace->tracks[rank->main_track];
    call_array calls = {0};
    ARRAY(uint32_t) names = {0};
    int64_t end = INT64_MIN, waited_until = INT64_MIN;
    EACH_OF (const struct trace_span, span, rank->trace->spans + track->first, track->n) {
        if (span->window != window || span->kind != SPAN_CPU_OP || span->start_ns < end)
            continue;
        end = span_end(span);
        if (rank->classes[span->name] & NAME_HOST_WAIT) { /* idle, and that is where loops end */
            waited_until = end;
            continue;
        }
        array_add(&calls, span->start_ns, end, span->name,
                  calls.n > 0 && waited_until > calls.at[calls.n - 1].start_ns);
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
            steps_push(rank, calls.at[i].start_ns, calls.at[i + period].start_ns, number++, window);
        /* the last one is whole if the program waited for it */
        if (i + period == calls.n && waited_until >= calls.at[calls.n - 1].end_ns)
            steps_push(rank, calls.at[i].start_ns, waited_until, number, window);
        steps_cut_at_exchanges(rank, window, n_before, n_asked);
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
        steps_push(rank, calls[i]->start_ns, calls[i + period]->start_ns, number++, window);
    array_fini(&ops);
    array_fini(&functions);
    array_fini(&called);
}

void steps_from_executor(struct rank_build *rank, uint32_t class)
{
    span_array calls = steps_marks(rank, class);
    for (uint32_t w = 0; w < rank->trace->n_windows; w++)
        steps_from_calls(rank, &calls, w);
    array_fini(&calls);
}
