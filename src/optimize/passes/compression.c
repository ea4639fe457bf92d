/* optimize/passes/compression.c: gradients travel as half-precision numbers. */
#include "optimize/passes/passes.h"

static int propose(const struct dpro_pass *pass, const struct dpro_pass_view *view, uint32_t index,
                   struct dpro_candidate *candidate)
{
    (void)pass;
    if (index > DPRO_COMPRESSION_BF16)
        return 0;
    if (index != view->compression)
        pass_edit(candidate, DPRO_EDIT_COMPRESS, 0, index);
    return 1;
}

const struct dpro_pass pass_compression = {
    .abi = DPRO_PASS_ABI,
    .name = "compression",
    .summary = "gradients travel as 16-bit numbers",
    .changes_numerics = 1,
    .propose = propose,
};
