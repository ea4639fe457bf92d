/* Predicting the iteration time with other communication, memory, computation, links or hosts. */
#ifndef DPRO_WHATIF_H
#define DPRO_WHATIF_H

#include <stddef.h>
#include <stdint.h>

#include <dpro/dimensions.h>
#include <dpro/error.h>
#include <dpro/graph.h>
#include <dpro/log.h>
#include <dpro/model.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What computes: of a job on GPUs these and the threads that launch their work are apart. */
enum dpro_processor {
    DPRO_PROCESSOR_DEFAULT, /* the GPU where the job has them, else the CPU */
    DPRO_PROCESSOR_CPU,
    DPRO_PROCESSOR_GPU
};
/* Computation `speed` times as fast, on ranks first_rank to last_rank; both -1: on all. */
struct dpro_compute_change {
    double speed;
    int first_rank, last_rank;
    enum dpro_processor processor;
};

/* Zeroed: no changes. All that are set apply together. */
struct dpro_changes {
    size_t size; /* of the struct (error.h) */

    /* At most one of these two: */
    uint64_t bucket_cap_bytes; /* buckets by DDP's rule: gradients in the order in which they become
                                  ready; a bucket ends when it has this many bytes or more */
    const char *buckets_path;  /* a JSON list of lists of parameter names, or a plan */
    uint64_t first_bucket_bytes; /* the first bucket's cap; 0: as the others */

    uint64_t partition_bytes;                 /* buckets travel in parts of at most this size */
    const enum dpro_compression *compression; /* NULL: as the job ran */

    double bandwidth_bytes_per_s; /* of each link; or */
    double bandwidth_ratio;       /* times as much */
    /* The same of links between hosts, and within them: */
    double between_bytes_per_s, between_ratio, within_bytes_per_s, within_ratio;
    const char *topology; /* hosts and links in place of bandwidths: a ready-made one by its name,
                             or   a file (doc/formats/topology.md); NULL: as the trace shows */
    const char *collectives; /* how they pass over the topology's hosts: "ring", "tree",
                                "hierarchical"; NULL: as recorded */
    double latency_ratio;    /* factor on each message's overhead, and */
    int64_t latency_add_ns;  /* time added to it; may be negative */

    const struct dpro_compute_change *compute;
    size_t n_compute;
    const char *const *delays; /* as in dpro_replay_options */
    size_t n_delays;

    /* Data-parallel replicas (of jobs that shard parameters without replicas: shards), or ranks in
     * all; on hosts of the same kind. One of them; 0: as it is */
    uint32_t dp, world_size;
    uint32_t shard; /* of jobs that shard parameters over all ranks: over so many neighbours, with
                       replicas of these (HSDP); 0: as it is */

    uint32_t tp; /* of jobs of PyTorch's DTensor: ranks that split tensors; 0: as it is */

    /* Of jobs of Horovod: */
    int64_t cycle_ns;             /* HOROVOD_CYCLE_TIME; 0: as it is */
    const uint64_t *fusion_bytes; /* HOROVOD_FUSION_THRESHOLD, 0: nothing is fused; NULL: as it is;
                                     not with buckets */

    /* Of jobs with parameter servers: */
    uint32_t n_servers;      /* 0: as it is */
    uint64_t bigarray_bound; /* MXNet: arrays of so many elements or more are split over all
                                servers; 0: as it is */
    double server_bandwidth_bytes_per_s; /* of the links of servers on hosts of their own; or */
    double server_bandwidth_ratio;       /* times as much */

    /* Memory of a rank: */
    const char *recompute;  /* modules by names or patterns, with commas between them; "all" blocks
                               that the model repeats, or all but every ceil(sqrt(n))-th of these
                               ("sqrt"), or "none"; a file: a JSON list of names, or a plan. NULL:
                               as it is */
    uint32_t micro_batches; /* in which the step's batch is computed, one after the other; gradients
                               are communicated with the last; 0: as it is */
    uint32_t batch_size;    /* of a rank; 0: as it is */
    double batch_ratio;     /* batch_size against the recorded one, if that is not known; 0 */
    int gradient_views;     /* 1: gradients are views of their buckets (DDP) */
    uint32_t zero; /* 1: ZeRO of that stage, as PyTorch's ZeroRedundancyOptimizer: gradients are
                      all-reduced as they were, each rank keeps and updates a share of the
                      parameters' state, and then gathers all parameters */

