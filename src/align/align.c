/* Cuts the recording into as few windows as the constraints allow, with a constant drift of each
 * clock in each, and fills in the results. */

#include "align/solver.h"

enum {
    CUT_BITS = 27,           /* windows begin and end at multiples of 134 ms */
    MAX_WINDOWS = 1000,      /* such times are no clock's; the last line goes on */
    MAX_PAIR_CONFLICTS = 8,  /* then nothing of the pair is believed */
    STEP_UNCERTAINTIES = 10, /* two lines of a clock further apart than this: a step, not a bend */
};

/* ---- how clocks hang together ---- */

static void make_arcs(struct align *a)
{
    size_t n_arcs = a->pairs.n * 2;
    a->row = arena_array(&a->arena, a->n_clocks + (size_t)2, sizeof *a->row);
    a->arcs = arena_array(&a->arena, 2 * n_arcs + 1, sizeof *a->arcs);
    /* each arc is listed with both its clocks, since paths are walked both ways */
    for (size_t p = 0; p < a->pairs.n; p++) {
        a->row[a->pairs.at[p].low + 2] += 2;
        a->row[a->pairs.at[p].high + 2] += 2;
    }
    for (uint32_t c = 0; c <= a->n_clocks; c++)
        a->row[c + 1] += a->row[c];
    for (uint32_t arc = 0; arc < n_arcs; arc++) {
        a->arcs[a->row[a->pairs.at[arc / 2].low + 1]++] = arc;
        a->arcs[a->row[a->pairs.at[arc / 2].high + 1]++] = arc;
    }
}

/* From the reference along the constraints (or against them) to all clocks that can be reached,
 * taking each constraint's two moments for one: to[c] must be added to clock c. */
static void align_reach(const struct align *a, bool against, int64_t *to, bool *reached,
                        uint32_t *queue)
{
    uint32_t head = 0, n = 1;
    memset(reached, 0, a->n_clocks * sizeof *reached);
    queue[0] = 0;
    to[0] = 0;
    reached[0] = true;
    for (; head < n; head++) {
        uint32_t at = queue[head];
        for (uint32_t i = a->row[at]; i < a->row[at + 1]; i++) {
            uint32_t arc = a->arcs[i];
            const constraints_array *constraints = &a->pairs.at[arc / 2].constraints[arc % 2];
            uint32_t other = against ? arc_from(a, arc) : arc_to(a, arc);
            if (constraints->n == 0 || other == at || reached[other])
                continue;
            int64_t slack = constraints->at[0].slack_ns;
            for (uint32_t f = 1; f < constraints->n && f < 16; f++)
                slack = MIN(slack, constraints->at[f].slack_ns);
            to[other] = (int64_t)(against ? (uint64_t)to[at] - (uint64_t)slack
                                          : (uint64_t)to[at] + (uint64_t)slack);
            reached[other] = true;
            queue[n++] = other;
        }
    }
}

static void find_coarse(struct align *a)
{
    size_t n = a->n_clocks;
    SCRATCH_ARENA struct arena arena = {0};
    int64_t *most = arena_array(&arena, 2 * n, sizeof *most);
    bool *reached = arena_array(&arena, 2 * n, sizeof *reached);
    uint32_t *queue = arena_array(&arena, n, sizeof *queue);
    align_reach(a, false, most, reached, queue);
    align_reach(a, true, most + n, reached + n, queue);
    for (uint32_t c = 0; c < n; c++) {
        int64_t apart = (int64_t)((uint64_t)most[n + c] - (uint64_t)most[c]);
        a->clocks[c].tied = reached[c] && reached[n + c];
        a->clocks[c].coarse_ns =
            a->clocks[c].tied ? (int64_t)((uint64_t)most[c] + (uint64_t)(apart / 2)) : 0;
    }
}

/* ---- windows ---- */

