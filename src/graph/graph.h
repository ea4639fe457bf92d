/* The graph in memory: parallel arrays by op id, since replay reads two fields of every op and none
 * of the other ten, and edges in compressed rows. Everything is in one arena. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <dpro/graph.h>

#include "align/clock_map.h"
#include "base/arena.h"
#include "base/array.h"
#include "base/strtab.h"
#include "graph/memory/graph_memory.h"

enum graph_op_flag {
    GRAPH_OP_BOUNDARY = 1, /* ends its rank's iteration; exactly one a rank, kind BARRIER */
    GRAPH_OP_GPU = 2,      /* device work, on a stream */
    GRAPH_OP_ARRIVAL =
        4, /* a rank reaches a collective; from here until the transfer starts it waits for peers */
    GRAPH_OP_UNIT = 8, /* FSDP's own: it gathers, frees or reduces what a unit has */
};

struct graph_rank {
    int rank;
    uint32_t first_op, n_ops;
    uint32_t n_message_ops; /* the last of them: those of collectives' messages */
    uint32_t boundary;      /* its GRAPH_OP_BOUNDARY op; DPRO_NO_OP: none */
    bool on_device; /* its iterations are measured on its GPU, as the CPU runs ahead: from the start
                       of op first_work to that of the next one; op last_work ends last */
    uint32_t first_work, last_work;
    uint8_t bf16_cpu;         /* enum bf16_cpu */
    bool autocast;            /* the job itself computes ops under autocast */
    uint32_t n_micro_batches; /* whose gradients it adds up before an update; 0: not known */
    uint64_t gradient_bytes;  /* that it has at an iteration's end; 0: not known */
    int64_t offset_ns; /* where its iteration starts, from the graph's zero; for a graph of one
                          iteration */
};

struct graph_device {
    uint8_t kind; /* enum dpro_device_kind */
    int rank;
    uint32_t name;
    uint32_t n_slots; /* of a thread of a pool: the most threads that ran at once; 0: of no pool */
    uint32_t pool;    /* the first of the pool's devices */
    uint32_t n_sharing; /* of a connection: how many devices share its link evenly, one behind the
                           other; 0: it shares nothing */
    uint32_t shared;    /* the first of them */
};

/* A communication over several ranks: per member an arrival op and a transfer op; all arrivals
 * precede `barrier`, which precedes all transfers. */
struct graph_collective {
    uint32_t name;                    /* string id: "all_reduce", "all_to_all", "send", ... */
    uint32_t group;                   /* string id */
    uint32_t key;                     /* 1 + that of a key-value store; 0: none */
    uint64_t size_bytes;              /* a member's contribution; 0: unknown */
    uint32_t barrier;                 /* op; DPRO_NO_OP for a single member */
    uint32_t first_member, n_members; /* into members */
    uint32_t n_expected;              /* group size; if above n_members, ranks are missing */
    int64_t missing_wait_ns; /* mean part of the transfers that is assumed to be waiting for missing
                                ranks */
    uint32_t n_messages; /* its SENDs in the graph; the transfer ops are what follows them. 0: the
                            transfer ops are all of it */
    uint32_t dimension;  /* index; UINT32_MAX: none, or several */
    const char *pattern; /* who sent to whom: "ring", ..., static; NULL: no messages */
    uint32_t n_chunks, n_channels; /* as struct pattern has it */
};
struct graph_member {
    uint32_t arrival, transfer; /* ops */
    int64_t exchange_ns; /* mean time from the last arrival to the end of the member's messages */
};

struct graph_dimension {
    uint8_t parallelism; /* enum dpro_parallelism */
    bool lies_over;      /* over other dimensions */
    uint32_t size, n_groups;
    int *ranks; /* of one group after the other */
    uint64_t n_per_rank, bytes_per_rank;
    const char *evidence;
};

/* A gradient tensor and the bucket it travels in. */
struct graph_tensor {
    uint32_t name;
    uint64_t size_bytes;
    uint64_t held_bytes; /* of the parameter, if the job casts its gradient to send it; else 0 */
    uint32_t rank;       /* index into ranks */
    uint32_t in, out;    /* ops; DPRO_NO_OP when absent */
    uint32_t collective; /* index; UINT32_MAX: not communicated */
    bool named;          /* by the job; else it is taken for a gradient by its collective */
};

