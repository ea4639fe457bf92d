/* graph/memory/graph_memory.h: the memory of a rank's device in one iteration: its blocks, when
 * each is taken and given back, what it is for, and which calls of modules use it.
 *
 * A *moment* is a block being taken or given back, within an op. Moments are in the iteration's
 * order. A *place* is a position between moments: the number of moments before it, from 0 to
 * n_moments. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ingest/allocator_history.h"

#define MEMORY_NONE UINT32_MAX

struct graph_moment {
    uint32_t op;    /* of the graph, in which it is; DPRO_NO_OP: before the first */
    uint16_t share; /* of the op's time that has passed, in 1/65535 */
    bool gives;     /* the block is given back; else taken */
    uint32_t block;
};

struct graph_block {
    uint64_t size_bytes;
    uint32_t taken, given; /* moments; MEMORY_NONE: before the iteration, after it */
    uint8_t category;      /* enum dpro_memory_category */
    bool scales;           /* its size is that of the batch */
    uint8_t item_bytes;    /* of an element; 0: not known */
    uint32_t name;         /* string id: the parameter, else the op that made it */
    uint32_t made_by;      /* innermost of the typed ops in which it was taken; MEMORY_NONE */
    uint32_t gather;       /* GATHER() of the unit that it was taken for; 0: none */
    bool gathered;         /* its parameters; else what the all-gather needs beside them */
    uint32_t call;         /* the innermost call whose forward or backward made it; MEMORY_NONE */
    uint32_t first_use, n_uses; /* into uses, ascending */
};

/* That a call reads or writes a block; within one pass from the first to the last time. */
struct graph_use {
    uint32_t call;        /* innermost; MEMORY_NONE: code of no module */
    uint32_t first, last; /* places */
    bool backward;
};

/* A module called once. Calls lie within each other as modules do; forward ranges by place are
 * [first, last). */
struct graph_call {
    uint32_t module; /* string id: "blocks.0.norm1"; "": the model itself */
    uint32_t class;  /* string id: "LayerNorm"; 0: not known */
    uint32_t parent; /* the call that it lies in; MEMORY_NONE */
    uint32_t forward_first, forward_last;
    uint32_t backward_first, backward_last; /* equal: it has none */
    int64_t forward_ns, backward_ns;        /* work of its ops, of calls within it too; mean */
    uint32_t first_forward_op, first_backward_op; /* of the graph; DPRO_NO_OP: none */
};

/* What data types go in and out of an op where another one than recorded is asked for: by
 * autocast's lists, else by PyTorch's promotion. */
enum type_rule {
    TYPE_PROMOTED,    /* the widest of what goes in */
    TYPE_LOWER,       /* autocast computes it in 16 bits */
    TYPE_FULL,        /* autocast computes it in 32 bits */
    TYPE_WIDENED,     /* takes in what it gets, puts out 32 bits */
    TYPE_FIRST,       /* as the first that goes in */
    TYPE_STATISTICS,  /* the first output as the first that goes in, the others in 32 bits */
    TYPE_MATH,        /* in 32 bits, but what comes out has the type of what goes in */
    TYPE_CONVOLUTION, /* its backward pass: gradient, input, weight go in */
    TYPE_CAST,        /* the job casts by itself, for it and all that lies in it */
    TYPE_FUNCTION,  /* a function of the backward pass: its gradients have the types of what its op
                       put out and took in */
    TYPE_PARAMETER, /* the one that hands a parameter its gradient */
    TYPE_SUM,       /* of the gradients that meet in a tensor */
};

/* An op of the forward or backward pass, in the order of their starts; outer ones first. */
struct graph_typed_op {
    uint32_t first, last; /* places */
    uint32_t outer;       /* the op that it lies in; MEMORY_NONE */
    uint32_t call;        /* innermost; MEMORY_NONE: code of no module */
    uint32_t forward;     /* of a TYPE_FUNCTION: its op of the forward pass; MEMORY_NONE */
    uint32_t first_operand, n_inputs, n_outputs; /* into operands */
    uint8_t rule;                                /* enum type_rule */
    bool backward;
};

/* A tensor of 32-bit numbers. */
struct graph_operand {
    uint32_t block;
    uint64_t numel;
};

/* Places of an FSDP unit; MEMORY_NONE: it has none. */
struct graph_unit_places {
    uint32_t forward_end, asked, backward; /* its forward pass is over; its parameters are gathered
                                              for its backward pass, if they are; that begins */
};

struct graph_memory {
    uint8_t source; /* enum dpro_memory_source */
    bool gpu;
    struct graph_block *blocks;
    struct graph_moment *moments;
    struct graph_use *uses;
    struct graph_call *calls; /* by forward_first, outer ones first */
    uint32_t *op_calls;       /* by op of the rank, from its first on: twice the call whose work it
                                 is, one more in its backward pass; MEMORY_NONE */
    struct graph_typed_op *typed_ops; /* none where there is no execution trace */
    struct graph_operand *operands;
    struct graph_unit_places *units;
    uint32_t n_blocks, n_moments, n_uses, n_calls, n_op_calls, n_typed_ops, n_operands, n_units;
    uint64_t measured_peak_bytes;        /* as recorded in that iteration; 0: not known */
    uint64_t measured_reserved_bytes;    /* the allocator's, then; 0: it has none, or not known */
    uint64_t capacity_bytes;             /* of the device; 0: not known */
    uint32_t batch_size;                 /* of the rank; 0: not known */
    struct allocator_settings allocator; /* a GPU's, if they are known */
};
