/* The Mann-Kendall test: over all pairs of iterations, the number in which the later one is longer
 * less the number in which it is shorter. It assumes no distribution, and one odd iteration hardly
 * changes it. */
#include "graph/steps/trend.h"

enum { FEWEST = 5 };
#define MOST_P      0.05
#define LEAST_SHARE 0.03

bool trend_find(const int64_t *ns, uint32_t n, struct trend *trend)
{
    if (n < FEWEST)
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
