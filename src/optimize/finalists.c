/* Chooses the result among the best strategies, and its expected gain.
 *
 * The best of thousands of strategies profits from the model's errors, as learnt numbers are
 * estimates and the modelled iteration is a median. So all finalists (what any algorithm found on
 * its way, and the rows of the table) are evaluated in the same jobs, all that the recording
 * allows. The one with the least mean wins; among those about as good, the simplest. The promise is
 * its mean. Learnt numbers are never negative, so one learnt as 0 with an error has a mean above 0.
 */

#include "cost/buckets.h"
#include "cost/uncertainty.h"
#include "optimize/result.h"

#define WORTH_A_PLAN 0.005 /* by so much better than a setting, of a recorded job */
/* Likewise, than a job whose modules are computed as they are: compiling takes time, and numbers
 * change. */
#define WORTH_COMPUTING 0.01
#define EQUAL_ERRORS    0.5 /* paired standard errors, within which two are equally fast */
#define HOPELESS        0.05

enum {
    OF_BASELINE,
    OF_BEST,
    OF_DEFAULTS,
    MOST_LISTED = OF_DEFAULTS + N_DEFAULTS + 2 + MOST_COMPUTING_CHOICES
};
/* Beside numbers of the net: what the ways to compute modules cost, all of them. */
enum { NUMBER_OF_COMPUTING = N_MODEL_NUMBERS };

struct finalist {
    struct dpro_strategy strategy;
    const char *name, *text; /* name NULL: the job's own, or the best that was found */
    bool is_alone;           /* the best of communication alone */
    bool is_computed;        /* modules are computed otherwise than they are */
    bool is_out;             /* takes too long to be chosen, whatever the numbers may be */
    double *shares;          /* [n_draws] of what the job's own strategy takes there */
    double expected;         /* mean of them all */
};

/* The jobs that the recording allows: the model; the model with each learnt number a standard error
 * lower and higher; the model with each measured iteration's computation. */
struct finals {
    struct arena arena;
    const struct dpro_model *model;
    uint32_t n_numbers, n_samples, n_draws, n_ways;
    size_t *numbers; /* [n_numbers] those that have an error */
    struct finalist *finalists;
    struct finalist *tuned;         /* NULL, or Horovod's autotune */
    uint32_t n_finalists, n_listed; /* those after the listed ones are of the pool */
};

static void find_draws(struct finals *p)
{
    struct model_net net = p->model->net;
    p->numbers = arena_array(&p->arena, N_MODEL_NUMBERS + (size_t)1, sizeof *p->numbers);
    p->n_draws = 1;
    if (sync_n_servers(&net) > 0) /* whose queues magnify any error: the best guess alone */
        return;
    for (size_t i = 0; i < N_MODEL_NUMBERS; i++)
        if (model_number(&net, i)->std > 0)
            p->numbers[p->n_numbers++] = i;
    if (p->n_ways > 0)
        p->numbers[p->n_numbers++] = NUMBER_OF_COMPUTING;
    p->n_samples = p->model->n_samples > 1 ? p->model->n_samples : 0;
    p->n_draws += 2 * p->n_numbers + p->n_samples;
}

static struct finalist *add(struct finals *p, const struct dpro_strategy *strategy,
                            const char *name, const char *text)
{
    struct finalist *f = &p->finalists[p->n_finalists++];
    *f = (struct finalist){.name = name,
                           .text = text,
                           .is_computed = computing_is_changed(p->model, strategy),
                           .shares = arena_array(&p->arena, p->n_draws, sizeof *f->shares)};
    f->strategy = buckets_copy(p->model, strategy, &p->arena);
    f->strategy.n_fused = 0; /* no job can be given those */
    return f;
}

/* What people do, with the job's own buckets. */
static void add_ways(struct finals *p, struct space *space, const struct dpro_strategy *baseline)
{
    const struct search *search = space->search;
    struct dpro_strategy strategy = space_copy_of(space, baseline);
    if (search->alone)
        add(p, search->alone, "communication", "the best of communication alone")->is_alone = true;
    EACH_OF (const struct computing_choice, way, search->ways, search->n_ways) {
        memcpy(strategy.computing, way->computing, p->model->n_modules);
        if (way->is_usual && space_value(space, &strategy) < INT64_MAX)
            add(p, &strategy, way->name, way->text);
    }
}

/* What was found, the defaults that the job's stack can be given, and the pool: of a generated job,
 * which is what its model says, only for want of a best without fused ops. */
