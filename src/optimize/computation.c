/* optimize/computation.c: when gradients get ready if nothing slows computation down. */
#include <math.h>

#include "cost/fused.h"
#include "optimize/space.h"

static uint32_t first_wait_for_all(const struct model_program *program)
{
    for (uint32_t i = 0; i < program->n_ops; i++)
        if (program->ops[i].needs == MODEL_ALL)
            return i;
    return MODEL_NONE;
}

/* The slowest rank of each program: the others do the same, and never later. */
static void find_classes(const struct dpro_model *m, struct computation *w)
{
    for (uint32_t p = 0; p < m->n_programs; p++) {
        double scale = -1;
        for (uint32_t r = 0; r < m->n_ranks; r++)
            if (m->ranks[r].program == p && m->ranks[r].work_scale > scale)
                scale = m->ranks[r].work_scale;
        w->classes[p].scale = scale;
    }
}

/* Over a program's ops and round to its beginning, from the first op or one that waits, either of
 * which is never in the middle of a fused one. */
struct walker {
    const struct dpro_model *model;
    const struct dpro_strategy *strategy;
    uint32_t program, at, fused;
};

static struct walker walk_from(const struct dpro_model *m, const struct dpro_strategy *s,
                               uint32_t program, uint32_t op)
{
    return (struct walker){m, s, program, op, fused_find(s, program, op)};
}

static const struct model_op *walk_on(struct walker *w, double *work_ns)
{
    const struct model_program *program = &w->model->programs[w->program];
    const struct model_op *op = &program->ops[w->at];
    *work_ns = (double)fused_work_ns(w->model, w->strategy, w->program, w->at, &w->fused);
    if (++w->at == program->n_ops) {
        w->at = 0;
        w->fused = fused_find(w->strategy, w->program, 0);
    }
    return op;
}

static void walk(const struct dpro_model *m, const struct dpro_strategy *s, uint32_t p,
                 struct computation *w)
{
    const struct model_program *program = &m->programs[p];
    struct computation_class *class = &w->classes[p];
    uint32_t begin = first_wait_for_all(program);
    if (begin == MODEL_NONE) {
        w->drains = false;
        begin = 0;
    }
    struct walker walker = walk_from(m, s, p, begin);
    double now = 0, work_ns;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const struct model_op *op = walk_on(&walker, &work_ns);
        now += work_ns * class->scale;
        if (op->tensor != MODEL_NONE)
            class->ready_ns[op->tensor] = now;
    }
    class->total_ns = now;
}

/* From an op that waits for a tensor to where it is ready again. */
static double longest_cycle(const struct dpro_model *m, const struct dpro_strategy *s, uint32_t p,
                            double scale)
{
    const struct model_program *program = &m->programs[p];
    double longest = 0;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        uint32_t tensor = program->ops[i].needs;
        if (tensor >= m->n_tensors)
            continue;
        struct walker walker = walk_from(m, s, p, i);
        double passed = 0, work_ns;
        for (uint32_t k = 0; k < program->n_ops; k++) {
            const struct model_op *op = walk_on(&walker, &work_ns);
            passed += work_ns * scale;
            if (op->tensor == tensor) {
                longest = fmax(longest, passed);
                break;
            }
        }
    }
    return longest;
}

void computation_set(const struct dpro_model *model, const struct dpro_strategy *strategy,
                     struct computation *work)
{
    for (uint32_t p = 0; p < model->n_programs; p++)
        if (work->classes[p].scale >= 0)
            walk(model, strategy, p, work);
}

struct computation computation_of(const struct dpro_model *model,
                                  const struct dpro_strategy *strategy, struct arena *arena)
{
    struct computation work = {.n_classes = model->n_programs, .drains = true};
    work.classes = arena_array(arena, model->n_programs + (size_t)1, sizeof *work.classes);
    find_classes(model, &work);
    for (uint32_t p = 0; p < model->n_programs; p++) {
        struct computation_class *class = &work.classes[p];
        class->ready_ns = arena_array(arena, model->n_tensors + (size_t)1, sizeof(double));
        if (class->scale >= 0) /* some rank runs it */
            work.min_cycle_ns =
                fmax(work.min_cycle_ns, longest_cycle(model, strategy, p, class->scale));
    }
    computation_set(model, strategy, &work);
    return work;
}

double computation_ready_ns(const struct computation *work, uint32_t tensor)
{
    double latest = 0;
    for (uint32_t c = 0; c < work->n_classes; c++)
        latest = fmax(latest, work->classes[c].ready_ns[tensor]);
    return latest;
}
