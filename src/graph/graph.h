/* The graph in memory: parallel arrays by op id, since replay reads two fields of every op and none
 * of the other ten, and edges in compressed rows. Everything is in one arena. */
#pragma once

#include <dpro/graph.h>

#include "align/clock_map.h"
#include "graph/memory/graph_memory.h"
#include "graph/names/names.h"
#include "ingest/arithmetic.h"

enum graph_op_flag {
    GRAPH_OP_BOUNDARY = 1, /* ends its rank's iteration; exactly one a rank, kind BARRIER */
    GRAPH_OP_GPU = 2,      /* device work, on a stream */
    GRAPH_OP_ARRIVAL =
        4, /* a rank reaches a collective; from here until the transfer starts it waits for peers */
    GRAPH_OP_UNIT = 8, /* FSDP's own: it gathers, frees or reduces what a unit has */
};

#define GRAPH_RANKS(COLUMN, ROW)                                                                   \
    COLUMN(ROW, int, rank, NUMBER, "its number in the job; below -1: a parameter server")          \
    COLUMN(ROW, uint32_t, first_op, ID(ops), "its ops follow each other; this is the first")       \
    COLUMN(ROW, uint32_t, n_ops, NUMBER, "how many ops it has")                                    \
    COLUMN(ROW, uint32_t, n_message_ops, NUMBER,                                                   \
           "how many of them, at the end, are messages of collectives")                            \
    COLUMN(ROW, uint32_t, boundary, ID(ops), "the op that ends its iteration; its flag is 1")      \
    COLUMN(ROW, bool, on_device, FLAG,                                                             \
           "its iterations are measured on its GPU, as the CPU runs ahead: from the start of op "  \
           "first_work to that of the next one; op last_work ends last")                           \
    COLUMN(ROW, uint32_t, first_work, ID(ops), "see on_device; else 0")                            \
    COLUMN(ROW, uint32_t, last_work, ID(ops), "see on_device; else 0")                             \
    COLUMN(ROW, uint8_t, bf16_cpu, NUMBER,                                                         \
           "1: its CPU lacks instructions for bf16, 2: it has them; 0: not known")                 \
    COLUMN(ROW, bool, in_16_bits, FLAG, "the job computes in 16 bits already")                     \
    COLUMN(ROW, uint32_t, n_micro_batches, NUMBER,                                                 \
           "micro-batches whose gradients it adds up before an update; 0: not known")              \
    COLUMN(ROW, uint32_t, fewest_micro_batches, NUMBER,                                            \
           "of these, in the iteration that has fewest; 0: in none are they known")                \
    COLUMN(ROW, uint32_t, most_micro_batches, NUMBER, "and in the one that has most")              \
    COLUMN(ROW, int64_t, unmatched_ns, NS,                                                         \
           "of its GPU's work, mean: what only some iterations have")                              \
    COLUMN(ROW, uint64_t, gradient_bytes, BYTES,                                                   \
           "size of the gradients at the end of its iteration; 0: not known")                      \
    COLUMN(ROW, int64_t, offset_ns, NS,                                                            \
           "where its iteration starts, from the graph's zero; for a graph of one iteration")
struct graph_rank {
    GRAPH_RANKS(COLUMN_FIELD, )
};

#define GRAPH_DEVICES(COLUMN, ROW)                                                                 \
    COLUMN(ROW, uint8_t, kind, WORD(device_kind_word), "what it is")                               \
    COLUMN(ROW, int, rank, NUMBER, "the number of its rank in the job")                            \
    COLUMN(ROW, uint32_t, name, NAME, "its name: of a thread, a stream, an address")               \
    COLUMN(ROW, uint32_t, n_slots, NUMBER,                                                         \
           "of a thread of a pool: the most threads that ran at once; 0: of no pool")              \
    COLUMN(ROW, uint32_t, pool, ID(devices), "of a thread of a pool: the pool's first device")     \
    COLUMN(ROW, uint32_t, n_sharing, NUMBER,                                                       \
           "of a connection: how many devices share its link evenly, one behind the other; 0: "    \
           "it shares nothing")                                                                    \
    COLUMN(ROW, uint32_t, shared, ID(devices),                                                     \
           "of a connection that shares its link: the first device that does")