struct align_cutter {
    struct align *a;
    int64_t start_ns;    /* of slice 0 */
    int64_t shown_ns[2]; /* what must be covered */
    int64_t n_slices;
    struct window found; /* what was tried last */
};

static int64_t to_ns(double ns)
{
    return (int64_t)floor(fmin(fmax(ns, -0x1p62), 0x1p62) + 0.5);
}

static int64_t clamp_time(__int128 ns)
{
    return ns > ALIGN_TIME_MAX    ? ALIGN_TIME_MAX
           : ns < -ALIGN_TIME_MAX ? -ALIGN_TIME_MAX
                                  : (int64_t)ns;
}

static void align_extend(const struct align *a, uint32_t clock, int64_t local_ns, int64_t *start,
                         int64_t *end)
{
    int64_t at = clamp_time((__int128)local_ns + a->clocks[clock].coarse_ns);
    *start = MIN(*start, at);
    *end = MAX(*end, at);
}

/* The part of the axis that holds all constraints and all that must be covered. */
static void find_extent(struct align_cutter *cutter)
{
    const struct align *a = cutter->a;
    int64_t start = INT64_MAX, end = INT64_MIN;
    for (uint32_t c = 0; c < a->n_clocks; c++)
        if (a->clocks[c].tied && a->clocks[c].cover_start_ns <= a->clocks[c].cover_end_ns) {
            align_extend(a, c, a->clocks[c].cover_start_ns, &start, &end);
            align_extend(a, c, a->clocks[c].cover_end_ns, &start, &end);
        }
    cutter->shown_ns[0] = start;
    cutter->shown_ns[1] = end;
    for (size_t p = 0; p < a->pairs.n; p++)
        EACH_OF (const constraints_array, constraints, a->pairs.at[p].constraints, 2) {
            if (constraints->n == 0 || !a->clocks[a->pairs.at[p].low].tied ||
                !a->clocks[a->pairs.at[p].high].tied)
                continue;
            align_extend(a, a->pairs.at[p].low, constraints->at[0].low_ns, &start, &end);
            align_extend(a, a->pairs.at[p].low, constraints->at[constraints->n - 1].low_ns, &start,
                         &end);
        }
    if (start > end)
        start = end = 0;
    cutter->start_ns = start;
    cutter->n_slices = (int64_t)(((uint64_t)end - (uint64_t)start) >> CUT_BITS) + 1;
}

static void create_window(struct align *a, struct window *window)
{
    *window = (struct window){
        .lines = arena_array(&a->arena, a->n_clocks, sizeof *window->lines),
        .uncertainty_ns = arena_array(&a->arena, a->n_clocks, sizeof *window->uncertainty_ns)};
}

/* Solves slices [from, to); false: they have no common lines, and *why, unless it is NULL. */
static bool solve_slices(struct align_cutter *cutter, int64_t from, int64_t to, contradictions *why)
{
    struct align *a = cutter->a;
    struct window *window = &cutter->found;
    window->start_ns = clamp_time(cutter->start_ns + ((__int128)from << CUT_BITS));
    window->end_ns = clamp_time(cutter->start_ns + ((__int128)to << CUT_BITS));
    for (int k = 0; k < 2; k++) {
        int64_t at = MIN(cutter->shown_ns[k], window->end_ns);
        window->shown_ns[k] = MAX(at, window->start_ns);
    }
    if (window->shown_ns[0] >= window->shown_ns[1]) {
        window->shown_ns[0] = window->start_ns;
        window->shown_ns[1] = window->end_ns;
    }
    for (uint32_t c = 0; c < a->n_clocks; c++)
        window->lines[c] = (struct line){
            clamp_time((__int128)window->start_ns - a->clocks[c].coarse_ns), window->start_ns, 0};
    return window_solve(a, window, why);
}

/* Leaves out the pair's constraints in a slice where they contradict each other, as no cut helps
 * there. */
