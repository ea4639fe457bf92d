/* optimize/passes/fusion.c: which neighbours share a bucket: two become one, one becomes two, or
 * the border between two moves by 1, 2, 4, ... tensors. */
#include "optimize/passes/passes.h"

enum { N_SHIFTS = 8, N_WAYS = 2 };

/* The border after bucket `at` moves forward, or back, by n tensors. */
static int shift(const struct dpro_pass_view *view, uint32_t at, uint32_t n, int forward,
                 struct dpro_candidate *candidate)
{
    if (forward && n < view->buckets[at + 1].n) {
        pass_edit(candidate, DPRO_EDIT_SPLIT, at + 1, n);
        pass_edit(candidate, DPRO_EDIT_MERGE, at, 0);
    } else if (!forward && n < view->buckets[at].n) {
        pass_edit(candidate, DPRO_EDIT_SPLIT, at, view->buckets[at].n - n);
        pass_edit(candidate, DPRO_EDIT_MERGE, at + 1, 0);
    }
    return 1;
}

static int propose(const struct dpro_pass *pass, const struct dpro_pass_view *view, uint32_t index,
                   struct dpro_candidate *candidate)
{
    (void)pass;
    uint32_t n_borders = view->n_buckets - 1, n_splits = view->n_tensors - view->n_buckets;
    if (index < n_borders)
        return pass_edit(candidate, DPRO_EDIT_MERGE, index, 0);
    index -= n_borders;
    for (uint32_t b = 0, i = index; i < n_splits; i -= view->buckets[b++].n - 1)
        if (i < view->buckets[b].n - 1)
            return pass_edit(candidate, DPRO_EDIT_SPLIT, b, i + 1);
    index -= n_splits;
    if (index < n_borders * N_SHIFTS * N_WAYS)
        return shift(view, index / (N_SHIFTS * N_WAYS), 1u << index / N_WAYS % N_SHIFTS,
                     index % N_WAYS, candidate);
    return 0;
}

const struct dpro_pass pass_tensor_fusion = {
    .abi = DPRO_PASS_ABI,
    .name = "tensor-fusion",
    .summary = "which gradients travel in one bucket",
    .propose = propose,
};
