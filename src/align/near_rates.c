/* How fast clocks drift apart, by moments that were near each other: of a pair's, those in the
 * first third of the time are compared with those in the last. */

#include "align/solver.h"

/* The median, in a third of the time, of how far the high clock is before the low one. */
struct near_third {
    double median, error, at; /* its standard error; its mean time on the low clock */
};

/* How much further the high clock is before the low one than at another moment. Times may be as far
 * apart as an int64_t can tell, so it is worked out modulo 2^64. */
static double further_before(const struct near *near, const struct near *other)
{
    return (double)(int64_t)(((uint64_t)near->high_ns - (uint64_t)other->high_ns) -
                             ((uint64_t)near->low_ns - (uint64_t)other->low_ns));
}

static struct near_third third_of(const struct pair *pair, int64_t from_ns, int64_t to_ns,
                                  double *scratch)
{
    enum { FEWEST = 5 };
    const double ERROR_OF_MEDIAN = 1.2533, STD_OF_DEVIATION = 1.4826;
    struct near_third is = {.error = INFINITY};
    size_t n = 0;
    EACH (const struct near, near, pair->nears) {
        if (near->low_ns < from_ns || near->low_ns > to_ns)
            continue;
        is.at += (double)((uint64_t)near->low_ns - (uint64_t)from_ns);
        scratch[n++] = further_before(near, pair->nears.at);
    }
    if (n < FEWEST)
        return is;
    is.at = (double)from_ns + is.at / (double)n;
    is.median = stats_median_upper(scratch, n);
    for (size_t i = 0; i < n; i++)
        scratch[i] = fabs(scratch[i] - is.median);
    is.error =
        ERROR_OF_MEDIAN * STD_OF_DEVIATION * stats_median_upper(scratch, n) / sqrt((double)n);
    return is;
}

/* By how much the high clock runs faster than the low one: if what they differ by in the first and
 * the last third of the moments is further apart than four standard errors, and a rounding. */
static double rate_of_nears(const struct window *window, const struct pair *pair, double *scratch)
{
    const double SURE = 4, ROUNDING_NS = 2000;
    const struct line *low = &window->lines[pair->low];
    double length_ns = (double)window->end_ns - (double)window->start_ns;
    int64_t from = INT64_MAX, to = INT64_MIN;
    EACH (const struct near, near, pair->nears) {
        double at = line_at(low, near->low_ns, window->start_ns);
        if (at < 0 || at > length_ns)
            continue;
        from = MIN(from, near->low_ns);
        to = MAX(to, near->low_ns);
    }
    if (from >= to)
        return 0;
    int64_t third = to / 3 - from / 3;
    struct near_third first = third_of(pair, from, from + third, scratch);
    struct near_third last = third_of(pair, to - third, to, scratch);
    double apart = last.median - first.median, rate = apart / (last.at - first.at);
    bool sure = fabs(apart) > ROUNDING_NS + SURE * hypot(first.error, last.error);
    return sure && fabs(rate) < ALIGN_MAX_DRIFT ? rate : 0;
}

void near_rates(const struct align *a, const struct window *window, bool *known, double *rate)
{
    size_t most = 0;
    EACH (const struct pair, pair, a->pairs)
        most = MAX(most, pair->nears.n);
    if (most == 0)
        return;
    SCRATCH double *scratch = mem_alloc(most * sizeof *scratch);
    for (uint32_t c = 0; c < a->n_clocks; c++)
        known[c] = c == 0;
    /* again as long as one more is known: clocks may hang together only through others */
    for (bool more = true; more;) {
        more = false;
        EACH (const struct pair, pair, a->pairs) {
            bool low = known[pair->low];
            if (low == known[pair->high] || pair->nears.n == 0)
                continue;
            double faster = rate_of_nears(window, pair, scratch);
            if (low)
                rate[pair->high] = rate[pair->low] - faster;
            else
                rate[pair->low] = rate[pair->high] + faster;
            known[low ? pair->high : pair->low] = more = true;
        }
    }
}