static void add_all(struct finals *p, struct space *space, const struct dpro_strategy *baseline)
{
    struct dpro_strategy strategy = space_strategy(space);
    bool pools = p->model->measured_ns > 0 || p->n_draws > 1 || space->best.n_fused > 0;
    size_t n_pool = pools ? space->search->pool.n : 0;
    p->finalists = arena_array(&p->arena, MOST_LISTED + n_pool, sizeof *p->finalists);
    add(p, baseline, NULL, NULL);
    add(p, &space->best, NULL, NULL);
    for (uint32_t i = 0; i < N_DEFAULTS; i++) {
        if (!default_is_within(&space->model->capabilities, i) || p->model->n_tensors == 0)
            continue;
        default_make(space->model, &space->work, i, &strategy);
        if (space_value(space, &strategy) == INT64_MAX)
            continue;
        if (strategy.fuses)
            evaluated_groups(space->workers[0].evaluator, &strategy);
        add(p, &strategy, default_strategies[i].name, default_strategies[i].text);
    }
    if (space->model->capabilities.stack == DPRO_STACK_HOROVOD && cycles_autotune(space, &strategy))
        p->tuned = add(p, &strategy, "autotune", NULL);
    add_ways(p, space, baseline);
    p->n_listed = p->n_finalists;
    for (size_t i = 0; i < n_pool; i++)
        add(p, &space->search->pool.at[i], NULL, NULL);
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
        modules[m] = p->model->modules[m];
        for (unsigned way = 1; way < DPRO_N_COMPUTINGS; way++) {
            struct computing_cost *cost = &modules[m].costs[way];
            cost->forward.value = fmax(0, cost->forward.value + errors * error_of(cost->forward));
            cost->backward.value =
                fmax(0, cost->backward.value + errors * error_of(cost->backward));
        }
    }
    job->modules = modules;
}

static void make_job(struct finals *p, uint32_t draw, struct model_rank *ranks,
                     struct dpro_model *job)
{
    *job = *p->model;
    job->ranks = ranks;
    for (uint32_t r = 0; r < job->n_ranks; r++)
        ranks[r] = p->model->ranks[r];
    size_t number = draw > 0 && draw <= 2 * p->n_numbers ? p->numbers[(draw - 1) / 2] : SIZE_MAX;
    if (number < N_MODEL_NUMBERS)
        uncertainty_move(p->model, number, draw % 2 ? -1 : 1, &p->arena, job);
    else if (number == NUMBER_OF_COMPUTING)
        move_computing(p, draw % 2 ? -1 : 1, job);
    uint32_t sample = draw - 1 - 2 * p->n_numbers;
    if (draw <= 2 * p->n_numbers)
        return;
    for (uint32_t r = 0; r < job->n_ranks; r++)
        if (ranks[r].sample_scale)
            ranks[r].work_scale *= ranks[r].sample_scale[sample];
    job->pause_ns = model_sample_pause(ranks, job->n_ranks, sample);
}

/* To the second order in each number; iterations differ in computation alone. */
static double mean_of(const struct finals *p, const double *shares)
{
    double mean = shares[0], samples = 0;
    for (uint32_t i = 0; i < p->n_numbers; i++)
        mean += (shares[1 + 2 * i] + shares[2 + 2 * i]) / 2 - shares[0];
    for (uint32_t s = 0; s < p->n_samples; s++)
        samples += shares[1 + 2 * p->n_numbers + s] / p->n_samples;
    return p->n_samples > 0 ? mean + samples - shares[0] : mean;
}

/* By the model itself, which the other jobs are near. */
static void leave_out_hopeless(struct finals *p)
{
    double least = INFINITY;
    for (uint32_t f = 0; f < p->n_finalists; f++)
        least = fmin(least, p->finalists[f].shares[0]);
    for (uint32_t f = p->n_listed; f < p->n_finalists; f++)
        p->finalists[f].is_out = p->finalists[f].shares[0] > least * (1 + HOPELESS);
}

static void evaluate_all(struct finals *p)
{
    struct model_rank *ranks = arena_array(&p->arena, p->model->n_ranks, sizeof *ranks);
    for (uint32_t draw = 0; draw < p->n_draws; draw++) {
        struct dpro_model job;
        make_job(p, draw, ranks, &job);
        struct evaluator *evaluator = evaluator_create(&job);
        double baseline = (double)evaluate(evaluator, &p->finalists[OF_BASELINE].strategy);
        for (uint32_t f = 0; f < p->n_finalists; f++)
            if (!p->finalists[f].is_out)
                p->finalists[f].shares[draw] =
                    (double)evaluate(evaluator, &p->finalists[f].strategy) / baseline;
        evaluator_destroy(evaluator);
        if (draw == 0)
            leave_out_hopeless(p);
    }
    for (uint32_t f = 0; f < p->n_finalists; f++)
        p->finalists[f].expected =
            p->finalists[f].is_out ? INFINITY : mean_of(p, p->finalists[f].shares);
}

