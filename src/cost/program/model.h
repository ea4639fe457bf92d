/* The coarse model of a job: the Coarsened View (paper, section 4.3) and the cost of communication.
 *
 * Each rank runs a *program*: the computation of one iteration, cut where gradients become ready
 * and where it waits for communication. An op of a program is the paper's p_n, its tensor q_n.
 * Gradients travel in *buckets*; each is one collective of all ranks, or several if it is
 * partitioned. The *strategy* says which tensors are in which bucket, the order and partitions of
 * buckets, which ops run as one, and how modules are computed. All else is the model: also what
 * groups of ranks communicate whatever the strategy, such as sharded parameters, activations and
 * tokens. Times are ns, sizes bytes. */
#pragma once

#include "base/base.h"

#include <dpro/model.h>

#define MODEL_NONE UINT32_MAX
#define MODEL_ALL  (UINT32_MAX - 1)

/* A gradient. Numbered in the order in which they become ready on the first rank. */
struct model_tensor {
    const char *name;
    uint64_t size_bytes;
    uint32_t key;        /* its number in a key-value store; else its own */
    uint64_t held_bytes; /* of the parameter, if the job casts its gradient to send it; else 0 */
    uint32_t maker;      /* 1 + the op of the graph that makes it on the first rank; 0: not known */
};

/* Ranks that communicate with each other on a stream of their own: a process group, or two ranks of
 * which one sends to the other. */
struct model_group {
    const uint32_t *ranks; /* indices, ascending; of two: the sender, then the receiver */
    uint32_t n_ranks;
    uint32_t n_members; /* with ranks that were not recorded */
    uint32_t n_streams; /* communications that it runs at the same time */
    bool sends;         /* the first rank to the second; else all to all */
    bool within;        /* all ranks are on one host */
    uint32_t dimension; /* of the graph; UINT32_MAX: none, or several */
};

/* What a group communicates once in an iteration. It took its first rank took_ns with the links to
 * itself: link_bytes on a rank's link (which may have room for some more in its buffers), with
 * those that it lets pass the other way first, n_steps messages one after the other, and what is
 * left, which other links do not change. */
struct model_communication {
    uint8_t kind;        /* enum dpro_collective_kind */
    const char *pattern; /* who sent to whom: "ring", ..., static; NULL: not known */
    uint32_t group;
    uint32_t follows;    /* 1 + another, at whose end it begins on all ranks; 0: as they issue it */
    uint32_t collective; /* of the graph that it was learnt from */
    uint64_t size_bytes; /* a rank's contribution; 0: not known */
    double turns; /* bytes that a link is busy for a byte that it carries; below 1: as many */
    double link_bytes;
    double sent_bytes; /* with those that passed an idle link's buffers */
    double n_steps;
    double took_ns;
    double waits_ns;               /* part of it that is waiting for ranks that were not recorded */
    double more_bytes, more_steps; /* beyond those that were recorded; in took_ns as learnt numbers
                                      have it */
};

/* One op of a program. It waits for `needs`, works, and then the gradient of `tensor` is ready.
 * Behind the tensors come the communications of groups, so number n_tensors + i is the i-th. */
struct model_op {
    const char *name;
    uint8_t phase;     /* enum dpro_op_kind: FW, BW, UPDATE, INPUT */
    bool needs_before; /* `needs` is of the iteration before */
    uint32_t needs;    /* the tensor whose communication it waits for; MODEL_NONE; or MODEL_ALL: all
                          buckets in the strategy's order, each copied back when it arrives (DDP) */
    double lag_ns;     /* if `needs` is of a group: time until the rank has it, from when the first
                          of its ranks has */
    uint32_t tensor;   /* the tensor that is ready after it; MODEL_NONE */
    int64_t when_ns;   /* its end in the iterations that it was learnt of, the mean */
    int64_t work_ns;   /* without communication beside it */
    int64_t beside_ns; /* the part of the recorded time in which the rank also communicated: work_ns
                          falls by this when link.cpu_ns grows by link.byte_ns */
    int64_t once_ns;  /* part of work_ns that a step does once, however many micro-batches it has */
    int64_t fixed_ns; /* part of work_ns that each micro-batch takes, whatever its size */
    double backward;  /* share of work_ns that is of the backward pass */
};

