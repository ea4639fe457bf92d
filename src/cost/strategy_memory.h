/* cost/strategy_memory.h: what a strategy makes of a rank's memory: which modules are computed
 * again, in how many micro-batches a step is done.
 *
 * A module that is recomputed keeps nothing from its forward pass but what goes into it: what it
 * made and kept is given back at its forward's end, and made again right before its backward pass,
 * by another forward. Of modules within each other the outermost counts. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <dpro/memory.h>

#include "cost/model.h"

/* What of a job's memory is different. Zeroed but for n_modules, nothing is. */
struct memory_change {
    const bool *recomputed; /* [model's n_modules]; NULL: none */
    uint32_t micro_batches; /* 0, 1: the step's batch at once */
    double batch_ratio;     /* a rank's batch, times as large; 0: as it is */
    bool half;              /* computed in 16 bits where autocast does so */
};

struct memory_peak {
    uint64_t bytes;
    uint32_t rank;   /* index */
    uint32_t moment; /* of the rank's graph_memory, near which it is */
    uint32_t call;   /* that was going on; MEMORY_NONE */
    uint8_t phase;   /* enum dpro_op_kind: FW, BW, UPDATE */
    uint64_t by_category[DPRO_N_MEMORY_CATEGORIES];
    double std_bytes; /* standard error */
};

/* Whether anything is known of the job's memory. */
bool memory_is_known(const struct dpro_model *model);
/* The highest peak of all ranks. */
struct memory_peak memory_peak(const struct dpro_model *model, const struct memory_change *change);
/* Time that recomputing a module adds to a rank's iteration by itself, mean over the ranks. */
int64_t memory_recompute_ns(const struct dpro_model *model, uint32_t module);
/* The most that is alive on a rank between places: peaks[i] from places[i] on and before
 * places[i + 1], where there are n + 1 places of the rank's graph_memory, ascending. A
 * recomputation counts where the backward pass that needs it begins. */
void memory_peaks(const struct dpro_model *model, const struct memory_change *change, uint32_t rank,
                  const uint32_t *places, uint32_t n, uint64_t *peaks);
/* Marks what `--recompute all` means: the blocks that the model repeats. */
void memory_repeated(const struct dpro_model *model, bool *modules);
