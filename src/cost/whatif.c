/* cost/whatif.c: predicts a job as it ran and with changes, both by the same model, so that the
 * model's errors cancel in the ratio. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/map.h"
#include "base/memory.h"
#include "base/sort.h"
#include "cost/change.h"
#include "cost/evaluate.h"
#include "cost/strategy_memory.h"
#include "cost/uncertainty.h"
#include "cost/whatif_result.h"

enum { N_DRAWS = 200 };
#define MISFIT_TO_TELL_PCT 5.0
#define HALF_OF_95_PCT     1.96 /* in standard errors */

/* Which gradients travel together is what comes of the cycles. */
static void show_groups(struct dpro_model *model)
{
    struct evaluator *evaluator = evaluator_create(model);
    evaluate(evaluator, &model->baseline);
    evaluated_groups(evaluator, &model->baseline);
    evaluator_destroy(evaluator);
}

/* What an iteration is made of. */
struct iteration {
    const struct dpro_model *model;
    const struct dpro_model *others; /* the model of all micro-batches but the last, where each
                                        communicates */
    uint32_t n_others;
    uint32_t n_recorded; /* ranks */
};

/* A measured iteration drawn at random: each rank computes as fast as it did in that one. Ranks
 * that were not recorded do what the recorded ones did in another. Equal draws whatever the model.
 */
static int64_t draw_iteration(const struct dpro_model *model, uint32_t n_recorded, uint32_t draw)
{
    struct dpro_model drawn = *model;
    drawn.ranks = mem_alloc(model->n_ranks * sizeof *drawn.ranks);
    for (uint32_t r = 0; r < model->n_ranks; r++) {
        uint64_t x = map_mix(map_mix(draw + 1) + 0x9e3779b97f4a7c15u * (r / n_recorded + 1));
        uint32_t sample = (uint32_t)(((unsigned __int128)x * model->n_samples) >> 64);
        drawn.ranks[r] = model->ranks[r];
        drawn.ranks[r].work_scale *= model->ranks[r].sample_scale[sample];
    }
    int64_t ns = evaluate_once(&drawn);
    mem_free(drawn.ranks);
    return ns;
}

/* Sorted; returns their mean. */
static double draw_iterations(const struct iteration *it, const char *stage,
                              const struct dpro_sink *sink, int64_t draws[N_DRAWS])
{
    double sum = 0;
    for (uint32_t d = 0; d < N_DRAWS; d++) {
        draws[d] = draw_iteration(it->model, it->n_recorded, d);
        if (it->n_others > 0)
            draws[d] += it->n_others * draw_iteration(it->others, it->n_recorded, d);
        log_progress(sink, stage, "iterations", d + 1, N_DRAWS);
        sum += (double)draws[d];
    }
    sort_i64(draws, N_DRAWS);
    return sum / N_DRAWS;
}

static int evaluate_changed(const struct dpro_model *model, int64_t *ns, struct dpro_error *err)
{
    *ns = evaluate_once(model);
    if (*ns < INT64_MAX)
        return 0;
    return dpro_error_set(err, DPRO_EUSAGE,
                          "an iteration of the changed job never ends; change less");
}

/* *noise_ns: how much longer the mean of the draws is than the iteration of mean durations, as the
 * slowest of noisy ranks is slower than the slowest of their means. */
static int predict(const struct iteration *it, const char *stage, const struct dpro_sink *sink,
                   struct dpro_prediction *prediction, double *noise_ns, struct dpro_error *err)
{
    int64_t draws[N_DRAWS], ns, others_ns = 0;
    int rc = evaluate_changed(it->model, &ns, err);
    if (rc == 0 && it->n_others > 0)
        rc = evaluate_changed(it->others, &others_ns, err);
    if (rc < 0)
        return rc;
    ns += it->n_others * others_ns;
    *prediction = (struct dpro_prediction){.iteration_ns = ns, .p50_ns = ns, .p95_ns = ns};
    *noise_ns = 0;
    if (it->model->n_samples > 1) {
        *noise_ns = draw_iterations(it, stage, sink, draws) - (double)ns;
        prediction->p50_ns = (draws[N_DRAWS / 2 - 1] + draws[N_DRAWS / 2]) / 2;
        prediction->p95_ns = draws[N_DRAWS * 95 / 100 - 1];
    }
    return 0;
}

