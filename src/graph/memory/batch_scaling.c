/* Which blocks grow with the batch.
 *
 * In the forward pass: what is computed from the batch, or from what was received of it. In the
 * backward pass: all blocks but these:
 *
 * - what is handed to a parameter;
 * - what has the size of an operand without the batch and of none with it, such as the mean of each
 *   channel beside its weight, or the gradient of an embedding of positions;
 * - a library's workspace, unless it has the size of a part of the batch, or is larger than those
 *   and no padded copy of a weight;
 * - a tensor whose number of elements the batch size does not divide. */

#include "graph/memory/memory_build.h"

/* A library pads a copy of an operand by less than this part of it. */
#define PADDING_SHARE 32

struct scaler {
    struct memory_build *b;
    uint32_t batch_size;    /* 0: not known */
    struct map received;    /* storages that another rank's messages come to */
    struct map forward;     /* sequence number -> node of the forward op */
    struct map workspaces;  /* sizes of those that scale */
    struct map without_end; /* where there is no execution trace: sizes that do not scale */
};

/* What an op's operands say of a size. */
struct operands {
    bool any_scales;
    bool scaling_alike, fixed_alike; /* of that size: one that scales, one that does not */
    bool fixed_padded;               /* a little smaller than that size is one that does not */
    uint64_t largest_bytes;          /* of those that scale */
};

static bool is_divided(const struct scaler *s, const struct block_build *block)
{
    uint64_t n = block->numel ? block->numel : block->size_bytes;
    if (block->numel == 0 && s->b->device >= 0)
        return true; /* rounded */
    return s->batch_size == 0 || n % s->batch_size == 0;
}

/* Whether a tensor has a part of the batch in it, if only that an element is there for each. */
static bool tensor_scales(const struct scaler *s, const struct et_tensor *tensor, int64_t ns)
{
    uint32_t block = memory_block_of(s->b, tensor->storage, ns);
    if (map_get(&s->received, map_key(tensor->storage), NULL))
        return true;
    return block != NO_ID && (s->b->blocks.at[block].to.scales ||
                              memory_extent_of(tensor) > s->b->blocks.at[block].size_bytes);
}

static bool is_of_size(const struct block_build *block, const struct et_tensor *tensor)
{
    uint64_t bytes;
    if (block->numel)
        return tensor->numel == block->numel;
    return !__builtin_mul_overflow(tensor->numel, tensor->item_bytes, &bytes) &&
           bytes == block->size_bytes;
}

static void look_at(const struct scaler *s, const struct et_tensor *tensor, int64_t ns,
                    const struct block_build *block, struct operands *found)
{
    uint64_t bytes;
    bool scales = tensor_scales(s, tensor, ns), alike = is_of_size(block, tensor);
    if (__builtin_mul_overflow(tensor->numel, tensor->item_bytes, &bytes))
        return;
    found->any_scales |= scales;
    found->fixed_padded |= !scales && bytes > 0 && bytes <= block->size_bytes &&
                           block->size_bytes - bytes <= bytes / PADDING_SHARE;
    *(scales ? &found->scaling_alike : &found->fixed_alike) |= alike;
    if (scales)
        found->largest_bytes = MAX(found->largest_bytes, bytes);
}

static struct operands inputs_of(const struct scaler *s, uint32_t n,
                                 const struct block_build *block)
{
    const struct et_node *node = &s->b->trace->et_nodes[n];
    struct operands found = {0};
    EACH_INPUT (tensor, s->b, node)
        look_at(s, tensor, s->b->trace->spans[node->span].start_ns, block, &found);
    return found;
}

/* An empty tensor that is made larger is nothing to take in. */
static bool takes_in(const struct scaler *s, uint32_t n)
{
    EACH_INPUT (tensor, s->b, &s->b->trace->et_nodes[n])
        if (tensor->numel > 0)
            return true;
    return false;
}

/* The innermost op around the taking that has tensors to take in and puts the block out, as its
 * `output`-th; NO_ID: none does. `around`: the innermost that takes any in. */
