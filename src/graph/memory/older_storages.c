/* Storages of the execution trace that are older than the iteration: parameters, buckets, a batch
 * that the job made once.
 *
 * Such a storage is in a block of its size that was there before, by name that of the module that
 * uses it first. Where nobody listed what was there before, the storages themselves are the
 * blocks. */

#include "graph/memory/memory_build.h"

struct older {
    uint64_t storage, numel;
    uint64_t size_bytes, most_bytes; /* by its first use, by all: a tensor may be less than its
                                        storage, and where elements repeat it seems more */
    int64_t first_ns;
    uint32_t call; /* of its first use */
    uint8_t item_bytes;
    bool made;                      /* it is first seen as what an op puts out: it is not older */
    bool forward, backward, update; /* uses */
};
typedef ARRAY(struct older) older_array;

struct storages_finder {
    struct memory_build *b;
    older_array found;
    struct map index; /* of a storage: in found */
};

static void storages_see(struct storages_finder *finder, const struct et_tensor *tensor,
                         uint32_t span, bool output)
{
    struct memory_build *b = finder->b;
    const struct trace_span *in = &b->trace->spans[span];
    int64_t ns = output ? span_end_ns(in) : in->start_ns;
    uint64_t size = memory_extent_of(tensor);
    if (size == 0 || memory_is_bound_before(b, tensor->storage, ns))
        return;
    uint64_t at = map_first(&finder->index, map_key(tensor->storage), finder->found.n);
    if (at == finder->found.n)
        array_add(&finder->found, .storage = tensor->storage, .first_ns = INT64_MAX);
    struct older *older = &finder->found.at[at];
    if (ns < older->first_ns || (ns == older->first_ns && !output)) {
        older->first_ns = ns;
        older->made = output;
        older->call = b->span_calls[span].call;
        older->size_bytes = size;
        older->numel = tensor->numel;
        older->item_bytes = (uint8_t)MIN(tensor->item_bytes, UINT8_MAX);
    }
    older->most_bytes = MAX(older->most_bytes, size);
    if (b->span_calls[span].backward)
        older->backward = true;
    else if (b->rank->phases[span] == DPRO_OP_UPDATE)
        older->update = true;
    else
        older->forward = true;
}

static void storages_find(struct storages_finder *finder)
{
    const struct memory_build *b = finder->b;
    EACH_OF (const struct et_node, node, b->trace->et_nodes, b->trace->n_et_nodes) {
        if (node->span == NO_ID || !memory_is_in_step(b, node->span))
            continue;
        EACH_INPUT (tensor, b, node)
            storages_see(finder, tensor, node->span, false);
        EACH_OUTPUT (tensor, b, node)
            storages_see(finder, tensor, node->span, true);
    }
}

ORDER(by_first_use, struct older, ASCENDING(first_ns) ?: ASCENDING(storage));

/* ---- blocks of before ---- */

struct storages_matcher {
    struct memory_build *b;
    ARRAY(uint32_t) before; /* blocks that were there and have no storage, some by now */
    struct map sizes;       /* of gradients: 1 */
};

static void list_before(struct storages_matcher *matcher)
{
    const struct memory_build *b = matcher->b;
    for (uint32_t i = 0; i < b->blocks.n; i++) {
        const struct block_build *block = &b->blocks.at[i];
        if (block->accumulated)
            map_set(&matcher->sizes, map_key(block->size_bytes), 1);
        if (block->storage == NO_ID && !block->merged && block->taken_ns < b->start_ns &&
            block->given_ns >= b->start_ns)
            array_push(&matcher->before, i);
    }
}

/* Whether a parameter is a module's: its name up to the last dot is that one's. */
static bool is_owned(const struct memory_build *b, uint32_t parameter, uint32_t module)
{
    const char *name = strtab_get(b->rank->names, parameter), *dot = strrchr(name, '.');
    size_t len = dot ? (size_t)(dot - name) : 0;
    return len == strtab_len(b->rank->names, module) &&
           memcmp(name, strtab_get(b->rank->names, module), len) == 0;
}

/* The first that is free, of that size and category, and of that module (NO_ID: any); NO_ID. */
static uint32_t storages_take(const struct storages_matcher *matcher, uint64_t size,
                              uint8_t category, uint32_t module)
{
    EACH (const uint32_t, i, matcher->before) {
        const struct block_build *block = &matcher->b->blocks.at[*i];
        if (block->storage == NO_ID && block->size_bytes == size &&
            block->to.category == category &&
            (module == NO_ID || is_owned(matcher->b, block->to.name, module)))
            return *i;
    }
    return NO_ID;
}

/* What blocks it may be in, likeliest first. */
static uint32_t storages_match(const struct storages_matcher *matcher, const struct older *older,
                               uint64_t size)
{
    static const uint8_t of_forward[] = {DPRO_MEMORY_PARAMETER, DPRO_MEMORY_INPUT,
                                         DPRO_MEMORY_OTHER, DPRO_MEMORY_ACTIVATION,
                                         DPRO_MEMORY_TEMPORARY};
    static const uint8_t of_backward[] = {DPRO_MEMORY_GRADIENT, DPRO_MEMORY_BUCKET,
                                          DPRO_MEMORY_PARAMETER, DPRO_MEMORY_OTHER,
                                          DPRO_MEMORY_COMMUNICATION};
    static const uint8_t of_update[] = {DPRO_MEMORY_STATE, DPRO_MEMORY_GRADIENT,
                                        DPRO_MEMORY_PARAMETER, DPRO_MEMORY_OTHER,
                                        DPRO_MEMORY_BUCKET};
    const struct memory_build *b = matcher->b;
    uint32_t block = NO_ID;
    if (older->forward && older->call != MEMORY_NONE)
        block =
            storages_take(matcher, size, DPRO_MEMORY_PARAMETER, b->calls.at[older->call].module);
    const uint8_t *kinds = older->forward ? of_forward : older->backward ? of_backward : of_update;
    for (int i = 0; i < 5 && block == NO_ID; i++)
        block = storages_take(matcher, size, kinds[i], NO_ID);
    return block;
}

