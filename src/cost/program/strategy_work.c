/* What a rank's work takes under a strategy.
 *
 * An op's work has three parts: fixed for each micro-batch, in proportion to its size, and once a
 * step. */
#include "cost/program/strategy_work.h"

#include "cost/program/modules.h"
#include "cost/program/program_writer.h"

bool strategy_recomputes(const struct dpro_model *model, const struct dpro_strategy *strategy)
{
    return modules_count(strategy->recomputed, model->n_modules, 1) > 0;
}

bool strategy_changes_work(const struct dpro_model *model, const struct dpro_strategy *strategy)
{
    return strategy_recomputes(model, strategy) || strategy->micro_batches > 1 ||
           model->memory.batch_ratio > 0 ||
           modules_count(strategy->computing, model->n_modules, UINT8_MAX) > 0;
}

/* ---- batches that probes measured ---- */

/* Beyond what was measured, for each factor of two. */
#define BEYOND 0.07

static struct dpro_estimate work_between(double x, double x0, struct dpro_estimate a, double x1,
                                         struct dpro_estimate b)
{
    double share = log(x / x0) / log(x1 / x0);
    double value = exp(log(a.value) + share * log(b.value / a.value));
    double relative = fmax(a.std / a.value, b.std / b.value);
    double beyond = fmax(share - 1, -share) * fabs(log2(x1 / x0));
    if (beyond > 0)
        relative = hypot(relative, BEYOND * beyond);
    return (struct dpro_estimate){value, value * relative};
}

struct batch_point batch_at(const struct dpro_model *model, double ratio)
{
    const struct batch_point *points = model->batch_points;
    uint32_t n = model->n_batch_points, i = 1;
    if (n < 2 || ratio == 1)
        return (struct batch_point){ratio, {1, 0}, {1, 0}};
    while (i + 1 < n && points[i].ratio < ratio)
        i++;
    const struct batch_point *a = &points[i - 1], *b = &points[i];
    return (struct batch_point){ratio,
                                work_between(ratio, a->ratio, a->forward, b->ratio, b->forward),
                                work_between(ratio, a->ratio, a->backward, b->ratio, b->backward)};
}

/* ---- work of an op ---- */

/* What is in proportion to the batch. */
static double varying_ns(const struct model_op *op)
{
    return fmax(0, (double)(op->work_ns - op->once_ns - op->fixed_ns));
}

static double all_varying_ns(const struct model_program *program)
{
    double varying = 0;
    for (uint32_t i = 0; i < program->n_ops; i++)
        varying += varying_ns(&program->ops[i]);
    return varying;
}

/* Work of both passes. */
struct passes {
    double forward, backward;
};

static struct passes passes_of(const struct model_op *op)
{
    double both = fmax(0, (double)(op->work_ns - op->once_ns));
    double backward = fmin(both, op->backward * (double)op->work_ns);
    return (struct passes){both - backward, backward};
}

/* The same of another batch, as probes measured it. */
static double passes_at(const struct model_op *op, struct passes times)
{
    struct passes passes = passes_of(op);
    return passes.forward * times.forward + passes.backward * times.backward;
}

/* Of the work of both passes, what is in proportion to the batch. */
static double varying_share(const struct model_program *program)
{
    double all = 0;
    for (uint32_t i = 0; i < program->n_ops; i++)
        all += (double)(program->ops[i].work_ns - program->ops[i].once_ns);
    return all > 0 ? all_varying_ns(program) / all : 1;
}

struct working {
    const struct dpro_model *model;
    const struct dpro_strategy *strategy;
    const struct model_program *program;
    uint32_t n_program, n_parts; /* micro-batches */
    struct passes part;          /* a micro-batch's share of the work of both passes */
    uint32_t *root;              /* by call: the outermost computed otherwise; NULL: none is */
    double before;               /* work of all micro-batches but the last */
    int64_t *more_ns;
};

static struct computing_cost cost_of_call(const struct working *w, uint32_t call)
{
    static const struct computing_cost unknown = {.forward = {1, 0}, .backward = {1, 0}};
    uint32_t module = w->program->calls[w->root[call]].module;
    unsigned way = w->strategy->computing[module] % DPRO_N_COMPUTINGS;
    const struct computing_cost *cost = &w->model->modules[module].costs[way];
    return cost->is_known || cost->is_assumed ? *cost : unknown;
}

/* Of a micro-batch; ops are of the last one. */
static void work_add(struct working *w, uint32_t op, double ns)
{
    w->more_ns[op < w->program->n_ops ? op : 0] += llround(ns);
    w->before += (w->n_parts - 1) * ns;
}

/* ---- recomputation ---- */

