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

/* Fuses random neighbours that may be. */
static void fuse_some(const struct dpro_model *model, uint64_t seed, struct dpro_strategy *strategy)
{
    for (uint32_t p = 0; p < model->n_programs; p++)
        for (uint32_t i = 0; i < model->programs[p].n_ops; i++) {
            uint64_t random = map_mix(seed * 1000 + p * 100 + i);
            struct dpro_edit edit = {.kind = DPRO_EDIT_FUSE,
                                     .at = i,
                                     .value = (int64_t)(random >> 40) % 500,
                                     .program = p,
                                     .n = 2 + (uint32_t)(random >> 20) % 3};
            if (random % 3 == 0)
                edit_apply(model, strategy, &edit);
        }
}

TEST(fused_ops_replay_as_they_are_evaluated)
{
    uint32_t n_fused = 0, n_longer = 0;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        struct dpro_model *model =
            random_job(.seed = seed, .n_tensors = 1 + (uint32_t)(seed % 9),
                       .n_ranks = 2 + (uint32_t)(seed % 3), .alike = seed % 3 == 0 || seed % 5 == 0,
                       .cycles = seed % 5 == 0, .overheads = seed % 5 && seed % 2);
        struct arena arena = {0};
        struct dpro_strategy strategy = buckets_make(model, &arena);
        if (seed % 5)
            cut(model, (uint32_t)(seed * 2654435761u) >> 12, &strategy);
        int64_t apart_ns = value_of(model, &strategy);
        fuse_some(model, seed, &strategy);
        int64_t ns = value_of(model, &strategy);
        assert_int_equal(ns, replayed(model, &strategy));
        n_fused += strategy.n_fused;
        n_longer += ns > apart_ns;
        strategy.n_fused = 0;
        assert_int_equal(value_of(model, &strategy), apart_ns);
        arena_fini(&arena);
    }
    assert_true(n_fused > 300 && n_longer > 10); /* it may well be worse */
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
        n_between += b.space.best.n_buckets > 1 && b.space.best.n_buckets < model->n_tensors;
        bench_fini(&b);
    }
    assert_true(n_between > 1000);
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

/* ---- op fusion ---- */

/* A fused op saves what lies between its parts; forward and backward are not one. */
static int64_t save_gaps(const struct dpro_pass *pass, const struct dpro_pass_op *ops, uint32_t n)
{
    int64_t gap_ns = *(const int64_t *)pass->state, sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (ops[i].kind != ops[0].kind)
            return -1;
        sum += ops[i].work_ns;
    }
    sum -= gap_ns * (n - 1);
    return sum > 0 ? sum : 0;
}

/* The best of all contiguous buckets and all ways to fuse neighbouring ops. */
static int64_t brute_force_ops(const struct dpro_model *model, const struct dpro_pass *pass,
                               const struct dpro_pass_program *program)
{
    struct arena arena = {0};
    struct evaluator *evaluator = evaluator_create(model);
    struct dpro_strategy strategy = buckets_make(model, &arena);
    int64_t best = INT64_MAX;
    for (uint32_t joins = 0; joins < 1u << (program->n_ops - 1); joins++) {
        bool possible = true;
        strategy.n_fused = 0;
        for (uint32_t i = 0, n; i < program->n_ops && possible; i += n) {
            for (n = 1; i + n < program->n_ops && joins >> (i + n - 1) & 1;)
                n++;
            struct dpro_edit edit = {.kind = DPRO_EDIT_FUSE, .at = i, .n = n};
            edit.value = n > 1 ? pass->opfs_ns(pass, program->ops + i, n) : 0;
            possible = n == 1 || (edit.value >= 0 && !edit_apply(model, &strategy, &edit));
        }
        int64_t ns = possible ? best_cut(model, evaluator, &strategy) : best;
        best = ns < best ? ns : best;
    }
    evaluator_destroy(evaluator);
    arena_fini(&arena);
    return best;
}

static struct dpro_pass gap_pass(int64_t *gap_ns)
{
    return (struct dpro_pass){
        .abi = DPRO_PASS_ABI, .name = "gaps", .opfs_ns = save_gaps, .state = gap_ns};
}