/* What is there, where nobody lists it, by its uses: what is updated and used before is a
 * parameter. */
static uint32_t storages_add(struct storages_matcher *matcher, const struct older *older,
                             uint64_t size)
{
    bool has_gradient = map_get(&matcher->sizes, map_key(size), NULL);
    uint8_t category = DPRO_MEMORY_OTHER;
    if (older->forward && (older->update || has_gradient))
        category = DPRO_MEMORY_PARAMETER;
    else if (older->backward && !older->forward) /* gradients go through a bucket */
        category = older->update ? DPRO_MEMORY_GRADIENT : DPRO_MEMORY_BUCKET;
    else if (older->update && !older->forward)
        category = DPRO_MEMORY_STATE;
    memory_add_before(matcher->b, category, 0, size);
    return (uint32_t)matcher->b->blocks.n - 1;
}

/* Whether it would be in a list if it were what it seems: memory.json's, or for an optimizer's
 * state the recorder's sum. */
static bool is_listed(const struct memory_build *b, const struct older *older)
{
    const struct recording *recording = b->trace->recording;
    return b->held || older->numel == 1 || /* a number beside a tensor */
           (recording && recording->optimizer_bytes > 0 && older->update && !older->forward &&
            !older->backward);
}

static void bind_older(struct storages_matcher *matcher, const struct older *older)
{
    struct memory_build *b = matcher->b;
    /* a bucket is seen in parts, the weight of a forward op as it is */
    uint64_t likely = older->forward ? older->size_bytes : older->most_bytes;
    uint64_t other = older->forward ? older->most_bytes : older->size_bytes;
    uint32_t index = storages_match(matcher, older, memory_rounded(b, likely));
    if (index == NO_ID && other != likely)
        index = storages_match(matcher, older, memory_rounded(b, other));
    if (index == NO_ID && is_listed(b, older))
        return;
    if (index == NO_ID)
        index = storages_add(matcher, older, memory_rounded(b, likely));
    struct block_build *block = &b->blocks.at[index];
    block->numel = older->numel;
    block->to.item_bytes = older->item_bytes;
    block->in_forward = older->forward;
    memory_bind(b, index, older->storage);
}

/* When an op first takes in a parameter in the iteration; INT64_MAX: none does. */
static int64_t first_use_of_parameters(const struct memory_build *b)
{
    for (uint32_t s = 0; s < b->trace->n_spans; s++) {
        int64_t ns = b->trace->spans[s].start_ns;
        if (b->node_of_span[s] == NO_ID || !memory_is_in_step(b, s))
            continue;
        EACH_INPUT (tensor, b, &b->trace->et_nodes[b->node_of_span[s]]) {
            uint32_t block = memory_block_of(b, tensor->storage, ns);
            if (block != NO_ID && b->blocks.at[block].to.category == DPRO_MEMORY_PARAMETER)
                return ns;
        }
    }
    return INT64_MAX;
}

/* Without marks of modules: what is taken before a parameter is used, and is there then. */
static void find_inputs(struct memory_build *b)
{
    int64_t first_ns = first_use_of_parameters(b);
    for (size_t i = 0; i < b->blocks.n && first_ns < INT64_MAX; i++) {
        struct block_build *block = &b->blocks.at[i];
        bool free_to_be = block->to.category == DPRO_MEMORY_ACTIVATION ||
                          block->to.category == DPRO_MEMORY_TEMPORARY;
        if (free_to_be && block->taken_ns >= b->start_ns && block->taken_ns < first_ns &&
            block->given_ns > first_ns)
            block->to.category = DPRO_MEMORY_INPUT;
    }
}

/* What the batch is in, where the job made it before: nothing that is known to be an input is used
 * in the forward pass, and its size allows it. */
static void find_batch(struct memory_build *b)
{
    uint32_t batch_size = b->to->batch_size;
    for (size_t i = 0; i < b->blocks.n; i++)
        if (b->blocks.at[i].to.category == DPRO_MEMORY_INPUT &&
            (b->blocks.at[i].in_forward || b->blocks.at[i].taken_ns >= b->start_ns))
            return;
    for (size_t i = 0; i < b->blocks.n && batch_size > 0; i++) {
        struct block_build *block = &b->blocks.at[i];
        if (block->to.category == DPRO_MEMORY_OTHER && block->in_forward &&
            block->numel % batch_size == 0)
            block->to.category = DPRO_MEMORY_INPUT;
    }
}

void memory_bind_older(struct memory_build *b)
{
    struct storages_finder finder = {.b = b};
    struct storages_matcher matcher = {.b = b};
    if (!b->node_of_span)
        return;
    storages_find(&finder);
    array_sort(&finder.found, by_first_use);
    list_before(&matcher);
    for (size_t i = 0; i < finder.found.n; i++)
        if (!finder.found.at[i].made)
            bind_older(&matcher, &finder.found.at[i]);
    memory_order_bindings(b);
    if (b->calls.n == 0)
        find_inputs(b);
    find_batch(b);
    FREE_ALL(&finder.found, &finder.index, &matcher.before, &matcher.sizes);
}