    /* How modules are computed. They are named as for `recompute`, but "all" is the whole model: */
    const char *compile;   /* by torch.compile; NULL: as it is */
    const char *precision; /* "bf16": the whole model; "bf16=NAMES"; "fp32": none; NULL: as it is */

    /* Of jobs with PyTorch's FSDP: the units that free their gathered parameters after the forward
     * pass and gather them again for the backward pass: "all", "none", or names or patterns with
     * commas between them; NULL: as it is */
    const char *reshard;
    uint32_t prefetch; /* of the same: each unit asks for so many after it; 0: as it is */

    /* Of jobs with a pipeline: */
    uint32_t pipeline_micro_batches; /* in which the same mini-batch passes; 0: as it is */
    enum dpro_schedule schedule;     /* DPRO_SCHEDULE_UNKNOWN: as it is */

    struct dpro_sink sink; /* progress */
};

struct dpro_whatif; /* a result; owns its memory, but borrows the model's */

/* Predicts; *whatif is the caller's. `graph`, which the model was built from, is needed for delays,
 * resharding, and other numbers of ranks of jobs that communicate more than gradients. Fails with
 * DPRO_EUSAGE when a change makes no sense, DPRO_EEMPTY when the job has nothing that it changes,
 * DPRO_EFORMAT or DPRO_EIO when buckets_path or topology can't be read. */
DPRO_API int dpro_whatif_run(const struct dpro_graph *graph, const struct dpro_model *model,
                             const struct dpro_changes *changes, struct dpro_whatif **whatif,
                             struct dpro_error *err);
DPRO_API void dpro_whatif_destroy(struct dpro_whatif *whatif); /* NULL is fine */

/* ---- what can be asked: a row for each kind of what-if ---- */

/* What a field of struct dpro_changes holds. 0 or NULL is that nothing is asked. */
enum dpro_change_type {
    DPRO_CHANGE_SWITCH,      /* int: 1 */
    DPRO_CHANGE_COUNT,       /* uint32_t */
    DPRO_CHANGE_SCHEDULE,    /* enum dpro_schedule */
    DPRO_CHANGE_LONG_COUNT,  /* uint64_t */
    DPRO_CHANGE_BYTES,       /* uint64_t; said in MB of 1048576 bytes */
    DPRO_CHANGE_RATE,        /* double, in bytes a second */
    DPRO_CHANGE_RATIO,       /* double */
    DPRO_CHANGE_TIME,        /* int64_t, in ns; said in ms */
    DPRO_CHANGE_ADDED_TIME,  /* int64_t, in ns; may be negative */
    DPRO_CHANGE_TEXT,        /* const char * */
    DPRO_CHANGE_PATH,        /* const char *, of a file, or a name that stands for one */
    DPRO_CHANGE_PRECISION,   /* const char *: "bf16", "bf16=NAMES", "fp32" */
    DPRO_CHANGE_COMPRESSION, /* const enum dpro_compression * */
    DPRO_CHANGE_LIMIT,       /* const uint64_t *, in bytes, where 0 is one, too; said in MB */
    DPRO_CHANGE_TEXTS,       /* const char *const *, followed by their number, a size_t */
    DPRO_CHANGE_SPEEDS       /* const struct dpro_compute_change *, likewise */
};
enum { DPRO_CHANGE_FIELDS = 7 }; /* the most of a kind, and an end */
/* Strings are static. */
struct dpro_change_field {
    const char *name; /* in struct dpro_changes; NULL: the kind has no more */
    const char *key;  /* in the JSON of dpro.whatif/1 */
    const char *said; /* in a report, where %s is the value; NULL: the value alone */
    size_t offset;    /* in struct dpro_changes */
    enum dpro_change_type type;
};
struct dpro_change_kind {
    const char *option;         /* of the command, without its dashes */
    const char *argument;       /* what the command calls its value; NULL: it has none */
    const char *form;           /* what a value looks like; NULL: choices, or least and most say */
    const char *help;           /* lines parted by \n */
    const char *const *choices; /* the values that there are, NULL-terminated; NULL: many */
    uint64_t least, most;       /* of a whole number; most 0: the value is not one */
    const char *said_least;     /* in a report, in place of the least value; NULL */
    int changes_numbers;        /* 1: the job does not train to the same numbers */
    int changes_memory;         /* 1: what ranks hold at their peaks, too */
    int is_of_plans;            /* 1: a plan of dpro optimize can ask for it */
    struct dpro_change_field fields[DPRO_CHANGE_FIELDS];
};
/* In the order in which they are applied. */
DPRO_API size_t dpro_n_change_kinds(void);
DPRO_API const struct dpro_change_kind *dpro_change_kind(size_t index);
DPRO_API int dpro_change_is_asked(const struct dpro_changes *changes,
                                  const struct dpro_change_field *field);

