/* A pass for `dpro optimize --pass`: neighbouring ops run as one, which saves what a framework
 * spends between two of them (here 5 us). It proposes nothing itself: the search asks what fused
 * ops would take, and fuses them where that wins more than the gradients lose that get ready later.
 *
 *     cc -shared -fPIC -I PREFIX/include -o gaps.so gaps.c
 *     dpro optimize TRACE --pass ./gaps.so
 *
 * A real one knows what the fused op takes from a compiler, a profile or a model of its own. */
#include <dpro/pass.h>

#ifndef GAP_NS
#define GAP_NS 5000
#endif

enum { MOST_OPS = 8 };

static int64_t fused_ns(const struct dpro_pass *pass, const struct dpro_pass_op *ops,
                        uint32_t n_ops)
{
    (void)pass;
    int64_t sum_ns = 0;
    if (n_ops > MOST_OPS)
        return -1;
    for (uint32_t i = 0; i < n_ops; i++) {
        if (ops[i].kind != ops[0].kind) /* forward with forward, backward with backward */
            return -1;
        sum_ns += ops[i].work_ns;
    }
    sum_ns -= (int64_t)GAP_NS * (n_ops - 1);
    return sum_ns > 0 ? sum_ns : 0;
}

const struct dpro_pass dpro_pass = {
    .abi = DPRO_PASS_ABI,
    .name = "gaps",
    .summary = "neighbouring ops run as one",
    .opfs_ns = fused_ns,
};
