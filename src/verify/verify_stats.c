/* What a plan gains, by the times of turns with and without it.
 *
 * A block holds every configuration twice, in mirrored order (A B B A), so that a steady drift has
 * the same share in all of them. Each half of a block gives one gain for each configuration, from
 * turns that were close in time. As other work on the machine disturbs some of them a lot, their
 * mean is the Hodges-Lehmann estimate, the median of the means of all pairs, with the interval of
 * Wilcoxon's signed ranks: exact, and nothing is drawn at random. A turn's time is the median of
 * its steps. Where a GPU runs behind the host, single steps mean little, and it is the time from
 * first to last. */

#include "verify/verify.h"

enum { MOST_BLOCKS = 1000 };

static double turn_ms(const struct dpro_verify *v, const struct turn *turn)
{
    int64_t *steps = v->steps.at + turn->first;
    if (v->asynchronous)
        return (double)turn->span_ns / 1e6 / (double)turn->n;
    return (double)stats_median_i64(steps, turn->n) / 1e6;
}

static void find_configurations(struct dpro_verify *v)
{
    for (size_t i = 0; i < v->turns.n; i++) {
        size_t c = 0;
        while (c < v->n_configurations &&
               strcmp(v->configurations[c].name, v->turns.at[i].name) != 0)
            c++;
        if (c == VERIFY_MOST_CONFIGURATIONS)
            fail_with(DPRO_EFORMAT, "more than %zu configurations by turns", c);
        if (c == v->n_configurations)
            v->configurations[v->n_configurations++].name = v->turns.at[i].name;
        if (v->turns.at[i].peak_bytes > v->configurations[c].peak_bytes)
            v->configurations[c].peak_bytes = v->turns.at[i].peak_bytes;
        v->configurations[c].n_buckets = v->turns.at[i].n_buckets;
        v->configurations[c].first_bucket = v->turns.at[i].first_bucket;
    }
}

/* The turns of whole blocks, by half. */
static void find_times(struct dpro_verify *v)
{
    size_t n = v->n_configurations;
    v->n_blocks = n < 2 ? 0 : v->turns.n / (2 * n);
    if (v->n_blocks > MOST_BLOCKS)
        fail_with(DPRO_EFORMAT, "more than %d blocks of turns", MOST_BLOCKS);
    v->times = mem_array(2 * v->n_blocks * n, sizeof *v->times);
    for (size_t i = 0; i < 2 * v->n_blocks * n; i++) {
        const struct turn *turn = verify_turn(v, i / n, i % n);
        if (strcmp(turn->name, v->configurations[i % n].name) != 0 ||
            turn->block != (int64_t)(i / n / 2))
            fail_with(DPRO_EFORMAT, "turn %zu is not in mirrored order",
                      (size_t)(turn - v->turns.at));
        v->times[i] = turn_ms(v, turn);
    }
}

/* How many of the smallest, and of the largest, means of pairs lie outside of the 95 % interval
 * for n values: the most for which the sum of positive ranks is below that in at most 2.5 % of all
 * ways to give n ranks a sign. */
static size_t ranks_outside(size_t n, double *ways)
{
    enum { EXACT = 60 };
    size_t n_sums = n * (n + 1) / 2 + 1, k = 0;
    double below = 0, mean = (double)(n_sums - 1) / 2;
    if (n > EXACT)
        return (size_t)(mean - 1.96 * sqrt(mean * (2 * (double)n + 1) / 6));
    memset(ways, 0, n_sums * sizeof *ways); /* share of the ways, by the sum of positive ranks */
    ways[0] = 1;
    for (size_t rank = 1; rank <= n; rank++)
        for (size_t sum = rank * (rank + 1) / 2 + 1; sum-- > 0;)
            ways[sum] = (ways[sum] + (sum >= rank ? ways[sum - rank] : 0)) / 2;
    while (below + ways[k] <= 0.025)
        below += ways[k++];
    return k;
}

/* What configuration `a` saves of `b`'s time. `work` has room for the means of all pairs. */
static struct gain gain_over(const struct dpro_verify *v, size_t a, size_t b, double *work)
{
    size_t n = 2 * v->n_blocks, n_pairs = 0, outside = ranks_outside(n, work);
    const double *times = v->times;
    struct gain gain = {0, NAN, NAN};
    for (size_t i = 0; i < n; i++)
        for (size_t j = i; j < n; j++) {
            const double *x = times + i * v->n_configurations, *y = times + j * v->n_configurations;
            work[n_pairs++] = 100 * (1 - (x[a] / x[b] + y[a] / y[b]) / 2);
        }
    sort_double(work, n_pairs);
    gain.mean = stats_median(work, n_pairs);
    if (v->n_blocks >= VERIFY_LEAST_BLOCKS) {
        gain.low = work[outside - 1];
        gain.high = work[n_pairs - outside];
    }
    return gain;
}

static void compare_configurations(struct dpro_verify *v)
{
    size_t n = v->n_configurations, n_halves = 2 * v->n_blocks;
    SCRATCH double *work = mem_array(n_halves * (n_halves + 1) / 2 + 1, sizeof *work);
    for (size_t c = 0; c < n; c++) {
        struct configuration *config = &v->configurations[c];
        for (size_t h = 0; h < n_halves; h++)
            work[h] = v->times[h * n + c];
        config->iteration_ms = stats_median(work, n_halves);
        config->gain = gain_over(v, c, 0, work);
        if (c >= 2 && (v->best < 0 || config->gain.mean > v->configurations[v->best].gain.mean))
            v->best = (int)c;
    }
    if (v->best >= 0)
        v->over_best = gain_over(v, 1, (size_t)v->best, work);
}

void verify_work_out(struct dpro_verify *v)
{
    find_configurations(v);
    find_times(v);
    if (v->n_blocks > 0)
        compare_configurations(v);
}

double verify_expected_gain(const struct dpro_verify *v)
{
    const struct dpro_plan_summary *p = &v->plan;
    return p->baseline_ns > 0 && p->iteration_ns > 0
               ? 100 * (1 - (double)p->iteration_ns / (double)p->baseline_ns)
               : NAN;
}

double verify_expected_uncertainty(const struct dpro_verify *v)
{
    const struct dpro_plan_summary *p = &v->plan;
    return p->baseline_ns > 0
               ? p->uncertainty_pct * (double)p->iteration_ns / (double)p->baseline_ns
               : NAN;
}

static bool has_same_buckets(const struct dpro_verify *v)
{
    const struct configuration *own = &v->configurations[0], *plan = &v->configurations[1];
    bool same = v->plan.buckets_alone && own->n_buckets > 0 && own->n_buckets == plan->n_buckets;
    for (size_t i = 0; i < own->n_buckets && same; i++)
        same =
            v->bucket_bytes.at[own->first_bucket + i] == v->bucket_bytes.at[plan->first_bucket + i];
    return same;
}

enum verify_verdict verify_verdict(const struct dpro_verify *v)
{
    struct gain gain = v->configurations[1].gain;
    double expected = verify_expected_gain(v), uncertainty = verify_expected_uncertainty(v);
    if (has_same_buckets(v))
        return VERIFY_SAME;
    if (v->n_blocks < VERIFY_LEAST_BLOCKS)
        return VERIFY_NO_INTERVAL;
    if (gain.high < 0)
        return VERIFY_SLOWER;
    if (gain.low <= 0)
        return VERIFY_NOISE;
    if (isnan(expected))
        return VERIFY_FASTER;
    if (expected > gain.high + uncertainty)
        return VERIFY_LESS;
    return expected < gain.low - uncertainty ? VERIFY_MORE : VERIFY_AS_EXPECTED;
}
