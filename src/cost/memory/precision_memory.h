/* A rank's memory if modules were computed in 16 bits (torch.autocast to bfloat16), from the ops
 * and tensors that were recorded in 32 bits. */
#pragma once

#include "cost/program/model_memory.h"

/* Whether any call is computed in 16 bits. */
bool memory_has_16_bits(const struct model_memory *m, const struct dpro_strategy *strategy);
/* With the same moments and calls: blocks have their other sizes and lives, behind them come those
 * that casts make; or the memory itself. In the arena. */
struct model_memory memory_in_16_bits(const struct dpro_model *model, const struct model_memory *m,
                                      const struct dpro_strategy *strategy, struct arena *arena);
