/* The built-in passes. Each proposes its candidates by number, until it returns 0; a candidate
 * without edits proposes nothing. */
#include "optimize/registry.h"

static int passes_add(struct dpro_candidate *candidate, enum dpro_edit_kind kind, uint32_t at,
                      int64_t value)
{
    candidate->edits[candidate->n_edits++] =
        (struct dpro_edit){.kind = kind, .at = at, .value = value};
    return 1;
}

/* ---- which neighbours share a bucket ---- */

/* Two become one, one becomes two, or the border between two moves by 1, 2, 4, ... tensors. */
enum { N_SHIFTS = 8, N_WAYS = 2 };

/* The border after bucket `at` moves forward, or back, by n tensors. */
static int passes_shift(const struct dpro_pass_view *view, uint32_t at, uint32_t n, int forward,
                        struct dpro_candidate *candidate)
{
    if (forward && n < view->buckets[at + 1].n) {
        passes_add(candidate, DPRO_EDIT_SPLIT, at + 1, n);
        passes_add(candidate, DPRO_EDIT_MERGE, at, 0);
    } else if (!forward && n < view->buckets[at].n) {
        passes_add(candidate, DPRO_EDIT_SPLIT, at, view->buckets[at].n - n);
        passes_add(candidate, DPRO_EDIT_MERGE, at + 1, 0);
    }
    return 1;
}

static int propose_fusion(const struct dpro_pass *pass, const struct dpro_pass_view *view,
                          uint32_t index, struct dpro_candidate *candidate)
{
    (void)pass;
    uint32_t n_borders = view->n_buckets ? view->n_buckets - 1 : 0,
             n_splits = view->n_tensors - view->n_buckets;
    if (index < n_borders)
        return passes_add(candidate, DPRO_EDIT_MERGE, index, 0);
    index -= n_borders;
    for (uint32_t b = 0, i = index; i < n_splits; i -= view->buckets[b++].n - 1)
        if (i < view->buckets[b].n - 1)
            return passes_add(candidate, DPRO_EDIT_SPLIT, b, i + 1);
    index -= n_splits;
    if (index < n_borders * N_SHIFTS * N_WAYS)
        return passes_shift(view, index / (N_SHIFTS * N_WAYS), 1u << index / N_WAYS % N_SHIFTS,
                            index % N_WAYS, candidate);
    return 0;
}

/* ---- in how many parts a bucket travels ---- */

static const uint32_t counts[] = {1, 2, 3, 4, 6, 8, 12, 16};
enum { N_COUNTS = sizeof counts / sizeof *counts };

static int propose_partition(const struct dpro_pass *pass, const struct dpro_pass_view *view,
                             uint32_t index, struct dpro_candidate *candidate)
{
    (void)pass;
    uint32_t at = index / N_COUNTS, n = counts[index % N_COUNTS];
    if (at >= view->n_buckets)
        return 0;
    const struct dpro_pass_bucket *bucket = &view->buckets[at];
    if (n != bucket->partitions && (n == 1 || bucket->size_bytes / 4 >= n))
        passes_add(candidate, DPRO_EDIT_PARTITION, at, n);
    return 1;
}

/* ---- which of the waiting buckets goes first ---- */

/* What becomes ready last is needed first by the next forward pass. */
static int propose_priority(const struct dpro_pass *pass, const struct dpro_pass_view *view,
                            uint32_t index, struct dpro_candidate *candidate)
{
    (void)pass;
    uint32_t n = view->n_buckets;
    if (index < 2) {
        for (uint32_t b = 0; b < n && n <= DPRO_PASS_MAX_EDITS; b++)
            passes_add(candidate, DPRO_EDIT_PRIORITY, b, index == 0 ? b : 0);
        return 1;
    }
    uint32_t at = (index - 2) / 2;
    if (at >= n)
        return 0;
    return passes_add(candidate, DPRO_EDIT_PRIORITY, at,
                      (int64_t)view->buckets[at].priority + (index % 2 ? 1 : -1));
}

/* ---- in which order buckets are launched: two neighbours change places ---- */

static int propose_order(const struct dpro_pass *pass, const struct dpro_pass_view *view,
                         uint32_t index, struct dpro_candidate *candidate)
{
    (void)pass;
    return index + 1 < view->n_buckets ? passes_add(candidate, DPRO_EDIT_MOVE, index, index + 1)
                                       : 0;
}

/* ---- whether gradients travel as half-precision numbers ---- */

static int propose_compression(const struct dpro_pass *pass, const struct dpro_pass_view *view,
                               uint32_t index, struct dpro_candidate *candidate)
{
    (void)pass;
    if (index > DPRO_COMPRESSION_BF16)
        return 0;
    if (index != view->compression)
        passes_add(candidate, DPRO_EDIT_COMPRESS, 0, index);
    return 1;
}

/* ---- which modules that were to be computed again are not: in 16 bits all may fit ---- */

static int propose_keeping(const struct dpro_pass *pass, const struct dpro_pass_view *view,
                           uint32_t index, struct dpro_candidate *candidate)
{
    (void)pass;
    if (index >= view->n_modules)
        return 0;
    if (view->modules[index].recomputed)
        passes_add(candidate, DPRO_EDIT_RECOMPUTE, index, 0);
    return 1;
}

const struct dpro_pass built_in_passes[N_BUILT_IN_PASSES] = {
    [PASS_TENSOR_FUSION] = {DPRO_PASS_ABI, "tensor-fusion", "which gradients travel in one bucket",
                            0, propose_fusion},
    [PASS_TENSOR_PARTITION] = {DPRO_PASS_ABI, "tensor-partition",
                               "in how many parts a bucket travels", 0, propose_partition},
    [PASS_PRIORITY] = {DPRO_PASS_ABI, "priority", "which of the waiting buckets goes first", 0,
                       propose_priority},
    [PASS_BUCKET_ORDER] = {DPRO_PASS_ABI, "bucket-order", "in which order buckets are launched", 0,
                           propose_order},
    [PASS_COMPRESSION] = {DPRO_PASS_ABI, "compression", "gradients travel as 16-bit numbers", 1,
                          propose_compression},
    [PASS_OP_FUSION] = {DPRO_PASS_ABI, "op-fusion", "which modules a compiler fuses", 1},
    [PASS_MIXED_PRECISION] = {DPRO_PASS_ABI, "mixed-precision", "which modules are in 16 bits", 1},
    [PASS_RECOMPUTATION] = {DPRO_PASS_ABI, "recomputation",
                            "which modules need no recomputation any more", 0, propose_keeping},
};
