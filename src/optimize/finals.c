/* Chooses among finalists by their expected time.
 *
 * The best of thousands of strategies profits from the model's errors, as learnt numbers are
 * estimates and the modelled iteration is a median. So all finalists are evaluated in the same
 * jobs, all that the recording allows. The one with the least mean wins; among those about as good,
 * the simplest. The promise is its mean. Learnt numbers are never negative, so one learnt as 0 with
 * an error has a mean above 0. */
#include "optimize/finals.h"

#include "cost/learn/uncertainty.h"
#include "cost/program/buckets.h"
#include "cost/program/sync.h"
#include "optimize/computing.h"

#define WORTH_A_PLAN 0.005 /* by so much better than a setting, of a recorded job */
/* Likewise, than a job whose modules are computed as they are: compiling takes time, and numbers
 * change. */
#define WORTH_COMPUTING 0.01
#define EQUAL_ERRORS    0.5 /* paired standard errors, within which two are equally fast */

/* Beside numbers of the net: what the ways to compute modules cost, all of them. */
enum { NUMBER_OF_COMPUTING = N_MODEL_NUMBERS };

void finals_init(struct finals *p, const struct dpro_model *model, bool computes)
{
    struct model_net net = model->net;
    *p = (struct finals){.model = model};
    p->numbers = arena_array(&p->arena, N_MODEL_NUMBERS + (size_t)1, sizeof *p->numbers);
    p->n_draws = 1;
    if (sync_n_servers(&net) > 0) /* whose queues magnify any error: the best guess alone */
        return;
    for (size_t i = 0; i < N_MODEL_NUMBERS; i++)
        if (model_number(&net, i)->std > 0)
            p->numbers[p->n_numbers++] = i;
    if (computes)
        p->numbers[p->n_numbers++] = NUMBER_OF_COMPUTING;
    p->n_samples = p->model->n_samples > 1 ? p->model->n_samples : 0;
    p->n_draws += 2 * p->n_numbers + p->n_samples;
}

struct finalist *finals_add(struct finals *p, const struct dpro_strategy *strategy,
                            const char *name, const char *text)
{
    struct finalist *f = &p->finalists[p->n_finalists++];
    *f = (struct finalist){.measured = {1, 1, false},
                           .name = name,
                           .text = text,
                           .is_computed = computing_is_changed(p->model, strategy),
                           .ns = arena_array(&p->arena, p->n_draws, sizeof *f->ns)};
    f->strategy = buckets_copy(p->model, strategy, &p->arena);
    return f;
}

static double error_of(struct dpro_estimate ratio)
{
    return ratio.std > 0 ? hypot(ratio.std, UNCERTAINTY_PROBE * ratio.value) : 0;
}

/* All ways so many standard errors dearer. */
static void move_computing(struct finals *p, double errors, struct dpro_model *job)
{
    struct model_module *modules =
        arena_array(&p->arena, job->n_modules + (size_t)1, sizeof *modules);
    for (uint32_t m = 0; m < job->n_modules; m++) {
        modules[m] = job->modules[m];
        for (unsigned way = 1; way < DPRO_N_COMPUTINGS; way++) {
            struct computing_cost *cost = &modules[m].costs[way];
            cost->forward.value = fmax(0, cost->forward.value + errors * error_of(cost->forward));
            cost->backward.value =
                fmax(0, cost->backward.value + errors * error_of(cost->backward));
        }
    }
    job->modules = modules;
}

static struct dpro_model finals_drawn(struct finals *p, uint32_t draw,
                                      const struct dpro_model *model)
{
    struct dpro_model job = *model;
    size_t number = draw > 0 && draw <= 2 * p->n_numbers ? p->numbers[(draw - 1) / 2] : SIZE_MAX;
    if (number < N_MODEL_NUMBERS)
        uncertainty_move(model, number, draw % 2 ? -1 : 1, &p->arena, &job);
    else if (number == NUMBER_OF_COMPUTING)
        move_computing(p, draw % 2 ? -1 : 1, &job);
    uint32_t sample = draw - 1 - 2 * p->n_numbers;
    if (draw <= 2 * p->n_numbers)
        return job;
    job.ranks = arena_copy(&p->arena, model->ranks, model->n_ranks, sizeof *job.ranks);
    EACH_OF (struct model_rank, rank, job.ranks, job.n_ranks)
        if (rank->sample_scale)
            rank->work_scale *= rank->sample_scale[sample];
    job.pause_ns = model_sample_pause(job.ranks, job.n_ranks, sample);
    return job;
}

double finals_share(const struct finals *p, const struct finalist *f, uint32_t draw)
{
    return f->ns[draw] / p->finalists[OF_BASELINE].ns[draw];
}

void finals_tell(const struct finals *p, const struct finalist *f, struct timed_job *job)
{
    for (uint32_t i = 0; i < p->n_numbers && !f->is_out; i++)
        if (p->numbers[i] < N_MODEL_NUMBERS)
            memcpy(job->moved_ns[p->numbers[i]], &f->ns[1 + 2 * i], sizeof job->moved_ns[0]);
}

/* To the second order in each number; iterations differ in computation alone. */
static double mean_of(const struct finals *p, const struct finalist *f)
{
    double own = finals_share(p, f, 0), mean = own, samples = 0;
    for (uint32_t i = 0; i < p->n_numbers; i++)
        mean += (finals_share(p, f, 1 + 2 * i) + finals_share(p, f, 2 + 2 * i)) / 2 - own;
    for (uint32_t s = 0; s < p->n_samples; s++)
        samples += finals_share(p, f, 1 + 2 * p->n_numbers + s) / p->n_samples;
    return p->n_samples > 0 ? mean + samples - own : mean;
}

