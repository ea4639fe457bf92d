/* Medians, quantiles, means and deviations. */
#include <string.h>

#include "base/stats.h"
#include "case.h"

static const struct {
    int64_t values[6];
    size_t n;
    int64_t median, upper;
} medians[] = {
    {{0}, 0, 0, 0},
    {{7}, 1, 7, 7},
    {{9, 4}, 2, 6, 9},
    {{-4, -9}, 2, -7, -4},
    {{5, 1, 3}, 3, 3, 3},
    {{8, 2, 4, 6}, 4, 5, 6},
    {{1, 1, 9, 9, 9, 1}, 6, 5, 9},
    {{INT64_MAX, INT64_MIN}, 2, -1, INT64_MAX},
};

TEST(a_median_of_an_even_count_is_the_mean_or_the_larger_of_two)
{
    for (size_t c = 0; c < sizeof medians / sizeof *medians; c++) {
        int64_t values[6];
        double reals[6];
        size_t n = medians[c].n;
        memcpy(values, medians[c].values, sizeof values);
        for (size_t i = 0; i < 6; i++)
            reals[i] = (double)values[i];
        assert_int_equal(stats_median_i64(values, n), medians[c].median);
        assert_int_equal(stats_median_upper_i64(values, n), medians[c].upper);
        assert_true(stats_median_upper(reals, n) == (double)medians[c].upper);
    }
    assert_true(stats_median((double[]){4, 1, 2, 8}, 4) == 3);
    assert_true(stats_median((double[]){4, 1, 2}, 3) == 2);
    assert_true(stats_median(NULL, 0) == 0);
}

TEST(a_quantile_is_between_its_neighbours_or_the_nearer_one)
{
    static const int64_t sorted[] = {10, 20, 30, 50};
    static const double reals[] = {10, 20, 30, 50};
    static const struct {
        double fraction;
        int64_t between;
        double nearest;
    } cases[] = {{0, 10, 10}, {0.5, 25, 30}, {0.75, 35, 30}, {0.9, 44, 50}, {1, 50, 50}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        assert_int_equal(stats_quantile_i64(sorted, 4, cases[c].fraction), cases[c].between);
        assert_true(stats_quantile_nearest(reals, 4, cases[c].fraction) == cases[c].nearest);
    }
    assert_int_equal(stats_quantile_i64(sorted, 4, 7), 50);
    assert_int_equal(stats_quantile_i64(sorted, 4, -7), 10);
    assert_int_equal(stats_quantile_i64(NULL, 0, 0.5), 0);
}

TEST(the_deviation_is_of_a_sample)
{
    struct mean_std found = stats_mean_std((double[]){2, 4, 4, 4, 5, 5, 7, 9}, 8);
    assert_float_equal(found.mean, 5, 1e-12);
    assert_float_equal(found.std * found.std, 32.0 / 7, 1e-12);
    found = stats_mean_std_i64((int64_t[]){1, 3}, 2);
    assert_float_equal(found.mean, 2, 1e-12);
    assert_float_equal(found.std * found.std, 2, 1e-12);
    assert_true(stats_mean_std((double[]){3}, 1).std == 0);
    assert_true(stats_mean_std(NULL, 0).mean == 0);
}

TEST(an_integer_mean_is_rounded_and_does_not_overflow)
{
    assert_int_equal(stats_mean_i64((int64_t[]){1, 2}, 2), 2);
    assert_int_equal(stats_mean_i64((int64_t[]){1, 1, 2}, 3), 1);
    assert_true(stats_mean_i64((int64_t[]){INT64_MAX, INT64_MAX, INT64_MAX}, 3) == INT64_MAX);
    assert_int_equal(stats_mean_i64(NULL, 0), 0);
}

TEST(a_weighted_median_has_half_of_the_weight)
{
    assert_true(stats_weighted_median((struct weighted[]){{9, 1}, {1, 1}, {5, 1}}, 3) == 5);
    assert_true(stats_weighted_median((struct weighted[]){{9, 1}, {1, 5}, {5, 1}}, 3) == 1);
    assert_true(stats_weighted_median((struct weighted[]){{9, 2}, {1, 2}}, 2) == 1);
    assert_true(stats_weighted_median(NULL, 0) == 0);
}
