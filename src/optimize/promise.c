/* optimize/promise.c: what a strategy is expected to bring.
 *
 * The best of thousands by one model is chosen for that model's errors, too: it relies on numbers
 * that are estimates, and on an iteration that is the median of several. So those that are left at
 * the end are evaluated again in all jobs that the recording allows, and what is promised is the
 * mean over these. A learnt number is never below 0: of one that was learnt as 0 with an error, the
 * mean is above 0. */
#include "optimize/promise.h"

#include <math.h>

#include "cost/buckets.h"
#include "cost/evaluate.h"
#include "cost/numbers.h"
#include "cost/sync.h"
#include "cost/uncertainty.h"

int promise_init(struct promise *p, const struct dpro_model *model, uint32_t most)
{
    *p = (struct promise){.model = model};
    p->numbers = arena_array(&p->arena, N_MODEL_NUMBERS, sizeof *p->numbers);
    p->finalists = arena_array(&p->arena, most + (size_t)1, sizeof *p->finalists);
    if (!p->numbers || !p->finalists)
        return -1;
    struct model_net net = model->net;
    p->n_draws = 1;
    if (sync_n_servers(&net) > 0) /* whose queues magnify any error: the best guess alone */
        return 0;
    for (size_t i = 0; i < N_MODEL_NUMBERS; i++)
        if (model_number(&net, i)->std > 0)
            p->numbers[p->n_numbers++] = i;
    p->n_samples = model->n_samples > 1 ? model->n_samples : 0;
    p->n_draws += 2 * p->n_numbers + p->n_samples;
    return 0;
}

void promise_fini(struct promise *p)
{
    arena_fini(&p->arena);
}

uint32_t promise_add(struct promise *p, const struct dpro_strategy *strategy)
{
    struct dpro_strategy *copy = arena_array(&p->arena, 1, sizeof *copy);
    struct finalist *f = &p->finalists[p->n_finalists];
    f->shares = arena_array(&p->arena, p->n_draws, sizeof *f->shares);
    if (!copy || !f->shares || buckets_copy(p->model, strategy, &p->arena, copy) < 0)
        return UINT32_MAX;
    f->strategy = copy;
    return p->n_finalists++;
}

/* One of the jobs. */
static int make_job(struct promise *p, uint32_t draw, struct model_rank *ranks,
                    struct dpro_model *job)
{
    *job = *p->model;
    job->ranks = ranks;
    for (uint32_t r = 0; r < job->n_ranks; r++)
        ranks[r] = p->model->ranks[r];
    if (draw == 0)
        return 0;
    if (draw <= 2 * p->n_numbers)
        return uncertainty_move(p->model, p->numbers[(draw - 1) / 2], draw % 2 ? -1 : 1, &p->arena,
                                job);
    for (uint32_t r = 0; r < job->n_ranks; r++)
        if (ranks[r].sample_scale)
            ranks[r].work_scale *= ranks[r].sample_scale[draw - 1 - 2 * p->n_numbers];
    return 0;
}

/* To the second order in each number; iterations differ in computation alone. */
static double mean_of(const struct promise *p, const double *shares)
{
    double mean = shares[0], samples = 0;
    for (uint32_t i = 0; i < p->n_numbers; i++)
        mean += (shares[1 + 2 * i] + shares[2 + 2 * i]) / 2 - shares[0];
    for (uint32_t s = 0; s < p->n_samples; s++)
        samples += shares[1 + 2 * p->n_numbers + s] / p->n_samples;
    return p->n_samples > 0 ? mean + samples - shares[0] : mean;
}

int promise_evaluate(struct promise *p)
{
    struct model_rank *ranks = arena_array(&p->arena, p->model->n_ranks + (size_t)1, sizeof *ranks);
    if (!ranks)
        return -1;
    for (uint32_t draw = 0; draw < p->n_draws; draw++) {
        struct dpro_model job;
        struct evaluator *evaluator;
        if (make_job(p, draw, ranks, &job) < 0 || evaluator_create(&job, &evaluator, NULL) < 0)
            return -1;
        double own = (double)evaluate(evaluator, p->finalists[0].strategy);
        bool failed = evaluator_failed(evaluator);
        for (uint32_t f = 0; f < p->n_finalists; f++) {
            p->finalists[f].shares[draw] =
                (double)evaluate(evaluator, p->finalists[f].strategy) / own;
            failed |= evaluator_failed(evaluator);
        }
        evaluator_destroy(evaluator);
        if (failed)
            return -1;
    }
    for (uint32_t f = 0; f < p->n_finalists; f++)
        p->finalists[f].expected = mean_of(p, p->finalists[f].shares);
    return 0;
}

double promise_doubt(const struct promise *p, uint32_t a, uint32_t b)
{
    const double *x = p->finalists[a].shares, *y = p->finalists[b].shares;
    double squares = 0, mean = 0, spread = 0;
    for (uint32_t i = 0; i < p->n_numbers; i++) {
        double lower = y[1 + 2 * i] - x[1 + 2 * i], upper = y[2 + 2 * i] - x[2 + 2 * i];
        squares += (upper - lower) * (upper - lower) / 4;
    }
    for (uint32_t s = 1 + 2 * p->n_numbers; s < p->n_draws; s++)
        mean += (y[s] - x[s]) / p->n_samples;
    for (uint32_t s = 1 + 2 * p->n_numbers; s < p->n_draws; s++)
        spread += (y[s] - x[s] - mean) * (y[s] - x[s] - mean);
    if (p->n_samples > 0) /* of their mean */
        squares += spread / (p->n_samples - 1) / p->n_samples;
    return sqrt(squares);
}
