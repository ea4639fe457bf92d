/* One line a clock for a window of time.
 *
 * The constraints of a pair leave a polygon of lines for the difference of its two clocks: a
 * half-plane a constraint. How far the difference may go at a moment is a corner of that polygon;
 * how far a clock may be from the reference is the shortest path over such corners. The middles of
 * these ranges at both ends of the window give the drifts; with drifts given, the offsets obey
 * differences only, which shortest paths solve exactly; where a cycle of constraints forbids the
 * drifts, they give way. */

#include "align/solver.h"

enum {
    N_PASSES = 3, /* each begins with the lines of the one before, and the last only corrects */
    FEW_REPAIRS = 8,
    MAX_REPAIRS = 200,
    MAX_CORNERS = 64, /* more halves are left out: the polygon gets larger, never wrong */
};

/* In shorter windows a drift is less than its uncertainty: none is assumed if the constraints allow
 * it. */
#define SHORT_NS 1e9

struct point {
    double s, v; /* moment and bound, in ns on the axis; s from the window's start */
    uint32_t constraint;
};

struct window_work {
    struct arena arena;
    const struct align *a;
    struct window *window;
    double length_ns;
    double shown[2]; /* where ranges are asked for, as parts of the length */
    ARRAY(struct point) points;
    uint32_t *first;          /* by arc: its points are points[first[arc] .. first[arc + 1]) */
    double *ends[3];          /* by arc: how far the difference may go at shown[0], at shown[1], and
                                 from the window's start to its end */
    double *weight;           /* by arc, with drifts given */
    uint32_t *touch;          /* by arc: the point that gives its weight */
    double *high[3], *low[3]; /* by clock: its range for each of ends[] */
    double *x, *drift;        /* by clock: the rest at the start, and its change until the end */
    double *near_rate;        /* by clock: the rate that moments near each other tell; 0: none */
    double *most, *least;     /* by clock: range of x with drifts given */
    bool *tied, *known;       /* by clock */
    struct arc_cycles cycles;
    contradictions *why; /* NULL: not asked for */
};

static double *window_doubles(struct window_work *work, size_t n)
{
    return arena_array(&work->arena, n, sizeof(double));
}

static void window_init(struct window_work *work, const struct align *a, struct window *window,
                        contradictions *why)
{
    size_t n_arcs = a->pairs.n * 2, n = a->n_clocks;
    *work = (struct window_work){.a = a, .window = window, .why = why};
    work->length_ns = fmax((double)window->end_ns - (double)window->start_ns, 1);
    for (int k = 0; k < 2; k++)
        work->shown[k] = ((double)window->shown_ns[k] - (double)window->start_ns) / work->length_ns;
    for (size_t k = 0; k < 3; k++) {
        work->ends[k] = window_doubles(work, n_arcs);
        work->high[k] = window_doubles(work, n);
        work->low[k] = window_doubles(work, n);
    }
    work->weight = window_doubles(work, n_arcs);
    work->x = window_doubles(work, n);
    work->drift = window_doubles(work, n);
    work->near_rate = window_doubles(work, n);
    work->most = window_doubles(work, n);
    work->least = window_doubles(work, n);
    work->first = arena_array(&work->arena, n_arcs + 1, sizeof *work->first);
    work->touch = arena_array(&work->arena, n_arcs + 1, sizeof *work->touch);
    work->cycles.arcs = arena_array(&work->arena, n + 1, sizeof *work->cycles.arcs);
    work->cycles.ends = arena_array(&work->arena, n + 1, sizeof *work->cycles.ends);
    work->tied = arena_array(&work->arena, n, sizeof *work->tied);
    work->known = arena_array(&work->arena, n, sizeof *work->known);
}

/* ---- constraints to points ---- */

static bool is_above(const struct point *a, const struct point *b, const struct point *c)
{
    return (b->v - a->v) * (c->s - a->s) >= (c->v - a->v) * (b->s - a->s);
}

