/* The global data-flow graph (paper, section 3.1): all ranks' ops of one training iteration, joined
 * by communication. Edges into the next iteration are marked.
 *
 * Ops are numbered by rank, then in trace order. Times are int64 nanoseconds. */
#ifndef DPRO_GRAPH_H
#define DPRO_GRAPH_H

#include <stddef.h>
#include <stdint.h>

#include <dpro/error.h>
#include <dpro/options.h>
#include <dpro/trace.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dpro_graph; /* owns its memory; keeps nothing of the trace it was built from */

typedef uint32_t dpro_op_id;
typedef uint32_t dpro_device_id;

#define DPRO_NO_OP     UINT32_MAX
#define DPRO_NO_DEVICE UINT32_MAX /* runs nowhere: starts when ready, holds nothing up */

enum dpro_op_kind {
    DPRO_OP_FW,     /* forward computation */
    DPRO_OP_BW,     /* backward computation */
    DPRO_OP_UPDATE, /* optimizer */
    DPRO_OP_INPUT,  /* data loading, host-to-device input copies */
    DPRO_OP_SEND,   /* point-to-point, and the messages of collectives. SEND and RECV of a */
    DPRO_OP_RECV,   /* message have one transaction, run beside each other, start together */
    DPRO_OP_PUSH,   /* parameter server */
    DPRO_OP_PULL,
    DPRO_OP_REDUCE,     /* adding up received parts */
    DPRO_OP_COPY,       /* memory moved on one rank, also in and out of buckets */
    DPRO_OP_COLLECTIVE, /* the transfer of a collective on one rank, or what follows its messages;
                           waiting is derived in the replay */
    DPRO_OP_LAUNCH,     /* a CPU call that starts or awaits device work, or sends a message */
    DPRO_OP_IN,         /* a gradient tensor is ready to be communicated (virtual, no duration) */
    DPRO_OP_OUT,        /* a gradient tensor has been communicated (virtual, no duration) */
    DPRO_OP_BARRIER, /* an iteration's boundary; a collective's arrival and barrier (no duration) */
    DPRO_N_OP_KINDS,
};

enum dpro_device_kind {
    DPRO_DEVICE_CPU_THREAD,
    DPRO_DEVICE_GPU_STREAM,
    DPRO_DEVICE_COMM_THREAD, /* one of a pool of CPU threads that only communicate (gloo): where an
                                op ran; edges, not the device, order the pool's ops */
    DPRO_DEVICE_LINK_TX, /* what an address sends; the rank is the first that uses the address */
    DPRO_DEVICE_LINK_RX,
};

/* The name of a process: "rank 3"; for a number below -1 "server 0" or another process without a
 * rank. */
enum { DPRO_PROCESS_NAME_MAX = 32 };
DPRO_API void dpro_process_name(char out[DPRO_PROCESS_NAME_MAX], int rank);

/* "FW", "BW", ..., static storage; NULL for a value that is no kind. */
DPRO_API const char *dpro_op_kind_name(enum dpro_op_kind kind);

/* Builds the graph; *graph is the caller's. Fails with DPRO_EEMPTY when the trace holds no op to
 * replay. */
DPRO_API int dpro_graph_build(const struct dpro_trace *trace,
                              const struct dpro_job_options *options, struct dpro_graph **graph,
                              struct dpro_error *err);
DPRO_API void dpro_graph_destroy(struct dpro_graph *graph); /* NULL is fine */

/* One op, copied out; the strings are borrowed from the graph. */
struct dpro_op {
    dpro_op_id id;
    enum dpro_op_kind kind;
    int rank;              /* below -1: a parameter server, see dpro_process_name */
    dpro_device_id device; /* DPRO_NO_DEVICE: virtual */
    const char *name;
    int64_t dur_ns;        /* mean over the measured iterations */
    int64_t gap_ns;        /* mean time from ready to start that no edge explains */
    int64_t seen_start_ns; /* start in the measured iteration that the graph shows, on the common
                              axis, from the graph's zero */
    int64_t seen_dur_ns;   /* duration there, waiting included */
    uint64_t size_bytes;   /* communicated or copied; 0: unknown */
    uint64_t transaction;  /* equal for ops that are one communication; 0: none */
    const char *tensor;    /* tensor or bucket; "" when none */
};

struct dpro_device {
    enum dpro_device_kind kind;
    int rank;
    const char *name; /* borrowed */
};

