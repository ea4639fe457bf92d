/* What strategies make of a job's memory and work, and which modules a user means. */

#include "case.h"
#include "cost/change/change.h"
#include "cost/change/change_pipeline.h"
#include "cost/memory/memory_sweep.h"
#include "cost/memory/strategy_memory.h"
#include "cost/program/model_memory.h"
#include "cost/program/strategy_work.h"

/* An activation and a temporary as large as the batch, then a gradient, on top of a parameter. */
struct by_hand {
    struct graph_block blocks[4];
    struct graph_moment moments[5];
    struct memory_call call;
    uint8_t phases[5];
    struct model_memory memory;
    struct model_module module;
    struct model_op ops[2];
    struct model_call program_call;
    struct model_program program;
    struct model_rank rank;
    struct dpro_model model;
};

static struct by_hand *new_by_hand(uint64_t gradient_bytes)
{
    struct by_hand *h = kept_memory(1, sizeof *h);
    const uint8_t categories[] = {DPRO_MEMORY_PARAMETER, DPRO_MEMORY_ACTIVATION,
                                  DPRO_MEMORY_TEMPORARY, DPRO_MEMORY_GRADIENT};
    const uint64_t sizes[] = {20, 100, 50, gradient_bytes};
    const uint32_t taken[] = {MEMORY_NONE, 0, 1, 3}, given[] = {MEMORY_NONE, 4, 2, MEMORY_NONE};
    const uint32_t order[] = {1, 2, 2, 3, 1};
    for (uint32_t b = 0; b < 4; b++)
        h->blocks[b] = (struct graph_block){.size_bytes = sizes[b],
                                            .taken = taken[b],
                                            .given = given[b],
                                            .category = categories[b],
                                            .scales = b == 1 || b == 2,
                                            .call = b == 1 || b == 2 ? 0 : MEMORY_NONE};
    for (uint32_t i = 0; i < 5; i++)
        h->moments[i] =
            (struct graph_moment){.op = i, .gives = i == 2 || i == 4, .block = order[i]};
    h->call = (struct memory_call){.parent = MODEL_NONE,
                                   .last = 3,
                                   .backward_first = 3,
                                   .backward_last = 5,
                                   .again = 3,
                                   .stop = 3,
                                   .released = 5};
    h->memory = (struct model_memory){.gpu = true,
                                      .blocks = h->blocks,
                                      .moments = h->moments,
                                      .calls = &h->call,
                                      .phases = h->phases,
                                      .n_blocks = 4,
                                      .n_moments = 5,
                                      .n_calls = 1,
                                      .batch_size = 8};
    h->module = (struct model_module){.name = "blocks.0",
                                      .class = "Block",
                                      .parent = MODEL_NONE,
                                      .n_calls = 1,
                                      .kept_bytes = 100,
                                      .recompute_ns = 40};
    h->ops[0] = (struct model_op){.name = "a",
                                  .needs = MODEL_NONE,
                                  .tensor = 0,
                                  .work_ns = 200,
                                  .once_ns = 40,
                                  .fixed_ns = 20};
    h->ops[1] = (struct model_op){.name = "b", .needs = MODEL_NONE, .tensor = 1, .work_ns = 80};
    h->program_call =
        (struct model_call){.module = 0, .parent = MODEL_NONE, .op = 1, .recompute_ns = 40};
    h->program = (struct model_program){h->ops, 2, &h->program_call, 1};
    h->rank = (struct model_rank){.work_scale = 1};
    h->model = (struct dpro_model){.programs = &h->program,
                                   .n_programs = 1,
                                   .ranks = &h->rank,
                                   .n_ranks = 1,
                                   .modules = &h->module,
                                   .n_modules = 1,
                                   .memories = &h->memory,
                                   .n_memories = 1};
    return h;
}

TEST(micro_batches_keep_gradients_and_add_new_ones)
{
    const struct {
        uint64_t gradient;
        uint32_t n;
        uint64_t peak;
    } cases[] = {
        {10, 1, 20 + 100 + 50},     /* nothing is changed */
        {10, 2, 20 + 10 + 50 + 25}, /* the second one's forward pass, beside the gradient */
        {60, 2, 20 + 60 + 50 + 60}, /* and its backward pass, with a new one */
        {60, 4, 20 + 60 + 25 + 60},
        {60, 3, 20 + 60 + 38 + 60}, /* of 8 samples 3 are in the largest */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct by_hand *h = new_by_hand(cases[i].gradient);
        struct dpro_strategy strategy = {.micro_batches = cases[i].n};
        assert_int_equal(memory_peak_bytes(&h->model, &strategy), cases[i].peak);
    }
}

