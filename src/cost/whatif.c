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
};

/* The ranks of a measured iteration drawn at random: each computes as fast as it did in that one,
 * its copies as it did in another. Equal draws whatever the model. */
static void draw_ranks(const struct dpro_model *model, uint32_t number, struct model_rank *ranks,
                       uint32_t *samples)
{
    for (uint32_t r = 0; r < model->n_ranks; r++) {
        uint64_t x = 0x9e3779b97f4a7c15u * (model->ranks[r].copy + UINT64_C(1));
        x = map_mix(map_mix(number + 1) + x);
        samples[r] = (uint32_t)(((unsigned __int128)x * model->n_samples) >> 64);
        ranks[r] = model->ranks[r];
        ranks[r].work_scale *= model->ranks[r].sample_scale[samples[r]];
    }
}

/* The key of all draws that take as long: what counts of a rank and its copies is which samples
 * were drawn, but where each has links to servers. `seen`: room for all samples of all ranks. */
static uint64_t key_of_draw(const struct dpro_model *model, uint32_t number,
                            const uint32_t *samples, uint32_t *seen)
{
    bool each_counts = model_scheme(model) == MODEL_PUSH_PULL;
    uint64_t key = 0;
    for (uint32_t r = 0; r < model->n_ranks; r++) {
        const struct model_rank *rank = &model->ranks[r];
        uint32_t of = rank->copy > 0 && !each_counts ? rank->like : r;
        size_t at = of * (size_t)model->n_samples + samples[r];
        if (seen[at] != number + 1)
            key += map_key(at);
        seen[at] = number + 1;
    }
    return key | 1;
}

/* Sorted; returns their mean. */
static double draw_iterations(const struct iteration *it, const char *stage,
                              const struct dpro_sink *sink, int64_t draws[N_DRAWS])
{
    uint32_t n = it->model->n_ranks;
    struct map known = {0};
    struct model_rank *ranks = mem_alloc(n * sizeof *ranks);
    uint32_t *samples = mem_alloc(n * sizeof *samples);
    uint32_t *seen = mem_array(n * (size_t)it->model->n_samples, sizeof *seen);
    double sum = 0;
    for (uint32_t d = 0; d < N_DRAWS; d++) {
        draw_ranks(it->model, d, ranks, samples);
        uint64_t key = key_of_draw(it->model, d, samples, seen), ns;
        if (!map_get(&known, key, &ns)) {
            struct dpro_model drawn = *it->model;
            drawn.ranks = ranks;
            draws[d] = evaluate_once(&drawn);
            if (it->n_others > 0) {
                draw_ranks(it->others, d, ranks, samples);
                drawn = *it->others;
                drawn.ranks = ranks;
                draws[d] += it->n_others * evaluate_once(&drawn);
            }
            ns = (uint64_t)draws[d];
            map_set(&known, key, ns);
        }
        draws[d] = (int64_t)ns;
        log_progress(sink, stage, "iterations", d + 1, N_DRAWS);
        sum += (double)draws[d];
    }
    map_fini(&known);
    mem_free(seen);
    mem_free(samples);
    mem_free(ranks);
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
static int apply_changes(const struct dpro_graph *graph, const struct dpro_changes *changes,
                         struct dpro_whatif *w, struct dpro_error *err)
{
    struct notes same = {.arena = &w->arena};
    int rc = change_apply(graph, changes, &w->model, &w->notes, err);
    if (rc == 0 && w->graph.n_passes > 0)
        rc = change_apply(graph, changes, &w->graph.passes, &same, err);
    array_fini(&same.lines);
    return rc;
}

/* More ranks: a slower slowest one. */
static void add_stragglers(const struct dpro_model *model, double noise_ns, struct dpro_whatif *w)
{
    w->predicted.iteration_ns += llround(noise_ns);
    if (model->n_samples > 1)
        note(&w->notes,
             "the slowest rank of each iteration, drawn from the %u that were measured, makes it "
             "%.2f ms %s than with as many ranks as recorded",
             model->n_samples, fabs(noise_ns) / 1e6, noise_ns < 0 ? "shorter" : "longer");
}

static void add_uncertainty(const struct dpro_model *model, const struct dpro_sink *sink,
                            struct dpro_whatif *w)
{
    static const struct dpro_model as_it_is = {.page_faults = -1};
    const struct graph_change *change = &w->graph;
    struct change_beside beside = {.resharded = change->n_resharded > 0 || change->n_moved > 0,
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
        rc = apply_changes(graph, changes, w, err);
    struct iteration before = {.model = model},
                     after = {&w->model, &w->graph.passes, w->graph.n_passes};
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
    if (w->model.n_ranks != model->n_ranks)
        add_stragglers(model, noise_after - noise_before, w);
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
