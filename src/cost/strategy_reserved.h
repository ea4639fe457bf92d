/* cost/strategy_reserved.h: what GPUs' allocators reserve for a job under a strategy. */
#pragma once

#include <dpro/model.h>

/* Fills in the most that is reserved on a rank, and the first request that does not fit, if the
 * allocators are known. */
void strategy_reserved(const struct dpro_model *model, const struct dpro_strategy *strategy,
                       struct dpro_memory_peak *told);
