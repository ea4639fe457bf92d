/* What the parts of the solver share.
 *
 * Times on the axis are local times moved by a line for each clock; the unknowns are the rests, x_i
 * of clock i, again lines. A constraint from clock i to clock j at moment s bounds x_i(s) - x_j(s)
 * from above. */
#pragma once

#include "align/align.h"

/* Rounding of the times that constraints are made of. */
#define ALIGN_ROUNDING_NS 1

/* No two clocks drift apart faster than this: crystals keep within 100 ppm, and time daemons change
 * a clock's speed by at most 500 ppm. */
#define ALIGN_MAX_DRIFT 600e-6

struct constraint {
    int64_t low_ns;   /* when, on the pair's lower clock */
    int64_t slack_ns; /* receiver's time less sender's, each on its own clock */
    uint64_t mark;
};

typedef ARRAY(struct constraint) constraints_array; /* of one pair in one direction */

struct near {
    int64_t low_ns, high_ns;
};

enum { LOW_TO_HIGH, HIGH_TO_LOW };

struct pair {
    uint32_t low, high; /* clocks, low < high */
    constraints_array constraints[2];
    ARRAY(struct near) nears;
    uint32_t n_conflicts;
};

/* aligned = aligned_ns + (1 + rate) * (local - local_ns) */
struct line {
    int64_t local_ns, aligned_ns;
    double rate;
};

struct window { /* of the axis as the coarse offsets give it */
    int64_t start_ns, end_ns;
    int64_t shown_ns[2];    /* of it, the part for which uncertainty is reported */
    struct line *lines;     /* a clock */
    double *uncertainty_ns; /* a clock; negative: not tied */
};

struct clock {
    int64_t cover_start_ns, cover_end_ns;
    bool keeps;
    int64_t coarse_ns; /* roughly what has to be added to it */
    bool tied;         /* to the reference, in both directions */
    struct align_result is;
};

struct align {
    struct arena arena; /* what has no end of its own */
    uint32_t n_clocks;
    struct clock *clocks;
    ARRAY(struct pair) pairs;
    struct map pair_of;
    ARRAY(struct window) windows;
    ARRAY(struct align_conflict) conflicts;
    uint32_t *row, *arcs; /* arcs of clock c are arcs[row[c] .. row[c + 1]), as 2 * pair + direction
                             of the constraints */
};

/* constraints.c: sorts by time and keeps, of every short slice of it, the constraints that some
 * line could touch: the lower convex hull. */
void constraints_tighten(constraints_array *constraints);
/* Those within [start, end) of the axis; returns how many, from *first on. */
uint32_t constraints_within(const struct align *align, const struct pair *pair, int direction,
                            int64_t start_ns, int64_t end_ns, uint32_t *first);

/* Arcs that lead back to where they began, one cycle after the other; a clock is in one of them at
 * most. Cycle i is arcs[ends[i - 1] .. ends[i]). Room for one a clock and one more. */
struct arc_cycles {
    uint32_t *arcs, *ends, n;
};

/* shortest_paths.c: lowers most[] until most[to] <= most[from] + weight[arc] holds for every arc,
 * and least[] with from and to exchanged, as the shortest paths do. An arc whose weight is INFINITY
 * is not there. A constraint from i to j is the arc from j to i. False: there are cycles of
 * negative length, which are then *cycles. */
bool paths_relax(const struct align *align, const double *weight, double *most, double *least,
                 struct arc_cycles *cycles);
/* The same, from the reference: how far each clock may be after and before it; INFINITY: it is not
 * tied to it. */
bool paths_from_reference(const struct align *align, const double *weight, double *most,
                          double *least, struct arc_cycles *cycles);
static inline uint32_t arc_from(const struct align *align, uint32_t arc)
{
    const struct pair *pair = &align->pairs.at[arc / 2];
    return arc % 2 == LOW_TO_HIGH ? pair->high : pair->low;
}
static inline uint32_t arc_to(const struct align *align, uint32_t arc)
{
    const struct pair *pair = &align->pairs.at[arc / 2];
    return arc % 2 == LOW_TO_HIGH ? pair->low : pair->high;
}

/* Constraints that contradict each other, and the pair of clocks where they do most. */
struct contradiction {
    struct align_conflict conflict;
    uint32_t pair;
};
typedef ARRAY(struct contradiction) contradictions;

/* near_rates.c: each clock's rate by moments near each other, from the reference on
 * along pairs that have them; 0: none. known[clock] is room. */
void near_rates(const struct align *align, const struct window *window, bool *known, double *rate);

/* window.c: one line a clock for a window of the axis, if the constraints allow it; window->lines
 * hold a guess. False: they don't; then *why, unless it is NULL, has contradictions of different
 * pairs. */
bool window_solve(const struct align *align, struct window *window, contradictions *why);

/* align = moved by the line, relative to `zero_ns`. */
static inline double line_at(const struct line *line, int64_t local_ns, int64_t zero_ns)
{
    /* unsigned: hostile times wrap instead of overflowing */
    int64_t passed = (int64_t)((uint64_t)local_ns - (uint64_t)line->local_ns);
    int64_t whole = (int64_t)((uint64_t)line->aligned_ns + (uint64_t)passed - (uint64_t)zero_ns);
    return (double)whole + line->rate * (double)passed;
}

/* How far x_low - x_high (or x_high - x_low) may go by this constraint, with the clocks on these
 * lines. */
static inline double constraint_slack(const struct constraint *constraint, int direction,
                                      const struct line *low, const struct line *high)
{
    int64_t high_ns = direction == LOW_TO_HIGH ? constraint->low_ns + constraint->slack_ns
                                               : constraint->low_ns - constraint->slack_ns;
    uint64_t low_passed = (uint64_t)constraint->low_ns - (uint64_t)low->local_ns;
    uint64_t high_passed = (uint64_t)high_ns - (uint64_t)high->local_ns;
    int64_t whole = (int64_t)((uint64_t)high->aligned_ns + high_passed - (uint64_t)low->aligned_ns -
                              low_passed);
    double apart = (double)whole + high->rate * (double)(int64_t)high_passed -
                   low->rate * (double)(int64_t)low_passed;
    return direction == LOW_TO_HIGH ? apart : -apart;
}
