/* Iterations by what recurs: the main thread's sequence of outermost ops, or its calls of an
 * executor. */

#include "graph/steps/step_list.h"

enum { ENOUGH = 20000 }; /* to see a loop; keeps the search short */

/* In how many places of n - period a sequence does not repeat; more than `most`: many. */
static size_t count_wrong(const uint32_t *names, size_t n, size_t period, size_t most)
{
    size_t wrong = 0;
    for (size_t i = 0; i + period < n && wrong <= most; i++)
        wrong += names[i] != names[i + period];
    return wrong;
}

size_t steps_find_period(const uint32_t *names, size_t n, size_t above)
{
    n = MIN(n, ENOUGH);
    for (size_t period = above + 1; period <= n / 2; period++) {
        size_t all = n - period, wrong = count_wrong(names, n, period, all / 10);
        if (wrong <= all / 10 && wrong < all)
            return period;
    }
    return 0;
}

/* A call of the program's loop. */
struct steps_call {
    int64_t start_ns, end_ns;
    uint32_t name;
    bool waited; /* before it the program waited for what it had asked for */
};
typedef ARRAY(struct steps_call) call_array;
typedef ARRAY(uint32_t) name_array;

/* By places of a period: the longest that the program is usually idle, and the second longest. */
struct idle {
    int64_t longest_ns, second_ns;
};

/* Where in a period its iterations begin. Of a program that asks for exchanges with servers: where
 * it first waits after the last of them, which is the same place on every rank. Else after the
 * stretch that is usually the longest idle one, as the best guess at a loop's head that the
 * timeline alone allows; of one period alone it would be chance. */
static size_t find_head(const struct rank_build *rank, const call_array *calls, size_t period,
                        struct idle *usually)
{
    SCRATCH i64_array idle = {0};
    size_t last = 0, head = 0;
    *usually = (struct idle){-1, -1};
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
        if (usual > usually->longest_ns) {
            usually->second_ns = usually->longest_ns;
            usually->longest_ns = usual;
            head = place % period;
        } else {
            usually->second_ns = MAX(usually->second_ns, usual);
        }
    }
    return head;
}

/* When calls that communicate began. */
static i64_array find_communication(const struct rank_build *rank, uint32_t window)
{
    i64_array starts = {0};
    EACH_OF (const struct trace_span, span, rank->trace->spans, rank->trace->n_spans)
        if (span->window == window && span->kind <= SPAN_ANNOTATION &&
            (rank->classes[span->name] & (NAME_COMM_CALL | NAME_COMM_PARAM | NAME_COMM_RUN)))
            array_push(&starts, span->start_ns);
    sort_i64(starts.at, starts.n);
    return starts;
}

/* Whether each period communicates, if anything does. */
static bool all_communicate(const call_array *calls, size_t period, const i64_array *starts)
{
    for (size_t i = 0; i + period < calls->n && starts->n > 0; i += period)
        if (count_before(starts, calls->at[i].start_ns) ==
            count_before(starts, calls->at[i + period].start_ns))
            return false;
    return true;
}

/* Whether a shorter period shows in at least half of the places, and not in all: layers. */
static bool holds_layers(const name_array *names, size_t period)
{
    size_t n = MIN(names->n, ENOUGH);
    for (size_t shorter = 1; shorter < period; shorter++) {
        size_t half = (n - shorter) / 2, wrong = count_wrong(names->at, n, shorter, half);
        if (wrong > 0 && wrong <= half)
            return true;
    }
    return false;
}

/* A model's layers repeat, too, as do parts of a layer. A loop around the model shows by this: all
 * of the window repeats, from its first op to its last, and a period has layers, or the program is
 * idle between two periods much longer than within one. */
static bool is_loop(const name_array *names, const call_array *calls, size_t period,
                    struct idle idle)
{
    const uint32_t *at = names->at;
    size_t n = names->n;
    int64_t usual_ns = (calls->at[n - 1].end_ns - calls->at[0].start_ns) / (int64_t)(n / period);
    return at[0] == at[period] && at[n - 1] == at[n - 1 - period] &&
           ((idle.longest_ns >= usual_ns / 10 && idle.longest_ns / 4 >= idle.second_ns) ||
            holds_layers(names, period));
}