static uint64_t reserved_mib(struct by_hand *h, const struct dpro_strategy *strategy)
{
    h->memory.allocator = allocator_settings_default();
    return memory_peak_told(&h->model, strategy).reserved_bytes >> 20;
}

/* Sizes are MiB. The gradient is so small that it gets a segment of 2 MiB. */
TEST(what_is_reserved_is_that_of_the_strategy)
{
    bool all = true;
    const uint8_t compiled = DPRO_COMPILED;
    const struct dpro_strategy as_it_is = {.micro_batches = 1}, halves = {.micro_batches = 2},
                               recomputing = {.micro_batches = 1, .recomputed = &all},
                               compiling = {.micro_batches = 1, .computing = (uint8_t *)&compiled};
    struct by_hand *h = new_by_hand(0);
    for (uint32_t b = 0; b < 3; b++)
        h->blocks[b].size_bytes <<= 20;
    assert_int_equal(reserved_mib(h, &as_it_is), 20 + 100 + 50 + 2);
    assert_int_equal(reserved_mib(h, &halves), 20 + 50 + 26 + 2); /* segments are of whole 2 MiB */
    /* the second activation is put where the first one was */
    assert_int_equal(reserved_mib(h, &recomputing), 20 + 100 + 50 + 2);
    assert_int_equal(reserved_mib(h, &compiling), 0);
    h->blocks[1].asked_bytes = h->blocks[1].size_bytes - (1 << 20); /* its rest is not asked for */
    assert_int_equal(reserved_mib(h, &as_it_is), 20 + 100 + 50 + 2);
    h->model.memory.batch_ratio = 2;
    assert_int_equal(reserved_mib(h, &as_it_is), 20 + 198 + 100 + 2);
    h->memory.capacity_bytes = 300 << 20;
    assert_int_equal(memory_peak_told(&h->model, &as_it_is).refused_bytes, 100 << 20);
    h->memory.gpu = false;
    assert_int_equal(reserved_mib(h, &as_it_is), 0);
}

TEST(a_batch_is_as_large_as_asked_for)
{
    struct by_hand *h = new_by_hand(10);
    h->model.memory.batch_ratio = 2;
    assert_int_equal(memory_peak_bytes(&h->model, &h->model.baseline), 20 + 200 + 100);
    h->model.memory.batch_ratio = 0.5;
    assert_int_equal(memory_peak_bytes(&h->model, &h->model.baseline), 20 + 50 + 25);
    h->blocks[2].least_share = 0.5F;
    assert_int_equal(memory_peak_bytes(&h->model, &h->model.baseline), 20 + 50 + 25);
    h->blocks[2].least_share = 0.6F; /* not taken with so small a batch */
    assert_int_equal(memory_peak_bytes(&h->model, &h->model.baseline), 20 + 50 + 10);
}

/* The activations are those of all micro-batches that were in flight. */
TEST(a_stage_keeps_the_activations_of_what_is_in_flight)
{
    static const struct {
        struct dpro_pipeline_run before, after;
        uint32_t stage; /* of two */
        uint64_t activations, temporary;
        double std;
    } cases[] = {
        {{4, DPRO_SCHEDULE_1F1B}, {4, DPRO_SCHEDULE_1F1B}, 0, 100, 50, 0},
        {{4, DPRO_SCHEDULE_1F1B}, {4, DPRO_SCHEDULE_GPIPE}, 0, 200, 50, 10}, /* 2, then 4 */
        {{4, DPRO_SCHEDULE_1F1B}, {4, DPRO_SCHEDULE_GPIPE}, 1, 400, 50, 30},
        {{4, DPRO_SCHEDULE_GPIPE}, {4, DPRO_SCHEDULE_1F1B}, 1, 25, 50, 7.5},
        {{4, DPRO_SCHEDULE_GPIPE}, {8, DPRO_SCHEDULE_GPIPE}, 0, 100, 25, 2.5}, /* half as large */
        {{4, DPRO_SCHEDULE_1F1B}, {8, DPRO_SCHEDULE_1F1B}, 0, 50, 25, 7.5},
        /* of each stage as many as there are stages, until weights have had their turn */
        {{4, DPRO_SCHEDULE_ZERO_BUBBLE}, {4, DPRO_SCHEDULE_1F1B}, 0, 100, 50, 0},
        {{4, DPRO_SCHEDULE_ZERO_BUBBLE}, {4, DPRO_SCHEDULE_1F1B}, 1, 50, 50, 50},
        {{4, DPRO_SCHEDULE_ZERO_BUBBLE}, {4, DPRO_SCHEDULE_GPIPE}, 1, 200, 50, 100},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct by_hand *h = new_by_hand(10);
        struct dpro_memory_peak peaks[2];
        struct pipeline_change change = {.runs = {cases[i].before, cases[i].after},
                                         .stage_of = &cases[i].stage,
                                         .n_stages = 2,
                                         .n_chunks = {1, 1}};
        if (cases[i].before.n_micro_batches != cases[i].after.n_micro_batches)
            h->model.memory.batch_ratio = 0.5;
        memset(h->phases, DPRO_OP_FW, 3);
        memset(h->phases + 3, DPRO_OP_BW, 2);
        pipeline_peaks(&h->model, &change, peaks);
        assert_int_equal(peaks[0].bytes, 20 + 100 + 50);
        assert_int_equal(peaks[1].by_category[DPRO_MEMORY_ACTIVATION], cases[i].activations);
        assert_int_equal(peaks[1].bytes, 20 + cases[i].activations + cases[i].temporary);
        assert_int_equal(peaks[1].phase, DPRO_OP_FW);
        assert_true(peaks[1].std_bytes == cases[i].std);
    }
}

