/* Makes a job fit a budget of memory (paper, Algorithm 1): which modules are recomputed, and in how
 * many micro-batches a step is done. It runs before all other search, which keeps its choice. */
#pragma once

#include <dpro/optimize.h>

#include "cost/program/model.h"
#include "optimize/computing.h"

struct memory_search {
    bool is_known;           /* whether the memory of the job's ranks is known */
    bool is_needed;          /* there is a budget, and the job as it ran does not fit */
    bool fits;               /* the choice fits, or the job as it ran */
    uint64_t budget_bytes;   /* 0: none */
    uint64_t capacity_bytes; /* of the device with the least; 0: not known */
    uint64_t least_bytes;    /* the lowest peak that was found, if something had to be chosen */
    const struct dpro_model *model;
    struct dpro_strategy chosen; /* the job's own with what was chosen of these two; else unset */
    /* The same with other ways to compute modules. If nothing else fits, `chosen` is this, too. */
    struct dpro_strategy computed;
    bool fits_computed, needs_computed;
    ARRAY(struct dpro_memory_choice) choices; /* names in the arena of the search */
    size_t best[2]; /* number, from 1 on, of the choices `chosen` and `computed`; 0: none */
};

/* Begins a search: what is known of the job's memory, and the budget that the options give. Fails
 * with DPRO_EEMPTY when there is one and the job's memory is not known. */
void memory_search_budget(const struct dpro_model *model,
                          const struct dpro_optimize_options *options,
                          struct memory_search *search);
/* `model` is the job, `fine` the model that evaluates it; n_ways `ways` to compute modules are
 * tried, too. Fails as memory_search_budget() does. */
void memory_search_run(const struct dpro_model *model, const struct dpro_model *fine,
                       const struct dpro_optimize_options *options,
                       const struct computing_choice *ways, uint32_t n_ways, struct arena *arena,
                       struct memory_search *search);
/* Marks the choice that is the result: the best with modules computed otherwise, or without. */
void memory_search_tell(struct memory_search *search, bool computed);
/* The peak of a strategy, of any view of the job; 0: not known. `peaks` caches them, one map for
 * each thread. */
uint64_t memory_search_peak(const struct memory_search *search,
                            const struct dpro_strategy *strategy, struct map *peaks);
/* Whether a strategy, of any view of the job, keeps to the budget. */
bool memory_search_allows(const struct memory_search *search, const struct dpro_strategy *strategy,
                          struct map *peaks);

/* Whether the batches of all ranks are known, and can be cut into so many micro-batches. */
bool memory_divides_batch(const struct dpro_model *model, uint32_t micro_batches);

/* ---- module_sets.c: sets of modules to recompute, by asking what each set takes and holds ---- */

struct module_sets {
    const struct dpro_model *model;
    bool *in;                /* by module: the set at hand */
    const uint32_t *modules; /* [n] those that may be in it */
    uint32_t n;
    uint32_t few, many; /* up to so many, each set is asked for; more are not exchanged */
    uint64_t limit_bytes;
    int64_t (*time_ns)(void *arg); /* of the set at hand */
    uint64_t (*peak_bytes)(void *arg);
    void *arg;
};

/* From none to a set that fits, in as little time as is found: of few modules it is the least.
 * Where none is found, it has what brings the peak as low as all modules do. Returns whether it
 * fits. */
bool sets_fit(const struct module_sets *sets);
/* To the set with the lowest peak; of many modules, none with one module more or less has a lower.
 */
void sets_lowest(const struct module_sets *sets);

/* Lists modules to recompute: the blocks that the model repeats, and the outermost modules beside
 * them that free memory; or, with `inner`, the modules within these. In the order of their forward
 * passes; returns how many. There is room for all modules. */
uint32_t sets_candidates(const struct dpro_model *model, bool inner, uint32_t *modules);