/* The lower convex hull of an arc's constraints in the window. */
static void add_points(struct window_work *work, uint32_t arc, int pass)
{
    const struct align *a = work->a;
    const struct pair *pair = &a->pairs.at[arc / 2];
    const struct line *low = &work->window->lines[pair->low];
    const struct line *high = &work->window->lines[pair->high];
    uint32_t first, direction = arc % 2;
    uint32_t n = constraints_within(a, pair, (int)direction, work->window->start_ns,
                                    work->window->end_ns, &first);
    if (n == 0)
        return;
    array_reserve(&work->points, n);
    struct point *hull = work->points.at + work->points.n;
    size_t kept = 0;
    for (uint32_t i = first; i < first + n; i++) {
        const struct constraint *constraint = &pair->constraints[direction].at[i];
        struct point point = {
            line_at(low, constraint->low_ns, work->window->start_ns),
            constraint_slack(constraint, (int)direction, low, high) + ALIGN_ROUNDING_NS, i};
        if (pass + 1 < N_PASSES) /* two moments are taken for one; their drift is not known yet */
            point.v += fabs(point.v) * 2 * ALIGN_MAX_DRIFT;
        if (kept > 0 && point.s <= hull[kept - 1].s) {
            if (point.v >= hull[kept - 1].v)
                continue;
            kept--;
        }
        while (kept >= 2 && is_above(&hull[kept - 2], &hull[kept - 1], &point))
            kept--;
        hull[kept++] = point;
    }
    work->points.n += kept;
}

static void window_collect(struct window_work *work, int pass)
{
    const struct align *a = work->a;
    uint32_t n_arcs = (uint32_t)a->pairs.n * 2;
    work->points.n = 0;
    for (uint32_t arc = 0; arc < n_arcs; arc++) {
        work->first[arc] = (uint32_t)work->points.n;
        const struct pair *pair = &a->pairs.at[arc / 2];
        if (a->clocks[pair->low].tied && a->clocks[pair->high].tied)
            add_points(work, arc, pass);
    }
    work->first[n_arcs] = (uint32_t)work->points.n;
}

static bool has_points(const struct window_work *work, uint32_t arc)
{
    return work->first[arc] < work->first[arc + 1];
}

/* Which clocks the window's constraints tie to the reference, in both directions. */
static void find_tied(struct window_work *work)
{
    const struct align *a = work->a;
    for (uint32_t arc = 0; arc < a->pairs.n * 2; arc++)
        work->weight[arc] = has_points(work, arc) ? 0 : INFINITY;
    paths_from_reference(work->a, work->weight, work->most, work->least, &work->cycles);
    for (uint32_t c = 0; c < a->n_clocks; c++)
        work->tied[c] = !isinf(work->most[c]) && !isinf(work->least[c]);
}

static bool is_used(const struct window_work *work, uint32_t arc)
{
    return has_points(work, arc) && work->tied[work->a->pairs.at[arc / 2].low] &&
           work->tied[work->a->pairs.at[arc / 2].high];
}

/* ---- a pair's polygon ---- */

struct corner {
    double x, drift; /* of x_low - x_high: at the start, and its change until the end */
};

/* Keeps the part where sign * (x + drift * at) <= v. */
static uint32_t window_clip(struct corner *corners, uint32_t n, double sign, double at, double v)
{
    struct corner kept[2 * MAX_CORNERS];
    uint32_t n_kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct corner p = corners[i], q = corners[i + 1 < n ? i + 1 : 0];
        double over_p = sign * (p.x + p.drift * at) - v, over_q = sign * (q.x + q.drift * at) - v;
        if (over_p <= 0)
            kept[n_kept++] = p;
        if ((over_p <= 0) != (over_q <= 0)) {
            double part = over_p / (over_p - over_q);
            kept[n_kept++] =
                (struct corner){p.x + part * (q.x - p.x), p.drift + part * (q.drift - p.drift)};
        }
    }
    if (n_kept > MAX_CORNERS)
        return n;
    memcpy(corners, kept, n_kept * sizeof *kept);
    return n_kept;
}

