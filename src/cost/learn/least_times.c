/* What no iteration goes below, whatever overlaps: what the threads of a GPU's job take, which
 * launch its work, and what links carry. */

#include "cost/program/cost.h"
#include "cost/program/evaluator.h"
#include "cost/program/program_writer.h"
#include "replay/replay.h"

static bool on_thread(const struct dpro_graph *g, uint32_t op)
{
    return !(g->flags[op] & GRAPH_OP_GPU) && graph_is_on(g, op, DPRO_DEVICE_CPU_THREAD);
}

static int64_t *only_on_threads(const struct dpro_graph *g, const int64_t *ns, bool passes,
                                struct arena *arena)
{
    int64_t *kept = arena_array(arena, g->n_ops, sizeof *kept);
    for (uint32_t op = 0; op < g->n_ops; op++)
        if (ns && on_thread(g, op) && (passes || !op_is_of_pass(g, op)))
            kept[op] = ns[op];
    return kept;
}

/* With passes forward and back, or what is left without them. */
static int64_t threads_alone(const struct dpro_graph *graph, bool passes)
{
    SCRATCH_ARENA struct arena arena = {0};
    struct dpro_error why;
    int64_t alone_ns;
    struct dpro_graph launching = *graph;
    launching.dur_ns = only_on_threads(graph, graph->dur_ns, passes, &arena);
    launching.gap_ns = only_on_threads(graph, graph->gap_ns, passes, &arena);
    launching.sample_dur_ns = launching.sample_gap_ns = NULL;
    launching.lead_dur_ns = launching.lead_gap_ns = NULL;
    launching.n_samples = 0;
    fail_on(dpro_replay_predict(&launching, NULL, &alone_ns, &why), &why);
    return alone_ns;
}

int64_t launching_alone(const struct dpro_graph *graph)
{
    return job_has_gpu(graph) ? threads_alone(graph, true) : 0;
}

static bool launches_work(const struct dpro_graph *g, uint32_t op)
{
    uint32_t n;
    const dpro_op_id *succ = dpro_graph_successors(g, op, false, &n);
    for (uint32_t i = 0; i < n; i++)
        if (g->flags[succ[i]] & GRAPH_OP_GPU)
            return true;
    return false;
}

/* That a launch waits is of its full queue: it is ahead all the same. */
bool launches_run_ahead(const struct dpro_graph *g)
{
    for (uint32_t op = 0; op < g->n_ops; op++)
        for (int next = 0; next < 2 && g->flags[op] & GRAPH_OP_GPU; next++) {
            uint32_t n;
            const dpro_op_id *succ = dpro_graph_successors(g, op, next, &n);
            for (uint32_t i = 0; i < n; i++)
                if (on_thread(g, succ[i]) && !launches_work(g, succ[i]))
                    return false;
        }
    return true;
}

/* What the rank's stream that computes longest works in an iteration. */
static double stream_work_ns(const struct dpro_graph *g, const struct graph_rank *rank,
                             const struct coarse *coarse)
{
    uint32_t stream = rank_main_stream(g, rank);
    double ns = 0;
    for (uint32_t op = rank->first_op; op < rank->first_op + rank->n_ops; op++)
        if (g->device[op] == stream && !coarse->transfer_of[op])
            ns += (double)(g->dur_ns[op] + g->gap_ns[op]);
    return ns;
}

/* Returns the model's iteration. */
static int64_t learn_carried(struct dpro_model *model)
{
    struct evaluator *e = evaluator_create(model);
    int64_t ns = evaluate_strategy(e, &model->baseline);
    double largest = 0, carried_ns = evaluator_carried_ns(e);
    model_sent_bytes(model, model->n_ranks, false, &largest);
    for (uint32_t b = 0; b < e->strategy->n_buckets; b++)
        largest = fmax(largest, (double)e->buckets[b].size_bytes);
    if (model->n_communications > 0 && largest > MODEL_BUFFER_BYTES && carried_ns > 0)
        model->carried_share = fmin(1, (double)ns / carried_ns);
    evaluator_destroy(e);
    return ns;
}

void learn_least_times(const struct dpro_graph *g, const struct coarse *coarse,
                       struct dpro_model *model)
{
    const double LAUNCH_BOUND = 0.9; /* of the iteration */
    struct dpro_error why;
    int64_t rest_ns = 0, ns = 0, model_ns = learn_carried(model), alone_ns = launching_alone(g);
    if (alone_ns > 0) {
        fail_on(dpro_replay_predict(g, NULL, &ns, &why), &why);
        rest_ns = threads_alone(g, false);
    }
    if (ns <= 0 || model_ns == INT64_MAX)
        return;
    double paused_ns = 0; /* which programs do not have */
    for (uint32_t s = 0; s < model->n_samples; s++)
        paused_ns += model_sample_pause(model->ranks, model->n_ranks, s) / model->n_samples;
    double share = ((double)alone_ns - paused_ns) / ((double)ns - paused_ns);
    share = paused_ns < (double)ns ? fmax(0, fmin(share, 1)) : 0;
    model->launching_ns = scaled_ns(share, model_ns);
    model->launching_passes = alone_ns > 0 ? 1 - (double)rest_ns / (double)alone_ns : 0;
    model->launches_ahead = launches_run_ahead(g);
    bool ahead = share > LAUNCH_BOUND && !g->single_iteration && model->launches_ahead;
    for (uint32_t r = 0; r < g->n_ranks && ahead; r++) {
        const struct model_program *program = &model->programs[r];
        double works = stream_work_ns(g, &g->ranks[r], coarse) / program_work_ns(program);
        EACH_OF (struct model_op, op, program->ops, program->n_ops)
            model_scale_op(op, fmin(works, 1));
    }
}
