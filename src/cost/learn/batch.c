/* What another batch takes: which part of a program's work grows with it, what probes measured of
 * others, and whether a step's batch can be computed in micro-batches. */

#include "cost/program/cost.h"
#include "cost/program/modules.h"
#include "cost/program/strategy_work.h"
#include "ingest/probes.h"

/* ---- what grows with the batch ---- */

/* One recorded size does not show it, so it is assumed:
 * - what an op of the forward or backward pass takes beyond its launch grows with the batch;
 * - launches and Python between ops are fixed;
 * - all other work, such as the optimizer's, is done once a step. */

/* Between two ops Python and PyTorch take up to that much; what is longer is another process's, or
 * the machine's, and as long as the work that it interrupts. */
#define CPU_GAP_NS 30000

/* Times of the recorded ops of a program's op. */
struct op_times {
    double all, once, fixed, backward;
};

static void add_op(const struct dpro_graph *g, uint32_t op, bool gpu, struct op_times *share)
{
    double ns = (double)g->dur_ns[op], gap = gpu ? 0 : (double)g->gap_ns[op];
    share->all += ns + gap;
    share->backward += g->phase[op] == DPRO_OP_BW ? ns + gap : 0;
    if (op_is_of_pass(g, op))
        share->fixed += fmin(ns, gpu ? BATCH_GPU_OP_NS : BATCH_CPU_OP_NS) + fmin(gap, CPU_GAP_NS);
    else
        share->once += ns + gap;
}

static void learn_rank(const struct measured_replay *r, const struct graph_rank *ops,
                       struct model_program *program)
{
    const struct dpro_graph *g = r->graph;
    bool gpu = rank_has_gpu(g, ops);
    SCRATCH struct op_times *shares = mem_array(program->n_ops + (size_t)1, sizeof *shares);
    for (uint32_t op = ops->first_op; op < ops->first_op + ops->n_ops; op++) {
        bool backward = g->phase[op] == DPRO_OP_BW;
        if (op_computes(g, op) && (!gpu || g->flags[op] & GRAPH_OP_GPU))
            add_op(g, op, gpu, &shares[program_op_of(r, program, op, backward)]);
    }
    for (uint32_t i = 0; i < program->n_ops; i++) {
        struct model_op *op = &program->ops[i];
        double all = shares[i].all > 0 ? shares[i].all : 1;
        op->once_ns = llround((double)op->work_ns * shares[i].once / all);
        op->fixed_ns = llround((double)op->work_ns * shares[i].fixed / all);
        op->backward = shares[i].backward / all;
    }
}

void learn_batch_shares(const struct measured_replay *r, struct dpro_model *model)
{
    for (uint32_t i = 0; i < r->graph->n_ranks; i++)
        learn_rank(r, &r->graph->ranks[i], &model->programs[model->ranks[i].program]);
}

/* ---- what probes measured of other sizes ---- */

/* Between and beyond the measured sizes, the time of both passes is straight lines of log time over
 * log size. */

/* Of the recorded work of both passes, what has to have been probed. */
#define LEAST_PROBED 0.5

ORDER(by_ratio, struct batch_point, ASCENDING(ratio));

struct curve_work {
    double forward, backward;
};

static struct curve_work work_of(const struct dpro_model *model, uint32_t module)
{
    struct curve_work work = {0, 0};
    for (uint32_t p = 0; p < model->n_programs; p++)
        for (uint32_t c = 0; c < model->programs[p].n_calls; c++)
            if (model->programs[p].calls[c].module == module) {
                work.forward += (double)model->programs[p].calls[c].forward_ns;
                work.backward += (double)model->programs[p].calls[c].backward_ns;
            }
    return work;
}

static const struct probe_batch *batch_of(const struct dpro_model *model, const struct probe *probe,
                                          double ratio)
{
    for (uint32_t b = probe->first_batch; b < probe->first_batch + probe->n_batches; b++)
        if (model->probes->batches.at[b].ratio == ratio)
            return &model->probes->batches.at[b];
    return NULL;
}

static void curve_add(struct dpro_estimate *sum, double work, struct dpro_estimate of)
{
    sum->value += work * of.value;
    sum->std += work * of.std;
}

static void curve_over(struct dpro_estimate *sum, double work)
{
    *sum = work > 0 ? (struct dpro_estimate){sum->value / work, sum->std / work}
                    : (struct dpro_estimate){1, 0};
}

/* Of the outermost modules that were probed with that batch; false: they are too little. */
static bool measure_point(const struct dpro_model *model, double ratio, struct batch_point *point)
{
    SCRATCH bool *taken = mem_array(model->n_modules, sizeof *taken);
    struct curve_work probed = {0, 0}, all = {0, 0};
    double faults = page_fault_share(model), launches = probed_launches(model);
    *point = (struct batch_point){.ratio = ratio};
    for (uint32_t m = 0; m < model->n_modules; m++) { /* outer ones first */
        uint32_t outer = model->modules[m].parent;
        struct curve_work work = work_of(model, m);
        const struct probe *probe = probe_of(model, &model->modules[m]);
        const struct probe_batch *batch = probe ? batch_of(model, probe, ratio) : NULL;
        all.forward += outer == MODEL_NONE ? work.forward : 0;
        all.backward += outer == MODEL_NONE ? work.backward : 0;
        taken[m] = outer != MODEL_NONE && taken[outer];
        if (taken[m] || !batch)
            continue;
        taken[m] = true;
        probed.forward += work.forward;
        probed.backward += work.backward;
        const struct probe_cost *cost = &batch->cost;
        curve_add(&point->forward, work.forward,
                  probe_in_step(cost->forward, &cost->forward_bounds, launches));
        curve_add(&point->backward, work.backward,
                  probe_in_step(cost->backward, &cost->backward_bounds, launches));
    }
    curve_over(&point->forward, probed.forward);
    curve_over(&point->backward, probed.backward);
    point->forward = with_page_faults(point->forward, faults, ratio);
    point->backward = with_page_faults(point->backward, faults, ratio);
    return probed.forward + probed.backward > LEAST_PROBED * (all.forward + all.backward);
}

