/* Predicting iteration time from the graph (paper, section 3.3).
 *
 * The rules:
 * - An op is ready when its last predecessor has ended. One that stands for a free thread in a pool
 *   of k does not wait for the k - 1 of its predecessors that end last.
 * - A device runs one op at a time. Of all waiting ops, the one with the smallest (max(ready,
 *   device's clock), ready, op id) runs next; a later iteration's copy of an op has the larger id.
 * - The op starts at max(ready, clock) + gap and ends dur later, and the device's clock becomes
 *   that end. Ops without a device start at ready + gap. */
#ifndef DPRO_REPLAY_H
#define DPRO_REPLAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <dpro/graph.h>
#include <dpro/memory.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dpro_replay_options {
    size_t size;      /* of the struct (error.h) */
    uint32_t samples; /* N > 0: also draw N of the measured iterations at random, for p50/p95 */
    uint64_t seed;    /* of those draws */
    /* Kinds or ops that take longer: KIND=RATIO, KIND=+MS (per iteration and rank, spread over the
     * kind's ops; for FW, BW and UPDATE those on the GPU if the rank has one; for messages the
     * RECVs, as SENDs run beside them), OP=RATIO, OP=+MS (each op). KIND: an op kind's name
     * (COLLECTIVE includes collectives' messages), COMM, COMPUTE (FW, BW, UPDATE), CPU, GPU or ALL.
     * OP: a name or a pattern with * ? []. Either with @RANK or @FIRST-LAST before the "=". */
    const char *const *delays;
    size_t n_delays;
    uint32_t skip_sample; /* leave-out: 1 + the measured iteration that is not learnt from, but
                             predicted from the mean of the others; 0: use all */
    int threads;          /* 0: one a core; results are the same at any number */
    struct dpro_sink sink;
};

/* Where a rank's time goes. Each instant counts once, as the first of these that is going on:
 * forward, backward, update, input, transfer, waiting for peers, and (on a rank with a GPU) data
 * loading on the CPU. */
struct dpro_rank_time { /* one rank's iteration, mean over the replayed iterations; all but
                           communication_ns add up to iteration_ns */
    int rank;
    int64_t iteration_ns;
    int64_t forward_ns, backward_ns, update_ns,
        input_ns;                     /* computing (on a GPU where the rank has one, else CPU) */
    int64_t exposed_communication_ns; /* transferring while nothing is computed */
    int64_t wait_for_peers_ns; /* in a collective, before its last rank arrived, nothing computed */
    int64_t idle_ns;
    int64_t communication_ns; /* all transfer time, hidden or not */
    int waited_most_for;      /* the rank that arrived last in most of that waiting; -1: none */
};

/* What a rank's communication in a dimension of parallelism takes of its iteration, mean over the
 * replayed iterations. Where several dimensions transfer at once, the time counts for each. */
struct dpro_dimension_time {
    int64_t exposed_communication_ns, wait_for_peers_ns; /* as in struct dpro_rank_time */
    int64_t communication_ns;                            /* all transfers, hidden or not */
};

struct dpro_critical_op {
    dpro_op_id op;
    int64_t start_ns; /* from the replayed iteration's start */
    int64_t dur_ns;   /* time on the path, without the gap before the op */
    int64_t gap_ns;   /* the gap before it, on the path */
};

struct dpro_replay; /* a result; owns its memory */

/* Replays; *replay is the caller's. DPRO_EUSAGE when a delay names nothing in the graph. */
DPRO_API int dpro_replay_run(const struct dpro_graph *graph,
                             const struct dpro_replay_options *options, struct dpro_replay **replay,
                             struct dpro_error *err);
DPRO_API void dpro_replay_destroy(struct dpro_replay *replay);
/* Only its iteration_ns, in less time and memory. With skip_sample the left-out
 * iteration is predicted with each of the others in turn. */
DPRO_API int dpro_replay_predict(const struct dpro_graph *graph,
                                 const struct dpro_replay_options *options, int64_t *iteration_ns,
                                 struct dpro_error *err);

/* Blocks that are held at the peak. */
struct dpro_memory_holder {
    const char *module; /* the module that made them, or whose parameters, gradients or optimizer
                           state they are; "": the model itself; NULL: none, or not known */
    enum dpro_memory_category category;
    uint32_t n_blocks;
    uint64_t size_bytes;
};

/* What is held from at_ns on until the next point. */
struct dpro_memory_point {
    int64_t at_ns;
    uint64_t by_category[DPRO_N_MEMORY_CATEGORIES];
};

/* What a rank's device holds in the shown iteration. */
struct dpro_rank_memory {
    int rank;
    enum dpro_memory_source source; /* DPRO_MEMORY_UNKNOWN: all else is 0 */
    int on_gpu; /* 1: of its GPU; times are those of the CPU, which allocates and frees */
    uint64_t peak_bytes, by_category[DPRO_N_MEMORY_CATEGORIES]; /* the latter at the peak */
    int64_t peak_ns;              /* when it is first reached, from the iteration's start */
    dpro_op_id peak_op;           /* the op that allocates the last of it; DPRO_NO_OP: none */
    enum dpro_op_kind peak_phase; /* FW, BW, UPDATE, INPUT, COLLECTIVE; BARRIER: none of them */
    const char *peak_module; /* the innermost module whose pass is going on; "": the model itself;
                                NULL: none */
    enum dpro_allocator_settings allocator; /* of a GPU */
    uint64_t reserved_peak_bytes; /* by a GPU's allocator, blocks and free memory; 0: not known */
    uint64_t refused_bytes;       /* size of the first request that does not fit the device, by the
                                     simulated allocator; 0: all fit, or not known */
    dpro_op_id refused_op;        /* the op with that request; DPRO_NO_OP: before the iteration */
    uint64_t measured_peak_bytes, measured_reserved_bytes; /* as recorded; 0: not known */
    uint64_t capacity_bytes;                               /* of the device; 0: not known */
    uint64_t growth_bytes; /* that each iteration takes and never gives back; 0: it does not grow */
    int64_t growth_since;  /* from this iteration on; -1: in all that were recorded */
    uint64_t kept_bytes; /* of two recorded iterations, which can't tell whether memory grows: what
                            the first keeps until the end; 0: nothing, or there are more */
    const struct dpro_memory_holder *holders; /* all, the largest first; borrowed */
    /* Over the shown iteration; borrowed. At most about 2,000, fewer with many ranks: then points
     * between the peaks are left out. */
    const struct dpro_memory_point *points;
    uint32_t n_holders, n_points;
};

