/* optimize/passes/priority.c: which of the waiting buckets goes first. What becomes ready last is
 * needed first by the next forward pass. */
#include "optimize/passes/passes.h"

static int propose(const struct dpro_pass *pass, const struct dpro_pass_view *view, uint32_t index,
                   struct dpro_candidate *candidate)
{
    (void)pass;
    uint32_t n = view->n_buckets;
    if (index < 2) {
        for (uint32_t b = 0; b < n && n <= DPRO_PASS_MAX_EDITS; b++)
            pass_edit(candidate, DPRO_EDIT_PRIORITY, b, index == 0 ? b : 0);
        return 1;
    }
    uint32_t at = (index - 2) / 2;
    if (at >= n)
        return 0;
    return pass_edit(candidate, DPRO_EDIT_PRIORITY, at,
                     (int64_t)view->buckets[at].priority + (index % 2 ? 1 : -1));
}

const struct dpro_pass pass_priority = {
    .abi = DPRO_PASS_ABI,
    .name = "priority",
    .summary = "which of the waiting buckets goes first",
    .propose = propose,
};
