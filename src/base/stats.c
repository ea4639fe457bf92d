/* Medians, means and spreads of arrays. */
#include "base/base.h"

double stats_median_upper(double *values, size_t n)
{
    return n ? select_double(values, n, n / 2) : 0;
}

int64_t stats_median_upper_i64(int64_t *values, size_t n)
{
    return n ? select_i64(values, n, n / 2) : 0;
}

double stats_median(double *values, size_t n)
{
    double upper = stats_median_upper(values, n);
    return n % 2 || n == 0 ? upper : (select_double(values, n / 2, n / 2 - 1) + upper) / 2;
}

int64_t stats_median_i64(int64_t *values, size_t n)
{
    int64_t upper = stats_median_upper_i64(values, n);
    if (n % 2 || n == 0)
        return upper;
    int64_t lower = select_i64(values, n / 2, n / 2 - 1);
    return lower + (int64_t)(((uint64_t)upper - (uint64_t)lower) / 2);
}

int64_t stats_quantile_i64(const int64_t *sorted, size_t n, double fraction)
{
    if (n == 0)
        return 0;
    double at = (fraction > 0 ? fraction < 1 ? fraction : 1 : 0) * (double)(n - 1);
    size_t below = (size_t)at, above = below + 1 < n ? below + 1 : below;
    double between = (double)(sorted[above] - sorted[below]);
    return sorted[below] + llround((at - (double)below) * between);
}

double stats_quantile_nearest(const double *sorted, size_t n, double fraction)
{
    return n ? sorted[(size_t)((double)(n - 1) * fraction + 0.5)] : 0;
}

#define MEAN_STD(values, n)                                                                        \
    struct mean_std found = {0, 0};                                                                \
    double squares = 0;                                                                            \
    for (size_t i = 0; i < (n); i++)                                                               \
        found.mean += (double)(values)[i] / (double)(n);                                           \
    for (size_t i = 0; i < (n); i++)                                                               \
        squares += ((double)(values)[i] - found.mean) * ((double)(values)[i] - found.mean);        \
    if ((n) > 1)                                                                                   \
        found.std = sqrt(squares / (double)((n)-1));                                               \
    return found

struct mean_std stats_mean_std(const double *values, size_t n)
{
    MEAN_STD(values, n);
}

struct mean_std stats_mean_std_i64(const int64_t *values, size_t n)
{
    MEAN_STD(values, n);
}

/* The regularised incomplete beta function, by its continued fraction (Lentz's method). */
static double incomplete_beta(double a, double b, double x)
{
    enum { MOST_TERMS = 300 };
    const double least = 1e-300;
    if (x <= 0 || x >= 1)
        return x > 0;
    if (x > (a + 1) / (a + b + 2))
        return 1 - incomplete_beta(b, a, 1 - x);
    double d = 1 / (1 - (a + b) * x / (a + 1)), c = 1, fraction = d;
    for (int m = 1; m <= MOST_TERMS; m++) {
        double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)), before = fraction;
        double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
        for (int half = 0; half < 2; half++) {
            double term = half ? odd : even;
            d = 1 + term * d;
            d = 1 / (fabs(d) < least ? least : d);
            c = 1 + term / c;
            c = fabs(c) < least ? least : c;
            fraction *= d * c;
        }
        if (fabs(fraction - before) <= 1e-14 * fabs(fraction))
            break;
    }
    return fraction * exp(a * log(x) + b * log(1 - x) + lgamma(a + b) - lgamma(a) - lgamma(b)) / a;
}

double stats_welch_p(struct mean_std a, size_t n_a, struct mean_std b, size_t n_b)
{
    if (n_a < 2 || n_b < 2)
        return NAN;
    double of_a = a.std * a.std / (double)n_a, of_b = b.std * b.std / (double)n_b;
    double apart = a.mean - b.mean, sum = of_a + of_b;
    if (sum == 0)
        return apart == 0;
    double freedom =
        sum * sum / (of_a * of_a / (double)(n_a - 1) + of_b * of_b / (double)(n_b - 1));
    return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + apart * apart / sum));
}