/* Appends the iterations that begin with every period-th call from the i-th on. */
static void push_periods(struct rank_build *rank, uint32_t window, const call_array *calls,
                         size_t period, size_t i, int64_t waited_until)
{
    int64_t number = 0;
    size_t n_asked = 0, n_before = rank->steps.n;
    for (size_t k = 0; k < period; k++)
        n_asked += (rank->classes[calls->at[k].name] & NAME_EXCHANGE_CALL) != 0;
    for (; i + period < calls->n; i += period)
        steps_push(rank, calls->at[i].start_ns, calls->at[i + period].start_ns, number++, window);
    /* the last one is whole if the program waited for it */
    if (i + period == calls->n && waited_until >= calls->at[calls->n - 1].end_ns)
        steps_push(rank, calls->at[i].start_ns, waited_until, number, window);
    steps_cut_at_exchanges(rank, window, n_before, n_asked);
}

bool steps_from_period(struct rank_build *rank, uint32_t window)
{
    const struct trace_track *track = &rank->trace->tracks[rank->main_track];
    SCRATCH call_array calls = {0};
    SCRATCH name_array names = {0};
    bool says = false; /* by what it asks and waits for, the program says where it is */
    int64_t end = INT64_MIN, waited_until = INT64_MIN;
    EACH_OF (const struct trace_span, span, rank->trace->spans + track->first, track->n) {
        if (span->window != window || span->start_ns < end ||
            span->kind != (track->gpu ? SPAN_KERNEL : SPAN_CPU_OP))
            continue;
        end = span_end_ns(span);
        says |= (rank->classes[span->name] & (NAME_HOST_WAIT | NAME_EXCHANGE_CALL)) != 0;
        if (rank->classes[span->name] & NAME_HOST_WAIT) { /* idle, and that is where loops end */
            waited_until = end;
            continue;
        }
        array_add(&calls, span->start_ns, end, span->name,
                  calls.n > 0 && waited_until > calls.at[calls.n - 1].start_ns);
        array_push(&names, span->name);
    }
    SCRATCH i64_array communication = find_communication(rank, window);
    size_t n_before = rank->steps.n, period = 2; /* over fewer ops it is a loop in an iteration */
    bool found = false;
    if (!says &&
        (count_wrong(names.at, names.n, 1, 0) == 0 || count_wrong(names.at, names.n, 2, 0) == 0))
        return false; /* one or two ops again and again: nothing tells how often an iteration has
                         them */
    while (!found && calls.n >= 6 && (period = steps_find_period(names.at, names.n, period)) > 0) {
        struct idle idle;
        size_t head = find_head(rank, &calls, period, &idle), few = names.n / 100;
        found = says || (all_communicate(&calls, period, &communication) &&
                         is_loop(&names, &calls, period, idle));
        if (track
                ->gpu) { /* it may pause anywhere, and each layer does otherwise forward and back */
            head = 0;    /* recordings begin with a step */
            found = count_wrong(names.at, names.n, period, few) <= few;
        }
        if (found)
            push_periods(rank, window, &calls, period, head, waited_until);
    }
    return rank->steps.n > n_before;
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
    SCRATCH i64_array ops = find_pooled(rank), functions = {0};
    SCRATCH ARRAY(uint32_t) called = {0};
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
    size_t period = called.n >= 2 ? steps_find_period(called.at, called.n, 0) : 0, phase = 0;
    for (size_t i = 1; i < period; i++)
        if (functions.at[called.at[i]] > functions.at[called.at[phase]])
            phase = i;
    int64_t number = 0;
    for (size_t i = phase; period > 0 && i + period < n; i += period)
        steps_push(rank, calls[i]->start_ns, calls[i + period]->start_ns, number++, window);
}

void steps_from_executor(struct rank_build *rank, uint32_t class)
{
    SCRATCH span_array calls = steps_marks(rank, class);
    for (uint32_t w = 0; w < rank->trace->n_windows; w++)
        steps_from_calls(rank, &calls, w);
}