struct graph_device {
    GRAPH_DEVICES(COLUMN_FIELD, )
};

/* A communication over several ranks: per member an arrival op and a transfer op; all arrivals
 * precede `barrier`, which precedes all transfers. */
#define GRAPH_COLLECTIVES(COLUMN, ROW)                                                             \
    COLUMN(ROW, uint8_t, kind, WORD(collective_word), "all_reduce, all_to_all, send, ...")         \
    COLUMN(ROW, uint32_t, group, NAME, "the process group, as the framework calls it")             \
    COLUMN(ROW, uint32_t, key, NUMBER, "1 + the key of a key-value store; 0: none")                \
    COLUMN(ROW, uint64_t, size_bytes, BYTES, "what a member puts in; 0: not known")                \
    COLUMN(ROW, uint32_t, barrier, ID(ops),                                                        \
           "the op that all arrivals precede and that precedes all transfers; none of a single "   \
           "member")                                                                               \
    COLUMN(ROW, uint32_t, first_member, ID(members),                                               \
           "its members follow each other; this is the first")                                     \
    COLUMN(ROW, uint32_t, n_members, NUMBER, "how many members are in the trace")                  \
    COLUMN(ROW, uint32_t, n_expected, NUMBER,                                                      \
           "size of the group; above n_members, ranks are missing in the trace")                   \
    COLUMN(ROW, int64_t, missing_wait_ns, NS,                                                      \
           "mean part of the transfers that is taken for waiting for missing ranks")               \
    COLUMN(ROW, uint32_t, n_messages, NUMBER,                                                      \
           "its SENDs in the graph; the transfers are what follows them. 0: the transfers are "    \
           "all of it")                                                                            \
    COLUMN(ROW, uint32_t, dimension, ID(dimensions),                                               \
           "the dimension of parallelism that it belongs to; none: of none, or of several")        \
    COLUMN(ROW, const char *, pattern, STATIC,                                                     \
           "who sent to whom: ring, tree, direct, ...; none: there are no messages")               \
    COLUMN(ROW, uint32_t, n_chunks, NUMBER,                                                        \
           "of a ring: messages that a step is cut in; else messages over the busiest connection") \
    COLUMN(ROW, uint32_t, n_channels, NUMBER, "NCCL's channels; else 1")
struct graph_collective {
    GRAPH_COLLECTIVES(COLUMN_FIELD, )
};
#define GRAPH_MEMBERS(COLUMN, ROW)                                                                 \
    COLUMN(ROW, uint32_t, arrival, ID(ops), "the op with which the rank reaches the collective")   \
    COLUMN(ROW, uint32_t, transfer, ID(ops), "the op that lasts while the rank transfers")         \
    COLUMN(ROW, int64_t, exchange_ns, NS,                                                          \
           "mean time from the last arrival to the end of the member's messages")
struct graph_member {
    GRAPH_MEMBERS(COLUMN_FIELD, )
};

#define GRAPH_DIMENSIONS(COLUMN, ROW)                                                              \
    COLUMN(ROW, uint8_t, parallelism, WORD(parallelism_word), "dp, fsdp, cp, ep, tp or pp")        \
    COLUMN(ROW, bool, lies_over, FLAG,                                                             \
           "it lies over other dimensions, so it is no factor of the number of ranks")             \
    COLUMN(ROW, uint32_t, size, NUMBER, "ranks of a group")                                        \
    COLUMN(ROW, uint32_t, n_groups, NUMBER, "groups that are known")                               \
    COLUMN(ROW, uint64_t, n_per_rank, NUMBER,                                                      \
           "communications of a rank in an iteration; 0: none was seen")                           \
    COLUMN(ROW, uint64_t, bytes_per_rank, BYTES, "what a rank puts in; 0: not known")              \
    COLUMN(ROW, const char *, evidence, STATIC, "what tells of it")
