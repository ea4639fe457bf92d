/* Strategies made by a rule or read from a file. Arrays are the arena's. */
#pragma once

#include "cost/program/model.h"

/* Room for any strategy of the model; one bucket a tensor, nothing set. */
struct dpro_strategy buckets_make(const struct dpro_model *model, struct arena *arena);
struct dpro_strategy buckets_copy(const struct dpro_model *model, const struct dpro_strategy *from,
                                  struct arena *arena);
/* Into one that has room. */
void buckets_assign(const struct dpro_model *model, const struct dpro_strategy *from,
                    struct dpro_strategy *strategy);

/* Copies only what it recomputes, and its micro-batches. */
void buckets_take_memory(const struct dpro_model *model, const struct dpro_strategy *from,
                         struct dpro_strategy *strategy);

/* DDP's rule: tensors in the order in which they become ready; a bucket ends with the tensor that
 * makes it reach its cap, or before one that is ready only after communication. The cap of a
 * model's first bucket is first_bytes. Partitions, priorities, and compression are none. */
void buckets_by_cap(const struct dpro_model *model, uint64_t first_bytes, uint64_t cap_bytes,
                    struct dpro_strategy *strategy);

/* Reads a JSON list of lists of tensor names, or a plan (its folder, or plan.json) with its
 * partitions, priorities and compression. Every tensor must be in exactly one bucket. Returns
 * whether a plan asks for more. */
bool buckets_read(const struct dpro_model *model, const char *path, struct dpro_strategy *strategy);
struct plan_file;
bool buckets_take(const struct dpro_model *model, const struct plan_file *plan,
                  struct dpro_strategy *strategy);

void buckets_partition(const struct dpro_model *model, uint64_t partition_bytes,
                       struct dpro_strategy *strategy);

/* What a bucket costs under a strategy, for the simulator and for the graph. */
struct bucket_cost {
    uint64_t size_bytes;       /* on the wires */
    double copy_ns, launch_ns; /* computing time, to copy it back and to launch it */
    double handling_ns;        /* computing time after it was launched */
    double cast_ns;            /* for each of its parts */
    double idle_ns;            /* of the link, for each of its parts */
    uint32_t n_missing; /* tensors that are not ready yet, while a rank's program is gone through */
};
/* Fills in costs by bucket, and the bucket of each tensor. */
void buckets_cost(const struct dpro_model *model, const struct dpro_strategy *strategy,
                  struct bucket_cost *costs, uint32_t *bucket_of);
static inline uint64_t bucket_size_bytes(const struct dpro_model *model,
                                         const struct dpro_strategy *strategy, uint32_t bucket)
{
    const struct strategy_bucket *b = &strategy->buckets[bucket];
    uint64_t bytes = 0;
    for (uint32_t i = b->first; i < b->first + b->n; i++)
        bytes += model->tensors[strategy->order[i]].size_bytes;
    return bytes;
}