/* False: no line fits the pair's constraints. */
static bool bound_pair(struct window_work *work, uint32_t pair)
{
    const double unit = 1 / work->length_ns;
    uint32_t first = work->first[2 * pair], middle = work->first[2 * pair + 1],
             end = work->first[2 * pair + 2];
    const struct pair *clocks = &work->a->pairs.at[pair];
    double rate = work->window->lines[clocks->low].rate - work->window->lines[clocks->high].rate;
    double slowest = (-ALIGN_MAX_DRIFT - rate) * work->length_ns;
    double fastest = (ALIGN_MAX_DRIFT - rate) * work->length_ns;
    double box = 1e9 + 2 * fmax(-slowest, fastest);
    for (uint32_t i = first; i < end; i++)
        box = fmax(box, 4 * fabs(work->points.at[i].v));
    struct corner corners[MAX_CORNERS] = {
        {-box, slowest}, {box, slowest}, {box, fastest}, {-box, fastest}};
    uint32_t n = 4;
    for (uint32_t i = first; i < end && n > 0; i++)
        n = window_clip(corners, n, i < middle ? 1 : -1, work->points.at[i].s * unit,
                        work->points.at[i].v);
    for (int k = 0; k < 3; k++) {
        double most = -INFINITY, least = INFINITY;
        for (uint32_t i = 0; i < n; i++) {
            double at =
                k == 2 ? corners[i].drift : corners[i].x + corners[i].drift * work->shown[k];
            most = fmax(most, at);
            least = fmin(least, at);
        }
        bool low = k < 2 && most > box / 2, high = k < 2 && least < -box / 2;
        work->ends[k][2 * pair + LOW_TO_HIGH] = low ? INFINITY : most;
        work->ends[k][2 * pair + HIGH_TO_LOW] = high ? INFINITY : -least;
    }
    return n > 0;
}

/* ---- contradictions ---- */

static uint32_t window_tightest(const struct window_work *work, uint32_t arc)
{
    uint32_t best = work->first[arc];
    for (uint32_t i = best; i < work->first[arc + 1]; i++)
        if (work->points.at[i].v < work->points.at[best].v)
            best = i;
    return best;
}

static uint64_t mark_of(const struct window_work *work, uint32_t arc, uint32_t point)
{
    return work->a->pairs.at[arc / 2]
        .constraints[arc % 2]
        .at[work->points.at[point].constraint]
        .mark;
}

static void name_conflict(struct window_work *work, const uint32_t *arcs, uint32_t n_arcs)
{
    double sum = 0, least = INFINITY;
    uint32_t used = 0, pair = arcs[0] / 2;
    struct align_conflict named = {.by_ns = 0}, *conflict = &named;
    if (!work->why)
        return;
    for (uint32_t i = 0; i < n_arcs; i++) {
        uint32_t arc = arcs[i];
        if (!has_points(work, arc))
            continue;
        uint32_t point = window_tightest(work, arc);
        double v = work->points.at[point].v;
        sum += v;
        if (used < 2)
            conflict->marks[used] = mark_of(work, arc, point);
        if (used++ == 0) {
            conflict->from = arc_to(work->a, arc); /* a constraint runs against its arc */
            conflict->to = arc_from(work->a, arc);
        }
        if (v < least) {
            least = v;
            pair = arc / 2;
        }
    }
    if (used == 1)
        conflict->marks[1] = conflict->marks[0];
    conflict->by_ns = sum < 0 && sum > -9e18 ? (int64_t)-sum : 0;
    array_add(work->why, named, pair);
}

static void name_cycles(struct window_work *work)
{
    const struct arc_cycles *cycles = &work->cycles;
    for (uint32_t i = 0, first = 0; i < cycles->n; first = cycles->ends[i++])
        name_conflict(work, &cycles->arcs[first], cycles->ends[i] - first);
}

/* ---- drifts and offsets ---- */

/* The ranges of all clocks in each of the three measures. False: there are none, for reasons that
 * are then named. */
