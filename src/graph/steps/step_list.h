/* A rank's list of steps while they are looked for, and the spans that mark them. */
#pragma once

#include "graph/rank_build.h"

typedef ARRAY(const struct trace_span *) span_array;
typedef ARRAY(int64_t) i64_array;

static inline const char *span_name(const struct rank_build *rank, const struct trace_span *span)
{
    return strtab_get(rank->names, span->name);
}

/* How many of sorted times are before `ns`. */
static inline size_t count_before(const i64_array *times, int64_t ns)
{
    return LOWER_BOUND(i, 0, times->n, times->at[i] < ns);
}

/* Appends a timed step, unless it is empty. */
void steps_push(struct rank_build *rank, int64_t start, int64_t end, int64_t number,
                uint32_t window);

/* All there is in a window, as one iteration: from its first op to its last. */
void steps_whole_window(struct rank_build *rank, uint32_t window);

bool steps_is_mark(const struct rank_build *rank, const struct trace_span *span, uint32_t classes);

/* The CPU spans of a class on the main track, by window and start. */
span_array steps_marks(const struct rank_build *rank, uint32_t class);

/* The exchanges with servers in a window, by start. */
span_array steps_exchanges(const struct rank_build *rank, uint32_t window);

/* engine_steps.c: the steps that dpro's recorder timed, those that lie in a window. */
void steps_from_recording(struct rank_build *rank, uint32_t class);

/* Where a loop's steps, those from the first-th on, asked for n exchanges each: cuts them where an
 * engine began with these. */
void steps_cut_at_exchanges(struct rank_build *rank, uint32_t window, size_t first, size_t n);

/* unmarked_steps.c: what ends with the optimizer's step. The others say whether they found more
 * than a guess. */
struct training;
void steps_from_optimizer(struct rank_build *rank, uint32_t class);
bool steps_from_updates(struct rank_build *rank, const struct training *t);
/* *update: whether each pass also updates parameters. */
bool steps_from_passes(struct rank_build *rank, const struct training *t, bool *update);
/* Iterations that begin with a range of the user, or are one but for a tenth. `covered` says
 * whether a range lies around nearly all of the window; with_own: only if some of the ranges are
 * the user's. */
enum ranges_found { RANGES_NONE, RANGES_BEGIN, RANGES_WHOLE };
enum ranges_found steps_from_ranges(struct rank_build *rank, const struct training *t,
                                    bool with_own, bool *covered);

/* loop_steps.c: the iterations of the main thread's loop; false: none shows. */
bool steps_from_period(struct rank_build *rank, uint32_t window);
/* The shortest period longer than `above` at which a sequence repeats in nine of ten places; 0:
 * none. */
size_t steps_find_period(const uint32_t *names, size_t n, size_t above);

/* Iterations by calls of an executor: each calls the same functions in order, and begins with the
 * largest. */
void steps_from_executor(struct rank_build *rank, uint32_t class);
