/* Jobs that are made to fit a budget, with a chain of blocks whose memory is made by hand. */

#include "case.h"
#include "cost/memory/strategy_memory.h"
#include "cost/program/buckets.h"
#include "cost/program/model_memory.h"
#include "optimize/result.h"
#include "search_job.h"

enum {
    N_BLOCKS = 6,
    MOST_BLOCKS = 11,
    RESIDENT = 1000,
    HEAD = 30,
    MOST_NESTED = 5,
    N_MODULES = 3 * MOST_NESTED
};

static uint32_t n_made = N_BLOCKS; /* blocks of the next job */

/* Each block keeps an activation, beside a temporary of its forward and one of its backward pass;
 * then there is its gradient. */
struct blocks {
    struct model_memory memory;
    struct graph_block blocks[2 + 4 * N_MODULES];
    struct graph_moment moments[2 + 7 * N_MODULES];
    uint8_t phases[2 + 7 * N_MODULES];
    struct memory_call calls[N_MODULES];
    struct model_call program_calls[MOST_BLOCKS];
    struct model_module modules[N_MODULES];
    char names[MOST_BLOCKS][16];
};

static uint32_t add_block(struct blocks *b, uint64_t size, uint32_t call, uint8_t category)
{
    b->blocks[b->memory.n_blocks] = (struct graph_block){.size_bytes = size,
                                                         .taken = MEMORY_NONE,
                                                         .given = MEMORY_NONE,
                                                         .category = category,
                                                         .scales = category != DPRO_MEMORY_GRADIENT,
                                                         .call = call};
    return b->memory.n_blocks++;
}

static void take(struct blocks *b, uint32_t block)
{
    b->blocks[block].taken = b->memory.n_moments;
    b->moments[b->memory.n_moments++] = (struct graph_moment){.block = block};
}

static void give(struct blocks *b, uint32_t block)
{
    b->blocks[block].given = b->memory.n_moments;
    b->moments[b->memory.n_moments++] = (struct graph_moment){.block = block, .gives = true};
}

/* The blocks' backward passes are the ops of the job's programs, from the last one on. */
static struct blocks *add_memory(struct dpro_model *model, uint64_t seed)
{
    struct blocks *b = kept_memory(1, sizeof *b);
    uint32_t kept[MOST_BLOCKS];
    assert_non_null(b);
    b->memory = (struct model_memory){.gpu = true,
                                      .blocks = b->blocks,
                                      .moments = b->moments,
                                      .calls = b->calls,
                                      .phases = b->phases,
                                      .n_calls = n_made,
                                      .batch_size = 8};
    b->blocks[add_block(b, RESIDENT, MEMORY_NONE, DPRO_MEMORY_PARAMETER)].scales = false;
    for (uint32_t i = 0; i < n_made; i++) {
        uint64_t size = 200 + map_mix(seed * n_made + i) % 200;
        kept[i] = add_block(b, size, i, DPRO_MEMORY_ACTIVATION);
        uint32_t scratch = add_block(b, size / 4, i, DPRO_MEMORY_TEMPORARY);
        b->calls[i] =
            (struct memory_call){.module = i, .parent = MODEL_NONE, .first = b->memory.n_moments};
        take(b, kept[i]);
        take(b, scratch);
        give(b, scratch);
        b->calls[i].last = b->calls[i].stop = b->memory.n_moments;
        snprintf(b->names[i], sizeof b->names[i], "blocks.%u", i);
        int64_t ns = (int64_t)(1000 + map_mix(seed + 77 * i) % 3000);
        b->modules[i] = (struct model_module){.name = b->names[i],
                                              .class = "Block",
                                              .parent = MODEL_NONE,
                                              .n_calls = 1,
                                              .kept_bytes = size,
                                              .recompute_ns = ns};
        b->program_calls[i] = (struct model_call){
            .module = i, .parent = MODEL_NONE, .op = n_made - 1 - i, .recompute_ns = ns};
    }
    uint32_t head = add_block(b, HEAD, MEMORY_NONE, DPRO_MEMORY_TEMPORARY);
    take(b, head);
    give(b, head);
    for (uint32_t i = n_made; i-- > 0;) {
        uint32_t scratch =
            add_block(b, b->blocks[kept[i]].size_bytes / 3, MEMORY_NONE, DPRO_MEMORY_TEMPORARY);
        uint32_t gradient = add_block(b, 20, MEMORY_NONE, DPRO_MEMORY_GRADIENT);
        b->calls[i].backward_first = b->calls[i].again = b->memory.n_moments;
        take(b, scratch);
        take(b, gradient);
        give(b, scratch);
        give(b, kept[i]);
        b->calls[i].backward_last = b->calls[i].released = b->memory.n_moments;
    }
    model->modules = b->modules;
    model->n_modules = n_made;
    model->baseline.recomputed = NULL; /* was made for none */
    model->baseline.computing = NULL;
    model->memories = &b->memory;
    model->n_memories = 1;
    for (uint32_t p = 0; p < model->n_programs; p++) {
        model->programs[p].calls = b->program_calls;
        model->programs[p].n_calls = n_made;
    }
    return b;
}

