/* Compares the model with measured times: how long iterations took, how much the machine varies,
 * and how much faster the job runs without the profiler. */

#include "cost/learn/uncertainty.h"
#include "cost/program/cost.h"
#include "cost/program/evaluate.h"
#include "cost/program/program_writer.h"
#include "replay/job_time.h"

void measure_iterations(const struct dpro_graph *g, const struct dpro_model_options *options,
                        struct dpro_model *model)
{
    uint32_t n;
    const int64_t *measured = dpro_graph_measured_ns(g, &n);
    struct mean_std all = stats_mean_std_i64(measured, n);
    bool counted = g->unprofiled.n_steps > 0;
    model->measured_ns = llround(all.mean);
    model->measured_std_ns = all.std;
    model->profiler_ns = options ? options->profiler_ns : 0;
    model->page_faults = counted ? g->unprofiled.page_faults : -1;
    model->cpu_ns = counted ? g->unprofiled.cpu_ns : -1;
}

/* The job's time without dpro, which all commands call the same. */
static void find_job(const struct dpro_graph *g, struct dpro_model *model)
{
    struct job_doubt doubt;
    int64_t replay_ns = 0;
    if (model->measured_ns <= 0)
        return;
    model->job = job_time_of(g, replay_ns, model->profiler_ns, &doubt);
    if (model->job.source != DPRO_JOB_OWN_STEPS) {
        struct dpro_error why;
        fail_on(dpro_replay_predict(g, NULL, &replay_ns, &why), &why);
        model->job = job_time_of(g, replay_ns, model->profiler_ns, &doubt);
    }
    uint32_t n;
    const int64_t *measured = dpro_graph_measured_ns(g, &n);
    if (n == model->n_samples) {
        model->sample_ns = arena_array(&model->arena, n, sizeof *model->sample_ns);
        for (uint32_t s = 0; s < n; s++)
            model->sample_ns[s] = scaled_ns(doubt.without, measured[s]);
    }
    model->median_ns = doubt.median_ns;
    model->job_noise = doubt.noise;
    model->usual_noise = doubt.of_usual;
    model->machine_std = doubt.machine;
}

/* What a profiler adds, and what the machine's pace changes, is computation more than
 * communication: the ratio of their variances. */
#define PACE_WORK 4.0

/* Pauses are told of from this share of an iteration on, and are at most that. */
#define PAUSES_TO_TELL 0.02
#define MOST_PAUSES    0.9

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
    EACH_OF (struct model_program, p, model->programs, model->n_programs) {
        EACH_OF (struct model_op, op, p->ops, p->n_ops)
            model_scale_op(op, pace.work);
        EACH_OF (struct model_call, call, p->calls, p->n_calls)
            model_scale_call(call, pace.work, pace.work);
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

static double within_pace(double ratio)
{
    return ratio > 4 ? 4 : ratio < 0.25 ? 0.25 : ratio;
}

/* So far along `direction` that an iteration takes target_ns, as near as it gets. */
static struct model_pace pace_to(struct dpro_model *model, struct model_pace direction, double ns,
                                 double target_ns)
{
    enum { MOST_ROUNDS = 30 };
    struct model_pace pace = {1, 1}, best = pace;
    double along = 0, slope = ns, least = fabs(target_ns - ns), low = -INFINITY, high = INFINITY;
    for (int round = 0; round < MOST_ROUNDS && least > 1; round++) { /* times are whole */
        double off = target_ns - ns, before = ns;
        low = off > 0 ? fmax(low, along) : low;
        high = off < 0 ? fmin(high, along) : high;
        double next = slope > 0 ? along + off / slope : NAN;
        if (!(next > low && next < high))
            next = (low + high) / 2;
        if (!isfinite(next) || next == along)
            break;
        pace = (struct model_pace){within_pace(1 + next * direction.work),
                                   within_pace(1 + next * direction.net)};
        ns = time_at_pace(model, pace);
        slope = (ns - before) / (next - along);
        along = next;
        if (fabs(target_ns - ns) < least) {
            least = fabs(target_ns - ns);
            best = pace;
        }
    }
    return best;
}

void pace_changed(struct dpro_model *changed, double target_ns)
{
    static const struct model_pace BOTH = {1, 1};
    struct model_pace was = changed->pace, pace;
    pace = pace_to(changed, BOTH, time_at_pace(changed, BOTH), target_ns);
    set_pace(changed, pace);
    changed->pace = (struct model_pace){pace.work * was.work, pace.net * was.net};
}

/* What pauses cost each iteration: of the job's time, as the recorded iterations say. A time that
 * is the median of steps without the profiler has pauses if half of them have; a warm-up's are none
 * of the job's. Returns the median. */
static double set_pauses(struct dpro_model *m)
{
    uint32_t n = m->n_samples;
    double sum = 0, moving = 0;
    SCRATCH double *pause_ns = mem_alloc((n + (size_t)1) * sizeof *pause_ns);
    for (uint32_t s = 0; s < n; s++) {
        pause_ns[s] = model_sample_pause(m->ranks, m->n_ranks, s);
        sum += s < m->job.n_warm_up ? 0 : pause_ns[s];
        moving += s < m->job.n_warm_up ? 0 : pause_ns[s] - model_common_pause(m, s);
    }
    bool of_median =
        m->job.source == DPRO_JOB_OWN_STEPS && !m->recorded->graph->unprofiled_ones->every;
    double median = stats_median(pause_ns, n);
    m->pause_ns = of_median ? median : n > m->job.n_warm_up ? sum / (n - m->job.n_warm_up) : 0;
    m->pause_ns = fmin(m->pause_ns, MOST_PAUSES * (double)m->job.ns);
    m->moving_pause_ns = sum > 0 ? moving / sum * m->pause_ns : 0;
    return median;
}

void fit_pace(struct dpro_model *model)
{
    double ns = time_at_pace(model, (struct model_pace){1, 1});
    if (ns >= (double)INT64_MAX)
        fail_with(DPRO_EUSAGE, "an iteration of the job's model never ends: ranks wait for each "
                               "other, as where sends and receives were matched wrongly; 'dpro "
                               "replay' works with the trace");
    find_job(model->recorded->graph, model);
    if (model->median_ns <= 0)
        return;
    model->misfit = (ns + set_pauses(model)) / (double)model->median_ns - 1;
    ns += model->pause_ns;
    if (model->pause_ns > PAUSES_TO_TELL * (double)model->job.ns)
        array_push(&model->warnings,
                   arena_format(&model->arena,
                                "pauses of ranks are %.2f ms of an iteration of %.2f ms: they stay "
                                "as they are, whatever changes",
                                model->pause_ns / 1e6, (double)model->job.ns / 1e6));
    if (model->misfit < -1 + 1 / (1 + MOST_MISFIT) || model->misfit > MOST_MISFIT)
        fail_with(
            DPRO_EEMPTY,
            "the model of the job takes %.3g times the measured iteration, too far off to tell "
            "what changes do; does 'dpro replay' warn of the trace?",
            1 + model->misfit);
    double target_ns = (double)model->job.ns;
    model->launching_ns = scaled_ns((target_ns - model->pause_ns) / (ns - model->pause_ns),
                                    model->launching_ns); /* as before, of an iteration */
    ns = fmax(ns, (double)model->launching_ns + model->pause_ns);
    set_pace(model, pace_to(model, pace_direction(model, ns), ns, target_ns));
    model->paced_ns = evaluate_once(model);
}