static bool bound_clocks(struct window_work *work)
{
    bool bounded = true;
    for (int k = 0; k < 3 && bounded; k++) {
        bounded = paths_from_reference(work->a, work->ends[k], work->high[k], work->low[k],
                                       &work->cycles);
        for (uint32_t c = 0; c < work->a->n_clocks; c++)
            work->low[k][c] = -work->low[k][c];
    }
    return bounded;
}

/* What to try, in this order. */
enum drift_choice {
    DRIFT_AS_IT_WAS, /* the lines' own: they were chosen before */
    DRIFT_NONE,      /* where little is known of it */
    DRIFT_MIDDLE,
    N_DRIFT_CHOICES,
};

static void choose_drifts(struct window_work *work, enum drift_choice choice)
{
    double shown = work->shown[1] - work->shown[0];
    for (uint32_t c = 0; c < work->a->n_clocks; c++) {
        work->drift[c] = 0;
        if (c == 0 || !work->tied[c] || choice == DRIFT_AS_IT_WAS)
            continue;
        double wish =
            (work->high[1][c] + work->low[1][c] - work->high[0][c] - work->low[0][c]) / 2 / shown;
        bool keeps = work->a->clocks[c].keeps || !isfinite(wish);
        if (choice == DRIFT_NONE && (keeps || work->length_ns < SHORT_NS))
            wish = (work->near_rate[c] - work->window->lines[c].rate) * work->length_ns;
        work->drift[c] = fmin(fmax(wish, work->low[2][c]), work->high[2][c]);
    }
}

static void window_weigh(struct window_work *work)
{
    for (uint32_t arc = 0; arc < work->a->pairs.n * 2; arc++) {
        work->weight[arc] = INFINITY;
        if (!is_used(work, arc))
            continue;
        double apart = (work->drift[arc_to(work->a, arc)] - work->drift[arc_from(work->a, arc)]) /
                       work->length_ns;
        for (uint32_t i = work->first[arc]; i < work->first[arc + 1]; i++) {
            double weight = work->points.at[i].v - apart * work->points.at[i].s;
            if (weight < work->weight[arc]) {
                work->weight[arc] = weight;
                work->touch[arc] = i;
            }
        }
    }
}

/* Of a clock's drift, squared. */
static double window_freedom(const struct window_work *work, uint32_t clock)
{
    double range = work->high[2][clock] - work->low[2][clock];
    return clock == 0 ? 0 : range * range;
}

/* The constraints of a cycle forbid the drifts: changes them as little as necessary, the best known
 * ones least. False: no drift helps. */
static bool window_repair(struct window_work *work, const uint32_t *arcs, uint32_t n)
{
    const struct align *a = work->a;
    double *slope = work->x, over = 0, give = 0;
    for (uint32_t i = 0; i < n; i++)
        slope[arc_to(a, arcs[i])] = slope[arc_from(a, arcs[i])] = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t arc = arcs[i], touch = work->touch[arc];
        slope[arc_to(a, arc)] += work->points.at[touch].s / work->length_ns;
        slope[arc_from(a, arc)] -= work->points.at[touch].s / work->length_ns;
        over -= work->weight[arc];
    }
    /* each of the cycle's clocks is the end of one of its arcs */
    for (uint32_t i = 0; i < n; i++) {
        uint32_t c = arc_to(a, arcs[i]);
        give += slope[c] * slope[c] * window_freedom(work, c);
    }
    if (!(give > 1e-18) || !isfinite(give))
        return false;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t c = arc_to(a, arcs[i]);
        work->drift[c] -= slope[c] * window_freedom(work, c) / give * (over * 1.05 + 0.01);
    }
    return true;
}

