#include "search_job.h"
#include "replay/replay.h"

#include "case.h"
#include "cost/program/evaluate.h"
#include "model_graph.h"

struct dpro_model *random_job_of(const struct generate_options *options)
{
    struct dpro_model *model = generate_random(options);
    assert_non_null(model);
    KEEP(model, dpro_model_destroy);
    return model;
}

uint32_t most_seeds(uint32_t n)
{
    return getenv("DPRO_LONG") ? n : n / 3;
}

struct dpro_model *paper_job(const char *name, uint32_t n_ranks)
{
    struct dpro_model *model = generate_job(name, n_ranks);
    KEEP(model, dpro_model_destroy);
    return model;
}

struct dpro_optimum *optimum_of(const struct dpro_model *model,
                                const struct dpro_optimize_options *options)
{
    struct dpro_optimum *optimum;
    struct dpro_error err;
    assert_int_equal(dpro_optimize_run(model, options, &optimum, &err), 0);
    KEEP(optimum, dpro_optimum_destroy);
    return optimum;
}

int64_t value_of(const struct dpro_model *model, const struct dpro_strategy *s)
{
    struct evaluator *evaluator = evaluator_create(model);
    int64_t ns = evaluate_strategy(evaluator, s);
    evaluator_destroy(evaluator);
    return ns;
}

int64_t replayed(const struct dpro_model *model, const struct dpro_strategy *strategy)
{
    static const struct dpro_replay_options options;
    struct dpro_graph *graph;
    struct dpro_error err;
    int64_t ns;
    graph = cost_graph_job(model, strategy, NULL);
    assert_int_equal(dpro_replay_predict(graph, &options, &ns, &err), 0);
    dpro_graph_destroy(graph);
    return ns;
}