static struct dpro_model *job_of(uint64_t seed, struct blocks **blocks)
{
    struct dpro_model *model = random_job(.seed = seed, .n_tensors = n_made, .n_ranks = 2);
    *blocks = add_memory(model, seed);
    return model;
}

static uint64_t peak_of(const struct dpro_model *model, uint32_t set)
{
    bool recomputed[MOST_BLOCKS];
    for (uint32_t i = 0; i < n_made; i++)
        recomputed[i] = set >> i & 1;
    return memory_peak_bytes(model, &(struct dpro_strategy){.recomputed = recomputed});
}

/* The least time of a set of blocks that fits, with the job's own buckets. */
static int64_t brute_force(const struct dpro_model *model, uint64_t budget)
{
    struct arena arena = {0};
    struct evaluator *evaluator = evaluator_create(model);
    struct dpro_strategy strategy = buckets_copy(model, &model->baseline, &arena);
    int64_t least = INT64_MAX;
    for (uint32_t set = 0; set < 1u << n_made; set++) {
        for (uint32_t i = 0; i < n_made; i++)
            strategy.recomputed[i] = set >> i & 1;
        int64_t ns = evaluate_strategy(evaluator, &strategy);
        if (ns < least && memory_peak_bytes(model, &strategy) <= budget)
            least = ns;
    }
    evaluator_destroy(evaluator);
    arena_fini(&arena);
    return least;
}

static struct dpro_memory_choice chosen_of(const struct dpro_optimum *o)
{
    struct dpro_memory_choice chosen = {.name = NULL};
    for (uint32_t i = 0; i < dpro_optimum_view(o)->n_choices; i++)
        if (dpro_optimum_view(o)->choices[i].chosen)
            chosen = dpro_optimum_view(o)->choices[i];
    return chosen;
}

TEST(the_choice_is_the_fastest_that_fits)
{
    for (uint64_t seed = 0; seed < most_seeds(60); seed++) {
        struct blocks *blocks;
        struct dpro_model *model = job_of(seed, &blocks);
        uint64_t high = peak_of(model, 0), low = peak_of(model, (1u << N_BLOCKS) - 1);
        uint64_t budget = low + (high - low) * (seed % 7 + 1) / 9;
        struct dpro_optimize_options options = {
            .memory_bytes = budget, .no_accumulation = 1, .budget_s = 0.05, .threads = 1};
        struct dpro_optimum *o = optimum_of(model, &options);
        struct dpro_memory_budget b = dpro_optimum_view(o)->memory;
        assert_true(b.needed && b.fits);
        assert_int_equal(b.budget_bytes, budget);
        assert_int_equal(chosen_of(o).iteration_ns, brute_force(model, budget));
        assert_int_equal(dpro_optimum_view(o)->peaks[DPRO_BASELINE].bytes, high);
        assert_true(dpro_optimum_view(o)->peaks[DPRO_BEST].bytes <= budget);
        assert_int_equal(dpro_optimum_view(o)->peaks[DPRO_BEST].bytes, chosen_of(o).peak_bytes);
    }
}

