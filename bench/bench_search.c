/* Seconds of CPU time, on one core, that a search takes.
 *
 * The paper's Table 5 once more: Algorithm 1 to convergence, as a strawman that answers every
 * question by a replay of the whole graph with all its SENDs and RECVs, and with Coarsened View,
 * partial replay and symmetry added one after the other. The strawman would take hours: how often
 * it replays is counted by a run in which evaluate() answers for it (with the same numbers, so that
 * it decides the same); the replays of the strategies that it ends and begins with, the smallest
 * and about the largest graph it sees, are timed. Usage: bench_search [ranks] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu_seconds.h"
#include "generated_job.h"
#include "model_graph.h"
#include "optimize/search.h"
#include "replay/replay.h"

static void check(int rc, const struct dpro_error *err)
{
    if (rc < 0) {
        fprintf(stderr, "bench_search: %s\n", err->text);
        exit(4);
    }
}

/* Making the graph and replaying it; the best of three. */
static double replay_seconds(const struct dpro_model *model, const struct dpro_strategy *strategy,
                             uint32_t *n_ops)
{
    static const struct dpro_replay_options options;
    double best = 0;
    for (int round = 0; round < 3; round++) {
        struct dpro_graph *graph;
        struct dpro_error err;
        int64_t ns;
        double start = cpu_seconds();
        graph = cost_graph_job(model, strategy, NULL);
        check(dpro_replay_predict(graph, &options, &ns, &err), &err);
        double seconds = cpu_seconds() - start;
        *n_ops = dpro_graph_n_ops(graph);
        dpro_graph_destroy(graph);
        best = round == 0 || seconds < best ? seconds : best;
    }
    return best;
}

struct setting {
    const char *name;
    int no_coarsen, no_partial, no_symmetry;
};

/* Algorithm 1 with a setting. */
static void run_setting(const struct dpro_model *model, const struct setting *setting)
{
    struct dpro_optimize_options options = {.threads = 1,
                                            .no_coarsen = setting->no_coarsen,
                                            .no_partial = setting->no_partial,
                                            .no_symmetry = setting->no_symmetry};
    struct search search = {.options = &options, .best_ns = INT64_MAX};
    struct coarsened_view view;
    struct space space;
    double start = cpu_seconds();
    search.start_s = search_seconds(&search);
    registry_init(&search.registry, &options);
    coarsened_view_make(model, !options.no_coarsen, !options.no_symmetry, UINT32_MAX, &view);
    space_init(&space, &search, &view.model);
    search_paper(&space);
    double seconds = cpu_seconds() - start;
    if (options.no_partial) {
        struct dpro_strategy first = space_strategy(&space); /* a bucket for each tensor */
        uint32_t least_ops, most_ops;
        double least = replay_seconds(&view.model, &space.best, &least_ops);
        double most = replay_seconds(&view.model, &first, &most_ops);
        double n = (double)search.n_candidates;
        printf("  %-10s > %.6g s, < %.6g s: %.0f replays of %u to %u ops\n", setting->name,
               n * least, n * most, n, least_ops, most_ops);
    } else {
        printf("  %-10s %.6g s: %lu evaluations, %u rounds\n", setting->name, seconds,
               (unsigned long)search.n_candidates, search.n_rounds);
    }
    space_fini(&space);
    coarsened_view_fini(&view);
    registry_fini(&search.registry);
    array_fini(&search.improvements);
    array_fini(&search.pool);
}

static void run_with(const struct dpro_model *model, const struct dpro_optimize_options *options,
                     const char *name)
{
    struct dpro_optimum *optimum;
    struct dpro_error err;
    double start = cpu_seconds();
    check(dpro_optimize_run(model, options, &optimum, &err), &err);
    double seconds = cpu_seconds() - start;
    struct dpro_optimum_summary s = dpro_optimum_view(optimum)->summary;
    printf("  %-11s %.6g s: %lu evaluations, own %.3f ms, best %.3f, bound %.3f, %s\n", name,
           seconds, (unsigned long)s.n_candidates, (double)s.baseline_ns * 1e-6,
           (double)s.best_ns * 1e-6, (double)s.lower_bound_ns * 1e-6, s.stopped_by);
    dpro_optimum_destroy(optimum);
}

