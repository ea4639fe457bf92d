/* What a rank holds when modules are in 16 bits.
 *
 * A cast is a block of its own. Casts of parameters are kept until autocast is left. What is only
 * read through casts is freed after its last direct use. */
#include "cost/memory/memory_sweep.h"

#include "cost/memory/data_types.h"
#include "cost/program/modules.h"

struct type_use {
    struct graph_use is;
    uint32_t block;
};

/* What a block is read for. */
struct memory_reading {
    uint32_t direct;     /* 1 + the place up to which it is itself; 0: never */
    uint32_t cast;       /* 1 + the place up to which casts of it are, by the backward pass or of
                            a gradient; 0: none */
    uint32_t first_cast; /* the place of the first cast of a gradient */
};

struct casting {
    const struct model_memory *m;
    struct arena *arena;
    struct data_types d;
    struct memory_reading *reads; /* by block as recorded */
    ARRAY(struct graph_block) blocks;
    ARRAY(struct type_use) uses;
    struct map casts; /* of a block, by a region, a scope or a function -> index in blocks */
};

/* ---- casts ---- */

static uint64_t cast_key(uint32_t block, uint32_t by, bool region)
{
    return map_mix(((uint64_t)block << 32 | by) * 2 + region) | 1;
}

/* From a place on, until its last use. */
static uint32_t add_block(struct casting *t, const struct graph_block *of, uint32_t place,
                          uint32_t last, uint64_t size_bytes)
{
    struct graph_block block = *of;
    block.size_bytes = size_bytes;
    block.asked_bytes = 0;
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
static uint32_t region_end(const struct casting *t, uint32_t region)
{
    return region == ALL_CALLS ? t->d.backward_first : t->m->calls[region].last;
}

static uint32_t cast_in_scope(struct casting *t, const struct graph_operand *o, uint8_t type,
                              uint32_t scope)
{
    const struct graph_typed_op *op = typed_op(&t->d, scope);
    const struct graph_block *of = &t->m->blocks[o->block];
    bool kept = type == BITS_16 && (of->category == DPRO_MEMORY_PARAMETER || of->gathered);
    uint32_t region = data_types_region(&t->d, op);
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
static uint32_t cast_out(struct casting *t, uint32_t block, uint32_t region)
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
static uint32_t cast_gradient(struct casting *t, const struct graph_operand *o, uint8_t type,
                              uint32_t function)
{
    const struct graph_typed_op *op = typed_op(&t->d, function);
    const struct graph_block *of = &t->m->blocks[o->block];
    struct memory_reading *reading = &t->reads[o->block];
    uint64_t key = cast_key(o->block, function, false), at;
    if (map_get(&t->casts, key, &at))
        return (uint32_t)at;
    uint32_t cast = add_block(t, of, op->first, op->last, bytes_of(o, type));
    if (op->rule == TYPE_PARAMETER) {
        t->blocks.at[cast].given = of->given;
    }
    if (reading->cast == 0)
        reading->first_cast = op->first;
    reading->cast = MAX(reading->cast, op->last + 1);
    map_set(&t->casts, key, cast);
    return cast;
}

static uint32_t read_operand(struct casting *t, const struct graph_operand *o,
                             const struct operand_read *read)
{
    uint32_t block = o->block;
    EACH_OF (const struct cast, cast, read->casts, read->n_casts) {
        block = cast->kind == CAST_OUT        ? cast_out(t, o->block, cast->by)
                : cast->kind == CAST_IN_SCOPE ? cast_in_scope(t, o, cast->type, cast->by)
                                              : cast_gradient(t, o, cast->type, cast->by);
    }
    return block;
}

/* A variable has it until the calls are over that it goes into. */
static uint32_t held_until(const struct casting *t, const struct graph_typed_op *op, uint32_t block)
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

static void note_use(struct casting *t, uint32_t op, uint32_t original, uint32_t block)
{
    const struct graph_typed_op *it = typed_op(&t->d, op);
    bool backward = it->backward;
    uint32_t last = typed_op(&t->d, t->d.parts[op])->last;
    struct memory_reading *reading = &t->reads[original];
    struct graph_use use = {it->call, it->first, last, backward};
    array_push(&t->uses, ((struct type_use){use, block}));
    if (block == original) {
        reading->direct = MAX(reading->direct, last + 1);
        return;
    }
    last_until(&t->blocks.at[block], last);
    if (!backward)
        reading->direct = MAX(reading->direct, held_until(t, it, original) + 1);
    else if (!is_of_backward(&t->d, original)) {
        uint32_t root = t->d.roots[op];
        reading->cast = MAX(reading->cast, typed_op(&t->d, root)->last + 1);
        if (t->blocks.at[block].category == DPRO_MEMORY_TEMPORARY)
            t->blocks.at[block].category = DPRO_MEMORY_ACTIVATION;
    }
}

/* ---- what an op makes ---- */

static void add_temporary(struct casting *t, const struct graph_typed_op *op,
                          const struct graph_block *like, uint32_t place, uint64_t size_bytes)
{
    struct graph_block *block = &t->blocks.at[add_block(t, like, place, op->last, size_bytes)];
    block->category = DPRO_MEMORY_TEMPORARY;
    block->call = op->call;
}

/* PyTorch's operators on CPUs cast operands of another type before they begin. */
static void cast_promoted(struct casting *t, const struct graph_typed_op *op,
                          const struct graph_operand *o, uint8_t type)
{
    if (!t->m->gpu && type == BITS_16 && op->rule == TYPE_PROMOTED)
        add_temporary(t, op, &t->m->blocks[o->block], op->first, bytes_of(o, BITS_32));
}

/* oneDNN makes a weight's gradient in 32 bits first, of one image after the other, whose input and
 * gradient it transposes. */
static void add_workspace(struct casting *t, uint32_t op)
{
    const struct graph_typed_op *it = typed_op(&t->d, op);
    const struct graph_operand *in = &t->m->operands[it->first_operand];
    if (t->m->gpu || it->rule != TYPE_CONVOLUTION || it->n_inputs < 3 ||
        data_types_in(&t->d, op).widest != BITS_16)
        return;
    uint64_t bytes = bytes_of(&in[2], BITS_32);
    for (int i = 0; i < 2 && t->m->batch_size > 0; i++)
        bytes += bytes_of(&in[i], BITS_16) / t->m->batch_size;
    add_temporary(t, it, &t->m->blocks[in[2].block], it->first, bytes);
}

static void end_op(struct casting *t, uint32_t op, bool leaf)
{
    const struct graph_typed_op *it = typed_op(&t->d, op);
    const struct graph_operand *operands = &t->m->operands[it->first_operand];
    bool mixed = leaf && data_types_in(&t->d, op).mixed;
    add_workspace(t, op);
    for (uint32_t i = 0; i < it->n_inputs + it->n_outputs; i++) {
        uint32_t block = operands[i].block;
        bool is_output = i >= it->n_inputs;
        if (is_output && !is_older(&t->d, block, it->first)) {
            const struct graph_block *made = &t->m->blocks[block];
            data_types_make(&t->d, op, block);
            if (it->rule == TYPE_MATH && i == it->n_inputs && data_types_narrow(&t->d, op, block))
                add_temporary(t, it, made, made->taken + 1, bytes_of(&operands[i], BITS_32));
            note_use(t, op, block, block);
            continue;
        }
        struct operand_read read = data_types_read(&t->d, op, &operands[i]);
        note_use(t, op, block, read_operand(t, &operands[i], &read));
        if (mixed && !is_output)
            cast_promoted(t, it, &operands[i], read.type);
    }
}

/* Ops end when one begins that does not lie in them. */
static void follow_types(struct casting *t)
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

/* What a recurrent layer keeps for its backward pass, one tensor of bytes. Of oneDNN's the
 * gradients' 6 of 15 parts (4 gates, 2 layers of 3 states, the same of gradients, less one) stay in
 * 32 bits. */
static bool is_kept_by_library(const struct casting *t, const struct graph_block *b)
{
    const struct graph_typed_op *op =
        b->made_by == MEMORY_NONE ? NULL : typed_op(&t->d, b->made_by);
    return op && b->item_bytes == 1 && op->rule == TYPE_LOWER &&
           data_types_of_scope(&t->d, op) == BITS_16;
}

static void change_block(struct casting *t, uint32_t index)
{
    const double KEPT_SHARE = t->m->gpu ? 0.5 : 0.7;
    struct graph_block *b = &t->blocks.at[index];
    const struct memory_reading *reading = &t->reads[index];
    if (is_kept_by_library(t, b))
        b->size_bytes = (uint64_t)((double)b->size_bytes * KEPT_SHARE);
    if (t->d.types[index] == TYPE_UNKNOWN && b->item_bytes == 0 &&
        (b->category == DPRO_MEMORY_WORKSPACE || b->category == DPRO_MEMORY_TEMPORARY))
        t->d.types[index] = data_types_of_workspace(&t->d, b);
    if (t->d.types[index] == BITS_16) {
        b->size_bytes /= 2;
        b->asked_bytes /= 2;
    }
    if (reading->cast == 0 || b->taken == MEMORY_NONE)
        return;
    uint32_t last = MAX(MAX(reading->direct, 1) - 1, reading->first_cast);
    if (last < b->given && (b->given < reading->cast || is_of_backward(&t->d, index))) {
        b->given = last;
        if (b->category == DPRO_MEMORY_GRADIENT)
            b->category = DPRO_MEMORY_TEMPORARY;
    }
}

ORDER(by_block, struct type_use, ASCENDING(block) ?: ASCENDING(is.first) ?: ASCENDING(is.backward));

/* Recorded uses stay where all are of the block itself. */
static void write_uses(struct casting *t, struct model_memory *to)
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
            if (block->n_uses > 0)
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

/* The outermost calls that are computed in 16 bits; all and the loss where that is wanted and all
 * that calls no others lies in them. */
static uint32_t *find_regions(const struct model_memory *m, const struct dpro_strategy *strategy,
                              bool *loss, struct arena *arena)
{
    uint32_t *regions = arena_alloc(arena, (m->n_calls + (size_t)1) * sizeof *regions);
    bool *has_calls = arena_array(arena, m->n_calls, sizeof *has_calls);
    CALLS_OUTERMOST(regions, m->calls, m->n_calls, c, strategy->computing[m->calls[c].module]);
    for (uint32_t c = 0; c < m->n_calls; c++) {
        if (m->calls[c].parent != MODEL_NONE)
            has_calls[m->calls[c].parent] = true;
        if (regions[c] != MODEL_NONE &&
            !(strategy->computing[m->calls[regions[c]].module] & DPRO_BF16))
            regions[c] = MODEL_NONE;
    }
    for (uint32_t c = 0; c < m->n_calls; c++)
        *loss &= has_calls[c] || regions[c] != MODEL_NONE;
    for (uint32_t c = 0; c < m->n_calls && *loss; c++)
        regions[c] = ALL_CALLS;
    return regions;
}

bool memory_has_16_bits(const struct model_memory *m, const struct dpro_strategy *strategy)
{
    if (!strategy->computing || m->n_typed_ops == 0 || m->n_moments == 0)
        return false;
    for (uint32_t c = 0; c < m->n_calls; c++)
        if (strategy->computing[m->calls[c].module] & DPRO_BF16)
            return true;
    return false;
}

struct model_memory memory_in_16_bits(const struct dpro_model *model, const struct model_memory *m,
                                      const struct dpro_strategy *strategy, struct arena *arena)
{
    bool loss = model->memory.loss_in_16_bits;
    struct casting t = {.m = m, .arena = arena};
    struct model_memory to = *m;
    if (!memory_has_16_bits(m, strategy))
        return to;
    const uint32_t *regions = find_regions(m, strategy, &loss, arena);
    t.d = data_types_begin(m, regions, loss, arena);
    t.reads = arena_array(arena, m->n_blocks + (size_t)1, sizeof *t.reads);
    array_append(&t.blocks, m->blocks, m->n_blocks);
    follow_types(&t);
    for (uint32_t b = 0; b < m->n_blocks; b++)
        change_block(&t, b);
    write_uses(&t, &to);
    to.n_blocks = (uint32_t)t.blocks.n;
    to.blocks = arena_copy(arena, t.blocks.at, t.blocks.n, sizeof *to.blocks);
    FREE_ALL(&t.blocks, &t.uses, &t.casts);
    return to;
}