TEST(of_many_blocks_exchanges_find_it_too)
{
    n_made = MOST_BLOCKS;
    for (uint64_t seed = 0; seed < 12; seed++) {
        struct blocks *blocks;
        struct dpro_model *model = job_of(seed, &blocks);
        uint64_t high = peak_of(model, 0), low = peak_of(model, (1u << n_made) - 1);
        struct dpro_optimize_options options = {.memory_bytes =
                                                    low + (high - low) * (seed % 3 + 1) / 4,
                                                .no_accumulation = 1,
                                                .budget_s = 0.05,
                                                .threads = 1};
        int64_t least = brute_force(model, options.memory_bytes);
        assert_int_equal(chosen_of(optimum_of(model, &options)).iteration_ns, least);
    }
    n_made = N_BLOCKS;
}

TEST(nothing_is_tried_where_the_job_fits)
{
    struct blocks *blocks;
    struct dpro_model *model = job_of(3, &blocks);
    uint64_t peak = peak_of(model, 0);
    struct dpro_optimize_options options = {.memory_bytes = peak};
    struct dpro_optimum *o = optimum_of(model, &options);
    assert_true(!dpro_optimum_view(o)->memory.needed && dpro_optimum_view(o)->memory.fits);
    assert_int_equal(dpro_optimum_view(o)->n_choices, 0);
    assert_int_equal(dpro_optimum_view(o)->peaks[DPRO_BEST].bytes, peak);
    blocks->memory.capacity_bytes = 2 * peak; /* a share of the device */
    options = (struct dpro_optimize_options){.memory_share = 0.5};
    o = optimum_of(model, &options);
    assert_int_equal(dpro_optimum_view(o)->memory.budget_bytes, peak);
    assert_int_equal(dpro_optimum_view(o)->memory.capacity_bytes, 2 * peak);
    options.memory_share = 1e-30; /* of nothing: no budget would be another question */
    o = optimum_of(model, &options);
    assert_int_equal(dpro_optimum_view(o)->memory.budget_bytes, 1);
    assert_false(dpro_optimum_view(o)->memory.fits);
    options.memory_share = 1e30;
    o = optimum_of(model, &options);
    assert_true(dpro_optimum_view(o)->memory.fits);
}

TEST(where_nothing_fits_the_least_budget_does)
{
    for (uint64_t seed = 0; seed < most_seeds(30); seed++) {
        struct blocks *blocks;
        struct dpro_model *model = job_of(seed, &blocks);
        struct dpro_optimize_options options = {
            .memory_bytes = RESIDENT, .no_accumulation = seed % 2, .budget_s = 0.05, .threads = 1};
        struct dpro_optimum *o = optimum_of(model, &options);
        struct dpro_memory_budget b = dpro_optimum_view(o)->memory;
        assert_true(b.needed && !b.fits && b.least_bytes > RESIDENT);
        assert_null(chosen_of(o).name);
        assert_int_equal(dpro_optimum_view(o)->summary.best_ns,
                         dpro_optimum_view(o)->summary.baseline_ns);
        if (seed % 2) { /* no set of blocks has a lower peak */
            for (uint32_t set = 0; set < 1u << N_BLOCKS; set++)
                assert_true(peak_of(model, set) >= b.least_bytes);
        }
        options.memory_bytes = b.least_bytes;
        o = optimum_of(model, &options);
        assert_true(dpro_optimum_view(o)->memory.fits);
    }
}

TEST(a_batch_is_cut_where_that_is_faster)
{
    struct blocks *blocks;
    struct dpro_model *model = job_of(5, &blocks);
    struct dpro_optimize_options options = {.memory_bytes = peak_of(model, 0) * 9 / 10};
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        blocks->modules[i].recompute_ns = blocks->program_calls[i].recompute_ns = 1000000000;
    struct dpro_optimum *o = optimum_of(model, &options);
    assert_true(chosen_of(o).micro_batches > 1);
    assert_int_equal(dpro_strategy_micro_batches(dpro_optimum_view(o)->strategies[DPRO_BEST]),
                     chosen_of(o).micro_batches);
    blocks->memory.batch_size = 67; /* a prime number, and too many parts */
    o = optimum_of(model, &options);
    assert_int_equal(chosen_of(o).micro_batches, 1);
    assert_true(chosen_of(o).n_recomputed > 0);
}