TEST(what_is_made_again_no_micro_batch_in_flight_holds)
{
    bool all = true;
    const uint32_t stage = 0;
    struct by_hand *h = new_by_hand(10);
    struct dpro_memory_peak peaks[2];
    struct pipeline_change change = {.runs = {{4, DPRO_SCHEDULE_1F1B}, {4, DPRO_SCHEDULE_GPIPE}},
                                     .stage_of = &stage,
                                     .n_stages = 2,
                                     .n_chunks = {1, 1}};
    memset(h->phases, DPRO_OP_FW, 3);
    memset(h->phases + 3, DPRO_OP_BW, 2);
    pipeline_peaks(&h->model, &change, peaks);
    assert_int_equal(peaks[1].bytes, 20 + 200 + 50); /* 2, then 4 */
    h->model.baseline.recomputed = &all;
    pipeline_peaks(&h->model, &change, peaks);
    assert_int_equal(peaks[1].bytes, memory_peak_bytes(&h->model, &h->model.baseline));
    uint64_t sum = 0;
    for (int c = 0; c < DPRO_N_MEMORY_CATEGORIES; c++)
        sum += peaks[1].by_category[c];
    assert_int_equal(sum, peaks[1].bytes);
}

static void cut_batch(struct by_hand *h, struct notes *notes)
{
    struct dpro_error err = {.code = 0};
    struct dpro_changes changes = {.micro_batches = 2};
    assert_int_equal(OUTCOME(&err, change_memory(&changes, &h->model, notes)), 0);
}

static bool is_told_of(struct by_hand *h)
{
    struct arena arena = {0};
    struct notes notes = {.arena = &arena};
    bool told = false;
    cut_batch(h, &notes);
    for (size_t i = 0; i < notes.lines.n; i++)
        told |= strstr(notes.lines.at[i], "memory grows with its batch") != NULL;
    array_fini(&notes.lines);
    arena_fini(&arena);
    return told;
}

TEST(a_batch_is_not_guessed_where_a_step_calls_its_model_more_than_once)
{
    struct by_hand *h = new_by_hand(10);
    struct arena arena = {0};
    struct notes notes = {.arena = &arena};
    struct dpro_error err = {.code = 0};
    struct dpro_changes number = {.batch_size = 16}, ratio = {.batch_ratio = 2};
    h->module.n_calls = 4;
    assert_int_equal(OUTCOME(&err, change_memory(&number, &h->model, &notes)), -1);
    assert_non_null(strstr(err.text, "4 times, with 8 samples"));
    assert_int_equal(OUTCOME(&err, change_memory(&ratio, &h->model, &notes)), 0);
    array_fini(&notes.lines);
    arena_fini(&arena);
}

TEST(a_rank_of_which_nothing_is_known_to_scale_is_told_of)
{
    struct by_hand *h = new_by_hand(10);
    assert_false(is_told_of(h));
    h->blocks[1].scales = h->blocks[2].scales = false;
    assert_true(is_told_of(h));
    struct dpro_strategy as_it_is = {.micro_batches = 1};
    h->model.memory.batch_ratio = 2;
    struct dpro_memory_peak peak = memory_peak(&h->model, &as_it_is);
    double grows = (double)peak.by_category[DPRO_MEMORY_ACTIVATION];
    assert_true(grows > 0);
    assert_true(1.96 * peak.std_bytes >= grows);
}

