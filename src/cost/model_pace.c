/* Compares the model with measured times: how long iterations took, how much the machine varies,
 * and how much faster the job runs without the profiler. */
#include <math.h>

#include "base/error.h"
#include "base/stats.h"
#include "cost/cost.h"
#include "cost/evaluate.h"
#include "cost/uncertainty.h"

/* Of a job on a machine that nothing is known of, how much one run's iterations differ from those
 * of another, relative: blocks of 10 to 50 steps before and after 14 recordings of one machine
 * differed by 4.5 % (root mean square). That counts as much as PRIOR_STEPS steps that were seen.
 * What was seen counts as at most MOST_STEPS, as what varies within seconds tells little of what
 * varies within hours. */
#define PRIOR_MACHINE_STD 0.045
enum { PRIOR_STEPS = 5, MOST_STEPS = 10 };

/* The machine at another time. On shared machines the noise of iterations has no time scale: means
 * of blocks of steps differ about as much as single steps do. So the spread of those that were seen
 * is the estimate, pulled towards the prior where they are few; of its Student's t distribution the
 * standard deviation. The profiled and the unprofiled steps of a recording are two such blocks:
 * their relative difference, `apart`, is one more sample. */
static double machine_std(const struct dpro_model *model, uint32_t n_measured,
                          const struct dpro_unprofiled *unprofiled, double apart)
{
    struct {
        double std, n;
    } seen[2] = {{0, 0}, {0, 0}};
    if (n_measured > 1 && model->measured_ns > 0) {
        seen[0].std = model->measured_std_ns / (double)model->measured_ns;
        seen[0].n = n_measured - 1;
    }
    if (unprofiled && unprofiled->n_steps > 1 && unprofiled->mean_ns > 0 &&
        unprofiled->std_ns >= 0) {
        seen[1].std = (double)unprofiled->std_ns / (double)unprofiled->mean_ns;
        seen[1].n = unprofiled->n_steps - 1;
    }
    double n = seen[0].n + seen[1].n, most = n > MOST_STEPS ? MOST_STEPS : n;
    double squares = PRIOR_STEPS * PRIOR_MACHINE_STD * PRIOR_MACHINE_STD, freedom = PRIOR_STEPS;
    for (int i = 0; i < 2 && n > 0; i++)
        squares += seen[i].n * most / n * seen[i].std * seen[i].std;
    freedom += most;
    if (apart != 0) {
        squares += apart * apart / 2;
        freedom++;
    }
    return sqrt(squares / (freedom - 2));
}

/* Enough steps were timed without the profiler, and they were the same work. */
static bool tells_of_job(const struct dpro_unprofiled *unprofiled, double profiled_ns)
{
    enum { LEAST_STEPS = 5, MOST_APART = 2 };
    return unprofiled && unprofiled->n_steps >= LEAST_STEPS &&
           (double)unprofiled->median_ns < MOST_APART * profiled_ns &&
           (double)unprofiled->median_ns * MOST_APART > profiled_ns;
}

void measure_iterations(const struct dpro_graph *g, const struct dpro_model_options *options,
                        struct dpro_model *model)
{
    uint32_t n;
    const int64_t *measured = dpro_graph_measured_ns(g, &n);
    const struct dpro_unprofiled *unprofiled = options ? options->unprofiled : NULL;
    double profiler_ns = options ? (double)options->profiler_ns : 0, squares = 0, products = 0;
    double *values = arena_array(&model->arena, n, sizeof *values);
    struct mean_std all = stats_mean_std_i64(measured, n);
    for (uint32_t i = 0; i < n; i++) {
        values[i] = (double)measured[i] - all.mean;
        squares += values[i] * values[i];
        if (i > 0)
            products += values[i] * values[i - 1];
    }
    model->measured_ns = llround(all.mean);
    if (options && options->profiler_ns < model->measured_ns)
        model->measured_ns -= options->profiler_ns;
    model->measured_std_ns = all.std;
    model->page_faults = unprofiled && unprofiled->n_steps > 0 ? unprofiled->page_faults : -1;
    model->cpu_ns = unprofiled && unprofiled->n_steps > 0 ? unprofiled->cpu_ns : -1;
    model->correlation = squares > 0 && products > 0 ? products / squares : 0;
    /* one odd iteration says nothing: the median counts */
    double median = n > 0 ? all.mean + stats_median(values, n) : 0;
    if (profiler_ns < median)
        median -= profiler_ns;
    model->median_ns = llround(median);
    if (dpro_graph_steps_tell(g) && tells_of_job(unprofiled, median))
        model->unprofiled_ns = unprofiled->median_ns;
    double apart = model->unprofiled_ns ? (double)model->unprofiled_ns / median - 1 : 0;
    model->machine_std = machine_std(model, n, unprofiled, apart);
}

/* What a profiler adds, and what the machine's pace changes, is computation more than
 * communication: the ratio of their variances. */
#define PACE_WORK 4.0

/* A model that is further off is of another job. */
#define MOST_MISFIT 1.0