struct graph_dimension {
    GRAPH_DIMENSIONS(COLUMN_FIELD, )
    int *ranks; /* of one group after the other */
};

/* A gradient tensor and the bucket it travels in. */
#define GRAPH_TENSORS(COLUMN, ROW)                                                                 \
    COLUMN(ROW, uint32_t, name, NAME, "the parameter")                                             \
    COLUMN(ROW, uint64_t, size_bytes, BYTES, "size of the gradient, as it is sent")                \
    COLUMN(ROW, uint64_t, held_bytes, BYTES,                                                       \
           "size of the parameter, if the job casts its gradient to send it; else 0")              \
    COLUMN(ROW, uint32_t, rank, ID(ranks), "the rank whose gradient it is")                        \
    COLUMN(ROW, uint32_t, in, ID(ops), "the op with which it is there to be sent")                 \
    COLUMN(ROW, uint32_t, out, ID(ops), "the op with which its sum is there")                      \
    COLUMN(ROW, uint32_t, collective, ID(collectives),                                             \
           "the collective that it travels with; none: it does not travel")                        \
    COLUMN(ROW, bool, named, FLAG,                                                                 \
           "the job names it; else its collective shows that it is a gradient")
struct graph_tensor {
    GRAPH_TENSORS(COLUMN_FIELD, )
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
#define GRAPH_EXCHANGES(COLUMN, ROW)                                                               \
    COLUMN(ROW, uint32_t, name, NAME, "the tensor")                                                \
    COLUMN(ROW, uint32_t, carried, NAME,                                                           \
           "the tensor in a key-value store's messages; empty: a session's")                       \
    COLUMN(ROW, uint64_t, size_bytes, BYTES, "its size")                                           \
    COLUMN(ROW, uint32_t, key, NUMBER, "1 + the key of a key-value store; 0: none")                \
    COLUMN(ROW, uint32_t, collective, ID(collectives), "the collective that stands for it")        \
    COLUMN(ROW, uint32_t, server, NUMBER, "the server of its first part")                          \
    COLUMN(ROW, uint32_t, n_parts, NUMBER, "parts that it is sent in")                             \
    COLUMN(ROW, uint32_t, first_end, ID(exchange_ends),                                            \
           "its ends follow each other; this is the first")                                        \
    COLUMN(ROW, uint32_t, n_ends, NUMBER, "how many ends it has")
struct graph_exchange {
    GRAPH_EXCHANGES(COLUMN_FIELD, )
};
/* What one rank does in an exchange. A rank may have several ends, for example one for each part of
 * a gradient. */
#define GRAPH_EXCHANGE_ENDS(COLUMN, ROW)                                                           \
    COLUMN(ROW, uint32_t, rank, ID(ranks), "the rank")                                             \
    COLUMN(ROW, uint32_t, ready, ID(ops), "the op after which the push begins")                    \
    COLUMN(ROW, uint32_t, pulled, ID(ops), "the op with which the value has arrived")              \
    COLUMN(ROW, uint32_t, read, ID(ops), "the server's op after which the value is sent")
struct graph_exchange_end {
    GRAPH_EXCHANGE_ENDS(COLUMN_FIELD, )
};

/* A group of Horovod's as it was reduced once. */
struct graph_reduction {
    uint64_t size_bytes;
    int64_t took_ns; /* time of the thread for it */
};

/* What a rank did longer in a slow iteration than usual, and by as much in one that is not slow. */
#define GRAPH_SLOWER(COLUMN, ROW)                                                                  \
    COLUMN(ROW, uint32_t, rank, ID(ranks), "the rank")                                             \
    COLUMN(ROW, uint32_t, sample, ID(iterations), "the iteration, a slow one or not")              \
    COLUMN(ROW, uint32_t, name, NAME, "ops of that name took longer, or the gaps before them did") \
    COLUMN(ROW, bool, is_gap, FLAG, "it is the gaps: no thread had work then")                     \
    COLUMN(ROW, bool, is_gpu, FLAG, "all kernels took longer, most of all those of that name")     \
    COLUMN(ROW, int64_t, more_ns, NS, "how much longer than usual")
struct grown_time {
    GRAPH_SLOWER(COLUMN_FIELD, )
};
/* Of a known kind; NULL: of none. */
const struct slow_kind *graph_slow_kind(const struct dpro_graph *graph,
                                        const struct grown_time *grown);

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

/* What a device can do at most, in FLOP/s of dense matrices; 0: it can't, or nobody says. */
struct device_peak {
    const char *words[2]; /* that its name has; the second may be NULL */
    double flops[N_PRECISIONS], tf32, bytes_per_s;
};
/* NULL: it is not in the table (names/devices.c). */
const struct device_peak *device_find(const char *name);

/* What a rank computes in an iteration by family and precision, of ops with known shapes. */
struct family_work {
    double flops, bytes, ns;
    double best; /* most FLOP/s of a single op */
};
struct rank_work {
    const char *device; /* the name of its GPU; "": not known */
    struct family_work of[N_FAMILIES][N_PRECISIONS];
    bool lacks_strides; /* of convolutions, which are not in it */
};

/* By op id. What most ops lack is NULL when no op has a value, but for gap_ns and spare. */
#define GRAPH_OPS(COLUMN, ROW)                                                                     \
    COLUMN(ROW, int64_t, dur_ns, NS, "duration, mean over the measured iterations")                \
    COLUMN(ROW, int64_t, gap_ns, NS, "time from ready to start that no edge explains, mean")       \
    COLUMN(ROW, uint32_t, device, ID(devices), "what runs it; none: nothing does")                 \
    COLUMN(ROW, uint8_t, kind, WORD(op_kind_word), "what it does")                                 \
    COLUMN(ROW, uint8_t, flags, NUMBER,                                                            \
           "the sum of: 1, it ends its rank's iteration; 2, it is work of a GPU; 4, its rank "     \
           "reaches a collective with it and then waits; 8, it is FSDP's own work on a unit")      \
    COLUMN(ROW, uint8_t, phase, WORD(op_kind_word),                                                \
           "what its time counts as in a rank's breakdown; BARRIER: nothing")                      \
    COLUMN(ROW, uint16_t, rank, ID(ranks), "its rank")                                             \
    COLUMN(ROW, uint32_t, name, NAME, "its name, as the framework gives it")                       \
    COLUMN(ROW, uint32_t, tensor, NAME, "the tensor or bucket")                                    \
    COLUMN(ROW, uint64_t, size_bytes, BYTES, "what it communicates or copies; 0: not known")       \
    COLUMN(ROW, uint64_t, transaction, NUMBER,                                                     \
           "equal for ops that are one communication; 0: none")                                    \
    COLUMN(ROW, uint32_t, where, NAME,                                                             \
           "the range, function of Python or module around a long gap before it, or around a "     \
           "call that waits for the GPU, behind the op that calls; empty: none, or not asked")     \
    COLUMN(ROW, uint32_t, gather, NUMBER,                                                          \
           "of FSDP: 1 + twice the number of the unit whose parameters it gathers, and 1 more "    \
           "for the backward pass; 0: none")                                                       \
    COLUMN(ROW, uint32_t, pass, NUMBER,                                                            \
           "of a pipeline, as the job marks it: 1 + four times the stage + 0 (forward), 1 "        \
           "(backward), 2 (gradients of inputs), 3 (of weights); 0: no pass")                      \
    COLUMN(ROW, uint8_t, spare, NUMBER,                                                            \
           "how many of its predecessors, the latest to end, it does not wait for")                \
    COLUMN(ROW, int64_t, seen_start_ns, NS,                                                        \
           "start in the measured iteration that is shown, from the graph's zero")                 \
    COLUMN(ROW, int64_t, seen_dur_ns, NS, "duration there, with waiting")                          \
    COLUMN(ROW, uint8_t, profiled, NUMBER,                                                         \
           "what the profiler recorded: starts and ends of ops within it (modulo 4), 4: it "       \
           "launches work on a GPU, 8: another call of the GPU's runtime, 16 times the starts "    \
           "and ends in the gap before it")                                                        \
    COLUMN(ROW, uint8_t, dimension, NUMBER,                                                        \
           "1 + the row in dimensions of the communication that it is part of; 0: of none, or "    \
           "of several")

struct graph_op { /* one row */
    GRAPH_OPS(COLUMN_FIELD, )
};

#define COUNT_COLUMN(row, c_type, column, what, text) +1
enum { N_OP_COLUMNS = 0 GRAPH_OPS(COUNT_COLUMN, ) };
/* Where the columns of ops are in struct dpro_graph. */
#define AT_OP(column) offsetof(struct dpro_graph, column)
extern const struct column_place graph_op_columns[N_OP_COLUMNS];

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
    GRAPH_OPS(COLUMN_ARRAY_FIELD, )
    uint32_t *row, *succ;           /* same iteration: succ[row[op] .. row[op + 1]) */
    uint32_t *next_row, *next_succ; /* into the next iteration */
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

