/* Medians, quantiles, means and deviations. */

#include "base/base.h"
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

/* The p-value is by integrating the density of t numerically. */
TEST(welchs_test_tells_noise_from_a_difference)
{
    double a[] = {27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6},
           b[] = {27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2};
    struct mean_std of_a = stats_mean_std(a, 12), of_b = stats_mean_std(b, 10);
    assert_true(fabs(stats_welch_p(of_a, 12, of_b, 10) - 0.04222535709526) < 1e-9);
    assert_true(stats_welch_p(of_a, 12, of_a, 12) == 1);
    struct mean_std apart = {of_b.mean + stats_welch_half(of_a, 12, of_b, 10, 0.05), of_a.std};
    assert_true(fabs(stats_welch_p(apart, 12, of_b, 10) - 0.05) < 1e-9);
    assert_true(isnan(stats_welch_half(of_a, 12, of_b, 1, 0.05)));
    assert_true(isnan(stats_welch_p(of_a, 12, of_b, 1)));
    of_a.std = of_b.std = 0;
    assert_true(stats_welch_p(of_a, 12, of_b, 10) == 0);
}

/* Where rows are on a level; noise: a linear congruential generator's. */
TEST(a_level_is_told_from_noise_that_wanders)
{
    enum { ROWS = 4, N = 20 };
    static const struct {
        double correlation, slow;
        size_t since, found;
    } cases[] = {{0, 0, 0, N},    {0, 0.3, 0, 0},  {0, 0.3, 12, 12}, {0, -0.3, 0, 0},
                 {0.95, 0, 0, N}, {0.95, 3, 0, 0}, {0.8, 0, 0, N}};
    uint64_t seed = 1;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        double values[ROWS * N], wander = 0;
        size_t since[ROWS], wrong = 0;
        for (size_t tries = 0; tries < 40; tries++) {
            for (size_t i = 0; i < ROWS * N; i++) {
                double noise = -6; /* of 12 uniform ones: nearly a normal distribution */
                for (int k = 0; k < 12; k++)
                    noise += (double)((seed = seed * 6364136223846793005u + 1) >> 33) / 0x1p31;
                double old = i % N == 0 ? 0 : cases[c].correlation;
                wander = old * wander + sqrt(1 - old * old) * noise;
                values[i] = 0.05 * wander + (i / N == 1 && i % N >= cases[c].since) * cases[c].slow;
            }
            stats_levels(values, ROWS, N, since);
            for (size_t row = 0; row < ROWS; row++)
                wrong += since[row] != (row == 1 ? cases[c].found : N);
        }
        assert_in_range(wrong, 0, 4); /* of 160 */
    }
    size_t since[2];
    stats_levels((double[]){1, 0}, 2, 1, since); /* one value each */
    assert_int_equal(since[0], 0);
    assert_int_equal(since[1], 1);
    stats_levels((double[]){5, 6, 5, 6, 5, -90, 6, 5, 0, 0, 0, 0, 0, 0, 0, 0}, 2, 8, since);
    assert_int_equal(since[0], 0); /* one far below */
    assert_int_equal(since[1], 8);
    double coin[40]; /* which of two ranks is late: 12 of 20 times the first */
    for (size_t i = 0; i < 20; i++)
        coin[20 + i] = -(coin[i] = "00110011001110001000"[i] == '0' ? 9 + 0.01 * (double)i : -9);
    stats_levels(coin, 2, 20, since);
    assert_int_equal(since[0], 20);
    assert_int_equal(since[1], 20);
    stats_levels(NULL, 0, 0, since);
}

TEST(slow_ones_recur_come_first_or_in_a_row)
{
    static const struct {
        int64_t ns[14];
        uint32_t n, n_slow, every;
        bool are_first, in_a_row;
    } cases[] = {
        {{10, 10, 30, 10, 10, 31, 10, 10, 32}, 9, 3, 3, false, false},
        {{30, 10, 10, 31, 10, 10, 10, 10, 10, 32, 10, 10}, 12, 3, 0, false, false}, /* one lacks */
        {{10, 10, 30, 10, 10, 31, 10, 10}, 8, 2, 0, false, false},                  /* too few */
        {{90, 80, 10, 11, 10, 11, 10, 10}, 8, 2, 0, true, true},
        {{10, 11, 10, 11, 10, 18, 19, 18}, 8, 3, 0, false, true},
        {{90, 10, 10, 11, 10}, 5, 1, 0, true, false},
        {{10, 11, 10, 11}, 4, 0, 0, false, false},
        {{10, 90}, 2, 0, 0, false, false},
        /* in noise four tell, and no three; none where another one is as long */
        {{28, 15, 12, 22, 26, 13, 10, 20, 29, 19, 16, 12, 27, 11}, 14, 4, 4, false, false},
        {{28, 15, 12, 22, 26, 13, 10, 20, 29, 19, 16, 12}, 12, 0, 0, false, false},
        {{28, 15, 12, 22, 26, 13, 10, 27, 29, 19, 16, 12, 27, 11}, 14, 0, 0, false, false},
    };
    int64_t number[14];
    for (int64_t i = 0; i < 14; i++)
        number[i] = 5 + i;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct slow_ones found = stats_slow_ones(cases[c].ns, number, cases[c].n);
        assert_int_equal(found.n, cases[c].n_slow);
        assert_int_equal(found.n_all, cases[c].n);
        assert_int_equal(found.every, cases[c].every);
        assert_int_equal(found.are_first, cases[c].are_first);
        assert_int_equal(found.in_a_row, cases[c].in_a_row);
    }
    struct slow_ones found = stats_slow_ones(cases[0].ns, NULL, cases[0].n);
    assert_int_equal(found.every, 0);
    assert_float_equal(found.usual.mean, 10, 1e-12);
    assert_float_equal(found.slow.mean, 31, 1e-12);
    number[8] += 4; /* and steps that were not recorded in between */
    assert_int_equal(stats_slow_ones(cases[0].ns, number, 9).every, 0);
    number[8] -= 1;
    assert_int_equal(stats_slow_ones(cases[0].ns, number, 9).every, 3);
    assert_int_equal(stats_slow_ones(NULL, NULL, 0).n_all, 0);
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
