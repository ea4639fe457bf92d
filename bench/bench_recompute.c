/* How long the choice of modules to recompute takes for a chain of 96 blocks: a line a kind of
 * blocks, with the slowest of budgets between the highest and the lowest peak. */
#include <stdio.h>
#include <string.h>

#include "base/map.h"
#include "base/sort.h"
#include "cpu_seconds.h"
#include "optimize/recompute_choice.h"

enum { N = 96, N_PLACES = 2 * N + 1, N_BUDGETS = 15 };

/* Of block i, whose kind says how much others differ from it. */
static int64_t number(uint32_t spread, uint32_t i, uint32_t what)
{
    return 100000000 + (int64_t)(map_mix(i * 31 + what) % 100000000) * spread / 100;
}

/* A block keeps bytes, has a temporary in each pass, and leaves a gradient. */
static void make(uint32_t spread, int64_t *ns, int64_t *alive, int64_t *less)
{
    int64_t held = 1000000000, kept[N];
    for (uint32_t i = 0; i < N; i++) {
        kept[i] = number(spread, i, 0);
        ns[i] = number(spread, i, 1);
        alive[i] = held + kept[i] + kept[i] / 3;
        held += kept[i];
    }
    alive[N] = held;
    for (uint32_t i = N; i-- > 0;) {
        alive[N_PLACES - 1 - i] = held + kept[i] / 2 + kept[i] / 10;
        held += kept[i] / 10 - kept[i];
    }
    for (uint32_t p = 0; p < N_PLACES; p++) {
        uint32_t before = p <= N ? p : N_PLACES - 1 - p; /* that have run, and not gone back */
        for (uint32_t i = 0; i < N; i++)
            less[p * N + i] = i < before ? kept[i] : 0;
    }
}

int main(void)
{
    static const uint32_t spreads[] = {0, 5, 100};
    static int64_t ns[N], alive[N_PLACES], less[N_PLACES * N];
    for (size_t s = 0; s < sizeof spreads / sizeof *spreads; s++) {
        struct recompute_problem problem = {N, N_PLACES, ns, alive, less};
        bool chosen[N] = {false};
        double slowest = 0;
        int n_exact = 0;
        make(spreads[s], ns, alive, less);
        int64_t high = recompute_peak(&problem, chosen);
        memset(chosen, true, sizeof chosen);
        int64_t low = recompute_peak(&problem, chosen);
        for (int b = 1; b <= N_BUDGETS; b++) {
            int64_t budget = low + (high - low) * b / (N_BUDGETS + 1);
            double start = cpu_seconds();
            struct recompute_result r = recompute_choose(&problem, budget, chosen);
            slowest = MAX(slowest, cpu_seconds() - start);
            n_exact += r.is_exact && r.fits;
        }
        printf("%d blocks that differ by %u %%: %.6f s, %d of %d exact\n", N, spreads[s], slowest,
               n_exact, N_BUDGETS);
    }
    return 0;
}