double stats_welch_half(struct mean_std a, size_t n_a, struct mean_std b, size_t n_b, double p)
{
    enum { HALVINGS = 50 };
    double low = 0, high = hypot(a.std, b.std);
    b.mean = 0;
    a.mean = high;
    if (n_a < 2 || n_b < 2 || high == 0)
        return n_a < 2 || n_b < 2 ? NAN : 0;
    for (; stats_welch_p(a, n_a, b, n_b) > p; a.mean = high *= 2)
        low = high;
    for (int i = 0; i < HALVINGS; i++) {
        a.mean = (low + high) / 2;
        *(stats_welch_p(a, n_a, b, n_b) > p ? &low : &high) = a.mean;
    }
    return high;
}

enum { LEAST_LEVEL = 3 }; /* values that tell a level from chance */

/* What is left of the squares of values one after the other, each less `correlation` times the one
 * before it, once those from `since` on are on a level of their own. */
static double squares_left(const double *values, size_t n, size_t since, double correlation)
{
    double first = sqrt(1 - correlation * correlation), all = 0, both = 0, level = 0;
    for (size_t i = 0; i < n; i++) {
        double value = i > 0 ? values[i] - correlation * values[i - 1] : first * values[0];
        double own = i < since ? 0 : i == 0 ? first : i == since ? 1 : 1 - correlation;
        all += value * value;
        both += value * own;
        level += own * own;
    }
    return level > 0 ? all - both * both / level : all;
}

/* Where values most part into lower ones and, from there on, higher ones whose mean is more than
 * four times as far above 0; 0: nowhere. */
static size_t rises_at(const double *values, size_t n)
{
    double most = 0, sum = 0, until = 0;
    size_t since = 0;
    for (size_t i = 0; i < n; i++)
        sum += values[i];
    for (size_t i = 1; i + LEAST_LEVEL < n; i++) {
        until += values[i - 1];
        double before = until / (double)i, after = (sum - until) / (double)(n - i);
        double apart = (after - before) * (after - before) * (double)i * (double)(n - i);
        if (i > LEAST_LEVEL && after > before && apart > most) {
            since = before < after / 4 ? i : 0;
            most = apart;
        }
    }
    return since;
}

/* The likeliest level of each row if noise has that correlation; returns how unlikely all are. */
static double levels_if(const double *values, size_t n_rows, size_t n, double correlation,
                        const size_t *rises, size_t *since)
{
    const double LEAST_SQUARES = 1e-12;
    double tries = n > 2 * LEAST_LEVEL + 1 ? (double)n - 2 * LEAST_LEVEL - 1 : 1, unlikely = 0;
    double sure = (n > 1 ? (double)n * log(1 + 9 / ((double)n - 1)) : 0) +
                  2 * log(n_rows > 2 ? (double)n_rows - 1 : 1);
    for (size_t row = 0; row < n_rows; row++, values += n) {
        double squares = 0, least = 0;
        for (size_t i = 0; i < n; i++)
            squares += values[i] * values[i];
        for (int level = 0; level < 3 && squares > 0; level++) {
            size_t at = level == 0 ? n : level == 1 ? 0 : rises[row];
            double left = squares_left(values, n, at, correlation);
            double is = (double)n * log(fmax(left / squares, LEAST_SQUARES)) +
                        (level > 0 ? sure : 0) + (level > 1 ? 2 * log(tries) : 0);
            if (level == 0 || (is < least && (level == 1 || at > 0))) {
                least = is;
                since[row] = at;
            }
        }
        unlikely += squares > 0 ? least - log(1 - correlation * correlation) : 0;
    }
    return unlikely;
}

/* Values far from the median of their row count as those at three standard deviations from it. */
static void clip_rows(double *values, size_t n_rows, size_t n)
{
    const double OF_DEVIATION = 1.4826;
    SCRATCH double *some = mem_array(n + 1, sizeof *some);
    for (size_t row = 0; row < n_rows; row++, values += n) {
        memcpy(some, values, n * sizeof *some);
        double median = stats_median(some, n);
        for (size_t i = 0; i < n; i++)
            some[i] = fabs(values[i] - median);
        double most = 3 * OF_DEVIATION * stats_median(some, n);
        for (size_t i = 0; i < n && most > 0; i++)
            values[i] = fmax(fmin(values[i], median + most), median - most);
    }
}

/* Whether more of them than by tossing a coin (two standard errors) lie on one side of 0: of two
 * values that take turns, the median and what is clipped to it show but one. */
