/* Gradients that each micro-batch of an iteration reduces. */

#include "cost/program/cost.h"
#include "cost/program/evaluate.h"

/* Whether the first rank computes forward between two of its ops, on what these are on. */
static bool is_forward_between(const struct measured_replay *r, uint32_t from, uint32_t to)
{
    const struct dpro_graph *g = r->graph;
    const int64_t *end_ns = r->copies[r->first].end_ns;
    bool found = false;
    for (uint32_t op = 0; op < g->n_ops && !found; op++)
        found = g->rank[op] == 0 && g->kind[op] == DPRO_OP_FW &&
                !((g->flags[op] ^ g->flags[from]) & GRAPH_OP_GPU) && end_ns[op] > end_ns[from] &&
                end_ns[op] < end_ns[to];
    return found;
}

void refuse_micro_batches(const struct dpro_model *model)
{
    uint32_t n = model->recorded ? model->recorded->graph->ranks[0].n_micro_batches : 0;
    if (n < 2 || model->n_tensors == 0 || model->n_tensors % n != 0)
        return;
    uint32_t of_one = model->n_tensors / n;
    for (uint32_t t = of_one; t < model->n_tensors; t++) {
        const struct model_tensor *tensor = &model->tensors[t], *before = tensor - of_one;
        if (tensor->size_bytes != before->size_bytes ||
            (t % of_one == 0 &&
             (tensor->maker == 0 || tensor[-1].maker == 0 ||
              !is_forward_between(model->recorded, tensor[-1].maker - 1, tensor->maker - 1))))
            return;
    }
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
