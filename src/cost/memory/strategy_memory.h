/* A rank's memory under a strategy: recomputed modules, micro-batches, ways to compute.
 *
 * A recomputed module keeps only its inputs from the forward pass. All else is freed at the
 * forward's end and made again by another forward right before the backward pass. Of nested modules
 * the outermost counts. */
#pragma once

#include <dpro/memory.h>

#include "cost/program/model.h"

/* Whether anything is known of the job's memory. */
static inline bool memory_is_known(const struct dpro_model *model)
{
    return model->n_memories > 0;
}
/* Whether anything tells which of its blocks grow with the batch. */
bool memory_knows_what_scales(const struct model_memory *memory);
/* The highest peak of all ranks, with the model's own batch and precision; without what a GPU's
 * allocator reserves. */
struct dpro_memory_peak memory_peak(const struct dpro_model *model,
                                    const struct dpro_strategy *strategy);
/* Only its bytes, which is faster: for a search. */
uint64_t memory_peak_bytes(const struct dpro_model *model, const struct dpro_strategy *strategy);
/* All of it. */
struct dpro_memory_peak memory_peak_told(const struct dpro_model *model,
                                         const struct dpro_strategy *strategy);
/* Bytes that its device's allocator reserved when it was recorded, against those simulated of the
 * same iteration; 1: not recorded. */
double memory_reserved_factor(const struct dpro_model *model, const struct model_memory *memory);
/* Marks the blocks that the model repeats: two or more modules of one class, numbered in one list,
 * whose recomputation frees anything; of nested lists the outermost. */
void memory_repeated(const struct dpro_model *model, bool *modules);
/* Marks all of these but every ceil(sqrt(n))-th, so that memory grows with the square root of their
 * number (Chen et al., Training deep nets with sublinear memory cost, 2016). That paper's segments
 * of several blocks end where a block is not marked. */
void memory_square_root(const struct dpro_model *model, bool *modules);