/* Blocks of two parts each, of which the block itself and each part keep something: to compute a
 * part again takes less meanwhile, to compute the block again keeps less. */
static void nest(struct blocks *b, struct dpro_model *model, uint32_t n_blocks, uint64_t seed)
{
    static const char *const names[] = {"b.0",   "b.0.l", "b.0.r", "b.1",   "b.1.l",
                                        "b.1.r", "b.2",   "b.2.l", "b.2.r", "b.3",
                                        "b.3.l", "b.3.r", "b.4",   "b.4.l", "b.4.r"};
    uint32_t kept[3 * MOST_NESTED], n = 3 * n_blocks;
    b->memory.n_blocks = b->memory.n_moments = 0;
    b->memory.n_calls = model->n_modules = n;
    b->blocks[add_block(b, RESIDENT, MEMORY_NONE, DPRO_MEMORY_PARAMETER)].scales = false;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t size = 50 + map_mix(seed * n + i) % 400;
        struct memory_call *call = &b->calls[i];
        uint32_t outer = i % 3 == 0 ? MODEL_NONE : i - i % 3, scratch;
        *call = (struct memory_call){.module = i, .parent = outer, .first = b->memory.n_moments};
        take(b, kept[i] = add_block(b, size, i, DPRO_MEMORY_ACTIVATION));
        take(b, scratch = add_block(b, map_mix(seed + i) % 400, i, DPRO_MEMORY_TEMPORARY));
        give(b, scratch);
        call->last = call->stop = b->memory.n_moments;
        if (outer != MODEL_NONE)
            b->calls[outer].last = b->calls[outer].stop = call->last;
        b->modules[i] = (struct model_module){.name = names[i],
                                              .class = outer == MODEL_NONE ? "Block" : "Part",
                                              .parent = outer,
                                              .n_calls = 1,
                                              .kept_bytes = size,
                                              .recompute_ns = 100};
    }
    for (uint32_t i = n;
         i-- > 0;) { /* a block's backward pass is that of its parts, then its own */
        uint32_t outer = i - i % 3, at = b->memory.n_moments;
        uint32_t scratch =
            add_block(b, map_mix(seed ^ i) % 200 + 1, MEMORY_NONE, DPRO_MEMORY_TEMPORARY);
        if (i % 3 == 2)
            b->calls[outer].backward_first = b->calls[outer].again = at;
        if (i != outer)
            b->calls[i].backward_first = b->calls[i].again = at;
        take(b, scratch);
        give(b, scratch);
        give(b, kept[i]);
        b->calls[i].backward_last = b->calls[i].released = b->memory.n_moments;
    }
    for (uint32_t p = 0; p < model->n_programs; p++)
        model->programs[p].n_calls = 0;
}

TEST(the_least_budget_is_that_of_the_best_set_of_modules_of_all_levels)
{
    uint32_t n_off = 0, n_seeds = most_seeds(90);
    for (uint64_t seed = 0; seed < n_seeds; seed++) {
        struct blocks *blocks;
        struct dpro_model *model = job_of(seed, &blocks);
        uint32_t n = 3 * (2 + seed % 4); /* of 15 modules not all sets are looked at */
        nest(blocks, model, n / 3, seed);
        bool recomputed[3 * MOST_NESTED];
        uint64_t least = UINT64_MAX;
        for (uint32_t set = 0; set < 1u << n; set++) {
            for (uint32_t i = 0; i < n; i++)
                recomputed[i] = set >> i & 1;
            struct dpro_strategy strategy = {.recomputed = recomputed};
            uint64_t peak = memory_peak_bytes(model, &strategy);
            least = peak < least ? peak : least;
        }
        struct dpro_optimize_options options = {
            .memory_bytes = RESIDENT, .no_accumulation = 1, .budget_s = 0.05, .threads = 1};
        struct dpro_optimum *o = optimum_of(model, &options);
        uint64_t found = dpro_optimum_view(o)->memory.least_bytes;
        assert_true(found >= least && (double)found <= 1.02 * (double)least);
        if (n <= 12)
            assert_int_equal(found, least);
        n_off += found > least;
    }
    assert_true(20 * n_off <= n_seeds);
}

