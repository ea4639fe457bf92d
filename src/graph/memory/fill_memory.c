/* Writes a rank's memory into the graph. */

#include "graph/memory/rank_memory.h"
#include "graph/rank_build.h"

#define ITEMS(member) PACKED_ITEMS(struct graph_memory, member, n_##member)
const struct packed graph_memory_items[] = {
    ITEMS(blocks),    ITEMS(moments),  ITEMS(uses),  ITEMS(calls),     ITEMS(op_calls),
    ITEMS(typed_ops), ITEMS(operands), ITEMS(units), ITEMS(op_splits), PACKED_LAST};

struct filler {
    const struct rank_build *rank;
    struct dpro_graph *graph;
    uint32_t first_op;
};

static uint32_t name_of(const struct filler *filler, uint32_t id)
{
    return strtab_copy(&filler->graph->names, filler->rank->names, id);
}

static void add_work(struct graph_call *call, bool backward, uint32_t op, int64_t ns)
{
    uint32_t *first = backward ? &call->first_backward_op : &call->first_forward_op;
    int64_t *sum = backward ? &call->backward_ns : &call->forward_ns;
    *first = *first == DPRO_NO_OP ? op : MIN(*first, op);
    *sum = MIN(*sum + ns, INT64_MAX / 2);
}

/* What its ops take, on the GPU where it has any there, with those of the calls within it. Inner
 * calls come later. */
static void time_calls(const struct filler *filler, struct graph_memory *to)
{
    const struct dpro_graph *g = filler->graph;
    const uint32_t *op_call = to->op_calls;
    for (uint32_t o = 0; o < to->n_op_calls; o++) {
        uint32_t op = filler->first_op + o;
        if (op_call[o] == MEMORY_NONE)
            continue;
        bool counts = !to->gpu || g->flags[op] & GRAPH_OP_GPU;
        add_work(&to->calls[op_call[o] / 2], op_call[o] % 2, op,
                 counts ? MIN(g->dur_ns[op], INT64_MAX / 4) : 0);
    }
    for (uint32_t c = to->n_calls; c-- > 0;) {
        const struct graph_call *call = &to->calls[c];
        if (call->parent == MEMORY_NONE)
            continue;
        struct graph_call *parent = &to->calls[call->parent];
        if (call->first_forward_op != DPRO_NO_OP)
            add_work(parent, false, call->first_forward_op, call->forward_ns);
        if (call->first_backward_op != DPRO_NO_OP)
            add_work(parent, true, call->first_backward_op, call->backward_ns);
    }
}

void rank_memory_fill(const struct rank_build *rank, struct dpro_graph *graph, uint32_t first_op,
                      struct graph_memory *to)
{
    struct filler filler = {.rank = rank, .graph = graph, .first_op = first_op};
    if (!rank->memory) {
        to->source = DPRO_MEMORY_UNKNOWN;
        return;
    }
    const struct graph_memory *from = rank->memory;
    *to = *from;
    to->n_op_calls = to->n_calls > 0 ? to->n_op_calls : 0;
    packed_copy(graph_memory_items, to, &graph->arena);
    for (uint32_t i = 0; i < to->n_blocks; i++)
        to->blocks[i].name = name_of(&filler, from->blocks[i].name);
    for (uint32_t m = 0; m < to->n_moments; m++)
        if (to->moments[m].op != DPRO_NO_OP)
            to->moments[m].op += first_op;
    for (uint32_t c = 0; c < to->n_calls; c++) {
        to->calls[c].module = name_of(&filler, from->calls[c].module);
        to->calls[c].class = name_of(&filler, from->calls[c].class);
    }
    time_calls(&filler, to);
}
