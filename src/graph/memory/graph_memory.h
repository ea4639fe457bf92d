/* The memory of a rank's device in one iteration: its blocks, when each is taken and given back,
 * what it is for, and which calls of modules use it.
 *
 * A *moment* is a block being taken or given back, within an op. Moments are in the iteration's
 * order. A *place* is a position between moments: the number of moments before it, from 0 to
 * n_moments. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ingest/allocator_history.h"

#define MEMORY_NONE UINT32_MAX

/* In place of a share: an op that is only there to sum up or gather parts. */
#define SPLIT_UNSPLITS (-1.0F)

struct graph_moment {
    uint32_t op;       /* the graph's op that it is in; DPRO_NO_OP: before the first */
    uint32_t function; /* of autograd, whose gradients are passed on at its end: the number of the
                          call that the op is in; 0: none */
    uint16_t share;    /* how much of the op's time has passed, in 1/65535 */
    bool gives;        /* whether the block is given back; else it is taken */
    uint32_t block;
};

struct graph_block {
    uint64_t size_bytes;
    uint64_t asked_bytes;  /* what it was made for, if known: a GPU's block may have a rest, too
                              small to be cut off */
    uint64_t address;      /* of a GPU's memory, as recorded; 0: not known */
    uint32_t taken, given; /* moments; MEMORY_NONE: before the iteration, after it */
    uint8_t category;      /* enum dpro_memory_category */
    bool scales;           /* its size grows with the batch */
    bool split;            /* a part of what tensor-parallel ranks share out */
    bool unsplits;         /* is only there for these to sum up or gather parts */
    float least_share;     /* with less than this of the recorded batch it is not taken at all; 0 */
    uint8_t item_bytes;    /* bytes of an element; 0: not known */
    uint32_t name;         /* string id: the parameter, else the op that made it */
    uint32_t made_by;      /* the innermost typed op in which it was taken; MEMORY_NONE */
    uint32_t gather;       /* GATHER() of the unit that it was taken for; 0: none */
    bool gathered; /* it holds the unit's parameters; else what the all-gather needs beside them */
    uint32_t call; /* the innermost call whose pass made it; MEMORY_NONE */
    uint32_t first_use, n_uses; /* into uses, ascending */
};

static inline uint64_t graph_block_asked(const struct graph_block *block)
{
    return block->asked_bytes > 0 && block->asked_bytes < block->size_bytes ? block->asked_bytes
                                                                            : block->size_bytes;
}

/* A call's use of a block within one pass, from the first to the last read or write. */
struct graph_use {
    uint32_t call;        /* innermost; MEMORY_NONE: code of no module */
    uint32_t first, last; /* places */
    bool backward;
};

/* One call of a module. Calls nest as modules do. Ranges of places are [first, last). */
struct graph_call {
    uint32_t module; /* string id: "blocks.0.norm1"; "": the model itself */
    uint32_t class;  /* string id: "LayerNorm"; 0: not known */
    uint32_t parent; /* the call around it; MEMORY_NONE */
    uint32_t forward_first, forward_last;
    uint32_t backward_first, backward_last; /* equal: no backward pass */
    int64_t forward_ns, backward_ns;        /* mean work of its ops, including calls within it */
    uint32_t first_forward_op, first_backward_op; /* of the graph; DPRO_NO_OP: none */
};

/* The data types that an op reads and makes when modules are in 16 bits: by autocast's lists, else
 * by PyTorch's type promotion. */
enum type_rule {
    TYPE_PROMOTED,    /* the widest of what goes in */
    TYPE_LOWER,       /* autocast computes it in 16 bits */
    TYPE_FULL,        /* autocast computes it in 32 bits */
    TYPE_WIDENED,     /* reads any type, makes 32 bits */
    TYPE_FIRST,       /* makes the type of its first input */
    TYPE_STATISTICS,  /* its first output has the type of its first input, the others 32 bits */
    TYPE_MATH,        /* computes in 32 bits, but makes the type of its input */
    TYPE_CONVOLUTION, /* a convolution's backward pass: reads gradient, input, weight */
    TYPE_CAST,        /* the job itself casts, for it and all ops within it */
    TYPE_FUNCTION,  /* a function of the backward pass: its gradients have the types of its forward
                       op's outputs and inputs */
    TYPE_PARAMETER, /* hands a parameter its gradient */
    TYPE_SUM,       /* adds up the gradients of a tensor */
};

/* An op of the forward or backward pass. Sorted by start, outer ones first. */
struct graph_typed_op {
    uint32_t first, last; /* places */
    uint32_t outer;       /* the op that it lies in; MEMORY_NONE */
    uint32_t call;        /* innermost; MEMORY_NONE: code of no module */
    uint32_t forward;     /* of a TYPE_FUNCTION: its forward op; MEMORY_NONE */
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
    uint32_t forward_end, asked,
        backward; /* where its forward pass ends, where its parameters are gathered for its backward
                     pass (if they are), and where that begins */
};

struct graph_memory {
    uint8_t source; /* enum dpro_memory_source */
    bool gpu;
    struct graph_block *blocks;
    struct graph_moment *moments;
    struct graph_use *uses;
    struct graph_call *calls; /* by forward_first, outer ones first */
    uint32_t *op_calls; /* by op of the rank, from its first on: twice the number of the call that
                           it works for, plus one in its backward pass; MEMORY_NONE */
    struct graph_typed_op *typed_ops; /* none where there is no execution trace */
    struct graph_operand *operands;
    struct graph_unit_places *units;
    float *op_splits; /* by op, likewise: the part of its work that tensor-parallel ranks share out,
                         or SPLIT_UNSPLITS; none where they don't, or nothing tells */
    uint32_t n_blocks, n_moments, n_uses, n_calls, n_op_calls, n_typed_ops, n_operands, n_units;
    uint32_t n_op_splits, n_heads; /* n_heads: of attention, that all its ops' numbers of heads are
                                      multiples of; 0: not known */
    uint64_t measured_peak_bytes;  /* recorded in that iteration; 0: not known */
    uint64_t measured_reserved_bytes; /* reserved by the allocator then; 0: none, or not known */
    uint64_t capacity_bytes;          /* of the device; 0: not known */
    uint64_t growth_bytes;            /* that each iteration keeps for good; 0: it does not grow */
    uint32_t batch_size;              /* of the rank; 0: not known */
    struct allocator_settings allocator; /* a GPU's, if they are known */
    struct allocator_history start;      /* the allocator's segments, and its requests since the
                                            iteration began; none: not known */
};