/* Gaps that are a part of an op, or many ops: both answers are right now and then. */
static int64_t gap_of(const struct dpro_model *model, uint64_t seed)
{
    int64_t sum = 0;
    for (uint32_t i = 0; i < model->programs[0].n_ops; i++)
        sum += model->programs[0].ops[i].work_ns;
    return 1 + sum / model->programs[0].n_ops * (int64_t)(1 + seed % 7) / 8;
}

/* By definition on two ops and two tensors, with computation as the bottleneck: the tensor of the
 * first is through when the second op is done. */
TEST(theorem_1_decides_rightly_on_two_ops)
{
    uint32_t n_fused = 0, n_apart = 0;
    for (uint64_t seed = 1; seed <= 600; seed++) {
        struct dpro_model *model =
            random_job(.seed = seed, .n_tensors = 2, .n_ranks = 2, .alike = true);
        struct model_op *ops = model->programs[0].ops; /* forward, backward, backward, update */
        struct sync_cost first, both, second;
        first = sync_cost(&model->net, model->tensors[0].size_bytes);
        ops[2].work_ns += first.latency_ns + first.wire_ns;
        int64_t gap_ns = (first.latency_ns + first.wire_ns) * (int64_t)(1 + seed % 8) / 4;
        if (gap_ns > ops[1].work_ns + ops[2].work_ns)
            gap_ns = ops[1].work_ns + ops[2].work_ns;
        struct dpro_pass pass = gap_pass(&gap_ns);
        const struct dpro_pass *const passes[] = {&pass};
        struct bench b;
        bench_init(&b, model, passes);
        struct dpro_strategy s = space_strategy(&b.space);
        struct dpro_edit fuse = {.kind = DPRO_EDIT_FUSE,
                                 .at = 1,
                                 .n = 2,
                                 .value = ops[1].work_ns + ops[2].work_ns - gap_ns};
        int64_t apart_ns = space_evaluate(&b.space, &s);
        assert_null(edit_apply(model, &s, &fuse));
        int64_t fused_ns = space_evaluate(&b.space, &s);
        bool theorem = first.latency_ns + first.wire_ns <= gap_ns;
        assert_true(theorem ? fused_ns <= apart_ns : fused_ns >= apart_ns);
        /* Theorem 3: and better still with the tensors fused, where that is no longer by itself */
        second = sync_cost(&model->net, model->tensors[1].size_bytes);
        both = sync_cost(&model->net,
                         bucket_size_bytes(model, &s, 0) + bucket_size_bytes(model, &s, 1));
        struct dpro_edit merge = {.kind = DPRO_EDIT_MERGE};
        assert_null(edit_apply(model, &s, &merge));
        assert_true(both.latency_ns + both.wire_ns >
                        first.latency_ns + first.wire_ns + second.latency_ns + second.wire_ns ||
                    space_evaluate(&b.space, &s) <= fused_ns);
        n_fused += theorem;
        n_apart += !theorem;
        bench_fini(&b);
    }
    assert_true(n_fused > 100 && n_apart > 100);
}

enum { BY_PAPER, BY_LOCAL, BY_ALL, N_WAYS };

TEST(op_fusion_is_found_by_every_search)
{
    enum { N = 120 };
    static const char *const names[] = {"Algorithm 1", "local search", "default"};
    uint32_t n_best[N_WAYS] = {0}, n_with = 0;
    double sum[N_WAYS] = {0}, without = 0;
    for (uint64_t seed = 1; seed <= N; seed++) {
        struct dpro_model *model = random_job(.seed = seed, .n_tensors = 2 + (uint32_t)(seed % 5),
                                              .n_ranks = 2 + (uint32_t)(seed % 2),
                                              .alike = seed % 3 > 0, .overheads = seed % 2);
        int64_t gap_ns = gap_of(model, seed);
        struct dpro_pass pass = gap_pass(&gap_ns);
        const struct dpro_pass *const passes[] = {&pass};
        struct bench b;
        bench_init(&b, model, passes);
        int64_t best = brute_force_ops(model, &pass, b.space.programs);
        n_with += best < brute_force(model);
        without += (double)brute_force(model) / (double)best - 1;
        bench_fini(&b);
        for (int way = 0; way < N_WAYS; way++) {
            bench_init(&b, model, passes);
            int64_t own = space_evaluate(&b.space, &model->baseline);
            if (way == BY_ALL)
                search_dynamic(&b.space, 1);
            if (way == BY_PAPER || way == BY_ALL)
                search_paper(&b.space);
            if (way == BY_LOCAL || way == BY_ALL)
                search_local(&b.space, false);
            assert_true(b.space.best_ns <= own);
            n_best[way] += b.space.best_ns <= best;
            sum[way] += (double)b.space.best_ns / (double)best - 1;
            bench_fini(&b);
        }
    }
    for (int way = 0; way < N_WAYS; way++)
        print_message("%s: as good as brute force or better in %u of %d, %.2f %% off in the mean\n",
                      names[way], n_best[way], N, 100 * sum[way] / N);
    print_message("fusing no ops: %.2f %% off\n", 100 * without / N);
    assert_true(n_with > N / 2 && sum[BY_PAPER] < without);
    for (int way = BY_LOCAL; way < N_WAYS; way++)
        assert_true(n_best[way] > 90 && sum[way] < 0.01 * N);
}

