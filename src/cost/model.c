/* cost/model.c: from a recorded graph to a model. */
#include "cost/model.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cost/cost.h"
#include "cost/sync.h"
#include "cost/uncertainty.h"

static int warn(struct dpro_model *model, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static int warn(struct dpro_model *model, const char *format, ...)
{
    char text[512];
    va_list list;
    va_start(list, format);
    int n = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (n >= (int)sizeof text)
        n = sizeof text - 1;
    char *copy = n < 0 ? NULL : arena_copy_string(&model->arena, text, (size_t)n);
    return copy ? array_push(&model->warnings, copy) : -1;
}

/* ---- programs ---- */

static double lost_of(const struct model_net *net)
{
    double lost =
        net->link.byte_ns.value > 0 ? net->link.cpu_ns.value / net->link.byte_ns.value : 0;
    return lost > 0.9 ? 0.9 : lost;
}

/* What a segment would have taken with nothing on the wires. */
static double alone(const struct segment *s, double lost)
{
    double ns = (double)s->elapsed_ns - lost * (double)s->overlapped_ns;
    return ns > 0 ? ns : 0;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double middle_of(double *values, uint32_t n)
{
    qsort(values, n, sizeof *values, compare_doubles);
    return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

static double work_before(const struct measured_replay *r, const struct coarse_rank *rank,
                          size_t point, double lost, double *room)
{
    for (uint32_t i = 0; i < r->n; i++)
        room[i] = alone(&rank->segments[i * rank->n_points + point], lost);
    return middle_of(room, r->n);
}

/* Work since an iteration's first point, each iteration's in `sums`: the middle one of them, as
 * what holds up one iteration now and then (another process, a page fault) is no part of the work.
 * Of sums, for where several threads compute, their gradients get ready in one order in this
 * iteration and in another in the next, and the middle ones of the parts don't add up. */
static double work_up_to(const struct measured_replay *r, const struct coarse_rank *rank,
                         size_t point, double lost, double *sums, double *room)
{
    for (uint32_t i = 0; i < r->n; i++) {
        sums[i] += alone(&rank->segments[i * rank->n_points + point], lost);
        room[i] = sums[i];
    }
    return middle_of(room, r->n);
}

static void push_op(struct model_program *program, struct model_op op)
{
    program->ops[program->n_ops++] = op;
}

/* Whether an executor takes the ranks' ops as they get ready: what waits for communication holds
 * nothing up. */
static bool has_executor(const struct dpro_graph *g)
{
    return g->framework &&
           (strcmp(g->framework, "tensorflow") == 0 || strcmp(g->framework, "mxnet") == 0);
}

/* First all that hands tensors over, then all that waits. */
static int wait_last(struct dpro_model *model, struct model_program *program)
{
    struct model_op *ordered =
        arena_array(&model->arena, program->n_ops + (size_t)1, sizeof *ordered);
    uint32_t n = 0;
    if (!ordered)
        return -1;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < program->n_ops; i++)
            if ((program->ops[i].tensor == MODEL_NONE) == pass)
                ordered[n++] = program->ops[i];
    program->ops = ordered;
    return 0;
}

/* An iteration of the program begins after the last thing that the one before waited for, so that
 * the optimizer and the next forward lead up to the first gradient. */
static int make_program(const struct measured_replay *r, const struct coarse_rank *rank,
                        double lost, struct dpro_model *model, struct model_program *program,
                        double *room)
{
    double copied = (double)rank->copy_back_ns, before_wait = 0;
    double *sums = room + r->n, before = 0;
    memset(sums, 0, r->n * sizeof *sums);
    program->n_ops = 0;
    program->ops = arena_array(&model->arena, 2 * rank->n_points + 2, sizeof *program->ops);
    if (!program->ops)
        return -1;
    bool waits = false;
    /* of the copying, all but the last bucket's lies between the waits */
    for (size_t a = 0; a < rank->n_points && rank->drains; a++) {
        if (rank->sync_points[a].needs && waits)
            copied -= work_before(r, rank, a, 0, room);
        waits |= rank->sync_points[a].needs;
    }
    for (size_t a = 0; a < rank->n_points; a++) {
        const struct sync_point *point = &rank->sync_points[a];
        if (rank->drains && point->needs && a > 0 && rank->sync_points[a - 1].needs)
            continue; /* copying */
        double up_to = work_up_to(r, rank, a, lost, sums, room), work = up_to - before;
        before = up_to;
        if (a == 0 && rank->drains && copied > 0)
            work = work > copied ? work - copied : 0;
        struct model_op op = {.name = point->needs ? "up to a wait"
                                                   : model->tensors[point->tensor].name,
                              .phase = DPRO_OP_BW,
                              .needs = MODEL_NONE,
                              .tensor = MODEL_NONE};
        if (!point->needs) {
            op.tensor = point->tensor;
            op.work_ns = llround(work + before_wait);
            before_wait = 0;
            push_op(program, op);
        } else if (!rank->drains) {
            /* its work goes before the wait */
            op.work_ns = llround(work);
            push_op(program, op);
            op.work_ns = 0;
            op.needs = point->tensor;
            push_op(program, op);
        } else {
            op.work_ns = llround(work);
            push_op(program, op);
        }
    }
    if (rank->drains)
        push_op(program, (struct model_op){.name = "communicated gradients",
                                           .phase = DPRO_OP_UPDATE,
                                           .needs = MODEL_ALL,
                                           .tensor = MODEL_NONE});
    /* what servers send back is taken before there are gradients, in the next iteration */
    bool reordered = model->net.collective.algorithm != MODEL_SERVER && has_executor(r->graph);
    return reordered ? wait_last(model, program) : 0;
}

/* Fills in beside_ns: the same program once more, had communication cost more. */
static int find_beside(const struct measured_replay *r, const struct coarse_rank *rank, double lost,
                       struct dpro_model *model, struct model_program *program, double *room)
{
    const double more = 0.05;
    struct model_program other;
    if (make_program(r, rank, lost + more, model, &other, room) < 0)
        return -1;
    for (uint32_t i = 0; i < program->n_ops; i++)
        program->ops[i].beside_ns =
            llround((double)(program->ops[i].work_ns - other.ops[i].work_ns) / more);
    return 0;
}

static int make_ranks(const struct measured_replay *r, const struct coarse *coarse,
                      struct dpro_model *model)
{
    const struct dpro_graph *g = r->graph;
    double lost = lost_of(&model->net);
    model->n_ranks = model->n_programs = g->n_ranks;
    model->n_samples = g->sample_dur_ns ? g->n_samples : 0;
    model->ranks = arena_array(&model->arena, g->n_ranks, sizeof *model->ranks);
    model->programs = arena_array(&model->arena, g->n_ranks, sizeof *model->programs);
    double *room = malloc(2 * (r->n + (size_t)1) * sizeof *room);
    int status = model->ranks && model->programs && room ? 0 : -1;
    for (uint32_t i = 0; i < g->n_ranks && status == 0; i++) {
        const struct coarse_rank *rank = &coarse->ranks[i];
        struct model_rank *to = &model->ranks[i];
        *to = (struct model_rank){.rank = g->ranks[i].rank, .program = i, .work_scale = 1};
        if (coarse->read_ns)
            to->read_ns = coarse->read_ns + (size_t)i * model->n_tensors;
        to->sample_scale = arena_array(&model->arena, model->n_samples, sizeof(double));
        if (!to->sample_scale ||
            make_program(r, rank, lost, model, &model->programs[i], room) < 0 ||
            find_beside(r, rank, lost, model, &model->programs[i], room) < 0) {
            status = -1;
            break;
        }
        double mean = 0;
        for (uint32_t s = 0; s < model->n_samples; s++) {
            for (size_t a = 0; a < rank->n_points; a++)
                to->sample_scale[s] += alone(&rank->segments[s * rank->n_points + a], lost);
            mean += to->sample_scale[s] / model->n_samples;
        }
        for (uint32_t s = 0; s < model->n_samples; s++)
            to->sample_scale[s] = mean > 0 ? to->sample_scale[s] / mean : 1;
    }
    free(room);
    return status;
}

/* ---- the job's own strategy ---- */

struct placed {
    uint32_t tensor, bucket; /* collective of the graph */
    int64_t launched_ns;
};

static int compare_placed(const void *a, const void *b)
{
    const struct placed *x = a, *y = b;
    if (x->launched_ns != y->launched_ns)
        return x->launched_ns < y->launched_ns ? -1 : 1;
    if (x->bucket != y->bucket)
        return x->bucket < y->bucket ? -1 : 1;
    return x->tensor < y->tensor ? -1 : x->tensor > y->tensor;
}

static int make_baseline(const struct measured_replay *r, const struct coarse *coarse,
                         struct dpro_model *model)
{
    const struct dpro_graph *g = r->graph;
    struct dpro_strategy *baseline = &model->baseline;
    struct placed *placed = malloc((model->n_tensors + (size_t)1) * sizeof *placed);
    baseline->order = arena_array(&model->arena, model->n_tensors, sizeof *baseline->order);
    baseline->buckets = arena_array(&model->arena, model->n_tensors, sizeof *baseline->buckets);
    if (!placed || !baseline->order || !baseline->buckets) {
        free(placed);
        return -1;
    }
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        uint32_t op = coarse->ready[t];
        if (!coarse->exchange_of)
            op = g->members[g->collectives[coarse->bucket_of[t]].first_member].arrival;
        placed[t] = (struct placed){t, coarse->bucket_of[t], r->end_ns[r->first][op]};
    }
    qsort(placed, model->n_tensors, sizeof *placed, compare_placed);
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        baseline->order[t] = placed[t].tensor;
        if (t == 0 || placed[t].bucket != placed[t - 1].bucket)
            baseline->buckets[baseline->n_buckets++] =
                (struct strategy_bucket){.first = t, .partitions = 1};
        baseline->buckets[baseline->n_buckets - 1].n++;
        if (sync_n_servers(&model->net)) {
            const struct graph_exchange *exchange =
                &g->exchanges[coarse->exchange_of[placed[t].tensor]];
            baseline->buckets[baseline->n_buckets - 1].server = exchange->server;
            baseline->buckets[baseline->n_buckets - 1].partitions = exchange->n_parts;
        }
    }
    free(placed);
    baseline->cycle_ns = model->net.gate.cycle_ns;
    baseline->fuses = baseline->cycle_ns > 0 && g->cycles.fuses;
    baseline->fusion_bytes = g->cycles.fusion_bytes;
    return 0;
}

