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
