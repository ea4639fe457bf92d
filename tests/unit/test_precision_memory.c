/* What computing modules in 16 bits makes of a rank's memory, by data flow; and compiled, by a
 * probe. */

#include "case.h"
#include "cost/memory/memory_sweep.h"
#include "graph/memory/memory_build.h"

#define AUTOCAST "aten::linear"
enum { WEIGHT, NORMED, OUT, GRADIENT, WEIGHT_GRADIENT, N_BLOCKS };

/* A norm, a linear layer after it, and the layer's backward pass:
 *     norm -> NORMED; linear(NORMED, WEIGHT) -> OUT; ones -> GRADIENT;
 *     LinearBackward(GRADIENT, NORMED, WEIGHT) -> WEIGHT_GRADIENT, handed to the parameter. */
struct job {
    struct graph_block blocks[N_BLOCKS];
    struct graph_moment moments[7];
    struct graph_operand operands[16];
    struct graph_typed_op ops[8];
    struct memory_call calls[2];
    uint8_t computing[2];
    struct model_memory memory;
    struct dpro_strategy strategy;
    struct model_module modules[2];
    struct dpro_model model;
    struct arena arena;
};

static void add_op(struct job *j, uint8_t rule, uint32_t first, uint32_t last, uint32_t outer,
                   uint32_t call, uint32_t forward, bool backward)
{
    static const struct graph_typed_op none;
    struct graph_typed_op *op = &j->ops[j->memory.n_typed_ops++];
    *op = none;
    op->rule = rule;
    op->first = first;
    op->last = last;
    op->outer = outer;
    op->call = call;
    op->forward = forward;
    op->backward = backward;
    op->first_operand =
        op == j->ops ? 0 : op[-1].first_operand + op[-1].n_inputs + op[-1].n_outputs;
}

static void put(struct job *j, uint32_t block, bool output)
{
    struct graph_typed_op *op = &j->ops[j->memory.n_typed_ops - 1];
    j->operands[op->first_operand + op->n_inputs + op->n_outputs] =
        (struct graph_operand){block, j->blocks[block].size_bytes / 4};
    ++*(output ? &op->n_outputs : &op->n_inputs);
}

static void make(struct job *j)
{
    const uint64_t sizes[N_BLOCKS] = {400, 1000, 600, 600, 400};
    const uint32_t taken[N_BLOCKS] = {MEMORY_NONE, 0, 1, 2, 3};
    const uint32_t given[N_BLOCKS] = {MEMORY_NONE, 4, 5, 6, MEMORY_NONE};
    const uint32_t made_by[N_BLOCKS] = {MEMORY_NONE, 0, 1, 2, 4};
    const uint32_t order[7] = {NORMED, OUT, GRADIENT, WEIGHT_GRADIENT, NORMED, OUT, GRADIENT};
    const uint8_t categories[N_BLOCKS] = {DPRO_MEMORY_PARAMETER, DPRO_MEMORY_ACTIVATION,
                                          DPRO_MEMORY_ACTIVATION, DPRO_MEMORY_TEMPORARY,
                                          DPRO_MEMORY_GRADIENT};
    memset(j, 0, sizeof *j);
    for (uint32_t b = 0; b < N_BLOCKS; b++)
        j->blocks[b] = (struct graph_block){.size_bytes = sizes[b],
                                            .taken = taken[b],
                                            .given = given[b],
                                            .category = categories[b],
                                            .item_bytes = 4,
                                            .made_by = made_by[b],
                                            .call = b == OUT      ? 1
                                                    : b == NORMED ? 0
                                                                  : MEMORY_NONE};
    for (uint32_t i = 0; i < 7; i++)
        j->moments[i] = (struct graph_moment){.op = i, .gives = i > 3, .block = order[i]};
    j->calls[0] = (struct memory_call){.module = 0, .parent = MODEL_NONE, .last = 2};
    j->calls[1] = (struct memory_call){.module = 1, .parent = 0, .first = 1, .last = 2};
    j->memory = (struct model_memory){.blocks = j->blocks,
                                      .moments = j->moments,
                                      .calls = j->calls,
                                      .typed_ops = j->ops,
                                      .operands = j->operands,
                                      .n_blocks = N_BLOCKS,
                                      .n_moments = 7,
                                      .n_calls = 2};
    j->strategy.computing = j->computing;
    j->model.modules = j->modules;
    add_op(j, TYPE_PROMOTED, 0, 1, MEMORY_NONE, 0, MEMORY_NONE, false);
    put(j, NORMED, true);
    add_op(j, autocast_rule(AUTOCAST, false), 1, 2, MEMORY_NONE, 1, MEMORY_NONE, false);
    put(j, NORMED, false);
    put(j, WEIGHT, false);
    put(j, OUT, true);
    add_op(j, TYPE_PROMOTED, 2, 3, MEMORY_NONE, MEMORY_NONE, MEMORY_NONE, true);
    put(j, GRADIENT, true);
    add_op(j, TYPE_FUNCTION, 3, 5, MEMORY_NONE, 1, 1, true);
    add_op(j, TYPE_PROMOTED, 3, 5, 3, 1, MEMORY_NONE, true);
    put(j, GRADIENT, false);
    put(j, NORMED, false);
    put(j, WEIGHT, false);
    put(j, WEIGHT_GRADIENT, true);
    add_op(j, TYPE_PARAMETER, 5, 6, MEMORY_NONE, 1, MEMORY_NONE, true);
    put(j, WEIGHT_GRADIENT, false);
}

