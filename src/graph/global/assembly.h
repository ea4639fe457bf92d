/* The global graph under construction, and the files that construct it. */
#pragma once

#include "base/processes.h"
#include "graph/dimensions/find_dimensions.h"
#include "graph/servers/parameter_servers.h"

/* All that is known of a job when its graph is made. */
struct job {
    struct join join;
    struct messages messages;
    struct servers servers;
    struct dimensions dimensions;
    struct dpro_unprofiled_iterations unprofiled_iterations;
};

/* The ops of a message: the call that sends it, which has no device and waits for all that the
 * sender waited for, and a SEND and a RECV, which both start when the call is made, each on its
 * rank's link. If one of the ranks has no log, only the call and the other rank's op exist. */
enum message_op { MESSAGE_CALL, MESSAGE_SEND, MESSAGE_RECV, N_MESSAGE_OPS };

/* A device of a link: what goes over it one after the other, in one direction. */
struct assembly_line {
    uint32_t direction;        /* twice the link, one more for what comes in */
    uint32_t from, to;         /* of a connection: indices of its processes */
    uint32_t first, n_sharing; /* first of the lines that share the direction; their number */
};

/* A message in an iteration, on one of its lines. */
struct line_use {
    uint32_t line, sample;
    int64_t start_ns, end_ns;
    int64_t *dur_ns; /* out: its duration alone on the link; NULL: not wanted */
};
typedef ARRAY(struct line_use) line_use_array;

struct assembly {
    struct join *join;
    const struct messages *messages;
    const struct servers *servers;
    const struct dimensions *dimensions;
    const struct dpro_trace *trace;
    const struct dpro_job_options *options;
    struct arena scratch; /* the arrays that follow */
    uint32_t *first_op;   /* first op of each rank and server; behind the last: the number of ops */
    uint32_t n_ops;
    uint32_t *barriers;     /* op of each joined collective, or DPRO_NO_OP */
    uint32_t *first_device; /* first device of each; behind the last: of the lines */
    /* Ops of messages come last in their rank: see assembly_message. */
    uint32_t *first_message; /* first message op of each rank; all ops behind it are such */
    uint32_t *message_ops;   /* [message * N_MESSAGE_OPS + enum message_op]; DPRO_NO_OP: none */
    uint32_t *message_at;    /* by message op: its place in message_ops; NULL: there are none */
    ARRAY(struct local_edge) edges;    /* by their end, once they are ordered */
    uint32_t *order;                   /* ops in topological order */
    struct strtab *names;              /* the graph's */
    uint32_t n_dropped;                /* soft edges that closed a cycle */
    uint32_t n_samples, first_sample;  /* the sample before the first one leads up to it */
    ARRAY(struct assembly_line) lines; /* lines that share a direction of a link are neighbours */
    uint32_t *line_of;                 /* [message * 2] that of its SEND, then that of its RECV */
    struct dpro_graph *graph;
};

/* Index of the rank, or of the server behind the ranks. */
uint32_t assembly_rank_of(const struct assembly *a, uint32_t op);

static inline uint32_t assembly_n_processes(const struct assembly *a)
{
    return a->join->n_ranks + a->join->n_servers;
}

static inline uint32_t assembly_step(const struct assembly *a, uint32_t rank, uint32_t sample)
{
    return a->join->ranks[rank].sample_step[sample];
}

/* The message that an op belongs to, and as which of its ops; NO_ID: none. */
static inline uint32_t assembly_message(const struct assembly *a, uint32_t rank, uint32_t op,
                                        enum message_op *as)
{
    if (op < a->first_message[rank])
        return NO_ID;
    *as = (enum message_op)(a->message_at[op] % N_MESSAGE_OPS);
    return a->message_at[op] / N_MESSAGE_OPS;
}

static inline uint32_t assembly_line_device(const struct assembly *a, uint32_t line)
{
    return a->first_device[assembly_n_processes(a)] + line;
}

/* DPRO_NO_OP: there is none. */
static inline uint32_t assembly_message_op(const struct assembly *a, uint32_t message,
                                           enum message_op as)
{
    return a->message_ops[(size_t)message * N_MESSAGE_OPS + as];
}

