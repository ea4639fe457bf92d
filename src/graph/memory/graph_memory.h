/* The memory of a rank's device in one iteration: its blocks, when each is taken and given back,
 * what it is for, and which calls of modules use it.
 *
 * A *moment* is a block being taken or given back, within an op. Moments are in the iteration's
 * order. A *place* is a position between moments: the number of moments before it, from 0 to
 * n_moments. */
#pragma once

#include "base/column.h"
#include "base/pack.h"
#include "ingest/allocator_settings.h"

#define MEMORY_NONE UINT32_MAX

/* In place of a share: an op that is only there to sum up or gather parts. */
#define SPLIT_UNSPLITS (-1.0F)

#define MEMORY_MOMENTS(COLUMN, ROW)                                                                \
    COLUMN(ROW, uint32_t, op, ID(ops), "the op that it is in; none: before the first")             \
    COLUMN(ROW, uint32_t, function, NUMBER,                                                        \
           "of autograd, whose gradients are passed on at its end: the number of the call that "   \
           "the op is in; 0: none")                                                                \
    COLUMN(ROW, uint16_t, share, NUMBER, "how much of the op's time has passed, in 1/65535")       \
    COLUMN(ROW, bool, gives, FLAG, "the block is given back; else it is taken")                    \
    COLUMN(ROW, uint32_t, block, ID(memory_blocks), "the block")
struct graph_moment {
    MEMORY_MOMENTS(COLUMN_FIELD, )
};

#define MEMORY_BLOCKS(COLUMN, ROW)                                                                 \
    COLUMN(ROW, uint64_t, size_bytes, BYTES, "its size")                                           \
    COLUMN(ROW, uint64_t, asked_bytes, BYTES,                                                      \
           "what it was made for, if known: a GPU's block may have a rest, too small to be cut "   \
           "off")                                                                                  \
    COLUMN(ROW, uint64_t, address, NUMBER, "of a GPU's memory, as recorded; 0: not known")         \
    COLUMN(ROW, uint32_t, taken, ID(memory_moments),                                               \
           "when it is taken; none: before the iteration")                                         \
    COLUMN(ROW, uint32_t, given, ID(memory_moments),                                               \
           "when it is given back; none: after the iteration")                                     \
    COLUMN(ROW, uint8_t, category, WORD(category_word), "what it is for")                          \
    COLUMN(ROW, bool, grows, FLAG, "kept for good, as what each iteration adds")                   \
    COLUMN(ROW, bool, scales, FLAG, "its size grows with the batch")                               \
    COLUMN(ROW, bool, split, FLAG, "it is a part of what tensor-parallel ranks share out")         \
    COLUMN(ROW, bool, unsplits, FLAG,                                                              \
           "it is only there for these ranks to sum up or gather parts")                           \
    COLUMN(ROW, float, least_share, NUMBER,                                                        \
           "with less than this of the recorded batch it is not taken at all; 0: it always is")    \
    COLUMN(ROW, uint8_t, item_bytes, BYTES, "size of an element; 0: not known")                    \
    COLUMN(ROW, uint32_t, name, NAME, "the parameter, else the op that made it")                   \
    COLUMN(ROW, uint32_t, made_by, ID(memory_ops), "the innermost op in which it was taken")       \
    COLUMN(ROW, uint32_t, gather, NUMBER,                                                          \
           "of FSDP, as in ops: the unit that it was taken for; 0: none")                          \
    COLUMN(ROW, bool, gathered, FLAG,                                                              \
           "it holds the unit's parameters; else what the all-gather needs beside them")           \
    COLUMN(ROW, uint32_t, call, ID(memory_calls),                                                  \
           "the innermost call of a module whose pass made it")                                    \
    COLUMN(ROW, uint32_t, first_use, ID(memory_uses),                                              \
           "its uses follow each other; this is the first")                                        \
    COLUMN(ROW, uint32_t, n_uses, NUMBER, "how many uses it has")
struct graph_block {
    MEMORY_BLOCKS(COLUMN_FIELD, )
};

static inline uint64_t graph_block_asked(const struct graph_block *block)
{
    return block->asked_bytes > 0 && block->asked_bytes < block->size_bytes ? block->asked_bytes
                                                                            : block->size_bytes;
}

/* A call's use of a block within one pass, from the first to the last read or write. */
#define MEMORY_USES(COLUMN, ROW)                                                                   \
    COLUMN(ROW, uint32_t, call, ID(memory_calls), "the innermost call; none: code of no module")   \
    COLUMN(ROW, uint32_t, first, NUMBER,                                                           \
           "the place (moments before it) of the first read or write")                             \
    COLUMN(ROW, uint32_t, last, NUMBER, "the place behind the last one")                           \
    COLUMN(ROW, bool, backward, FLAG, "it is in the backward pass")
