/* The search against brute force, evaluations against replays of whole graphs, and what a result
 * promises. */

#include "case.h"
#include "cost/program/buckets.h"
#include "generated_job.h"
#include "optimize/search.h"
#include "search_job.h"

/* Cuts the tensors where `borders` has a bit. */
static void cut(const struct dpro_model *model, uint32_t borders, struct dpro_strategy *strategy)
{
    strategy->n_buckets = 0;
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        strategy->order[t] = t;
        if (t == 0 || borders >> (t - 1) & 1)
            strategy->buckets[strategy->n_buckets++] =
                (struct strategy_bucket){.first = t, .partitions = 1};
        strategy->buckets[strategy->n_buckets - 1].n++;
    }
}

/* The best of all contiguous buckets. */
static int64_t best_cut(const struct dpro_model *model, struct evaluator *evaluator,
                        struct dpro_strategy *strategy)
{
    int64_t best = INT64_MAX;
    for (uint32_t borders = 0; borders < 1u << (model->n_tensors - 1); borders++) {
        cut(model, borders, strategy);
        int64_t ns = evaluate_strategy(evaluator, strategy);
        best = ns < best ? ns : best;
    }
    return best;
}

static int64_t brute_force(const struct dpro_model *model)
{
    struct arena arena = {0};
    struct evaluator *evaluator = evaluator_create(model);
    struct dpro_strategy strategy = buckets_make(model, &arena);
    int64_t best = best_cut(model, evaluator, &strategy);
    evaluator_destroy(evaluator);
    arena_fini(&arena);
    return best;
}

/* ---- evaluate() and the whole graph ---- */

TEST(an_evaluation_is_the_replay_of_the_whole_graph)
{
    for (uint64_t seed = 1; seed <= 300; seed++) {
        struct dpro_model *model = random_job(.seed = seed, .n_tensors = 1 + (uint32_t)(seed % 9),
                                              .n_ranks = 2 + (uint32_t)(seed % 5),
                                              .alike = seed % 3 == 0, .overheads = seed % 2);
        model->net.collective.algorithm = (enum model_algorithm)(seed % 6);
        if (model->net.collective.algorithm ==
            MODEL_SERVER) /* ways share their links evenly there */
            model->net.collective.algorithm = MODEL_RING;
        model->net.collective.ranks_per_host = 2;
        model->net.link.chunk_bytes = seed % 7 ? 0 : 1000;
        struct arena arena = {0};
        struct dpro_strategy strategy = buckets_make(model, &arena);
        cut(model, (uint32_t)(seed * 2654435761u) >> 12, &strategy);
        if (seed % 4 == 0)
            strategy.buckets[0].partitions = 1 + (uint32_t)(seed % 3);
        assert_int_equal(value_of(model, &strategy), replayed(model, &strategy));
        arena_fini(&arena);
    }
}

/* With nothing on the wires to share. */
TEST(streams_of_the_whole_graph_are_those_of_an_evaluation)
{
    uint32_t n_overlap = 0;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        struct dpro_model *model =
            random_job(.seed = seed, .n_tensors = 2 + (uint32_t)(seed % 8),
                       .n_ranks = 2 + (uint32_t)(seed % 3), .alike = seed % 3 == 0,
                       .n_streams = 2 + (uint32_t)(seed % 2), .overheads = seed % 2);
        model->net.link.byte_ns.value = 0;
        int64_t ns = value_of(model, &model->baseline);
        assert_int_equal(ns, replayed(model, &model->baseline));
        model->net.gate.n_streams = 1;
        n_overlap += value_of(model, &model->baseline) > ns;
    }
    assert_true(n_overlap > 30);
}

TEST(layers_that_wait_for_their_own_gradients_replay_as_evaluated)
{
    for (uint64_t seed = 1; seed <= 200; seed++) {
        struct dpro_model *model = random_job(.seed = seed, .n_tensors = 1 + (uint32_t)(seed % 7),
                                              .n_ranks = 2, .alike = true, .cycles = true);
        assert_int_equal(value_of(model, &model->baseline), replayed(model, &model->baseline));
    }
}

/* ---- spaces by hand ---- */

struct bench {
    struct dpro_optimize_options options;
    struct search search;
    struct space space;
};