TEST(fused_ops_that_do_harm_come_apart)
{
    struct dpro_model *model = random_job(.seed = 4, .n_tensors = 6, .n_ranks = 2, .alike = true);
    int64_t gap_ns = -1; /* each part makes the fused op longer */
    struct dpro_pass pass = gap_pass(&gap_ns);
    const struct dpro_pass *const passes[] = {&pass};
    struct bench b;
    bench_init(&b, model, passes);
    struct dpro_strategy s = space_strategy(&b.space);
    for (uint32_t at = 1; at < 7; at += 3) {
        struct dpro_edit fuse = {.kind = DPRO_EDIT_FUSE, .at = at, .n = 3, .value = 100000};
        assert_null(edit_apply(model, &s, &fuse));
    }
    space_evaluate(&b.space, &s); /* the best so far, where the search starts */
    assert_int_equal(b.space.best.n_fused, 2);
    search_local(&b.space, false);
    assert_int_equal(b.space.best.n_fused, 0);
    assert_true(b.space.best_ns <= brute_force(model));
    bench_fini(&b);
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
    assert_int_equal(value_of(model, dpro_optimum_strategy(optimum, DPRO_BEST)),
                     dpro_optimum_summary(optimum).best_ns);
}

TEST(ops_are_fused_on_all_ranks_that_compute_alike)
{
    struct dpro_model *model = paper_job("resnet50", 4);
    assert_int_equal(generate_apart(model, 0.05), 0);
    int64_t gap_ns = 100000;
    struct dpro_pass pass = gap_pass(&gap_ns);
    const struct dpro_pass *const passes[] = {&pass};
    /* one rank has some gradients ready in another order */
    struct model_op *ops = model->programs[2].ops;
    uint32_t n = model->programs[2].n_ops, swapped = 0;
    for (uint32_t i = 1; i + 1 < n && swapped < 10; i++)
        if (ops[i].tensor != MODEL_NONE && ops[i + 1].tensor != MODEL_NONE && ++swapped) {
            uint32_t tensor = ops[i].tensor;
            ops[i].tensor = ops[i + 1].tensor;
            ops[++i].tensor = tensor;
        }
    for (int a = DPRO_ALGORITHM_DEFAULT; a <= DPRO_ALGORITHM_PAPER; a++) {
        struct dpro_optimize_options options = {
            .algorithm = (enum dpro_algorithm)a, .passes = passes, .n_passes = 1};
        options.threads = 1;
        struct dpro_optimum *optimum = optimum_of(model, &options);
        options.threads = 3;
        struct dpro_optimum *other = optimum_of(model, &options);
        const struct dpro_strategy *s = dpro_optimum_strategy(optimum, DPRO_BEST);
        const struct dpro_strategy *t = dpro_optimum_strategy(other, DPRO_BEST);
        struct dpro_optimum_summary summary = dpro_optimum_summary(optimum);
        assert_true(s->n_fused > 20);
        assert_memory_equal(s->fused, t->fused, s->n_fused * sizeof *s->fused);
        assert_true(summary.best_ns >= summary.lower_bound_ns);
        assert_true((double)summary.best_ns < 0.97 * (double)summary.baseline_ns);
        /* what is told of them: each op once for all ranks that fuse it, with the decision */
        uint32_t n_all = 0, n_told = dpro_optimum_n_op_fusions(optimum), n_decided = 0;
        for (uint32_t i = 0; i < n_told; i++) {
            struct dpro_op_fusion f = dpro_optimum_op_fusion(optimum, i);
            n_all += f.n_ranks;
            assert_true(f.n_ops >= 2 && f.work_ns < f.apart_ns);
        }
        assert_int_equal(n_all, s->n_fused);
        assert_true(n_told <= s->n_fused / 3);
        for (uint32_t i = 0; i < dpro_optimum_n_decisions(optimum); i++)
            n_decided += strcmp(dpro_optimum_decision(optimum, i).pass, "op-fusion") == 0;
        assert_int_equal(n_decided, n_told);
    }
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
            struct dpro_optimum_summary s = dpro_optimum_summary(optimum);
            bool alone = a == DPRO_ALGORITHM_PAPER || a == DPRO_ALGORITHM_DP; /* what they find */
            assert_true((alone || s.best_ns <= s.baseline_ns) && s.best_ns >= s.lower_bound_ns);
            assert_string_equal(s.stopped_by, s.n_rounds > 0 ? "converged" : "nothing left to try");
            for (uint32_t b = 0; b < dpro_optimum_n_baselines(optimum); b++) {
                struct dpro_baseline baseline = dpro_optimum_baseline(optimum, b);
                assert_true(alone || s.best_ns <= baseline.iteration_ns);
                assert_true(baseline.n_buckets >= 1 && baseline.n_buckets <= model->n_tensors);
            }
            /* and it is what its strategy takes */
            assert_int_equal(value_of(model, dpro_optimum_strategy(optimum, DPRO_BEST)), s.best_ns);
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
                const struct dpro_strategy *best = dpro_optimum_strategy(optimum, DPRO_BEST);
                struct dpro_optimum_summary s = dpro_optimum_summary(optimum);
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
        struct dpro_optimum_summary s = dpro_optimum_summary(optimum);
        struct dpro_cycles best = dpro_strategy_cycles(dpro_optimum_strategy(optimum, DPRO_BEST));
        assert_true(s.best_ns <= s.baseline_ns);
        if (cycles_ns[i] > s.best_ns) { /* which an iteration takes at least then */
            assert_true(s.baseline_ns >= cycles_ns[i]);
            assert_true(best.cycle_ns < cycles_ns[i]);
        }
        assert_int_equal(value_of(model, dpro_optimum_strategy(optimum, DPRO_BEST)), s.best_ns);
    }
}

