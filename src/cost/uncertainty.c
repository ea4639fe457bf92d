/* cost/uncertainty.c: what is known of a prediction's error: the standard errors of the numbers
 * that were learnt, how far the model is from the iteration that it learnt from, how much those
 * iterations differ; and of what no recording shows, a usual value. */
#include "cost/uncertainty.h"

#include <math.h>

#include "base/error.h"
#include "cost/evaluate.h"
#include "cost/numbers.h"
#include "cost/sync.h"

/* Of a gain. Of plans that were run in the jobs that they were made for, gains of 9 to 34 % were
 * off by a sixth in the middle. */
#define USUAL_ERROR 0.15

int uncertainty_time(const struct dpro_model *model, int64_t *iteration_ns, struct dpro_error *err)
{
    struct evaluator *evaluator;
    int rc = evaluator_create(model, &evaluator, err);
    if (rc < 0)
        return rc;
    *iteration_ns = evaluate(evaluator, &model->own);
    evaluator_destroy(evaluator);
    return *iteration_ns < INT64_MAX
               ? 0
               : dpro_error_set(err, DPRO_EUSAGE,
                                "an iteration of the changed job never ends; change less");
}

/* How far the predictions and the speedup move when each number of the net that was learnt moves by
 * its standard error; these are independent. Squares. */
static int add_errors_of_net(const struct dpro_model *before, const struct dpro_model *after,
                             struct uncertainty *squares, struct dpro_error *err)
{
    struct dpro_model models[2] = {*before, *after};
    for (size_t p = 0; p < N_MODEL_NUMBERS; p++) {
        double times[2][2]; /* model, lower and upper */
        for (int m = 0; m < 2; m++) {
            struct dpro_estimate *number = model_number(&models[m].net, p);
            struct dpro_estimate learnt = *number;
            for (int up = 0; up < 2; up++) {
                int64_t ns = 0;
                number->value = learnt.value + (up ? learnt.std : -learnt.std);
                number->value = number->value > 0 ? number->value : 0;
                int rc = uncertainty_time(&models[m], &ns, err);
                if (rc < 0)
                    return rc;
                times[m][up] = (double)ns;
            }
            *number = learnt;
        }
        double moved[3] = {
            (times[0][1] - times[0][0]) / (times[0][1] + times[0][0]),
            (times[1][1] - times[1][0]) / (times[1][1] + times[1][0]),
            (times[0][1] / times[1][1] - times[0][0] / times[1][0]) / 2,
        };
        squares->before += moved[0] * moved[0];
        squares->after += moved[1] * moved[1];
        squares->speedup += moved[2] * moved[2];
    }
    return 0;
}

int uncertainty_of(const struct dpro_model *before, const struct dpro_model *after,
                   struct uncertainty *uncertainty, struct dpro_error *err)
{
    struct uncertainty squares = {.misfit = 0};
    int64_t before_ns = 0, after_ns = 0;
    int rc = add_errors_of_net(before, after, &squares, err);
    if (rc == 0)
        rc = uncertainty_time(before, &before_ns, err);
    if (rc == 0)
        rc = uncertainty_time(after, &after_ns, err);
    if (rc < 0)
        return rc;
    double gain = (double)before_ns / (double)after_ns - 1;
    if (before->measured_ns > 0) { /* a generated job is what its model says */
        double measured = (double)before->measured_ns;
        double noise = before->n_samples > 1
                           ? before->measured_std_ns / measured / sqrt(before->n_samples)
                           : 0;
        squares.misfit = (double)before_ns / measured - 1;
        double own = squares.misfit * squares.misfit + noise * noise;
        squares.before += own;
        squares.after += own;
        squares.speedup += (own + USUAL_ERROR * USUAL_ERROR) * gain * gain;
        if (sync_n_servers(&before->net) != sync_n_servers(&after->net)) {
            double other = UNCERTAINTY_SERVERS * (1 + gain);
            squares.after += UNCERTAINTY_SERVERS * UNCERTAINTY_SERVERS;
            squares.speedup += other * other;
        }
    }
    *uncertainty = (struct uncertainty){sqrt(squares.before), sqrt(squares.after),
                                        sqrt(squares.speedup), squares.misfit};
    return 0;
}
