/* What-ifs of memory: recomputation, micro-batches, the batch size, gradients as views of buckets,
 * ZeRO. */
#include "cost/change/change.h"

#include "cost/memory/strategy_memory.h"
#include "cost/program/model_memory.h"
#include "cost/program/program_writer.h"
#include "cost/program/strategy_work.h"
#include "cost/program/sync.h"
#include "plan/plan.h"

/* Of a forward pass; below, launches are mostly ahead of the GPU. */
#define LAUNCH_BOUND 0.3

/* Of a rank, as recorded; 0: not known. */
static uint32_t batch_size(const struct dpro_model *m)
{
    return m->n_memories > 0 ? m->memories[0].batch_size : 0;
}

static void change_recomputation(const struct dpro_changes *c, struct dpro_model *m,
                                 struct notes *notes)
{
    if (!c->recompute)
        return;
    modules_choose(m, c->recompute, m->baseline.recomputed, MODULES_RECOMPUTED);
    uint32_t n = 0, n_probed = 0;
    for (uint32_t i = 0; i < m->n_modules; i++) {
        n += m->baseline.recomputed[i];
        n_probed += m->baseline.recomputed[i] && m->modules[i].recompute_probed;
    }
    for (uint32_t i = 0; i < m->n_memories && n > 0; i++)
        if (!m->memories[i].has_uses) {
            note(
                notes,
                "the recording does not tell which module uses which block: a block that a module "
                "makes, and that exists when its backward pass begins, counts as kept by it alone");
            break;
        }
    if (n > n_probed && m->launch_share > LAUNCH_BOUND)
        note(notes,
             "the GPU waits for launches in %.0f %% of a forward pass, so the CPU time of "
             "torch.utils.checkpoint itself comes on top; 'dpro profile --probe recompute' "
             "measures it",
             100 * m->launch_share);
}

/* In a step, of the model that is called most. */
static uint32_t calls_of_model(const struct dpro_model *m)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < m->n_modules; i++)
        if (m->modules[i].parent == MODEL_NONE)
            most = MAX(most, m->modules[i].n_calls);
    return most;
}

static void change_batch(const struct dpro_changes *c, struct dpro_model *m, struct notes *notes)
{
    uint32_t recorded = batch_size(m);
    if (c->batch_size == 0 && c->batch_ratio == 0)
        return;
    if (c->batch_size > 0 && recorded == 0)
        refuse("the recording does not tell its batch size; say how many times as large the batch "
               "becomes, such as 2x");
    if (c->batch_size > 0 && c->batch_ratio != 0)
        refuse("give a batch's size or how many times as large it becomes, not both");
    uint32_t n_calls = calls_of_model(m);
    if (c->batch_size > 0 && n_calls > 1)
        refuse("a step calls its model %u times, with %u samples as recorded, so a batch of %u is "
               "ambiguous; say how many times as large, such as 2x",
               n_calls, recorded, c->batch_size);
    double ratio = c->batch_size > 0 ? (double)c->batch_size / recorded : c->batch_ratio;
    if (ratio == 1)
        return;
    if (!(ratio <= 1024 && ratio >= 1.0 / 1024))
        refuse("a batch %g times as large as the recorded one is too far from it; 1/1024 to 1024 "
               "times can be asked for",
               ratio);
    m->memory.batch_ratio = ratio;
    model_scale_batch(m, ratio, notes->arena);
    if (m->n_batch_points > 0)
        return;
    note(notes,
         "a batch %.4g times as large: its time is assumed: ops take time in proportion, except %s",
         ratio, "the optimizer, gaps between ops, and launches");
}

