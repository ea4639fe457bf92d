/* cost/precision_memory.c: see precision_memory.h.
 *
 * Data types are followed through the ops as they were recorded. An op of autocast's lists, or one
 * that computes in 32 bits itself, is a *scope*: what is older than it and of another type it reads
 * through a cast, and so does its backward pass, where autograd has saved the cast. A gradient has
 * the type of the tensor that it is of, so that a function of the backward pass reads its own cast
 * of one of another type. Casts of parameters are kept until the 16 bits are left. What is only
 * read through casts goes when its last direct use is over. */
#include "cost/precision_memory.h"

#include <string.h>

#include "base/map.h"
#include "base/sort.h"

enum { UNKNOWN, BITS_16, BITS_32 }; /* what an element of a block has */

/* A region is a call that is computed in 16 bits, the outermost with the bit. */
#define ALL_CALLS (MODEL_NONE - 1) /* code of no module, too */

struct type_use {
    struct graph_use is;
    uint32_t block;
};

/* What a block is read for. */
struct reading {
    uint32_t direct;     /* 1 + the place up to which it is itself; 0: never */
    uint32_t cast;       /* 1 + the place up to which casts of it are, by the backward pass or of
                            a gradient; 0: none */
    uint32_t first_cast; /* the place of the first cast of a gradient */
};

struct typing {
    const struct model_memory *m;
    struct arena *arena;
    bool loss;
    uint32_t *regions;       /* by call; MODEL_NONE */
    uint32_t *roots;         /* by op: the function of the backward pass that it is part of */
    uint32_t *parts;         /* by op: the op within that function; itself */
    uint8_t *types;          /* by block as recorded */
    struct reading *reads;   /* by block as recorded */
    uint32_t *handed;        /* by block as recorded, of a gradient that was cast for its parameter:
                                the cast; 0: none */
    uint32_t backward_first; /* the place where the backward pass begins */
    ARRAY(struct graph_block) blocks;
    ARRAY(struct type_use) uses;
    struct map casts; /* of a block, by a scope, a region or a function -> index in blocks */
};

static const struct graph_typed_op *op_at(const struct typing *t, uint32_t op)
{
    return &t->m->typed_ops[op];
}

static uint32_t region_of(const struct typing *t, const struct graph_typed_op *op)
{
    return op->call != MEMORY_NONE ? t->regions[op->call] : t->loss ? ALL_CALLS : MODEL_NONE;
}

static bool is_older(const struct typing *t, uint32_t block, uint32_t place)
{
    const struct graph_block *b = &t->m->blocks[block];
    return b->taken == MEMORY_NONE || b->taken < place;
}

static bool is_of_backward(const struct typing *t, uint32_t block)
{
    const struct graph_block *b = &t->m->blocks[block];
    return b->made_by != MEMORY_NONE && op_at(t, b->made_by)->backward;
}

/* ---- casts ---- */

static uint64_t cast_key(uint32_t block, uint32_t by, bool region)
{
    return map_mix(((uint64_t)block << 32 | by) * 2 + region) | 1;
}

/* From a place on, until its last use. */
static uint32_t add_block(struct typing *t, const struct graph_block *of, uint32_t place,
                          uint32_t last, uint64_t size_bytes)
{
    struct graph_block block = *of;
    block.size_bytes = size_bytes;
    block.taken = place > 0 ? place - 1 : MEMORY_NONE;
    block.given = MIN(last, t->m->n_moments - 1);
    block.n_uses = 0;
    array_push(&t->blocks, block);
    return (uint32_t)t->blocks.n - 1;
}

static void last_until(struct graph_block *block, uint32_t place)
{
    if (block->given != MEMORY_NONE)
        block->given = MAX(block->given, place);
}

static uint64_t bytes_of(const struct graph_operand *o, uint8_t type)
{
    uint64_t bytes;
    if (__builtin_mul_overflow(o->numel, type == BITS_16 ? 2 : 4, &bytes))
        return 0;
    return bytes;
}

/* The end of a region's use of 16 bits, where its casts of parameters go. */
static uint32_t region_end(const struct typing *t, uint32_t region)
{
    return region == ALL_CALLS ? t->backward_first : t->m->calls[region].last;
}