/* An FSDP unit: parameters that are gathered before each pass, and freed after it. */
struct graph_unit {
    uint32_t name;     /* string id of its module; "": the model itself */
    uint32_t *request; /* [n_ranks] the op after which a backward pass asks for its parameters, if
                          they are to be gathered for it; DPRO_NO_OP: none */
};
/* Which unit's parameters an op gathers, for which pass; 0: none. */
#define GATHER(unit, backward) (1 + 2 * (unit) + ((backward) ? 1U : 0U))
#define GATHER_UNIT(gather)    (((gather)-1) / 2)

/* A pass of a stage of a pipeline, as the job marks it; 0: none. */
enum pass_kind { PASS_FORWARD, PASS_BACKWARD, PASS_OF_INPUTS, PASS_OF_WEIGHTS, N_PASS_KINDS };
#define MARKED_PASS(stage, kind) (1 + (stage)*N_PASS_KINDS + (kind))
#define MARKED_STAGE(pass)       (((pass)-1) / N_PASS_KINDS)
#define MARKED_KIND(pass)        (((pass)-1) % N_PASS_KINDS)

/* A tensor that all ranks push to parameter servers and pull from them. */
struct graph_exchange {
    uint32_t name;    /* string id */
    uint32_t carried; /* string id: its tensor in a key-value store's messages; 0: a session */
    uint64_t size_bytes;
    uint32_t key;               /* 1 + that of a key-value store; 0: none */
    uint32_t collective;        /* the collective that stands for it; UINT32_MAX: none */
    uint32_t server, n_parts;   /* server: of the first part */
    uint32_t first_end, n_ends; /* into exchange_ends */
};
/* What one rank does in an exchange. A rank may have several ends, for example one for each part of
 * a gradient. */
struct graph_exchange_end {
    uint32_t rank;          /* index into ranks */
    uint32_t ready, pulled; /* ops after which the push begins, and with which the value has
                               arrived; DPRO_NO_OP: none */
    uint32_t read;          /* the server's op after which the value is sent; DPRO_NO_OP: none */
};

/* A group of Horovod's as it was reduced once. */
struct graph_reduction {
    uint64_t size_bytes;
    int64_t took_ns; /* time of the thread for it */
};

/* What a rank did longer in a slow iteration than in the usual ones. */
struct grown_time {
    uint32_t rank, sample;
    const char *name; /* of ops, or of those before which no thread had one */
    bool is_gap;
    int64_t more_ns;
};

/* Horovod's cycles; cycle_ns 0: not Horovod, or no cycles were marked. */
struct graph_cycles {
    int64_t cycle_ns;     /* time of an idle cycle */
    int64_t negotiate_ns; /* time of a busy cycle before it reduces anything */
    bool fuses; /* it fuses what is ready, up to fusion_bytes; else the job makes groups */
    uint64_t fusion_bytes;
    struct graph_reduction *reductions; /* of all iterations */
    uint32_t n_reductions;
};

/* What the profiler recorded of an op. */
enum {
    PROFILED_WITHIN = 3, /* mask: starts and ends of ops within it */
    PROFILED_LAUNCH = 4, /* it is a call that launches work on a GPU */
    PROFILED_CALL = 8,   /* it is another call of the GPU's runtime */
    PROFILED_BEFORE = 4, /* shift: starts and ends of ops in the gap before it */
};

struct dpro_graph {
    struct arena arena;
    struct strtab names;

    uint32_t n_ops, n_devices, n_ranks;
    uint32_t world_size;  /* ranks of the job, as the trace says; 0: no trace is behind the graph */
    uint32_t n_servers;   /* servers with ops; their ranks come behind the workers' */
    uint32_t *rank_hosts; /* [n_ranks] index of the first rank on its host, as far as the logs or
                             hosts' names show; NULL: not known */
    int32_t *server_hosts; /* [n_servers] index of a rank on its host; -1: none, as far as the logs
                              show */
    const char *framework; /* "pytorch", "tensorflow", "mxnet"; static */
    bool in_session;       /* of TensorFlow 1 */
    struct graph_cycles cycles;
    /* hot, by op id */
    int64_t *dur_ns, *gap_ns;
    uint32_t *device;
    uint32_t *row, *succ;           /* same iteration: succ[row[op] .. row[op + 1]) */
    uint32_t *next_row, *next_succ; /* into the next iteration; NULL when there are none */
    /* cold, by op id; those marked (*) are NULL when no op has a value, and so is gap_ns */
    uint8_t *kind, *flags;
    uint8_t *phase; /* what the op's time counts as in a rank's breakdown: DPRO_OP_FW, BW, UPDATE,
                       INPUT or COLLECTIVE; DPRO_OP_BARRIER: nothing */
    uint16_t *rank; /* index into ranks, or of a server behind them */
    uint32_t *name;
    uint32_t *tensor;                   /* (*) string id */
    uint64_t *size_bytes, *transaction; /* (*) */
    uint32_t *gather;                   /* (*) GATHER() of the unit whose parameters it gathers */
    uint32_t *pass;                     /* (*) MARKED_PASS() that it is in */
    uint8_t *spare; /* (*) number of predecessors, the latest to end, that an op does not wait for;
                       such an op has none in the iteration before */
    int64_t *seen_start_ns, *seen_dur_ns; /* (*) */
    /* samples: the value of op in measured iteration s is at [s * n_ops + op]; NULL: only the mean
     * is known */
    int64_t *sample_dur_ns, *sample_gap_ns;
    uint32_t n_samples;
    /* The same for a measured iteration that only leads up to the first sample; NULL: none. */
    int64_t *lead_dur_ns, *lead_gap_ns;
    int64_t *lead_begin_ns; /* [n_ranks] when each rank began it, from when the first did */
    bool *sample_follows;   /* by sample: it came right after another recorded iteration; else the
                               recording began with it, and nothing before held it up; NULL: all */

