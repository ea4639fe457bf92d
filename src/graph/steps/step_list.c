/* A rank's list of steps while they are looked for, and the spans that mark them. */
#include "graph/steps/step_list.h"

ORDER_OF_POINTERS(by_window, struct trace_span, ASCENDING(window) ?: ASCENDING(start_ns));
ORDER_OF_POINTERS(by_start, struct trace_span, ASCENDING(start_ns) ?: ASCENDING(name));

bool steps_is_mark(const struct rank_build *rank, const struct trace_span *span, uint32_t classes)
{
    if (span->kind == SPAN_STEP && !rank->steps.named)
        return classes & NAME_STEP;
    return span->kind <= SPAN_ANNOTATION && (rank->classes[span->name] & classes);
}

void steps_push(struct rank_build *rank, int64_t start, int64_t end, int64_t number,
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

span_array steps_marks(const struct rank_build *rank, uint32_t class)
{
    const struct trace_track *track = &rank->trace->tracks[rank->main_track];
    span_array found = {0};
    for (uint32_t i = track->first; i < track->first + track->n; i++)
        if (steps_is_mark(rank, &rank->trace->spans[i], class))
            array_push(&found, &rank->trace->spans[i]);
    array_sort(&found, by_window);
    return found;
}

span_array steps_exchanges(const struct rank_build *rank, uint32_t window)
{
    span_array exchanges = {0};
    EACH_OF (const struct trace_span, span, rank->trace->spans, rank->trace->n_spans)
        if (span->window == window && span->kind == SPAN_ANNOTATION && span->detail != NO_ID &&
            (rank->classes[span->name] & NAME_EXCHANGE))
            array_push(&exchanges, span);
    array_sort(&exchanges, by_start);
    return exchanges;
}

void steps_whole_window(struct rank_build *rank, uint32_t window)
{
    int64_t start = INT64_MAX, end = INT64_MIN;
    EACH_OF (const struct trace_span, span, rank->trace->spans, rank->trace->n_spans) {
        if (span->window != window)
            continue;
        start = MIN(start, span->start_ns);
        end = MAX(end, span_end_ns(span));
    }
    if (start != INT64_MAX)
        steps_push(rank, start, MAX(end, start + 1), 0, window);
}