static uint32_t cast_in_scope(struct typing *t, const struct graph_operand *o, uint8_t type,
                              uint32_t scope)
{
    const struct graph_typed_op *op = op_at(t, scope);
    const struct graph_block *of = &t->m->blocks[o->block];
    bool kept = of->category == DPRO_MEMORY_PARAMETER && type == BITS_16;
    uint32_t region = region_of(t, op);
    uint64_t key = cast_key(o->block, kept ? region : scope, kept), at;
    if (map_get(&t->casts, key, &at))
        return (uint32_t)at;
    uint32_t last = kept ? MAX(op->last, region_end(t, region)) : op->last;
    uint32_t cast = add_block(t, of, op->first, last, bytes_of(o, type));
    struct graph_block *block = &t->blocks.at[cast];
    block->category = DPRO_MEMORY_TEMPORARY;
    block->call = op->call;
    if (kept) { /* by autocast */
        struct graph_use use = {MEMORY_NONE, last, last, false};
        array_push(&t->uses, ((struct type_use){use, cast}));
    }
    map_set(&t->casts, key, cast);
    return cast;
}

/* What comes out of a region is cast back. */
static uint32_t cast_out(struct typing *t, uint32_t block, uint32_t region)
{
    const struct graph_block *of = &t->m->blocks[block];
    uint64_t key = cast_key(block, region, true), at;
    if (map_get(&t->casts, key, &at))
        return (uint32_t)at;
    uint32_t parent = t->m->calls[region].parent;
    uint32_t cast =
        add_block(t, of, t->m->calls[region].last, t->m->calls[region].last, of->size_bytes);
    t->blocks.at[cast].given = of->given;
    t->blocks.at[cast].call = parent == MODEL_NONE ? MEMORY_NONE : parent;
    t->reads[block].cast = MAX(t->reads[block].cast, of->given == MEMORY_NONE ? 0 : of->given + 1);
    map_set(&t->casts, key, cast);
    return cast;
}

/* Of a gradient, by the function of the backward pass that takes it in. */
static uint32_t cast_gradient(struct typing *t, const struct graph_operand *o, uint8_t type,
                              uint32_t function)
{
    const struct graph_typed_op *op = op_at(t, function);
    const struct graph_block *of = &t->m->blocks[o->block];
    struct reading *reading = &t->reads[o->block];
    uint64_t key = cast_key(o->block, function, false), at;
    if (map_get(&t->casts, key, &at))
        return (uint32_t)at;
    uint32_t cast = add_block(t, of, op->first, op->last, bytes_of(o, type));
    if (op->rule == TYPE_PARAMETER) {
        t->blocks.at[cast].given = of->given;
        t->handed[o->block] = cast;
    }
    if (reading->cast == 0)
        reading->first_cast = op->first;
    reading->cast = MAX(reading->cast, op->last + 1);
    map_set(&t->casts, key, cast);
    return cast;
}

/* ---- what an op reads ---- */

static void set_type(struct typing *t, uint32_t op, uint32_t block);

/* What an op makes is read within it, too, before that is over. */
static uint8_t type_of(struct typing *t, uint32_t block)
{
    if (t->types[block] == UNKNOWN && t->m->blocks[block].made_by != MEMORY_NONE)
        set_type(t, t->m->blocks[block].made_by, block);
    return t->types[block] == BITS_16 ? BITS_16 : BITS_32;
}

/* The type that a scope reads; UNKNOWN: it is none. */
static uint8_t scope_type(const struct typing *t, const struct graph_typed_op *op)
{
    if (op->backward)
        return UNKNOWN;
    if (op->rule == TYPE_MATH)
        return BITS_32;
    if ((op->rule != TYPE_LOWER && op->rule != TYPE_FULL) || region_of(t, op) == MODEL_NONE)
        return UNKNOWN;
    return op->rule == TYPE_LOWER ? BITS_16 : BITS_32;
}

/* The scopes that an op lies in or is, outermost first: the outermost of autocast's lists, and one
 * that computes in 32 bits by itself. */
struct scopes {
    uint32_t op[2];
    int n;
};

