/* cost/uncertainty.c: what is known of a prediction's error, in parts that are independent, so that
 * their squares add up: the standard errors of the numbers that were learnt; that few iterations
 * were measured; that the machine is faster or slower at another time; how far the model is from
 * the iteration that it learnt from; and how far the changed job is from the one that was recorded.
 */
#include "cost/uncertainty.h"

#include <math.h>
#include <stddef.h>

#include "base/error.h"
#include "cost/evaluator.h"

/* Of what changes: a gain, and computation beside communication. Of plans that were run in the jobs
 * that they were made for, gains of 9 to 34 % were off by a sixth in the median. */
#define USUAL_ERROR 0.15

/* What the machine does to a ratio of two configurations that are run in turns. Neighbouring blocks
 * of steps of a run differ by 0.73 of what blocks before and after a recording do (3.3 and 4.5 %);
 * three turns are taken. */
#define RATIO_SHARE (0.73 / 1.732)

struct dpro_estimate *model_number(struct model_net *net, size_t which)
{
    static const size_t offsets[N_MODEL_NUMBERS] = {
        offsetof(struct model_net, link.byte_ns),
        offsetof(struct model_net, link.message_ns),
        offsetof(struct model_net, collective.reduce_ns),
        offsetof(struct model_net, collective.overhead_ns),
        offsetof(struct model_net, compute.launch_ns),
        offsetof(struct model_net, compute.copy_ns),
        offsetof(struct model_net, compute.cast_ns),
        offsetof(struct model_net, link.cpu_ns),
        offsetof(struct model_net, servers.push_ns),
        offsetof(struct model_net, servers.answer_ns),
        offsetof(struct model_net, link.within_ns),
        offsetof(struct model_net, gate.step_ns),
        offsetof(struct model_net, link.held_share),
        offsetof(struct model_net, gate.negotiate_ns),
        offsetof(struct model_net, collective.least_ns),
        offsetof(struct model_net, compute.hook_ns)};
    return (struct dpro_estimate *)(void *)((char *)net + offsets[which]);
}

int uncertainty_time(const struct dpro_model *model, int64_t *iteration_ns, struct dpro_error *err)
{
    struct evaluator *evaluator;
    int rc = evaluator_create(model, &evaluator, err);
    if (rc < 0)
        return rc;
    *iteration_ns = evaluate(evaluator, &model->baseline);
    bool failed = evaluator_failed(evaluator);
    evaluator_destroy(evaluator);
    if (failed)
        return dpro_error_nomem(err);
    return *iteration_ns < INT64_MAX
               ? 0
               : dpro_error_set(err, DPRO_EUSAGE,
                                "an iteration of the changed job never ends; change less");
}

/* The recorded time stays: what communication is blamed for is no work. */
static int move_work(struct dpro_model *m, double lost, struct arena *arena)
{
    struct model_program *programs =
        arena_array(arena, m->n_programs + (size_t)1, sizeof *programs);
    if (!programs)
        return -1;
    for (uint32_t p = 0; p < m->n_programs; p++) {
        const struct model_program *from = &m->programs[p];
        programs[p].n_ops = from->n_ops;
        programs[p].ops = arena_array(arena, from->n_ops + (size_t)1, sizeof *from->ops);
        if (!programs[p].ops)
            return -1;
        for (uint32_t i = 0; i < from->n_ops; i++) {
            struct model_op *op = &programs[p].ops[i];
            *op = from->ops[i];
            double work = (double)op->work_ns - lost * (double)op->beside_ns;
            op->work_ns = work > 0 ? llround(work) : 0;
        }
    }
    m->programs = programs;
    return 0;
}

