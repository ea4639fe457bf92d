/* The blocks that FSDP takes for gathered parameters, and where its units' passes begin and end.
 * Whatever is taken while a thread gathers is for that, also by the threads of the collective that
 * it waits for. */
#include "graph/memory/memory_build.h"

struct blocks_gathering {
    int64_t start_ns, end_ns;
    uint32_t gather, track;
    bool copies_out;
    uint32_t first_block, last_block; /* taken for it; NO_ID: none */
};
typedef ARRAY(struct blocks_gathering) gatherings;

ORDER(by_start, struct blocks_gathering, ASCENDING(start_ns));

/* Spans of the iteration that gather, and the units' places. */
static gatherings blocks_list(struct memory_build *b)
{
    gatherings all = {0};
    for (uint32_t s = 0; s < b->trace->n_spans; s++) {
        const struct trace_span *span = &b->trace->spans[s];
        struct blocks_gathering it = {.start_ns = span->start_ns,
                                      .end_ns = span_end_ns(span),
                                      .track = span->track,
                                      .first_block = NO_ID};
        enum unit_mark mark;
        uint32_t unit, up = span->parent;
        bool unused;
        if (span->kind != SPAN_ANNOTATION || !memory_is_in_step(b, s))
            continue;
        it.gather = build_gather_of(b->rank, s, &it.copies_out);
        if (it.gather && (up == NO_ID || build_gather_of(b->rank, up, &unused) == 0))
            array_push(&all, it);
        if (!build_unit_mark(b->rank, s, &mark, &unit))
            continue;
        struct graph_unit_places *places = &b->to->units[unit];
        uint32_t place = memory_place_of(b, span->start_ns);
        if (mark == UNIT_FORWARD_ENDS)
            places->forward_end = memory_place_of(b, it.end_ns);
        else if (mark == UNIT_PREFETCHED)
            places->asked = place;
        else
            places->backward = place;
    }
    array_sort(&all, by_start);
    return all;
}

/* The one that is going on at a time; NULL: none. */
static struct blocks_gathering *blocks_at(const gatherings *all, int64_t ns)
{
    size_t next = LOWER_BOUND(k, 0, all->n, all->at[k].start_ns <= ns);
    return next > 0 && ns < all->at[next - 1].end_ns ? &all->at[next - 1] : NULL;
}

/* FSDP gives a parameter's storage its bytes outside of all operators, and copies into it: the
 * copying takes in the tensors in the order of the blocks. */
static void bind_gathered(struct memory_build *b, const gatherings *all)
{
    SCRATCH ARRAY(struct binding)
        found = {0}; /* storage: that of the execution trace is a tensor's */
    for (uint32_t n = 0; b->node_of_span && n < b->trace->n_et_nodes; n++) {
        const struct et_node *node = &b->trace->et_nodes[n];
        if (node->span == NO_ID)
            continue;
        int64_t ns = b->trace->spans[node->span].start_ns;
        const struct blocks_gathering *during = blocks_at(all, ns);
        if (!during || !during->copies_out || during->first_block == NO_ID)
            continue;
        uint32_t block = during->first_block;
        for (uint32_t i = node->first_input; i < node->first_input + node->n_inputs; i++) {
            const struct et_tensor *tensor = &b->trace->et_tensors[i];
            if (memory_block_of(b, tensor->storage, ns) != NO_ID)
                continue;
            while (block <= during->last_block &&
                   (b->blocks.at[block].storage != NO_ID || !b->blocks.at[block].to.gathered ||
                    b->blocks.at[block].size_bytes != memory_extent_of(tensor)))
                block++;
            if (block > during->last_block)
                break;
            array_add(&found, .storage = i, .block = block);
            b->blocks.at[block].numel = tensor->numel;
            b->blocks.at[block].to.item_bytes = (uint8_t)MIN(tensor->item_bytes, UINT8_MAX);
            block++;
        }
    }
    for (size_t i = 0; i < found.n; i++)
        if (b->blocks.at[found.at[i].block].storage == NO_ID)
            memory_bind(b, found.at[i].block, b->trace->et_tensors[found.at[i].storage].storage);
    if (found.n > 0)
        memory_order_bindings(b);
}

void memory_find_units(struct memory_build *b)
{
    struct graph_memory *to = b->to;
    if (!b->rank->unit_requests)
        return;
    to->n_units = (uint32_t)b->trace->recording->buckets.n;
    to->units = mem_alloc((to->n_units + (size_t)1) * sizeof *to->units);
    for (uint32_t u = 0; u < to->n_units; u++)
        to->units[u] = (struct graph_unit_places){MEMORY_NONE, MEMORY_NONE, MEMORY_NONE};
    gatherings all = blocks_list(b);
    for (size_t i = 0; i < b->blocks.n; i++) {
        struct block_build *block = &b->blocks.at[i];
        struct blocks_gathering *during = blocks_at(&all, block->taken_ns);
        if (!during)
            continue;
        during->first_block = MIN(during->first_block, (uint32_t)i);
        during->last_block = (uint32_t)i;
        block->to.gather = during->gather;
        block->to.gathered = during->copies_out;
        block->to.category = DPRO_MEMORY_COMMUNICATION;
    }
    bind_gathered(b, &all);
    for (size_t i = 0; i < b->moments.n && b->device < 0; i++) {
        const struct blocks_gathering *during = blocks_at(&all, b->moments.at[i].ns);
        if (during && b->blocks.at[b->moments.at[i].block].to.gather == during->gather)
            b->moments.at[i].track = during->track; /* which waits until it is over */
    }
    array_fini(&all);
}
