/* In which order the ranks of a pipeline compute, send and receive. */
#pragma once

#include <dpro/dimensions.h>

#include "base/base.h"

/* Passes are as enum pass_kind; each waits for its message itself. */
enum pipeline_action { DO_FORWARD, DO_BACKWARD, DO_INPUTS, DO_WEIGHTS, DO_SEND, DO_RECEIVE, WAIT };

/* Stages are numbered over all ranks: the c-th of a rank is number c * n_ranks + rank. */
struct pipeline_step {
    uint8_t action;         /* enum pipeline_action */
    bool back;              /* of or for a backward pass */
    uint32_t stage, number; /* whose; of the micro-batch */
};
typedef ARRAY(struct pipeline_step) pipeline_steps;

struct pipeline_shape {
    uint32_t n_ranks, n_chunks, n_micro_batches;
    enum dpro_schedule schedule;
};

/* Backward passes are those of inputs and those of weights. */
bool pipeline_splits(struct pipeline_shape shape);
/* With several stages a rank, micro-batches go in rounds, of which all have as many. */
bool pipeline_has_rounds(struct pipeline_shape shape);
/* The most micro-batches, counted in each of its stages, that a rank has begun and not done with.
 */
uint32_t pipeline_in_flight(struct pipeline_shape shape, uint32_t rank);

/* By rank, in the arena; each is to be given back by array_fini. */
pipeline_steps *pipeline_order(struct pipeline_shape shape, struct arena *arena);
