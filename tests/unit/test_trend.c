/* Whether iterations drift: sequences whose answer the Mann-Kendall test's tables give. */
#include "base/base.h"
#include "case.h"

TEST(iterations_that_get_longer_are_found)
{
    const int64_t up[] = {1910, 1990, 2050, 2180, 2290, 2410, 2500, 2629};
    const int64_t down[] = {2629, 2500, 2410, 2290, 2180, 2050, 1990, 1910};
    struct trend trend;
    assert_true(trend_find(up, 8, &trend));
    assert_int_equal(trend.first_ns, 1950);
    assert_int_equal(trend.last_ns, 2565); /* 2564.5 */
    assert_true(trend.p < 0.002);
    assert_true(trend_find(down, 8, &trend));
    assert_true(trend.last_ns < trend.first_ns);
}

TEST(iterations_that_vary_or_drift_little_are_no_trend)
{
    static const struct {
        uint32_t n;
        int64_t ns[8];
    } cases[] = {
        {8, {1910, 2629, 1990, 2500, 2050, 2410, 2180, 2290}}, /* no order */
        {8, {2000, 2001, 2003, 2004, 2006, 2008, 2009, 2010}}, /* in order, by half a percent */
        {4, {1000, 1200, 1400, 1600}},                         /* too few */
        {6, {1000, 1000, 1000, 1000, 1000, 1000}},
        {8, {3000, 1000, 1001, 1000, 1002, 1001, 1000, 1001}}, /* one odd iteration */
    };
    struct trend trend;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_false(trend_find(cases[i].ns, cases[i].n, &trend));
}
