/* cost/model.h: the coarse model of a job: the Coarsened View (paper, section 4.3) and the cost of
 * communication.
 *
 * Each rank runs a *program*: the computation of one iteration, cut where gradients become ready
 * and where it waits for communication. An op of a program is the paper's p_n, its tensor q_n.
 * Gradients travel in *buckets*; each is one collective of all ranks, or several if it is
 * partitioned. The *strategy* says which tensors are in which bucket, the order and partitions of
 * buckets, which ops run as one, and how modules are computed. All else is the model. Times are ns,
 * sizes bytes. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <dpro/model.h>

#include "base/arena.h"
#include "base/array.h"

#define MODEL_NONE UINT32_MAX
#define MODEL_ALL  (UINT32_MAX - 1)

/* A gradient. Numbered in the order in which they become ready on the first rank. */
struct model_tensor {
    const char *name;
    uint64_t size_bytes;
    uint32_t key; /* its number in a key-value store; else its own */
};

/* One op of a program. It waits for `needs`, works, and then the gradient of `tensor` is ready. */
struct model_op {
    const char *name;
    uint8_t phase;     /* enum dpro_op_kind: FW, BW, UPDATE, INPUT */
    bool needs_before; /* `needs` is of the iteration before */
    uint32_t needs;    /* MODEL_NONE, a tensor that has been communicated, or MODEL_ALL: bucket
                          after bucket, in the order of the strategy, each copied back when it is
                          there (DDP) */
    uint32_t tensor;   /* MODEL_NONE, or the one that is ready after it */
    int64_t work_ns;   /* with nothing being communicated meanwhile */
    int64_t beside_ns; /* of the recorded time behind work_ns, with something on the rank's wires:
                          by so much work_ns is less where a byte costs computation byte_ns more */
    int64_t once_ns;   /* of work_ns, what a step does once, in how many micro-batches it is */
    int64_t fixed_ns;  /* of work_ns, what each micro-batch takes, however small it is */
    double backward;   /* of work_ns, the share of the backward pass */
};

/* What a module's passes take in one of enum dpro_computing's ways, against as they are. */
struct computing_cost {
    bool is_known;                          /* a probe measured it (ingest/probes.h) */
    bool is_assumed;                        /* no probe did: of 16 bits, by what its ops are */
    struct dpro_estimate forward, backward; /* times as long */
    double kept; /* times as many bytes between its passes; 0: not known */
};

/* A module, by which recomputation is chosen; outer ones stand before those within them. */
struct model_module {
    const char *name, *class; /* "blocks.0", "TransformerBlock"; class "": not known */
    uint32_t parent;          /* the module in which it lies; MODEL_NONE */
    uint32_t n_calls;         /* in an iteration of a rank, the most */
    uint64_t kept_bytes;      /* what recomputing it by itself gives back between its passes, in an
                                 iteration of one rank; 0: there is nothing to win */
    int64_t recompute_ns;     /* that it adds to an iteration's work, mean over the ranks */
    struct computing_cost costs[DPRO_N_COMPUTINGS]; /* of DPRO_AS_IT_IS: known, 1 */
};

/* A call of a module in a program. */
struct model_call {
    uint32_t module, parent; /* the call that it lies in, one before it; MODEL_NONE */
    uint32_t op;             /* of the program: in it the call's backward pass begins */
    int64_t recompute_ns;    /* work to compute it again */
    uint32_t forward_op, forward_last, backward_last; /* of the program: those in which its forward
                                                         pass begins and ends, its backward pass
                                                         ends; MODEL_NONE: not known */
    int64_t forward_ns, backward_ns; /* work of its passes, of calls within it too */
};

/* How many times as long both passes take with a batch so many times as large. */
struct batch_point {
    double ratio;
    struct dpro_estimate forward, backward;
};

struct model_program {
    struct model_op *ops;
    uint32_t n_ops;
    struct model_call *calls; /* as those of the rank's memory */
    uint32_t n_calls;
};

struct model_rank {
    int rank;
    uint32_t program;       /* ranks that behave alike share one */
    double work_scale;      /* of all work_ns; 1 */
    double *sample_scale;   /* [n_samples] the work of each measured iteration against work_ns; 1 */
    uint32_t memory;        /* of the model's memories, if it has any */
    const int64_t *read_ns; /* [n_tensors] where pulls open with the step: when a server has read
                               what it sends this rank, from the step's first read; NULL: at once */
};

/* What ranks do to communicate a bucket. A kind is a row of a table: of flows in cost/schedule.c.
 */
