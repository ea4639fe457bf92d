/* Which modules are compiled, or in 16 bits, is searched together with buckets; of jobs with blocks
 * of modules made by hand. */

#include "case.h"
#include "cost/program/buckets.h"
#include "optimize/result.h"
#include "search_job.h"

enum { N_BLOCKS = 3, A_BLOCK = 2, N_TENSORS = N_BLOCKS * A_BLOCK, N_MODULES = 1 + N_BLOCKS };

struct modules {
    struct model_module modules[N_MODULES];
    struct model_call calls[N_MODULES];
    char names[N_MODULES][16];
};

static struct computing_cost cost(double forward, double backward)
{
    return (struct computing_cost){
        .is_known = true, .forward = {forward, 0}, .backward = {backward, 0}, .kept = 1};
}

/* The model and its blocks; the backward pass goes from the last block to the first. Ops: forward,
 * one for each gradient, update. */
static struct modules *add_modules(struct dpro_model *model, uint32_t n_blocks, uint32_t a_block)
{
    struct modules *b = kept_memory(1, sizeof *b);
    struct model_op *ops = model->programs[0].ops;
    assert_non_null(b);
    for (uint32_t m = 0; m <= n_blocks; m++) {
        uint32_t first = m == 0 ? 1 : 1 + (n_blocks - m) * a_block;
        uint32_t n = m == 0 ? n_blocks * a_block : a_block;
        snprintf(b->names[m], sizeof b->names[m], m == 0 ? "" : "blocks.%u", m - 1);
        b->modules[m] = (struct model_module){.name = b->names[m],
                                              .class = m == 0 ? "Net" : "Block",
                                              .parent = m == 0 ? MODEL_NONE : 0,
                                              .n_calls = 1,
                                              .kept_bytes = 1};
        b->calls[m] = (struct model_call){.module = m,
                                          .parent = m == 0 ? MODEL_NONE : 0,
                                          .op = first,
                                          .forward_op = 0,
                                          .forward_last = 0,
                                          .backward_last = first + n - 1,
                                          .forward_ns = ops[0].work_ns / (m == 0 ? 1 : n_blocks)};
        for (uint32_t i = first; i < first + n; i++) {
            ops[i].backward = 1;
            b->calls[m].backward_ns += ops[i].work_ns;
        }
    }
    model->modules = b->modules;
    model->n_modules = n_blocks + 1;
    model->baseline.computing = NULL; /* was made for none */
    model->baseline.recomputed = NULL;
    model->programs[0].calls = b->calls;
    model->programs[0].n_calls = n_blocks + 1;
    return b;
}

static struct dpro_model *job_of(uint64_t seed, struct modules **modules)
{
    struct dpro_model *model = random_job(.seed = seed, .n_tensors = N_TENSORS, .n_ranks = 2);
    *modules = add_modules(model, N_BLOCKS, A_BLOCK);
    return model;
}

/* 0.6 to 1.2, by chance. */
static double some_ratio(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15u;
    return 0.6 + 0.6 * (double)(map_mix(*state) >> 11) * 0x1p-53;
}

static void draw_costs(struct modules *b, uint64_t seed)
{
    uint64_t state = seed;
    for (uint32_t m = 0; m < N_MODULES; m++)
        for (unsigned way = 1; way < DPRO_N_COMPUTINGS; way++)
            b->modules[m].costs[way] = cost(some_ratio(&state), some_ratio(&state));
}

static const struct dpro_optimize_options both = {.computing = DPRO_COMPILED | DPRO_BF16};

/* Buckets by the bits of `set`: whether one ends after a tensor. */
static void set_buckets(struct dpro_strategy *s, uint32_t set)
{
    s->n_buckets = 0;
    for (uint32_t t = 0, first = 0; t < N_TENSORS; t++)
        if (t + 1 == N_TENSORS || set >> t & 1) {
            s->buckets[s->n_buckets++] =
                (struct strategy_bucket){.first = first, .n = t + 1 - first, .partitions = 1};
            first = t + 1;
        }
}

/* The least of all buckets, with all ways of the whole model and of each block; *alone_ns without
 * ways. */