/* ---- all of it ---- */

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

/* Of the measured iterations, without the profiler's known part: one odd iteration says nothing. 0:
 * out of memory. */
static double median_iteration(const int64_t *measured, uint32_t n, int64_t profiler_ns)
{
    double *room = malloc((n + (size_t)1) * sizeof *room);
    if (!room || n == 0) {
        free(room);
        return 0;
    }
    for (uint32_t i = 0; i < n; i++)
        room[i] = (double)measured[i];
    double median = middle_of(room, n);
    free(room);
    return (double)profiler_ns < median ? median - (double)profiler_ns : median;
}

/* Enough steps were timed without the profiler, and they were the same work. */
static bool tells_of_job(const struct dpro_unprofiled *unprofiled, double profiled_ns)
{
    enum { LEAST_STEPS = 5, MOST_APART = 2 };
    return unprofiled && unprofiled->n_steps >= LEAST_STEPS &&
           (double)unprofiled->median_ns < MOST_APART * profiled_ns &&
           (double)unprofiled->median_ns * MOST_APART > profiled_ns;
}

static void measure_iterations(const struct dpro_graph *g, const struct dpro_model_options *options,
                               struct dpro_model *model)
{
    uint32_t n;
    const int64_t *measured = dpro_graph_measured_ns(g, &n);
    const struct dpro_unprofiled *unprofiled = options ? options->unprofiled : NULL;
    double sum = 0, squares = 0, products = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)measured[i] / n;
    for (uint32_t i = 0; i < n; i++) {
        squares += ((double)measured[i] - sum) * ((double)measured[i] - sum);
        if (i > 0)
            products += ((double)measured[i] - sum) * ((double)measured[i - 1] - sum);
    }
    model->measured_ns = llround(sum);
    if (options && options->profiler_ns < model->measured_ns)
        model->measured_ns -= options->profiler_ns;
    model->measured_std_ns = n > 1 ? sqrt(squares / (n - 1)) : 0;
    model->correlation = squares > 0 && products > 0 ? products / squares : 0;
    double median = median_iteration(measured, n, options ? options->profiler_ns : 0);
    model->median_ns = llround(median);
    if (dpro_graph_steps_tell(g) && tells_of_job(unprofiled, median))
        model->unprofiled_ns = unprofiled->median_ns;
    double apart = model->unprofiled_ns ? (double)model->unprofiled_ns / median - 1 : 0;
    model->machine_std = machine_std(model, n, unprofiled, apart);
}