/* The time of a module's passes in one of the ways of enum dpro_computing, against as it is. */
struct computing_cost {
    bool is_known;    /* by probes (ingest/probes.h) */
    bool is_composed; /* of what they measured of the module in other ways, or of its parts */
    bool is_assumed;  /* not known: in 16 bits, assumed from its ops */
    struct dpro_estimate forward, backward; /* ratio of times */
    double kept; /* ratio of the bytes kept between its passes; 0: not known */
};

/* A module, the unit in which recomputation is chosen. Outer ones come before those within them. */
struct model_module {
    const char *name, *class; /* "blocks.0", "TransformerBlock"; class "": not known */
    uint32_t parent;          /* the module around it; MODEL_NONE */
    uint32_t n_calls;         /* in an iteration; the most of any rank */
    uint64_t kept_bytes;      /* bytes that recomputing it alone frees between its passes, in an
                                 iteration of one rank */
    int64_t recompute_ns;     /* work that this adds to an iteration, mean over the ranks */
    bool recompute_probed;    /* that was measured by a probe */
    struct computing_cost costs[DPRO_N_COMPUTINGS]; /* that of DPRO_AS_IT_IS is known and 1 */
    bool has_statistics; /* it computes with statistics over the batch, as BatchNorm does */
    bool is_step;        /* no module of the job, but all that a step computes, or has XLA compile
                            if it has a parent: no plan names the whole */
};

struct model_call {
    uint32_t module, parent; /* the call around it, which comes before it; MODEL_NONE */
    uint32_t op;             /* of the program: the op in which its backward pass begins */
    int64_t recompute_ns;    /* work to compute it again */
    uint32_t forward_op, forward_last,
        backward_last; /* of the program: the ops in which its forward pass begins and ends, and its
                          backward pass ends; MODEL_NONE: not known */
    int64_t forward_ns, backward_ns; /* work of its passes, including calls within it */
};

/* The ratio of the passes' times to the recorded ones, with a batch `ratio` times as large. */
struct batch_point {
    double ratio;
    struct dpro_estimate forward, backward;
};

struct model_program {
    struct model_op *ops;
    uint32_t n_ops;
    struct model_call *calls; /* one for each call of the rank's memory */
    uint32_t n_calls;
};

struct model_rank {
    int rank;
    uint32_t program;        /* ranks that behave alike share one */
    double work_scale;       /* factor on all work_ns; 1 */
    uint32_t copy, like;     /* 0: recorded; else the copy-th of ranks[like], a rank before it */
    double *sample_scale;    /* [n_samples] factor on work_ns in each measured iteration; 1 */
    double *sample_pause_ns; /* [n_samples] what it paused there; NULL: nothing */
    uint32_t memory;         /* index into the model's memories, if it has any */
};

/* Who communicates with whom. Each is a row of a table in cost/program/schedule.c. */
enum model_scheme {
    MODEL_ALL_REDUCE, /* all ranks reduce buckets, by one of the algorithms */
    MODEL_PUSH_PULL,  /* each rank with parameter servers */
    MODEL_IN_GROUPS,  /* groups of ranks; they may have buckets, too */
};

enum model_algorithm {
    MODEL_RING,
    MODEL_HALVING_DOUBLING,
    MODEL_TREE,
    MODEL_HIERARCHICAL, /* rings within hosts, one over hosts */
    MODEL_SERVER,       /* pushed to and pulled from parameter servers */
    MODEL_DIRECT,       /* each rank to each other one */
};

enum model_placement {
    MODEL_BY_KEY, /* MXNet: parts of a bucket go to one server after the other; a whole bucket goes
                     by its key */
    MODEL_ANYWHERE, /* the first part goes to the bucket's server, the others to the servers after
                       it */
};

/* Ranks' links. A message of b bytes takes message_ns + b * byte_ns from one rank to the next. For
 * b * byte_ns it occupies the sender's and the receiver's link. A link sends and receives at the
 * same time. */
struct model_link {
    struct dpro_estimate byte_ns, message_ns;
    /* a byte and a message between processes of one host, where there are others, too */
    struct dpro_estimate within_ns, within_message_ns;
    struct dpro_estimate held_share; /* share of a transfer's rate lost while its rank computes */
    struct dpro_estimate cpu_ns; /* computing time that a rank loses for each byte on its link, as
                                    both use the same cores (or multiprocessors) */
    uint64_t chunk_bytes;        /* the largest message; 0: a step is one message */
    const uint32_t *rank_hosts;  /* [n_ranks] index of the first rank on the same host, whose link
                                    they share; NULL: each rank has its own */
    bool is_rate_unknown;        /* nothing tells how large anything was: byte_ns is a unit */
    bool is_within;              /* all communicate within hosts: byte_ns is of that */
    bool own_links;              /* ranks of one host have links of their own to others (GPUs) */
};

