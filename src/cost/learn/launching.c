/* What the threads of a GPU's job, which launch its work, take by themselves. */

#include "cost/program/cost.h"
#include "cost/program/evaluate.h"
#include "cost/program/program_writer.h"
#include "replay/replay.h"

static bool on_thread(const struct dpro_graph *g, uint32_t op)
{
    return g->device[op] != DPRO_NO_DEVICE && !(g->flags[op] & GRAPH_OP_GPU) &&
           g->devices[g->device[op]].kind == DPRO_DEVICE_CPU_THREAD;
}

static int64_t *only_on_threads(const struct dpro_graph *g, const int64_t *ns, struct arena *arena)
{
    int64_t *kept = arena_array(arena, g->n_ops, sizeof *kept);
    for (uint32_t op = 0; op < g->n_ops; op++)
        if (ns && on_thread(g, op))
            kept[op] = ns[op];
    return kept;
}

int launching_alone(const struct dpro_graph *graph, int64_t *alone_ns, struct dpro_error *err)
{
    struct arena arena = {0};
    *alone_ns = 0;
    if (!job_has_gpu(graph))
        return 0;
    struct dpro_graph launching = *graph;
    launching.dur_ns = only_on_threads(graph, graph->dur_ns, &arena);
    launching.gap_ns = only_on_threads(graph, graph->gap_ns, &arena);
    launching.sample_dur_ns = launching.sample_gap_ns = NULL;
    launching.lead_dur_ns = launching.lead_gap_ns = NULL;
    launching.n_samples = 0;
    int rc = dpro_replay_predict(&launching, NULL, alone_ns, err);
    arena_fini(&arena);
    return rc;
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
            ns += (double)(g->dur_ns[op] + (g->gap_ns ? g->gap_ns[op] : 0));
    return ns;
}

int learn_launching(const struct dpro_graph *g, const struct coarse *coarse,
                    struct dpro_model *model, struct dpro_error *err)
{
    const double LAUNCH_BOUND = 0.9; /* of the iteration */
    int64_t alone_ns, ns = 0, model_ns = evaluate_once(model);
    int rc = launching_alone(g, &alone_ns, err);
    if (rc == 0 && alone_ns > 0)
        rc = dpro_replay_predict(g, NULL, &ns, err);
    if (rc < 0 || ns <= 0 || model_ns == INT64_MAX)
        return rc;
    double share = fmin((double)alone_ns / (double)ns, 1);
    model->launching_ns = scaled_ns(share, model_ns);
    for (uint32_t r = 0; r < g->n_ranks && share > LAUNCH_BOUND && launches_run_ahead(g); r++) {
        const struct model_program *program = &model->programs[r];
        double works = stream_work_ns(g, &g->ranks[r], coarse) / program_work_ns(program);
        EACH_OF (struct model_op, op, program->ops, program->n_ops)
            model_scale_op(op, fmin(works, 1));
    }
    return 0;
}
