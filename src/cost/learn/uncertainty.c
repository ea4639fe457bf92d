/* The standard error of a prediction, in independent parts whose squares add up: the learnt
 * numbers; the number of measured iterations; how much the machine varies over time; how far the
 * model is from the iterations that it was learnt from; and how far the changed job is from the
 * recorded one. */
#include "cost/learn/uncertainty.h"

#include "cost/program/evaluator.h"
#include "cost/program/program_writer.h"
#include "cost/program/strategy_work.h"

/* Of what changes: a gain, and computation beside communication. Of plans that were run in the jobs
 * that they were made for, gains of 9 to 34 % were off by a sixth in the median. */
#define USUAL_ERROR 0.15

/* What the machine does to a ratio of two configurations that are run in turns. Neighbouring blocks
 * of steps of a run differ by 0.73 of what blocks before and after a recording do (3.3 and 4.5 %);
 * three turns are taken. */
#define RATIO_SHARE (0.73 / 1.732)

/* Of what resharding changes: where a machine is shared, gathers of equal size differ by that. */
#define GATHER_ERROR 0.5

/* A time that computation takes, that communication takes, or also groups' on a link. */
enum { OF_WORK, OF_NET, OF_LINK };

static const struct {
    size_t offset;
    int of;
} numbers[N_MODEL_NUMBERS] = {
#define NUMBER(name) offsetof(struct model_net, name)
    {NUMBER(link.byte_ns), OF_LINK},        {NUMBER(link.message_ns), OF_LINK},
    {NUMBER(collective.reduce_ns), OF_NET}, {NUMBER(collective.overhead_ns), OF_NET},
    {NUMBER(compute.launch_ns), OF_WORK},   {NUMBER(compute.copy_ns), OF_WORK},
    {NUMBER(compute.cast_ns), OF_WORK},     {NUMBER(link.cpu_ns), OF_WORK},
    {NUMBER(servers.push_ns), OF_NET},      {NUMBER(servers.answer_ns), OF_NET},
    {NUMBER(link.within_ns), OF_LINK},      {NUMBER(gate.step_ns), OF_NET},
    {NUMBER(link.held_share), OF_WORK},     {NUMBER(gate.negotiate_ns), OF_NET},
    {NUMBER(compute.hook_ns), OF_WORK},     {NUMBER(link.within_message_ns), OF_LINK},
    {NUMBER(compute.handling_ns), OF_WORK},
#undef NUMBER
};

static struct dpro_estimate *number_at(void *base, size_t offset)
{
    return (struct dpro_estimate *)(void *)((char *)base + offset);
}

struct dpro_estimate *model_number(struct model_net *net, size_t which)
{
    return number_at(net, numbers[which].offset);
}

/* The same of the links that groups' communications took their time with; NULL: it is none. */
static struct dpro_estimate *learnt_number(struct model_net *net, size_t which)
{
    size_t place = numbers[which].offset - offsetof(struct model_net, link);
    return numbers[which].of == OF_LINK ? number_at(&net->learnt, place) : NULL;
}

void estimate_scale(struct dpro_estimate *estimate, double ratio)
{
    estimate->value *= ratio;
    estimate->std *= ratio;
}

void model_net_scale(struct model_net *net, double ratio)
{
    for (size_t i = 0; i < N_MODEL_NUMBERS; i++) {
        if (numbers[i].of != OF_WORK)
            estimate_scale(model_number(net, i), ratio);
        if (numbers[i].of == OF_LINK)
            estimate_scale(learnt_number(net, i), ratio);
    }
    net->took_ratio *= ratio;
}

/* The recorded time stays: what communication is blamed for is no work. */
static void move_work(struct dpro_model *m, double lost, struct arena *arena)
{
    model_own_programs(m, arena);
    EACH_OF (struct model_program, p, m->programs, m->n_programs)
        EACH_OF (struct model_op, op, p->ops, p->n_ops)
            op->work_ns = llround(fmax(0, (double)op->work_ns - lost * (double)op->beside_ns));
}

static void learn_uncertainty_move(struct dpro_estimate *estimate, double errors)
{
    estimate->value = fmax(0, estimate->value + errors * estimate->std);
}