int uncertainty_move(const struct dpro_model *model, size_t number, double errors,
                     struct arena *arena, struct dpro_model *moved)
{
    *moved = *model;
    struct dpro_estimate *estimate = model_number(&moved->net, number);
    double rate = evaluator_rate(model->net.link.cpu_ns.value, model->net.link.byte_ns.value);
    estimate->value += errors * estimate->std;
    estimate->value = estimate->value > 0 ? estimate->value : 0;
    if (estimate != &moved->net.link.cpu_ns || estimate->std == 0)
        return 0;
    return move_work(moved, rate - evaluator_rate(estimate->value, model->net.link.byte_ns.value),
                     arena);
}

static void add(struct uncertainty *u, enum dpro_uncertainty_source source, double before,
                double after, double speedup)
{
    struct dpro_uncertainty_part *part = &u->parts[source];
    part->before = hypot(part->before, before);
    part->after = hypot(part->after, after);
    part->speedup = hypot(part->speedup, speedup);
    u->before = hypot(u->before, before);
    u->after = hypot(u->after, after);
    u->speedup = hypot(u->speedup, speedup);
}

/* How far the speedup moves when each number that was learnt moves by its standard error, and the
 * prediction with it: the iteration that was measured stays. */
static int add_learnt(const struct dpro_model *before, const struct dpro_model *after,
                      struct uncertainty *u, struct dpro_error *err)
{
    const struct dpro_model *models[2] = {before, after};
    struct arena arena = {NULL, 0};
    int rc = 0;
    for (size_t n = 0; n < N_MODEL_NUMBERS && rc == 0; n++) {
        double times[2][2]; /* model, lower and upper */
        for (int i = 0; i < 4 && rc == 0; i++) {
            struct dpro_model moved;
            int64_t ns = 0;
            rc = uncertainty_move(models[i / 2], n, i % 2 ? 1 : -1, &arena, &moved) < 0
                     ? dpro_error_nomem(err)
                     : uncertainty_time(&moved, &ns, err);
            times[i / 2][i % 2] = (double)ns;
        }
        if (rc < 0)
            break;
        double upper = times[0][1] / times[1][1], lower = times[0][0] / times[1][0];
        add(u, DPRO_UNCERTAIN_LEARNT, 0, (upper - lower) / (upper + lower), (upper - lower) / 2);
    }
    arena_fini(&arena);
    return rc;
}

/* Of an iteration, what is computed beside communication. */
static int overlap_of(const struct dpro_model *m, double *overlap_ns, struct dpro_error *err)
{
    struct evaluator *evaluator;
    int rc = evaluator_create(m, &evaluator, err);
    if (rc < 0)
        return rc;
    const struct evaluation *e = evaluate_detail(evaluator, &m->baseline);
    const struct model_rank *rank = &m->ranks[e->last_rank];
    double work = 0;
    for (uint32_t i = 0; i < m->programs[rank->program].n_ops; i++)
        work += (double)m->programs[rank->program].ops[i].work_ns * rank->work_scale;
    *overlap_ns = fmax(0, work + (double)e->wire_ns - (double)e->iteration_ns);
    bool failed = evaluator_failed(evaluator);
    evaluator_destroy(evaluator);
    return failed ? dpro_error_nomem(err) : 0;
}

static uint32_t count_collectives(const struct dpro_strategy *s)
{
    uint32_t n = 0;
    for (uint32_t b = 0; b < s->n_buckets; b++)
        n += s->buckets[b].partitions;
    return n;
}

/* What a collective takes beside its bytes. */
static int cost_of_one(const struct model_net *net, double *ns, struct dpro_error *err)
{
    struct sync_cost cost = {0};
    if (sync_cost(net, 1, &cost) < 0)
        return dpro_error_nomem(err);
    *ns = net->compute.launch_ns.value + (double)(cost.latency_ns + cost.wire_ns);
    return 0;
}

/* How much longer an iteration of the model is than if collectives took nothing beside their bytes.
 * each: what one takes. */