TEST(a_batch_is_not_cut_for_less_than_what_is_unsure_of_it)
{
    for (int much = 0; much <= 1; much++) {
        struct blocks *blocks;
        struct dpro_model *model = job_of(5, &blocks);
        struct dpro_optimize_options options = {.memory_bytes = peak_of(model, 0) * 9 / 10};
        int64_t own_ns = evaluate_once(model);
        for (uint32_t i = 0; i < N_BLOCKS; i++)
            blocks->modules[i].recompute_ns = blocks->program_calls[i].recompute_ns =
                own_ns * (much ? 60 : 5) / 100;
        struct dpro_optimum *o = optimum_of(model, &options);
        int64_t cut_ns = INT64_MAX;
        for (uint32_t i = 0; i < dpro_optimum_view(o)->n_choices; i++) {
            struct dpro_memory_choice choice = dpro_optimum_view(o)->choices[i];
            if (choice.micro_batches > 1 && choice.fits && choice.iteration_ns < cut_ns)
                cut_ns = choice.iteration_ns;
        }
        assert_true(cut_ns < own_ns * 102 / 100); /* by the model it is faster in both cases */
        assert_int_equal(chosen_of(o).micro_batches > 1, much);
    }
}

static uint64_t seen_memory, seen_peak;

/* Takes back what is recomputed, or recomputes all. */
static int propose_memory(const struct dpro_pass *pass, const struct dpro_pass_view *view,
                          uint32_t index, struct dpro_candidate *candidate)
{
    seen_memory = view->memory_bytes;
    seen_peak = view->peak_bytes;
    bool again = pass->state != NULL;
    if (index >= view->n_modules)
        return 0;
    candidate->edits[candidate->n_edits++] =
        (struct dpro_edit){.kind = DPRO_EDIT_RECOMPUTE, .at = index, .value = again};
    return 1;
}

TEST(no_pass_breaks_the_budget)
{
    for (int again = 0; again <= 1; again++) {
        struct blocks *blocks;
        struct dpro_model *model = job_of(8, &blocks);
        struct dpro_pass own = {.abi = DPRO_PASS_ABI,
                                .name = "own",
                                .propose = propose_memory,
                                .state = again ? &seen_peak : NULL};
        const struct dpro_pass *const passes[] = {&own};
        uint64_t budget = (peak_of(model, 0) + peak_of(model, (1u << N_BLOCKS) - 1)) / 2;
        struct dpro_optimize_options options = {
            .memory_bytes = budget, .passes = passes, .n_passes = 1, .no_accumulation = 1};
        struct dpro_optimum *o = optimum_of(model, &options);
        assert_int_equal(seen_memory, budget);
        assert_true(seen_peak > 0 && seen_peak <= budget);
        assert_true(dpro_optimum_view(o)->peaks[DPRO_BEST].bytes <= budget);
    }
}

TEST(what_is_not_known_is_said)
{
    struct dpro_optimum *o;
    struct dpro_error err;
    struct blocks *blocks;
    struct dpro_model *model = job_of(1, &blocks);
    struct dpro_optimize_options options = {.memory_share = 0.5};
    assert_int_equal(dpro_optimize_run(model, &options, &o, &err), DPRO_EEMPTY);
    assert_non_null(strstr(err.text, "give it in bytes"));
    model->n_memories = model->n_modules = 0;
    options = (struct dpro_optimize_options){.memory_bytes = 1};
    assert_int_equal(dpro_optimize_run(model, &options, &o, &err), DPRO_EEMPTY);
    assert_non_null(strstr(err.text, "the trace does not tell what the job's ranks hold"));
}
