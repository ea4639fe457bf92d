/* Which part of a program's work grows with the batch. One recorded size does not show it, so it is
 * assumed:
 * - what an op of the forward or backward pass takes beyond its launch grows with the batch;
 * - launches and Python between ops are fixed;
 * - all other work, such as the optimizer's, is done once a step. */

#include "cost/program/cost.h"

/* The first point of a gradient that comes at a time or later; n_points: none. */
static uint32_t point_at(const struct coarse_rank *rank, int64_t when_ns)
{
    uint32_t a = LOWER_BOUND(i, 0u, rank->n_points, rank->sync_points[i].when_ns <= when_ns);
    while (a < rank->n_points && rank->sync_points[a].needs)
        a++;
    return a;
}

static uint32_t op_of_tensor(const struct model_program *program, uint32_t tensor)
{
    uint32_t i = 0;
    while (i < program->n_ops && program->ops[i].tensor != tensor)
        i++;
    return i < program->n_ops ? i : 0;
}

uint32_t program_op_of(const struct measured_replay *r, const struct coarse_rank *rank,
                       const struct model_program *program, uint32_t op, bool backward)
{
    uint32_t a = point_at(rank, measured_mean_ns(r, op, true));
    if (a == rank->n_points && !backward)
        return 0;
    while (a > 0 && (a == rank->n_points || rank->sync_points[a].needs))
        a--;
    return a < rank->n_points ? op_of_tensor(program, rank->sync_points[a].tensor) : 0;
}

/* Between two ops Python and PyTorch take up to that much; what is longer is another process's, or
 * the machine's, and as long as the work that it interrupts. */
#define CPU_GAP_NS 30000

/* Times of the recorded ops of a program's op. */
struct batch_share_share {
    double all, once, fixed, backward;
};

static void add_op(const struct dpro_graph *g, uint32_t op, bool gpu,
                   struct batch_share_share *share)
{
    double ns = (double)g->dur_ns[op], gap = gpu || !g->gap_ns ? 0 : (double)g->gap_ns[op];
    share->all += ns + gap;
    share->backward += g->phase[op] == DPRO_OP_BW ? ns + gap : 0;
    if (op_is_of_pass(g, op))
        share->fixed += fmin(ns, gpu ? BATCH_GPU_OP_NS : BATCH_CPU_OP_NS) + fmin(gap, CPU_GAP_NS);
    else
        share->once += ns + gap;
}

static void learn_rank(const struct measured_replay *r, const struct coarse_rank *rank,
                       const struct graph_rank *ops, struct model_program *program)
{
    const struct dpro_graph *g = r->graph;
    bool gpu = rank_has_gpu(g, ops);
    SCRATCH struct batch_share_share *shares =
        mem_array(program->n_ops + (size_t)1, sizeof *shares);
    for (uint32_t op = ops->first_op; op < ops->first_op + ops->n_ops; op++) {
        bool backward = g->phase[op] == DPRO_OP_BW;
        if (op_computes(g, op) && (!gpu || g->flags[op] & GRAPH_OP_GPU))
            add_op(g, op, gpu, &shares[program_op_of(r, rank, program, op, backward)]);
    }
    for (uint32_t i = 0; i < program->n_ops; i++) {
        struct model_op *op = &program->ops[i];
        double all = shares[i].all > 0 ? shares[i].all : 1;
        op->once_ns = llround((double)op->work_ns * shares[i].once / all);
        op->fixed_ns = llround((double)op->work_ns * shares[i].fixed / all);
        op->backward = shares[i].backward / all;
    }
}

void learn_batch_shares(const struct measured_replay *r, const struct coarse *coarse,
                        struct dpro_model *model)
{
    for (uint32_t i = 0; i < r->graph->n_ranks; i++)
        learn_rank(r, &coarse->ranks[i], &r->graph->ranks[i],
                   &model->programs[model->ranks[i].program]);
}
