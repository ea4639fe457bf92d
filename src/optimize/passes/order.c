/* optimize/passes/order.c: the order in which buckets are launched: two neighbours change places.
 */
#include "optimize/passes/passes.h"

static int propose(const struct dpro_pass *pass, const struct dpro_pass_view *view, uint32_t index,
                   struct dpro_candidate *candidate)
{
    (void)pass;
    return index + 1 < view->n_buckets ? pass_edit(candidate, DPRO_EDIT_MOVE, index, index + 1) : 0;
}

const struct dpro_pass pass_bucket_order = {
    .abi = DPRO_PASS_ABI,
    .name = "bucket-order",
    .summary = "in which order buckets are launched",
    .propose = propose,
};
