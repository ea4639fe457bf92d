/* optimize/recompute_choice.h: which modules to recompute, so that memory fits a budget in the
 * least time: a knapsack with a constraint for each place of an iteration.
 *
 * The memory at a place is linear in the choice: a recomputed module removes what it keeps between
 * its passes, and may add something where it is recomputed. In a chain, the modules that have run
 * and not yet gone back are the first ones in order. So a place depends only on how much its first
 * modules have saved, and dynamic programming over (saved, time) is exact. Elsewhere a greedy
 * choice is improved by exchanges, and by branch and bound for a limited time. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"

struct recompute_problem {
    uint32_t n_modules, n_places;
    const int64_t *time_ns; /* [n_modules] that it adds, >= 0 */
    const int64_t *alive;   /* [n_places] bytes where nothing is recomputed */
    const int64_t *less;    /* [place * n_modules + module] bytes that the module's recomputation
                               takes away there; negative: it adds them. Modules are in the order of
                               their forward passes */
};

struct recompute_result {
    bool fits;
    bool is_exact; /* no choice that fits takes less time; of one that does not fit: none does */
    bool is_chain;
    int64_t time_ns, peak_bytes;
};

int64_t recompute_time(const struct recompute_problem *problem, const bool *chosen);
int64_t recompute_peak(const struct recompute_problem *problem, const bool *chosen);
/* Fills in chosen[n_modules]. Where nothing fits, with what has the lowest peak that was found. */
struct recompute_result recompute_choose(const struct recompute_problem *problem,
                                         int64_t budget_bytes, bool *chosen);

/* ---- inside ---- */

/* Places that matter for a budget: `need` is what has to be taken away. */
struct recompute_rows {
    struct arena arena;
    uint32_t n_modules, n;
    const int64_t *time_ns;
    const int64_t **less; /* [n] of the problem's */
    int64_t *need;
};
/* Whether all rows are content. */
bool recompute_suffices(const struct recompute_rows *rows, const bool *chosen);

/* recompute_chain.c: false where the rows are of no chain. *is_exact: it kept all states. Where
 * nothing suffices, *suffices is false and `chosen` undefined. `known_ns`: time of a choice that
 * suffices; INT64_MAX. */
bool recompute_chain(const struct recompute_rows *rows, int64_t known_ns, bool *chosen,
                     bool *suffices, bool *is_exact);
/* recompute_exchange.c: greedy, then exchanges; whether what it finds suffices. */
bool recompute_exchange(const struct recompute_rows *rows, bool *chosen);
/* Branch and bound from a choice, which suffices or not; whether it came to its end. */
bool recompute_branch(const struct recompute_rows *rows, bool *chosen, bool *suffices);