/* Where parts of what is computed again are computed in other ways. */
static double again_in_ways(const struct working *w, uint32_t c)
{
    const struct model_program *p = w->program;
    double ns = (double)p->calls[c].recompute_ns, all = (double)p->calls[c].forward_ns, more = 0;
    if (!w->root)
        return ns;
    if (w->root[c] != MODEL_NONE)
        return ns * cost_of_call(w, c).forward.value;
    for (uint32_t i = c + 1; i < p->n_calls; i++) {
        uint32_t outer = i;
        while (outer != MODEL_NONE && outer > c)
            outer = p->calls[outer].parent;
        if (outer == c && w->root[i] == i)
            more += (cost_of_call(w, i).forward.value - 1) * (double)p->calls[i].forward_ns;
    }
    return all > 0 ? fmax(0, ns * (1 + more / all)) : ns;
}

/* Of modules within each other the outermost counts. */
static void work_recompute(struct working *w)
{
    const struct model_program *p = w->program;
    const bool *recomputed = w->strategy->recomputed;
    SCRATCH uint32_t *root = mem_array(p->n_calls, sizeof *root);
    CALLS_OUTERMOST(root, p->calls, p->n_calls, c, recomputed[p->calls[c].module]);
    for (uint32_t c = 0; c < p->n_calls; c++)
        if (root[c] == c)
            work_add(w, p->calls[c].op, w->part.forward * again_in_ways(w, c));
}

/* ---- other ways ---- */

/* Over the ops of one pass of a call, as much of it as each has of such work. */
static void work_spread(struct working *w, uint32_t first, uint32_t last, bool backward, double ns)
{
    const struct model_op *ops = w->program->ops;
    double all = 0;
    for (uint32_t i = first; i <= last; i++)
        all += (backward ? ops[i].backward : 1 - ops[i].backward) * (double)ops[i].work_ns;
    for (uint32_t i = first; i <= last; i++) {
        double own = (backward ? ops[i].backward : 1 - ops[i].backward) * (double)ops[i].work_ns;
        work_add(w, i, all > 0 ? ns * own / all : i == first ? ns : 0);
    }
}

/* Ops [first, last] as a fused one, up to one that waits: all work is done where the first stands,
 * so that the gradients of all are ready at its end. */
static void work_fuse(struct working *w, uint32_t first, uint32_t last)
{
    const struct model_op *ops = w->program->ops;
    for (uint32_t i = first + 1; i <= last && ops[i].needs == MODEL_NONE; i++) {
        w->more_ns[first] += ops[i].work_ns + w->more_ns[i];
        w->more_ns[i] = -ops[i].work_ns;
    }
}

static void compute_otherwise(struct working *w)
{
    const struct model_program *p = w->program;
    for (uint32_t c = 0; c < p->n_calls; c++) {
        const struct model_call *call = &p->calls[c];
        if (w->root[c] != c)
            continue;
        struct computing_cost cost = cost_of_call(w, c);
        double forward_ns = w->part.forward * (cost.forward.value - 1) * (double)call->forward_ns;
        if (call->forward_last == MODEL_NONE)
            work_add(w, call->forward_op, forward_ns);
        else
            work_spread(w, call->forward_op, call->forward_last, false, forward_ns);
        if (call->backward_last != MODEL_NONE)
            work_spread(w, call->op, call->backward_last, true,
                        w->part.backward * (cost.backward.value - 1) * (double)call->backward_ns);
    }
}

static void fuse_compiled(struct working *w)
{
    const struct model_program *p = w->program;
    for (uint32_t c = 0; c < p->n_calls; c++)
        if (w->root[c] == c && p->calls[c].backward_last != MODEL_NONE &&
            w->strategy->computing[p->calls[c].module] & DPRO_COMPILED)
            work_fuse(w, p->calls[c].op, p->calls[c].backward_last);
}

/* ---- all of it ---- */

/* By how much a micro-batch's passes are longer than their ops tell: threads launch as much for it
 * as for the whole batch, and the GPU waits for them where its work is less, unless they are ahead
 * of it since the step before. */
static double launched_slower(const struct working *w)
{
    double whole = 0, part = 0;
    double launching = w->model->launching_passes * (double)w->model->launching_ns;
    EACH_OF (const struct model_op, op, w->program->ops, w->program->n_ops) {
        whole += (double)op->fixed_ns + varying_ns(op);
        part += (double)op->fixed_ns + varying_ns(op) / w->n_parts;
    }
    bool waits = part > 0 && !w->model->launches_ahead;
    return waits ? fmax(1, fmin(launching, whole) / part) : 1;
}