/* How late a rank came in an iteration. */
struct dpro_lateness {
    int64_t waited_ns; /* how long ranks waited for it as the last one, mean over all of them */
    int64_t late_ns;   /* how much later it came than half of those who waited; below 0: earlier */
};

/* The same over all iterations. */
struct dpro_rank_late {
    /* A straggler comes late in most iterations, by 5 % of one or more on average and by more than
     * chance explains. There may be several, which take turns at being the last. */
    bool straggles;
    uint32_t n; /* iterations in which this is the late rank; a straggler: in which it comes late,
                   another one later or not */
    int64_t later_ns; /* mean of late_ns */
};

/* What a replay found; all of it is borrowed. "By rank" is by its index. */
struct dpro_replay_view {
    uint32_t n_ops, n_ranks, n_dimensions, n_iterations, n_critical;
    int64_t iteration_ns;               /* mean, steady state */
    const int64_t *iterations_ns;       /* each replayed one */
    const struct dpro_rank_time *ranks; /* by rank */
    /* By iteration and rank, [iteration * n_ranks + rank]: the same, but for communication_ns and
     * waited_most_for (NULL: it is not kept of so many); and how late. */
    const struct dpro_rank_time *ranks_in;
    const struct dpro_lateness *lateness;
    const struct dpro_rank_late *ranks_late; /* by rank */
    /* [rank * (n_dimensions + 1) + 1 + dimension]; instead of a dimension -1: of communication that
     * is in none, or in several. */
    const struct dpro_dimension_time *dimensions;
    /* By op, in the shown iteration (the one replayed from the graph's shown sample), from that
     * iteration's start. When iterations overlap, an op may start before 0 or end after it. */
    const int64_t *start_ns, *end_ns;
    /* The critical path of the shown iteration over all ranks, first op first. Durations and gaps
     * add up to critical_ns. */
    const struct dpro_critical_op *critical;
    int64_t critical_ns;
    const struct dpro_rank_memory *memory; /* by rank */
    /* Who waits for whom: what a rank waits for another as the last one to come, in an iteration,
     * mean: [rank * n_ranks + other]. NULL: there are more than 1,024 ranks. */
    const int64_t *waited_for_ns;
};
DPRO_API const struct dpro_replay_view *dpro_replay_view(const struct dpro_replay *replay);
DPRO_API int64_t dpro_replay_percentile_ns(const struct dpro_replay *replay,
                                           double fraction); /* of iterations; 0.5: median */

/* Self-validation: each measured iteration is predicted from the others. */
struct dpro_validation {
    const char *method;                           /* "leave-one-out", or "none": one iteration */
    uint32_t n;                                   /* predictions made */
    double mean_abs_error_pct, max_abs_error_pct; /* of the iterations left out, one by one */
    double measured_std_pct; /* the spread of the measured iterations, for scale */
    double mean_error_pct;   /* signed: bias */
};
DPRO_API int dpro_replay_validate(const struct dpro_graph *graph,
                                  const struct dpro_replay_options *options,
                                  struct dpro_validation *validation, struct dpro_error *err);

/* The Daydream baseline: local DFG of the lowest rank, one op a bucket, size / bandwidth, no
 * waiting for peers. Fails with DPRO_EEMPTY when the job does not communicate. */
struct dpro_daydream {
    int64_t iteration_ns;
    double bandwidth_bytes_per_s; /* used */
    int bandwidth_was_given;      /* 0: taken from the fastest transfer of the trace */
};
DPRO_API int dpro_replay_daydream(const struct dpro_graph *graph, double bandwidth_bytes_per_s,
                                  struct dpro_daydream *daydream, struct dpro_error *err);

/* How long an iteration of the job takes without dpro: what replays, what-ifs and searches all call
 * the job's time. */
enum dpro_job_source {
    DPRO_JOB_AS_RECORDED, /* the replay; nothing is known of the job without the profiler */
    DPRO_JOB_REPLAY,      /* the replay without what the profiler cost, as the recorder found it */
    DPRO_JOB_LOGS,        /* the replay without what the profiler cost, by transport logs of
                             iterations outside of the profile */
    DPRO_JOB_OWN_STEPS,   /* the median of steps of the same run that were timed without it: five or
                             more, neither twice nor half as long as the profiled ones */
};
DPRO_API const char *dpro_job_source_name(enum dpro_job_source source); /* static; NULL: none */
struct dpro_job_time {
    int64_t ns;              /* 0: unknown */
    int64_t low_ns, high_ns; /* its 95 % interval, at another time on the same machine */
    enum dpro_job_source source;
    uint32_t n; /* steps, or iterations, that it was found from; ranks' steps count one by one */
    uint32_t n_warm_up; /* the first iterations, which are left out as they are slower */
};

#ifdef __cplusplus
}
#endif
#endif