static struct scopes scopes_of(const struct typing *t, uint32_t op)
{
    uint32_t listed = MODEL_NONE, math = MODEL_NONE;
    struct scopes scopes = {.n = 0};
    for (; op != MODEL_NONE; op = op_at(t, op)->outer)
        if (op_at(t, op)->rule == TYPE_MATH)
            math = op;
        else if (scope_type(t, op_at(t, op)) != UNKNOWN)
            listed = op;
    if (listed != MODEL_NONE)
        scopes.op[scopes.n++] = listed;
    if (math != MODEL_NONE)
        scopes.op[scopes.n++] = math;
    return scopes;
}

/* What an op of the forward pass, or the backward pass of it, reads for a tensor that was there
 * before the scopes it lies in. */
static uint32_t read_in_scopes(struct typing *t, uint32_t op, const struct graph_operand *o,
                               uint8_t *type)
{
    uint32_t at = o->block, made_by = t->m->blocks[o->block].made_by;
    struct scopes scopes = scopes_of(t, op);
    *type = type_of(t, o->block);
    uint32_t region = made_by == MEMORY_NONE ? MODEL_NONE : region_of(t, op_at(t, made_by));
    if (*type == BITS_16 && region < ALL_CALLS && region != region_of(t, op_at(t, op))) {
        at = cast_out(t, o->block, region);
        *type = BITS_32;
    }
    for (int i = 0; i < scopes.n; i++) {
        uint8_t wanted = scope_type(t, op_at(t, scopes.op[i]));
        if (*type == wanted || !is_older(t, o->block, op_at(t, scopes.op[i])->first))
            continue;
        at = cast_in_scope(t, o, wanted, scopes.op[i]);
        *type = wanted;
    }
    return at;
}

/* The type of what an op of the forward pass puts out, which its gradient has. */
static uint8_t output_type(struct typing *t, uint32_t op)
{
    const struct graph_typed_op *it = op_at(t, op);
    struct scopes scopes = scopes_of(t, op);
    if (it->n_outputs == 0)
        return BITS_32;
    uint32_t block = t->m->operands[it->first_operand + it->n_inputs].block;
    for (int i = scopes.n; i-- > 0;) {
        const struct graph_typed_op *scope = op_at(t, scopes.op[i]);
        if (scopes.op[i] != op && (scope->rule == TYPE_MATH || is_older(t, block, scope->first)))
            return scope_type(t, scope);
    }
    return type_of(t, block);
}

/* The block that an op reads for an operand, and the type that this has. */
static uint32_t read_operand(struct typing *t, uint32_t op, const struct graph_operand *o,
                             uint8_t *type)
{
    const struct graph_typed_op *it = op_at(t, op);
    uint32_t root = t->roots[op];
    *type = t->handed[o->block] ? BITS_32 : type_of(t, o->block);
    if (t->handed[o->block])
        return t->handed[o->block];
    if (!it->backward)
        return read_in_scopes(t, op, o, type);
    if (root == MODEL_NONE)
        return o->block;
    const struct graph_typed_op *function = op_at(t, root);
    if (is_of_backward(t, o->block)) {
        bool given = is_older(t, o->block, function->first) && it->rule != TYPE_SUM;
        if (!given || (function->forward == MEMORY_NONE && function->rule != TYPE_PARAMETER))
            return o->block;
        uint8_t wanted =
            function->rule == TYPE_PARAMETER ? BITS_32 : output_type(t, function->forward);
        if (*type == wanted)
            return o->block;
        *type = wanted;
        return cast_gradient(t, o, wanted, root);
    }
    return function->forward == MEMORY_NONE ? o->block
                                            : read_in_scopes(t, function->forward, o, type);
}

/* A variable has it until the calls are over that it goes into. */
static uint32_t held_until(const struct typing *t, const struct graph_typed_op *op, uint32_t block)
{
    uint32_t place = op->last, maker = t->m->blocks[block].call;
    for (uint32_t c = maker == MEMORY_NONE ? MODEL_NONE : op->call; c != MEMORY_NONE;
         c = t->m->calls[c].parent) {
        uint32_t up = maker;
        while (up != MODEL_NONE && up > c)
            up = t->m->calls[up].parent;
        if (up == c)
            break;
        place = MAX(place, t->m->calls[c].last);
    }
    return place;
}