TEST(the_same_seed_gives_the_same_plan_with_any_number_of_threads)
{
    struct dpro_model *model = paper_job("resnet50", 4);
    model->net.gate.n_streams = 2;
    model->net.link.cpu_ns.value = model->net.link.byte_ns.value / 4;
    struct dpro_optimize_options options = {.seed = 5, .threads = 1};
    struct dpro_optimum *first = optimum_of(model, &options);
    const struct dpro_strategy *s = dpro_optimum_strategy(first, DPRO_BEST);
    for (options.threads = 2; options.threads <= 5; options.threads += 3) {
        struct dpro_optimum *other = optimum_of(model, &options);
        const struct dpro_strategy *t = dpro_optimum_strategy(other, DPRO_BEST);
        assert_int_equal(dpro_optimum_summary(first).best_ns, dpro_optimum_summary(other).best_ns);
        assert_int_equal(dpro_optimum_summary(first).n_candidates,
                         dpro_optimum_summary(other).n_candidates);
        assert_int_equal(s->n_buckets, t->n_buckets);
        assert_memory_equal(s->buckets, t->buckets, s->n_buckets * sizeof *s->buckets);
        assert_memory_equal(s->order, t->order, model->n_tensors * sizeof *s->order);
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
    struct dpro_optimum_summary s = dpro_optimum_summary(optimum);
    assert_string_equal(s.stopped_by, "stopped");
    assert_int_equal(n_calls, 1);
    assert_true(s.best_ns < s.baseline_ns);

    options = (struct dpro_optimize_options){.no_symmetry = 1, .threads = 1, .budget_s = 1e-6};
    optimum = optimum_of(model, &options);
    s = dpro_optimum_summary(optimum);
    assert_string_equal(s.stopped_by, "budget");
    assert_true(s.best_ns < s.baseline_ns && s.seconds < 5);
}

TEST(uncertain_numbers_make_an_uncertain_gain)
{
    struct dpro_model *model = paper_job("bert-base", 4);
    struct dpro_optimize_options options = {.threads = 1};
    struct dpro_optimum *sure = optimum_of(model, &options);
    assert_true(dpro_optimum_summary(sure).uncertainty_pct == 0);
    model->net.link.byte_ns.std = model->net.link.byte_ns.value / 5;
    struct dpro_optimum *unsure = optimum_of(model, &options);
    assert_true(dpro_optimum_summary(unsure).uncertainty_pct > 0.01);
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
    struct dpro_optimum_summary a = dpro_optimum_summary(sure), b = dpro_optimum_summary(unsure);
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
        best_ns[varies] = dpro_optimum_summary(optimum).best_ns;
        baseline_ns[varies] = dpro_optimum_summary(optimum).baseline_ns;
    }
    assert_int_equal(baseline_ns[0], baseline_ns[1]);
    assert_true(best_ns[0] != best_ns[1]);
}

