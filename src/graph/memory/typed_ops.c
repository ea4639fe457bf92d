/* The ops of an iteration's forward and backward pass, with the 32-bit tensors that go in and out.
 * From them follow their sizes in another precision (cost/memory/precision_memory.c).
 *
 * A job that casts itself runs its ops within one of the same name; nothing is left to cast
 * there. */

#include "graph/memory/memory_build.h"

struct typist {
    struct memory_build *b;
    ARRAY(struct graph_typed_op) ops;
    ARRAY(struct graph_operand) operands;
    uint32_t *op_of_span; /* MEMORY_NONE */
    uint8_t *rules;       /* by string id: 1 + enum type_rule; 0: not looked up yet */
    struct map forward;   /* sequence number -> op */
};

static bool is_typed(const struct memory_build *b, uint32_t span)
{
    return memory_is_in_step(b, span) && b->trace->spans[span].kind == SPAN_CPU_OP &&
           b->rank->phases[span] != DPRO_OP_UPDATE &&
           (b->node_of_span[span] != NO_ID || memory_is_function(b, span));
}

static uint8_t rule_of(struct typist *t, uint32_t span, uint32_t outer)
{
    const struct memory_build *b = t->b;
    uint32_t name = b->trace->spans[span].name;
    const char *text = strtab_get(b->rank->names, name);
    if (b->span_calls[span].backward) {
        if (b->rank->classes[name] & NAME_ACCUMULATE)
            return TYPE_PARAMETER;
        if (memory_is_function(b, span))
            return TYPE_FUNCTION;
        if (outer != MEMORY_NONE && t->ops.at[outer].rule == TYPE_FUNCTION &&
            (strcmp(text, "aten::add") == 0 || strcmp(text, "aten::add_") == 0))
            return TYPE_SUM;
    }
    if (t->rules[name] == 0)
        t->rules[name] = (uint8_t)(1 + autocast_rule(text, b->device >= 0));
    return (uint8_t)(t->rules[name] - 1);
}

/* Returns how many were added. */
static uint32_t add_operands(struct typist *t, uint32_t first, uint32_t n, int64_t ns)
{
    const struct memory_build *b = t->b;
    size_t before = t->operands.n;
    for (uint32_t i = first; i < first + n; i++) {
        const struct et_tensor *tensor = &b->trace->et_tensors[i];
        uint32_t block = tensor->item_bytes == sizeof(float) && tensor->numel > 0
                             ? memory_block_of(b, tensor->storage, ns)
                             : NO_ID;
        if (block != NO_ID && b->blocks.at[block].is != NO_ID)
            array_add(&t->operands, b->blocks.at[block].is, tensor->numel);
    }
    return (uint32_t)(t->operands.n - before);
}

static uint32_t outer_of(const struct typist *t, uint32_t span)
{
    uint32_t up = t->b->trace->spans[span].parent;
    while (up != NO_ID && t->op_of_span[up] == MEMORY_NONE)
        up = t->b->trace->spans[up].parent;
    return up == NO_ID ? MEMORY_NONE : t->op_of_span[up];
}

static void link_forward(struct typist *t, struct graph_typed_op *op, int32_t sequence)
{
    uint64_t forward;
    if (op->rule == TYPE_FUNCTION && sequence >= 0 &&
        map_get(&t->forward, map_key((uint32_t)sequence), &forward))
        op->forward = (uint32_t)forward;
    else if (!op->backward && sequence >= 0 && op->n_inputs > 0)
        map_set(&t->forward, map_key((uint32_t)sequence), t->ops.n);
}

static bool has_name_of(const struct typist *t, uint32_t span)
{
    uint32_t up = t->b->trace->spans[span].parent;
    return up != NO_ID && t->b->trace->spans[up].name == t->b->trace->spans[span].name;
}

static bool is_listed(uint8_t rule)
{
    return rule == TYPE_LOWER || rule == TYPE_FULL || rule == TYPE_WIDENED;
}

static bool lies_in_cast(const struct typist *t, uint32_t op)
{
    while (op != MEMORY_NONE && t->ops.at[op].rule != TYPE_CAST)
        op = t->ops.at[op].outer;
    return op != MEMORY_NONE;
}

static void add_op(struct typist *t, uint32_t s)
{
    const struct memory_build *b = t->b;
    const struct trace_span *span = &b->trace->spans[s];
    const struct et_node *node =
        b->node_of_span[s] == NO_ID ? NULL : &b->trace->et_nodes[b->node_of_span[s]];
    struct graph_typed_op op = {.first = memory_place_of(b, span->start_ns),
                                .last = memory_place_of(b, span_end_ns(span)),
                                .outer = outer_of(t, s),
                                .call = b->span_calls[s].call,
                                .forward = MEMORY_NONE,
                                .first_operand = (uint32_t)t->operands.n,
                                .backward = b->span_calls[s].backward};
    op.rule = rule_of(t, s, op.outer);
    if (op.outer != MEMORY_NONE && has_name_of(t, s) && is_listed(op.rule))
        t->ops.at[op.outer].rule = op.rule = TYPE_CAST;
    else if (is_listed(op.rule) && lies_in_cast(t, op.outer))
        op.rule = TYPE_PROMOTED;
    if (node) {
        op.n_inputs = add_operands(t, node->first_input, node->n_inputs, span->start_ns);
        op.n_outputs = add_operands(t, node->first_output, node->n_outputs, span_end_ns(span));
    }
    if (op.n_inputs + op.n_outputs == 0 && op.rule != TYPE_FUNCTION && op.rule != TYPE_PARAMETER &&
        op.rule != TYPE_CAST && !is_listed(op.rule))
        return;
    link_forward(t, &op, span->sequence);
    t->op_of_span[s] = (uint32_t)t->ops.n;
    array_push(&t->ops, op);
}

static void name_makers(const struct typist *t)
{
    const struct memory_build *b = t->b;
    EACH (const struct block_build, block, b->blocks) {
        uint32_t at = block->taken_ns >= b->start_ns ? block->span : NO_ID;
        while (at != NO_ID && t->op_of_span[at] == MEMORY_NONE)
            at = b->trace->spans[at].parent;
        if (block->is != NO_ID && at != NO_ID)
            b->to->blocks[block->is].made_by = t->op_of_span[at];
    }
}

void memory_find_typed_ops(struct memory_build *b)
{
    struct graph_memory *to = b->to;
    struct typist t = {.b = b};
    if (!b->node_of_span)
        return;
    t.op_of_span = arena_alloc(&b->scratch, (b->trace->n_spans + (size_t)1) * sizeof(uint32_t));
    for (uint32_t s = 0; s < b->trace->n_spans; s++)
        t.op_of_span[s] = MEMORY_NONE;
    t.rules = arena_array(&b->scratch, b->rank->names->n + (size_t)1, 1);
    EACH (const uint32_t, span, b->ordered)
        if (is_typed(b, *span))
            add_op(&t, *span);
    name_makers(&t);
    to->n_typed_ops = (uint32_t)t.ops.n;
    to->n_operands = (uint32_t)t.operands.n;
    to->typed_ops = t.ops.at;
    to->operands = t.operands.at;
    map_fini(&t.forward);
}