static void note_use(struct typing *t, uint32_t op, uint32_t original, uint32_t block)
{
    const struct graph_typed_op *it = op_at(t, op);
    bool backward = it->backward;
    uint32_t last = op_at(t, t->parts[op])->last;
    struct reading *reading = &t->reads[original];
    struct graph_use use = {it->call, it->first, last, backward};
    array_push(&t->uses, ((struct type_use){use, block}));
    if (block == original) {
        reading->direct = MAX(reading->direct, last + 1);
        return;
    }
    last_until(&t->blocks.at[block], last);
    if (!backward)
        reading->direct = MAX(reading->direct, held_until(t, it, original) + 1);
    else if (!is_of_backward(t, original)) {
        uint32_t root = t->roots[op];
        reading->cast = MAX(reading->cast, op_at(t, root)->last + 1);
        if (t->blocks.at[block].category == DPRO_MEMORY_TEMPORARY)
            t->blocks.at[block].category = DPRO_MEMORY_ACTIVATION;
    }
}

/* ---- what an op makes ---- */

static void add_temporary(struct typing *t, const struct graph_typed_op *op,
                          const struct graph_block *like, uint32_t place, uint64_t size_bytes)
{
    struct graph_block *block = &t->blocks.at[add_block(t, like, place, op->last, size_bytes)];
    block->category = DPRO_MEMORY_TEMPORARY;
    block->call = op->call;
}

/* PyTorch's operators on CPUs cast operands of another type before they begin. */
static void cast_promoted(struct typing *t, const struct graph_typed_op *op,
                          const struct graph_operand *o, uint8_t type)
{
    if (!t->m->gpu && type == BITS_16 && op->rule == TYPE_PROMOTED)
        add_temporary(t, op, &t->m->blocks[o->block], op->first, bytes_of(o, BITS_32));
}

struct operand_types {
    uint8_t first, widest;
    bool any, mixed;
};

