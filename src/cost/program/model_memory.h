/* The memory of a rank in an iteration, as the model keeps it (from graph/memory/graph_memory.h),
 * and what follows from it for every strategy. */
#pragma once

#include "cost/program/cost.h"
#include "cost/program/model.h"

struct memory_call {
    uint32_t module, parent; /* a module of the model; the call around it, which comes before it, or
                                MODEL_NONE */
    uint32_t first, last;    /* places of its forward pass, [first, last) */
    uint32_t backward_first, backward_last;
    uint32_t again; /* the place at which it is recomputed, where its backward pass first needs what
                       its forward pass kept; MODEL_NONE: no backward pass */
    uint32_t stop; /* the place of the forward pass at which recomputing ends, as all that is needed
                      is made */
    uint32_t released; /* the place up to which its inputs are needed if it is recomputed */
};

struct model_memory {
    uint32_t rank; /* index of the first rank that has it */
    bool gpu, has_uses;
    const struct graph_block *blocks;
    const struct graph_moment *moments; /* their ops have no meaning here */
    const struct graph_use *uses;
    struct memory_call *calls; /* by first, outer ones first */
    uint8_t *phases;           /* [n_moments] enum dpro_op_kind */
    const struct graph_typed_op *typed_ops;
    const struct graph_operand *operands;
    uint32_t n_blocks, n_moments, n_calls, n_uses, n_typed_ops;
    uint64_t measured_peak_bytes, capacity_bytes; /* of the device; 0: not known */
    uint64_t measured_reserved_bytes;             /* by its allocator, likewise */
    uint64_t leaked_bytes, growth_bytes; /* left out of all peaks; what an iteration adds to it */
    uint32_t batch_size;
    struct allocator_settings allocator; /* a GPU's; its defaults where none are known */
};

/* Fills in the model's modules and memories, and its programs' calls, if the graph has them. */
void model_memory_learn(const struct measured_replay *replay, struct dpro_model *model);
