/* Each op of a forward or backward pass takes so many times as long: what grows with the batch by
 * the batch's size, what a module computes by the way in which it is computed. A recomputation
 * takes its time within the ops of the module's backward pass. */
#include "cost/graph_work.h"

#include <math.h>

#include "base/sort.h"
#include "cost/cost.h"
#include "cost/lifetimes.h"
#include "cost/model_memory.h"
#include "cost/strategy_work.h"

/* ---- the model ---- */

static int64_t work_of(const struct dpro_graph *g, const struct graph_rank *rank)
{
    bool gpu = rank_has_gpu(g, rank);
    int64_t ns = 0;
    for (uint32_t op = rank->first_op; op < rank->first_op + rank->n_ops; op++)
        if (op_computes(g, op) && (!gpu || (g->flags[op] & GRAPH_OP_GPU)))
            ns += g->dur_ns[op] + (gpu || !g->gap_ns ? 0 : g->gap_ns[op]);
    return ns;
}

void graph_model(const struct measured_replay *replay, const struct dpro_probes *probes,
                 struct dpro_model *model)
{
    const struct dpro_graph *graph = replay->graph;
    struct coarse coarse = {.ranks = NULL};
    *model = (struct dpro_model){.probes = probes, .pace = {1, 1}, .page_faults = -1};
    model->n_ranks = model->n_programs = graph->n_ranks;
    model->ranks = arena_array(&model->arena, graph->n_ranks, sizeof *model->ranks);
    model->programs = arena_array(&model->arena, graph->n_ranks, sizeof *model->programs);
    coarse.ranks = arena_array(&model->arena, graph->n_ranks, sizeof *coarse.ranks);
    for (uint32_t r = 0; r < graph->n_ranks; r++) {
        struct model_op *op = arena_array(&model->arena, 1, sizeof *op);
        *op = (struct model_op){.name = "an iteration",
                                .phase = DPRO_OP_BW,
                                .needs = MODEL_NONE,
                                .tensor = MODEL_NONE,
                                .work_ns = work_of(graph, &graph->ranks[r])};
        model->programs[r] = (struct model_program){.ops = op, .n_ops = 1};
        model->ranks[r] =
            (struct model_rank){.rank = graph->ranks[r].rank, .program = r, .work_scale = 1};
    }
    learn_batch_shares(replay, &coarse, model);
    model_memory_learn(replay, &coarse, model);
    learn_batch_cut(graph, model);
    learn_module_costs(replay, &coarse, model);
    learn_batch_curve(model);
}

/* ---- the graph ---- */

/* What becomes of the ops of a call. */
struct call_factors {
    double forward, backward;
};

struct worker {
    const struct dpro_graph *g;
    const struct dpro_model *m;
    bool passes_alone;
    struct rank_share rank_share;
    struct batch_point batch;   /* of a micro-batch */
    struct call_factors *calls; /* of the rank at hand */
    double share;               /* of what grows with the batch; where nothing was measured of it */
    bool gpu;
};

double graph_batch_ratio(const struct dpro_model *m)
{
    double ratio = m->memory.batch_ratio > 0 ? m->memory.batch_ratio : 1;
    return ratio / MAX(m->baseline.micro_batches, 1);
}

static const struct computing_cost *way_of(const struct dpro_model *m, uint32_t module)
{
    return &m->modules[module].costs[m->baseline.computing[module] % DPRO_N_COMPUTINGS];
}

/* A recomputation begins with the backward pass of the outermost recomputed call. Its time goes
 * with the batch as that of forward passes does, though it is a part of the backward pass's. */
static void find_factors(struct worker *w, uint32_t rank, struct arena *arena)
{
    const struct dpro_model *m = w->m;
    const struct model_program *p = &m->programs[m->ranks[rank].program];
    if (p->n_calls == 0)
        return;
    const struct model_memory *memory = &m->memories[m->ranks[rank].memory];
    struct recomputed_calls again = recomputed_calls_of(memory, m->baseline.recomputed, arena);
    uint32_t *root = arena_array(arena, p->n_calls + (size_t)1, sizeof *root);
    if (m->baseline.computing)
        strategy_computed_calls(p, m->baseline.computing, root);
    w->calls = arena_array(arena, p->n_calls + (size_t)1, sizeof *w->calls);
    for (uint32_t c = 0; c < p->n_calls; c++) {
        w->calls[c] = (struct call_factors){1, 1};
        if (m->baseline.computing && root[c] != MODEL_NONE) {
            const struct computing_cost *cost = way_of(m, p->calls[root[c]].module);
            w->calls[c] = (struct call_factors){cost->forward.value, cost->backward.value};
        }
    }
    for (uint32_t c = 0; c < p->n_calls; c++) { /* the outer call comes first */
        uint32_t outer = again.root[c];
        if (outer == MODEL_NONE || p->calls[outer].backward_ns <= 0)
            continue;
        const struct model_call *of = &p->calls[outer];
        double forward = (double)of->recompute_ns * w->calls[outer].forward;
        if (m->n_batch_points > 0)
            forward *= w->batch.forward.value / w->batch.backward.value;
        w->calls[c].backward += forward / (double)of->backward_ns;
    }
}