/* Within its bounds it finds what is listed, too, if that is better in all jobs together. */
static void tune(struct finals *p)
{
    struct finalist *tuned = p->tuned;
    uint64_t bytes = 0; /* no more than all is fused */
    for (uint32_t t = 0; t < p->model->n_tensors; t++)
        bytes += p->model->tensors[t].size_bytes;
    for (const struct finalist *f = p->finalists; f < p->finalists + p->n_listed; f++) {
        const struct dpro_strategy *s = &f->strategy;
        if (s->fuses && s->cycle_ns >= 1000000 && s->cycle_ns <= 100000000 &&
            (s->fusion_bytes <= 64 << 20 || bytes <= 64 << 20) && f->expected < tuned->expected)
            *tuned =
                (struct finalist){*s, "autotune", .shares = f->shares, .expected = f->expected};
    }
    tuned->text = arena_format(&p->arena, "Horovod's autotune at best: %.3g ms, up to %.0f MiB",
                               (double)tuned->strategy.cycle_ns * 1e-6,
                               fmin(64, (double)tuned->strategy.fusion_bytes / (1 << 20)));
}

/* One standard error of what one is expected to take less than the other, as a share of an
 * iteration. */
static double doubt_of(const struct finals *p, const struct finalist *best,
                       const struct finalist *other)
{
    const double *x = best->shares, *y = other->shares;
    uint32_t first = 1 + 2 * p->n_numbers; /* of the samples */
    double squares = 0, mean = 0, spread = 0;
    for (uint32_t i = 1; i < first; i += 2) {
        double lower = y[i] - x[i], upper = y[i + 1] - x[i + 1];
        squares += (upper - lower) * (upper - lower) / 4;
    }
    for (uint32_t s = first; s < p->n_draws; s++)
        mean += (y[s] - x[s]) / p->n_samples;
    for (uint32_t s = first; s < p->n_draws; s++)
        spread += (y[s] - x[s] - mean) * (y[s] - x[s] - mean);
    if (p->n_samples > 0) /* of their mean */
        squares += spread / (p->n_samples - 1) / p->n_samples;
    return sqrt(squares);
}

/* Whether a DDP job is given it by one argument. */
static bool is_setting(const struct dpro_model *model, const struct finalist *f)
{
    return model->capabilities.stack == DPRO_STACK_DDP && f->name &&
           strncmp(f->name, "cap-", 4) == 0;
}

/* Whether the model's best, or one of the pool, computes modules otherwise for a gain that is sure,
 * as far as the recording and the probe can tell. */
static bool computing_is_worth(const struct finals *p, bool may_keep)
{
    const struct finalist *computed = NULL, *plain = NULL;
    for (uint32_t i = may_keep ? OF_BASELINE : OF_BEST; i < p->n_finalists; i++) {
        const struct finalist *f = &p->finalists[i], **best = f->is_computed ? &computed : &plain;
        if (!*best || f->expected < (*best)->expected)
            *best = f;
    }
    if (!computed || !plain)
        return computed != NULL;
    double least = p->model->measured_ns > 0 ? WORTH_COMPUTING : 0;
    return plain->expected - computed->expected > fmax(doubt_of(p, computed, plain), least);
}

static const struct finalist *best_of(const struct finals *p, bool may_keep)
{
    bool computes = computing_is_worth(p, may_keep);
    const struct finalist *best = NULL;
    for (uint32_t i = may_keep ? OF_BASELINE : OF_BEST; i < p->n_finalists; i++) {
        const struct finalist *f = &p->finalists[i];
        if ((computes || !f->is_computed) && (!best || f->expected < best->expected))
            best = f;
    }
    return best;
}

/* A setting needs no plan in the job, and plain buckets are safer there than what else a plan can
 * say. Of settings the one with the largest buckets is the simplest, as few messages cost least. */
enum { AS_IT_RAN, A_SETTING, PLAIN, NOT_PLAIN, COMPUTED };

static int kind_of(const struct finals *p, const struct finalist *f)
{
    if (f == &p->finalists[OF_BASELINE])
        return AS_IT_RAN;
    if (f->is_computed)
        return COMPUTED;
    if (is_setting(p->model, f) || f->strategy.fuses)
        return A_SETTING;
    return space_is_plain(p->model, &f->strategy) ? PLAIN : NOT_PLAIN;
}