static void put_aside(struct align_cutter *cutter, const struct contradiction *why, int64_t slice)
{
    struct align *a = cutter->a;
    struct pair *p = &a->pairs.at[why->pair];
    bool all = ++p->n_conflicts >= MAX_PAIR_CONFLICTS;
    for (int d = 0; d < 2; d++) {
        uint32_t first = 0, n = p->constraints[d].n;
        if (!all)
            n = constraints_within(
                a, p, d, clamp_time(cutter->start_ns + ((__int128)slice << CUT_BITS)),
                clamp_time(cutter->start_ns + ((__int128)(slice + 1) << CUT_BITS)), &first);
        constraints_array *constraints = &p->constraints[d];
        if (n > 0)
            memmove(constraints->at + first, constraints->at + first + n,
                    (constraints->n - first - n) * sizeof *constraints->at);
        constraints->n -= n;
    }
    array_push(&a->conflicts, why->conflict);
}

/* The most slices from `from` on, at least `good` and fewer than `bad`, that can be solved
 * together: what holds for a window holds for its parts. */
static int64_t align_search(struct align_cutter *cutter, int64_t from, int64_t good, int64_t bad)
{
    int64_t limit = bad, step = 1, at;
    for (; good + 1 < bad; step = step < limit / 2 ? step * 2 : limit) {
        if (bad < limit)
            at = good + (bad - good) / 2;
        else
            at = step < bad - good ? good + step : bad - 1;
        if (solve_slices(cutter, from, from + at, NULL))
            good = at;
        else
            bad = at;
    }
    return good;
}

/* How many slices the window that begins at `from` reaches over; n are known to be fine. Its lines
 * are in cutter->found unless that is 0. */
static int64_t find_window(struct align_cutter *cutter, int64_t from, int64_t n)
{
    int64_t rest = cutter->n_slices - from, bad = rest + 1;
    if (n == 0 && from == 0) { /* mostly there is nothing to cut */
        if (solve_slices(cutter, from, from + rest, NULL))
            return rest;
        bad = rest;
    }
    n = align_search(cutter, from, n, bad);
    if (n > 0)
        solve_slices(cutter, from, from + n, NULL);
    return n;
}

/* Whether the slice contradicts itself; then not any more. */
static bool clear_slice(struct align_cutter *cutter, int64_t slice)
{
    bool cleared = false;
    SCRATCH contradictions all = {0};
    while (!solve_slices(cutter, slice, slice + 1, &all)) {
        EACH (const struct contradiction, why, all)
            put_aside(cutter, why, slice);
        all.n = 0;
        cleared = true;
    }
    return cleared;
}

static void align_cut(struct align_cutter *cutter)
{
    struct align *a = cutter->a;
    create_window(a, &cutter->found);
    for (int64_t from = 0, n = 0; from < cutter->n_slices && a->windows.n < MAX_WINDOWS;) {
        n = find_window(cutter, from, n);
        int64_t end = from + n;
        if (end < cutter->n_slices) {
            /* the window does not end because the next slice contradicts itself */
            if (clear_slice(cutter, end))
                continue;
            solve_slices(cutter, from, end, NULL);
        }
        array_push(&a->windows, cutter->found);
        create_window(a, &cutter->found);
        from = end;
        n = 0;
    }
}

/* ---- what came out ---- */

