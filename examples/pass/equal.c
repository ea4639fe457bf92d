/* A pass for `dpro optimize --pass`: buckets of about equal size, 1, 2, ... 32 of them.
 *
 *     cc -shared -fPIC -I PREFIX/include -o equal.so equal.c
 *     dpro optimize TRACE --pass ./equal.so
 *
 * It needs nothing but the header: what it sees and what it answers are data. */
#include <dpro/pass.h>

enum { MOST = 32 };

static int add(struct dpro_candidate *candidate, enum dpro_edit_kind kind, uint32_t at,
               int64_t value)
{
    if (candidate->n_edits == DPRO_PASS_MAX_EDITS)
        return 0;
    struct dpro_edit edit = {.kind = kind, .at = at, .value = value};
    candidate->edits[candidate->n_edits++] = edit;
    return 1;
}

static int propose(const struct dpro_pass *pass, const struct dpro_pass_view *view, uint32_t index,
                   struct dpro_candidate *candidate)
{
    (void)pass;
    uint64_t total = 0, passed = 0;
    uint32_t n = index + 1, bucket = 0, in_bucket = 0;
    if (n > MOST || n > view->n_tensors)
        return 0;
    for (uint32_t b = 0; b < view->n_buckets; b++)
        total += view->buckets[b].size_bytes;
    for (uint32_t b = 1; b < view->n_buckets; b++)
        if (!add(candidate, DPRO_EDIT_MERGE, 0, 0)) /* all into the first */
            return 0;
    for (uint32_t i = 0; i < view->n_tensors; i++) {
        if (in_bucket > 0 && bucket + 1 < n && passed >= total / n * (bucket + 1)) {
            if (!add(candidate, DPRO_EDIT_SPLIT, bucket, in_bucket))
                return 0;
            bucket++;
            in_bucket = 0;
        }
        passed += view->tensors[view->order[i]].size_bytes;
        in_bucket++;
    }
    return 1;
}

const struct dpro_pass dpro_pass = {
    .abi = DPRO_PASS_ABI,
    .name = "equal-buckets",
    .summary = "buckets of about equal size",
    .propose = propose,
};
