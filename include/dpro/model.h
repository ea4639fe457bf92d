/* A job in the Coarsened View (paper, section 4.3): what each rank computes between its gradients,
 * what communicating them costs, and in which buckets they travel. It is learnt from a graph once.
 * Then the iteration time of another strategy or of other hardware takes microseconds.
 *
 * Tensors are gradients, numbered in the order in which they become ready on the first rank. A
 * strategy says which of them travel in one bucket, and how. */
#ifndef DPRO_MODEL_H
#define DPRO_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include <dpro/error.h>
#include <dpro/graph.h>
#include <dpro/log.h>
#include <dpro/memory.h>
#include <dpro/replay.h>
#include <dpro/trace.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dpro_model;    /* owns its memory; keeps nothing of the graph */
struct dpro_strategy; /* lives as long as the model or the result that it is of */

struct dpro_model_options {
    size_t size;         /* of the struct (error.h) */
    int64_t profiler_ns; /* the profiler's part of an iteration that was taken out of the graph
                            (dpro_graph_take_out_profiler) */
    const struct dpro_probes *probes; /* borrowed as long as the model; NULL: none */
    struct dpro_sink sink;
    int all_communication; /* 1: also what ranks communicate beside gradients, such as sharded
                              parameters, activations and tokens. What-ifs need it; no search knows
                              of it, and a job without gradients has no other model */
};

/* Whether a search can be made: the graph's communication has gradients. Fails with DPRO_EEMPTY,
 * saying what is missing and what can still be done with the trace, when the graph has one rank, no
 * gradients or no communication. */
DPRO_API int dpro_model_check(const struct dpro_graph *graph, struct dpro_error *err);
/* Learns the model of a job; *model is the caller's. Fails as dpro_model_check does, unless there
 * is communication and all_communication is set, and with DPRO_EUSAGE when probes of another run
 * have none of its modules. The model of a single process has no tensors; its computation and
 * memory can be predicted. */
DPRO_API int dpro_model_build(const struct dpro_graph *graph,
                              const struct dpro_model_options *options, struct dpro_model **model,
                              struct dpro_error *err);
DPRO_API void dpro_model_destroy(struct dpro_model *model); /* NULL is fine */

DPRO_API uint32_t dpro_model_n_ranks(const struct dpro_model *model);
DPRO_API uint32_t dpro_model_n_servers(const struct dpro_model *model); /* parameter servers */
/* Mean of the measured iterations, and their standard deviation; 0: the job was generated. */
DPRO_API int64_t dpro_model_measured_ns(const struct dpro_model *model);
DPRO_API int64_t dpro_model_measured_std_ns(const struct dpro_model *model);
/* The median of the steps that were timed with no profiler on; 0: too few were, or the CPU ran
 * ahead of its GPU, which makes them unusable. */
DPRO_API int64_t dpro_model_unprofiled_ns(const struct dpro_model *model);
/* What the model is scaled to; ns is 0 where the job was generated. */
DPRO_API struct dpro_job_time dpro_model_job_time(const struct dpro_model *model);
/* Relative error of the model, before it was scaled, against the measured iterations' median: 0.1
 * is 10 % longer. */
DPRO_API double dpro_model_misfit(const struct dpro_model *model);
DPRO_API uint32_t dpro_model_n_samples(const struct dpro_model *model); /* measured iterations */

struct dpro_tensor {
    const char *name; /* borrowed from the model */
    uint64_t size_bytes;
};
DPRO_API uint32_t dpro_model_n_tensors(const struct dpro_model *model);
DPRO_API struct dpro_tensor dpro_model_tensor(const struct dpro_model *model, uint32_t tensor);

enum dpro_compression { DPRO_COMPRESSION_NONE, DPRO_COMPRESSION_FP16, DPRO_COMPRESSION_BF16 };
DPRO_API const char *dpro_compression_name(enum dpro_compression compression); /* "none", ... */

/* A bucket is one collective of all ranks, or one a partition. */
struct dpro_bucket {
    const uint32_t *tensors; /* borrowed */
    uint32_t n_tensors;
    uint64_t size_bytes; /* of its uncompressed gradients */
    uint32_t partitions; /* 1: whole */
    int32_t priority;    /* the largest of those ready is launched first */
    int server;          /* number of its parameter server, where that can be chosen; else -1 */
};
/* How the job ran; borrowed. */
DPRO_API const struct dpro_strategy *dpro_model_strategy(const struct dpro_model *model);
DPRO_API enum dpro_compression dpro_strategy_compression(const struct dpro_strategy *strategy);
DPRO_API uint32_t dpro_strategy_n_buckets(const struct dpro_strategy *strategy);
/* In the order in which they are launched. */
DPRO_API struct dpro_bucket dpro_strategy_bucket(const struct dpro_model *model,
                                                 const struct dpro_strategy *strategy,
                                                 uint32_t bucket);
/* Horovod's settings. Its thread looks for ready gradients every cycle_ns (0: not Horovod, or
 * unknown). With `fuses` it sends ready gradients together, up to fusion_bytes, and the buckets are
 * the result; else each bucket is a group that the job makes. */
struct dpro_cycles {
    int64_t cycle_ns;
    int fuses;
    uint64_t fusion_bytes;
};
DPRO_API struct dpro_cycles dpro_strategy_cycles(const struct dpro_strategy *strategy);

/* How a module's passes are computed: these bits. */
enum dpro_computing {
    DPRO_AS_IT_IS = 0,
    DPRO_COMPILED = 1, /* by torch.compile: its backward pass is one op, at whose end all its
                          gradients get ready */
    DPRO_BF16 = 2,     /* under autocast to bfloat16; its outputs are cast back */
    DPRO_N_COMPUTINGS = 4
};
/* A module, the unit in which recomputation and ways to compute are chosen. Outer modules come
 * before those within them. */
