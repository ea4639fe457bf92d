/* Writes programs: the work between two ops goes to the one that comes next. */
#include "cost/program/program_writer.h"

void program_work(struct program_writer *w, const struct model_op *of, double ns)
{
    double share = of && of->work_ns > 0 ? ns / (double)of->work_ns : 0;
    w->next = of ? *of : (struct model_op){.name = "up to a wait", .phase = DPRO_OP_BW};
    w->work_ns += ns;
    if (!of)
        return;
    w->beside_ns += share * (double)of->beside_ns;
    w->once_ns += share * (double)of->once_ns;
    w->fixed_ns += share * (double)of->fixed_ns;
    w->backward_ns += of->backward * ns;
}

static void program_put(struct program_writer *w, struct model_op op)
{
    op.work_ns = llround(w->work_ns);
    op.beside_ns = llround(w->beside_ns);
    op.once_ns = llround(w->once_ns);
    op.fixed_ns = llround(w->fixed_ns);
    op.backward = w->work_ns > 0 ? w->backward_ns / w->work_ns : 0;
    w->work_ns = w->beside_ns = w->once_ns = w->fixed_ns = w->backward_ns = 0;
    array_push(&w->ops, op);
}

void program_issue(struct program_writer *w, struct model_op like)
{
    like.needs = MODEL_NONE;
    like.lag_ns = 0;
    program_put(w, like);
}

static void put_work(struct program_writer *w)
{
    struct model_op op = w->next;
    op.name = op.name ?: "an iteration";
    op.tensor = MODEL_NONE;
    program_issue(w, op);
}

void program_wait(struct program_writer *w, struct model_op like)
{
    if (w->work_ns > 0)
        put_work(w);
    like.tensor = MODEL_NONE;
    program_put(w, like);
}

void program_communicate(struct program_writer *w, const char *name, uint32_t tensor)
{
    program_issue(w, (struct model_op){.name = name, .phase = DPRO_OP_BW, .tensor = tensor});
    program_wait(w,
                 (struct model_op){.name = "up to a wait", .phase = DPRO_OP_BW, .needs = tensor});
}

void program_append(struct program_writer *w, const struct model_op *ops, uint32_t n)
{
    array_append(&w->ops, ops, n);
}

void program_end(struct program_writer *w, struct arena *arena, struct model_program *program)
{
    if (w->work_ns > 0 || w->ops.n == 0)
        put_work(w);
    program->ops = arena_copy(arena, w->ops.at, w->ops.n, sizeof *w->ops.at);
    program->n_ops = (uint32_t)w->ops.n;
    array_fini(&w->ops);
}

void model_own_programs(struct dpro_model *model, struct arena *arena)
{
    model->programs =
        arena_copy(arena, model->programs, model->n_programs, sizeof *model->programs);
    EACH_OF (struct model_program, p, model->programs, model->n_programs) {
        p->ops = arena_copy(arena, p->ops, p->n_ops, sizeof *p->ops);
        p->calls = arena_copy(arena, p->calls, p->n_calls, sizeof *p->calls);
    }
}

void model_scale_call(struct model_call *call, double forward, double backward)
{
    call->recompute_ns = llround((double)call->recompute_ns * forward);
    call->forward_ns = llround((double)call->forward_ns * forward);
    call->backward_ns = llround((double)call->backward_ns * backward);
}