/* What a byte and a message take within hosts, or between them. */
struct link_times {
    double byte_ns, message_ns;
};
static inline struct link_times link_times_of(const struct model_link *link, bool within)
{
    return within ? (struct link_times){link->within_ns.value, link->within_message_ns.value}
                  : (struct link_times){link->byte_ns.value, link->message_ns.value};
}

/* How ranks reduce a bucket, beside the bytes on links. */
struct model_collective {
    enum model_algorithm algorithm;
    uint32_t n_ranks, ranks_per_host;
    struct dpro_estimate reduce_ns;   /* time for a rank or a server to add up a received byte */
    struct dpro_estimate overhead_ns; /* time from the last arrival to the first message, and from
                                         the last message to the end */
};

struct model_gate {
    uint32_t n_streams; /* collectives that a rank runs at the same time: 1 with NCCL's stream, 2
                           with gloo's threads */
    bool in_order;      /* a bucket waits for those before it to be launched (DDP) */
    bool negotiates;    /* Horovod: a thread collects in cycles what is ready */
    int64_t cycle_ns;   /* the job's cycle time; 0: not Horovod, or not known */
    struct dpro_estimate negotiate_ns; /* for the ranks to agree on what to reduce in a cycle */
    bool pulls_with_step; /* a session: all is pulled when an iteration begins, which is when the
                             one before is done; else each tensor as soon as all have pushed it */
    struct dpro_estimate step_ns; /* time between two iterations of a session */
};

struct model_servers {
    uint32_t n;
    const int32_t *hosts; /* [n] index of the rank on the same host, which it reaches without a
                             link; -1: a host of its own; NULL: all have their own */
    const int *numbers;   /* [n] the job's numbers of them; NULL: 0 to n - 1 */
    double link_rate; /* rate of the link of a server's own host, against a rank's; 0: the same */
    enum model_placement placement;
    const uint32_t *of_key; /* [n] server of a whole key, by key * 9973 mod n; NULL: that number */
    struct dpro_estimate push_ns;   /* server's time for a push, beside reduce_ns a byte */
    struct dpro_estimate answer_ns; /* from a server's last push of a bucket to its answer */
};

/* What communicating costs a rank in computing time. */
struct model_compute {
    struct dpro_estimate launch_ns;   /* for each collective */
    struct dpro_estimate handling_ns; /* likewise, after its launch: what its threads take of the
                                         cores that compute */
    struct dpro_estimate hook_ns; /* a bucket, where DDP needs a communication hook; dividing by the
                                     ranks is then a pass of its own, copy_ns a byte */
    struct dpro_estimate copy_ns; /* a byte of a bucket, copied back */
    struct dpro_estimate cast_ns; /* a byte of a bucket, cast to another precision and back */
};

/* What communicating a bucket costs. The same for all ranks. */
struct model_net {
    struct model_link link;
    struct model_collective collective;
    struct model_gate gate;
    struct model_servers servers;
    struct model_compute compute;
    struct model_link learnt; /* the link with which groups' communications took their time */
    double took_ratio;        /* factor on that time */
};

enum model_parts {
    PARTS_NONE,
    PARTS_FREE,        /* each bucket in any number of parts */
    PARTS_OF_ONE_SIZE, /* all of them, by what is larger */
    PARTS_OVER_SERVERS /* one part a server, for buckets above a certain size */
};

/* What the job's stack can be given. Only such strategies are searched and compared with. */
struct model_capabilities {
    enum dpro_stack stack;
    const char *text; /* the same in words; static */
    bool together;    /* any tensors may share a bucket */
    enum model_parts parts;
    bool places; /* the server of each can be chosen */
    bool priorities;
    bool reorders;         /* buckets may be launched in another order than they get ready */
    unsigned compressions; /* as 1 << enum dpro_compression */
};