/* What a profiler adds, and what the machine's pace changes, is computation more than
 * communication: the ratio of their variances. */
#define PACE_WORK 4.0

static void scale_net(struct model_net *net, double ratio)
{
    struct dpro_estimate *const times[] = {&net->link.byte_ns,         &net->link.message_ns,
                                           &net->collective.reduce_ns, &net->collective.overhead_ns,
                                           &net->gate.negotiate_ns,    &net->collective.least_ns,
                                           &net->servers.push_ns,      &net->servers.answer_ns,
                                           &net->link.within_ns,       &net->gate.step_ns};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        times[i]->value *= ratio;
        times[i]->std *= ratio;
    }
}

static int time_at_pace(struct dpro_model *model, struct model_pace pace, double *ns,
                        struct dpro_error *err)
{
    struct dpro_model paced = *model;
    int64_t iteration_ns = 0;
    scale_net(&paced.net, pace.net);
    for (uint32_t r = 0; r < model->n_ranks; r++)
        model->ranks[r].work_scale = pace.work;
    int rc = uncertainty_time(&paced, &iteration_ns, err);
    for (uint32_t r = 0; r < model->n_ranks; r++)
        model->ranks[r].work_scale = 1;
    *ns = (double)iteration_ns;
    return rc;
}

static void set_pace(struct dpro_model *model, struct model_pace pace)
{
    model->pace = pace;
    scale_net(&model->net, pace.net);
    for (uint32_t p = 0; p < model->n_programs; p++)
        for (uint32_t i = 0; i < model->programs[p].n_ops; i++) {
            struct model_op *op = &model->programs[p].ops[i];
            op->work_ns = llround(pace.work * (double)op->work_ns);
            op->beside_ns = llround(pace.work * (double)op->beside_ns);
        }
}