/* With one pass of the caller's (a list of it), or none (NULL). */
static void bench_init(struct bench *b, const struct dpro_model *model,
                       const struct dpro_pass *const *pass)
{
    *b = (struct bench){.options = {.threads = 1, .passes = pass, .n_passes = pass ? 1 : 0}};
    b->search = (struct search){.options = &b->options, .best_ns = INT64_MAX};
    b->search.start_s = search_seconds(&b->search);
    registry_init(&b->search.registry, &b->options);
    space_init(&b->space, &b->search, model);
}

static void bench_fini(struct bench *b)
{
    space_fini(&b->space);
    registry_fini(&b->search.registry);
    array_fini(&b->search.improvements);
    array_fini(&b->search.pool);
}

static int64_t bound_of(const struct bench *b)
{
    return lower_bound(b->space.model, &b->space.work);
}

TEST(dynamic_programming_is_never_beaten_by_brute_force)
{
    uint32_t n_between = 0; /* where neither one bucket nor one a tensor is best */
    double below = 0;
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        struct dpro_model *model = random_job(.seed = seed, .n_tensors = 1 + (uint32_t)(seed % 10),
                                              .n_ranks = 2 + (uint32_t)(seed % 3),
                                              .alike = seed % 4 > 0, .overheads = seed % 3 > 0);
        struct bench b;
        bench_init(&b, model, NULL);
        search_dynamic(&b.space, 1);
        int64_t best = brute_force(model);
        if (b.space.best_ns != best)
            print_message("seed %lu: %ld, brute force %ld\n", (unsigned long)seed,
                          (long)b.space.best_ns, (long)best);
        assert_int_equal(b.space.best_ns, best);
        assert_true(bound_of(&b) <= best);
        below += (double)(best - bound_of(&b)) / (double)best;
        n_between += b.space.best.n_buckets > 1 && b.space.best.n_buckets < model->n_tensors;
        bench_fini(&b);
    }
    assert_true(n_between > 1000);
    assert_true(below < 0.14 * 3000); /* the bound is no trivial one */
}

/* How the default search does on jobs that dynamic programming is not exact for: the share that it
 * finds no better strategy for than brute force, and how far off it is at most. */
static void check_search(struct generate_options options, uint32_t at_least, double at_most_pct)
{
    enum { N = 200 };
    uint32_t n_best = 0;
    double worst = 0;
    for (uint64_t seed = 1; seed <= N; seed++) {
        options.seed = seed;
        options.n_tensors = 2 + (uint32_t)(seed % 9);
        options.n_ranks = 2 + (uint32_t)(seed % 3);
        options.alike = seed % 4 > 0;
        options.overheads = seed % 3 > 0;
        struct dpro_model *model = random_job_of(&options);
        struct bench b;
        bench_init(&b, model, NULL);
        int64_t best = brute_force(model);
        search_dynamic(&b.space, 1);
        search_local(&b.space, true);
        search_local(&b.space, false);
        double off_pct = 100 * ((double)b.space.best_ns / (double)best - 1);
        n_best += off_pct <= 0;
        worst = off_pct > worst ? off_pct : worst;
        assert_true(bound_of(&b) <= b.space.best_ns && bound_of(&b) <= best);
        bench_fini(&b);
    }
    print_message("%u of %d as good as brute force or better, at most %.2f %% off\n", n_best, N,
                  worst);
    assert_true(n_best >= at_least && worst <= at_most_pct);
}

TEST(search_with_two_streams)
{
    check_search((struct generate_options){.n_streams = 2}, 190, 3);
}

TEST(search_where_transfers_slow_computation)
{
    check_search((struct generate_options){.interferes = true}, 198, 1);
}

TEST(search_where_each_layer_waits_for_its_own)
{
    check_search((struct generate_options){.any_order = true, .cycles = true}, 198, 1);
}

TEST(search_with_all_of_that)
{
    check_search(
        (struct generate_options){
            .any_order = true, .n_streams = 2, .cycles = true, .interferes = true},
        190, 3);
}

/* ---- Algorithm 1 ---- */

