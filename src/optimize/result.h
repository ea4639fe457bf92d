/* optimize/result.h: what a search gives back. */
#ifndef OPTIMIZE_RESULT_H
#define OPTIMIZE_RESULT_H

#include "optimize/search.h"

struct dpro_optimum {
    struct arena arena;
    struct dpro_optimum_summary summary;
    const struct dpro_model *models[2]; /* by enum dpro_which, as all pairs here */
    struct dpro_model changed;          /* has other servers, where the best is of such a one */
    struct dpro_strategy strategies[2];
    struct dpro_bucket_times *times[2];
    struct dpro_baseline baselines[N_BASELINES];
    uint32_t n_baselines;
    ARRAY(struct dpro_server_count) counts;
    ARRAY(struct dpro_op_fusion) fusions;  /* lists in the arena */
    ARRAY(struct dpro_decision) decisions; /* texts in the arena */
    ARRAY(struct dpro_improvement) improvements;
};

/* -1: out of memory. */
int result_keep(struct dpro_optimum *optimum, const struct dpro_model *model, struct space *space,
                enum dpro_which which, const struct dpro_strategy *strategy);
/* What the best strategy fuses, of all ranks; the names are copied. */
int result_fuse(struct dpro_optimum *optimum, const struct dpro_model *model);
/* What makes the best of the own strategy; all of these were kept before. */
int result_decide(struct dpro_optimum *optimum);

#endif
