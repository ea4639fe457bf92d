/* Several clocks on one axis, from what happened before what. Knows nothing of traces.
 *
 * A *constraint* says that what happened at a moment of one clock was over by a moment of another;
 * the tightest constraints in both directions leave a band in which the difference of two clocks
 * lies. Clock 0 is the reference. */
#pragma once

#include "base/base.h"

#include <dpro/graph.h>

#define ALIGN_NONE UINT32_MAX

/* Moments beyond plus and minus this are no times, and are left out. */
#define ALIGN_TIME_MAX (INT64_MAX / 2)

struct align;

struct align *align_create(uint32_t n_clocks);
void align_destroy(struct align *align); /* NULL is fine */

/* The clock's map is needed, and its uncertainty reported, for this part of its time. */
void align_cover(struct align *align, uint32_t clock, int64_t start_ns, int64_t end_ns);

/* A number for two clocks, whose constraints go in both directions. */
uint32_t align_pair(struct align *align, uint32_t clock, uint32_t other);

/* What happened at `from_ns` of clock `from` was over by `to_ns` of the pair's other clock; `mark`
 * is handed back when the constraint contradicts others. */
void align_before(struct align *align, uint32_t pair, uint32_t from, int64_t from_ns, int64_t to_ns,
                  uint64_t mark);

/* Where the constraints leave a choice, a clock gets the middle of what is possible. A clock for
 * which this is called keeps its own time instead, or is moved so that moments given to
 * align_near() coincide. */
void align_keep(struct align *align, uint32_t clock);
void align_near(struct align *align, uint32_t pair, uint32_t clock, int64_t clock_ns,
                int64_t other_ns);

/* Which clocks are tied to the reference in both directions by what has been said so far. */
void align_ties(struct align *align, bool *tied);

/* Once, after all has been said. */
void align_solve(struct align *align);

/* What came out: ascending segments, none when the clock can't be tied to the reference. */
enum { ALIGN_MAX_BOUNDS = 200 };
struct align_result {
    struct dpro_clock_segment *segments;
    uint32_t n_segments, n_bounds;
    struct dpro_clock_bound *bounds;
};
const struct align_result *align_result(const struct align *align, uint32_t clock);

/* Constraints that no clocks can satisfy, however they run; they were left out with their
 * neighbours. `from` and `to` are the clocks of the first constraint; the second one closes the
 * cycle, directly or through other clocks. */
struct align_conflict {
    uint32_t from, to;
    uint64_t marks[2];
    int64_t by_ns; /* how far the constraints miss each other */
};
uint32_t align_conflicts(const struct align *align, const struct align_conflict **conflicts);