TEST(theorem_2_decides_rightly_on_two_tensors)
{
    uint32_t n_fused = 0;
    for (uint64_t seed = 1; seed <= 500; seed++) {
        struct dpro_model *model =
            random_job(.seed = seed, .n_tensors = 2, .n_ranks = 2, .alike = true);
        struct bench b;
        bench_init(&b, model, NULL);
        search_paper(&b.space);
        assert_int_equal(b.space.best_ns, brute_force(model));
        n_fused += b.space.best.n_buckets == 1;
        bench_fini(&b);
    }
    assert_true(n_fused > 20 && n_fused < 480); /* neither is always right */
}

TEST(algorithm_1_is_no_worse_than_where_it_starts)
{
    uint32_t n_best = 0;
    double sum = 0;
    for (uint64_t seed = 1; seed <= 500; seed++) {
        struct dpro_model *model = random_job(.seed = seed, .n_tensors = 2 + (uint32_t)(seed % 9),
                                              .n_ranks = 3, .alike = true);
        struct bench b;
        bench_init(&b, model, NULL);
        int64_t own = space_evaluate(&b.space, &model->baseline), best = brute_force(model);
        search_paper(&b.space);
        assert_true(b.space.best_ns <= own && b.space.best_ns >= best);
        n_best += b.space.best_ns == best;
        sum += (double)b.space.best_ns / (double)best - 1;
        bench_fini(&b);
    }
    print_message("best of all in %u of 500, %.2f %% off in the mean\n", n_best, sum / 5);
}

/* ---- the Coarsened View ---- */

static uint32_t n_coarsened(const struct dpro_model *model)
{
    struct coarsened_view c;
    coarsened_view_make(model, true, false, UINT32_MAX, &c);
    uint32_t n = c.model.n_tensors;
    coarsened_view_fini(&c);
    return n;
}

TEST(the_coarsened_view_joins_the_tensors_of_a_layer)
{
    static const char *const names[][6] = {
        {"head.weight", "blocks.10.norm.bias", "blocks.10.norm.weight", "blocks.1.norm.weight",
         "tokens", "positions"},
        {"dense_1/kernel:0", "dense/kernel:0", "dense/bias:0", "conv/norm/bias:0", "a/b", "c"},
        {"fc1_weight", "conv0_bias", "conv0_weight", "conv1_weight", "allreduce.1", "allreduce.2"}};
    for (size_t i = 0; i < 3; i++) {
        struct dpro_model *model = random_job(.seed = 3, .n_tensors = 6, .n_ranks = 2);
        for (uint32_t t = 0; t < model->n_tensors; t++)
            model->tensors[t].name = names[i][t];
        struct coarsened_view c;
        coarsened_view_make(model, true, false, UINT32_MAX, &c);
        assert_int_equal(c.model.n_tensors, 5);
        assert_int_equal(c.first[2] - c.first[1], 2); /* of the one layer that has two */
        coarsened_view_fini(&c);
    }
}

TEST(the_coarsened_view_of_a_recording_joins_what_one_op_makes)
{
    struct dpro_model *model = random_job(.seed = 3, .n_tensors = 6, .n_ranks = 2);
    model->recorded = (struct measured_replay *)(uintptr_t)model; /* nothing of it is read */
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        model->tensors[t].name = t < 3 ? "lstm.weight_ih" : "allreduce.1";
        for (uint32_t p = 0; p < model->n_programs; p++)
            for (uint32_t i = 0; i < model->programs[p].n_ops; i++)
                if (model->programs[p].ops[i].tensor == t)
                    model->programs[p].ops[i].work_ns = t == 2 ? 100000000 : 0;
    }
    assert_int_equal(n_coarsened(model), 5); /* the third is ready much later; and no other names */
    model->tensors[4].maker = model->tensors[5].maker = 7;
    assert_int_equal(n_coarsened(model), 4);
    model->recorded = NULL; /* what is ready at once is of one op where no other can be seen */
    assert_true(n_coarsened(model) < 4);
}