/* By the model itself, which the other jobs are near. */
static void leave_out_hopeless(struct finals *p)
{
    double least = INFINITY;
    for (uint32_t f = 0; f < p->n_finalists; f++)
        least = fmin(least, p->finalists[f].ns[0]);
    for (uint32_t f = p->n_listed; f < p->n_finalists; f++)
        p->finalists[f].is_out = p->finalists[f].ns[0] > least * (1 + FINALS_HOPELESS);
}

/* Of another job than the one that ran, with each of its micro-batches. */
static int64_t evaluate_other(struct finals *p, uint32_t draw, const struct timed_job *other)
{
    struct dpro_model job = finals_drawn(p, draw, other->model);
    int64_t ns = evaluate_once(&job);
    if (other->n_others > 0) {
        job = finals_drawn(p, draw, other->others);
        job.pause_ns = 0; /* once an iteration */
        ns += other->n_others * evaluate_once(&job);
    }
    return ns;
}

void finals_evaluate(struct finals *p)
{
    for (uint32_t draw = 0; draw < p->n_draws; draw++) {
        struct dpro_model job = finals_drawn(p, draw, p->model);
        struct evaluator *evaluator = evaluator_create(&job);
        EACH_OF (struct finalist, f, p->finalists, p->n_finalists)
            if (!f->is_out && f->ns[draw] == 0)
                f->ns[draw] = (double)(f->job ? evaluate_other(p, draw, f->job)
                                              : evaluate_strategy(evaluator, &f->strategy));
        evaluator_destroy(evaluator);
        if (draw == 0)
            leave_out_hopeless(p);
    }
    EACH_OF (struct finalist, f, p->finalists, p->n_finalists)
        f->expected = f->is_out ? INFINITY : mean_of(p, f);
}

static double share_less(const struct finals *p, const struct finalist *best,
                         const struct finalist *other, uint32_t draw)
{
    return finals_share(p, other, draw) - finals_share(p, best, draw);
}

/* One standard error of what one is expected to take less than the other, as a share of an
 * iteration. */
static double doubt_of(const struct finals *p, const struct finalist *best,
                       const struct finalist *other)
{
    uint32_t first = 1 + 2 * p->n_numbers; /* of the samples */
    double squares = 0, mean = 0, spread = 0;
    for (uint32_t i = 1; i < first; i += 2) {
        double lower = share_less(p, best, other, i), upper = share_less(p, best, other, i + 1);
        squares += (upper - lower) * (upper - lower) / 4;
    }
    for (uint32_t s = first; s < p->n_draws; s++)
        mean += share_less(p, best, other, s) / p->n_samples;
    for (uint32_t s = first; s < p->n_draws; s++) {
        double off = share_less(p, best, other, s) - mean;
        spread += off * off;
    }
    if (p->n_samples > 0) /* of their mean */
        squares += spread / (p->n_samples - 1) / p->n_samples;
    return sqrt(squares) * fmax(best->measured.left, other->measured.left);
}

/* Modules are computed otherwise for a gain that is sure, as far as the recording and the probe can
 * tell. */
const struct finalist *finals_best(const struct finals *p, bool may_keep)
{
    const struct finalist *computed = NULL, *plain = NULL;
    double least = p->model->measured_ns > 0 ? WORTH_COMPUTING : 0;
    for (uint32_t i = may_keep ? OF_BASELINE : OF_BEST; i < p->n_finalists; i++) {
        const struct finalist *f = &p->finalists[i], **best = f->is_computed ? &computed : &plain;
        if (!f->is_barred && (!*best || f->expected < (*best)->expected))
            *best = f;
    }
    if (!computed || !plain)
        return computed ? computed : plain;
    bool sure = plain->expected - computed->expected > fmax(doubt_of(p, computed, plain), least);
    return sure ? computed : plain;
}

static bool is_simpler(const struct finals *p, const struct finalist *a, const struct finalist *b)
{
    if (a->kind != b->kind)
        return a->kind < b->kind;
    if (a->kind == A_SETTING)
        return a > b; /* in order of their caps */
    bool simplified = a == &p->finalists[OF_BEST], other_is = b == &p->finalists[OF_BEST];
    return simplified != other_is ? simplified : a->expected < b->expected;
}

/* The simplest of those that are as good as the best, as far as the recording can tell. Of a
 * generated job that has no errors, as good is exactly as good. */
const struct finalist *finals_choose(const struct finals *p, bool may_keep)
{
    const struct finalist *best = finals_best(p, may_keep), *chosen = best;
    double least = p->model->measured_ns > 0 ? WORTH_A_PLAN * best->expected : 0;
    for (uint32_t i = OF_BEST; i < p->n_finalists && best != &p->finalists[OF_BASELINE]; i++) {
        const struct finalist *f = &p->finalists[i];
        double worse = f->expected - best->expected;
        if (!f->is_barred && (best->is_computed || !f->is_computed) &&
            (f->expected < 1 || !may_keep) &&
            worse <= fmax(EQUAL_ERRORS * doubt_of(p, best, f), least) && is_simpler(p, f, chosen))
            chosen = f;
    }
    return chosen;
}