static bool are_one_sided(const double *values, size_t n)
{
    size_t n_above = 0, n_below = 0;
    for (size_t i = 0; i < n; i++) {
        n_above += values[i] > 0;
        n_below += values[i] < 0;
    }
    return (double)MAX(n_above, n_below) >= (double)n / 2 + sqrt((double)n);
}

void stats_levels(const double *values, size_t n_rows, size_t n, size_t *since)
{
    enum { FEWEST = 8, CORRELATIONS = 29 }; /* of fewer, correlation and deviation are chance */
    int n_correlations = n_rows > 0 && (n_rows - 1) * n < FEWEST ? 1 : CORRELATIONS;
    size_t n_all = n_rows * n;
    SCRATCH double *rows = mem_array(n_all + 1, sizeof *rows);
    SCRATCH size_t *rises = mem_array(n_rows + 1, sizeof *rises);
    SCRATCH size_t *found = mem_array(n_rows + 1, sizeof *found);
    SCRATCH size_t *likeliest = mem_array(n_rows + 1, sizeof *likeliest);
    memcpy(rows, values, n_all * sizeof *rows);
    for (size_t row = 0; row < n_rows; row++) {
        since[row] = found[row] = n;
        rises[row] = rises_at(values + row * n, n);
    }
    for (int clipped = 0; clipped < (n < FEWEST ? 1 : 2); clipped++) {
        double least = INFINITY;
        for (int k = 0; k < n_correlations; k++) {
            double unlikely = levels_if(rows, n_rows, n, 1 - exp2(-0.5 * k), rises, found);
            if (unlikely < least)
                memcpy(likeliest, found, n_rows * sizeof *found);
            least = fmin(least, unlikely);
        }
        for (size_t row = 0; row < n_rows; row++) {
            if (since[row] == n && (!clipped || are_one_sided(values + row * n, n)))
                since[row] = likeliest[row];
            rises[row] = 0;
        }
        clip_rows(rows, n_rows, n);
    }
}

int64_t stats_mean_i64(const int64_t *values, size_t n)
{
    __int128 sum = (__int128)(n / 2);
    for (size_t i = 0; i < n; i++)
        sum += values[i];
    return n ? (int64_t)(sum / (__int128)n) : 0;
}

ORDER(by_value, struct weighted, ASCENDING(value));

double stats_weighted_median(struct weighted *values, size_t n)
{
    double half = 0, below = 0;
    size_t at = 0;
    if (n == 0)
        return 0;
    qsort(values, n, sizeof *values, by_value);
    for (size_t i = 0; i < n; i++)
        half += values[i].weight;
    half /= 2;
    while (at + 1 < n && below + values[at].weight < half)
        below += values[at++].weight;
    return values[at].value;
}

int64_t stats_usual_most_i64(const int64_t *ns, uint32_t n)
{
    enum { FEWEST = 4 };
    int64_t *sorted, most = INT64_MAX;
    if (n < FEWEST)
        return INT64_MAX;
    sorted = mem_alloc(n * sizeof *sorted);
    memcpy(sorted, ns, n * sizeof *sorted);
    sort_i64(sorted, n);
    for (uint32_t i = (n + 1) / 2; i < n && most == INT64_MAX; i++) {
        int64_t apart = sorted[i] - sorted[i - 1], spread = sorted[i - 1] - sorted[0];
        if (apart > sorted[(i - 1) / 2] / 10 && apart / 3 > spread / 2)
            most = sorted[i - 1];
    }
    mem_free(sorted);
    return most;
}

/* The shortest period with which the longest ones recur, and nothing else lasts as long:
 * *usual_most is then what others take at most. Three lie apart from the others; more, of enough,
 * need not: by chance the longest 4 of 12 have a period in less than 1 % of recordings. */
static uint32_t recur_every(const int64_t *ns, const int64_t *number, uint32_t n,
                            int64_t *usual_most)
{
    enum { FEWEST = 3, FEWEST_BY_CHANCE = 4, ENOUGH = 12 };
    uint32_t longest = 0;
    for (uint32_t i = 1; i < n; i++)
        longest = ns[i] > ns[longest] ? i : longest;
    for (int64_t every = 2; every <= (number[n - 1] - number[0]) / (FEWEST - 1); every++) {
        uint32_t n_slow = 0;
        int64_t least = INT64_MAX, most = INT64_MIN;
        for (uint32_t i = 0; i < n; i++) {
            bool is_slow = (number[i] - number[longest]) % every == 0;
            n_slow += is_slow;
            least = is_slow ? MIN(least, ns[i]) : least;
            most = is_slow ? most : MAX(most, ns[i]);
        }
        bool apart = most <= *usual_most && *usual_most < least;
        if (most < least && n_slow <= n / 2 &&
            n_slow >= (apart         ? FEWEST
                       : n >= ENOUGH ? FEWEST_BY_CHANCE
                                     : n)) {
            *usual_most = most;
            return (uint32_t)every;
        }
    }
    return 0;
}

