/* The tensors that a collective's node takes, by a framework's graph. */

#include "graph/local/local_edges.h"

static bool tensors_packs(const char *type)
{
    return text_begins(type, "Concat") || strcmp(type, "Pack") == 0;
}

/* Nodes that hand on what they take. */
static bool hands_on(const char *type)
{
    return text_is_one(type, "Reshape", "Identity");
}

/* The last op that ran a node; NO_ID. */
static uint32_t op_of_node(const struct rank_build *rank, uint32_t node)
{
    for (uint32_t o = (uint32_t)rank->ops.n; o-- > 0;)
        if (dfg_node_of(rank, o) == node)
            return o;
    return NO_ID;
}

static void add_tensor(const struct rank_build *rank, const struct dfg_input *input,
                       node_tensors *tensors)
{
    enum { MOST_STEPS = 8 }; /* from one that hands on to the next */
    const struct trace_rank *trace = rank->trace;
    struct node_tensor tensor = {.from = NO_ID};
    for (uint32_t step = 0; step < MOST_STEPS; step++) {
        const struct dfg_node *node = &trace->dfg_nodes[input->node];
        tensor.name = node->name;
        tensor.output = input->output;
        if (tensor.from == NO_ID)
            tensor.from = op_of_node(rank, input->node);
        if (tensor.size_bytes == 0 && input->output == 0)
            tensor.size_bytes = node->size_bytes;
        if (!hands_on(dfg_type(rank, input->node)) || node->n_inputs == 0)
            break;
        input = &trace->dfg_inputs[node->first_input];
    }
    array_push(tensors, tensor);
}

/* Those of unknown size share what the known ones leave of the whole: of a fused op only the first
 * output's size is known, the others are a layer's biases. */
static void share_rest(node_tensors *tensors, uint64_t size_bytes)
{
    uint64_t known = 0, n_unknown = 0;
    for (size_t i = 0; i < tensors->n; i++) {
        known += tensors->at[i].size_bytes;
        n_unknown += tensors->at[i].size_bytes == 0;
    }
    for (size_t i = 0; i < tensors->n && known < size_bytes; i++)
        if (tensors->at[i].size_bytes == 0)
            tensors->at[i].size_bytes = (size_bytes - known) / n_unknown;
}

node_tensors local_node_tensors(const struct rank_build *rank, uint32_t op)
{
    const struct trace_rank *trace = rank->trace;
    node_tensors tensors = {0};
    uint32_t node = dfg_node_of(rank, op);
    if (node == NO_ID || trace->dfg_nodes[node].n_inputs == 0)
        return tensors;
    const struct dfg_input *taken = &trace->dfg_inputs[trace->dfg_nodes[node].first_input];
    const struct dfg_node *pack = &trace->dfg_nodes[taken->node];
    if (taken->control)
        return tensors;
    uint64_t size_bytes = 0; /* what a reduction puts out is as large as what it takes */
    if (dfg_type_starts(rank, node, "CollectiveReduce"))
        size_bytes = trace->dfg_nodes[node].size_bytes;
    if (tensors_packs(dfg_type(rank, taken->node))) {
        bool has_axis = dfg_type_starts(rank, taken->node, "Concat"); /* its last argument */
        uint32_t n = 0;
        while (n < pack->n_inputs && !trace->dfg_inputs[pack->first_input + n].control)
            n++;
        for (uint32_t i = 0; i + has_axis < n; i++)
            add_tensor(rank, &trace->dfg_inputs[pack->first_input + i], &tensors);
        size_bytes = pack->size_bytes ?: size_bytes;
    } else {
        add_tensor(rank, taken, &tensors);
    }
    share_rest(&tensors, size_bytes);
    return tensors;
}