/* Times as if each micro-batch were the step's last. */
static void cut_batch(struct working *w)
{
    const struct model_program *p = w->program;
    uint32_t n = w->n_parts;
    double share = varying_share(p), ratio = w->model->memory.batch_ratio;
    w->part.forward = w->part.backward = 1 - share + share / n;
    if (w->model->n_batch_points > 0) {
        ratio = ratio > 0 ? ratio : 1;
        struct batch_point whole = batch_at(w->model, ratio), part = batch_at(w->model, ratio / n);
        w->part = (struct passes){part.forward.value / whole.forward.value,
                                  part.backward.value / whole.backward.value};
    }
    double slower = launched_slower(w);
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct model_op *op = &p->ops[i];
        double varying = varying_ns(op), fixed = (double)op->fixed_ns;
        double now = slower * (fixed + varying / n);
        if (w->model->n_batch_points > 0) {
            now = passes_at(op, w->part);
            fixed = passes_at(op, (struct passes){1, 1});
            varying = 0;
        }
        w->more_ns[i] = llround(now - fixed - varying);
        w->before += (n - 1) * now;
    }
    double faults = strategy_fault_ns(w->model, w->strategy, w->n_program).value;
    for (uint32_t i = 0; i < p->n_ops && faults != 0 && all_varying_ns(p) > 0; i++)
        w->more_ns[i] += llround(faults / n * varying_ns(&p->ops[i]) / all_varying_ns(p));
    w->before += faults * (n - 1) / n;
}

void strategy_more_work(const struct dpro_model *model, const struct dpro_strategy *s,
                        uint32_t program, int64_t *more_ns)
{
    const struct model_program *p = &model->programs[program];
    struct working w = {.model = model,
                        .strategy = s,
                        .program = p,
                        .n_program = program,
                        .n_parts = s->micro_batches > 1 ? s->micro_batches : 1,
                        .more_ns = more_ns};
    cut_batch(&w);
    if (s->computing && p->n_calls > 0) {
        w.root = mem_array(p->n_calls, sizeof *w.root);
        CALLS_OUTERMOST(w.root, p->calls, p->n_calls, c, s->computing[p->calls[c].module]);
        compute_otherwise(&w);
    }
    if (s->recomputed && p->n_calls > 0)
        work_recompute(&w);
    if (p->n_ops > 0)
        more_ns[0] += llround(w.before);
    if (w.root)
        fuse_compiled(&w);
    mem_free(w.root);
}

struct computing_change computing_change_of(const struct dpro_model *model, uint32_t module,
                                            unsigned way)
{
    const struct computing_cost *cost = &model->modules[module].costs[way];
    struct computing_change change = {0, 0, 0};
    for (uint32_t r = 0; r < model->n_ranks; r++) {
        const struct model_program *p = &model->programs[model->ranks[r].program];
        EACH_OF (const struct model_call, call, p->calls, p->n_calls) {
            if (call->module != module)
                continue;
            double forward = (double)call->forward_ns / model->n_ranks,
                   backward = (double)call->backward_ns / model->n_ranks;
            change.before_ns += forward + backward;
            change.after_ns += forward * cost->forward.value + backward * cost->backward.value;
            change.std_ns += forward * cost->forward.std + backward * cost->backward.std;
        }
    }
    return change;
}

struct computing_change computing_change_in_all(const struct dpro_model *model)
{
    const uint8_t *ways = model->baseline.computing;
    struct computing_change all = {0, 0, 0};
    for (uint32_t i = 0; ways && i < model->n_modules; i++) {
        if (ways[i] == DPRO_AS_IT_IS)
            continue;
        struct computing_change change = computing_change_of(model, i, ways[i]);
        all.before_ns += change.before_ns;
        all.after_ns += change.after_ns;
        all.std_ns += change.std_ns;
    }
    return all;
}

int64_t strategy_total_work(const struct dpro_model *model, const struct dpro_strategy *s,
                            uint32_t program)
{
    const struct model_program *p = &model->programs[program];
    SCRATCH int64_t *more_ns = mem_array(p->n_ops + (size_t)1, sizeof *more_ns);
    int64_t sum = 0;
    if (strategy_changes_work(model, s))
        strategy_more_work(model, s, program, more_ns);
    for (uint32_t i = 0; i < p->n_ops; i++)
        sum += more_ns[i] + p->ops[i].work_ns;
    return sum;
}

static void scale_op(struct model_op *op, const struct dpro_model *model, double ratio)
{
    double work = (double)op->work_ns + (ratio - 1) * varying_ns(op);
    struct batch_point at = batch_at(model, ratio);
    struct passes passes = passes_of(op);
    if (model->n_batch_points > 0) {
        work = (double)op->once_ns + passes.forward * at.forward.value;
        passes.backward *= at.backward.value;
        work += passes.backward;
        op->backward = work > 0 ? passes.backward / work : 0;
    }
    if (op->work_ns > 0)
        op->beside_ns = llround((double)op->beside_ns * work / (double)op->work_ns);
    op->work_ns = llround(work);
}

void model_scale_batch(struct dpro_model *model, double ratio, struct arena *arena)
{
    struct batch_point at = batch_at(model, ratio);
    bool known = model->n_batch_points > 0;
    model_own_programs(model, arena);
    EACH_OF (struct model_program, p, model->programs, model->n_programs) {
        double all = 1 + (ratio - 1) * varying_share(p);
        EACH_OF (struct model_op, op, p->ops, p->n_ops)
            scale_op(op, model, ratio);
        EACH_OF (struct model_call, call, p->calls, p->n_calls)
            model_scale_call(call, known ? at.forward.value : all, known ? at.backward.value : all);
    }
}
