/* The computation that a strategy adds or saves: modules that are recomputed or computed in another
 * way, and the micro-batches before the last one. Gradients are communicated with the last one. */
#pragma once

#include "cost/program/model.h"

bool strategy_recomputes(const struct dpro_model *model, const struct dpro_strategy *strategy);
bool strategy_changes_work(const struct dpro_model *model, const struct dpro_strategy *strategy);
/* The work added to each op of the program; negative: saved. A recomputation is done where the
 * call's backward pass begins. All micro-batches but the last come before the first gradient. The
 * backward pass of a compiled module is one fused op: its gradients are ready at its end. */
void strategy_more_work(const struct dpro_model *model, const struct dpro_strategy *strategy,
                        uint32_t program, int64_t *more_ns);
/* Both passes with another batch, where that was measured; else all 1. */
struct batch_point batch_at(const struct dpro_model *model, double ratio);
/* The time of page faults in a step, beyond what is in proportion to the batch. */
struct dpro_estimate strategy_fault_ns(const struct dpro_model *model,
                                       const struct dpro_strategy *strategy, uint32_t program);
/* Time of a module's calls in an iteration, mean over the ranks, as it is and in another way. */
struct computing_change {
    double before_ns, after_ns, std_ns; /* std: of after_ns */
};
struct computing_change computing_change_of(const struct dpro_model *model, uint32_t module,
                                            unsigned way);
/* Of all modules that the model's own strategy computes otherwise. Those that are alike are of one
 * probe, so that their errors add up. */
struct computing_change computing_change_in_all(const struct dpro_model *model);
int64_t strategy_total_work(const struct dpro_model *model, const struct dpro_strategy *strategy,
                            uint32_t program);
/* A rank's batch, `ratio` times as large. */
void model_scale_batch(struct dpro_model *model, double ratio, struct arena *arena);