/* Learnt links move the time of what groups send beyond what was recorded of them. */
static void move_growth(const struct dpro_model *model, struct arena *arena,
                        struct dpro_model *moved)
{
    const struct model_link *was = &model->net.learnt, *is = &moved->net.learnt;
    size_t n = model->n_communications;
    moved->communications =
        arena_copy(arena, model->communications, n, sizeof *moved->communications);
    EACH_OF (struct model_communication, c, moved->communications, n) {
        bool within = model->groups[c->group].within;
        struct link_times before = link_times_of(was, within), now = link_times_of(is, within);
        double more_ns = c->more_bytes * (now.byte_ns - before.byte_ns) +
                         c->more_steps * (now.message_ns - before.message_ns);
        c->took_ns = fmax(0, c->took_ns + more_ns / model->net.took_ratio);
    }
}

void uncertainty_move(const struct dpro_model *model, size_t number, double errors,
                      struct arena *arena, struct dpro_model *moved)
{
    *moved = *model;
    struct dpro_estimate *estimate = model_number(&moved->net, number);
    double byte_ns = model->net.link.byte_ns.value,
           rate = evaluator_rate(&model->net.link, byte_ns);
    learn_uncertainty_move(estimate, errors);
    if (numbers[number].of == OF_LINK) {
        learn_uncertainty_move(learnt_number(&moved->net, number), errors);
        move_growth(model, arena, moved);
    }
    if (estimate == &moved->net.link.cpu_ns && estimate->std != 0)
        move_work(moved, rate - evaluator_rate(&moved->net.link, byte_ns), arena);
}

static void uncertainty_add(struct uncertainty *u, enum dpro_uncertainty_source source,
                            double before, double after, double speedup)
{
    struct dpro_uncertainty_part *part = &u->parts[source];
    part->before = hypot(part->before, before);
    part->after = hypot(part->after, after);
    part->speedup = hypot(part->speedup, speedup);
    u->before = hypot(u->before, before);
    u->after = hypot(u->after, after);
    u->speedup = hypot(u->speedup, speedup);
}

static bool is_unsure(const struct dpro_model *model, size_t number)
{
    struct model_net net = model->net;
    const struct dpro_estimate *learnt = learnt_number(&net, number);
    return model_number(&net, number)->std != 0 || (learnt && learnt->std != 0);
}

/* ---- a job's times ---- */

static double moved_ns(const struct dpro_model *model, size_t number, double errors)
{
    SCRATCH_ARENA struct arena arena = {0};
    struct dpro_model moved;
    uncertainty_move(model, number, errors, &arena, &moved);
    return (double)evaluate_once(&moved);
}

static void time_moved(struct timed_job *job, size_t number)
{
    for (int i = 0; i < 2; i++) {
        double *ns = &job->moved_ns[number][i], errors = i == 0 ? -1 : 1;
        if (*ns != 0)
            continue;
        *ns = moved_ns(job->model, number, errors);
        if (job->n_others > 0)
            *ns += job->n_others * moved_ns(job->others, number, errors);
    }
}

/* Of an iteration, the time in which its last rank computes beside communication, waits of that
 * rank aside: computing and communicating take that much longer together than the iteration. What
 * is computed meanwhile is slower. */
void job_time(struct timed_job *job)
{
    const struct dpro_model *m = job->model;
    double rate = evaluator_rate(&m->net.link, m->net.link.byte_ns.value);
    if (job->ns != 0)
        return;
    struct evaluator *evaluator = evaluator_create(m);
    const struct evaluation *e = evaluate_detail(evaluator, &m->baseline);
    const struct model_rank *rank = &m->ranks[e->last_rank];
    double work = (double)strategy_total_work(m, &m->baseline, rank->program) * rank->work_scale;
    job->own_ns = (double)e->iteration_ns;
    job->overlap_ns = fmax(0, work + (double)e->wire_ns + m->pause_ns - job->own_ns) / rate;
    evaluator_destroy(evaluator);
    job->ns = job->own_ns;
    if (job->n_others > 0)
        job->ns += job->n_others * (double)evaluate_once(job->others);
}

/* How far the speedup moves when each number that was learnt moves by its standard error, and the
 * prediction with it: the iteration that was measured stays. */