static double time_at_pace(struct dpro_model *model, struct model_pace pace)
{
    struct dpro_model paced = *model;
    model_net_scale(&paced.net, pace.net);
    for (uint32_t r = 0; r < model->n_ranks; r++)
        model->ranks[r].work_scale = pace.work;
    double ns = (double)evaluate_once(&paced);
    for (uint32_t r = 0; r < model->n_ranks; r++)
        model->ranks[r].work_scale = 1;
    return ns;
}

void set_pace(struct dpro_model *model, struct model_pace pace)
{
    model->pace = pace;
    model_net_scale(&model->net, pace.net);
    for (uint32_t p = 0; p < model->n_programs; p++)
        for (uint32_t i = 0; i < model->programs[p].n_ops; i++) {
            struct model_op *op = &model->programs[p].ops[i];
            op->work_ns = llround(pace.work * (double)op->work_ns);
            op->beside_ns = llround(pace.work * (double)op->beside_ns);
            op->once_ns = llround(pace.work * (double)op->once_ns);
            op->fixed_ns = llround(pace.work * (double)op->fixed_ns);
        }
    for (uint32_t p = 0; p < model->n_programs; p++)
        for (uint32_t c = 0; c < model->programs[p].n_calls; c++) {
            struct model_call *call = &model->programs[p].calls[c];
            call->recompute_ns = llround(pace.work * (double)call->recompute_ns);
            call->forward_ns = llround(pace.work * (double)call->forward_ns);
            call->backward_ns = llround(pace.work * (double)call->backward_ns);
        }
    for (uint32_t i = 0; i < model->n_modules; i++)
        model->modules[i].recompute_ns =
            llround(pace.work * (double)model->modules[i].recompute_ns);
}

/* In which proportion computation and communication change when an iteration does: the likeliest of
 * those that explain it, where each has its own standard deviation. */
static struct model_pace pace_direction(struct dpro_model *model, double ns)
{
    static const double STEP = 0.02;
    double slower_work = time_at_pace(model, (struct model_pace){1 + STEP, 1});
    double slower_net = time_at_pace(model, (struct model_pace){1, 1 + STEP});
    double work = fmax(slower_work - ns, 0) / (STEP * ns),
           net = fmax(slower_net - ns, 0) / (STEP * ns);
    double all = PACE_WORK * work * work + net * net;
    return all > 0 ? (struct model_pace){PACE_WORK * work / all, net / all}
                   : (struct model_pace){0, 0};
}

struct model_pace pace_of_changed(struct dpro_model *changed, const struct dpro_model *recorded,
                                  double ratio)
{
    enum { ROUNDS = 8 };
    static const double SAME = 1e-6;
    struct model_pace pace = recorded->pace;
    int64_t job_ns = recorded->unprofiled_ns ? recorded->unprofiled_ns : recorded->median_ns;
    double target_ns = ratio * (1 + recorded->misfit) * (double)job_ns;
    for (int round = 0; round < ROUNDS; round++) {
        double ns = time_at_pace(changed, pace), scale = target_ns / ns;
        if (fabs(target_ns - ns) <= 1) /* times are whole */
            break;
        if (!(scale > 1e-3 && scale < 1e3))
            return recorded->pace;
        if (fabs(scale - 1) < SAME)
            break;
        pace = (struct model_pace){scale * pace.work, scale * pace.net};
    }
    return pace;
}

static double within_pace(double ratio)
{
    return ratio > 2 ? 2 : ratio < 0.5 ? 0.5 : ratio;
}

int fit_pace(struct dpro_model *model, struct dpro_error *err)
{
    enum { MOST_ROUNDS = 8 };
    struct model_pace pace = {1, 1};
    double ns = time_at_pace(model, pace), along = 0, slope = ns;
    if (ns >= (double)INT64_MAX)
        return dpro_error_set(err, DPRO_EUSAGE,
                              "an iteration of the job's model never ends: ranks wait for each "
                              "other, as where sends and receives were matched wrongly; 'dpro "
                              "replay' works with the trace");
    if (model->median_ns <= 0)
        return 0;
    model->misfit = ns / (double)model->median_ns - 1;
    if (model->misfit > MOST_MISFIT || model->misfit < -1 + 1 / (1 + MOST_MISFIT))
        return dpro_error_set(err, DPRO_EEMPTY,
                              "the model of the job takes %.3g times the measured iteration, so "
                              "that it can't tell what changes do; does 'dpro replay' warn of the "
                              "trace?",
                              1 + model->misfit);
    if (model->unprofiled_ns == 0)
        return 0;
    double job_ns = (1 + model->misfit) * (double)model->unprofiled_ns;
    struct model_pace direction = pace_direction(model, ns);
    for (int round = 0; round < MOST_ROUNDS; round++) {
        double off = job_ns - ns, before = ns;
        if (fabs(off) < 1e-3 * job_ns || slope <= 0)
            break;
        double next = along + off / slope;
        pace = (struct model_pace){within_pace(1 + next * direction.work),
                                   within_pace(1 + next * direction.net)};
        ns = time_at_pace(model, pace);
        if (next == along)
            break;
        slope = (ns - before) / (next - along);
        along = next;
    }
    set_pace(model, pace);
    return 0;
}