struct dpro_module {
    const char *name;      /* borrowed; "": the model itself */
    int recomputed;        /* 1: by this strategy; of nested modules the outermost counts */
    unsigned computing;    /* enum dpro_computing, by this strategy; of nested modules the outermost
                              with any bit counts */
    int computing_assumed; /* 1: how long that takes was not measured */
    int computing_composed; /* 1: it was not measured as such, but by its parts or in other ways */
};
DPRO_API uint32_t dpro_model_n_modules(const struct dpro_model *model); /* 0: none are known */
DPRO_API struct dpro_module dpro_strategy_module(const struct dpro_model *model,
                                                 const struct dpro_strategy *strategy,
                                                 uint32_t module);
/* The number of micro-batches of a step; 1: the batch at once. */
DPRO_API uint32_t dpro_strategy_micro_batches(const struct dpro_strategy *strategy);
/* What cutting a step's batch into micro-batches meets in this job. */
struct dpro_batch_cut {
    const char *refused; /* why it can't be; NULL: it can */
    const char *changes; /* what it changes beside rounding; NULL: nothing is known to */
};
DPRO_API struct dpro_batch_cut dpro_model_batch_cut(const struct dpro_model *model);

/* The highest peak of memory of the job's ranks. */
struct dpro_memory_peak {
    uint64_t bytes;   /* 0: not known; all else is 0 then */
    double std_bytes; /* standard error */
    int rank;
    enum dpro_op_kind phase; /* FW, BW, UPDATE; BARRIER: none of them */
    int in_recomputation;    /* 1: while a module is recomputed */
    const char *module;      /* borrowed; the innermost whose pass is going on; NULL: none */
    uint64_t by_category[DPRO_N_MEMORY_CATEGORIES];
    uint64_t reserved_bytes; /* by a GPU's allocator, blocks and free memory: as recorded, of a
                                changed job in proportion to what is simulated of both; 0: not
                                known */
    uint64_t refused_bytes;  /* size of the first request that would fail; 0: none */
};

/* A learnt number and its standard error. */
struct dpro_estimate {
    double value, std;
};

/* What communicating costs. */
struct dpro_link {
    const char *algorithm; /* "ring", "halving-doubling", "tree", "hierarchical", "server",
                              "direct"; static */
    uint32_t n_streams;    /* collectives that a rank runs at the same time */
    int in_order;          /* 1: a bucket waits for those before it to be launched */
    struct dpro_estimate bandwidth_bytes_per_s; /* of a rank's link, each way */
    struct dpro_estimate message_ns;            /* time of a message beside its bytes */
    struct dpro_estimate collective_ns;         /* time of a collective beside its messages */
    struct dpro_estimate launch_ns;             /* computing time for each collective */
    struct dpro_estimate handling_ns;           /* likewise, that its threads take meanwhile */
    struct dpro_estimate hook_ns; /* computing time for each bucket sent by DDP's communication hook
                                     (partitions, priorities, compression); assumed */
    struct dpro_estimate copy_ns; /* computing time of a byte, to copy it back */
    struct dpro_estimate cast_ns; /* computing time of a byte, to cast it and back */
    struct dpro_estimate reduce_ns;       /* time of a byte, to add it up */
    struct dpro_estimate interference_ns; /* computing time lost for each byte on the link */
    /* Where ranks communicate both within hosts and between them, links within hosts; else 0: */
    struct dpro_estimate within_bytes_per_s, within_message_ns;
};
DPRO_API struct dpro_link dpro_model_link(const struct dpro_model *model);

/* What the rank that it takes longest communicates in an iteration beside buckets of gradients, all
 * of a kind. */
struct dpro_communications {
    enum dpro_collective_kind kind;
    uint32_t n;
    uint64_t size_bytes; /* a rank's contributions, the sum over these; 0: not known */
    int64_t took_ns;     /* with the links to themselves, the sum over these */
};
DPRO_API uint32_t dpro_model_n_kinds(const struct dpro_model *model); /* 0: there are none */
DPRO_API struct dpro_communications dpro_model_communications(const struct dpro_model *model,
                                                              uint32_t kind);

/* What carries the job's gradients from rank to rank. */
enum dpro_stack {
    DPRO_STACK_DDP, /* PyTorch's DistributedDataParallel; also the default */
    DPRO_STACK_HOROVOD,
    DPRO_STACK_TENSORFLOW_RING, /* TensorFlow's own collectives */
    DPRO_STACK_TENSORFLOW_PS,   /* its parameter servers */
    DPRO_STACK_MXNET_PS,        /* MXNet's key-value store */
    DPRO_STACK_BYTEPS,
};
DPRO_API const char *dpro_stack_name(enum dpro_stack stack); /* "ddp", "horovod", "tensorflow-ring",
                                         "tensorflow-ps", "mxnet-ps", "byteps"; static */
DPRO_API enum dpro_stack dpro_model_stack(const struct dpro_model *model);
/* What a plan can change in such a job: a sentence without its full stop; static. A search tries
 * nothing else. */
DPRO_API const char *dpro_model_capabilities(const struct dpro_model *model);

DPRO_API size_t dpro_model_n_warnings(const struct dpro_model *model);
DPRO_API const char *dpro_model_warning(const struct dpro_model *model,
                                        size_t index); /* borrowed, one line */

#ifdef __cplusplus
}
#endif
#endif
