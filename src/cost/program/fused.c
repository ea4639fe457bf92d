/* Finds the fused ops of a strategy. */
#include "cost/program/fused.h"

uint32_t fused_find(const struct dpro_strategy *strategy, uint32_t program, uint32_t op)
{
    const struct dpro_fused_op *fused = strategy->fused;
    return LOWER_BOUND(i, 0u, strategy->n_fused,
                       fused[i].program < program ||
                           (fused[i].program == program && fused[i].first + fused[i].n <= op));
}

const struct dpro_fused_op *fused_at(const struct dpro_strategy *strategy, uint32_t program,
                                     uint32_t op)
{
    uint32_t f = fused_find(strategy, program, op);
    const struct dpro_fused_op *fused = f < strategy->n_fused ? &strategy->fused[f] : NULL;
    return fused && fused->program == program && fused->first == op ? fused : NULL;
}

int64_t fused_apart_ns(const struct dpro_model *model, const struct dpro_fused_op *fused)
{
    int64_t sum = 0;
    for (uint32_t i = fused->first; i < fused->first + fused->n; i++)
        sum += model->programs[fused->program].ops[i].work_ns;
    return sum;
}