enum model_communication {
    MODEL_ALL_REDUCE, /* of all ranks, by one of the algorithms */
    MODEL_PUSH_PULL,  /* each rank with parameter servers */
};

enum model_algorithm {
    MODEL_RING,
    MODEL_HALVING_DOUBLING,
    MODEL_TREE,
    MODEL_HIERARCHICAL, /* rings within hosts, one over hosts */
    MODEL_SERVER,       /* pushed to and pulled from parameter servers */
    MODEL_DIRECT,       /* each rank to each other one */
};

static inline enum model_communication model_communication(enum model_algorithm algorithm)
{
    return algorithm == MODEL_SERVER ? MODEL_PUSH_PULL : MODEL_ALL_REDUCE;
}

/* Which server each part of a bucket goes to. */
enum model_placement {
    MODEL_BY_KEY,   /* MXNet: the parts of a bucket that has any to one server after the other; a
                       whole one to where its key says */
    MODEL_ANYWHERE, /* the first part to the bucket's server, the others to those after it */
};

/* Ranks' links. A message of b bytes takes message_ns + b * byte_ns from one rank to the next, of
 * which b * byte_ns on the sender's and on the receiver's link, which send and receive at once. */
struct model_link {
    struct dpro_estimate byte_ns, message_ns;
    struct dpro_estimate within_ns;  /* a byte between a rank and a server of its host */
    struct dpro_estimate held_share; /* of its rate, that a transfer loses while a rank computes */
    struct dpro_estimate cpu_ns;     /* computing time that a byte on a rank's link costs it, where
                                        both want the same cores (or multiprocessors) */
    uint64_t chunk_bytes;            /* the largest message; 0: a step is one message */
    uint64_t queue_bytes;       /* of those that send to servers, or of servers, what is in a link's
                                   queue, behind which another one begins */
    const uint32_t *rank_hosts; /* [n_ranks] of those on one host, which share its link, the first
                                   (index); NULL: each has one of its own */
};

/* How ranks reduce a bucket, beside what goes over links. */
struct model_collective {
    enum model_algorithm algorithm;
    uint32_t n_ranks, ranks_per_host;
    struct dpro_estimate reduce_ns;   /* a received byte, added up by a rank or a server */
    struct dpro_estimate overhead_ns; /* from its last arrival to its first message, and from its
                                         last message to its end */
    struct dpro_estimate least_ns;    /* it takes that much, however small it is, and its bytes are
                                         there by then */
};

/* When what is ready may begin. */
struct model_gate {
    uint32_t n_streams; /* collectives that a rank has under way at once: 1 on a stream of NCCL's, 2
                           with gloo's threads */
    bool in_order;      /* a bucket waits for those before it to be launched (DDP) */
    bool negotiates;    /* Horovod: a thread looks in cycles what is ready */
    int64_t cycle_ns;   /* from one cycle to the next where nothing else is said; 0: of others, or
                           not known */
    struct dpro_estimate negotiate_ns; /* of a cycle that has something to reduce, for the ranks to
                                          agree on what */
    bool pulls_with_step; /* a session: all are pulled when an iteration begins, which is when all
                             of the one before is done; else each as soon as all have pushed it */
    struct dpro_estimate step_ns; /* of a session, between two iterations */
};

struct model_servers {
    uint32_t n;
    const int32_t *hosts; /* [n] the rank (index) on whose host it is, so that what they say to each
                             other takes no link; -1: on one of its own; NULL: all are */
    const int *numbers;   /* [n] the job's own; NULL: as they are counted */
    double link_rate;     /* of the link of a host of their own, against a rank's; 0: the same */
    enum model_placement placement;
    const uint32_t *of_key;         /* [n] a whole key's, by key * 9973 modulo n; NULL: that number
                                       itself */
    struct dpro_estimate push_ns;   /* of a server's time, for each push; reduce_ns for its bytes */
    struct dpro_estimate answer_ns; /* from a server's last push of a bucket to its answer */
};

/* What communicating costs a rank in computing time. */
struct model_compute {
    struct dpro_estimate launch_ns; /* for each collective */
    struct dpro_estimate hook_ns;   /* for each bucket of a strategy that DDP can be given by a
                                       communication hook only; its division by the ranks is then a
                                       pass of its own, copy_ns a byte */
    struct dpro_estimate copy_ns;   /* a byte of a bucket, when it comes back */
    struct dpro_estimate cast_ns;   /* a byte of a bucket cast to another precision and back */
};

/* What communicating a bucket costs, by all ranks. */
struct model_net {
    struct model_link link;
    struct model_collective collective;
    struct model_gate gate;
    struct model_servers servers;
    struct model_compute compute;
};