static struct operand_types types_in(struct typing *t, uint32_t op)
{
    const struct graph_typed_op *it = op_at(t, op);
    struct operand_types found = {BITS_32, UNKNOWN, false, false};
    for (uint32_t i = 0; i < it->n_inputs; i++) {
        const struct graph_operand *o = &t->m->operands[it->first_operand + i];
        uint8_t type;
        read_operand(t, op, o, &type);
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
static uint8_t made_type(struct typing *t, uint32_t op, const struct operand_types *in,
                         uint32_t block)
{
    const struct graph_typed_op *it = op_at(t, op);
    const struct graph_operand *outputs = &t->m->operands[it->first_operand + it->n_inputs];
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
static void set_type(struct typing *t, uint32_t op, uint32_t block)
{
    struct operand_types in = types_in(t, op);
    while (!in.any && op_at(t, op)->outer != MEMORY_NONE) {
        op = op_at(t, op)->outer;
        in = types_in(t, op);
    }
    if (in.any)
        t->types[block] = made_type(t, op, &in, block);
}

/* What computes in 32 bits by itself makes its result in them, too. */
static void cast_result(struct typing *t, uint32_t op, const struct graph_operand *o)
{
    const struct graph_typed_op *it = op_at(t, op);
    struct scopes scopes = scopes_of(t, op);
    uint8_t around = scopes.n == 2      ? scope_type(t, op_at(t, scopes.op[0]))
                     : it->n_inputs > 0 ? type_of(t, t->m->operands[it->first_operand].block)
                                        : BITS_32;
    if (around != BITS_16 || t->types[o->block] != BITS_32)
        return;
    t->types[o->block] = BITS_16;
    uint32_t taken = t->m->blocks[o->block].taken;
    add_temporary(t, it, &t->m->blocks[o->block], taken + 1, bytes_of(o, BITS_32));
}

/* oneDNN makes a weight's gradient in 32 bits first, of one image after the other, whose input and
 * gradient it transposes. */
static void add_workspace(struct typing *t, uint32_t op)
{
    const struct graph_typed_op *it = op_at(t, op);
    const struct graph_operand *in = &t->m->operands[it->first_operand];
    if (t->m->gpu || it->rule != TYPE_CONVOLUTION || it->n_inputs < 3 ||
        types_in(t, op).widest != BITS_16)
        return;
    uint64_t bytes = bytes_of(&in[2], BITS_32);
    for (int i = 0; i < 2 && t->m->batch_size > 0; i++)
        bytes += bytes_of(&in[i], BITS_16) / t->m->batch_size;
    add_temporary(t, it, &t->m->blocks[in[2].block], it->first, bytes);
}

static void end_op(struct typing *t, uint32_t op, bool leaf)
{
    const struct graph_typed_op *it = op_at(t, op);
    const struct graph_operand *operands = &t->m->operands[it->first_operand];
    bool mixed = leaf && types_in(t, op).mixed;
    add_workspace(t, op);
    for (uint32_t i = 0; i < it->n_inputs + it->n_outputs; i++) {
        uint32_t block = operands[i].block, reads = block;
        uint8_t type = BITS_32;
        bool is_output = i >= it->n_inputs, is_new = is_output && !is_older(t, block, it->first);
        if (is_new && t->types[block] == UNKNOWN)
            set_type(t, op, block);
        if (is_new && it->rule == TYPE_MATH && i == it->n_inputs)
            cast_result(t, op, &operands[i]);
        if (!is_new)
            reads = read_operand(t, op, &operands[i], &type);
        note_use(t, op, block, reads);
        if (mixed && !is_output)
            cast_promoted(t, it, &operands[i], type);
    }
}

/* Ops end when one begins that does not lie in them. */
static void follow_types(struct typing *t)
{
    const struct model_memory *m = t->m;
    uint32_t open = MODEL_NONE;
    bool leaf = false;
    for (uint32_t op = 0; op <= m->n_typed_ops; op++) {
        uint32_t outer = op < m->n_typed_ops ? m->typed_ops[op].outer : MODEL_NONE;
        for (; open != MODEL_NONE && open != outer; open = m->typed_ops[open].outer) {
            end_op(t, open, leaf);
            leaf = false;
        }
        open = op;
        leaf = true;
    }
}

/* ---- what comes of it ---- */

/* A library's own memory is of the type that it computes in. */
static uint8_t workspace_type(struct typing *t, const struct graph_block *b)
{
    if (b->made_by == MEMORY_NONE)
        return BITS_32;
    uint32_t op = b->made_by, root = t->roots[op];
    if (root != MODEL_NONE)
        op = op_at(t, root)->forward;
    if (op == MEMORY_NONE)
        return BITS_32;
    struct scopes scopes = scopes_of(t, op);
    return scopes.n > 0 ? scope_type(t, op_at(t, scopes.op[scopes.n - 1])) : output_type(t, op);
}

/* What a recurrent layer keeps for its backward pass, one tensor of bytes. Of oneDNN's the
 * gradients' 6 of 15 parts (4 gates, 2 layers of 3 states, the same of gradients, less one) stay in
 * 32 bits. */
static bool is_kept_by_library(const struct typing *t, const struct graph_block *b)
{
    const struct graph_typed_op *op = b->made_by == MEMORY_NONE ? NULL : op_at(t, b->made_by);
    return op && b->item_bytes == 1 && op->rule == TYPE_LOWER && scope_type(t, op) == BITS_16;
}

static void change_block(struct typing *t, uint32_t index)
{
    const double KEPT_SHARE = t->m->gpu ? 0.5 : 0.7;
    struct graph_block *b = &t->blocks.at[index];
    const struct reading *reading = &t->reads[index];
    if (is_kept_by_library(t, b))
        b->size_bytes = (uint64_t)((double)b->size_bytes * KEPT_SHARE);
    if (t->types[index] == UNKNOWN && b->item_bytes == 0 &&
        (b->category == DPRO_MEMORY_WORKSPACE || b->category == DPRO_MEMORY_TEMPORARY))
        t->types[index] = workspace_type(t, b);
    if (t->types[index] == BITS_16)
        b->size_bytes /= 2;
    if (reading->cast == 0 || b->taken == MEMORY_NONE)
        return;
    uint32_t last = MAX(MAX(reading->direct, 1) - 1, reading->first_cast);
    if (last < b->given && (b->given < reading->cast || is_of_backward(t, index))) {
        b->given = last;
        if (b->category == DPRO_MEMORY_GRADIENT)
            b->category = DPRO_MEMORY_TEMPORARY;
    }
}

ORDER(by_block, struct type_use, ASCENDING(block) ?: ASCENDING(is.first) ?: ASCENDING(is.backward));

/* Recorded uses stay where all are of the block itself. */
static void write_uses(struct typing *t, struct model_memory *to)
{
    const struct model_memory *m = t->m;
    size_t n = 0;
    struct graph_use *uses = arena_array(t->arena, t->uses.n + m->n_uses, sizeof *uses);
    array_sort(&t->uses, by_block);
    size_t next = 0;
    for (uint32_t b = 0; b < t->blocks.n; b++) {
        struct graph_block *block = &t->blocks.at[b];
        size_t first = n, begin = next;
        while (next < t->uses.n && t->uses.at[next].block == b)
            next++;
        if (b < m->n_blocks && t->reads[b].cast == 0) {
            memcpy(&uses[n], &m->uses[block->first_use], block->n_uses * sizeof *uses);
            n += block->n_uses;
        } else {
            for (size_t i = begin; i < next; i++)
                uses[n++] = t->uses.at[i].is;
        }
        block->first_use = (uint32_t)first;
        block->n_uses = (uint32_t)(n - first);
    }
    to->uses = uses;
    to->n_uses = (uint32_t)n;
}

static void find_regions(struct typing *t, const struct dpro_strategy *strategy)
{
    const struct model_memory *m = t->m;
    t->regions = arena_alloc(t->arena, (m->n_calls + (size_t)1) * sizeof *t->regions);
    for (uint32_t c = 0; c < m->n_calls; c++) {
        const struct memory_call *call = &m->calls[c];
        t->regions[c] = call->parent != MODEL_NONE ? t->regions[call->parent] : MODEL_NONE;
        if (t->regions[c] == MODEL_NONE && strategy->computing[call->module] & DPRO_BF16)
            t->regions[c] = c;
        t->loss &= call->parent != MODEL_NONE || t->regions[c] == c;
    }
    for (uint32_t c = 0; c < m->n_calls && t->loss; c++)
        t->regions[c] = ALL_CALLS;
}

static void find_functions(struct typing *t)
{
    uint32_t n = t->m->n_typed_ops;
    t->roots = arena_alloc(t->arena, (n + (size_t)1) * sizeof *t->roots);
    t->parts = arena_alloc(t->arena, (n + (size_t)1) * sizeof *t->parts);
    t->backward_first = t->m->n_moments;
    for (uint32_t op = 0; op < n; op++) {
        const struct graph_typed_op *it = op_at(t, op);
        bool is_function = it->rule == TYPE_FUNCTION || it->rule == TYPE_PARAMETER;
        uint32_t outer = it->outer;
        t->roots[op] = outer != MEMORY_NONE ? t->roots[outer] : MODEL_NONE;
        t->parts[op] = t->roots[op] != MODEL_NONE && t->roots[op] != outer ? t->parts[outer] : op;
        if (t->roots[op] == MODEL_NONE && is_function)
            t->roots[op] = op;
        if (it->backward)
            t->backward_first = MIN(t->backward_first, it->first);
    }
}

bool memory_has_16_bits(const struct model_memory *m, const struct dpro_strategy *strategy)
{
    for (uint32_t c = 0;
         c < m->n_calls && strategy->computing && m->n_typed_ops > 0 && m->n_moments > 0; c++)
        if (strategy->computing[m->calls[c].module] & DPRO_BF16)
            return true;
    return false;
}

struct model_memory memory_in_16_bits(const struct model_memory *m,
                                      const struct dpro_strategy *strategy, bool loss,
                                      struct arena *arena)
{
    struct typing t = {.m = m, .arena = arena, .loss = loss};
    struct model_memory to = *m;
    find_regions(&t, strategy);
    find_functions(&t);
    t.types = arena_array(arena, m->n_blocks + (size_t)1, 1);
    t.handed = arena_array(arena, m->n_blocks + (size_t)1, sizeof *t.handed);
    t.reads = arena_array(arena, m->n_blocks + (size_t)1, sizeof *t.reads);
    array_append(&t.blocks, m->blocks, m->n_blocks);
    follow_types(&t);
    for (uint32_t b = 0; b < m->n_blocks; b++)
        change_block(&t, b);
    write_uses(&t, &to);
    to.n_blocks = (uint32_t)t.blocks.n;
    struct graph_block *blocks = arena_alloc(arena, (t.blocks.n + 1) * sizeof *blocks);
    memcpy(blocks, t.blocks.at, t.blocks.n * sizeof *blocks);
    to.blocks = blocks;
    array_fini(&t.blocks);
    array_fini(&t.uses);
    map_fini(&t.casts);
    return to;
}