DPRO_API uint32_t dpro_graph_n_ops(const struct dpro_graph *graph);
DPRO_API uint32_t
dpro_graph_n_edges(const struct dpro_graph *graph); /* within the iteration and into the next */
DPRO_API uint32_t dpro_graph_n_devices(const struct dpro_graph *graph);
DPRO_API uint32_t dpro_graph_n_ranks(const struct dpro_graph *graph);
DPRO_API struct dpro_op dpro_graph_op(const struct dpro_graph *graph, dpro_op_id op);
DPRO_API struct dpro_device dpro_graph_device(const struct dpro_graph *graph,
                                              dpro_device_id device);
/* Successors of `op` in the same iteration (`next` = 0) or in the following one (1); borrowed, *n
 * of them. */
DPRO_API const dpro_op_id *dpro_graph_successors(const struct dpro_graph *graph, dpro_op_id op,
                                                 int next, uint32_t *n);

/* What was measured: the distance between consecutive iteration boundaries, one value an iteration:
 * the latest boundaries of ranks that communicate with each other in each, else the mean over
 * ranks; for a trace of one iteration the span from the first to the last op over all ranks.
 * Borrowed. */
DPRO_API const int64_t *dpro_graph_measured_ns(const struct dpro_graph *graph,
                                               uint32_t *n_iterations);

/* Ranks whose CPU runs ahead of their GPU are measured on the GPU, from the start of an iteration's
 * first kernel to that of the next one's. */
struct dpro_pace {
    uint32_t n_ranks;  /* measured on the GPU; 0: all ranks are measured by marks on the CPU */
    int64_t marks_ns;  /* time between the marks on the CPU; means over these ranks */
    int64_t device_ns; /* time between iterations on the GPU */
    int64_t ahead_ns;  /* work of the GPU still to do when the next iteration's is launched */
};
DPRO_API struct dpro_pace dpro_graph_pace(const struct dpro_graph *graph);
/* Whether steps that are timed on the CPU (dpro_trace_unprofiled) take as long as iterations. They
 * are shorter while the launch queue fills. */
DPRO_API int dpro_graph_steps_tell(const struct dpro_graph *graph);

/* The iterations that were found on the first rank, and by what: "marks" of the job, its "session",
 * dpro's "recorder"; where nothing marks them, the "optimizer"'s steps, "ranges" of the user that
 * repeat, "passes" forward and back, the "period" of the ops, or "nothing": the whole recording is
 * one iteration. */
struct dpro_steps {
    uint32_t n;
    const char *found_by;
    const char *name; /* of the mark, the optimizer's step or the range; ""; borrowed */
    uint32_t
        n_updates; /* of each, if the optimizer's steps tell; 0: they don't, or some have none */
};
DPRO_API struct dpro_steps dpro_graph_steps(const struct dpro_graph *graph);

/* An iteration of the trace that nothing is learnt from, and why: one line, borrowed. */
struct dpro_left_out {
    int64_t number; /* the job's own */
    const char *reason;
};
DPRO_API size_t dpro_graph_n_left_out(const struct dpro_graph *graph);
DPRO_API struct dpro_left_out dpro_graph_left_out(const struct dpro_graph *graph, size_t index);

/* Iterations outside of the profile, as the transport logs show them. They give the profiler's cost
 * where no steps were timed without it (dpro_trace_unprofiled). Predictions don't use them. */
struct dpro_unprofiled_iterations {
    /* Number of iterations in the log of the rank with most of them; 0: no log has enough. */
    uint32_t n_iterations;
    int64_t mean_ns, std_ns; /* of one */
    /* A TensorFlow session with FULL_TRACE collects the logs of its tasks after each iteration,
     * before the next one: the mean time; 0: the job does not. */
    int64_t asking_ns;
};
DPRO_API struct dpro_unprofiled_iterations
dpro_graph_unprofiled_iterations(const struct dpro_graph *graph);

/* What recording an op cost the thread that ran it, as dpro's recorder measured it, mean over the
 * ranks; 0: not known, or taken out. */
DPRO_API int64_t dpro_graph_profiler_op_ns(const struct dpro_graph *graph);
/* Subtracts it from all durations and gaps: half of it before an op's start, half after its end,
 * outside of the op itself. No time becomes negative. dpro_graph_measured_ns stays as it is. */
DPRO_API void dpro_graph_take_out_profiler(struct dpro_graph *graph);

/* How a clock is brought onto the common axis, for a segment of its time:
 *
 *     aligned = local + offset_ns + drift_ppm * 1e-6 * (local - start_ns)
 *
 * with start_ns <= local < end_ns; the first and the last segment reach on beyond their ends.
 * Events never change their order: between segments a time stands still rather than going back. */
struct dpro_clock_segment {
    int64_t start_ns, end_ns;
    int64_t offset_ns;
    double drift_ppm;
    int64_t uncertainty_ns; /* bound of the error, anywhere in the segment */
};

