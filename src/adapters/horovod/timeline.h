/* What communication layers write of themselves: Horovod's timeline (of rank 0 only), BytePS's
 * comm.json. One *run* is one tensor, or one partition of it, communicated once: what it waited
 * for, was copied and was transferred, and when. */
#pragma once

#include "base/base.h"

struct dpro_error;
struct head;
struct json;
struct payload_kind;
struct trace_build;
struct trace_part;

enum timeline_writer { TIMELINE_HOROVOD, TIMELINE_BYTEPS };

/* In the order in which a run goes through them. */
enum timeline_stage {
    STAGE_NEGOTIATE, /* Horovod: from the first rank's being ready until all are */
    STAGE_QUEUE,     /* waits for its turn or its data */
    STAGE_COPY_IN,   /* into the fusion buffer, or to the host */
    STAGE_TRANSFER,  /* of Horovod's backend, "GLOO_ALLREDUCE" */
    STAGE_PUSH,
    STAGE_PULL,
    STAGE_COPY_OUT,
    N_TIMELINE_STAGES
};

struct timeline_interval {
    int64_t start_ns, end_ns; /* INT64_MIN: not recorded */
};

struct timeline_run {
    uint32_t tensor;
    uint32_t op;                    /* string id: "ALLREDUCE", ... */
    struct timeline_interval whole; /* from the first of its stages but waiting to its end */
    struct timeline_interval stages[N_TIMELINE_STAGES];
};

struct timeline_tensor {
    uint32_t name;    /* string id */
    uint32_t dtype;   /* string id of the element type, 0: unknown */
    uint32_t backend; /* string id of its transfer stage's name, "GLOO_ALLREDUCE"; 0: unknown */
    uint32_t n_runs;
    uint64_t numel;    /* 0: unknown */
    int32_t partition; /* -1: it is whole */
};

/* Horovod: when its coordinator, rank 0, heard that a rank is ready to reduce a tensor. */
struct timeline_ready {
    uint32_t tensor, run; /* run: index among the tensor's */
    int rank;
    int64_t ns;
};

struct timeline {
    enum timeline_writer writer;
    bool on_epoch; /* times count from the epoch, else from the file's own zero */
    ARRAY(struct timeline_tensor) tensors;
    ARRAY(struct timeline_run) runs;    /* in order of their ends */
    ARRAY(int64_t) cycles;              /* Horovod: when its thread began a cycle, ascending */
    ARRAY(struct timeline_ready) ready; /* in the file's order */
    uint64_t n_open;                    /* runs that had not ended where the file does */
};

extern const struct payload_kind timeline_payload;

int timeline_read(struct json *js, struct trace_part *part, struct dpro_error *err);
bool timeline_recognise(const struct head *head);

/* timeline_alone.c: makes profiles of the timelines where there are no others. */
void timelines_stand_alone(struct trace_build *build);

static inline bool timeline_has(const struct timeline_run *run, enum timeline_stage stage)
{
    return run->stages[stage].start_ns != INT64_MIN;
}

/* ---- what Horovod's timeline tells of the job ----
 *
 * Which tensors travel together, and when each rank's background thread negotiated, copied and
 * reduced them. */

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
void fusion_build(struct dpro_trace *trace);
