/* What dpro's own recorder wrote of a rank (rank.json) or of the job (job.json): models with their
 * parameters and buckets by name, and steps timed with and without a profiler. */
#pragma once

#include "base/base.h"

struct recorded_parameter {
    uint32_t name; /* string id */
    uint64_t numel, size_bytes;
    uint64_t whole_bytes; /* of all tensor-parallel ranks, if size_bytes is of this one; else 0 */
};

/* DDP's bucket or FSDP's unit: what one collective carries. */
struct recorded_bucket {
    uint32_t model;    /* index */
    uint32_t name;     /* string id; 0: none (buckets) */
    uint32_t first, n; /* into members: indices of parameters */
    uint64_t numel, size_bytes;
};

struct recorded_model {
    uint32_t name, parallel; /* string ids */
    uint32_t first_parameter, n_parameters;
    uint32_t first_bucket, n_buckets; /* in the order in which they are reduced */
    uint32_t first_unit, n_units;     /* into buckets as well, behind the model's buckets */
};

enum recorded_window { RECORDED_BEFORE, RECORDED_TIMING, RECORDED_STRUCTURE, RECORDED_AFTER };

struct recorded_step {
    int64_t number, start_ns, end_ns; /* end > start */
    int64_t page_faults;              /* that took no reading; below 0: not said */
    int64_t cpu_ns;                   /* of the whole process; below 0: not said */
    uint8_t window;                   /* enum recorded_window */
};

/* The plan that the job was asked to run with; what the plan expects: 0 where it does not say. */
struct recorded_plan {
    bool asked, applied;
    uint32_t path, reason; /* string ids; reason: why it was not applied */
    int64_t baseline_ns, iteration_ns;
    double uncertainty_pct; /* of iteration_ns: half of a 95 % interval */
};

/* How Horovod was told to fuse. */
struct recorded_fusion {
    bool is_set;
    bool in_groups; /* those that the job or a plan makes, each by itself */
    uint64_t most_bytes;
};

/* Whether the rank's CPU has instructions for 16-bit matrix products, by its flags. */
enum bf16_cpu { BF16_CPU_UNKNOWN, BF16_CPU_LACKS, BF16_CPU_HAS };

/* What recording cost the thread that did it, ns; 0: not said. */
struct profiler_cost {
    int64_t op_ns;     /* an op */
    int64_t launch_ns; /* a call that launches work on a GPU */
    int64_t call_ns;   /* another call of the GPU's runtime */
};

struct recording {
    struct recorded_plan plan;
    struct recorded_fusion fusion;
    bool complete;
    bool one_thread;              /* an operator computes on one thread alone */
    uint8_t bf16_cpu;             /* enum bf16_cpu */
    uint32_t boot_id;             /* string id: of the machine's run */
    uint32_t device, device_name; /* string ids: what it computes on */
    uint32_t torch, tensorflow;   /* string ids: versions of what it computes with */
    ARRAY(uint32_t) warnings;     /* string ids: what the recorder said */
    ARRAY(struct recorded_model) models;
    ARRAY(struct recorded_parameter) parameters;
    ARRAY(struct recorded_bucket) buckets;
    ARRAY(uint32_t) members;
    ARRAY(struct recorded_step) steps;
    uint32_t n_timing;   /* steps that the timing window lists, also those left out */
    uint32_t batch_size; /* the rank's; 0: not said */
    uint64_t gradient_bytes, optimizer_bytes; /* gradients that the rank has, optimizers' state; 0:
                                                 none, or not said */
    struct profiler_cost profiler;
    uint64_t n_broken; /* entries that make no sense, left out */
};

struct payload_kind;
extern const struct payload_kind recording_payload;

/* Gradients are told apart by their names. Of models that name parameters alike, all but the first
 * have their number behind the name. */
#define RECORDED_NAMESAKE "%.230s of model %u"
/* The number of this model among those with buckets, where an earlier one has a parameter of this
 * name; else 0. */
uint32_t recorded_namesake(const struct recording *recording, uint32_t model, uint32_t name);

/* Which bucket each of a rank's collectives carries, asked in the order of their starts. Buckets of
 * a model are reduced in their order, from the first one again in every backward pass. Models with
 * the same buckets take turns: in the order in which they were made, which is taken for that of
 * their forward passes, or the other way round where one backward pass goes through them all. */
struct recorded_walk {
    const struct recording *recording;
    uint32_t model, next; /* the bucket expected, of the model that the last one was of */
    bool backwards;
};
struct trace_rank;
struct recorded_walk recorded_walk_begin(const struct trace_rank *rank, const struct strtab *names);
/* The bucket of that many elements or bytes (0: unknown; both: the next one); UINT32_MAX: none. */
uint32_t recorded_walk_next(struct recorded_walk *walk, uint64_t numel, uint64_t size_bytes);