/* The changed job, and its other micro-batches; what is noted of these is said of the job. */
static int apply_changes(const struct dpro_changes *changes, struct dpro_whatif *w,
                         struct dpro_error *err)
{
    struct notes same = {.arena = &w->arena};
    int rc = change_apply(changes, &w->model, &w->notes, err);
    if (rc == 0 && w->graph.n_passes > 0)
        rc = change_apply(changes, &w->graph.passes, &same, err);
    array_fini(&same.lines);
    return rc;
}

static void add_uncertainty(const struct dpro_model *model, const struct dpro_sink *sink,
                            struct dpro_whatif *w)
{
    static const struct dpro_model as_it_is = {.page_faults = -1};
    const struct graph_change *change = &w->graph;
    struct change_beside beside = {.resharded = change->n_resharded > 0,
                                   .other = &change->passes,
                                   .n_others = change->n_passes,
                                   .sink = sink};
    if (change->has_modules) {
        beside.batch = uncertainty_of_batch(&as_it_is, &change->modules);
        beside.computing_error_ns = change->computing_error_ns;
    }
    struct uncertainty u = uncertainty_of(model, &w->model, &beside);
    if (fabs(100 * u.misfit) > MISFIT_TO_TELL_PCT)
        note(&w->notes,
             "the model is %+.1f %% off the measured iteration; trust the ratio more than the "
             "milliseconds",
             100 * u.misfit);
    double ratio = (double)w->baseline.iteration_ns / (double)w->predicted.iteration_ns;
    w->baseline.uncertainty_pct = 100 * HALF_OF_95_PCT * u.before;
    w->predicted.uncertainty_pct = 100 * HALF_OF_95_PCT * u.after;
    w->speedup = (struct dpro_estimate){ratio, u.speedup};
    memcpy(w->parts, u.parts, sizeof w->parts);
}

static void tell_bubbles(const struct dpro_model *model, struct dpro_whatif *w)
{
    const struct pipeline_change *pipeline = &w->graph.pipeline;
    w->bubbles = arena_array(&w->arena, 2 * (size_t)pipeline->n_stages + 1, sizeof *w->bubbles);
    for (uint32_t s = 0; s < pipeline->n_stages; s++) {
        w->bubbles[2 * s] = pipeline_bubble(model, pipeline, s, w->baseline.iteration_ns);
        w->bubbles[2 * s + 1] = pipeline_bubble(&w->model, pipeline, s, w->predicted.iteration_ns);
    }
}

static int run_whatif(const struct dpro_graph *graph, const struct dpro_model *model,
                      const struct dpro_changes *changes, struct dpro_whatif **whatif,
                      struct dpro_error *err)
{
    double noise_before, noise_after;
    struct dpro_whatif *w = mem_array(1, sizeof *w);
    w->notes.arena = &w->arena;
    change_copy(model, &w->arena, &w->model);
    int rc = change_check(changes, model, err);
    if (rc == 0) /* before the world changes: it is of the recorded ranks */
        rc = change_graph(graph, changes, &w->model, &w->notes, &w->graph, err);
    if (rc == 0)
        rc = apply_changes(changes, w, err);
    struct iteration before = {.model = model, .n_recorded = model->n_ranks},
                     after = {&w->model, &w->graph.passes, w->graph.n_passes, model->n_ranks};
    if (rc == 0)
        rc = predict(&before, "predict the job as it is", &changes->sink, &w->baseline,
                     &noise_before, err);
    if (rc == 0)
        rc = predict(&after, "predict the changed job", &changes->sink, &w->predicted, &noise_after,
                     err);
    if (rc < 0)
        return rc;
    if (w->model.baseline.fuses)
        show_groups(&w->model);
    tell_bubbles(model, w);
    if (changes->world_size != 0) /* more ranks: a slower slowest one */
        w->predicted.iteration_ns += llround(noise_after - noise_before);
    add_uncertainty(model, &changes->sink, w);
    if (w->graph.has_modules) {
        memcpy(w->memory, w->graph.memory, sizeof w->memory);
    } else if (memory_is_known(model)) {
        w->memory[0] = memory_peak_told(model, &model->baseline);
        w->memory[1] = memory_peak_told(&w->model, &w->model.baseline);
    }
    *whatif = w;
    return 0;
}

int dpro_whatif_run(const struct dpro_graph *graph, const struct dpro_model *model,
                    const struct dpro_changes *changes, struct dpro_whatif **whatif,
                    struct dpro_error *err)
{
    return WITHIN_SCOPE(dpro_error_nomem(err), run_whatif(graph, model, changes, whatif, err));
}