static int shown_of(const struct dpro_model *model, double *shown, double *each,
                    struct dpro_error *err)
{
    struct dpro_model free_of = *model;
    int64_t with_ns = 0, without_ns = 0;
    double left = 0;
    free_of.net.compute.launch_ns.value = free_of.net.link.message_ns.value = 0;
    free_of.net.collective.overhead_ns.value = 0;
    int rc = cost_of_one(&model->net, each, err);
    if (rc == 0)
        rc = cost_of_one(&free_of.net, &left, err);
    if (rc == 0)
        rc = uncertainty_time(model, &with_ns, err);
    if (rc == 0)
        rc = uncertainty_time(&free_of, &without_ns, err);
    *each -= left;
    *shown = (double)(with_ns - without_ns);
    return rc;
}

/* What the collectives that are more or fewer take beside their bytes and the model hides behind
 * what else is under way: in truth anything from none to all of it may be hidden. */
static int unhidden(const struct dpro_model *before, const struct dpro_model *after, double *ns,
                    struct dpro_error *err)
{
    double more =
        (double)count_collectives(&after->baseline) - count_collectives(&before->baseline);
    double shown[2] = {0, 0}, each = 0;
    int rc = shown_of(before, &shown[0], &each, err);
    if (rc == 0)
        rc = shown_of(after, &shown[1], &each, err);
    *ns = fabs(more * each - (shown[1] - shown[0])) / sqrt(3);
    return rc;
}

/* What no recording of the job as it ran can show. Losing overlap is mostly what makes an iteration
 * longer, so the larger of both counts. */
static void add_change(const struct dpro_model *before, const struct dpro_model *after, double gain,
                       double overlap, double unhidden, struct uncertainty *u)
{
    double change = USUAL_ERROR * fmax(fabs(gain), fabs(overlap));
    add(u, DPRO_UNCERTAIN_CHANGE, 0, change / (1 + gain), change);
    add(u, DPRO_UNCERTAIN_CHANGE, 0, unhidden, unhidden * (1 + gain));
    if (sync_n_servers(&before->net) != sync_n_servers(&after->net))
        add(u, DPRO_UNCERTAIN_CHANGE, 0, UNCERTAINTY_SERVERS, UNCERTAINTY_SERVERS * (1 + gain));
}

int uncertainty_of(const struct dpro_model *before, const struct dpro_model *after,
                   struct uncertainty *uncertainty, struct dpro_error *err)
{
    struct uncertainty u = {.misfit = 0};
    int64_t before_ns = 0, after_ns = 0;
    double overlaps[2] = {0, 0}, unhidden_ns = 0;
    int rc = add_learnt(before, after, &u, err);
    if (rc == 0)
        rc = uncertainty_time(before, &before_ns, err);
    if (rc == 0)
        rc = uncertainty_time(after, &after_ns, err);
    if (rc == 0)
        rc = overlap_of(before, &overlaps[0], err);
    if (rc == 0)
        rc = overlap_of(after, &overlaps[1], err);
    if (rc == 0)
        rc = unhidden(before, after, &unhidden_ns, err);
    if (rc < 0)
        return rc;
    if (before->measured_ns > 0) { /* a generated job is what its model says */
        double ratio = (double)before_ns / (double)after_ns, gain = ratio - 1;
        double measured = (double)before->measured_ns, rho = before->correlation;
        double n = before->n_samples * (1 - rho) / (1 + rho);
        double noise = n > 1 ? before->measured_std_ns / measured / sqrt(n) : 0;
        double machine = before->machine_std;
        u.misfit = before->misfit;
        add(&u, DPRO_UNCERTAIN_ITERATIONS, noise, noise, noise * gain);
        add(&u, DPRO_UNCERTAIN_MACHINE, machine, machine, RATIO_SHARE * machine * ratio);
        add(&u, DPRO_UNCERTAIN_MODEL, fabs(u.misfit), fabs(u.misfit), fabs(u.misfit * gain));
        add_change(before, after, gain, (overlaps[0] - overlaps[1]) / (double)after_ns,
                   unhidden_ns / (double)after_ns, &u);
    }
    *uncertainty = u;
    return 0;
}
