/* Finds what data types ops would read and make in 16 bits. */
#include "cost/memory/data_types.h"

uint32_t data_types_region(const struct data_types *d, const struct graph_typed_op *op)
{
    return op->call != MEMORY_NONE ? d->regions[op->call] : d->loss ? ALL_CALLS : MODEL_NONE;
}

/* What an op makes is read within it, too, before that is over. */
static uint8_t type_of(struct data_types *d, uint32_t block)
{
    if (d->types[block] == TYPE_UNKNOWN && d->m->blocks[block].made_by != MEMORY_NONE)
        data_types_make(d, d->m->blocks[block].made_by, block);
    return d->types[block] == BITS_16 ? BITS_16 : BITS_32;
}

uint8_t data_types_of_scope(const struct data_types *d, const struct graph_typed_op *op)
{
    if (op->backward)
        return TYPE_UNKNOWN;
    if (op->rule == TYPE_MATH)
        return BITS_32;
    if ((op->rule != TYPE_LOWER && op->rule != TYPE_FULL) || data_types_region(d, op) == MODEL_NONE)
        return TYPE_UNKNOWN;
    return op->rule == TYPE_LOWER ? BITS_16 : BITS_32;
}

/* The scopes that an op lies in or is, outermost first: the outermost of autocast's lists, and one
 * that computes in 32 bits by itself. */
struct scopes {
    uint32_t op[2];
    int n;
};

static struct scopes scopes_of(const struct data_types *d, uint32_t op)
{
    uint32_t listed = MODEL_NONE, math = MODEL_NONE;
    struct scopes scopes = {.n = 0};
    for (; op != MODEL_NONE; op = typed_op(d, op)->outer)
        if (typed_op(d, op)->rule == TYPE_MATH)
            math = op;
        else if (data_types_of_scope(d, typed_op(d, op)) != TYPE_UNKNOWN)
            listed = op;
    if (listed != MODEL_NONE)
        scopes.op[scopes.n++] = listed;
    if (math != MODEL_NONE)
        scopes.op[scopes.n++] = math;
    return scopes;
}

static void add_cast(struct operand_read *read, uint8_t kind, uint8_t type, uint32_t by)
{
    read->casts[read->n_casts++] = (struct cast){kind, type, by};
    read->type = type;
}

/* What an op of the forward pass, or the backward pass of it, reads for a tensor that was there
 * before the scopes it lies in. */
static void read_in_scopes(struct data_types *d, uint32_t op, uint32_t block,
                           struct operand_read *read)
{
    uint32_t made_by = d->m->blocks[block].made_by;
    struct scopes scopes = scopes_of(d, op);
    uint32_t region =
        made_by == MEMORY_NONE ? MODEL_NONE : data_types_region(d, typed_op(d, made_by));
    if (read->type == BITS_16 && region < ALL_CALLS &&
        region != data_types_region(d, typed_op(d, op)))
        add_cast(read, CAST_OUT, BITS_32, region);
    for (int i = 0; i < scopes.n; i++) {
        const struct graph_typed_op *scope = typed_op(d, scopes.op[i]);
        uint8_t wanted = data_types_of_scope(d, scope);
        if (read->type != wanted && is_older(d, block, scope->first))
            add_cast(read, CAST_IN_SCOPE, wanted, scopes.op[i]);
    }
}

/* The type of what an op of the forward pass puts out, which its gradient has. */
static uint8_t output_type(struct data_types *d, uint32_t op)
{
    const struct graph_typed_op *it = typed_op(d, op);
    struct scopes scopes = scopes_of(d, op);
    if (it->n_outputs == 0)
        return BITS_32;
    uint32_t block = d->m->operands[it->first_operand + it->n_inputs].block;
    for (int i = scopes.n; i-- > 0;) {
        const struct graph_typed_op *scope = typed_op(d, scopes.op[i]);
        if (scopes.op[i] != op && (scope->rule == TYPE_MATH || is_older(d, block, scope->first)))
            return data_types_of_scope(d, scope);
    }
    return type_of(d, block);
}

/* A gradient that was there before the function of the backward pass that an op is part of. */
static void read_gradient(struct data_types *d, uint32_t op, uint32_t block,
                          struct operand_read *read)
{
    const struct graph_typed_op *function = typed_op(d, d->roots[op]);
    bool hands = function->rule == TYPE_PARAMETER;
    if (!is_older(d, block, function->first) || typed_op(d, op)->rule == TYPE_SUM ||
        (function->forward == MEMORY_NONE && !hands))
        return;
    uint8_t wanted = hands ? BITS_32 : output_type(d, function->forward);
    if (read->type == wanted)
        return;
    add_cast(read, CAST_OF_GRADIENT, wanted, d->roots[op]);
    if (hands)
        d->handed[block] = d->roots[op] + 1;
}

struct operand_read data_types_read(struct data_types *d, uint32_t op,
                                    const struct graph_operand *o)
{
    struct operand_read read = {.type = type_of(d, o->block)};
    uint32_t root = d->roots[op];
    if (d->handed[o->block])
        add_cast(&read, CAST_OF_GRADIENT, BITS_32, d->handed[o->block] - 1);
    else if (!typed_op(d, op)->backward)
        read_in_scopes(d, op, o->block, &read);
    else if (root != MODEL_NONE && is_of_backward(d, o->block))
        read_gradient(d, op, o->block, &read);
    else if (root != MODEL_NONE && typed_op(d, root)->forward != MEMORY_NONE)
        read_in_scopes(d, typed_op(d, root)->forward, o->block, &read);
    return read;
}