struct graph_use {
    MEMORY_USES(COLUMN_FIELD, )
};

/* One call of a module. Calls nest as modules do. Ranges of places are [first, last). */
#define MEMORY_CALLS(COLUMN, ROW)                                                                  \
    COLUMN(ROW, uint32_t, module, NAME, "the module, as blocks.0.norm1; empty: the model itself")  \
    COLUMN(ROW, uint32_t, class, NAME, "its class, as LayerNorm")                                  \
    COLUMN(ROW, uint32_t, parent, ID(memory_calls), "the call around it")                          \
    COLUMN(ROW, uint32_t, forward_first, NUMBER,                                                   \
           "the place (moments before it) where its forward pass begins")                          \
    COLUMN(ROW, uint32_t, forward_last, NUMBER, "the place where its forward pass ends")           \
    COLUMN(ROW, uint32_t, backward_first, NUMBER, "the place where its backward pass begins")      \
    COLUMN(ROW, uint32_t, backward_last, NUMBER,                                                   \
           "the place where its backward pass ends; equal: it has none")                           \
    COLUMN(ROW, int64_t, forward_ns, NS,                                                           \
           "mean time of its ops in the forward pass, calls within it included")                   \
    COLUMN(ROW, int64_t, backward_ns, NS, "mean time of its ops in the backward pass")             \
    COLUMN(ROW, uint32_t, first_forward_op, ID(ops), "the first op of its forward pass")           \
    COLUMN(ROW, uint32_t, first_backward_op, ID(ops), "the first op of its backward pass")
struct graph_call {
    MEMORY_CALLS(COLUMN_FIELD, )
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
#define MEMORY_OPS(COLUMN, ROW)                                                                    \
    COLUMN(ROW, uint32_t, first, NUMBER, "the place (moments before it) where it begins")          \
    COLUMN(ROW, uint32_t, last, NUMBER, "the place where it ends")                                 \
    COLUMN(ROW, uint32_t, outer, ID(memory_ops), "the op that it lies in")                         \
    COLUMN(ROW, uint32_t, call, ID(memory_calls), "the innermost call; none: code of no module")   \
    COLUMN(ROW, uint32_t, forward, ID(memory_ops),                                                 \
           "of a function of the backward pass: its forward op")                                   \
    COLUMN(ROW, uint32_t, first_operand, ID(memory_operands),                                      \
           "its operands follow each other, inputs first; this is the first")                      \
    COLUMN(ROW, uint32_t, n_inputs, NUMBER, "how many are inputs")                                 \
    COLUMN(ROW, uint32_t, n_outputs, NUMBER, "how many are outputs")                               \
    COLUMN(ROW, uint8_t, rule, WORD(type_rule_word),                                               \
           "the data types that it reads and makes when modules are in 16 bits")                   \
    COLUMN(ROW, bool, backward, FLAG, "it is in the backward pass")
struct graph_typed_op {
    MEMORY_OPS(COLUMN_FIELD, )
};

/* A tensor of 32-bit numbers. */
#define MEMORY_OPERANDS(COLUMN, ROW)                                                               \
    COLUMN(ROW, uint32_t, block, ID(memory_blocks), "the block that holds the tensor")             \
    COLUMN(ROW, uint64_t, numel, NUMBER, "elements of the tensor")
struct graph_operand {
    MEMORY_OPERANDS(COLUMN_FIELD, )
};

/* Places of an FSDP unit; MEMORY_NONE: it has none. */
#define MEMORY_UNITS(COLUMN, ROW)                                                                  \
    COLUMN(ROW, uint32_t, forward_end, NUMBER, "the place where its forward pass ends")            \
    COLUMN(ROW, uint32_t, asked, NUMBER,                                                           \
           "the place where its parameters are gathered for its backward pass, if they are")       \
    COLUMN(ROW, uint32_t, backward, NUMBER, "the place where its backward pass begins")
struct graph_unit_places {
    MEMORY_UNITS(COLUMN_FIELD, )
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
    int64_t growth_since;             /* from this iteration on; -1: in all that were recorded */
    uint64_t kept_bytes; /* of two recorded iterations: what the first keeps until the end */
    uint32_t batch_size; /* of the rank; 0: not known */
    struct allocator_settings allocator; /* a GPU's, if they are known */
};
/* What it has beside its bytes. */
extern const struct packed graph_memory_items[];