/* False: some can't be; these are the cycles that are left. */
static bool repair_all(struct window_work *work)
{
    struct arc_cycles *cycles = &work->cycles;
    uint32_t n = 0, n_arcs = 0;
    for (uint32_t i = 0, first = 0, end; i < cycles->n; i++, first = end) {
        end = cycles->ends[i];
        if (window_repair(work, &cycles->arcs[first], end - first))
            continue;
        memmove(&cycles->arcs[n_arcs], &cycles->arcs[first], (end - first) * sizeof *cycles->arcs);
        n_arcs += end - first;
        cycles->ends[n++] = n_arcs;
    }
    cycles->n = n > 0 ? n : cycles->n;
    return n == 0;
}

/* The range of offsets that the drifts leave; drifts that leave none are repaired so many times.
 * False: in vain. */
static bool solve_offsets(struct window_work *work, int n_repairs)
{
    window_weigh(work);
    for (int n = 0;
         !paths_from_reference(work->a, work->weight, work->most, work->least, &work->cycles);
         n++) {
        if (n >= n_repairs) {
            work->cycles.n = 1; /* without it, the others may be repaired */
            return false;
        }
        if (!repair_all(work))
            return false;
        window_weigh(work);
    }
    for (uint32_t c = 0; c < work->a->n_clocks; c++)
        work->x[c] = work->tied[c] ? (work->most[c] - work->least[c]) / 2 : 0;
    return true;
}

static bool solve_lines(struct window_work *work, bool last)
{
    for (int choice = last ? DRIFT_AS_IT_WAS : DRIFT_NONE; choice < N_DRIFT_CHOICES; choice++) {
        choose_drifts(work, (enum drift_choice)choice);
        if (solve_offsets(work, choice == DRIFT_MIDDLE ? MAX_REPAIRS : FEW_REPAIRS))
            return true;
    }
    return false;
}

/* ---- clocks that keep their time, moments that were near each other ---- */

/* The median of what x_low - x_high would have to be; false: the window holds none. */
static bool median_near(struct window_work *work, const struct pair *pair, double *scratch,
                        double *median)
{
    const struct window *window = work->window;
    const struct line *low = &window->lines[pair->low], *high = &window->lines[pair->high];
    size_t n = 0;
    for (size_t i = 0; i < pair->nears.n; i++) {
        double at = line_at(low, pair->nears.at[i].low_ns, window->start_ns);
        double other = line_at(high, pair->nears.at[i].high_ns, window->start_ns);
        if (at < 0 || at > work->length_ns)
            continue;
        scratch[n++] =
            other - at + (work->drift[pair->high] - work->drift[pair->low]) * at / work->length_ns;
    }
    if (n == 0)
        return false;
    *median = stats_median_upper(scratch, n);
    return true;
}

/* What is nearest to the wishes and obeys the constraints: the middle of the highest solution below
 * and of the lowest above them, since what lies between solutions is one. */
static void window_obey(struct window_work *work)
{
    const struct align *a = work->a;
    for (uint32_t c = 0; c < a->n_clocks; c++) {
        work->most[c] = work->tied[c] ? work->x[c] : INFINITY;
        work->least[c] = work->tied[c] ? -work->x[c] : INFINITY;
    }
    paths_relax(a, work->weight, work->most, work->least, &work->cycles);
    double zero = (work->most[0] - work->least[0]) / 2;
    for (uint32_t c = 0; c < a->n_clocks; c++)
        work->x[c] = work->tied[c] ? (work->most[c] - work->least[c]) / 2 - zero : 0;
}

static void apply_wishes(struct window_work *work)
{
    const struct align *a = work->a;
    size_t most = 1;
    for (size_t p = 0; p < a->pairs.n; p++)
        most = a->pairs.at[p].nears.n > most ? a->pairs.at[p].nears.n : most;
    SCRATCH double *scratch = mem_alloc(most * sizeof *scratch);
    for (uint32_t c = 0; c < a->n_clocks; c++)
        work->known[c] = c == 0 || !a->clocks[c].keeps;
    /* again as long as one more is known: clocks may hang together only through others */
    for (bool more = true; more;) {
        more = false;
        EACH (const struct pair, pair, a->pairs) {
            bool low = work->known[pair->low];
            double median;
            if (low == work->known[pair->high] || pair->nears.n == 0 || !work->tied[pair->low] ||
                !work->tied[pair->high] || !median_near(work, pair, scratch, &median))
                continue;
            if (low)
                work->x[pair->high] = work->x[pair->low] - median;
            else
                work->x[pair->low] = work->x[pair->high] + median;
            work->known[low ? pair->high : pair->low] = more = true;
        }
    }
    for (uint32_t c = 0; c < a->n_clocks; c++) {
        const struct line *line = &work->window->lines[c];
        if (!work->known[c])
            work->x[c] = -line_at(line, line->local_ns, line->local_ns);
    }
    window_obey(work);
}