/* Ranks on one host share a clock, unless their messages show that their clocks differ. All
 * is borrowed from the graph. */
struct dpro_clock {
    const char *host;
    const int *ranks; /* ascending; none for a parameter server or scheduler */
    uint32_t n_ranks;
    const char *method; /* "reference", whose own time is the common axis: zeros; "transport",
                           "nccl", "collectives" or several of them, "transport+collectives": from
                           what it was tied to the reference; "none": it could not be tied; there
                           are no segments and its times are used as recorded */
    const struct dpro_clock_segment *segments; /* ascending in time */
    uint32_t n_segments;
};
/* A time of the clock on the common axis; never decreases. Without segments as it is. */
DPRO_API int64_t dpro_clock_aligned(const struct dpro_clock *clock, int64_t local_ns);
DPRO_API uint32_t dpro_graph_n_clocks(const struct dpro_graph *graph);
DPRO_API struct dpro_clock dpro_graph_clock(const struct dpro_graph *graph, uint32_t clock);

/* A *pair* is a send and a receive, or an entry into a collective and another rank's exit from it:
 * the first must begin before the second can end. A *violation* is a pair whose times contradict
 * that. */
struct dpro_alignment {
    const char *reference; /* its host; "": there is no clock */
    uint64_t n_pairs;
    uint64_t violations_before, violations_after;
};
DPRO_API struct dpro_alignment dpro_graph_alignment(const struct dpro_graph *graph);

/* For plots: the tightest bounds, in each slice of time, of what must be added to a clock. At most
 * 200 a clock, ascending; borrowed. */
struct dpro_clock_bound {
    int64_t local_ns;           /* the middle of the slice */
    int64_t lower_ns, upper_ns; /* INT64_MIN, INT64_MAX: no bound on that side */
};
DPRO_API const struct dpro_clock_bound *dpro_graph_clock_bounds(const struct dpro_graph *graph,
                                                                uint32_t clock, uint32_t *n);

/* What ranks do together. */
enum dpro_collective_kind {
    DPRO_NO_COLLECTIVE,
    DPRO_ALL_REDUCE,
    DPRO_ALL_GATHER,
    DPRO_REDUCE_SCATTER,
    DPRO_ALL_TO_ALL,
    DPRO_BROADCAST,
    DPRO_REDUCE,
    DPRO_GATHER,
    DPRO_SCATTER,
    DPRO_SEND,
    DPRO_RECV,
    DPRO_SEND_RECV, /* both ways, or one of them: it is not known which */
    DPRO_BARRIER,
    DPRO_NEGOTIATE, /* Horovod's agreeing on a collective */
    DPRO_PUSH_PULL, /* over parameter servers */
    DPRO_PUSH,
    DPRO_PULL,
    DPRO_OTHER_COLLECTIVE,
};
/* "all_reduce", ..., "collective" for another one, static storage; NULL for none. */
DPRO_API const char *dpro_collective_kind_name(enum dpro_collective_kind kind);

/* One collective of the iteration, all its ranks together; strings are borrowed. */
struct dpro_collective {
    enum dpro_collective_kind kind;
    uint32_t n_ranks;    /* ranks in the graph */
    uint64_t size_bytes; /* a rank's contribution; 0: unknown */
    uint32_t n_messages; /* its SENDs in the graph; 0: one transfer op a rank */
    const char *pattern; /* who sent to whom, read from the messages: "ring", "halving-doubling",
                            "tree", "direct" (nothing passed on), "mixed"; as NCCL says it:
                            also "nvls", ...; "partly seen": between some ranks nothing was
                            logged; "": no messages */
    uint32_t n_channels; /* of NCCL's; else 1 */
    uint32_t n_chunks;   /* of a ring: messages (NCCL: on a channel) that a step is cut in; else
                            messages over the busiest connection */
};
DPRO_API uint32_t dpro_graph_n_collectives(const struct dpro_graph *graph);
DPRO_API struct dpro_collective dpro_graph_collective(const struct dpro_graph *graph,
                                                      uint32_t index);

/* Whether the job shards its parameters by units that it gathers (PyTorch's FSDP), as the recorder
 * wrote it down. */
DPRO_API int dpro_graph_is_sharded(const struct dpro_graph *graph);

DPRO_API size_t dpro_graph_n_warnings(const struct dpro_graph *graph);
DPRO_API const char *dpro_graph_warning(const struct dpro_graph *graph,
                                        size_t index); /* borrowed, one line */

#ifdef __cplusplus
}
#endif
#endif
