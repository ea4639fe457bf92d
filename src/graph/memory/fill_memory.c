/* Writes a rank's memory into the graph. */
#include <string.h>

#include "base/sort.h"
#include "graph/memory/rank_memory.h"
#include "graph/rank_build.h"

struct filler {
    const struct rank_build *rank;
    struct dpro_graph *graph;
    uint32_t first_op;
    struct map names; /* the trace's string id -> the graph's */
};

static uint32_t name_of(struct filler *filler, uint32_t id)
{
    uint64_t name;
    if (id == 0)
        return 0;
    if (!map_get(&filler->names, map_key(id), &name)) {
        name = strtab_add(&filler->graph->names, strtab_get(filler->rank->names, id),
                          strtab_len(filler->rank->names, id));
        map_set(&filler->names, map_key(id), name);
    }
    return (uint32_t)name;
}

static void *keep(struct filler *filler, const void *from, size_t n, size_t size)
{
    void *copy = arena_array(&filler->graph->arena, n + 1, size);
    if (n > 0)
        memcpy(copy, from, n * size);
    return copy;
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
    const struct graph_memory *from = &rank->memory->is;
    *to = *from;
    to->blocks = keep(&filler, from->blocks, from->n_blocks, sizeof *to->blocks);
    to->moments = keep(&filler, from->moments, from->n_moments, sizeof *to->moments);
    to->uses = keep(&filler, from->uses, from->n_uses, sizeof *to->uses);
    to->calls = keep(&filler, from->calls, from->n_calls, sizeof *to->calls);
    to->typed_ops = keep(&filler, from->typed_ops, from->n_typed_ops, sizeof *to->typed_ops);
    to->operands = keep(&filler, from->operands, from->n_operands, sizeof *to->operands);
    to->units = keep(&filler, from->units, from->n_units, sizeof *to->units);
    struct allocator_history *start = &to->start;
    start->requests = keep(&filler, start->requests, start->n_requests, sizeof *start->requests);
    start->segments = keep(&filler, start->segments, start->n_segments, sizeof *start->segments);
    start->blocks = keep(&filler, start->blocks, start->n_blocks, sizeof *start->blocks);
    for (uint32_t i = 0; i < to->n_blocks; i++)
        to->blocks[i].name = name_of(&filler, from->blocks[i].name);
    for (uint32_t m = 0; m < to->n_moments; m++)
        if (to->moments[m].op != DPRO_NO_OP)
            to->moments[m].op += first_op;
    for (uint32_t c = 0; c < to->n_calls; c++) {
        to->calls[c].module = name_of(&filler, from->calls[c].module);
        to->calls[c].class = name_of(&filler, from->calls[c].class);
    }
    to->n_op_calls = to->n_calls > 0 ? rank->n_timed : 0;
    to->op_calls = keep(&filler, rank->memory->op_call, to->n_op_calls, sizeof *to->op_calls);
    to->op_splits = keep(&filler, rank->memory->op_split, to->n_op_splits, sizeof *to->op_splits);
    time_calls(&filler, to);
    map_fini(&filler.names);
}