static uint32_t producer_of(const struct scaler *s, const struct block_build *block,
                            uint32_t *output, uint32_t *around)
{
    const struct memory_build *b = s->b;
    *around = NO_ID;
    for (uint32_t at = block->span; at != NO_ID; at = b->trace->spans[at].parent) {
        uint32_t n = b->node_of_span[at];
        if (n == NO_ID || !takes_in(s, n))
            continue;
        const struct et_node *node = &b->trace->et_nodes[n];
        if (*around == NO_ID)
            *around = n;
        for (uint32_t i = 0; i < node->n_outputs && block->storage != NO_ID; i++)
            if (memory_block_of(b, b->trace->et_tensors[node->first_output + i].storage,
                                MIN(span_end_ns(&b->trace->spans[at]), block->given_ns)) ==
                (uint32_t)(block - b->blocks.at)) {
                *output = i;
                return n;
            }
    }
    return NO_ID;
}

/* What is computed from the batch is not there yet when the op needs its workspace. */
static bool workspace_scales(const struct scaler *s, const struct block_build *block,
                             uint32_t around)
{
    if (around == NO_ID)
        return false;
    const struct et_node *node = &s->b->trace->et_nodes[around];
    struct operands found = inputs_of(s, around, block);
    if (found.scaling_alike || found.fixed_alike || !found.any_scales)
        return found.scaling_alike;
    EACH_OUTPUT (tensor, s->b, node)
        if (is_of_size(block, tensor))
            return true;
    return block->size_bytes >= found.largest_bytes && !found.fixed_padded;
}

/* Whether what a function of the backward pass made is the gradient of an operand that does not
 * scale. */
static bool is_of_fixed_operand(const struct scaler *s, const struct block_build *block)
{
    const struct memory_build *b = s->b;
    uint32_t at = block->span;
    uint64_t node;
    while (at != NO_ID && !((b->rank->classes[b->trace->spans[at].name] & NAME_BACKWARD) &&
                            b->trace->spans[at].sequence >= 0))
        at = b->trace->spans[at].parent;
    if (at == NO_ID ||
        !map_get(&s->forward, map_key((uint32_t)b->trace->spans[at].sequence), &node))
        return false;
    struct operands found = inputs_of(s, (uint32_t)node, block);
    return found.fixed_alike && !found.scaling_alike;
}

static bool is_fixed_by_category(const struct block_build *block)
{
    switch (block->to.category) {
    case DPRO_MEMORY_ACTIVATION:
    case DPRO_MEMORY_TEMPORARY:
    case DPRO_MEMORY_WORKSPACE:
    case DPRO_MEMORY_INPUT:
        return false;
    default:
        return true;
    }
}

static bool scaling_scales(const struct scaler *s, const struct block_build *block)
{
    const struct memory_build *b = s->b;
    uint32_t output = 0, around;
    bool is_workspace = block->to.category == DPRO_MEMORY_WORKSPACE; /* has parts of any size */
    if (is_fixed_by_category(block) || block->accumulated ||
        (!is_workspace && !is_divided(s, block)))
        return false;
    if (block->to.category == DPRO_MEMORY_INPUT)
        return true;
    if (block->span == NO_ID || b->rank->phases[block->span] == DPRO_OP_UPDATE)
        return false;
    if (!b->node_of_span)
        return !map_get(&s->without_end, map_key(block->size_bytes), NULL);
    uint32_t producer = producer_of(s, block, &output, &around);
    if (producer == NO_ID) /* a backward pass asks for as much as its forward pass did */
        return workspace_scales(s, block, around) ||
               (is_workspace && map_get(&s->workspaces, map_key(block->size_bytes), NULL));
    struct operands found = inputs_of(s, producer, block);
    if (!found.any_scales || (output > 0 && found.fixed_alike && !found.scaling_alike))
        return false;
    return !b->span_calls[block->span].backward || !is_of_fixed_operand(s, block);
}

/* Of a stage of a pipeline: parts of the batch. */
static void list_received(struct scaler *s)
{
    const struct memory_build *b = s->b;
    for (uint32_t i = 0; b->node_of_span && i < b->trace->n_spans; i++) {
        uint32_t name = b->trace->spans[i].name, n = b->node_of_span[i];
        if (n == NO_ID || !(b->rank->classes[name] & NAME_COMM_CALL) ||
            name_collective(strtab_get(b->rank->names, name)) != DPRO_RECV)
            continue;
        EACH_INPUT (tensor, b, &b->trace->et_nodes[n])
            map_set(&s->received, map_key(tensor->storage), 1);
    }
}

