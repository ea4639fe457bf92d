/* The data types that a rank's recorded ops would read and make if modules were computed in 16
 * bits.
 *
 * Types are followed through the ops.
 * - A *region* is a call that is computed in 16 bits, the outermost one.
 * - A *scope* is an op of autocast's lists, or one that computes in 32 bits by itself. It reads
 *   what is older than it and of another type through a cast. So does its backward pass, as
 *   autograd has saved the cast.
 * - A gradient has the type of its tensor. So a *function* of the backward pass makes a cast of its
 *   own of a gradient of another type. */
#pragma once

#include "cost/program/model_memory.h"

enum { TYPE_UNKNOWN, BITS_16, BITS_32 }; /* what an element of a block has */

#define ALL_CALLS (MODEL_NONE - 1) /* a region with code of no module, too */

struct data_types {
    const struct model_memory *m;
    bool loss;               /* what no module computes is computed in 16 bits, too */
    const uint32_t *regions; /* by call; MODEL_NONE */
    uint32_t *roots;         /* by op: the function of the backward pass that it is part of */
    uint32_t *parts;         /* by op: the op within that function; itself */
    uint32_t *handed;        /* by block, of a gradient that was cast for its parameter: 1 + the
                                function; 0: none */
    uint8_t *types;          /* by block */
    uint32_t backward_first; /* the place where the backward pass begins */
    uint32_t depth;          /* of questions within each other */
};

/* Through which casts, one of the other, an operand is read. */
enum cast_kind { CAST_OUT, CAST_IN_SCOPE, CAST_OF_GRADIENT };
struct cast {
    uint8_t kind, type; /* type of the result */
    uint32_t by;        /* a region; a scope; a function */
};
struct operand_read {
    uint8_t type;
    int n_casts;
    struct cast casts[3];
};

struct operand_types {
    uint8_t first, widest;
    bool any, mixed;
};

struct data_types data_types_begin(const struct model_memory *m, const uint32_t *regions, bool loss,
                                   struct arena *arena);
struct operand_read data_types_read(struct data_types *d, uint32_t op,
                                    const struct graph_operand *o);
struct operand_types data_types_in(struct data_types *d, uint32_t op);
/* Sets the type of what an op makes, if it is not known. */
void data_types_make(struct data_types *d, uint32_t op, uint32_t block);
/* The type of a block that a library takes for its work. */
uint8_t data_types_of_workspace(struct data_types *d, const struct graph_block *b);
/* Sets the type of a block to 16 bits, and returns true, if the op computes it in 32 bits but puts
 * it out in 16. */
bool data_types_narrow(struct data_types *d, uint32_t op, uint32_t block);
/* The type that a scope reads; TYPE_UNKNOWN: the op is no scope. */
uint8_t data_types_of_scope(const struct data_types *d, const struct graph_typed_op *op);
uint32_t data_types_region(const struct data_types *d, const struct graph_typed_op *op);

static inline const struct graph_typed_op *typed_op(const struct data_types *d, uint32_t op)
{
    return &d->m->typed_ops[op];
}

static inline bool is_older(const struct data_types *d, uint32_t block, uint32_t place)
{
    const struct graph_block *b = &d->m->blocks[block];
    return b->taken == MEMORY_NONE || b->taken < place;
}

static inline bool is_of_backward(const struct data_types *d, uint32_t block)
{
    const struct graph_block *b = &d->m->blocks[block];
    return b->made_by != MEMORY_NONE && typed_op(d, b->made_by)->backward;
}