static bool is_simpler(const struct finals *p, const struct finalist *a, const struct finalist *b)
{
    int kind = kind_of(p, a), other = kind_of(p, b);
    if (kind != other)
        return kind < other;
    if (kind == A_SETTING)
        return a > b; /* in order of their caps */
    bool simplified = a == &p->finalists[OF_BEST], other_is = b == &p->finalists[OF_BEST];
    return simplified != other_is ? simplified : a->expected < b->expected;
}

/* The simplest of those that are as good as the best, as far as the recording can tell. Of a
 * generated job that has no errors, as good is exactly as good. */
static const struct finalist *choose(const struct finals *p, bool may_keep)
{
    const struct finalist *best = best_of(p, may_keep), *chosen = best;
    double least = p->model->measured_ns > 0 ? WORTH_A_PLAN * best->expected : 0;
    for (uint32_t i = OF_BEST; i < p->n_finalists && best != &p->finalists[OF_BASELINE]; i++) {
        const struct finalist *f = &p->finalists[i];
        double worse = f->expected - best->expected;
        if ((best->is_computed || !f->is_computed) && (f->expected < 1 || !may_keep) &&
            worse <= fmax(EQUAL_ERRORS * doubt_of(p, best, f), least) && is_simpler(p, f, chosen))
            chosen = f;
    }
    return chosen;
}

/* Makes it the best strategy, with the ops that the search has fused if they win anything beside
 * its buckets. Returns the ratio of its time with them to that without, by the model. */
static double take(const struct finals *p, struct space *space, const struct finalist *chosen)
{
    struct dpro_strategy fused = space_copy_of(space, &space->best);
    struct evaluator *evaluator = space->workers[0].evaluator;
    int64_t apart_ns = evaluate(evaluator, &chosen->strategy), ns = apart_ns;
    if (fused.n_fused > 0 && chosen != &p->finalists[OF_BASELINE]) {
        struct dpro_strategy tried = space_copy_of(space, &chosen->strategy);
        tried.n_fused = fused.n_fused;
        memcpy(tried.fused, fused.fused, fused.n_fused * sizeof *tried.fused);
        ns = evaluate(evaluator, &tried);
        if (ns < apart_ns) {
            space_copy(space, &tried, &space->best);
            return (double)ns / (double)apart_ns;
        }
    }
    space_copy(space, &chosen->strategy, &space->best);
    return 1;
}

/* Reports times as expected over all jobs, of the result and of all that it is compared with. */
static void promise(const struct finals *p, struct space *space, struct dpro_optimum *o)
{
    double baseline_ns = (double)space->search->baseline_ns;
    bool chooses = space->search->options->algorithm == DPRO_ALGORITHM_DEFAULT;
    bool may_keep = !o->memory.is_needed;
    const struct finalist *best = best_of(p, may_keep);
    const struct finalist *chosen = choose(p, may_keep);
    if (!chooses) /* what that algorithm found */
        chosen = best = &p->finalists[OF_BEST];
    if (!o->memory.fits) /* nothing is of any use */
        chosen = best = &p->finalists[OF_BASELINE];
    o->summary.apart_ns = llround(baseline_ns * chosen->expected);
    o->summary.found_ns = llround(baseline_ns * best->expected);
    o->summary.setting = is_setting(p->model, chosen) ? chosen->text : NULL;
    o->summary.best_ns = llround(baseline_ns * chosen->expected * take(p, space, chosen));
    if (o->memory.is_needed && o->memory.fits)
        memory_search_tell(&o->memory, chosen->is_computed);
    for (uint32_t i = OF_DEFAULTS; i < p->n_listed; i++) {
        const struct finalist *f = &p->finalists[i];
        struct dpro_model planned = *p->model;
        planned.baseline = f->strategy;
        struct uncertainty unsure =
            uncertainty_of(o->models[DPRO_BASELINE], &planned, &(struct change_beside){0});
        struct dpro_baseline entry = {.name = f->name,
                                      .text =
                                          arena_copy_string(&o->arena, f->text, strlen(f->text)),
                                      .iteration_ns = llround(baseline_ns * f->expected),
                                      .n_buckets = f->strategy.n_buckets,
                                      .computes = f->is_computed,
                                      .uncertainty_pct = 100 * unsure.speedup};
        array_push(&o->baselines, entry);
        if (f->is_alone)
            o->computing.communication_ns = entry.iteration_ns;
    }
}

void result_choose(struct dpro_optimum *o, struct space *space)
{
    struct finals finals = {.model = space->model, .n_ways = space->search->n_ways};
    find_draws(&finals);
    add_all(&finals, space, &o->models[DPRO_BEST]->baseline);
    evaluate_all(&finals);
    if (finals.tuned)
        tune(&finals);
    promise(&finals, space, o);
    arena_fini(&finals.arena);
}
