/* Fits time = base + bytes * slope to measured transfers, and takes medians of them. */
#include "cost/learn/fit.h"

/* What it takes a transfer to start beside computation on its cores: 1 MB took 2 to 15 ms longer
 * there, on a link of 1 Gbit/s that 5 MB filled all the same. */
static const struct dpro_estimate HELD_START_NS = {5e6, 5e6};

/* Weighted sums of points, x and y about their means. */
struct line_sums {
    double w, x, y, xx, xy;
};

static struct line_sums sum_up(const fit_points *points)
{
    struct line_sums sums = {0};
    EACH (const struct fit_point, p, *points) {
        sums.w += p->weight;
        sums.x += p->weight * p->x;
        sums.y += p->weight * p->y;
    }
    if (sums.w <= 0 || sums.x <= 0)
        return sums;
    sums.x /= sums.w;
    sums.y /= sums.w;
    EACH (const struct fit_point, p, *points) {
        sums.xx += p->weight * (p->x - sums.x) * (p->x - sums.x);
        sums.xy += p->weight * (p->x - sums.x) * (p->y - sums.y);
    }
    return sums;
}

bool fit_line(const fit_points *points, struct dpro_estimate *slope, struct dpro_estimate *base)
{
    struct line_sums sums = sum_up(points);
    double w = sums.w, x = sums.x, y = sums.y, xx = sums.xx, xy = sums.xy;
    *slope = *base = (struct dpro_estimate){0};
    if (w <= 0 || x <= 0)
        return false;
    bool spread = xx > w * x * x / 16;
    slope->value = spread ? xy / xx : y / x;
    base->value = y - slope->value * x;
    if (!spread || slope->value < 0 || base->value < 0) {
        slope->value = (xy + w * x * y) / (xx + w * x * x);
        base->value = 0;
    }
    double rest = 0;
    for (size_t i = 0; i < points->n; i++) {
        double off = points->at[i].y - slope->value * points->at[i].x - base->value;
        rest += points->at[i].weight * off * off / w;
    }
    double n = points->n > 2 ? (double)points->n - 2 : 1;
    slope->std = sqrt(rest / n) / (spread ? sqrt(xx / w) : x);
    base->std = sqrt(rest / n);
    return spread;
}

void fit_line_cut(fit_points *points, struct dpro_estimate *slope, struct dpro_estimate *base)
{
    enum { MOST_ROUNDS = 5 };
    const double FAR = 3 * 1.4826; /* median distances */
    SCRATCH double *off = mem_alloc((points->n + 1) * sizeof *off);
    SCRATCH double *seen = mem_alloc((points->n + 1) * sizeof *seen);
    for (size_t i = 0; i < points->n; i++)
        seen[i] = points->at[i].y;
    fit_line(points, slope, base);
    for (int round = 0; round < MOST_ROUNDS; round++) {
        for (size_t i = 0; i < points->n; i++)
            off[i] = fabs(seen[i] - slope->value * points->at[i].x - base->value);
        double most = FAR * stats_median_upper(off, points->n);
        for (size_t i = 0; i < points->n; i++) {
            double y = slope->value * points->at[i].x + base->value;
            points->at[i].y = fmin(fmax(seen[i], y - most), y + most);
        }
        fit_line(points, slope, base);
    }
}

bool fit_held(const fit_points *points, struct dpro_estimate *slope, struct dpro_estimate *share)
{
    enum { SURE = 2 }; /* standard errors */
    double xx = 0, xh = 0, hh = 0, xy = 0, hy = 0, starts = 0, rest = 0;
    EACH (const struct fit_point, p, *points) {
        double part = p->held / p->x, y = p->y - part * HELD_START_NS.value;
        xx += p->weight * p->x * p->x;
        xh += p->weight * p->x * p->held;
        hh += p->weight * p->held * p->held;
        xy += p->weight * p->x * y;
        hy += p->weight * p->held * y;
        starts += p->weight * p->held * part;
    }
    double det = xx * hh - xh * xh;
    if (points->n < 3 || det <= 1e-3 * xx * hh)
        return false;
    double alone = (xy * hh - hy * xh) / det, more = (hy * xx - xy * xh) / det;
    EACH (const struct fit_point, p, *points) {
        double off = p->y - alone * p->x - (more + HELD_START_NS.value / p->x) * p->held;
        rest += p->weight * off * off / ((double)points->n - 2);
    }
    double alone_std = sqrt(rest * hh / det);
    double more_std = hypot(sqrt(rest * xx / det), HELD_START_NS.std * starts / hh);
    if (alone <= SURE * alone_std || more <= SURE * more_std)
        return false;
    *slope = (struct dpro_estimate){alone, alone_std};
    double lost = more / (alone + more);
    double lost_std = more_std * alone / ((alone + more) * (alone + more));
    *share = (struct dpro_estimate){lost, fmax(lost_std, lost / 2)}; /* other buckets may differ */
    return true;
}

struct dpro_estimate fit_median(fit_times *times)
{
    struct dpro_estimate median = {0};
    sort_double(times->at, times->n);
    if (times->n > 0) {
        double spread = times->at[(times->n - 1) * 84 / 100] - times->at[(times->n - 1) * 16 / 100];
        median = (struct dpro_estimate){stats_median(times->at, times->n),
                                        spread / 2 / sqrt((double)times->n)};
    }
    array_fini(times);
    return median;
}
