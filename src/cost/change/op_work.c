/* What each op takes with another batch, other modules or parts of tensors.
 *
 * Each op of a forward or backward pass takes so many times as long: what grows with the batch by
 * the batch's size, what a module computes by the way in which it is computed. A recomputation
 * takes its time within the ops of the module's backward pass. */
#include "cost/change/op_work.h"

#include "cost/memory/lifetimes.h"
#include "cost/program/cost.h"
#include "cost/program/model_memory.h"
#include "cost/program/modules.h"
#include "cost/program/strategy_work.h"
#include "replay/replay.h"

/* What becomes of the ops of a call. */
struct call_factors {
    double forward, backward;
};

struct work_maker {
    const struct dpro_graph *g;
    const struct dpro_model *m;
    bool passes_alone;
    struct rank_share rank_share;
    struct batch_point batch;         /* of a micro-batch */
    const struct call_factors *calls; /* of the rank at hand */
    bool gpu;                         /* likewise */
    double share; /* of what grows with the batch; where nothing was measured of it */
};

double micro_batch_ratio(const struct dpro_model *m)
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
static struct call_factors *find_factors(const struct work_maker *w, uint32_t rank,
                                         struct arena *arena)
{
    const struct dpro_model *m = w->m;
    const struct model_program *p = &m->programs[m->ranks[rank].program];
    if (p->n_calls == 0)
        return NULL;
    const struct model_memory *memory = &m->memories[m->ranks[rank].memory];
    struct recomputed_calls again = recomputed_calls_of(memory, m->baseline.recomputed, arena);
    uint32_t *root = arena_array(arena, p->n_calls + (size_t)1, sizeof *root);
    if (m->baseline.computing)
        CALLS_OUTERMOST(root, p->calls, p->n_calls, c, m->baseline.computing[p->calls[c].module]);
    struct call_factors *calls = arena_array(arena, p->n_calls + (size_t)1, sizeof *calls);
    for (uint32_t c = 0; c < p->n_calls; c++) {
        calls[c] = (struct call_factors){1, 1};
        if (m->baseline.computing && root[c] != MODEL_NONE) {
            const struct computing_cost *cost = way_of(m, p->calls[root[c]].module);
            calls[c] = (struct call_factors){cost->forward.value, cost->backward.value};
        }
    }
    for (uint32_t c = 0; c < p->n_calls; c++) { /* the outer call comes first */
        uint32_t outer = again.root[c];
        if (outer == MODEL_NONE || p->calls[outer].backward_ns <= 0)
            continue;
        const struct model_call *of = &p->calls[outer];
        double forward = (double)of->recompute_ns * calls[outer].forward;
        if (m->n_batch_points > 0)
            forward *= w->batch.forward.value / w->batch.backward.value;
        calls[c].backward += forward / (double)of->backward_ns;
    }
    return calls;
}

/* An op with so many times as much to do, beyond its launch. */
static double with_more(double ns, bool gpu, double times)
{
    double fixed = fmin(ns, gpu ? BATCH_GPU_OP_NS : BATCH_CPU_OP_NS);
    return fixed + (ns - fixed) * times;
}

/* Which part of an op is the same for each batch: see learn/batch.c. */
static double of_batch(const struct work_maker *w, uint32_t op, bool gpu, double ns)
{
    bool backward = w->g->phase[op] == DPRO_OP_BW;
    if (w->g->flags[op] & GRAPH_OP_UNIT)
        return ns;
    if (w->m->n_batch_points > 0)
        return ns * (backward ? w->batch.backward.value : w->batch.forward.value);
    return with_more(ns, gpu, w->share);
}

/* The part of it that ranks with split tensors share out. */
static float split_of(const struct work_maker *w, uint32_t op)
{
    const struct graph_memory *memory = w->g->memory ? &w->g->memory[w->g->rank[op]] : NULL;
    uint32_t number = op - w->g->ranks[w->g->rank[op]].first_op;
    return memory && number < memory->n_op_splits ? memory->op_splits[number] : 0;
}

static uint32_t call_of(const struct work_maker *w, uint32_t op)
{
    const struct graph_memory *memory = w->g->memory ? &w->g->memory[w->g->rank[op]] : NULL;
    uint32_t number = op - w->g->ranks[w->g->rank[op]].first_op;
    return memory && number < memory->n_op_calls ? memory->op_calls[number] : MEMORY_NONE;
}