/* The most at the places [from, to). */
static uint64_t peak_between(const struct by_hand *h, const struct dpro_strategy *strategy,
                             uint32_t from, uint32_t to)
{
    int64_t most = 0;
    struct memory_sweep sweep =
        memory_sweep_begin(&h->model, strategy, &h->model.memories[0], false);
    for (uint32_t p = from; p < to; p++)
        most = MAX(most, sweep.held[p] + memory_again(&sweep, p));
    arena_fini(&sweep.arena);
    return (uint64_t)most;
}

TEST(gradients_that_are_views_are_there_until_they_are_copied)
{
    struct by_hand *h = new_by_hand(200);
    assert_int_equal(memory_peak_bytes(&h->model, &h->model.baseline), 20 + 100 + 200);
    h->blocks[3].given = MEMORY_NONE;
    h->model.memory.views = true;
    assert_int_equal(peak_between(h, &h->model.baseline, 0, 3), 20 + 100 + 50);
    assert_int_equal(peak_between(h, &h->model.baseline, 3, 6), 20 + 100 + 200);
}

/* As of an LSTM's layer, whose weights' gradients one call makes. */
TEST(gradients_are_copied_behind_the_function_that_makes_them)
{
    struct by_hand *h = new_by_hand(200);
    h->model.memory.views = true;
    h->moments[1].block = 3;
    h->moments[2] = (struct graph_moment){.op = 2, .block = 2};
    h->moments[3] = (struct graph_moment){.op = 3, .gives = true, .block = 2};
    h->blocks[3].taken = 1;
    h->blocks[2].taken = 2;
    h->blocks[2].given = 3;
    assert_int_equal(memory_peak_bytes(&h->model, &h->model.baseline), 20 + 100 + 200);
    h->moments[1].function = 1;
    h->moments[2].function = 2;
    assert_int_equal(memory_peak_bytes(&h->model, &h->model.baseline), 20 + 100 + 200);
    h->moments[2].function = 1;
    assert_int_equal(memory_peak_bytes(&h->model, &h->model.baseline), 20 + 100 + 200 + 50);
}

TEST(gradients_of_micro_batches_are_no_views_until_the_last_one)
{
    struct by_hand *h = new_by_hand(200);
    struct dpro_error err = {.code = 0};
    struct dpro_changes views = {.gradient_views = true};
    struct dpro_strategy strategy = {.micro_batches = 2};
    for (int i = 0; i < 2; i++) {
        h->model.memory.views = i == 1;
        assert_int_equal(memory_peak_bytes(&h->model, &strategy), 20 + 50 + 200 + 200);
    }
    h->module.n_calls = 3;
    h->model.capabilities.stack = DPRO_STACK_DDP;
    assert_int_equal(OUTCOME(&err, change_memory(&views, &h->model, NULL)), -1);
    assert_non_null(strstr(err.text, "calls its model 3 times"));
}

TEST(recomputation_comes_before_the_backward_pass)
{
    struct by_hand *h = new_by_hand(10);
    bool recomputed = true;
    struct dpro_strategy strategy = {.recomputed = &recomputed};
    struct dpro_memory_peak peak = memory_peak(&h->model, &strategy);
    assert_int_equal(peak.bytes, 20 + 100 + 50);
    /* it is made again, with its temporary */
    assert_int_equal(peak_between(h, &strategy, 3, 4), 20 + 100 + 50);
    assert_int_equal(peak_between(h, &strategy, 4, 6), 20 + 100 + 10);
    int64_t more_ns[2];
    assert_true(strategy_changes_work(&h->model, &strategy));
    strategy_more_work(&h->model, &strategy, 0, more_ns);
    assert_int_equal(more_ns[0], 0);
    assert_int_equal(more_ns[1], 40);
    assert_int_equal(strategy_total_work(&h->model, &strategy, 0), 320);
}