/* Of a communication, latency beside its bytes, and its bytes alone on the link. */
struct model_cost {
    double latency_ns, wire_ns;
};
/* group_costs.c */
/* With the link that it was recorded with, which takes byte_ns; `pace`: factor on all. */
struct model_cost model_recorded_cost(const struct model_communication *communication,
                                      double byte_ns, double pace);
struct model_cost model_group_cost(const struct dpro_model *model,
                                   const struct model_communication *communication);
/* Of a known dimension that neither replicates nor shards: its bytes grow with the batch. */
bool carries_activations(const struct dpro_graph *graph,
                         const struct model_communication *communication);
/* With `ratio` times as many bytes. */
void model_resize(const struct dpro_model *model, struct model_communication *communication,
                  double ratio);
enum model_scheme model_scheme(const struct dpro_model *model);

/* capabilities.c */
struct model_capabilities model_capabilities(enum dpro_stack stack);
/* Whether the recorded job casts gradients to send them. */
bool model_casts(const struct dpro_model *model);
struct dpro_strategy;
bool capabilities_allow(const struct model_capabilities *capabilities,
                        const struct dpro_strategy *strategy);

/* Strategies are made of contiguous runs of `order`. */
struct strategy_bucket {
    uint32_t first, n;   /* of order; n > 0 */
    uint32_t partitions; /* > 0 */
    int32_t priority;    /* the largest of those ready is launched first; all equal: in order */
    uint32_t server;     /* of its first part, MODEL_ANYWHERE */
};

/* The result of edits, not their list: passes propose edits (optimize/edit.c), and an evaluation
 * would have to apply them all again to know what is in each bucket. */
struct dpro_strategy {
    uint32_t *order; /* [model's n_tensors] tensors by bucket */
    struct strategy_bucket *buckets;
    uint32_t n_buckets;
    int64_t cycle_ns; /* Horovod's cycle time; 0: what is ready goes at once */
    bool fuses; /* what is ready in a cycle travels together, up to fusion_bytes; buckets are only
                   the result */
    uint64_t fusion_bytes;
    enum dpro_compression compression;
    bool *recomputed; /* [model's n_modules]; of nested modules the outermost counts; NULL: none */
    uint32_t micro_batches; /* in which a step's batch is computed; 0, 1: at once */
    uint8_t *computing; /* [model's n_modules] enum dpro_computing; of nested modules the outermost
                           with any bit counts; NULL: all as they are */
    const bool *resharded; /* [n_units] of FSDP, that free their parameters other than as recorded;
                              NULL: none */
    uint32_t n_units, prefetch; /* that each gathers ahead; 0: as recorded */
};

/* Changes of a job's memory that are not a strategy's; zeroed: none. */
struct memory_setting {
    double batch_ratio;   /* a rank's batch against the recorded one; 0: as it is */
    bool views;           /* gradients are views of their buckets */
    bool loss_in_16_bits; /* if the whole model is in 16 bits, so is what follows it up to the
                             backward pass, as the program calls autocast itself */
};

/* The ratio of times without the profiler to times with it, of computation and communication. */
struct model_pace {
    double work, net;
};