static void add_learnt(struct timed_job *before, struct timed_job *after,
                       const struct dpro_sink *sink, struct uncertainty *u)
{
    for (size_t n = 0; n < N_MODEL_NUMBERS; n++) {
        if (is_unsure(before->model, n) || is_unsure(after->model, n)) {
            time_moved(before, n);
            time_moved(after, n);
            double upper = before->moved_ns[n][1] / after->moved_ns[n][1];
            double lower = before->moved_ns[n][0] / after->moved_ns[n][0];
            uncertainty_add(u, DPRO_UNCERTAIN_LEARNT, 0, (upper - lower) / (upper + lower),
                            (upper - lower) / 2);
        }
        log_progress(sink, "find how sure that is", "numbers", n + 1, N_MODEL_NUMBERS);
    }
}

static uint32_t count_collectives(const struct dpro_strategy *s)
{
    uint32_t n = 0;
    for (uint32_t b = 0; b < s->n_buckets; b++)
        n += s->buckets[b].partitions;
    return n;
}

/* What a collective takes beside its bytes. */
static double cost_of_one(const struct model_net *net)
{
    struct sync_cost cost = sync_cost(net, 1);
    return net->compute.launch_ns.value + net->compute.handling_ns.value +
           (double)(cost.latency_ns + cost.wire_ns);
}

/* What collectives take beside their bytes and the model hides behind what else is under way. */
static double hidden_of(struct timed_job *job)
{
    const struct dpro_model *m = job->model;
    struct dpro_model free_of = *m; /* collectives of buckets; groups' take as long as they did */
    free_of.net.compute.launch_ns.value = free_of.net.compute.handling_ns.value = 0;
    free_of.net.collective.overhead_ns.value = 0;
    free_of.net.link.message_ns.value = 0;
    free_of.net.learnt.message_ns.value -= m->net.link.message_ns.value;
    double each = cost_of_one(&m->net) - cost_of_one(&free_of.net);
    if (job->free_ns == 0)
        job->free_ns = (double)evaluate_once(&free_of);
    return fmax(0, count_collectives(&m->baseline) * each - (job->own_ns - job->free_ns));
}

/* Of the longer one of two iterations, what the shorter one takes less. */
static double share_of(double a_ns, double b_ns)
{
    return fabs(a_ns - b_ns) / fmax(a_ns, b_ns);
}

/* For each factor of two: half a batch took 0.42 to 0.56 of the time on five kinds of networks. */
#define BATCH_ERROR 0.07

/* The same where probes measured other batches, however many times as large: outside of training
 * malloc gives other pages back. 12 ratios of 3 networks were off by 7.7 % (root mean square). */
#define BATCH_PROBE_ERROR 0.07

static double measured_batch_error(const struct dpro_model *m, double ratio)
{
    struct batch_point at = batch_at(m, ratio);
    double forward = at.forward.std / at.forward.value,
           backward = at.backward.std / at.backward.value;
    return ratio == 1 ? 0 : hypot(BATCH_PROBE_ERROR, fmax(forward, backward));
}

double uncertainty_of_batch(const struct dpro_model *before, const struct dpro_model *after)
{
    double ratio = after->memory.batch_ratio > 0 ? after->memory.batch_ratio : 1;
    double was = before->memory.batch_ratio > 0 ? before->memory.batch_ratio : 1;
    double parts = fmax(after->baseline.micro_batches, 1),
           old = fmax(before->baseline.micro_batches, 1);
    if (after->n_batch_points > 0)
        return hypot(measured_batch_error(after, ratio / parts),
                     parts > 1 ? measured_batch_error(after, ratio) : 0);
    return BATCH_ERROR * hypot(log2(ratio / was), log2(parts / old));
}

/* With what probes of modules alone are off in all. */
static struct computing_change computing_of(const struct dpro_model *m)
{
    struct computing_change all = computing_change_in_all(m);
    all.std_ns = hypot(all.std_ns, UNCERTAINTY_PROBE * all.after_ns);
    return all;
}

static double mean_work(const struct dpro_model *m, const struct dpro_strategy *s)
{
    double sum = 0;
    for (uint32_t r = 0; r < m->n_ranks; r++)
        sum += (double)strategy_total_work(m, s, m->ranks[r].program);
    return sum / m->n_ranks;
}

/* Of an iteration, what the changes take less as probes measured it. */
static double measured_gain_ns(const struct dpro_model *before, const struct dpro_model *after)
{
    struct dpro_strategy s = after->baseline;
    s.recomputed = NULL;
    if (after->n_batch_points == 0) {
        struct computing_change change = computing_of(after);
        return change.before_ns - change.after_ns;
    }
    return mean_work(before, &before->baseline) - mean_work(after, &s);
}