static void change_micro_batches(const struct dpro_changes *c, struct dpro_model *m,
                                 struct notes *notes)
{
    double ratio = m->memory.batch_ratio > 0 ? m->memory.batch_ratio : 1;
    uint32_t n = c->micro_batches, batch = (uint32_t)lround(ratio * batch_size(m));
    if (n == 0)
        return;
    if (n > PLAN_MOST_MICRO_BATCHES)
        refuse("%u micro-batches can't be predicted; 1 to %d can", n, PLAN_MOST_MICRO_BATCHES);
    if (batch > 0 && n > batch)
        refuse("a batch of %u can't be cut into %u micro-batches; up to %u can be asked for", batch,
               n, batch);
    if (m->cut.refused)
        refuse("%s", m->cut.refused);
    m->baseline.micro_batches = n;
    if (n == 1)
        return;
    if (m->cut.changes)
        note(notes, "%s", m->cut.changes);
    if (batch % n != 0)
        note(notes,
             "a batch of %u can't be cut into %u equal micro-batches: all are predicted as the "
             "largest",
             batch, n);
    if (m->n_batch_points > 0)
        return;
    note(notes,
         "the time of a micro-batch is assumed: ops take time in proportion, except gaps between "
         "ops, and launches%s",
         m->n_tensors > 0 ? "; gradients are communicated with the last one" : "");
}

static void change_views(const struct dpro_changes *c, struct dpro_model *m)
{
    if (!c->gradient_views)
        return;
    if (m->capabilities.stack != DPRO_STACK_DDP)
        refuse("gradients are views of buckets in jobs of PyTorch's DDP only: leave out "
               "--gradient-views");
    if (calls_of_model(m) > 1)
        refuse(
            "a step of the job calls its model %u times, which may be micro-batches: the recording "
            "does not tell when their sum moves into buckets; leave out --gradient-views",
            calls_of_model(m));
    m->memory.views = true;
}

/* ---- ZeRO of stage 1 ---- */

/* What all ranks take to gather the parameters, which is the second half of an all-reduce. */
static double gather_ns(const struct dpro_model *m)
{
    uint64_t bytes = 0;
    EACH_OF (const struct model_tensor, tensor, m->tensors, m->n_tensors)
        bytes += MAX(tensor->size_bytes, tensor->held_bytes);
    struct sync_cost cost = sync_cost(&m->net, bytes);
    return (double)(cost.latency_ns + cost.wire_ns) / 2;
}

/* Of `n` ranks one updates its share, and waits for the others' at its end. `scale`: of its work,
 * as the gathering is not computed. */
static void share_update(const struct model_program *of, uint32_t n, double gather_ns, double scale,
                         struct arena *arena, struct model_program *to)
{
    *to = *of;
    to->ops = arena_array(arena, of->n_ops + (size_t)1, sizeof *to->ops);
    for (uint32_t i = 0; i < of->n_ops; i++) {
        struct model_op *op = &to->ops[i];
        *op = of->ops[i];
        if (op->phase == DPRO_OP_UPDATE)
            model_scale_op(op, 1.0 / n);
    }
    to->ops[to->n_ops++] = (struct model_op){.name = dpro_collective_kind_name(DPRO_ALL_GATHER),
                                             .phase = DPRO_OP_UPDATE,
                                             .needs = MODEL_NONE,
                                             .tensor = MODEL_NONE,
                                             .work_ns = llround(gather_ns / scale),
                                             .once_ns = llround(gather_ns / scale)};
}

/* Ranks that do the same at the same speed share a program. */
static void share_updates(struct dpro_model *m, uint32_t n_shares, struct arena *arena)
{
    struct model_program *programs = arena_array(arena, m->n_ranks, sizeof *programs);
    uint32_t *was = arena_array(arena, m->n_ranks, sizeof *was), n = 0;
    double all_ns = gather_ns(m);
    for (uint32_t r = 0; r < m->n_ranks; r++) {
        struct model_rank *rank = &m->ranks[r];
        uint32_t like = 0;
        was[r] = rank->program;
        while (was[like] != was[r] || m->ranks[like].work_scale != rank->work_scale)
            like++;
        if (like == r)
            share_update(&m->programs[was[r]], n_shares, all_ns, rank->work_scale, arena,
                         &programs[n++]);
        rank->program = like == r ? n - 1 : m->ranks[like].program;
    }
    m->programs = programs;
    m->n_programs = n;
}