static int64_t brute_force(const struct dpro_model *model, int64_t *alone_ns)
{
    struct arena arena = {0};
    struct evaluator *evaluator = evaluator_create(model);
    struct dpro_strategy s = buckets_make(model, &arena);
    int64_t least = INT64_MAX;
    *alone_ns = INT64_MAX;
    for (uint32_t set = 0; set < 1u << (N_TENSORS - 1); set++)
        for (uint32_t ways = 0; ways < (1u << 2 * N_BLOCKS) + DPRO_N_COMPUTINGS; ways++) {
            bool whole = ways >> 2 * N_BLOCKS;
            memset(s.computing, 0, N_MODULES);
            for (uint32_t m = 1; m < N_MODULES && !whole; m++)
                s.computing[m] = ways >> 2 * (m - 1) & 3;
            if (whole)
                s.computing[0] = ways & 3;
            set_buckets(&s, set);
            int64_t ns = evaluate_strategy(evaluator, &s);
            least = ns < least ? ns : least;
            if (ways == 0 && ns < *alone_ns)
                *alone_ns = ns;
        }
    evaluator_destroy(evaluator);
    arena_fini(&arena);
    return least;
}

TEST(the_search_comes_near_the_best_of_all_ways_and_buckets)
{
    uint32_t n = most_seeds(90), n_far = 0;
    for (uint64_t seed = 1; seed <= n; seed++) {
        struct modules *b;
        struct dpro_model *model = job_of(seed, &b);
        draw_costs(b, seed);
        int64_t alone_ns, least_ns = brute_force(model, &alone_ns);
        struct dpro_optimum *o = optimum_of(model, &both);
        int64_t ns = value_of(model, dpro_optimum_view(o)->strategies[DPRO_BEST]);
        double more = (double)ns / (double)least_ns - 1;
        if (more > 0.03)
            fail_msg("seed %d: %lld instead of %lld", (int)seed, (long long)ns,
                     (long long)least_ns);
        n_far += more > 0.0105; /* 0.5 % for plain buckets, and for the job's own */
        assert_true(dpro_optimum_view(o)->summary.best_ns <=
                    dpro_optimum_view(o)->summary.baseline_ns);
    }
    assert_in_range(n_far, 0, n / 40);
}

static void free_job(struct dpro_model *model, struct modules *b)
{
}

TEST(ways_replay_as_they_are_evaluated)
{
    for (uint64_t seed = 1; seed <= most_seeds(60); seed++) {
        struct modules *b;
        struct dpro_model *model = job_of(seed, &b);
        struct arena arena = {0};
        struct dpro_strategy s = buckets_make(model, &arena);
        draw_costs(b, seed);
        for (uint32_t m = 0; m < N_MODULES; m++)
            s.computing[m] = map_mix(seed * N_MODULES + m) & 3;
        s.computing[0] = seed % 3 ? 0 : s.computing[0];
        set_buckets(&s, (uint32_t)map_mix(seed) & 31);
        int64_t evaluated = value_of(model, &s), whole = replayed(model, &s);
        assert_in_range(evaluated - whole + 3, 0, 6);
        arena_fini(&arena);
        free_job(model, b);
    }
}

TEST(every_algorithm_finds_what_wins)
{
    static const enum dpro_algorithm algorithms[] = {DPRO_ALGORITHM_DEFAULT, DPRO_ALGORITHM_PAPER,
                                                     DPRO_ALGORITHM_DP};
    for (size_t i = 0; i < sizeof algorithms / sizeof *algorithms; i++) {
        struct modules *b;
        struct dpro_model *model = job_of(4, &b);
        for (uint32_t m = 1; m < N_MODULES; m++)
            b->modules[m].costs[DPRO_BF16] = cost(0.3, 0.3);
        struct dpro_optimize_options options = {.computing = DPRO_BF16, .algorithm = algorithms[i]};
        struct dpro_optimum *o = optimum_of(model, &options);
        for (uint32_t m = 1; m < N_MODULES; m++)
            assert_int_equal(dpro_optimum_view(o)->strategies[DPRO_BEST]->computing[m], DPRO_BF16);
        assert_true(dpro_optimum_view(o)->summary.best_ns <
                    dpro_optimum_view(o)->computing.communication_ns);
        free_job(model, b);
    }
}

static unsigned way_of_block(const struct dpro_model *model, unsigned allowed, int assumed)
{
    struct dpro_optimize_options options = {.computing = allowed, .assumed_costs = assumed};
    struct dpro_optimum *o = optimum_of(model, &options);
    unsigned way = dpro_optimum_view(o)->strategies[DPRO_BEST]->computing[1];
    return way;
}