TEST(a_setting_that_is_as_good_is_preferred)
{
    struct dpro_model *model = paper_job("bert-base", 4);
    struct dpro_optimize_options options = {.threads = 1};
    struct dpro_optimum *sure = optimum_of(model, &options);
    assert_null(dpro_optimum_summary(sure).setting); /* buckets of its own win something */
    model->measured_ns = dpro_optimum_summary(sure).baseline_ns; /* half a percent is nothing */
    struct dpro_optimum *unsure = optimum_of(model, &options);
    struct dpro_optimum_summary s = dpro_optimum_summary(unsure);
    assert_non_null(s.setting);
    bool is_listed = false;
    for (uint32_t b = 0; b < dpro_optimum_n_baselines(unsure); b++) {
        struct dpro_baseline baseline = dpro_optimum_baseline(unsure, b);
        is_listed |= strcmp(baseline.text, s.setting) == 0 && baseline.iteration_ns == s.best_ns &&
                     baseline.n_buckets == dpro_optimum_strategy(unsure, DPRO_BEST)->n_buckets;
    }
    assert_true(is_listed);
    model->capabilities = model_capabilities(DPRO_STACK_HOROVOD); /* which has no such setting */
    struct dpro_optimum *other = optimum_of(model, &options);
    assert_null(dpro_optimum_summary(other).setting);
}

TEST(nothing_in_the_table_is_faster_than_the_result_whatever_the_numbers_may_be)
{
    for (double errors = 0; errors <= 40; errors = errors * 2 + 0.25) {
        struct dpro_model *model = paper_job("bert-base", 4);
        struct dpro_optimize_options options = {.threads = 1};
        model->net.collective.overhead_ns.std = errors * model->net.collective.overhead_ns.value;
        struct dpro_optimum *optimum = optimum_of(model, &options);
        struct dpro_optimum_summary s = dpro_optimum_summary(optimum);
        assert_true(s.found_ns <= s.best_ns && s.best_ns <= s.baseline_ns);
        for (uint32_t b = 0; b < dpro_optimum_n_baselines(optimum); b++)
            assert_true(s.found_ns <= dpro_optimum_baseline(optimum, b).iteration_ns);
    }
}

TEST(a_bound_gives_way_to_doubt)
{
    struct dpro_model *model = paper_job("bert-base", 4);
    struct dpro_optimize_options options = {.threads = 1};
    struct dpro_optimum *sure = optimum_of(model, &options);
    struct dpro_optimum_summary a = dpro_optimum_summary(sure);
    model->measured_ns = a.baseline_ns;
    model->job_noise = model->usual_noise = 0.06 / 3;
    model->n_samples = 9;
    for (uint32_t r = 0; r < model->n_ranks; r++)
        model->ranks[r].sample_scale = NULL;
    struct dpro_optimum *restless = optimum_of(model, &options);
    struct dpro_optimum_summary b = dpro_optimum_summary(restless);
    assert_true((double)b.lower_bound_ns < 0.95 * (double)a.lower_bound_ns); /* 2 * sqrt 2 * 2 % */
    assert_true(b.lower_bound_ns > 0);
}