TEST(micro_batches_take_what_is_fixed_each_and_the_update_once)
{
    struct by_hand *h = new_by_hand(10);
    struct dpro_strategy strategy = {.micro_batches = 2};
    int64_t more_ns[2];
    assert_false(strategy_changes_work(&h->model, &h->model.baseline));
    strategy_more_work(&h->model, &strategy, 0, more_ns);
    /* the first micro-batch, of both ops, comes before the first gradient */
    assert_int_equal(more_ns[0], -70 + (20 + 70) + 40);
    assert_int_equal(more_ns[1], -40);
    assert_int_equal(strategy_total_work(&h->model, &strategy, 0), 280 + 20);
    struct arena arena = {0};
    model_scale_batch(&h->model, 2, &arena);
    assert_int_equal(h->model.programs[0].ops[0].work_ns, 40 + 20 + 280);
    assert_int_equal(h->model.programs[0].ops[1].work_ns, 160);
    arena_fini(&arena);
}

TEST(blocks_that_are_no_longer_mapped_cost_no_page_faults)
{
    enum { MIB = 1048576, PAGES = 40 * MIB / 4096 };
    struct by_hand *h = new_by_hand(10);
    struct dpro_strategy strategy = {.micro_batches = 2};
    h->memory.gpu = false;
    h->blocks[1].size_bytes = 40 * MIB;
    h->model.page_faults = PAGES;
    struct dpro_estimate less = strategy_fault_ns(&h->model, &strategy, 0);
    assert_true(less.value < -500.0 * PAGES && less.std > 0);
    h->model.page_faults = 0; /* they were not seen: another malloc */
    assert_true(strategy_fault_ns(&h->model, &strategy, 0).value == 0);
    h->model.page_faults = -1;
    assert_true(strategy_fault_ns(&h->model, &strategy, 0).value == 0);
    h->model.page_faults = 0;
    h->blocks[1].size_bytes = 20 * MIB;
    h->model.memory.batch_ratio = 2; /* now it is mapped */
    assert_true(strategy_fault_ns(&h->model, &h->model.baseline, 0).value > 500.0 * PAGES);
}

/* ---- which modules ---- */

#define MODULE(n, c, p, kept)                                                                      \
    {                                                                                              \
        .name = (n), .class = (c), .parent = (p), .n_calls = 1, .kept_bytes = (kept)               \
    }
static const struct model_module some_modules[] = {
    MODULE("", "Net", MODEL_NONE, 900),       MODULE("stem", "Conv2d", 0, 0),
    MODULE("blocks.0", "Block", 0, 300),      MODULE("blocks.0.parts.0", "Part", 2, 100),
    MODULE("blocks.0.parts.1", "Part", 2, 9), MODULE("blocks.1", "Block", 0, 300),
    MODULE("blocks.2", "Block", 0, 300),      MODULE("blocks.3", "Other", 0, 300),
    MODULE("blocks.4", "Block", 0, 300),      MODULE("blocks.10", "Block", 0, 300),
    MODULE("1/", "Critic", MODEL_NONE, 900),  MODULE("1/0", "Layer", 10, 300),
    MODULE("1/1", "Layer", 10, 300),
};
enum { N_SOME = sizeof some_modules / sizeof *some_modules };

TEST(modules_are_chosen_by_words_names_and_patterns)
{
    const struct {
        const char *text, *chosen;
    } cases[] = {
        {"all", "0010011011011"},
        {"sqrt", "0010010011001"},
        {"none", "0000000000000"},
        {"blocks.1", "0000010000000"},
        {"blocks.0, blocks.3", "0010000100000"},
        {"blocks.?", "0010011110000"},
        {"blocks.*", "0011111111000"},
        {"blocks.[0-2]", "0010011000000"},
        {"1/0", "0000000000010"},
        {"blocks.1,1/*", "0000010000111"},
        {"blocks.9", NULL},
        {"blocks.1,bloks.2", NULL},
        {"/nonexistent.json", NULL},
    };
    struct dpro_model model = {.modules = (struct model_module *)(uintptr_t)some_modules,
                               .n_modules = N_SOME};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool chosen[N_SOME];
        char text[N_SOME + 1] = "";
        struct dpro_error err = {.code = 0};
        int rc = OUTCOME(&err, modules_choose(&model, cases[i].text, chosen, MODULES_RECOMPUTED));
        for (int m = 0; m < N_SOME; m++)
            text[m] = chosen[m] ? '1' : '0';
        if (cases[i].chosen)
            assert_string_equal(text, cases[i].chosen);
        assert_int_equal(rc == 0, cases[i].chosen != NULL);
        if (strcmp(cases[i].text, "blocks.1,bloks.2") == 0)
            assert_non_null(strstr(err.text, "'bloks.2'; the nearest is 'blocks.2'"));
    }
}
