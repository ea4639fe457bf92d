/* Programs are written from the first to the last of what a rank does: it works, hands over what it
 * communicates, and waits for that. */
#pragma once

#include "cost/program/model.h"

/* Zeroed: nothing has been written. */
struct program_writer {
    ARRAY(struct model_op) ops;
    struct model_op next; /* with the work up to what comes next */
    double work_ns, beside_ns, once_ns, fixed_ns, backward_ns; /* of that */
};

/* `of`: the op that the work is a part of; NULL: it is new. */
void program_work(struct program_writer *writer, const struct model_op *of, double ns);
/* `like`: its name and phase; the tensor, or what it needs. The work before it is as was said. */
void program_issue(struct program_writer *writer, struct model_op like);
void program_wait(struct program_writer *writer, struct model_op like);
/* Ops of another program, as they are. */
void program_append(struct program_writer *writer, const struct model_op *ops, uint32_t n);
/* The ops of *program become what was written, in the arena. */
void program_end(struct program_writer *writer, struct arena *arena, struct model_program *program);

/* What a rank does at once when it communicates in a group and needs the result: both ops. */
void program_communicate(struct program_writer *writer, const char *name, uint32_t tensor);

/* The number of the group's communication that a tensor of an op stands for, or what it needs;
 * MODEL_NONE: it is none. */
static inline uint32_t communication_of(const struct dpro_model *model, uint32_t tensor)
{
    bool is = tensor < MODEL_ALL && tensor >= model->n_tensors;
    return is ? tensor - model->n_tensors : MODEL_NONE;
}

/* Gives the model programs that can be written to, in the arena. */
void model_own_programs(struct dpro_model *model, struct arena *arena);
void model_scale_call(struct model_call *call, double forward, double backward);

static inline void model_scale_op(struct model_op *op, double by)
{
    int64_t *const times[] = {&op->work_ns, &op->beside_ns, &op->once_ns, &op->fixed_ns};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        *times[i] = llround(by * (double)*times[i]);
}

static inline double program_work_ns(const struct model_program *program)
{
    double ns = 0;
    EACH_OF (const struct model_op, op, program->ops, program->n_ops)
        ns += (double)op->work_ns;
    return ns;
}