TEST(the_coarsened_view_takes_as_long)
{
    static const char *const names[] = {"resnet50", "vgg16", "inceptionv3", "bert-base"};
    for (size_t i = 0; i < 4; i++) {
        struct dpro_model *model = paper_job(names[i], 8);
        struct coarsened_view c;
        struct dpro_strategy strategy, expanded;
        struct arena arena = {0};
        struct evaluator *small, *large;
        coarsened_view_make(model, true, true, UINT32_MAX, &c);
        assert_true(c.differs && c.model.n_ranks == 1 && c.model.n_tensors < model->n_tensors);
        strategy = buckets_make(&c.model, &arena);
        expanded = buckets_make(model, &arena);
        small = evaluator_create(&c.model);
        large = evaluator_create(model);
        for (uint64_t cap = 0; cap < 40000000; cap = cap * 3 + 4000) {
            buckets_by_cap(&c.model, cap, cap, &strategy);
            coarsened_view_expand(&c, &strategy, &expanded);
            assert_int_equal(bucket_size_bytes(model, &expanded, 0),
                             bucket_size_bytes(&c.model, &strategy, 0));
            int64_t a = evaluate_strategy(small, &strategy),
                    b = evaluate_strategy(large, &expanded);
            assert_true(llabs(a - b) <= 2); /* work is in doubles, summed in another order */
        }
        evaluator_destroy(small);
        evaluator_destroy(large);
        arena_fini(&arena);
        coarsened_view_fini(&c);
    }
}

TEST(late_ranks_stand_for_many_that_differ)
{
    struct dpro_model *model = paper_job("resnet50", 64);
    assert_int_equal(generate_apart(model, 0.05), 0);
    struct coarsened_view c;
    coarsened_view_make(model, false, true, 8, &c);
    assert_int_equal(c.model.n_ranks, 8);
    int64_t a = value_of(&c.model, &model->baseline), b = value_of(model, &model->baseline);
    assert_true(a <= b && (double)a > (double)b * 0.995);
    coarsened_view_fini(&c);
    /* and the result is of all of them */
    struct dpro_optimize_options options = {.threads = 1};
    struct dpro_optimum *optimum = optimum_of(model, &options);
    assert_int_equal(value_of(model, dpro_optimum_view(optimum)->strategies[DPRO_BEST]),
                     dpro_optimum_view(optimum)->summary.best_ns);
}

/* ---- results ---- */

TEST(a_result_is_no_worse_than_anything_it_is_compared_with)
{
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct dpro_model *model =
            random_job(.seed = seed, .n_tensors = 1 + (uint32_t)(seed % 16),
                       .n_ranks = 2 + (uint32_t)(seed % 3), .alike = seed % 2,
                       .any_order = seed % 3 == 0, .n_streams = 1 + seed % 2,
                       .interferes = seed % 5 == 0, .overheads = true);
        for (int a = DPRO_ALGORITHM_DEFAULT; a <= DPRO_ALGORITHM_DP; a++) {
            struct dpro_optimize_options options = {.algorithm = (enum dpro_algorithm)a,
                                                    .threads = 1};
            struct dpro_optimum *optimum = optimum_of(model, &options);
            struct dpro_optimum_summary s = dpro_optimum_view(optimum)->summary;
            bool alone = a == DPRO_ALGORITHM_PAPER || a == DPRO_ALGORITHM_DP; /* what they find */
            assert_true((alone || s.best_ns <= s.baseline_ns) && s.best_ns >= s.lower_bound_ns);
            assert_string_equal(s.stopped_by, s.n_rounds > 0 ? "converged" : "nothing left to try");
            for (uint32_t b = 0; b < dpro_optimum_view(optimum)->n_baselines; b++) {
                struct dpro_baseline baseline = dpro_optimum_view(optimum)->baselines[b];
                assert_true(alone || s.best_ns <= baseline.iteration_ns);
                assert_true(baseline.n_buckets >= 1 && baseline.n_buckets <= model->n_tensors);
            }
            /* and it is what its strategy takes */
            assert_int_equal(value_of(model, dpro_optimum_view(optimum)->strategies[DPRO_BEST]),
                             s.best_ns);
        }
    }
}