TEST(a_model_off_its_recording_makes_an_uncertain_gain)
{
    struct dpro_model *model = paper_job("bert-base", 4);
    struct dpro_optimize_options options = {.threads = 1};
    struct dpro_optimum *generated = optimum_of(model, &options);
    struct dpro_optimum_summary s = dpro_optimum_summary(generated);
    double gain_pct = 100 * ((double)s.baseline_ns / (double)s.best_ns - 1);
    assert_true(gain_pct > 1);
    double before = 0;
    for (int off_pct = 0; off_pct <= 30; off_pct += 10) {
        model->measured_ns = s.baseline_ns;
        model->misfit = off_pct / 100.0;
        struct dpro_optimum *learnt = optimum_of(model, &options);
        struct dpro_optimum_summary told = dpro_optimum_summary(learnt);
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
    s = dpro_optimum_summary(restless);
    assert_true(s.uncertainty_pct >= 30 * ((double)s.baseline_ns / (double)s.best_ns - 1));
}

TEST(decisions_tell_all_that_differs)
{
    struct dpro_model *model = paper_job("bert-base", 4);
    struct dpro_optimize_options options = {.threads = 1,
                                            .compressions = 1u << DPRO_COMPRESSION_FP16};
    struct dpro_optimum *optimum = optimum_of(model, &options);
    const struct dpro_strategy *best = dpro_optimum_strategy(optimum, DPRO_BEST);
    uint32_t n = dpro_optimum_n_decisions(optimum);
    assert_true(n > 1);
    struct dpro_decision last = dpro_optimum_decision(optimum, n - 1);
    assert_string_equal(last.pass, "compression");
    assert_string_equal(last.decision, "fp16");
    uint32_t n_fusions = 0;
    for (uint32_t i = 0; i < n; i++)
        n_fusions += strcmp(dpro_optimum_decision(optimum, i).pass, "tensor-fusion") == 0;
    assert_true(n_fusions > 0 && n_fusions <= best->n_buckets);
    for (uint32_t b = 0; b < best->n_buckets; b++) {
        struct dpro_bucket_times times = dpro_optimum_times(optimum, DPRO_BEST, b);
        assert_true(times.ready_ns <= times.start_ns && times.start_ns < times.end_ns);
    }
    /* a job that runs as well as it can is told so by silence */
    struct generate_options o = {.seed = 3, .n_tensors = 1, .n_ranks = 2, .alike = true};
    struct dpro_model *lone = random_job_of(&o);
    options.compressions = 0;
    optimum = optimum_of(lone, &options);
    assert_int_equal(dpro_optimum_n_decisions(optimum), 0);
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
        const struct dpro_strategy *best = dpro_optimum_strategy(optimum, DPRO_BEST);
        int64_t best_ns = dpro_optimum_summary(optimum).best_ns, plain_ns = brute_force(model);
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
        for (uint32_t b = 0; b < dpro_optimum_n_baselines(optimum); b++) {
            int64_t ns = dpro_optimum_baseline(optimum, b).iteration_ns;
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
    int64_t gap_ns = gap_of(model, 3);
    struct dpro_pass pass = gap_pass(&gap_ns);
    const struct dpro_pass *const passes[] = {&pass};
    struct dpro_optimize_options options = {.algorithm = DPRO_ALGORITHM_PAPER,
                                            .no_coarsen = 1,
                                            .no_partial = 1,
                                            .no_symmetry = 1,
                                            .passes = passes};
    for (options.n_passes = 0; options.n_passes < 2; options.n_passes++) {
        struct dpro_optimum *slow = optimum_of(model, &options);
        struct dpro_optimum_summary s = dpro_optimum_summary(slow);
        const struct dpro_strategy *best = dpro_optimum_strategy(slow, DPRO_BEST);
        assert_int_equal(value_of(model, best), s.best_ns);
        assert_true((best->n_fused > 0) == (options.n_passes > 0));
    }
}
