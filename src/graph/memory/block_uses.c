/* Which calls of modules read or write a block, and when, from the tensors that the execution
 * trace's ops take and put out. */
#include "graph/memory/memory_build.h"

struct use {
    struct graph_use is;
    uint32_t block; /* of the result */
};
typedef ARRAY(struct use) use_array;

struct uses {
    struct memory_build *b;
    use_array all;
    struct map index; /* of a block, a call and its pass: in all */
};

static void add_use(struct uses *uses, uint64_t storage, int64_t ns, const struct trace_span *span,
                    const struct span_call *by)
{
    const struct memory_build *b = uses->b;
    uint32_t found = memory_block_of(b, storage, ns);
    if (found == NO_ID || b->blocks.at[found].is == NO_ID)
        return;
    const struct block_build *block = &b->blocks.at[found];
    uint32_t first = memory_place_of(b, MAX(span->start_ns, block->taken_ns));
    uint32_t last = memory_place_of(b, MIN(span_end_ns(span), block->given_ns));
    uint64_t key = map_mix(((uint64_t)block->is << 32 | by->call) * 2 + by->backward) | 1;
    uint64_t at = map_first(&uses->index, key, uses->all.n);
    if (at == uses->all.n) {
        array_add(&uses->all, {by->call, first, MAX(first, last), by->backward}, block->is);
        return;
    }
    struct graph_use *is = &uses->all.at[at].is;
    is->first = MIN(is->first, first);
    is->last = MAX(is->last, last);
}

ORDER(by_block, struct use, ASCENDING(block) ?: ASCENDING(is.first) ?: ASCENDING(is.backward));

void memory_find_uses(struct memory_build *b)
{
    struct uses uses = {.b = b};
    struct graph_memory *to = b->to;
    for (uint32_t n = 0; b->node_of_span && n < b->trace->n_et_nodes; n++) {
        const struct et_node *node = &b->trace->et_nodes[n];
        if (node->span == NO_ID || !memory_is_in_step(b, node->span))
            continue;
        const struct trace_span *span = &b->trace->spans[node->span];
        const struct span_call *by = &b->span_calls[node->span];
        EACH_INPUT (tensor, b, node)
            add_use(&uses, tensor->storage, span->start_ns, span, by);
        EACH_OUTPUT (tensor, b, node)
            add_use(&uses, tensor->storage, span_end_ns(span), span, by);
    }
    array_sort(&uses.all, by_block);
    to->n_uses = (uint32_t)uses.all.n;
    to->uses = mem_alloc((uses.all.n + 1) * sizeof *to->uses);
    for (uint32_t i = 0; i < to->n_uses; i++) {
        struct graph_block *block = &to->blocks[uses.all.at[i].block];
        if (block->n_uses++ == 0)
            block->first_use = i;
        to->uses[i] = uses.all.at[i].is;
    }
    FREE_ALL(&uses.all, &uses.index);
}
