/* Which modules to recompute, so that memory fits a budget in the least time: a knapsack with a
 * constraint for each place of an iteration.
 *
 * The memory at a place is linear in the choice: a recomputed module removes what it keeps between
 * its passes, and may add something where it is recomputed. In a chain, the modules that have run
 * and not yet gone back are the first ones in order. So a place depends only on how much its first
 * modules have saved, and dynamic programming over (saved, time) is exact. Elsewhere a greedy
 * choice is improved by exchanges, and by branch and bound for a limited time. */
#pragma once

#include "base/base.h"

struct recompute_problem {
    uint32_t n_modules, n_places;
    const int64_t *time_ns; /* [n_modules] time that recomputing it adds, >= 0 */
    const int64_t *alive;   /* [n_places] bytes if nothing is recomputed */
    const int64_t *less;    /* [place * n_modules + module] bytes that the module's recomputation
                               takes away there; negative: it adds them. Modules are in the order of
                               their forward passes */
};

struct recompute_result {
    bool fits;
    bool is_exact; /* no choice that fits takes less time; if it does not fit: no choice does */
    bool is_chain;
    int64_t time_ns, peak_bytes;
};

int64_t recompute_time(const struct recompute_problem *problem, const bool *chosen);
int64_t recompute_peak(const struct recompute_problem *problem, const bool *chosen);
/* Fills in chosen[n_modules]; if nothing fits, a choice that takes away what it can (the lowest
 * peak is recompute_least()'s). */
struct recompute_result recompute_choose(const struct recompute_problem *problem,
                                         int64_t budget_bytes, bool *chosen);

/* ---- inside ---- */

/* The places above a budget; `need` is what has to be saved there. */
struct recompute_rows {
    struct arena arena;
    uint32_t n_modules, n;
    const int64_t *time_ns;
    const int64_t **less; /* [n] of the problem's */
    int64_t *need;
};

/* recompute_chain.c: returns false if the rows are not of a chain. *is_exact: it kept all states.
 * If nothing suffices, *suffices is false and `chosen` undefined. `known_ns`: time of a known
 * choice that suffices; INT64_MAX: none. */
bool recompute_chain(const struct recompute_rows *rows, int64_t known_ns, bool *chosen,
                     bool *suffices, bool *is_exact);
/* recompute_exchange.c: greedy choice, then exchanges. Returns whether the result suffices. */
bool recompute_exchange(const struct recompute_rows *rows, bool *chosen);
/* recompute_branch.c: branch and bound from any choice. Returns whether it finished. */
bool recompute_branch(const struct recompute_rows *rows, bool *chosen, bool *suffices);