/* Every rank keeps its share of the state. What was measured is so much less, too. */
static void share_state(struct dpro_model *m, uint32_t n_shares, struct arena *arena)
{
    m->memories = arena_copy(arena, m->memories, m->n_memories, sizeof *m->memories);
    EACH_OF (struct model_memory, memory, m->memories, m->n_memories) {
        struct graph_block *blocks =
            arena_copy(arena, memory->blocks, memory->n_blocks, sizeof *blocks);
        uint64_t gone = 0;
        EACH_OF (struct graph_block, block, blocks, memory->n_blocks)
            if (block->category == DPRO_MEMORY_STATE) {
                gone += block->size_bytes - block->size_bytes / n_shares;
                block->size_bytes /= n_shares;
                block->asked_bytes /= n_shares;
            }
        memory->blocks = blocks;
        memory->measured_peak_bytes -= MIN(gone, memory->measured_peak_bytes);
        memory->measured_reserved_bytes -= MIN(gone, memory->measured_reserved_bytes);
    }
}

/* Gradients are all-reduced as they were. */
static void change_zero(const struct dpro_changes *c, struct dpro_model *m, struct notes *notes)
{
    uint32_t n = m->net.collective.n_ranks;
    if (c->zero == 0)
        return;
    if (c->zero > 1)
        refuse("ZeRO of stage %u can't be predicted; 1 can", c->zero);
    if (m->capabilities.stack != DPRO_STACK_DDP)
        refuse("ZeRO is predicted for jobs of PyTorch's DDP "
               "(ZeroRedundancyOptimizer) only: leave out --zero");
    share_updates(m, n, notes->arena);
    share_state(m, n, notes->arena);
    note(notes,
         "ZeRO: each of %u ranks is assumed to update an equal share; PyTorch's "
         "ZeroRedundancyOptimizer hands out whole parameters, so a large one makes it slower",
         n);
}

/* What was there before the recording began. */
static bool knows_parameters(const struct model_memory *m)
{
    for (uint32_t b = 0; b < m->n_blocks; b++)
        if (m->blocks[b].category == DPRO_MEMORY_PARAMETER)
            return true;
    return false;
}

static void tell_unknown(const struct dpro_changes *c, const struct dpro_model *m,
                         struct notes *notes)
{
    if (!c->recompute && c->micro_batches == 0 && c->batch_size == 0 && c->batch_ratio == 0 &&
        !c->gradient_views && c->zero == 0)
        return;
    if (!memory_is_known(m))
        note(notes, "nothing tells what the ranks held: 'dpro profile' records it");
    for (uint32_t i = 0; i < m->n_memories; i++)
        if (!knows_parameters(&m->memories[i])) {
            note(notes, "the recording does not tell what ranks held when it began: parameters and "
                        "the optimizer's state come on top of the peaks");
            break;
        }
    for (uint32_t i = 0; i < m->n_memories && (m->memory.batch_ratio > 0 || c->micro_batches > 1);
         i++)
        if (!memory_knows_what_scales(&m->memories[i])) {
            note(notes,
                 "the recording does not tell how much of rank %d's memory grows with its batch: "
                 "anything from none of the peak to all but the model is assumed to change in "
                 "proportion",
                 m->ranks[m->memories[i].rank].rank);
            break;
        }
}

void change_memory(const struct dpro_changes *c, struct dpro_model *m, struct notes *notes)
{
    change_recomputation(c, m, notes);
    change_batch(c, m, notes);
    change_micro_batches(c, m, notes);
    change_views(c, m);
    change_zero(c, m, notes);
    tell_unknown(c, m, notes);
}
