/* Which jobs can have their batch cut into micro-batches, and what that changes. */

#include "case.h"
#include "cost/program/cost.h"

/* Ops of one thread, one after the other, as a text of their kinds: F, B, U. */
static struct dpro_batch_cut cut_of(struct dpro_model *model, const char *kinds, bool gpu)
{
    enum { MOST = 16 };
    uint8_t kind[MOST], flags[MOST];
    int64_t start[MOST];
    struct graph_rank rank = {.n_ops = (uint32_t)strlen(kinds)};
    struct dpro_graph graph = {.n_ops = rank.n_ops,
                               .n_ranks = 1,
                               .ranks = &rank,
                               .kind = kind,
                               .flags = flags,
                               .seen_start_ns = start};
    for (uint32_t op = 0; op < rank.n_ops; op++) {
        kind[op] = kinds[op] == 'F' ? DPRO_OP_FW : kinds[op] == 'B' ? DPRO_OP_BW : DPRO_OP_UPDATE;
        flags[op] = gpu ? GRAPH_OP_GPU : 0;
        start[op] = op;
    }
    learn_batch_cut(&graph, model);
    return model->cut;
}

static struct model_module module(const char *name, const char *class, uint32_t parent, uint32_t n)
{
    return (struct model_module){.name = name,
                                 .class = class,
                                 .parent = parent,
                                 .n_calls = n,
                                 .has_statistics = has_batch_statistics(class)};
}

TEST(a_step_of_several_models_is_not_cut)
{
    struct model_module modules[] = {module("", "Generator", MODEL_NONE, 1),
                                     module("body", "Linear", 0, 1),
                                     module("1/", "Discriminator", MODEL_NONE, 1)};
    struct dpro_model model = {.modules = modules, .n_modules = 3};
    assert_non_null(strstr(cut_of(&model, "FBU", false).refused, "2 models (Generator, Discrim"));
    modules[2].n_calls = 0; /* never called */
    assert_null(cut_of(&model, "FBU", false).refused);
    modules[2] = module("1/head", "Linear", MODEL_NONE, 1); /* called by a part of it */
    assert_non_null(cut_of(&model, "FBU", false).refused);
    modules[2] = module("10/", "Linear", MODEL_NONE, 1);
    assert_non_null(cut_of(&model, "FBU", false).refused);
    arena_fini(&model.arena);
}

TEST(parts_of_one_model_may_be_called_by_themselves)
{
    struct model_module modules[] = {module("encoder", "Encoder", MODEL_NONE, 1),
                                     module("decoder", "Decoder", MODEL_NONE, 1)};
    struct dpro_model model = {.modules = modules, .n_modules = 2};
    assert_null(cut_of(&model, "FBU", false).refused);
    modules[1].n_calls = 2;
    assert_non_null(strstr(cut_of(&model, "FBU", false).refused, "2 times already"));
    arena_fini(&model.arena);
}

TEST(a_step_that_updates_between_backward_passes_is_not_cut)
{
    struct dpro_model model = {.n_modules = 0};
    assert_non_null(strstr(cut_of(&model, "FBUFBU", false).refused, "between its backward"));
    assert_null(cut_of(&model, "UFBBU", false).refused); /* zero_grad() before */
    assert_null(cut_of(&model, "FFBUU", false).refused); /* two optimizers */
    assert_null(cut_of(&model, "FBUFBU", true).refused); /* GPUs run behind: the CPU tells */
}

TEST(modules_with_statistics_over_the_batch_are_told)
{
    struct model_module modules[] = {
        module("", "Net", MODEL_NONE, 1), module("norm", "GroupNorm", 0, 1),
        module("frozen", "FrozenBatchNorm2d", 0, 1), module("unused", "BatchNorm1d", 0, 0)};
    struct dpro_model model = {.modules = modules, .n_modules = 4};
    assert_null(cut_of(&model, "FBU", false).changes);
    modules[1] = module("norm", "SyncBatchNorm", 0, 1);
    assert_non_null(strstr(cut_of(&model, "FBU", false).changes, "norm (SyncBatchNorm) takes"));
    modules[3].n_calls = 1;
    assert_non_null(strstr(cut_of(&model, "FBU", false).changes, "and 1 more take "));
    assert_null(model.cut.refused);
    arena_fini(&model.arena);
}
