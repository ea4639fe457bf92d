/* cost/model_memory.h: the memory of a rank in an iteration, as the model keeps it (from
 * graph/memory/graph_memory.h), and what follows from it for every strategy. */
#pragma once

#include "cost/cost.h"
#include "cost/model.h"

struct memory_call {
    uint32_t module, parent; /* of the model; a call before it, or MODEL_NONE */
    uint32_t first, last;    /* places: of its forward pass, [first, last) */
    uint32_t backward_first, backward_last;
    uint32_t again;    /* the place at which it is computed again: its backward pass first asks for
                          what its forward pass kept; MODEL_NONE: it has none */
    uint32_t stop;     /* where that ends, as a place of the forward pass: all is made that is asked
                          for */
    uint32_t released; /* the place up to which what goes into it is asked for, where it is computed
                          again */
};

struct model_memory {
    uint32_t rank; /* index: the first that has it */
    bool gpu, has_uses;
    const struct graph_block *blocks;
    const struct graph_moment *moments; /* their ops are of no meaning here */
    const struct graph_use *uses;
    struct memory_call *calls; /* by first, outer ones first */
    uint8_t *phases;           /* [n_moments] enum dpro_op_kind */
    const struct graph_typed_op *typed_ops;
    const struct graph_operand *operands;
    uint32_t n_blocks, n_moments, n_calls, n_uses, n_typed_ops;
    uint64_t measured_peak_bytes, capacity_bytes; /* of the device; 0: not known */
    uint32_t batch_size;
};

/* The model's modules, memories, and its programs' calls; none where the graph knows nothing. */
void model_memory_learn(const struct measured_replay *replay, const struct coarse *coarse,
                        struct dpro_model *model);