static void write_segments(struct align *a, uint32_t c)
{
    uint32_t n = 0;
    struct clock *clock = &a->clocks[c];
    struct dpro_clock_segment *at = arena_array(&a->arena, a->windows.n + 1, sizeof *at);
    clock->is.segments = at;
    EACH (const struct window, window, a->windows) {
        const struct line *line = &window->lines[c];
        double uncertainty = window->uncertainty_ns[c];
        if (uncertainty < 0)
            continue;
        int64_t start = clamp_time((__int128)window->start_ns - clock->coarse_ns);
        int64_t end = clamp_time((__int128)window->end_ns - clock->coarse_ns);
        if (n == 0 && clock->cover_start_ns < end) /* what must be covered, and no more */
            start = clock->cover_start_ns;
        double offset = line_at(line, start, start);
        at[n] = (struct dpro_clock_segment){start, end, to_ns(offset), line->rate * 1e6,
                                            uncertainty < 0x1p62 ? (int64_t)ceil(uncertainty)
                                                                 : INT64_MAX};
        if (n > 0)
            at[n - 1].end_ns = start;
        n++;
    }
    if (n > 0 && clock->cover_end_ns > at[n - 1].start_ns)
        at[n - 1].end_ns = clock->cover_end_ns < INT64_MAX ? clock->cover_end_ns + 1 : INT64_MAX;
    if (c == 0 && n > 1) { /* the reference is one line */
        at[0].end_ns = at[n - 1].end_ns;
        n = 1;
    }
    clock->is.n_segments = n;
}

/* ---- what the constraints leave open over time, to be shown ---- */

struct bounding {
    struct align *a;
    double *weight, *most, *least;
    struct arc_cycles cycles;
};

/* The least that the constraints of an arc in a slice leave open. */
static double slack_in_slice(const struct align *a, const struct window *window, uint32_t arc,
                             int64_t start_ns, int64_t end_ns)
{
    const struct pair *pair = &a->pairs.at[arc / 2];
    double least = INFINITY;
    uint32_t first, n = constraints_within(a, pair, (int)(arc % 2), start_ns, end_ns, &first);
    if (n == 0 || window->uncertainty_ns[pair->low] < 0 || window->uncertainty_ns[pair->high] < 0)
        return least;
    EACH_OF (const struct constraint, constraint, pair->constraints[arc % 2].at + first, n)
        least = fmin(least,
                     fmax(0, constraint_slack(constraint, (int)(arc % 2), &window->lines[pair->low],
                                              &window->lines[pair->high])));
    return least;
}

static void bound_slice(struct bounding *b, const struct window *window, int64_t start_ns,
                        int64_t end_ns)
{
    struct align *a = b->a;
    for (uint32_t arc = 0; arc < a->pairs.n * 2; arc++)
        b->weight[arc] = slack_in_slice(a, window, arc, start_ns, end_ns);
    paths_from_reference(a, b->weight, b->most, b->least, &b->cycles);
    int64_t middle = start_ns + (end_ns - start_ns) / 2;
    for (uint32_t c = 1; c < a->n_clocks; c++) {
        if (isinf(b->most[c]) && isinf(b->least[c]))
            continue;
        int64_t local = clamp_time((__int128)middle - a->clocks[c].coarse_ns);
        double estimate = line_at(&window->lines[c], local, local);
        struct align_result *is = &a->clocks[c].is;
        is->bounds[is->n_bounds++] = (struct dpro_clock_bound){
            local, isinf(b->least[c]) ? INT64_MIN : to_ns(estimate - b->least[c]),
            isinf(b->most[c]) ? INT64_MAX : to_ns(estimate + b->most[c])};
    }
}

static void find_bounds(struct align_cutter *cutter)
{
    struct align *a = cutter->a;
    size_t n = a->n_clocks;
    struct bounding bounding = {
        .a = a,
        .weight = arena_array(&a->arena, a->pairs.n * 2 + 1, sizeof *bounding.weight),
        .most = arena_array(&a->arena, n, sizeof *bounding.most),
        .least = arena_array(&a->arena, n, sizeof *bounding.least),
        .cycles = {arena_array(&a->arena, n + 1, sizeof(uint32_t)),
                   arena_array(&a->arena, n + 1, sizeof(uint32_t))}};
    for (uint32_t c = 1; c < n; c++)
        if (a->clocks[c].is.n_segments > 0)
            a->clocks[c].is.bounds =
                arena_array(&a->arena, ALIGN_MAX_BOUNDS, sizeof *a->clocks->is.bounds);
    __int128 length = (__int128)cutter->n_slices << CUT_BITS;
    for (int i = 0, w = 0; i < ALIGN_MAX_BOUNDS; i++) {
        int64_t start = clamp_time(cutter->start_ns + length * i / ALIGN_MAX_BOUNDS);
        int64_t end = clamp_time(cutter->start_ns + length * (i + 1) / ALIGN_MAX_BOUNDS);
        while ((size_t)w + 1 < a->windows.n && a->windows.at[w].end_ns <= start)
            w++;
        const struct window *window = &a->windows.at[w];
        if (start >= window->end_ns)
            break;
        bound_slice(&bounding, window, start, MIN(end, window->end_ns));
    }
}