struct slow_ones stats_slow_ones(const int64_t *ns, const int64_t *number, uint32_t n)
{
    struct slow_ones found = {.usual_most = stats_usual_most_i64(ns, n), .n_all = n};
    uint32_t n_runs = 0;
    if (n == 0)
        return found;
    if (number)
        found.every = recur_every(ns, number, n, &found.usual_most);
    SCRATCH int64_t *sorted = mem_alloc(n * sizeof *sorted);
    memcpy(sorted, ns, n * sizeof *sorted);
    sort_i64(sorted, n);
    while (found.n < n && sorted[n - 1 - found.n] > found.usual_most)
        found.n++;
    found.usual = stats_mean_std_i64(sorted, n - found.n);
    found.slow = stats_mean_std_i64(sorted + n - found.n, found.n);
    found.all = stats_mean_std_i64(ns, n);
    for (uint32_t i = 0; i < n; i++)
        n_runs += ns[i] > found.usual_most && (i == 0 || ns[i - 1] <= found.usual_most);
    found.are_first = n_runs == 1 && ns[0] > found.usual_most;
    found.in_a_row = n_runs == 1 && found.n > 1;
    return found;
}

/* The Mann-Kendall test. Over all pairs of iterations, the number in which the later one is longer
 * less the number in which it is shorter. It assumes no distribution, and one odd iteration hardly
 * changes it. */
enum { FEWEST_OF_TREND = 5 };
#define MOST_P      0.05
#define LEAST_SHARE 0.03

bool trend_find(const int64_t *ns, uint32_t n, struct trend *trend)
{
    if (n < FEWEST_OF_TREND)
        return false;
    double sum = 0;
    uint32_t third = n / 3;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = i + 1; j < n; j++)
            sum += (ns[j] > ns[i]) - (ns[j] < ns[i]);
    double variance = (double)n * (n - 1) * (2.0 * n + 5) / 18;
    double z = fmax(0, fabs(sum) - 1) / sqrt(variance);
    int64_t first = stats_mean_i64(ns, third), last = stats_mean_i64(ns + n - third, third);
    *trend = (struct trend){first, last, erfc(z / sqrt(2))};
    return trend->p < MOST_P && first > 0 &&
           fabs((double)(last - first)) >= LEAST_SHARE * (double)first;
}

/* Of values one after the other, whose deviation is as much larger as their mean varies more than
 * that of independent ones: by the correlation of each with the next (Bayley and Hammersley, 1946).
 * A machine that wanders is slow for a while, and then it is not. */
static struct mean_std mean_std_in_order(const double *values, size_t n)
{
    struct mean_std found = stats_mean_std(values, n);
    double together = 0, all = found.std * found.std * ((double)n - 1);
    for (size_t i = 1; i < n; i++)
        together += (values[i - 1] - found.mean) * (values[i] - found.mean);
    double correlation = all > 0 ? fmax(together / all, 0) : 0;
    found.std *= sqrt((1 + correlation) / (1 - correlation));
    return found;
}

bool stats_above_0(double *values, size_t n)
{
    enum { FEWEST = 8 }; /* of fewer, the median deviation may be small by chance */
    const double OF_MEDIAN = 1.253, OF_DEVIATION = 1.4826;
    struct mean_std found = mean_std_in_order(values, n);
    if (found.mean > 3 * found.std / sqrt((double)n) || n < FEWEST)
        return found.mean > 3 * found.std / sqrt((double)n);
    double median = stats_median(values, n), n_above = 0;
    for (size_t i = 0; i < n; i++) {
        n_above += values[i] > 0;
        values[i] = fabs(values[i] - median);
    }
    return n_above >= (double)n / 2 + sqrt((double)n) &&
           median > 3 * OF_MEDIAN * OF_DEVIATION * stats_median(values, n) / sqrt((double)n);
}
