/* The result of a search. */
#pragma once

#include "cost/change/turns.h"
#include "cost/learn/uncertainty.h"
#include "optimize/memory_search.h"
#include "optimize/search.h"

struct dpro_optimum {
    struct arena arena;
    struct dpro_optimum_summary summary;
    const struct dpro_model *models[2]; /* by enum dpro_which, as all pairs here */
    struct dpro_model changed; /* with the best number of servers, if that is not the job's */
    struct dpro_strategy strategies[2];
    struct dpro_model ran; /* as the search sees models[DPRO_BASELINE] */
    struct timed_job as_ran;
    struct correction measured; /* of the best strategy */
    struct memory_search memory;
    struct dpro_computing_search computing;
    struct dpro_memory_peak peaks[2];
    struct dpro_bucket_times *times[2];
    ARRAY(struct dpro_baseline) baselines;
    ARRAY(struct dpro_server_count) counts;
    struct dpro_pipeline_run pipeline[2];  /* zeroed: none was searched */
    ARRAY(struct dpro_unit) units;         /* of FSDP; names are the graph's */
    ARRAY(struct dpro_decision) decisions; /* texts in the arena */
    ARRAY(struct dpro_improvement) improvements;
    ARRAY(struct dpro_finalist) finalists; /* names in the arena */
    ARRAY(struct dpro_strategy) finalist_strategies;
    ARRAY(const struct setting *) finalist_settings; /* of FSDP's units; else none */
    ARRAY(uint32_t) unit_numbers;                    /* the graph's, of `units` */
    struct dpro_optimum_view view;                   /* of all that is told */
};

/* finalists.c: chooses the result, space->best, and fills in the expected times of it and of the
 * other finalists. */
void result_choose(struct dpro_optimum *optimum, struct space *space);
/* result.c: fills in the best strategy, how the job ran, how they differ, and the uncertainty.
 * After result_choose(). */
void result_fill(struct dpro_optimum *optimum, struct space *space);
/* result.c: what was asked for, and how the search went. */
void result_tell_search(struct dpro_optimum *optimum, const struct search *search);
/* result.c: that the result is corrected by measured turns; its uncertainty is not yet. */
void result_tell_turns(struct dpro_optimum *optimum, const struct dpro_model *model);
/* result.c: fails, as an iteration of the job's model never ends. */
_Noreturn void result_never_ends(void);
/* result.c: the job as it ran gets its own time, and all else its share of that; then the result
 * can be looked at. */
void result_end(struct dpro_optimum *optimum);
/* decisions.c: how the best strategy differs from the job's own. */
void result_decide(struct dpro_optimum *optimum);