TEST(a_result_is_what_the_jobs_stack_can_be_given)
{
    for (uint64_t seed = 1; seed <= most_seeds(90); seed++) {
        struct dpro_model *model =
            random_job(.seed = seed, .n_tensors = 2 + (uint32_t)(seed % 8), .n_ranks = 2,
                       .alike = seed % 2, .any_order = seed % 3 == 0, .n_streams = 1 + seed % 2,
                       .cycles = seed % 5 == 0, .overheads = true);
        int64_t plain_ns = brute_force(model);
        for (int k = DPRO_STACK_DDP; k <= DPRO_STACK_BYTEPS; k++)
            for (int a = DPRO_ALGORITHM_DEFAULT; a <= DPRO_ALGORITHM_DP; a++) {
                model->capabilities = model_capabilities((enum dpro_stack)k);
                struct dpro_optimize_options options = {.algorithm = (enum dpro_algorithm)a,
                                                        .threads = 1,
                                                        .compressions = 1 << DPRO_COMPRESSION_FP16 |
                                                                        1 << DPRO_COMPRESSION_BF16};
                struct dpro_optimum *optimum = optimum_of(model, &options);
                const struct dpro_strategy *best =
                    dpro_optimum_view(optimum)->strategies[DPRO_BEST];
                struct dpro_optimum_summary s = dpro_optimum_view(optimum)->summary;
                assert_true(capabilities_allow(&model->capabilities, best));
                assert_true(s.best_ns <= s.baseline_ns || a == DPRO_ALGORITHM_PAPER ||
                            a == DPRO_ALGORITHM_DP);
                for (uint32_t t = 1; t < model->n_tensors && k == DPRO_STACK_HOROVOD; t++)
                    assert_true(best->order[t] > best->order[t - 1]);
                if (a == DPRO_ALGORITHM_DEFAULT && model->capabilities.together)
                    assert_true((double)s.best_ns <= (double)plain_ns * 1.0011);
                if (!model->capabilities.together) {
                    assert_int_equal(best->n_buckets, model->n_tensors);
                    assert_true(s.compression != DPRO_COMPRESSION_NONE ||
                                s.best_ns >= s.lower_bound_ns);
                }
            }
    }
}

TEST(horovods_cycles_are_shortened_and_never_for_the_worse)
{
    static const int64_t cycles_ns[] = {1000000, 20000000, 200000000};
    for (size_t i = 0; i < sizeof cycles_ns / sizeof *cycles_ns; i++) {
        struct dpro_model *model = paper_job("resnet50", 4);
        model->capabilities = model_capabilities(DPRO_STACK_HOROVOD);
        model->net.gate.in_order = false;
        model->net.gate.negotiates = true;
        model->net.gate.cycle_ns = model->baseline.cycle_ns = cycles_ns[i];
        model->baseline.fuses = true;
        model->baseline.fusion_bytes = UINT64_C(128) << 20;
        struct dpro_optimize_options options = {.threads = 1};
        struct dpro_optimum *optimum = optimum_of(model, &options);
        struct dpro_optimum_summary s = dpro_optimum_view(optimum)->summary;
        struct dpro_cycles best =
            dpro_strategy_cycles(dpro_optimum_view(optimum)->strategies[DPRO_BEST]);
        assert_true(s.best_ns <= s.baseline_ns);
        if (cycles_ns[i] > s.best_ns) { /* which an iteration takes at least then */
            assert_true(s.baseline_ns >= cycles_ns[i]);
            assert_true(best.cycle_ns < cycles_ns[i]);
        }
        assert_int_equal(value_of(model, dpro_optimum_view(optimum)->strategies[DPRO_BEST]),
                         s.best_ns);
    }
}

static int stop_soon(void *arg, const struct dpro_optimize_progress *progress)
{
    uint32_t *n_calls = arg;
    assert_true(progress->best_ns <= progress->baseline_ns);
    return ++*n_calls == 1;
}

TEST(a_stopped_search_gives_the_best_so_far)
{
    struct dpro_model *model = paper_job("bert-base", 4);
    model->net.gate.n_streams = 2;
    for (uint32_t r = 0; r < 4; r++)
        model->ranks[r].work_scale = 1 + r;
    uint32_t n_calls = 0;
    struct dpro_optimize_options options = {
        .no_symmetry = 1, .threads = 1, .progress = stop_soon, .arg = &n_calls};
    struct dpro_optimum *optimum = optimum_of(model, &options);
    struct dpro_optimum_summary s = dpro_optimum_view(optimum)->summary;
    assert_string_equal(s.stopped_by, "stopped");
    assert_int_equal(n_calls, 1);
    assert_true(s.best_ns < s.baseline_ns);

    options = (struct dpro_optimize_options){.no_symmetry = 1, .threads = 1, .budget_s = 1e-6};
    optimum = optimum_of(model, &options);
    s = dpro_optimum_view(optimum)->summary;
    assert_string_equal(s.stopped_by, "budget");
    assert_true(s.best_ns < s.baseline_ns && s.seconds < 5);
}

