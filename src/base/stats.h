/* Statistics of arrays. Functions that take values which are not const reorder them; sorted values
 * stay sorted. Of no values each gives 0. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HALF_OF_95_PCT 1.96 /* of an interval, in standard errors */

/* The median. Of an even count: the mean of the two in the middle, rounded down where they are
 * integers... */
double stats_median(double *values, size_t n);
int64_t stats_median_i64(int64_t *values, size_t n);
/* ... or the larger of the two. */
double stats_median_upper(double *values, size_t n);
int64_t stats_median_upper_i64(int64_t *values, size_t n);

/* The quantile at `fraction`, from 0 to 1, of sorted values: on the line between the two next to
 * it, as numpy has it; or the nearer of the two. */
int64_t stats_quantile_i64(const int64_t *sorted, size_t n, double fraction);
double stats_quantile_nearest(const double *sorted, size_t n, double fraction);

/* The mean, and the standard deviation of a sample (n - 1 in the denominator); 0 of one or none. */
struct mean_std {
    double mean, std;
};
struct mean_std stats_mean_std(const double *values, size_t n);
struct mean_std stats_mean_std_i64(const int64_t *values, size_t n);

/* Welch's test: how probable it is that two samples whose true means are equal have means at least
 * as far apart. NAN where one of them has fewer than two values. */
double stats_welch_p(struct mean_std a, size_t n_a, struct mean_std b, size_t n_b);
/* How far apart their means are where that is p: half of the interval of the difference. */
double stats_welch_half(struct mean_std a, size_t n_a, struct mean_std b, size_t n_b, double p);

/* Of rows of values one after the other, such as what each rank takes longer than its peers, the
 * first from which on they are on a level of their own: 0, one before the last three, or n, if they
 * vary around 0. A machine that wanders is slow for a while, and then it is not: noise of all rows
 * is that of a first-order autoregression, whose correlation and levels are the likeliest together
 * (maximum likelihood). A level counts that is as unlikely by chance as a mean at three standard
 * errors of independent values, for each of the other rows, and for each place that it may begin
 * at. So it does where values far from the median are clipped, as a few tell nothing of the others,
 * if most lie on one side of 0. */
void stats_levels(const double *values, size_t n_rows, size_t n, size_t *since);

/* Whether values one after the other are above 0 by more than chance explains: their mean is, by
 * three times its standard error. Or the median, and the share of those above 0 by two standard
 * errors of a coin's: a few values far below don't move them, and tell nothing of the others'
 * spread.
 */
bool stats_above_0(double *values, size_t n);

/* The mean, to the nearest integer; no sum overflows. */
int64_t stats_mean_i64(const int64_t *values, size_t n);

/* The least value which, with those below it, has half of the weight. */
struct weighted {
    double value, weight;
};
double stats_weighted_median(struct weighted *values, size_t n);

/* The longest of the usual ones: what takes longer is slow. At least half are usual, and the next
 * longer one lies apart from them: by a tenth, and by more than they differ. INT64_MAX: none is. */
int64_t stats_usual_most_i64(const int64_t *ns, uint32_t n);

/* What lasts longer than the usual ones do, and whether it recurs. */
struct slow_ones {
    int64_t usual_most; /* as above, or what others take at most where the longest recur */
    uint32_t n, n_all;
    bool are_first; /* before all others, as of a job that warms up */
    bool in_a_row;  /* two or more, with none of the others in between */
    uint32_t every; /* they recur with this period; 0: they don't, or are too few to tell */
    struct mean_std usual, slow, all;
};
/* number: [n] of each, ascending; NULL: not known, then nothing recurs. */
struct slow_ones stats_slow_ones(const int64_t *ns, const int64_t *number, uint32_t n);

/* Whether iterations get longer or shorter through a recording. */
struct trend {
    int64_t first_ns, last_ns; /* mean of the first third of the iterations, of the last third */
    double p;                  /* how often iterations in random order look so, or more */
};

/* By the Mann-Kendall test. False: p is 0.05 or more, the two thirds differ by less than 3 %, or
 * there are fewer than five iterations. */
bool trend_find(const int64_t *iterations_ns, uint32_t n, struct trend *trend);
