/* Which storage of the execution trace is in which block: the one that was taken while the op ran
 * that first put the storage out. The execution trace numbers storages by address, so numbers are
 * used again. */

#include "graph/memory/memory_build.h"

enum { MOST_OUTPUTS = 4096 }; /* of an op; lists longer than that are no work of it */

uint64_t memory_extent_of(const struct et_tensor *tensor)
{
    uint64_t end, bytes;
    if (__builtin_add_overflow(tensor->offset, tensor->numel, &end) ||
        __builtin_mul_overflow(end, tensor->item_bytes, &bytes))
        return 0;
    return tensor->numel ? bytes : 0;
}

/* A GPU's allocator gives out units, and of a large block leaves a small rest. */
static bool storages_fits(const struct memory_build *b, uint64_t extent, uint64_t size)
{
    enum { REST = 1 << 20, LARGE = 1 << 20 };
    if (b->device < 0)
        return extent == size;
    return extent > 0 && extent <= size && size - extent < MEMORY_UNIT + (size > LARGE ? REST : 0);
}

bool memory_takes_in(const struct memory_build *b, const struct et_node *node, uint64_t storage)
{
    EACH_INPUT (tensor, b, node)
        if (tensor->storage == storage && tensor->numel > 0)
            return true;
    return false;
}

struct binder {
    struct memory_build *b;
    struct map latest; /* storage -> 1 + the block that it was found in last */
};

/* The output of a node that came to be in a block; NULL: none. */
static const struct et_tensor *new_output(const struct binder *binder, uint32_t n,
                                          const struct block_build *block)
{
    const struct memory_build *b = binder->b;
    const struct et_node *node = &b->trace->et_nodes[n];
    const struct trace_span *span = &b->trace->spans[node->span];
    for (uint32_t i = 0; i < MIN(node->n_outputs, MOST_OUTPUTS); i++) {
        const struct et_tensor *tensor = &b->trace->et_tensors[node->first_output + i];
        uint64_t other = 0;
        if (!storages_fits(b, memory_extent_of(tensor), block->size_bytes))
            continue;
        map_get(&binder->latest, map_key(tensor->storage), &other);
        if (other != 0 && b->blocks.at[other - 1].given_ns > span_end_ns(span))
            continue; /* it is in that one */
        if (!memory_takes_in(b, node, tensor->storage))
            return tensor;
    }
    return NULL;
}

void memory_bind(struct memory_build *b, uint32_t index, uint64_t storage)
{
    struct block_build *block = &b->blocks.at[index];
    block->storage = (uint32_t)map_number(&b->storage_numbers, map_key(storage));
    array_add(&b->bindings, block->taken_ns, block->given_ns, block->storage, index);
}

static void storages_bind(struct binder *binder, uint32_t index)
{
    struct memory_build *b = binder->b;
    struct block_build *block = &b->blocks.at[index];
    const struct et_tensor *tensor = NULL;
    for (uint32_t s = block->span; s != NO_ID && !tensor; s = b->trace->spans[s].parent) {
        const struct trace_span *span = &b->trace->spans[s];
        if (b->node_of_span[s] != NO_ID && block->given_ns > span_end_ns(span))
            tensor = new_output(binder, b->node_of_span[s], block);
    }
    if (!tensor)
        return;
    map_set(&binder->latest, map_key(tensor->storage), index + UINT64_C(1));
    block->numel = tensor->numel;
    block->to.asked_bytes = memory_extent_of(tensor);
    block->to.item_bytes = (uint8_t)MIN(tensor->item_bytes, UINT8_MAX);
    memory_bind(b, index, tensor->storage);
}

ORDER(by_storage, struct binding, ASCENDING(storage) ?: ASCENDING(taken_ns));

void memory_order_bindings(struct memory_build *b)
{
    array_sort(&b->bindings, by_storage);
}

int32_t memory_device_of(const struct memory_build *b, const struct et_tensor *tensor)
{
    const char *device = strtab_get(b->rank->names, tensor->device), *colon = strchr(device, ':');
    if (*device == '\0' || strncmp(device, "cpu", 3) == 0)
        return -1;
    return colon ? (int32_t)MIN(strtoul(colon + 1, NULL, 10), INT32_MAX) : 0;
}

ORDER_OF_INDICES(by_start, struct trace_span,
                 ASCENDING(start_ns) ?: COMPARE(span_end_ns(y), span_end_ns(x)));

void memory_find_nodes(struct memory_build *b)
{
    if (!b->trace->windows[b->window].has_execution_trace)
        return;
    b->node_of_span =
        arena_alloc(&b->scratch, (b->trace->n_spans + (size_t)1) * sizeof *b->node_of_span);
    for (uint32_t s = 0; s < b->trace->n_spans; s++)
        b->node_of_span[s] = NO_ID;
    for (uint32_t n = 0; n < b->trace->n_et_nodes; n++)
        if (b->trace->et_nodes[n].span != NO_ID)
            b->node_of_span[b->trace->et_nodes[n].span] = n;
    for (uint32_t s = 0; s < b->trace->n_spans; s++) {
        const struct trace_span *span = &b->trace->spans[s];
        if (span->start_ns < b->end_ns &&
            (b->node_of_span[s] != NO_ID || (b->rank->classes[span->name] & NAME_BACKWARD)))
            array_push(&b->ordered, s);
    }
    array_sort_by(&b->ordered, by_start, b->trace->spans);
}

void memory_bind_storages(struct memory_build *b)
{
    struct binder binder = {.b = b};
    if (!b->node_of_span || b->to->source != DPRO_MEMORY_ALLOCATIONS)
        return;
    for (uint32_t i = 0; i < b->blocks.n; i++)
        storages_bind(&binder, i);
    memory_order_bindings(b);
    map_fini(&binder.latest);
}

/* The last time that a storage came into a block, up to a time; NULL: it did not. */
static const struct binding *binding_at(const struct memory_build *b, uint64_t storage, int64_t ns)
{
    uint64_t number;
    if (!map_get(&b->storage_numbers, map_key(storage), &number))
        return NULL;
    size_t end =
        LOWER_BOUND(i, 0, b->bindings.n,
                    b->bindings.at[i].storage < number ||
                        (b->bindings.at[i].storage == number && b->bindings.at[i].taken_ns <= ns));
    return end > 0 && b->bindings.at[end - 1].storage == number ? &b->bindings.at[end - 1] : NULL;
}

bool memory_is_bound_before(const struct memory_build *b, uint64_t storage, int64_t ns)
{
    return binding_at(b, storage, ns) != NULL;
}

uint32_t memory_block_of(const struct memory_build *b, uint64_t storage, int64_t ns)
{
    const struct binding *at = binding_at(b, storage, ns);
    return at && ns <= at->given_ns ? at->block : NO_ID;
}
