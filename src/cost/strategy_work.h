/* cost/strategy_work.h: the computation that a strategy adds: modules that are computed again, and
 * micro-batches before the last one, with which gradients are communicated. */
#pragma once

#include "cost/model.h"

/* Whether there is any. */
bool strategy_changes_work(const struct dpro_model *model, const struct dpro_strategy *strategy);
/* What each op of the program takes more, or less where it is below 0. A recomputation comes where
 * the call's backward pass begins; all micro-batches but the last come before the first gradient.
 */
void strategy_more_work(const struct dpro_model *model, const struct dpro_strategy *strategy,
                        uint32_t program, int64_t *more_ns);
/* Of a step, the time of page faults beyond what is in proportion to the batch. */
struct dpro_estimate strategy_fault_ns(const struct dpro_model *model,
                                       const struct dpro_strategy *strategy, uint32_t program);
/* Work of a program in all. */
int64_t strategy_total_work(const struct dpro_model *model, const struct dpro_strategy *strategy,
                            uint32_t program);
/* A rank's batch, `ratio` times as large. */
void model_scale_batch(struct dpro_model *model, double ratio, struct arena *arena);