    struct rank_work *work; /* [n_ranks]; NULL: not known */

    struct graph_device *devices;
    struct graph_rank *ranks;
    struct graph_collective *collectives;
    struct graph_member *members;
    struct graph_dimension *dimensions;
    uint32_t n_dimensions;
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

    struct dpro_unprofiled unprofiled;       /* the trace's steps without a profiler */
    const struct slow_ones *unprofiled_ones; /* base/stats.h; NULL: not recorded */
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
    bool is_scaled;        /* its times: the tracing's cost is taken out */
    bool of_stages;        /* of a timeline of stages: no kernels, shapes or sizes */
    bool hides_phases;     /* forward is of an unknown phase: CUDA graphs, or no ops recorded */
    const char *lacks_gpu; /* what was not recorded of GPUs, and why; NULL: nothing is lacking on
                              the ranks that are here */
    const char *seldom;    /* in how few iterations ranks communicate; NULL: in most, or in none */
    const int *blind;      /* ranks whose GPU was not recorded */
    uint32_t n_blind;
    const int *cut; /* ranks that are left out, as their files are cut off */
    uint32_t n_cut;
    ARRAY(char *) warnings; /* text in the arena */
};

/* The latest of n ends without the `spare` latest ones; 0 when none are left. */
int64_t graph_all_but_latest(const int64_t *ends, uint32_t n, uint32_t spare);