/* ---- how sure a line is ---- */

static double segment_value(const struct dpro_clock_segment *segment, int64_t local_ns)
{
    return (double)segment->offset_ns +
           segment->drift_ppm * 1e-6 * (double)(local_ns - segment->start_ns);
}

static void align_raise(struct dpro_clock_segment *segment, double uncertainty)
{
    if (uncertainty > (double)segment->uncertainty_ns && uncertainty < 0x1p62)
        segment->uncertainty_ns = (int64_t)uncertainty;
}

/* The lines that the constraints allow may be very few, but a clock is not quite a line: its
 * uncertainty is at least what the best slice of time leaves open, and where it seems to have
 * changed its speed, the two lines differ by what is not known about when. */
static void align_widen(struct align *a, uint32_t c)
{
    struct align_result *is = &a->clocks[c].is;
    struct dpro_clock_segment *at = is->segments;
    uint32_t n = is->n_segments, s = 0;
    double best = INFINITY;
    EACH_OF (const struct dpro_clock_bound, bound, is->bounds, is->n_bounds) {
        while (s + 1 < n && at[s + 1].start_ns <= bound->local_ns) {
            align_raise(&at[s++], best);
            best = INFINITY;
        }
        double value = segment_value(&at[s], bound->local_ns);
        if (bound->lower_ns != INT64_MIN && bound->upper_ns != INT64_MAX)
            best =
                fmin(best, fmax((double)bound->upper_ns - value, value - (double)bound->lower_ns));
    }
    if (n > 0)
        align_raise(&at[s], best);
    for (s = 0; s + 1 < n; s++) {
        int64_t first = at[s].uncertainty_ns, second = at[s + 1].uncertainty_ns;
        double apart = fabs(segment_value(&at[s], at[s + 1].start_ns) -
                            segment_value(&at[s + 1], at[s + 1].start_ns));
        if (apart > STEP_UNCERTAINTIES * ((double)first + (double)second))
            continue; /* it was set anew */
        align_raise(&at[s], (double)first + apart);
        align_raise(&at[s + 1], (double)second + apart);
    }
}

void align_ties(struct align *a, bool *tied)
{
    make_arcs(a);
    find_coarse(a);
    for (uint32_t c = 0; c < a->n_clocks; c++)
        tied[c] = a->clocks[c].tied;
}

void align_solve(struct align *a)
{
    struct align_cutter cutter = {.a = a};
    for (size_t p = 0; p < a->pairs.n; p++)
        for (int d = 0; d < 2; d++)
            constraints_tighten(&a->pairs.at[p].constraints[d]);
    make_arcs(a);
    find_coarse(a);
    find_extent(&cutter);
    align_cut(&cutter);
    for (uint32_t c = 0; c < a->n_clocks; c++)
        write_segments(a, c);
    find_bounds(&cutter);
    for (uint32_t c = 1; c < a->n_clocks; c++)
        align_widen(a, c);
}

const struct align_result *align_result(const struct align *a, uint32_t clock)
{
    return &a->clocks[clock].is;
}

uint32_t align_conflicts(const struct align *a, const struct align_conflict **conflicts)
{
    *conflicts = a->conflicts.at;
    return (uint32_t)a->conflicts.n;
}