void learn_batch_curve(struct dpro_model *model)
{
    const struct dpro_probes *probes = model->probes;
    SCRATCH ARRAY(struct batch_point) points = {0};
    struct batch_point point = {1, {1, 0}, {1, 0}};
    model->n_batch_points = 0;
    array_push(&points, point);
    for (size_t b = 0; probes && b < probes->batches.n; b++) {
        bool known = false;
        for (size_t i = 0; i < points.n; i++)
            known |= points.at[i].ratio == probes->batches.at[b].ratio;
        if (!known && measure_point(model, probes->batches.at[b].ratio, &point))
            array_push(&points, point);
    }
    if (points.n > 1) {
        array_sort(&points, by_ratio);
        model->n_batch_points = (uint32_t)points.n;
        model->batch_points = arena_copy(&model->arena, points.at, points.n, sizeof *points.at);
    }
}

/* ---- micro-batches ---- */

/* Whether a batch can be cut, and what that changes beside rounding, follows from the modules that
 * a step calls, and from when it updates parameters. */

/* Of the first rank: whether it updates parameters between backward passes; *backward: whether it
 * has any. */
static bool updates_between(const struct dpro_graph *g, bool *backward)
{
    const struct graph_rank *rank = &g->ranks[0];
    int64_t first = INT64_MAX, last = INT64_MIN;
    uint32_t n = rank->first_op + rank->n_ops - rank->n_message_ops;
    *backward = false;
    for (uint32_t op = rank->first_op; op < n; op++)
        *backward |= g->kind[op] == DPRO_OP_BW;
    for (uint32_t op = rank->first_op; g->seen_start_ns && op < n; op++)
        if (g->kind[op] == DPRO_OP_BW && !(g->flags[op] & GRAPH_OP_GPU)) {
            first = g->seen_start_ns[op] < first ? g->seen_start_ns[op] : first;
            last = g->seen_start_ns[op] > last ? g->seen_start_ns[op] : last;
        }
    for (uint32_t op = rank->first_op; first < last && op < n; op++)
        if (g->kind[op] == DPRO_OP_UPDATE && !(g->flags[op] & GRAPH_OP_GPU) &&
            g->seen_start_ns[op] > first && g->seen_start_ns[op] < last)
            return true;
    return false;
}

/* The first two outermost modules of different models; how many models a step calls. */
static uint32_t models_called(const struct dpro_model *m, const struct model_module *some[2])
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n_modules; i++) {
        size_t len = module_number_length(m->modules[i].name);
        bool met = m->modules[i].parent != MODEL_NONE || m->modules[i].n_calls == 0;
        for (uint32_t k = 0; k < i && !met; k++)
            met = m->modules[k].n_calls > 0 && module_number_length(m->modules[k].name) == len &&
                  strncmp(m->modules[k].name, m->modules[i].name, len) == 0;
        if (met)
            continue;
        if (n < 2)
            some[n] = &m->modules[i];
        n++;
    }
    return n;
}

static const char *title_of(const struct model_module *module)
{
    return module->class[0] != '\0' ? module->class : module->name;
}

static const char *why_not(const struct dpro_graph *g, struct dpro_model *m)
{
    const struct model_module *some[2];
    uint32_t n = models_called(m, some), n_cut = g->ranks[0].n_micro_batches;
    bool backward, between = updates_between(g, &backward);
    if (!backward)
        return "no backward pass was recorded, whose gradients micro-batches add up: ask for "
               "another batch (--batch-size)";
    if (n_cut > 1)
        return arena_format(&m->arena,
                            "a step of the job already computes %u micro-batches: other cuts of "
                            "its batch can't be predicted",
                            n_cut);
    if (n > 1)
        return arena_format(&m->arena,
                            "a step of the job calls %u models (%.100s, %.100s%s): cutting its "
                            "batch can't be predicted for all of them",
                            n, title_of(some[0]), title_of(some[1]), n > 2 ? ", ..." : "");
    for (uint32_t i = 0; i < m->n_modules; i++)
        if (m->modules[i].parent == MODEL_NONE && m->modules[i].n_calls > 1)
            return arena_format(&m->arena,
                                "a step of the job calls its model %u times already, which may be "
                                "micro-batches: cutting its batch can't be predicted",
                                m->modules[i].n_calls);
    if (between)
        return "a step of the job updates parameters between its backward passes: cutting its "
               "batch can't be predicted";
    return NULL;
}

static const char *what_changes(struct dpro_model *m)
{
    const struct model_module *first = NULL;
    char others[40] = "";
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n_modules; i++)
        if (m->modules[i].has_statistics && m->modules[i].n_calls > 0) {
            first = first ? first : &m->modules[i];
            n++;
        }
    if (n == 0)
        return NULL;
    if (n > 1)
        snprintf(others, sizeof others, " and %u more", n - 1);
    return arena_format(&m->arena,
                        "%.200s (%.100s)%s take%s statistics of each micro-batch, not of the whole "
                        "batch: the job does not train to the same numbers; check its loss",
                        first->name, first->class, others, n > 1 ? "" : "s");
}

bool has_batch_statistics(const char *class)
{
    return strstr(class, "BatchNorm") && !text_begins(class, "Frozen");
}

void learn_batch_cut(const struct dpro_graph *graph, struct dpro_model *model)
{
    model->cut = (struct dpro_batch_cut){why_not(graph, model), what_changes(model)};
}