TEST(only_what_is_allowed_known_and_sure_is_taken)
{
    struct modules *b;
    struct dpro_model *model = job_of(4, &b);
    struct computing_cost *bf16 = &b->modules[1].costs[DPRO_BF16];
    *bf16 = cost(0.3, 0.3);
    assert_int_equal(way_of_block(model, DPRO_BF16, 0), DPRO_BF16);
    assert_int_equal(way_of_block(model, DPRO_BF16 | DPRO_COMPILED, 0), DPRO_BF16);
    assert_int_equal(way_of_block(model, DPRO_COMPILED, 0), 0);
    assert_int_equal(way_of_block(model, 0, 1), 0);
    bf16->is_known = false;
    assert_int_equal(way_of_block(model, DPRO_BF16, 0), 0);
    bf16->is_assumed = true;
    assert_int_equal(way_of_block(model, DPRO_BF16, 0), 0);
    assert_int_equal(way_of_block(model, DPRO_BF16, 1), DPRO_BF16);
    bf16->forward.std = bf16->backward.std = 0.8;
    assert_int_equal(way_of_block(model, DPRO_BF16, 1), 0);
    *bf16 = cost(1.2, 1.2);
    assert_int_equal(way_of_block(model, DPRO_BF16, 0), 0);
    free_job(model, b);
}

TEST(the_result_is_the_same_with_any_threads_and_views)
{
    struct dpro_optimize_options options[4] = {both, both, both, both};
    options[1].threads = 3;
    options[2].no_coarsen = options[3].no_symmetry = 1;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct modules *b;
        struct dpro_model *model = job_of(seed, &b);
        int64_t ns[4];
        draw_costs(b, seed);
        for (int i = 0; i < 4; i++) {
            struct dpro_optimum *o = optimum_of(model, &options[i]);
            ns[i] = value_of(model, dpro_optimum_view(o)->strategies[DPRO_BEST]);
        }
        assert_int_equal(ns[0], ns[1]);
        for (int i = 2; i < 4; i++)
            assert_true((double)ns[i] < (double)ns[0] * 1.011 &&
                        (double)ns[0] < (double)ns[i] * 1.011);
        free_job(model, b);
    }
}

TEST(no_job_is_asked_to_compile_what_it_recomputes)
{
    static const struct {
        uint8_t computing[2];
        bool recomputed[2]; /* the model, and a block */
        bool possible;
    } cases[] = {
        {{0, 0}, {false, true}, true},
        {{0, DPRO_COMPILED}, {false, false}, true},
        {{0, DPRO_BF16}, {false, true}, true},
        {{DPRO_BF16, 0}, {false, true}, true},
        {{0, DPRO_COMPILED}, {false, true}, false},
        {{DPRO_COMPILED, 0}, {false, true}, false},
        {{0, DPRO_COMPILED | DPRO_BF16}, {true, false}, false},
    };
    struct modules *b;
    struct dpro_model *model = job_of(1, &b);
    struct arena arena = {0};
    struct dpro_strategy s = buckets_make(model, &arena);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memcpy(s.computing, cases[i].computing, sizeof cases[i].computing);
        memcpy(s.recomputed, cases[i].recomputed, sizeof cases[i].recomputed);
        assert_int_equal(computing_is_possible(model, &s), cases[i].possible);
    }
    arena_fini(&arena);
    free_job(model, b);
}

TEST(a_module_in_a_way_takes_what_lies_within_along)
{
    struct modules *b;
    struct dpro_model *model = job_of(1, &b);
    struct arena arena = {0};
    struct dpro_strategy s = buckets_make(model, &arena);
    draw_costs(b, 1);
    struct dpro_edit block = {.kind = DPRO_EDIT_COMPUTE, .at = 2, .value = DPRO_COMPILED};
    struct dpro_edit all = {.kind = DPRO_EDIT_COMPUTE, .at = 0, .value = DPRO_BF16};
    struct dpro_edit none = {.kind = DPRO_EDIT_COMPUTE, .at = 0, .value = DPRO_AS_IT_IS};
    assert_null(edit_apply(model, &s, &block));
    assert_int_equal(computing_way(model, &s, 2), DPRO_COMPILED);
    assert_null(edit_apply(model, &s, &all));
    assert_int_equal(computing_way(model, &s, 0), DPRO_BF16);
    assert_int_equal(s.computing[2], DPRO_AS_IT_IS);
    assert_null(edit_apply(model, &s, &none));
    assert_false(computing_is_changed(model, &s));
    arena_fini(&arena);
    free_job(model, b);
}
