/* cost/strategy_work.c: see strategy_work.h. An op's work has a part that each micro-batch takes
 * whatever its size, one that is in proportion to its size, and one that a step does once. */
#include "cost/strategy_work.h"

#include <math.h>

#include "base/memory.h"
#include "cost/fused.h"

bool strategy_changes_work(const struct dpro_model *model, const struct dpro_strategy *strategy)
{
    for (uint32_t m = 0; strategy->recomputed && m < model->n_modules; m++)
        if (strategy->recomputed[m])
            return true;
    return strategy->micro_batches > 1 || model->memory.batch_ratio > 0;
}

/* What is in proportion to the batch. */
static double varying_ns(const struct model_op *op)
{
    return fmax(0, (double)(op->work_ns - op->once_ns - op->fixed_ns));
}

static double all_varying_ns(const struct model_program *program)
{
    double varying = 0;
    for (uint32_t i = 0; i < program->n_ops; i++)
        varying += varying_ns(&program->ops[i]);
    return varying;
}

/* Of the work of both passes, what is in proportion to the batch. */
static double varying_share(const struct model_program *program)
{
    double all = 0;
    for (uint32_t i = 0; i < program->n_ops; i++)
        all += (double)(program->ops[i].work_ns - program->ops[i].once_ns);
    return all > 0 ? all_varying_ns(program) / all : 1;
}

/* Of modules within each other the outermost counts. */
static bool is_recomputed(const struct model_program *program, const bool *recomputed, bool *within,
                          uint32_t c)
{
    const struct model_call *call = &program->calls[c];
    bool outer = call->parent != MODEL_NONE && within[call->parent];
    within[c] = outer || recomputed[call->module];
    return within[c] && !outer;
}

void strategy_more_work(const struct dpro_model *model, const struct dpro_strategy *s,
                        uint32_t program, int64_t *more_ns)
{
    const struct model_program *p = &model->programs[program];
    uint32_t n = s->micro_batches > 1 ? s->micro_batches : 1;
    double share = varying_share(p), one = 1 - share + share / n, before = 0;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct model_op *op = &p->ops[i];
        double varying = varying_ns(op);
        more_ns[i] = llround(varying / n - varying);
        before += (n - 1) * ((double)op->fixed_ns + varying / n);
    }
    double faults = strategy_fault_ns(model, s, program).value;
    for (uint32_t i = 0; i < p->n_ops && faults != 0 && share > 0; i++)
        more_ns[i] += llround(faults / n * varying_ns(&p->ops[i]) / all_varying_ns(p));
    before += faults * (n - 1) / n;
    if (s->recomputed && p->n_calls > 0) {
        bool *within = mem_array(p->n_calls, sizeof *within);
        for (uint32_t c = 0; c < p->n_calls; c++)
            if (is_recomputed(p, s->recomputed, within, c)) {
                double again = one * (double)p->calls[c].recompute_ns;
                more_ns[p->calls[c].op] += llround(again);
                before += (n - 1) * again;
            }
        mem_free(within);
    }
    if (p->n_ops > 0)
        more_ns[0] += llround(before);
}

int64_t strategy_total_work(const struct dpro_model *model, const struct dpro_strategy *s,
                            uint32_t program)
{
    const struct model_program *p = &model->programs[program];
    int64_t *more_ns = mem_array(p->n_ops + (size_t)1, sizeof *more_ns), sum = 0;
    uint32_t fused = fused_find(s, program, 0);
    if (strategy_changes_work(model, s))
        strategy_more_work(model, s, program, more_ns);
    for (uint32_t i = 0; i < p->n_ops; i++)
        sum += more_ns[i] + fused_work_ns(model, s, program, i, &fused);
    mem_free(more_ns);
    return sum;
}

void model_scale_batch(struct dpro_model *model, double ratio, struct arena *arena)
{
    struct model_program *programs = arena_array(arena, model->n_programs, sizeof *programs);
    for (uint32_t p = 0; p < model->n_programs; p++) {
        const struct model_program *from = &model->programs[p];
        struct model_program *to = &programs[p];
        double share = varying_share(from);
        *to = *from;
        to->ops = arena_array(arena, from->n_ops, sizeof *to->ops);
        to->calls = arena_array(arena, from->n_calls, sizeof *to->calls);
        for (uint32_t i = 0; i < from->n_ops; i++) {
            to->ops[i] = from->ops[i];
            double more = (ratio - 1) * varying_ns(&from->ops[i]);
            double work = (double)from->ops[i].work_ns + more;
            if (from->ops[i].work_ns > 0)
                to->ops[i].beside_ns =
                    llround((double)from->ops[i].beside_ns * work / (double)from->ops[i].work_ns);
            to->ops[i].work_ns = llround(work);
        }
        for (uint32_t c = 0; c < from->n_calls; c++) {
            to->calls[c] = from->calls[c];
            to->calls[c].recompute_ns =
                llround((double)from->calls[c].recompute_ns * (1 + (ratio - 1) * share));
        }
    }
    model->programs = programs;
}
