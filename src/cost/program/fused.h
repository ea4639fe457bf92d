/* The ops that a strategy fuses. All work of a fused op is done where its first op stands, and the
 * others take no time. So the gradients of all are ready at its end, and the rest of the program is
 * unchanged. */
#pragma once

#include "cost/program/model.h"

/* The first fused op, by program and op, that ends after `op` of `program`; n_fused: none. */
uint32_t fused_find(const struct dpro_strategy *strategy, uint32_t program, uint32_t op);

/* The fused op that begins with `op` of `program`; NULL: none does. */
const struct dpro_fused_op *fused_at(const struct dpro_strategy *strategy, uint32_t program,
                                     uint32_t op);

/* The work of an op under the strategy. To be called for ops in order; *at begins as the result of
 * fused_find() for the first of them. */
static inline int64_t fused_work_ns(const struct dpro_model *model,
                                    const struct dpro_strategy *strategy, uint32_t program,
                                    uint32_t op, uint32_t *at)
{
    const struct dpro_fused_op *f = *at < strategy->n_fused ? &strategy->fused[*at] : NULL;
    if (!f || f->program != program || op < f->first)
        return model->programs[program].ops[op].work_ns;
    *at += op + 1 == f->first + f->n;
    return op == f->first ? f->work_ns : 0;
}

/* What they take one by one. */
int64_t fused_apart_ns(const struct dpro_model *model, const struct dpro_fused_op *fused);
