/* tests/unit/test_search.c: the search against brute force, evaluations against replays of whole
 * graphs, and what a result promises. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cost/buckets.h"
#include "cost/generate.h"
#include "cost/graph.h"
#include "optimize/search.h"
#include "replay/replay.h"

static struct dpro_model *random_job(const struct generate_options *options)
{
    struct dpro_model *model = generate_random(options);
    assert_non_null(model);
    return model;
}

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
static int64_t brute_force(const struct dpro_model *model)
{
    struct evaluator *evaluator;
    struct arena arena = {0};
    struct dpro_strategy strategy;
    int64_t best = INT64_MAX;
    assert_int_equal(evaluator_create(model, &evaluator, NULL), 0);
    assert_int_equal(buckets_init(model, &arena, &strategy), 0);
    for (uint32_t borders = 0; borders < 1u << (model->n_tensors - 1); borders++) {
        cut(model, borders, &strategy);
        int64_t ns = evaluate(evaluator, &strategy);
        best = ns < best ? ns : best;
    }
    evaluator_destroy(evaluator);
    arena_fini(&arena);
    return best;
}

static int64_t replayed(const struct dpro_model *model, const struct dpro_strategy *strategy)
{
    static const struct dpro_replay_options options;
    struct dpro_graph *graph;
    struct dpro_error err;
    int64_t ns;
    assert_int_equal(cost_graph_job(model, strategy, NULL, &graph, &err), 0);
    assert_int_equal(replay_predict(graph, &options, &ns, &err), 0);
    dpro_graph_destroy(graph);
    return ns;
}

/* ---- evaluate() and the whole graph ---- */

static void test_an_evaluation_is_the_replay_of_the_whole_graph(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        struct generate_options o = {.seed = seed,
                                     .n_tensors = 1 + (uint32_t)(seed % 9),
                                     .n_ranks = 2 + (uint32_t)(seed % 5),
                                     .alike = seed % 3 == 0,
                                     .in_order = true,
                                     .n_streams = 1,
                                     .overheads = seed % 2};
        struct dpro_model *model = random_job(&o);
        model->net.algorithm = (enum model_algorithm)(seed % 6);
        model->net.ranks_per_host = 2;
        model->net.chunk_bytes = seed % 7 ? 0 : 1000;
        struct evaluator *evaluator;
        struct arena arena = {0};
        struct dpro_strategy strategy;
        assert_int_equal(evaluator_create(model, &evaluator, NULL), 0);
        assert_int_equal(buckets_init(model, &arena, &strategy), 0);
        cut(model, (uint32_t)(seed * 2654435761u) >> 12, &strategy);
        if (seed % 4 == 0)
            strategy.buckets[0].partitions = 1 + (uint32_t)(seed % 3);
        assert_int_equal(evaluate(evaluator, &strategy), replayed(model, &strategy));
        arena_fini(&arena);
        evaluator_destroy(evaluator);
        dpro_model_destroy(model);
    }
}

/* ---- spaces by hand ---- */

struct bench {
    struct dpro_optimize_options options;
    struct search search;
    struct space space;
};

static void bench_init(struct bench *b, const struct dpro_model *model, int threads)
{
    *b = (struct bench){.options = {.threads = threads}};
    b->search = (struct search){.options = &b->options, .best_ns = INT64_MAX};
    b->search.start_s = search_seconds(&b->search);
    assert_int_equal(registry_init(&b->search.registry, &b->options, NULL), 0);
    assert_int_equal(space_init(&b->space, &b->search, model, NULL), 0);
}

static void bench_fini(struct bench *b)
{
    assert_false(b->search.failed);
    space_fini(&b->space);
    registry_fini(&b->search.registry);
    array_fini(&b->search.improvements);
}

static int64_t bound_of(const struct bench *b)
{
    int64_t bound;
    assert_int_equal(lower_bound(b->space.model, &b->space.work, &bound), 0);
    return bound;
}

static void test_dynamic_programming_is_never_beaten_by_brute_force(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        struct generate_options o = {.seed = seed,
                                     .n_tensors = 1 + (uint32_t)(seed % 10),
                                     .n_ranks = 2 + (uint32_t)(seed % 3),
                                     .alike = seed % 4 > 0,
                                     .in_order = true,
                                     .n_streams = 1,
                                     .overheads = seed % 3 > 0};
        struct dpro_model *model = random_job(&o);
        struct bench b;
        bench_init(&b, model, 1);
        search_dynamic(&b.space, 1);
        int64_t best = brute_force(model);
        if (b.space.best_ns != best)
            print_message("seed %lu: %ld, brute force %ld\n", (unsigned long)seed,
                          (long)b.space.best_ns, (long)best);
        assert_int_equal(b.space.best_ns, best);
        assert_true(bound_of(&b) <= best);
        bench_fini(&b);
        dpro_model_destroy(model);
    }
}

static void test_stat(void **state)
{
    (void)state;
    for (int kind = 0; kind < 5; kind++) {
        uint32_t exact[3] = {0}, n = 0;
        double worst[3] = {0}, sum[3] = {0};
        for (uint64_t seed = 1; seed <= 300; seed++) {
            struct generate_options o = {.seed = seed,
                                         .n_tensors = 2 + (uint32_t)(seed % 9),
                                         .n_ranks = 2 + (uint32_t)(seed % 3),
                                         .alike = seed % 4 > 0,
                                         .in_order = kind < 3,
                                         .n_streams = kind == 1 ? 2 : 1,
                                         .interferes = kind == 2 || kind == 4,
                                         .cycles = kind >= 3,
                                         .overheads = seed % 3 > 0};
            struct dpro_model *model = random_job(&o);
            int64_t best = brute_force(model);
            n++;
            for (int a = 0; a < 3; a++) {
                struct bench b;
                bench_init(&b, model, 1);
                if (a == 0)
                    search_paper(&b.space);
                else
                    search_dynamic(&b.space, 1);
                if (a == 2)
                    search_local(&b.space);
                double off = (double)b.space.best_ns / (double)best - 1;
                assert_true(bound_of(&b) <= b.space.best_ns);
                assert_true(bound_of(&b) <= best);
                exact[a] += off <= 0;
                sum[a] += off > 0 ? off : 0;
                worst[a] = off > worst[a] ? off : worst[a];
                bench_fini(&b);
            }
            dpro_model_destroy(model);
        }
        for (int a = 0; a < 3; a++)
            print_message("kind %d %s: exact %u of %u, mean off %.3f %%, worst %.1f %%\n", kind,
                          a == 0   ? "paper"
                          : a == 1 ? "dp"
                                   : "dp+local",
                          exact[a], n, 100 * sum[a] / n, 100 * worst[a]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_evaluation_is_the_replay_of_the_whole_graph),
        cmocka_unit_test(test_dynamic_programming_is_never_beaten_by_brute_force),
        cmocka_unit_test(test_stat),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