/* In which proportion computation and communication change when an iteration does: the likeliest of
 * those that explain it, where each has its own standard deviation. */
static int pace_direction(struct dpro_model *model, double ns, struct model_pace *direction,
                          struct dpro_error *err)
{
    static const double STEP = 0.02;
    double slower_work = 0, slower_net = 0;
    int rc = time_at_pace(model, (struct model_pace){1 + STEP, 1}, &slower_work, err);
    if (rc == 0)
        rc = time_at_pace(model, (struct model_pace){1, 1 + STEP}, &slower_net, err);
    double work = fmax(slower_work - ns, 0) / (STEP * ns),
           net = fmax(slower_net - ns, 0) / (STEP * ns);
    double all = PACE_WORK * work * work + net * net;
    *direction = all > 0 ? (struct model_pace){PACE_WORK * work / all, net / all}
                         : (struct model_pace){0, 0};
    return rc;
}

static double within_pace(double ratio)
{
    return ratio > 2 ? 2 : ratio < 0.5 ? 0.5 : ratio;
}

/* Scales the model until an iteration takes as much more or less as the unprofiled steps do. */
static int fit_pace(struct dpro_model *model, struct dpro_error *err)
{
    enum { MOST_ROUNDS = 8 };
    struct model_pace direction = {0, 0}, pace = {1, 1};
    double ns, along = 0, slope;
    int rc = time_at_pace(model, pace, &ns, err);
    if (rc < 0 || model->median_ns <= 0)
        return rc;
    model->misfit = ns / (double)model->median_ns - 1;
    if (model->unprofiled_ns == 0)
        return 0;
    double job_ns = (1 + model->misfit) * (double)model->unprofiled_ns;
    slope = ns;
    rc = pace_direction(model, ns, &direction, err);
    for (int round = 0; round < MOST_ROUNDS && rc == 0; round++) {
        double off = job_ns - ns, before = ns;
        if (fabs(off) < 1e-3 * job_ns || slope <= 0)
            break;
        double next = along + off / slope;
        pace = (struct model_pace){within_pace(1 + next * direction.work),
                                   within_pace(1 + next * direction.net)};
        rc = time_at_pace(model, pace, &ns, err);
        if (next == along)
            break;
        slope = (ns - before) / (next - along);
        along = next;
    }
    if (rc == 0)
        set_pace(model, pace);
    return rc;
}