static void run_default(const struct dpro_model *model)
{
    run_with(model, &(struct dpro_optimize_options){.threads = 1, .budget_s = 120}, "default");
}

/* With modules compiled and in 16 bits as well; and without what makes it fast. */
static void run_computing(uint32_t n_ranks, bool all)
{
    const unsigned both = DPRO_COMPILED | DPRO_BF16;
    const struct {
        const char *name;
        struct dpro_optimize_options options;
    } runs[] = {
        {"computing", {.computing = both}},
        {"uncoarsened", {.computing = both, .no_coarsen = 1}},
        {"all-ranks", {.computing = both, .no_symmetry = 1}},
    };
    struct dpro_model *model = generate_job("bert-base", n_ranks);
    if (!model)
        exit(4);
    generate_modules(model);
    printf("bert-base, %u ranks, %u tensors, %u modules\n", n_ranks, model->n_tensors,
           model->n_modules);
    for (size_t i = 0; i < (all ? sizeof runs / sizeof *runs : 1); i++) {
        struct dpro_optimize_options options = runs[i].options;
        options.threads = 1;
        options.budget_s = 60;
        run_with(model, &options, runs[i].name);
    }
    dpro_model_destroy(model);
}
/* Every rank by itself, as exactly as the replay of the whole graph. */
static void run_evaluations(const struct dpro_model *model)
{
    uint64_t n = 0;
    struct evaluator *evaluator = evaluator_create(model);
    double start = cpu_seconds(), seconds;
    do {
        evaluate_strategy(evaluator, &model->baseline);
        n++;
    } while ((seconds = cpu_seconds() - start) < 1);
    printf("  evaluations on %u ranks: %.0f a second\n", model->n_ranks, (double)n / seconds);
    evaluator_destroy(evaluator);
}

/* Gradients that are ready long before their turn: nearly all of them wait. */
static void run_waiting(void)
{
    struct generate_options o = {.seed = 7, .n_tensors = 1000, .n_ranks = 2, .alike = true};
    struct dpro_model *model = generate_random(&o);
    if (!model)
        exit(4);
    model->net.link.message_ns.value = 10 * (double)model->programs[0].ops[1].work_ns;
    model->net.collective.overhead_ns.value = 0;
    printf("1,000 buckets, nearly all waiting for the link, %u ranks\n", model->n_ranks);
    run_default(model);
    dpro_model_destroy(model);
}

/* Ranks that all differ, as recorded ones do. */
static void run_apart(uint32_t n_ranks, bool searches)
{
    struct dpro_model *model = generate_job("bert-base", n_ranks);
    if (!model || generate_apart(model, 0.1) < 0)
        exit(4);
    printf("bert-base, %u ranks that all differ, %u tensors\n", n_ranks, model->n_tensors);
    if (searches)
        run_default(model);
    else
        run_evaluations(model);
    dpro_model_destroy(model);
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"resnet50", "vgg16", "inceptionv3", "bert-base"};
    static const struct setting settings[] = {
        {"strawman", 1, 1, 1}, {"coarsened", 0, 1, 1}, {"partial", 0, 0, 1}, {"symmetry", 0, 0, 0}};
    uint32_t n_ranks = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 16;
    if (n_ranks < 2)
        return 2;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct dpro_model *model = generate_job(names[i], n_ranks);
        if (!model)
            return 4;
        printf("%s, %u ranks, %u tensors\n", names[i], n_ranks, model->n_tensors);
        for (size_t s = 0; s < sizeof settings / sizeof *settings; s++)
            run_setting(model, &settings[s]);
        run_default(model);
        if (i + 1 == sizeof names / sizeof *names)
            run_evaluations(model);
        dpro_model_destroy(model);
    }
    struct dpro_model *large = generate_job("bert-base", 8 * n_ranks);
    if (!large)
        return 4;
    printf("bert-base, %u ranks, %u tensors\n", 8 * n_ranks, large->n_tensors);
    run_default(large);
    dpro_model_destroy(large);
    run_apart(8 * n_ranks, true);
    run_apart(64 * n_ranks, false);
    run_computing(n_ranks, true);
    run_computing(8 * n_ranks, false);
    run_waiting();
    return 0;
}