/* An op with so many times as much to do, beyond its launch. */
static double with_more(const struct worker *w, double ns, double times)
{
    double fixed = fmin(ns, w->gpu ? BATCH_GPU_OP_NS : BATCH_CPU_OP_NS);
    return fixed + (ns - fixed) * times;
}

/* Which part of an op is the same for each batch: see batch_share.c. */
static double of_batch(const struct worker *w, uint32_t op, double ns)
{
    bool backward = w->g->phase[op] == DPRO_OP_BW;
    if (w->g->flags[op] & GRAPH_OP_UNIT)
        return ns;
    if (w->m->n_batch_points > 0)
        return ns * (backward ? w->batch.backward.value : w->batch.forward.value);
    return with_more(w, ns, w->share);
}

static bool is_of_pass(const struct dpro_graph *g, uint32_t op)
{
    return g->phase[op] == DPRO_OP_FW || g->phase[op] == DPRO_OP_BW;
}

/* `split`: the part of it that ranks with split tensors share out. */
static double changed_ns(const struct worker *w, uint32_t op, uint32_t call, float split, double ns)
{
    if (!op_computes(w->g, op))
        return ns;
    if (split > 0)
        ns = with_more(w, ns, 1 + split * (w->rank_share.tensors - 1));
    if (!is_of_pass(w->g, op)) {
        if (w->g->phase[op] == DPRO_OP_UPDATE)
            ns = with_more(w, ns, w->rank_share.shards);
        return w->passes_alone ? 0 : ns;
    }
    ns = of_batch(w, op, ns);
    if (call == MEMORY_NONE || (w->g->flags[op] & GRAPH_OP_UNIT))
        return ns;
    return ns * (call % 2 ? w->calls[call / 2].backward : w->calls[call / 2].forward);
}

static int64_t *copy_times(const struct dpro_graph *g, const int64_t *ns, uint32_t n,
                           struct arena *arena)
{
    size_t n_values = (size_t)n * g->n_ops;
    if (!ns)
        return NULL;
    int64_t *copy = arena_array(arena, n_values + 1, sizeof *copy);
    for (size_t i = 0; i < n_values; i++)
        copy[i] = ns[i];
    return copy;
}

/* Times of so many iterations. What lies between ops is the same for each batch. */
static void change_rank(const struct worker *w, uint32_t rank, uint32_t n, int64_t *dur_ns,
                        int64_t *gap_ns)
{
    const struct graph_rank *ops = &w->g->ranks[rank];
    const struct graph_memory *memory = w->g->memory ? &w->g->memory[rank] : NULL;
    uint32_t n_plain = ops->n_ops - ops->n_message_ops;
    for (uint32_t s = 0; s < n && dur_ns; s++)
        for (uint32_t o = 0; o < n_plain; o++) {
            uint32_t op = ops->first_op + o;
            bool known = memory && o < memory->n_op_calls;
            uint32_t call = known ? memory->op_calls[o] : MEMORY_NONE;
            size_t at = (size_t)s * w->g->n_ops + op;
            float split = memory && o < memory->n_op_splits ? memory->op_splits[o] : 0;
            if (split == SPLIT_UNSPLITS && w->rank_share.whole) {
                dur_ns[at] = 0;
                if (gap_ns)
                    gap_ns[at] = 0;
                continue;
            }
            dur_ns[at] = llround(changed_ns(w, op, call, split, (double)dur_ns[at]));
            if (gap_ns && w->passes_alone && op_computes(w->g, op) && !is_of_pass(w->g, op))
                gap_ns[at] = 0;
        }
}

void graph_with_work(const struct dpro_graph *graph, const struct dpro_model *model,
                     bool passes_alone, struct rank_share share, struct arena *arena,
                     struct dpro_graph *to)
{
    struct worker w = {.g = graph, .m = model, .passes_alone = passes_alone, .rank_share = share};
    double ratio = graph_batch_ratio(model);
    *to = *graph;
    to->dur_ns = copy_times(graph, graph->dur_ns, 1, arena);
    to->gap_ns = copy_times(graph, graph->gap_ns, 1, arena);
    to->sample_dur_ns = copy_times(graph, graph->sample_dur_ns, graph->n_samples, arena);
    to->sample_gap_ns = copy_times(graph, graph->sample_gap_ns, graph->n_samples, arena);
    to->lead_dur_ns = copy_times(graph, graph->lead_dur_ns, 1, arena);
    to->lead_gap_ns = copy_times(graph, graph->lead_gap_ns, 1, arena);
    w.batch = batch_at(model, ratio);
    w.share = ratio;
    for (uint32_t r = 0; r < graph->n_ranks; r++) {
        w.gpu = rank_has_gpu(graph, &graph->ranks[r]);
        find_factors(&w, r, arena);
        change_rank(&w, r, 1, to->dur_ns, to->gap_ns);
        change_rank(&w, r, graph->n_samples, to->sample_dur_ns, to->sample_gap_ns);
        change_rank(&w, r, 1, to->lead_dur_ns, to->lead_gap_ns);
    }
}
