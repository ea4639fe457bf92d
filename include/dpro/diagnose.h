/* Diagnosis: what an iteration is longer for than it had to be, by causes whose times add up.
 *
 *     iteration = ideal + blames of all causes + what the replay does not explain
 *
 * A cause is something that can be taken away from the replayed iterations: some of the durations
 * of ops and of the gaps before them, or an edge. v(S) is the mean replayed iteration with the
 * causes of S there and all others taken away: v(all) is the replay, v(none) the ideal, in which
 * each rank computes as fast as its peers do on the same work and waits for nothing else. Ops run
 * in the order of the replay. So no cause's time is negative: taking time away makes no op end
 * later. */
#ifndef DPRO_DIAGNOSE_H
#define DPRO_DIAGNOSE_H

#include <stddef.h>
#include <stdint.h>

#include <dpro/error.h>
#include <dpro/graph.h>
#include <dpro/log.h>
#include <dpro/model.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dpro_diagnose_options {
    size_t size;         /* of the struct (error.h) */
    int threads;         /* 0: one a core; results are the same at any number */
    int64_t profiler_ns; /* of an iteration, what recording cost and was taken out of the graph */
    const struct dpro_model *model; /* of the graph, of all communication: what-ifs of it say what
                                       fixing a cause wins; NULL: replays do, of computing only */
    const char *trace;              /* what their commands are told to read; NULL: "TRACE" */
    struct dpro_sink sink;
};

struct dpro_diagnosis; /* owns its memory */

struct dpro_cause_part { /* of a cause: a rank, bucket, module, dimension or reason */
    const char *what;    /* "rank 3", "bucket 2 (dp)", ... */
    int64_t blame_ns;    /* the parts' add up to the cause's */
};

struct dpro_evidence { /* an op */
    dpro_op_id op;
    int rank;
    int64_t iteration; /* the job's number of the one in which it costs most; -1: not known */
    int64_t start_ns;  /* its start there, replayed, from that iteration's start */
    int64_t ns;        /* its blame in a mean iteration */
};

struct dpro_cause {
    const char *cause;         /* key: "slow_rank"; static */
    const char *title;         /* "a rank computes slower than its peers" */
    int64_t blame_ns;          /* Shapley value; all causes' and the ideal add up */
    int64_t uncertainty_ns;    /* half of its 95 % interval; -1: of one iteration there is none */
    int64_t alone_ns;          /* what taking away this cause alone wins */
    int64_t in_order_ns;       /* what it wins when those before it in `order` are gone */
    uint32_t order;            /* 1: to be taken away first, as it wins most */
    const int *ranks;          /* whose ops cost most of it */
    const int64_t *iterations; /* the job's numbers of those that it is in; none: in all */
    const struct dpro_cause_part *parts; /* the largest first */
    const struct dpro_evidence *evidence;
    uint32_t n_ranks, n_iterations, n_parts, n_evidence;
    const char *next_step;   /* a sentence; NULL: none */
    const char *command;     /* a `dpro whatif` of it; NULL: there is none */
    int64_t command_gain_ns; /* what that answers, 2 % of the iteration or more, and */
    int64_t command_half_ns; /* half of its 95 % interval; -1: of one iteration there is none */
};

struct dpro_abstained {
    const char *cause; /* key; static */
    const char *title;
    const char *needs; /* what to record for it to be told; NULL: its blame is small, or unsure */
    int64_t blame_ns;  /* counted in small_ns; 0 where it can't be told */
};

/* What a diagnosis found; all of it is borrowed. */
struct dpro_diagnosis_view {
    int64_t ideal_ns;
    int64_t explained_ns; /* the replay: ideal_ns + blames + small_ns */
    int64_t small_ns;     /* blames of causes that are small or unsure */
    uint32_t n_iterations;
    uint32_t n_causes, n_abstained;
    const struct dpro_cause *causes; /* by blame, largest first */
    const struct dpro_abstained *abstained;
    int is_sampled;     /* 1: blames are of permutations drawn with a fixed seed */
    uint64_t n_replays; /* that it took */
};

/* *diagnosis is the caller's. Fails with DPRO_EEMPTY where the graph has no ops. */
DPRO_API int dpro_diagnose_run(const struct dpro_graph *graph,
                               const struct dpro_diagnose_options *options,
                               struct dpro_diagnosis **diagnosis, struct dpro_error *err);
DPRO_API void dpro_diagnosis_destroy(struct dpro_diagnosis *diagnosis); /* NULL is fine */
DPRO_API const struct dpro_diagnosis_view *
dpro_diagnosis_view(const struct dpro_diagnosis *diagnosis);

/* The keys of all causes; NULL behind the last. */
DPRO_API const char *dpro_cause_key(size_t index);

struct dpro_saved_diagnosis; /* a diagnosis that was saved; owns its memory */

/* Reads a file of dpro_diagnose_save() or dpro_diagnose_json(); *baseline is the caller's. Fails
 * with DPRO_EFORMAT where the file is damaged, or of a version that this library does not read. */
DPRO_API int dpro_saved_diagnosis_read(const char *path, struct dpro_saved_diagnosis **baseline,
                                       struct dpro_error *err);
/* Fails with DPRO_EFORMAT where it is of another job than the graph: of another framework, or with
 * less than half of what one of them computes in common. */
DPRO_API int dpro_saved_diagnosis_check(const struct dpro_saved_diagnosis *baseline,
                                        const struct dpro_graph *graph, struct dpro_error *err);
DPRO_API void
dpro_saved_diagnosis_destroy(struct dpro_saved_diagnosis *baseline); /* NULL is fine */

/* Why one job is slower than another.
 *
 *     b_ns - a_ns = blames of all causes + not_matched_ns
 *
 * Ops are matched by rank, name and order, never by time. The blames are Shapley values of v(S),
 * the mean replayed iteration of the slower job with the causes of S there and all else as in the
 * faster one. Below 0: B takes less for it. A cause's parts are ops of a name. */
struct dpro_against;
struct dpro_against_view {
    int64_t a_ns, b_ns;              /* replayed iterations */
    int64_t not_matched_ns;          /* such as another order of what runs side by side */
    uint32_t n_matched;              /* ops */
    double a_matched, b_matched;     /* share of ops' time that the other job has, too */
    const struct dpro_cause *causes; /* by size */
    uint32_t n_causes;
};

/* *against is the caller's. Fails with DPRO_EEMPTY where a graph has no ops. */
DPRO_API int dpro_against_run(const struct dpro_graph *a, const struct dpro_graph *b,
                              const struct dpro_diagnose_options *options,
                              struct dpro_against **against, struct dpro_error *err);
DPRO_API void dpro_against_destroy(struct dpro_against *against); /* NULL is fine */
DPRO_API const struct dpro_against_view *dpro_against_view(const struct dpro_against *against);

#ifdef __cplusplus
}
#endif
#endif
