/* What Horovod's timeline tells of the job: which tensors travel together, and when each rank's
 * background thread negotiated, copied and reduced them. */
#pragma once

#include "adapters/horovod/timeline.h"

struct dpro_trace;
struct dpro_sink;

struct fused_group {
    uint32_t first, n; /* its tensors are fusion->tensors[first .. first + n) */
    uint64_t numel, size_bytes;
    uint32_t dtype;   /* string id, of its first tensor */
    uint32_t backend; /* string id, "GLOO_ALLREDUCE" */
};

/* A group as it was fused, in whichever round. */
struct fusion_sample {
    uint64_t size_bytes;
    int64_t took_ns; /* from copying in to telling the framework of the last tensor, on rank 0 */
};

/* A *round* is one communication of every tensor. Which tensors Horovod fuses is chance: what is
 * ready when a cycle begins. Groups are those of the rounds that are most alike; what Horovod's
 * thread did in another one is cut into these groups where they usually begin and end. */
struct fusion {
    const struct timeline *timeline; /* whose tensors these are */
    uint32_t *tensors;               /* by group: indexes into timeline->tensors */
    struct fused_group *groups;      /* in order of time */
    uint32_t n_tensors, n_groups;
    uint32_t n_rounds, n_alike; /* n_alike: those that were fused in this way */
    bool *alike;                /* by round: whether it was */
    int64_t cycle_ns; /* usual length of a cycle in which there was nothing to do; 0: unknown */
    uint64_t
        most_bytes; /* what is more was not fused where it could have been; UINT64_MAX: never */
    struct fusion_sample *samples; /* all groups of all rounds */
    uint32_t n_samples;
    int64_t negotiate_ns; /* from the start of one that had to that of its first group, usually */
};

/* Where a rank's framework handed tensors to Horovod. */
struct fused_rank {
    uint32_t *enqueues;           /* [round * n_tensors + place in fusion->tensors]: span; NO_ID */
    int64_t *starts_ns, *ends_ns; /* by round: the first hand-over, the end of the last group;
                                     INT64_MIN: not known */
    uint32_t n_rounds;
    uint32_t track; /* of Horovod's thread; NO_ID: its times are not known */
    bool own_times; /* which the rank's own timeline tells */
};

/* The collectives of one group have two numbers in a row: its negotiation's and its transfer's. */
static inline int64_t fusion_sequence(const struct fusion *fusion, uint32_t round, uint32_t group)
{
    return ((int64_t)round * fusion->n_groups + group) * 2;
}
static inline uint32_t fusion_round(const struct fusion *fusion, int64_t sequence)
{
    return (uint32_t)(sequence / 2 / fusion->n_groups);
}
static inline uint32_t fusion_group(const struct fusion *fusion, int64_t sequence)
{
    return (uint32_t)(sequence / 2 % fusion->n_groups);
}

/* Adds each rank's Horovod thread to its tracks, with the spans of its groups; room for them was
 * made. Needs the trace's ranks and transports. */
void fusion_build(struct dpro_trace *trace, const struct dpro_sink *sink);