static double work_ns(const struct work_maker *w, uint32_t op)
{
    double ns = (double)w->g->dur_ns[op];
    bool gpu = w->gpu;
    float split = split_of(w, op);
    if (split == SPLIT_UNSPLITS && w->rank_share.whole)
        return 0;
    if (!op_computes(w->g, op))
        return ns;
    if (split > 0)
        ns = with_more(ns, gpu, 1 + split * (w->rank_share.tensors - 1));
    if (!op_is_of_pass(w->g, op)) {
        if (w->g->phase[op] == DPRO_OP_UPDATE)
            ns = with_more(ns, gpu, w->rank_share.shards);
        return w->passes_alone ? 0 : ns;
    }
    ns = of_batch(w, op, gpu, ns);
    uint32_t call = call_of(w, op);
    const struct call_factors *calls = w->calls;
    if (call == MEMORY_NONE || !calls || (w->g->flags[op] & GRAPH_OP_UNIT))
        return ns;
    return ns * (call % 2 ? calls[call / 2].backward : calls[call / 2].forward);
}

/* What lies between ops is the same for each batch. */
static bool has_gap(const struct work_maker *w, uint32_t op)
{
    bool unsplits = split_of(w, op) == SPLIT_UNSPLITS && w->rank_share.whole;
    return !unsplits && !(w->passes_alone && op_computes(w->g, op) && !op_is_of_pass(w->g, op));
}

struct op_work *op_work_as_in(const struct dpro_graph *g, double pace, struct arena *arena)
{
    struct op_work *work = arena_alloc(arena, sizeof *work);
    work->pace = pace;
    work->ns = arena_array(arena, g->n_ops + (size_t)1, sizeof *work->ns);
    work->has_gap = arena_array(arena, g->n_ops + (size_t)1, sizeof *work->has_gap);
    for (uint32_t op = 0; op < g->n_ops; op++) {
        work->ns[op] = (double)g->dur_ns[op];
        work->has_gap[op] = true;
    }
    return work;
}

const struct op_work *op_work_of(const struct dpro_graph *graph, const struct dpro_model *model,
                                 bool passes_alone, struct rank_share share, struct arena *arena)
{
    double ratio = micro_batch_ratio(model);
    struct op_work *work = op_work_as_in(graph, 0, arena);
    struct work_maker w = {.g = graph,
                           .m = model,
                           .passes_alone = passes_alone,
                           .rank_share = share,
                           .batch = batch_at(model, ratio),
                           .share = ratio};
    for (uint32_t r = 0; r < graph->n_ranks; r++) {
        const struct graph_rank *rank = &graph->ranks[r];
        w.gpu = rank_has_gpu(graph, rank);
        w.calls = find_factors(&w, r, arena);
        for (uint32_t op = rank->first_op; op < rank->first_op + rank->n_ops; op++) {
            work->ns[op] = work_ns(&w, op);
            work->has_gap[op] = has_gap(&w, op);
        }
    }
    return work;
}

/* Of each op, its time against that of the graph. */
struct op_ratios {
    double *of_op, *of_gap;
    uint32_t n;
};

static void change_times(void *arg, bool gaps, int64_t *ns)
{
    const struct op_ratios *ratios = arg;
    for (uint32_t op = 0; op < ratios->n; op++)
        ns[op] = llround((gaps ? ratios->of_gap : ratios->of_op)[op] * (double)ns[op]);
}

void op_work_graph(const struct op_work *w, const struct dpro_graph *graph, const bool *gone,
                   struct arena *arena, struct dpro_graph *to)
{
    uint32_t n = graph->n_ops;
    struct op_ratios ratios = {arena_array(arena, n + (size_t)1, sizeof(double)),
                               arena_array(arena, n + (size_t)1, sizeof(double)), n};
    for (uint32_t op = 0; op < n; op++) {
        bool is = !(gone && gone[op]);
        double ns = (double)graph->dur_ns[op];
        ratios.of_op[op] = !is ? 0 : w && ns > 0 ? w->ns[op] / ns : 1;
        ratios.of_gap[op] = is && (!w || w->has_gap[op]);
    }
    *to = *graph;
    graph_change_times(to, true, change_times, &ratios, arena);
}