enum model_parts {
    PARTS_NONE,
    PARTS_FREE,        /* each bucket in as many as are wanted */
    PARTS_OVER_SERVERS /* one a server, of what has a certain size or more */
};

/* What the job's stack can be given: no other strategy is looked for, or compared with. */
struct model_capabilities {
    enum dpro_stack stack;
    const char *text; /* the same in words; static */
    bool together;    /* tensors may share a bucket, any of them */
    enum model_parts parts;
    bool places; /* the server of each can be chosen */
    bool priorities;
    bool reorders;         /* buckets may be launched in another order than they get ready */
    unsigned compressions; /* as 1 << enum dpro_compression */
};

/* capabilities.c */
struct model_capabilities model_capabilities(enum dpro_stack stack);
struct dpro_strategy;
bool capabilities_allow(const struct model_capabilities *capabilities,
                        const struct dpro_strategy *strategy);

/* Strategies are made of contiguous runs of `order`. */
struct strategy_bucket {
    uint32_t first, n;   /* of order; n > 0 */
    uint32_t partitions; /* > 0 */
    int32_t priority; /* of those ready, the largest is launched first; all equal: as they come */
    uint32_t server;  /* of its first part, MODEL_ANYWHERE */
};

/* What comes of edits, not their list: passes propose edits (optimize/edit.h), and an evaluation,
 * which needs what is in each bucket, would have to apply them all once more. */
struct dpro_strategy {
    uint32_t *order; /* [model's n_tensors] tensors by bucket */
    struct strategy_bucket *buckets;
    uint32_t n_buckets;
    int64_t cycle_ns; /* Horovod's thread looks that often what is ready; 0: it goes at once */
    bool fuses;       /* what is ready then travels together, up to fusion_bytes; buckets only tell
                         what came of that */
    uint64_t fusion_bytes;
    enum dpro_compression compression;
    struct dpro_fused_op *fused; /* by program and first op; none lies within another's ops */
    uint32_t n_fused;
    bool *recomputed;       /* [model's n_modules]; of modules within each other the outermost
                               counts; NULL: none */
    uint32_t micro_batches; /* a step's batch is computed in so many; 0, 1: at once */
    uint8_t *computing;     /* [model's n_modules] enum dpro_computing; of modules within each other
                               the outermost with any bit counts; NULL: all as they are */
};

/* What of a job's memory is otherwise than recorded and no strategy's; zeroed, nothing is. */
struct memory_setting {
    double batch_ratio;   /* a rank's batch, times as large; 0: as it is */
    bool views;           /* gradients are views of their buckets */
    bool loss_in_16_bits; /* where the whole model is, so is what follows it, up to the backward
                             pass: the program calls autocast itself */
};

/* How many times as long as under the profiler computation and communication take without it. */
struct model_pace {
    double work, net;
};

struct dpro_model {
    struct arena arena;
    struct model_tensor *tensors;
    uint32_t n_tensors;
    struct model_program *programs;
    uint32_t n_programs;
    struct model_rank *ranks;
    uint32_t n_ranks, n_samples;
    struct model_module *modules;
    uint32_t n_modules;
    struct model_memory *memories; /* cost/model_memory.h; ranks that are alike share one */
    uint32_t n_memories;           /* 0: nothing is known of memory */
    struct memory_setting memory;
    struct batch_point *batch_points; /* by ratio, the recorded batch among them; measured by probes
                                         of modules as they are */
    uint32_t n_batch_points;          /* 0: there are none */
    struct model_net net;
    const char *no_gradients; /* why it has no tensors: what it computes and holds can be asked for
                                 all the same; NULL: it has */
    struct model_capabilities capabilities;
    struct dpro_strategy baseline;    /* as the job ran */
    const struct dpro_probes *probes; /* borrowed; NULL: there are none */
    int64_t measured_ns;              /* mean iteration; 0: unknown (generated) */
    int64_t median_ns;                /* of the measured iterations */
    int64_t unprofiled_ns;            /* of those with no profiler on; 0: not known */
    int64_t page_faults;              /* of a rank in a step; -1: not known */
    struct model_pace pace;           /* that is in programs and net */
    double misfit;          /* how far the model of the profiled job is from median_ns, relative;
                               that of the unprofiled one is as far from that */
    double measured_std_ns; /* of the iterations */
    double machine_std;     /* relative: how much faster or slower the machine may be at another
                               time, a standard error; 0: generated */
    double correlation;     /* of an iteration with the one before */
    ARRAY(const char *) warnings; /* static, or in the arena */
};
