/* cost/strategy_work.c: see strategy_work.h. An op's work has a part that each micro-batch takes
 * whatever its size, one that is in proportion to its size, and one that a step does once. */
#include "cost/strategy_work.h"

#include <math.h>

#include "base/memory.h"
#include "cost/fused.h"

bool strategy_changes_work(const struct dpro_model *model, const struct dpro_strategy *strategy)
{
    for (uint32_t m = 0; strategy->recomputed && m < model->n_modules; m++)
        if (strategy->recomputed[m])
            return true;
    for (uint32_t m = 0; strategy->computing && m < model->n_modules; m++)
        if (strategy->computing[m])
            return true;
    return strategy->micro_batches > 1 || model->memory.batch_ratio > 0;
}

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

/* Of the work of both passes, what is in proportion to the batch. */
static double varying_share(const struct model_program *program)
{
    double all = 0;
    for (uint32_t i = 0; i < program->n_ops; i++)
        all += (double)(program->ops[i].work_ns - program->ops[i].once_ns);
    return all > 0 ? all_varying_ns(program) / all : 1;
}

void strategy_computed_calls(const struct model_program *p, const uint8_t *computing,
                             uint32_t *root)
{
    for (uint32_t c = 0; c < p->n_calls; c++) {
        const struct model_call *call = &p->calls[c];
        bool within = call->parent != MODEL_NONE && root[call->parent] != MODEL_NONE;
        root[c] = within ? root[call->parent] : computing[call->module] ? c : MODEL_NONE;
    }
}

/* A program under a strategy. */
struct working {
    const struct dpro_model *model;
    const struct dpro_strategy *strategy;
    const struct model_program *program;
    uint32_t n_program, n_parts; /* micro-batches */
    double part;                 /* a micro-batch's share of the work of both passes */
    uint32_t *root;              /* by call: strategy_computed_calls; NULL: none is */
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
static void add(struct working *w, uint32_t op, double ns)
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
static void recompute(struct working *w)
{
    const struct model_program *p = w->program;
    const bool *recomputed = w->strategy->recomputed;
    bool *within = mem_array(p->n_calls + (size_t)1, sizeof *within);
    for (uint32_t c = 0; c < p->n_calls; c++) {
        const struct model_call *call = &p->calls[c];
        bool outer = call->parent != MODEL_NONE && within[call->parent];
        within[c] = outer || recomputed[call->module];
        if (within[c] && !outer)
            add(w, call->op, w->part * again_in_ways(w, c));
    }
    mem_free(within);
}

/* ---- other ways ---- */

/* Over the ops of a call's backward pass, as much of it as each has. */
static void spread_backward(struct working *w, const struct model_call *call, double ns)
{
    const struct model_op *ops = w->program->ops;
    double all = 0;
    for (uint32_t i = call->op; i <= call->backward_last; i++)
        all += ops[i].backward * (double)ops[i].work_ns;
    for (uint32_t i = call->op; i <= call->backward_last; i++) {
        double share = ops[i].backward * (double)ops[i].work_ns;
        add(w, i, all > 0 ? ns * share / all : i == call->op ? ns : 0);
    }
}

/* Ops [first, last] as a fused one, whatever of them the strategy fuses already; up to one that
 * waits. */
static void fuse(struct working *w, uint32_t first, uint32_t last)
{
    uint32_t fused = fused_find(w->strategy, w->n_program, first);
    for (uint32_t i = first; i <= last; i++) {
        int64_t own_ns = fused_work_ns(w->model, w->strategy, w->n_program, i, &fused);
        if (i == first)
            continue;
        if (w->program->ops[i].needs != MODEL_NONE)
            break;
        w->more_ns[first] += own_ns + w->more_ns[i];
        w->more_ns[i] = -own_ns;
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
        add(w, call->forward_op, w->part * (cost.forward.value - 1) * (double)call->forward_ns);
        if (call->backward_last != MODEL_NONE)
            spread_backward(w, call,
                            w->part * (cost.backward.value - 1) * (double)call->backward_ns);
    }
}

static void fuse_compiled(struct working *w)
{
    const struct model_program *p = w->program;
    for (uint32_t c = 0; c < p->n_calls; c++)
        if (w->root[c] == c && p->calls[c].backward_last != MODEL_NONE &&
            w->strategy->computing[p->calls[c].module] & DPRO_COMPILED)
            fuse(w, p->calls[c].op, p->calls[c].backward_last);
}

/* ---- all of it ---- */

/* Times as if each micro-batch were the step's last. */
static void cut_batch(struct working *w)
{
    const struct model_program *p = w->program;
    uint32_t n = w->n_parts;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct model_op *op = &p->ops[i];
        double varying = varying_ns(op);
        w->more_ns[i] = llround(varying / n - varying);
        w->before += (n - 1) * ((double)op->fixed_ns + varying / n);
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
    double share = varying_share(p);
    w.part = 1 - share + share / w.n_parts;
    cut_batch(&w);
    if (s->computing && p->n_calls > 0) {
        w.root = mem_array(p->n_calls, sizeof *w.root);
        strategy_computed_calls(p, s->computing, w.root);
        compute_otherwise(&w);
    }
    if (s->recomputed && p->n_calls > 0)
        recompute(&w);
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
        for (uint32_t c = 0; c < p->n_calls; c++) {
            const struct model_call *call = &p->calls[c];
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

int64_t strategy_total_work(const struct dpro_model *model, const struct dpro_strategy *s,
                            uint32_t program)
{
    const struct model_program *p = &model->programs[program];
    int64_t *more_ns = mem_array(p->n_ops + (size_t)1, sizeof *more_ns), sum = 0;
    uint32_t fused = fused_find(s, program, 0);
    if (strategy_changes_work(model, s))
        strategy_more_work(model, s, program, more_ns);
    for (uint32_t i = 0; i < p->n_ops; i++)
        sum += more_ns[i] + fused_work_ns(model, s, program, i, &fused);
    mem_free(more_ns);
    return sum;
}

void model_scale_batch(struct dpro_model *model, double ratio, struct arena *arena)
{
    struct model_program *programs = arena_array(arena, model->n_programs, sizeof *programs);
    for (uint32_t p = 0; p < model->n_programs; p++) {
        const struct model_program *from = &model->programs[p];
        struct model_program *to = &programs[p];
        double share = varying_share(from);
        *to = *from;
        to->ops = arena_array(arena, from->n_ops, sizeof *to->ops);
        to->calls = arena_array(arena, from->n_calls, sizeof *to->calls);
        for (uint32_t i = 0; i < from->n_ops; i++) {
            to->ops[i] = from->ops[i];
            double more = (ratio - 1) * varying_ns(&from->ops[i]);
            double work = (double)from->ops[i].work_ns + more;
            if (from->ops[i].work_ns > 0)
                to->ops[i].beside_ns =
                    llround((double)from->ops[i].beside_ns * work / (double)from->ops[i].work_ns);
            to->ops[i].work_ns = llround(work);
        }
        for (uint32_t c = 0; c < from->n_calls; c++) {
            to->calls[c] = from->calls[c];
            int64_t *const times[] = {&to->calls[c].recompute_ns, &to->calls[c].forward_ns,
                                      &to->calls[c].backward_ns};
            for (size_t i = 0; i < sizeof times / sizeof *times; i++)
                *times[i] = llround((double)*times[i] * (1 + (ratio - 1) * share));
        }
    }
    model->programs = programs;
}