TEST(uncertain_numbers_make_an_uncertain_gain)
{
    struct dpro_model *model = paper_job("bert-base", 4);
    struct dpro_optimize_options options = {.threads = 1};
    struct dpro_optimum *sure = optimum_of(model, &options);
    assert_true(dpro_optimum_view(sure)->summary.uncertainty_pct == 0);
    model->net.link.byte_ns.std = model->net.link.byte_ns.value / 5;
    struct dpro_optimum *unsure = optimum_of(model, &options);
    assert_true(dpro_optimum_view(unsure)->summary.uncertainty_pct > 0.01);
}

/* What communication takes from computation is learnt as nothing, but not for sure: it can only be
 * more, and less of a gain comes true. */
TEST(a_promise_is_a_mean_over_what_the_numbers_may_be)
{
    struct dpro_model *model = paper_job("bert-base", 4);
    struct dpro_optimize_options options = {.threads = 1};
    struct dpro_optimum *sure = optimum_of(model, &options);
    model->net.link.cpu_ns.std = model->net.link.byte_ns.value;
    struct dpro_optimum *unsure = optimum_of(model, &options);
    struct dpro_optimum_summary a = dpro_optimum_view(sure)->summary,
                                b = dpro_optimum_view(unsure)->summary;
    assert_int_equal(a.baseline_ns, b.baseline_ns);
    assert_true(b.best_ns > a.best_ns + (a.baseline_ns - a.best_ns) / 20 &&
                b.best_ns < b.baseline_ns);
    assert_true(b.found_ns <= b.best_ns);
}

/* Iterations in which one rank or the other is late make buckets wait that all ranks have to come
 * to; the median iteration knows nothing of that. */
TEST(a_promise_knows_of_ranks_that_are_late_by_turns)
{
    enum { N = 8 };
    struct dpro_model *model = paper_job("bert-base", 2);
    struct dpro_optimize_options options = {.threads = 1};
    int64_t best_ns[2], baseline_ns[2];
    model->n_samples = N;
    for (int varies = 0; varies < 2; varies++) {
        for (uint32_t r = 0; r < 2; r++) {
            model->ranks[r].sample_scale = arena_array(&model->arena, N, sizeof(double));
            assert_non_null(model->ranks[r].sample_scale);
            for (uint32_t i = 0; i < N; i++)
                model->ranks[r].sample_scale[i] = varies && i % 2 == r ? 1.1 : 1;
        }
        struct dpro_optimum *optimum = optimum_of(model, &options);
        best_ns[varies] = dpro_optimum_view(optimum)->summary.best_ns;
        baseline_ns[varies] = dpro_optimum_view(optimum)->summary.baseline_ns;
    }
    assert_int_equal(baseline_ns[0], baseline_ns[1]);
    assert_true(best_ns[0] != best_ns[1]);
}

TEST(a_setting_that_is_as_good_is_preferred)
{
    struct dpro_model *model = paper_job("bert-base", 4);
    struct dpro_optimize_options options = {.threads = 1};
    struct dpro_optimum *sure = optimum_of(model, &options);
    assert_null(dpro_optimum_view(sure)->summary.setting); /* buckets of its own win something */
    model->measured_ns =
        dpro_optimum_view(sure)->summary.baseline_ns; /* half a percent is nothing */
    struct dpro_optimum *unsure = optimum_of(model, &options);
    struct dpro_optimum_summary s = dpro_optimum_view(unsure)->summary;
    assert_non_null(s.setting);
    bool is_listed = false;
    for (uint32_t b = 0; b < dpro_optimum_view(unsure)->n_baselines; b++) {
        struct dpro_baseline baseline = dpro_optimum_view(unsure)->baselines[b];
        is_listed |=
            strcmp(baseline.text, s.setting) == 0 && baseline.iteration_ns == s.best_ns &&
            baseline.n_buckets == dpro_optimum_view(unsure)->strategies[DPRO_BEST]->n_buckets;
    }
    assert_true(is_listed);
    model->capabilities = model_capabilities(DPRO_STACK_HOROVOD); /* which has no such setting */
    struct dpro_optimum *other = optimum_of(model, &options);
    assert_null(dpro_optimum_view(other)->summary.setting);
}