/* Of the changed job, an iteration on links that are as before. What links gain and what other
 * changes lose may cancel out, and their errors don't. */
static double on_links_of(const struct dpro_model *before, const struct timed_job *after)
{
    const struct model_link *was = &before->net.link;
    struct dpro_model own = *after->model, other;
    struct model_link *link = &own.net.link;
    if (link->byte_ns.value == was->byte_ns.value &&
        link->within_ns.value == was->within_ns.value &&
        link->message_ns.value == was->message_ns.value)
        return after->ns;
    link->byte_ns = was->byte_ns;
    link->within_ns = was->within_ns;
    link->message_ns = was->message_ns;
    link->within_message_ns = was->within_message_ns;
    double ns = (double)evaluate_once(&own);
    if (after->n_others > 0) {
        other = *after->others;
        other.net.link = own.net.link;
        ns += after->n_others * (double)evaluate_once(&other);
    }
    return ns;
}

struct uncertainty uncertainty_of(struct timed_job *was, struct timed_job *is,
                                  const struct change_beside *beside)
{
    const struct dpro_model *before = was->model, *after = is->model;
    struct uncertainty u = {.misfit = 0};
    add_learnt(was, is, beside->sink, &u);
    if (before->measured_ns <= 0) /* a generated job is what its model says */
        return u;
    job_time(was);
    job_time(is);
    double before_ns = was->ns, after_ns = is->ns;
    double ratio = before_ns / after_ns, gain = ratio - 1;
    double noise = before->job_noise, machine = before->machine_std;
    double between_ns = on_links_of(before, is);
    double of_links = share_of(between_ns, after_ns), of_rest = share_of(before_ns, between_ns);
    u.misfit = before->misfit;
    uncertainty_add(&u, DPRO_UNCERTAIN_ITERATIONS, noise, noise, noise * gain);
    uncertainty_add(&u, DPRO_UNCERTAIN_MACHINE, machine, machine, RATIO_SHARE * machine * ratio);
    /* the model was scaled to the job's time, so that only what changes is off */
    uncertainty_add(&u, DPRO_UNCERTAIN_MODEL, 0, fabs(u.misfit * gain / ratio),
                    fabs(u.misfit * gain));
    struct computing_change computing = computing_of(after);
    bool other_number = count_collectives(&before->baseline) != count_collectives(&after->baseline);
    bool other_servers = sync_n_servers(&before->net) != sync_n_servers(&after->net);
    /* What no recording of the job as it ran can show. Losing overlap is mostly what makes an
     * iteration longer, so the larger of both counts. */
    double gain_ns = measured_gain_ns(before, after);
    double unmeasured = fmax(share_of(before_ns, after_ns + gain_ns),
                             share_of(before_ns, between_ns + gain_ns) + of_links);
    double overlap = fabs(was->overlap_ns - is->overlap_ns) / fmax(before_ns, after_ns);
    const double changes[] = {
        USUAL_ERROR * fmax(unmeasured, overlap),
        beside->rewritten * of_rest,
        beside->resharded ? GATHER_ERROR * of_rest : 0,
        hypot(beside->slowest_error_ns, beside->calls_error_ns) / after_ns,
        /* which ranks pause when may change as well */
        before_ns == after_ns ? 0 : USUAL_ERROR * after->moving_pause_ns / after_ns,
        /* in truth anything from none to all of what is hidden may be */
        other_number ? (hidden_of(is) - hidden_of(was)) / sqrt(3) / after_ns : 0,
        other_servers ? UNCERTAINTY_SERVERS : 0,
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
        uncertainty_add(&u, DPRO_UNCERTAIN_CHANGE, 0, changes[i], changes[i] * ratio);
    double faults = strategy_fault_ns(after, &after->baseline, after->ranks[0].program).std;
    double batch = hypot(uncertainty_of_batch(before, after), faults / after_ns);
    batch = hypot(batch, beside->batch);
    uncertainty_add(&u, DPRO_UNCERTAIN_BATCH, 0, batch, batch * ratio);
    double error = (computing.std_ns + beside->computing_error_ns) / after_ns;
    uncertainty_add(&u, DPRO_UNCERTAIN_COMPUTING, 0, error, error * ratio);
    return u;
}
