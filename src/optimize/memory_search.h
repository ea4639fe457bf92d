/* optimize/memory_search.h: makes a job fit a budget of memory (paper, Algorithm 1): which modules
 * are recomputed, and in how many micro-batches a step is done. It runs before all other search,
 * which keeps its choice. */
#pragma once

#include <dpro/optimize.h>

#include "base/array.h"
#include "base/map.h"
#include "cost/model.h"
#include "optimize/computing.h"

struct memory_search {
    bool is_known;           /* what the job's ranks hold */
    bool is_needed;          /* there is a budget, and the job as it ran does not fit */
    bool fits;               /* what was chosen does, or the job as it ran */
    uint64_t budget_bytes;   /* 0: none */
    uint64_t capacity_bytes; /* of the device with the least; 0: not known */
    uint64_t least_bytes;    /* the lowest peak that was seen, where something had to be chosen */
    const struct dpro_model *model;
    struct dpro_strategy chosen; /* the job's own, with what was chosen of these two; else unset */
    /* Likewise, where modules are computed otherwise as well; `chosen` is that, too, where nothing
     * fits without. */
    struct dpro_strategy computed;
    bool fits_computed, needs_computed;
    ARRAY(struct dpro_memory_choice) choices; /* names in the arena of the search */
    size_t best[2]; /* number, from 1 on, of the choice that is `chosen`, and `computed`; 0: none */
};

/* `model` is the job, `fine` what evaluates it; n_ways `ways` to compute modules are tried, too.
 * Fails with DPRO_EEMPTY where a budget is asked for and nothing tells of the job's memory. */
int memory_search_run(const struct dpro_model *model, const struct dpro_model *fine,
                      const struct dpro_optimize_options *options,
                      const struct computing_choice *ways, uint32_t n_ways, struct arena *arena,
                      struct memory_search *search, struct dpro_error *err);
/* Tells which of the choices is the result: the best with modules computed otherwise, or without.
 */
void memory_search_tell(struct memory_search *search, bool computed);
/* The peak of a strategy, of any view of the job; 0: not known. `peaks` keeps what was asked for
 * before, one for each thread. */
uint64_t memory_search_peak(const struct memory_search *search,
                            const struct dpro_strategy *strategy, struct map *peaks);
/* Whether a strategy, of any view of the job, keeps to the budget. */
bool memory_search_allows(const struct memory_search *search, const struct dpro_strategy *strategy,
                          struct map *peaks);

/* Whether the batches of all ranks are known, and can be cut into so many micro-batches. */
bool memory_divides_batch(const struct dpro_model *model, uint32_t micro_batches);

/* ---- recompute_problem.c ---- */

/* Fewest modules with others within them, from which recomputing gives something back: the blocks
 * that the model repeats, and what is beside them; or, `inner`, the modules within these. In the
 * order of their forward passes; returns how many. There is room for all modules. */
uint32_t recompute_candidates(const struct dpro_model *model, bool inner, uint32_t *modules);
/* Of these modules, chooses those to recompute under a budget with the micro-batches of the
 * strategy. The peak is exact by the model: where the choice did not allow for all, more modules
 * are added; what turns out not to be needed is taken out. Whether it fits; is_exact: nothing that
 * fits takes less time. */
bool recompute_fit(const struct dpro_model *model, const uint32_t *modules, uint32_t n,
                   uint64_t budget_bytes, struct dpro_strategy *strategy, bool *is_exact);

/* ---- least_memory.c ---- */

/* Chooses the modules, of all levels, with which the strategy's peak is lowest, whatever they take:
 * surely where ten or fewer give anything back. */
void recompute_least(const struct dpro_model *model, struct dpro_strategy *strategy);
