/* optimize/passes/passes.h: the passes that are built in. */
#ifndef OPTIMIZE_PASSES_PASSES_H
#define OPTIMIZE_PASSES_PASSES_H

#include <dpro/pass.h>

extern const struct dpro_pass pass_tensor_fusion;
extern const struct dpro_pass pass_tensor_partition;
extern const struct dpro_pass pass_priority;
extern const struct dpro_pass pass_bucket_order;
extern const struct dpro_pass pass_compression;

static inline int pass_edit(struct dpro_candidate *candidate, enum dpro_edit_kind kind, uint32_t at,
                            int64_t value)
{
    candidate->edits[candidate->n_edits++] =
        (struct dpro_edit){.kind = kind, .at = at, .value = value};
    return 1;
}

#endif