/* ---- the window ---- */

static void move_lines(struct window_work *work)
{
    int64_t zero = work->window->start_ns;
    for (uint32_t c = 1; c < work->a->n_clocks; c++) {
        struct line *line = &work->window->lines[c];
        if (!work->tied[c])
            continue;
        /* from a point near the window's start, so that nothing is lost to rounding */
        double back = line_at(line, line->local_ns, zero) / (1 + line->rate);
        if (back > -0x1p61 && back < 0x1p61) {
            struct line moved = *line;
            moved.local_ns -= (int64_t)back;
            double at = line_at(line, moved.local_ns, zero);
            moved.aligned_ns = zero + (int64_t)at;
            *line = moved;
        }
        double at = line_at(line, line->local_ns, zero) / work->length_ns;
        double by = work->x[c] + work->drift[c] * at;
        if (by > -0x1p61 && by < 0x1p61)
            line->aligned_ns =
                (int64_t)((uint64_t)line->aligned_ns + (uint64_t)(int64_t)floor(by + 0.5));
        line->rate = (1 + line->rate) * (1 + work->drift[c] / work->length_ns) - 1;
    }
}

static void fill_uncertainty(struct window_work *work)
{
    for (uint32_t c = 0; c < work->a->n_clocks; c++) {
        double *uncertainty = &work->window->uncertainty_ns[c];
        double start = work->x[c] + work->drift[c] * work->shown[0];
        double end = work->x[c] + work->drift[c] * work->shown[1];
        *uncertainty = -1;
        if (!work->tied[c])
            continue;
        *uncertainty = fmax(fmax(work->high[0][c] - start, start - work->low[0][c]),
                            fmax(work->high[1][c] - end, end - work->low[1][c]));
    }
}

static bool solve_pass(struct window_work *work, int pass)
{
    bool last = pass + 1 == N_PASSES, fits = true;
    const struct align *a = work->a;
    window_collect(work, pass);
    find_tied(work);
    if (pass == 0)
        near_rates(a, work->window, work->known, work->near_rate);
    for (uint32_t p = 0; p < a->pairs.n && (fits || work->why); p++) {
        uint32_t arcs[] = {2 * p, 2 * p + 1};
        if (!is_used(work, arcs[0]) && !is_used(work, arcs[1])) {
            for (int k = 0; k < 3; k++)
                work->ends[k][2 * p] = work->ends[k][2 * p + 1] = INFINITY;
        } else if (!bound_pair(work, p)) {
            name_conflict(work, arcs, 2);
            fits = false;
        }
    }
    if (!fits)
        return false;
    if (!bound_clocks(work) || !solve_lines(work, last)) {
        name_cycles(work);
        return false;
    }
    if (last) { /* only the exact constraints still move lines */
        memset(work->x, 0, a->n_clocks * sizeof *work->x);
        window_obey(work);
    } else {
        apply_wishes(work);
    }
    fill_uncertainty(work);
    move_lines(work);
    return true;
}

bool window_solve(const struct align *a, struct window *window, contradictions *why)
{
    struct window_work work;
    bool solved = true;
    window_init(&work, a, window, why);
    for (int pass = 0; pass < N_PASSES && solved; pass++)
        solved = solve_pass(&work, pass);
    array_fini(&work.points);
    arena_fini(&work.arena);
    return solved;
}