struct dpro_model {
    struct arena arena;
    struct model_tensor *tensors;
    uint32_t n_tensors;
    uint64_t whole_bytes; /* of the largest bucket whose gradients were not recorded: it is one
                             tensor; 0: all were */
    struct model_program *programs;
    uint32_t n_programs;
    struct model_rank *ranks;
    uint32_t n_ranks, n_samples;
    struct model_module *modules;
    uint32_t n_modules;
    struct model_memory *memories; /* cost/program/model_memory.h; ranks that are alike share one */
    uint32_t n_memories;           /* 0: nothing is known of memory */
    struct memory_setting memory;
    struct batch_point *batch_points; /* by ratio, with the recorded batch; measured by probes of
                                         modules as they are */
    uint32_t n_batch_points;          /* 0: there are none */
    struct model_net net;
    struct model_group *groups;
    struct model_communication *communications; /* of groups */
    uint32_t n_groups, n_communications;
    struct dpro_communications *kinds; /* of groups, on the rank that they take longest, but for
                                          net.took_ratio */
    uint32_t n_kinds;
    bool all_communication;   /* there may be communications of groups */
    const char *no_gradients; /* why it has no tensors, though the rest of it is known; NULL: it has
                                 some */
    struct model_capabilities capabilities;
    struct dpro_strategy baseline;    /* as the job ran */
    const struct dpro_probes *probes; /* borrowed; NULL: there are none */
    const struct turns *turns;        /* likewise: cost/change/turns.h */
    struct measured_replay *recorded; /* what it was learnt from; NULL: a generated job */
    uint8_t
        bf16_cpu; /* enum bf16_cpu, of the ranks' CPUs; with GPUs: they have instructions for it */
    bool in_16_bits;          /* some rank computes so already */
    int64_t measured_ns;      /* mean iteration; 0: unknown (generated) */
    int64_t *sample_ns;       /* [n_samples] measured iterations, without what dpro cost them; NULL:
                                 unknown */
    int64_t *changed_ns;      /* likewise with other durations, by their replay; NULL: unchanged */
    double changed_ratio;     /* how many times as long the mean iteration is then; 0: unchanged */
    int64_t changed_model_ns; /* and what the model, which comes as near as it can, says of it */
    int64_t median_ns;        /* of the measured iterations, without the profiler's cost */
    int64_t profiler_ns;      /* which was so much */
    struct dpro_job_time job; /* what the model is scaled to; zeros: a generated job */
    struct dpro_batch_cut cut;
    double launch_share;    /* of the time of modules' forward passes on GPUs, what these
                               wait for launches */
    int64_t page_faults;    /* of a rank in a step; -1: not known */
    int64_t cpu_ns;         /* of a rank's process in a step; -1: not known */
    struct model_pace pace; /* already applied to programs and net */
    int64_t paced_ns;       /* an iteration by the model with it */
    double
        carried_share; /* of the time of all bytes on the busiest link, the least of an iteration:
                          1, or what the recorded ones show; 0: its rate is not known so well */
    int64_t launching_ns; /* what the threads that launch a GPU's work take for an iteration alone,
                             which is the least that one takes; 0: there are none */
    double launching_passes; /* of it, the part of passes forward and back: each micro-batch's */
    bool launches_ahead;    /* no thread waits for the GPU: it launches while others' are awaited */
    double pause_ns;        /* of an iteration, what ranks' pauses cost all: no work, so that it
                               stays as it is whatever changes */
    double moving_pause_ns; /* of these, of some ranks alone */
    double misfit; /* relative error of the model against median_ns, before it was scaled */
    double measured_std_ns; /* of the iterations */
    /* Standard errors, relative; 0: a generated job. */
    double job_noise;             /* of `job`, from the steps that it was found from */
    double usual_noise;           /* of it, by those that are not slow */
    double machine_std;           /* how much faster or slower the machine is at another time */
    ARRAY(const char *) warnings; /* static, or in the arena */
};

/* As much may be on its way in a socket's buffers and in a burst that a limiter of rates lets pass:
 * only what is larger tells a link's rate. */
enum { MODEL_BUFFER_BYTES = 256 * 1024 };

/* The bytes of groups on the rank's link, within hosts or between them, that carries most of them
 * in an iteration, and of the largest communication there. */
double model_sent_bytes(const struct dpro_model *model, uint32_t n_ranks, bool within,
                        double *largest);

/* What is left between the job's time and that of its model, as paces only get near: a factor of
 * all predictions. */
static inline double model_job_scale(const struct dpro_model *model, int64_t baseline_ns)
{
    return model->job.ns > 0 ? (double)model->job.ns / (double)baseline_ns : 1;
}

/* What pauses cost a measured iteration: all wait for the longest. */
static inline double model_sample_pause(const struct model_rank *ranks, uint32_t n_ranks,
                                        uint32_t sample)
{
    double longest = 0;
    for (uint32_t r = 0; r < n_ranks; r++)
        if (ranks[r].sample_pause_ns)
            longest = fmax(longest, ranks[r].sample_pause_ns[sample]);
    return longest;
}

/* That in which all recorded ranks pause at once. */
static inline double model_common_pause(const struct dpro_model *model, uint32_t sample)
{
    double least = INFINITY;
    for (uint32_t r = 0; r < model->n_ranks; r++)
        if (model->ranks[r].copy == 0)
            least =
                fmin(least,
                     model->ranks[r].sample_pause_ns ? model->ranks[r].sample_pause_ns[sample] : 0);
    return isfinite(least) ? least : 0;
}

static inline int64_t scaled_ns(double ratio, int64_t ns)
{
    return ns < INT64_MAX ? (int64_t)(ratio * (double)ns + 0.5) : ns;
}