/* The last op that carries a number made the function which has it. */
static void list_forward(struct scaler *s)
{
    const struct memory_build *b = s->b;
    for (uint32_t i = 0; b->node_of_span && i < b->trace->n_spans; i++) {
        const struct trace_span *span = &b->trace->spans[i];
        if (span->window == b->window && span->sequence >= 0 && span->fwd_thread == 0 &&
            !b->span_calls[i].backward && b->node_of_span[i] != NO_ID &&
            b->trace->et_nodes[b->node_of_span[i]].n_inputs > 0)
            map_set(&s->forward, map_key((uint32_t)span->sequence), b->node_of_span[i]);
    }
}

static void list_fixed_sizes(struct scaler *s)
{
    const struct memory_build *b = s->b;
    for (size_t i = 0; !b->node_of_span && i < b->blocks.n; i++)
        if (b->blocks.at[i].to.category == DPRO_MEMORY_PARAMETER ||
            b->blocks.at[i].to.category == DPRO_MEMORY_GRADIENT)
            map_set(&s->without_end, map_key(b->blocks.at[i].size_bytes), 1);
}

/* PyTorch has oneDNN compute a convolution on a CPU, which works on copies. One whose kernel has
 * one element and moves by one is computed without, by one thread, if the input has fewer samples
 * than this. */
#define LEAST_ONEDNN_BATCH 16

static float least_share(const struct memory_build *b, const struct block_build *block)
{
    const struct recording *recording = b->trace->recording;
    if (b->device >= 0 || !b->node_of_span || !recording || !recording->one_thread ||
        block->to.category != DPRO_MEMORY_WORKSPACE)
        return 0;
    for (uint32_t at = block->span; at != NO_ID; at = b->trace->spans[at].parent) {
        uint32_t n = b->node_of_span[at];
        uint32_t batch = n == NO_ID ? 0 : b->trace->et_nodes[n].pointwise_batch;
        if (batch >= LEAST_ONEDNN_BATCH)
            return LEAST_ONEDNN_BATCH / (float)batch;
    }
    return 0;
}

void memory_copy_to_older(struct memory_build *b)
{
    SCRATCH struct map kinds = {0}; /* name and size -> block */
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < b->blocks.n; i++) {
            struct block_build *block = &b->blocks.at[i];
            uint64_t key = map_mix(map_mix(block->size_bytes) + block->to.name) | 1, like;
            if (block->taken_ns == BEFORE_WINDOW || block->span == NO_ID)
                continue;
            if (pass == 0 && block->taken_ns >= b->start_ns && block->given_ns == AFTER_STEP) {
                map_set(&kinds, key, i);
            } else if (pass == 1 && block->taken_ns < b->start_ns && block->held == NO_ID &&
                       map_get(&kinds, key, &like)) {
                block->to.category = b->blocks.at[like].to.category;
                block->to.scales = b->blocks.at[like].to.scales;
                block->to.split = b->blocks.at[like].to.split;
                block->to.unsplits = b->blocks.at[like].to.unsplits;
            }
        }
}

void memory_find_scaling(struct memory_build *b)
{
    struct scaler s = {.b = b, .batch_size = b->to->batch_size};
    list_received(&s);
    list_forward(&s);
    list_fixed_sizes(&s);
    for (size_t i = 0; i < b->blocks.n; i++) /* what is there before comes last in the list */
        if (b->blocks.at[i].to.category == DPRO_MEMORY_INPUT)
            b->blocks.at[i].to.scales = is_divided(&s, &b->blocks.at[i]);
    EACH (struct block_build, block, b->blocks) {
        block->to.scales = scaling_scales(&s, block);
        block->to.least_share = least_share(b, block);
        if (block->to.scales && block->to.category == DPRO_MEMORY_WORKSPACE)
            map_set(&s.workspaces, map_key(block->size_bytes), 1);
    }
    memory_copy_to_older(b);
    FREE_ALL(&s.received, &s.forward, &s.workspaces, &s.without_end);
}