/* The op with which a message is over: its RECV, or without one its SEND. */
static inline uint32_t assembly_message_end(const struct assembly *a, uint32_t message)
{
    uint32_t receive = assembly_message_op(a, message, MESSAGE_RECV);
    return receive == DPRO_NO_OP ? assembly_message_op(a, message, MESSAGE_SEND) : receive;
}

/* to - from; 0 if that is negative, too large, or one of them was not measured. */
static inline int64_t assembly_span(int64_t from, int64_t to)
{
    int64_t difference;
    if (from == ABSENT || to == ABSENT || __builtin_sub_overflow(to, from, &difference))
        return 0;
    return difference > 0 ? difference : 0;
}

static inline void assembly_add_edge(struct assembly *a, uint32_t from, uint32_t to, bool soft)
{
    array_add(&a->edges, from, to, false, soft);
}

/* Whether the recorder measured what the profiler costs there. */
static inline bool assembly_knows_profiler(const struct rank_build *rank)
{
    return rank->trace->recording && rank->trace->recording->profiler.op_ns > 0;
}

/* number_ops.c: gives all ops, and those of messages, their numbers. */
void assembly_number_ops(struct assembly *a);
/* The member that a message's op belongs to; NO_ID: there is no such op. */
uint32_t assembly_member_of(const struct message *message, enum message_op as);

/* shared_links.c: the lines, and which each message takes. */
void assembly_find_lines(struct assembly *a);
/* Sets *dur_ns of all messages on lines that share links. */
void lines_share(const struct assembly *a, const struct line_use *uses, size_t n);

/* topological_order.c: all edges of all ranks and collectives, without cycles, and the ops' order
 * by them. Where edges close a cycle, those that were only read off the timeline are dropped. */
void assembly_order(struct assembly *a);

/* message_edges.c: what each message waits for, and what waits for it; from pushes through the
 * servers' ops to answers. */
void assembly_message_edges(struct assembly *a);

/* tensor_names.c, string ids of the graph: a parameter's name where it is known. */
uint32_t assembly_name_tensor(const struct assembly *a, const struct rank_build *rank,
                              const struct local_tensor *tensor, size_t index);
/* What a collective carries: its bucket by parameters, its unit by name, else its number. */
uint32_t assembly_name_carried(const struct assembly *a, const struct rank_build *rank,
                               uint32_t collective);

/* fill_graph.c: what was learnt about the ops, into the graph. */
void assembly_fill(struct assembly *a);

/* sample_times.c: durations and gaps of all ops in all samples, and their means, into the graph. */
void assembly_time(struct assembly *a);

/* build_warnings.c: adds warnings on what was assumed, missing or left out to the graph, and sends
 * them to the sink. */
void assembly_warn_clocks(struct assembly *a);
void assembly_warn(struct assembly *a);

/* assemble.c: writes the joined ranks into one graph. */
void assemble_graph(struct job *job, const struct dpro_trace *trace,
                    const struct dpro_job_options *options, struct dpro_graph **graph);
/* A graph of clocks and nothing else. */
void assemble_clocks(struct join *join, const struct dpro_job_options *options,
                     struct dpro_graph **graph);

/* share_ranks.c: ranks that other processes build. They tell what their iterations hold, learn
 * which are chosen, and give what joining ranks needs: of struct rank_build, once the rank is
 * built, this (all arrays of its local DFG), its times, parts in collectives and memory. */
extern const struct packed shared_of_rank[];

/* Of the first process, in this order. What is not of the ranks' own memory goes to the arena. */
void shared_hear_steps(struct join *join, struct dpro_processes *processes);
void shared_answer_steps(struct join *join, struct dpro_processes *processes);
void shared_hear_ranks(struct join *join, struct dpro_processes *processes, struct arena *arena);

/* Of another one; false: the first process wants nothing more. */
bool shared_tell_steps(struct join *join, struct dpro_processes *processes);
void shared_tell_ranks(struct join *join, struct dpro_processes *processes);
