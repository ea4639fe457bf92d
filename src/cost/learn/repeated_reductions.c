/* Gradients that each micro-batch of an iteration reduces. */

#include "cost/program/cost.h"
#include "cost/program/evaluate.h"

struct gradient_asked {
    int64_t when_ns; /* by the program of the first rank */
    uint64_t size_bytes;
};

ORDER(by_asking, struct gradient_asked, ASCENDING(when_ns));

/* The gradients, by when their collectives are asked for. */
static void find_asked(const struct measured_replay *r, struct gradient_asked *asked, uint32_t most,
                       uint32_t *n)
{
    const struct dpro_graph *g = r->graph;
    const int64_t *end_ns = r->copies[r->first].end_ns;
    SCRATCH int64_t *when_ns = mem_array(g->n_ops, sizeof *when_ns);
    for (uint32_t op = 0; op < g->n_ops; op++)
        for (uint32_t e = g->row[op]; e < g->row[op + 1] && !(g->flags[op] & GRAPH_OP_GPU); e++)
            when_ns[g->succ[e]] = MAX(when_ns[g->succ[e]], end_ns[op]);
    EACH_OF (const struct graph_tensor, tensor, g->tensors, g->n_tensors) {
        if (!is_gradient(g, tensor, true) || *n == most)
            continue;
        uint32_t first = g->collectives[tensor->collective].first_member;
        asked[(*n)++] =
            (struct gradient_asked){when_ns[g->members[first].arrival], tensor->size_bytes};
    }
}

/* Whether the first rank's program computes forward between two times. */
static bool is_forward_between(const struct measured_replay *r, int64_t from_ns, int64_t to_ns)
{
    const struct dpro_graph *g = r->graph;
    bool found = false;
    for (uint32_t op = 0; op < g->n_ops && !found; op++) {
        int64_t end_ns = r->copies[r->first].end_ns[op];
        found = g->rank[op] == 0 && g->kind[op] == DPRO_OP_FW && !(g->flags[op] & GRAPH_OP_GPU) &&
                end_ns > from_ns && end_ns < to_ns;
    }
    return found;
}

void refuse_micro_batches(const struct dpro_model *model)
{
    uint32_t n = model->recorded ? model->recorded->graph->ranks[0].n_micro_batches : 0;
    if (n < 2 || model->n_tensors == 0 || model->n_tensors % n != 0)
        return;
    uint32_t of_one = model->n_tensors / n, n_asked = 0;
    SCRATCH struct gradient_asked *asked = mem_alloc(model->n_tensors * sizeof *asked);
    find_asked(model->recorded, asked, model->n_tensors, &n_asked);
    qsort(asked, n_asked, sizeof *asked, by_asking);
    for (uint32_t t = of_one; t < model->n_tensors; t++)
        if (n_asked < model->n_tensors || asked[t].size_bytes != asked[t - of_one].size_bytes ||
            (t % of_one == 0 &&
             !is_forward_between(model->recorded, asked[t - 1].when_ns, asked[t].when_ns)))
            return;
    struct dpro_model once = *model;
    SCRATCH struct model_tensor *tensors = mem_alloc(model->n_tensors * sizeof *tensors);
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        tensors[t] = model->tensors[t];
        tensors[t].size_bytes *= t >= model->n_tensors - of_one;
    }
    once.tensors = tensors;
    double less_ms = (double)(evaluate_once(model) - evaluate_once(&once)) / 1e6;
    fail_with(
        DPRO_EUSAGE,
        "the gradients are reduced %u times an iteration, after each micro-batch: no_sync() "
        "around all but the last leaves %u of them out, about %.3g ms an iteration; no bucket "
        "holds gradients of two micro-batches, so ask for buckets after that",
        n, n - 1, less_ms);
}