/* Whether a kind can be asked of a job. */
struct dpro_question {
    const struct dpro_change_kind *kind;
    char recorded[120];    /* what the job has of it: "2 ranks"; "": nothing tells */
    struct dpro_error why; /* why it can't be asked, and what to record; code 0: it can, and a text
                              says what it needs or what is not predicted of it */
};
struct dpro_prediction {
    int64_t iteration_ns;   /* mean, steady state, without a profiler where that time is known
                               (dpro_model_unprofiled_ns) */
    int64_t p50_ns, p95_ns; /* of the measured iterations, each as it was or changes */
    double uncertainty_pct; /* of iteration_ns: half the width of a 95 % interval for the job run at
                               another time on the same machine */
};

/* What makes a prediction uncertain. */
enum dpro_uncertainty_source {
    DPRO_UNCERTAIN_LEARNT,     /* the numbers that the model learnt */
    DPRO_UNCERTAIN_ITERATIONS, /* few iterations were measured, and they differ */
    DPRO_UNCERTAIN_MACHINE,    /* the machine is faster or slower at another time */
    DPRO_UNCERTAIN_MODEL,      /* the model's error for the job as it ran */
    DPRO_UNCERTAIN_CHANGE,     /* how far the changed job is from what was recorded */
    DPRO_UNCERTAIN_BATCH,      /* how long another batch takes, which was not recorded */
    DPRO_UNCERTAIN_COMPUTING,  /* how long modules take compiled, or in 16 bits */
    DPRO_N_UNCERTAINTY_PARTS
};
/* Standard errors, relative for the iteration as it ran and with the changes, absolute for the
 * speedup. The squares of all parts add up. */
struct dpro_uncertainty_part {
    double before, after, speedup;
};
/* "learnt numbers", "iterations", "machine drift", "model misfit", "extrapolation", "batch size",
 * "computing"; static. */
DPRO_API const char *dpro_uncertainty_name(enum dpro_uncertainty_source source);
/* A unit of FSDP, if resharding was asked for. */
struct dpro_unit {
    const char *name; /* of its module; "": the model itself */
    int reshards_before, reshards;
};
/* How a pipeline's micro-batches pass. */
struct dpro_pipeline_run {
    uint32_t n_micro_batches;
    enum dpro_schedule schedule;
};

/* What a what-if says; all that it points to is the what-if's. Of two, the first is the job as it
 * ran, the second the job with the changes, both by the model. */
struct dpro_whatif_answer {
    struct dpro_prediction baseline, predicted;
    struct dpro_estimate speedup; /* iteration time before over after, and its standard error */
    const char *untimed; /* why the changed job's time can't be predicted, as that of bf16 on a CPU
                            of unknown instructions: `predicted` and `speedup` are zeros then; NULL:
                            it can */
    struct dpro_uncertainty_part uncertainty[DPRO_N_UNCERTAINTY_PARTS]; /* by its source */
    struct dpro_memory_peak memory[2];
    const struct dpro_unit *units; /* [n_units] if resharding was asked for */
    uint32_t n_units;
    struct dpro_pipeline_run pipeline[2]; /* if that was asked for; else zeros */
    uint32_t n_stages;                    /* of it */
    const double *bubbles; /* [n_stages * 2] the share of an iteration in which a stage computes
                              nothing */
    /* The job with the changes; its strategy is the one that was evaluated. `modules`: the same,
     * but where FSDP's modules and batches were changed, a model of what its ranks compute and
     * hold: modules, and how the strategy has them computed. */
    const struct dpro_model *model, *modules;
    const struct dpro_question *questions; /* [n_questions] of every kind, if nothing was asked */
    size_t n_questions;
};
DPRO_API const struct dpro_whatif_answer *dpro_whatif_answer(const struct dpro_whatif *whatif);
/* Warnings of this what-if, without the model's. */
DPRO_API size_t dpro_whatif_n_warnings(const struct dpro_whatif *whatif);
DPRO_API const char *dpro_whatif_warning(const struct dpro_whatif *whatif, size_t index);

#ifdef __cplusplus
}
#endif
#endif