    struct graph_memory *memory; /* [n_ranks]; NULL: not known */

    struct graph_device *devices;
    struct graph_rank *ranks;
    struct graph_collective *collectives;
    struct graph_member *members;
    struct graph_dimension *dimensions;
    uint32_t n_dimensions;
    uint8_t *dimension;          /* (*) by op: 1 + that of the communication it is part of */
    const char *dimensions_note; /* see dpro_graph_dimensions_note; NULL: "" */
    struct graph_tensor *tensors;
    struct graph_exchange *exchanges;
    struct graph_exchange_end *exchange_ends;
    struct graph_unit *units;
    uint32_t n_units;
    uint32_t n_collectives, n_members, n_tensors, n_exchanges;
    bool pulls_with_step; /* values are pulled when a step begins (TensorFlow's sessions), not when
                             all ranks have pushed */

    struct profiler_cost *profiler; /* by rank index; zeros: not known; NULL: none is */
    uint8_t *profiled;              /* by op: PROFILED_* */

    struct dpro_unprofiled unprofiled; /* the trace's steps without a profiler */
    struct dpro_unprofiled_iterations unprofiled_iterations;
    int64_t *measured_ns; /* one value a sample */
    struct grown_time *grown;
    uint32_t n_grown;
    int64_t *sample_number; /* the job's own number of each sampled iteration */
    uint32_t shown_sample;  /* the sample that seen_* come from */
    bool single_iteration;  /* one iteration only: predict its makespan, not a period */
    struct dpro_pace pace;
    struct dpro_steps steps;
    ARRAY(struct dpro_left_out) left_out; /* text in the arena */
    struct clocks clocks;
    const char *lacks_gpu;  /* what was not recorded of GPUs, and why; NULL: nothing is lacking */
    ARRAY(char *) warnings; /* text in the arena */
};

/* The latest of n ends without the `spare` latest ones; 0 when none are left. */
int64_t graph_all_but_latest(const int64_t *ends, uint32_t n, uint32_t spare);

/* Whether the graph has pools, in which the thread that is free first runs an op. */
bool graph_has_pools(const struct dpro_graph *graph);

/* Calls do_it(arg, SEND, RECV) for each message that was logged: what its two ops have in common is
 * the transaction. */
void graph_each_message(const struct dpro_graph *graph,
                        void (*do_it)(void *arg, dpro_op_id send, dpro_op_id receive), void *arg);

/* Whether iterations are measured on the GPU, on any rank. */
bool graph_runs_ahead(const struct dpro_graph *graph);
/* Sends, receives and additions of collectives come after a rank's other ops. */
static inline bool graph_is_of_message(const struct dpro_graph *graph, uint32_t op)
{
    const struct graph_rank *rank = &graph->ranks[graph->rank[op]];
    return op - rank->first_op >= rank->n_ops - rank->n_message_ops;
}

static inline const char *graph_unit_name(const struct dpro_graph *graph, uint32_t unit)
{
    return strtab_get(&graph->names, graph->units[unit].name);
}

/* The first of the connections that share the device's link; else the device itself. */
static inline uint32_t graph_link_of(const struct dpro_graph *graph, uint32_t device)
{
    return graph->devices[device].n_sharing > 0 ? graph->devices[device].shared : device;
}
/* Whether connections share a link. */
bool graph_has_shared_links(const struct dpro_graph *graph);
