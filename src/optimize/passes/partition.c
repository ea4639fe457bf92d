/* optimize/passes/partition.c: a bucket travels in parts, so that the first are through while the
 * last are on their way. */
#include "optimize/passes/passes.h"

static const uint32_t counts[] = {1, 2, 3, 4, 6, 8, 12, 16};
enum { N_COUNTS = sizeof counts / sizeof *counts };

static int propose(const struct dpro_pass *pass, const struct dpro_pass_view *view, uint32_t index,
                   struct dpro_candidate *candidate)
{
    (void)pass;
    uint32_t at = index / N_COUNTS, n = counts[index % N_COUNTS];
    if (at >= view->n_buckets)
        return 0;
    const struct dpro_pass_bucket *bucket = &view->buckets[at];
    if (n != bucket->partitions && (n == 1 || bucket->size_bytes / 4 >= n))
        pass_edit(candidate, DPRO_EDIT_PARTITION, at, n);
    return 1;
}

const struct dpro_pass pass_tensor_partition = {
    .abi = DPRO_PASS_ABI,
    .name = "tensor-partition",
    .summary = "in how many parts a bucket travels",
    .propose = propose,
};