TEST(nothing_in_the_table_is_faster_than_the_result_whatever_the_numbers_may_be)
{
    for (double errors = 0; errors <= 40; errors = errors * 2 + 0.25) {
        struct dpro_model *model = paper_job("bert-base", 4);
        struct dpro_optimize_options options = {.threads = 1};
        model->net.collective.overhead_ns.std = errors * model->net.collective.overhead_ns.value;
        struct dpro_optimum *optimum = optimum_of(model, &options);
        struct dpro_optimum_summary s = dpro_optimum_view(optimum)->summary;
        assert_true(s.found_ns <= s.best_ns && s.best_ns <= s.baseline_ns);
        for (uint32_t b = 0; b < dpro_optimum_view(optimum)->n_baselines; b++)
            assert_true(s.found_ns <= dpro_optimum_view(optimum)->baselines[b].iteration_ns);
    }
}

TEST(a_bound_gives_way_to_doubt)
{
    struct dpro_model *model = paper_job("bert-base", 4);
    struct dpro_optimize_options options = {.threads = 1};
    struct dpro_optimum *sure = optimum_of(model, &options);
    struct dpro_optimum_summary a = dpro_optimum_view(sure)->summary;
    model->measured_ns = a.baseline_ns;
    model->job_noise = model->usual_noise = 0.06 / 3;
    model->n_samples = 9;
    for (uint32_t r = 0; r < model->n_ranks; r++)
        model->ranks[r].sample_scale = NULL;
    struct dpro_optimum *restless = optimum_of(model, &options);
    struct dpro_optimum_summary b = dpro_optimum_view(restless)->summary;
    assert_true((double)b.lower_bound_ns < 0.95 * (double)a.lower_bound_ns); /* 2 * sqrt 2 * 2 % */
    assert_true(b.lower_bound_ns > 0);
}

TEST(a_model_off_its_recording_makes_an_uncertain_gain)
{
    struct dpro_model *model = paper_job("bert-base", 4);
    struct dpro_optimize_options options = {.threads = 1};
    struct dpro_optimum *generated = optimum_of(model, &options);
    struct dpro_optimum_summary s = dpro_optimum_view(generated)->summary;
    double gain_pct = 100 * ((double)s.baseline_ns / (double)s.best_ns - 1);
    assert_true(gain_pct > 1);
    double before = 0;
    for (int off_pct = 0; off_pct <= 30; off_pct += 10) {
        model->measured_ns = s.baseline_ns;
        model->misfit = off_pct / 100.0;
        struct dpro_optimum *learnt = optimum_of(model, &options);
        struct dpro_optimum_summary told = dpro_optimum_view(learnt)->summary;
        double unsure = told.uncertainty_pct;
        double gain = (double)told.baseline_ns / (double)told.best_ns - 1;
        assert_true(unsure > before && unsure >= gain * off_pct);
        before = unsure;
    }
    model->misfit = 0; /* right, of iterations that differ by as much */
    model->job_noise = model->usual_noise = 0.9 / 3;
    model->n_samples = 9;
    for (uint32_t r = 0; r < model->n_ranks; r++) {
        model->ranks[r].sample_scale = arena_array(&model->arena, 9, sizeof(double));
        assert_non_null(model->ranks[r].sample_scale);
        for (uint32_t i = 0; i < 9; i++)
            model->ranks[r].sample_scale[i] = 1;
    }
    struct dpro_optimum *restless = optimum_of(model, &options);
    s = dpro_optimum_view(restless)->summary;
    assert_true(s.uncertainty_pct >= 30 * ((double)s.baseline_ns / (double)s.best_ns - 1));
}