/* A graph that no trace is behind has no framework. */
static enum dpro_stack stack_of(const struct dpro_graph *g, const struct model_net *net)
{
    bool tensorflow = g->framework && strcmp(g->framework, "tensorflow") == 0;
    bool mxnet = g->framework && strcmp(g->framework, "mxnet") == 0;
    if (net->gate.negotiates)
        return DPRO_STACK_HOROVOD;
    if (net->collective.algorithm == MODEL_SERVER)
        return tensorflow ? DPRO_STACK_TENSORFLOW_PS
               : mxnet    ? DPRO_STACK_MXNET_PS
                          : DPRO_STACK_BYTEPS;
    return tensorflow ? DPRO_STACK_TENSORFLOW_RING : DPRO_STACK_DDP;
}

/* As coarsen(). */
static int build(const struct measured_replay *shape, const struct measured_replay *r,
                 struct dpro_model *model, struct dpro_error *err)
{
    struct coarse coarse;
    int rc = coarsen(shape, r, model, &coarse, err);
    if (rc < 0)
        return rc;
    rc = fit_net(r, &coarse, model, err);
    model->capabilities = model_capabilities(stack_of(r->graph, &model->net));
    if (model->capabilities.stack == DPRO_STACK_TENSORFLOW_RING && r->graph->in_session)
        model->capabilities_text =
            "a session's collectives are ops of the job's own graph, which can "
            "have any packs of gradients, but dpro applies no plan to them: the "
            "job's script makes them";
    if (rc == 0 && (make_ranks(r, &coarse, model) < 0 || make_baseline(shape, &coarse, model) < 0))
        rc = dpro_error_nomem(err);
    bool at_once =
        model->capabilities.stack == DPRO_STACK_TENSORFLOW_RING && !model->net.gate.in_order;
    if (rc == 0 && at_once &&
        warn(model, "collectives ran at once, beside computation on the same cores: the rate that "
                    "is learnt is what they got of the link, which may be faster; give "
                    "--bandwidth as a ratio (2x), not as a rate") < 0)
        rc = dpro_error_nomem(err);
    if (rc == 0 && r->graph->n_samples < 2 &&
        warn(model, "one iteration was recorded: nothing is known of how much iterations vary") < 0)
        rc = dpro_error_nomem(err);
    coarse_fini(&coarse);
    return rc;
}

int model_learn_again(const struct dpro_graph *graph, const struct dpro_graph *delayed,
                      const struct dpro_model *model, struct dpro_model *learnt,
                      struct dpro_error *err)
{
    struct measured_replay shape, replay;
    struct dpro_model m = *model;
    m.arena = (struct arena){NULL, 0};
    m.warnings.at = NULL;
    m.warnings.n = m.warnings.cap = 0;
    m.net = (struct model_net){.collective.n_ranks = 0};
    m.baseline = (struct dpro_strategy){.order = NULL};
    int rc = measured_replay_run(graph, &shape, err);
    if (rc == 0) {
        rc = measured_replay_run(delayed, &replay, err);
        if (rc == 0) {
            rc = build(&shape, &replay, &m, err);
            measured_replay_fini(&replay);
        }
        measured_replay_fini(&shape);
    }
    array_fini(&m.warnings);
    if (rc < 0) {
        arena_fini(&m.arena);
        return rc;
    }
    set_pace(&m, model->pace);
    *learnt = m;
    return 0;
}

int dpro_model_build(const struct dpro_graph *graph, const struct dpro_model_options *options,
                     struct dpro_model **model, struct dpro_error *err)
{
    int rc = dpro_model_check(graph, err);
    if (rc < 0)
        return rc;
    struct dpro_model *m = calloc(1, sizeof *m);
    if (!m)
        return dpro_error_nomem(err);
    m->pace = (struct model_pace){1, 1};
    measure_iterations(graph, options, m);
    struct measured_replay replay;
    rc = measured_replay_run(graph, &replay, err);
    if (rc == 0) {
        rc = build(&replay, &replay, m, err);
        measured_replay_fini(&replay);
    }
    if (rc == 0)
        rc = fit_pace(m, err);
    if (rc < 0) {
        dpro_model_destroy(m);
        return rc;
    }
    *model = m;
    return 0;
}
