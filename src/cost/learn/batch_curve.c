/* The time of both passes with another batch size, where probes measured some. Between and beyond
 * the measured sizes, the curve is straight lines of log time over log size. */

#include "cost/program/cost.h"
#include "cost/program/strategy_work.h"
#include "ingest/probes.h"

/* Of the recorded work of both passes, what has to have been probed. */
#define LEAST_PROBED 0.5

ORDER(by_ratio, struct batch_point, ASCENDING(ratio));

struct curve_work {
    double forward, backward;
};

static struct curve_work work_of(const struct dpro_model *model, uint32_t module)
{
    struct curve_work work = {0, 0};
    for (uint32_t p = 0; p < model->n_programs; p++)
        for (uint32_t c = 0; c < model->programs[p].n_calls; c++)
            if (model->programs[p].calls[c].module == module) {
                work.forward += (double)model->programs[p].calls[c].forward_ns;
                work.backward += (double)model->programs[p].calls[c].backward_ns;
            }
    return work;
}

static const struct probe_batch *batch_of(const struct dpro_model *model, const struct probe *probe,
                                          double ratio)
{
    for (uint32_t b = probe->first_batch; b < probe->first_batch + probe->n_batches; b++)
        if (model->probes->batches.at[b].ratio == ratio)
            return &model->probes->batches.at[b];
    return NULL;
}

static void curve_add(struct dpro_estimate *sum, double work, struct dpro_estimate of)
{
    sum->value += work * of.value;
    sum->std += work * of.std;
}

static void curve_over(struct dpro_estimate *sum, double work)
{
    *sum = work > 0 ? (struct dpro_estimate){sum->value / work, sum->std / work}
                    : (struct dpro_estimate){1, 0};
}

/* Of the outermost modules that were probed with that batch; false: they are too little. */
static bool measure_point(const struct dpro_model *model, double ratio, struct batch_point *point)
{
    SCRATCH bool *taken = mem_array(model->n_modules, sizeof *taken);
    struct curve_work probed = {0, 0}, all = {0, 0};
    double faults = page_fault_share(model), launches = probed_launches(model);
    *point = (struct batch_point){.ratio = ratio};
    for (uint32_t m = 0; m < model->n_modules; m++) { /* outer ones first */
        uint32_t outer = model->modules[m].parent;
        struct curve_work work = work_of(model, m);
        const struct probe *probe = probe_of(model, &model->modules[m]);
        const struct probe_batch *batch = probe ? batch_of(model, probe, ratio) : NULL;
        all.forward += outer == MODEL_NONE ? work.forward : 0;
        all.backward += outer == MODEL_NONE ? work.backward : 0;
        taken[m] = outer != MODEL_NONE && taken[outer];
        if (taken[m] || !batch)
            continue;
        taken[m] = true;
        probed.forward += work.forward;
        probed.backward += work.backward;
        const struct probe_cost *cost = &batch->cost;
        curve_add(&point->forward, work.forward,
                  probe_in_step(cost->forward, &cost->forward_bounds, launches));
        curve_add(&point->backward, work.backward,
                  probe_in_step(cost->backward, &cost->backward_bounds, launches));
    }
    curve_over(&point->forward, probed.forward);
    curve_over(&point->backward, probed.backward);
    point->forward = with_page_faults(point->forward, faults, ratio);
    point->backward = with_page_faults(point->backward, faults, ratio);
    return probed.forward + probed.backward > LEAST_PROBED * (all.forward + all.backward);
}

void learn_batch_curve(struct dpro_model *model)
{
    const struct dpro_probes *probes = model->probes;
    SCRATCH ARRAY(struct batch_point) points = {0};
    struct batch_point point = {1, {1, 0}, {1, 0}};
    model->n_batch_points = 0;
    array_push(&points, point);
    for (size_t b = 0; probes && b < probes->batches.n; b++) {
        bool known = false;
        for (size_t i = 0; i < points.n; i++)
            known |= points.at[i].ratio == probes->batches.at[b].ratio;
        if (!known && measure_point(model, probes->batches.at[b].ratio, &point))
            array_push(&points, point);
    }
    if (points.n > 1) {
        array_sort(&points, by_ratio);
        model->n_batch_points = (uint32_t)points.n;
        model->batch_points = arena_copy(&model->arena, points.at, points.n, sizeof *points.at);
    }
}