TEST(decisions_tell_all_that_differs)
{
    struct dpro_model *model = paper_job("bert-base", 4);
    struct dpro_optimize_options options = {.threads = 1,
                                            .compressions = 1u << DPRO_COMPRESSION_FP16};
    struct dpro_optimum *optimum = optimum_of(model, &options);
    const struct dpro_strategy *best = dpro_optimum_view(optimum)->strategies[DPRO_BEST];
    uint32_t n = dpro_optimum_view(optimum)->n_decisions;
    assert_true(n > 1);
    struct dpro_decision last = dpro_optimum_view(optimum)->decisions[n - 1];
    assert_string_equal(last.pass, "compression");
    assert_string_equal(last.decision, "fp16");
    uint32_t n_fusions = 0;
    for (uint32_t i = 0; i < n; i++)
        n_fusions += strcmp(dpro_optimum_view(optimum)->decisions[i].pass, "tensor-fusion") == 0;
    assert_true(n_fusions > 0 && n_fusions <= best->n_buckets);
    for (uint32_t b = 0; b < best->n_buckets; b++) {
        struct dpro_bucket_times times = dpro_optimum_view(optimum)->times[DPRO_BEST][b];
        assert_true(times.ready_ns <= times.start_ns && times.start_ns < times.end_ns);
    }
    /* a job that runs as well as it can is told so by silence */
    struct generate_options o = {.seed = 3, .n_tensors = 1, .n_ranks = 2, .alike = true};
    struct dpro_model *lone = random_job_of(&o);
    options.compressions = 0;
    optimum = optimum_of(lone, &options);
    assert_int_equal(dpro_optimum_view(optimum)->n_decisions, 0);
}

TEST(a_plan_is_no_more_complicated_than_it_is_worth)
{
    uint32_t n_plain = 0, n_other = 0;
    for (uint64_t seed = 1; seed <= 150; seed++) {
        struct dpro_model *model =
            random_job(.seed = seed, .n_tensors = 3 + (uint32_t)(seed % 6), .n_ranks = 2,
                       .alike = true, .any_order = seed % 2 == 0, .n_streams = 1 + seed % 3,
                       .cycles = seed % 5 == 0, .overheads = true);
        struct dpro_optimize_options options = {.threads = 1};
        struct dpro_optimum *optimum = optimum_of(model, &options);
        const struct dpro_strategy *best = dpro_optimum_view(optimum)->strategies[DPRO_BEST];
        int64_t best_ns = dpro_optimum_view(optimum)->summary.best_ns,
                plain_ns = brute_force(model);
        bool plain = true;
        for (uint32_t t = 0; t < model->n_tensors; t++)
            plain &= best->order[t] == t;
        for (uint32_t b = 0; b < best->n_buckets; b++)
            plain &= best->buckets[b].partitions == 1 && best->buckets[b].priority == 0;
        if (plain)
            n_plain++;
        else
            n_other++;
        int64_t compared_ns = INT64_MAX; /* nothing that it is compared with may be better */
        for (uint32_t b = 0; b < dpro_optimum_view(optimum)->n_baselines; b++) {
            int64_t ns = dpro_optimum_view(optimum)->baselines[b].iteration_ns;
            compared_ns = ns < compared_ns ? ns : compared_ns;
        }
        assert_true(plain || plain_ns > compared_ns || (double)best_ns <= (double)plain_ns / 1.004);
        assert_true(!plain || (double)best_ns <= (double)plain_ns * 1.0011);
    }
    assert_true(n_plain > 20 && n_other > 5);
}

/* ---- the strawman ---- */

TEST(without_partial_replay_the_whole_job_is_evaluated)
{
    struct dpro_model *model = random_job(.seed = 11, .n_tensors = 6, .n_ranks = 3, .alike = true);
    struct dpro_optimize_options options = {
        .algorithm = DPRO_ALGORITHM_PAPER, .no_coarsen = 1, .no_partial = 1, .no_symmetry = 1};
    struct dpro_optimum *slow = optimum_of(model, &options);
    assert_int_equal(value_of(model, dpro_optimum_view(slow)->strategies[DPRO_BEST]),
                     dpro_optimum_view(slow)->summary.best_ns);
}