static struct model_memory in_16_bits(struct job *j, uint32_t module, bool loss)
{
    j->computing[module] = DPRO_BF16;
    j->model.memory.loss_in_16_bits = loss;
    assert_true(memory_has_16_bits(&j->memory, &j->strategy));
    return memory_in_16_bits(&j->model, &j->memory, &j->strategy, &j->arena);
}

TEST(of_a_layer_in_16_bits_outputs_are_half_as_large_and_casts_are_kept)
{
    struct job j;
    make(&j);
    struct model_memory m = in_16_bits(&j, 0, true);
    char found[600], *at = found;
    for (uint32_t b = 0; b < m.n_blocks; b++)
        at += sprintf(at, "%u %d-%d %s\n", (unsigned)m.blocks[b].size_bytes, (int)m.blocks[b].taken,
                      (int)m.blocks[b].given, dpro_memory_category_name(m.blocks[b].category));
    /* the weight; what the layer normed, given back when the layer is over, and put out; the
     * gradients, of which that of the weight is cast to be handed over; then the casts */
    assert_string_equal(found, "400 -1--1 parameter\n"
                               "1000 0-2 activation\n"
                               "300 1-5 activation\n"
                               "600 2-3 temporary\n"
                               "200 3-5 temporary\n"
                               "500 0-5 activation\n"
                               "200 0-5 activation\n"
                               "300 2-5 temporary\n"
                               "400 4--1 gradient\n");
    arena_fini(&j.arena);
}

TEST(other_modules_stay_as_they_are)
{
    struct job j;
    make(&j);
    j.ops[1].call = 0; /* the listed op is that of the outer module */
    struct model_memory m = in_16_bits(&j, 1, false);
    assert_int_equal(m.n_blocks, N_BLOCKS);
    for (uint32_t b = 0; b < N_BLOCKS; b++)
        assert_int_equal(m.blocks[b].size_bytes, j.blocks[b].size_bytes);
    arena_fini(&j.arena);
}

TEST(a_compiled_call_keeps_what_a_probe_measured)
{
    struct job j;
    make(&j);
    j.calls[0].backward_first = 3;
    j.computing[0] = DPRO_COMPILED;
    assert_false(memory_has_16_bits(&j.memory, &j.strategy));
    j.modules[0].costs[DPRO_AS_IT_IS].kept = 1;
    struct model_memory m = memory_compiled(&j.model, &j.memory, &j.strategy, &j.arena);
    assert_int_equal(m.blocks[NORMED].size_bytes, 1000); /* nothing measured it */
    j.modules[0].costs[DPRO_COMPILED].kept = 0.6;
    m = memory_compiled(&j.model, &j.memory, &j.strategy, &j.arena);
    assert_int_equal(m.blocks[NORMED].size_bytes, 600);
    assert_int_equal(m.blocks[GRADIENT].size_bytes, 600); /* as it is */
    assert_int_equal(m.blocks[WEIGHT_GRADIENT].size_bytes, 400);
    struct graph_use by_others = {MEMORY_NONE, 2, 2, false};
    j.memory.uses = &by_others;
    j.blocks[OUT].n_uses = 1;
    m = memory_compiled(&j.model, &j.memory, &j.strategy, &j.arena);
    assert_int_equal(m.blocks[OUT].size_bytes, 600); /* comes out of it */
    j.blocks[OUT].n_uses = 0;
    j.blocks[NORMED].n_uses = 1;
    j.blocks[NORMED].made_by = MEMORY_NONE; /* as a cast of a parameter, which autocast holds */
    m = memory_compiled(&j.model, &j.memory, &j.strategy, &j.arena);
    assert_int_equal(m.blocks[NORMED].size_bytes, 600);
    arena_fini(&j.arena);
}

TEST(what_is_compiled_in_16_bits_is_in_16_bits_first)
{
    struct job j;
    make(&j);
    j.calls[0].backward_first = 3;
    j.computing[0] = DPRO_COMPILED | DPRO_BF16;
    assert_true(memory_has_16_bits(&j.memory, &j.strategy));
    j.modules[0].costs[DPRO_BF16].kept = 0.5;
    j.modules[0].costs[DPRO_COMPILED | DPRO_BF16].kept = 0.4; /* of what it keeps in 16 bits */
    struct model_memory m = memory_compiled(&j.model, &j.memory, &j.strategy, &j.arena);
    assert_int_equal(m.blocks[NORMED].size_bytes, 800);
    arena_fini(&j.arena);
}

TEST(lists_of_cpus_and_gpus_differ)
{
    assert_int_equal(autocast_rule("aten::linear", false), TYPE_LOWER);
    assert_int_equal(autocast_rule("aten::linear", true), TYPE_LOWER);
    assert_int_equal(autocast_rule("aten::line", true), TYPE_PROMOTED);
    assert_int_equal(autocast_rule("aten::softmax", false), TYPE_PROMOTED);
    assert_int_equal(autocast_rule("aten::softmax", true), TYPE_WIDENED);
    assert_int_equal(autocast_rule("aten::layer_norm", true), TYPE_FULL);
    assert_int_equal(autocast_rule("aten::native_layer_norm", false), TYPE_STATISTICS);
    assert_int_equal(autocast_rule("aten::", false), TYPE_PROMOTED);
    assert_int_equal(autocast_rule("", false), TYPE_PROMOTED);
}