/* What a session's steps take without its tracing (RunMetadata), by the same run's own steps, of
 * what the recorded ones take: nothing tells which ops that cost lies in. 1: not known, or nothing.
 */
double graph_tracing_ratio(const struct dpro_graph *g);

/* Calls do_it(arg, SEND, RECV) for each message that was logged: what its two ops have in common is
 * the transaction. */
void graph_each_message(const struct dpro_graph *graph,
                        void (*do_it)(void *arg, dpro_op_id send, dpro_op_id receive), void *arg);

/* The string id of the innermost module that an op is of; MEMORY_NONE: of none, or not known. */
uint32_t graph_module_of(const struct dpro_graph *graph, uint32_t op);

/* Whether all ranks communicate with each other in an iteration, so that none gets ahead: they have
 * one iteration time. */
bool graph_ranks_meet(const struct dpro_graph *graph);

/* Whether iterations are measured on the GPU, on any rank. */
bool graph_runs_ahead(const struct dpro_graph *graph);
/* Whether a device of that kind carries the op. */
static inline bool graph_is_on(const struct dpro_graph *graph, uint32_t op, uint8_t kind)
{
    uint32_t device = graph->device[op];
    return device != DPRO_NO_DEVICE && graph->devices[device].kind == kind;
}

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

/* servers/exchanges.c: what ranks push to servers and pull from them, tensor by tensor. */
/* Fills in the exchanges of a graph that is otherwise complete: those that key-value stores have as
 * collectives, and the variables of a session. */
void exchanges_find(struct dpro_graph *graph);

/* Whether an op is bytes that arrive over a link: a push at a server, or a pull at a rank. */
bool exchange_arrives(const struct dpro_graph *graph, uint32_t op);
