/* cost/fused.c: finding fused ops. */
#include "cost/fused.h"

uint32_t fused_find(const struct dpro_strategy *strategy, uint32_t program, uint32_t op)
{
    uint32_t low = 0, high = strategy->n_fused;
    while (low < high) {
        uint32_t mid = (low + high) / 2;
        const struct dpro_fused_op *f = &strategy->fused[mid];
        if (f->program < program || (f->program == program && f->first + f->n <= op))
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

int64_t fused_apart_ns(const struct dpro_model *model, const struct dpro_fused_op *fused)
{
    int64_t sum = 0;
    for (uint32_t i = fused->first; i < fused->first + fused->n; i++)
        sum += model->programs[fused->program].ops[i].work_ns;
    return sum;
}