struct operand_types data_types_in(struct data_types *d, uint32_t op)
{
    const struct graph_typed_op *it = typed_op(d, op);
    struct operand_types found = {BITS_32, TYPE_UNKNOWN, false, false};
    for (uint32_t i = 0; i < it->n_inputs; i++) {
        const struct graph_operand *o = &d->m->operands[it->first_operand + i];
        uint8_t type = data_types_read(d, op, o).type;
        if (o->numel == 1 && found.any)
            continue; /* a number does not widen */
        if (!found.any)
            found.first = type;
        found.mixed |= found.any && type != found.widest;
        found.widest = MAX(found.widest, type);
        found.any = true;
    }
    return found;
}

/* Of what an op makes; what it makes for itself is as its first output. */
static uint8_t made_type(struct data_types *d, uint32_t op, const struct operand_types *in,
                         uint32_t block)
{
    const struct graph_typed_op *it = typed_op(d, op);
    const struct graph_operand *outputs = &d->m->operands[it->first_operand + it->n_inputs];
    bool first = it->n_outputs == 0 || outputs[0].block == block;
    for (uint32_t i = 1; i < it->n_outputs && !first; i++)
        if (outputs[i].block == block)
            return it->rule == TYPE_STATISTICS || it->rule == TYPE_WIDENED ? BITS_32
                   : it->rule == TYPE_FIRST                                ? in->first
                                                                           : in->widest;
    return it->rule == TYPE_WIDENED                                ? BITS_32
           : it->rule == TYPE_FIRST || it->rule == TYPE_STATISTICS ? in->first
                                                                   : in->widest;
}

/* An op that takes nothing in makes its output for the one around it. */
void data_types_make(struct data_types *d, uint32_t op, uint32_t block)
{
    enum { MOST_DEPTH = 32 }; /* times in a damaged file may go in a circle */
    if (d->types[block] != TYPE_UNKNOWN || d->depth == MOST_DEPTH)
        return;
    d->depth++;
    struct operand_types in = data_types_in(d, op);
    while (!in.any && typed_op(d, op)->outer != MEMORY_NONE) {
        op = typed_op(d, op)->outer;
        in = data_types_in(d, op);
    }
    if (in.any)
        d->types[block] = made_type(d, op, &in, block);
    d->depth--;
}

bool data_types_narrow(struct data_types *d, uint32_t op, uint32_t block)
{
    const struct graph_typed_op *it = typed_op(d, op);
    struct scopes scopes = scopes_of(d, op);
    uint8_t around = scopes.n == 2      ? data_types_of_scope(d, typed_op(d, scopes.op[0]))
                     : it->n_inputs > 0 ? type_of(d, d->m->operands[it->first_operand].block)
                                        : BITS_32;
    if (around != BITS_16 || d->types[block] != BITS_32)
        return false;
    d->types[block] = BITS_16;
    return true;
}

uint8_t data_types_of_workspace(struct data_types *d, const struct graph_block *b)
{
    uint32_t op = b->made_by;
    if (op != MEMORY_NONE && d->roots[op] != MODEL_NONE)
        op = typed_op(d, d->roots[op])->forward;
    if (op == MEMORY_NONE)
        return BITS_32;
    struct scopes scopes = scopes_of(d, op);
    return scopes.n > 0 ? data_types_of_scope(d, typed_op(d, scopes.op[scopes.n - 1]))
                        : output_type(d, op);
}

static void find_functions(struct data_types *d, struct arena *arena)
{
    uint32_t n = d->m->n_typed_ops;
    d->roots = arena_alloc(arena, (n + (size_t)1) * sizeof *d->roots);
    d->parts = arena_alloc(arena, (n + (size_t)1) * sizeof *d->parts);
    d->backward_first = d->m->n_moments;
    for (uint32_t op = 0; op < n; op++) {
        const struct graph_typed_op *it = typed_op(d, op);
        bool is_function = it->rule == TYPE_FUNCTION || it->rule == TYPE_PARAMETER;
        uint32_t outer = it->outer;
        d->roots[op] = outer != MEMORY_NONE ? d->roots[outer] : MODEL_NONE;
        d->parts[op] = d->roots[op] != MODEL_NONE && d->roots[op] != outer ? d->parts[outer] : op;
        if (d->roots[op] == MODEL_NONE && is_function)
            d->roots[op] = op;
        if (it->backward)
            d->backward_first = MIN(d->backward_first, it->first);
    }
}

struct data_types data_types_begin(const struct model_memory *m, const uint32_t *regions, bool loss,
                                   struct arena *arena)
{
    struct data_types d = {.m = m, .regions = regions, .loss = loss};
    find_functions(&d, arena);
    d.types = arena_array(arena, m->n_blocks + (size_t)1, sizeof *d.types);
    d.handed = arena_array(arena, m->n_blocks + (size_t)1, sizeof *d.handed);
    return d;
}
