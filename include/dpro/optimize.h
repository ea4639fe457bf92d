/* Searching the strategy that makes an iteration shortest (paper, section 4). */
#ifndef DPRO_OPTIMIZE_H
#define DPRO_OPTIMIZE_H

#include <stddef.h>
#include <stdint.h>

#include <dpro/error.h>
#include <dpro/log.h>
#include <dpro/model.h>
#include <dpro/pass.h>
#include <dpro/whatif.h>

#ifdef __cplusplus
extern "C" {
#endif

enum dpro_algorithm {
    DPRO_ALGORITHM_DEFAULT, /* dynamic programming, then Algorithm 1, then local search from the
                               best found */
    DPRO_ALGORITHM_PAPER,   /* Algorithm 1, from a bucket for each tensor */
    DPRO_ALGORITHM_DP,      /* dynamic programming alone: exact for all-reduces one after the other
                               that don't slow computation down */
};

/* "default", "paper", "dp", static storage; NULL for a value that is none. */
DPRO_API const char *dpro_algorithm_name(enum dpro_algorithm algorithm);

struct dpro_optimize_progress {
    uint64_t n_candidates; /* evaluated so far */
    int64_t baseline_ns, best_ns;
};

struct dpro_optimize_options {
    size_t size; /* of the struct (error.h) */
    enum dpro_algorithm algorithm;
    double budget_s; /* 0: until the search has converged */
    uint64_t seed;
    int threads;           /* 0: one a core; the result is the same with any */
    unsigned compressions; /* those allowed, as 1 << enum dpro_compression; 0: none */
    unsigned computing; /* the ways in which modules may be computed: bits of enum dpro_computing */
    int assumed_costs;  /* 1: also in ways that no probe measured, with assumed times */
    /* Each switches off a speed-up of section 4.3: coarsening of tensors, partial replay (Algorithm
     * 1 evaluates the whole job instead), sharing between ranks that do the same. To compare. */
    int no_coarsen, no_partial, no_symmetry;
    /* Range of the number of parameter servers; both 0: as many as the job has. DPRO_EUSAGE when it
     * has none. */
    uint32_t least_servers, most_servers;
    /* Budget of memory of a rank's device, in bytes or as a share of its capacity; both 0: none. If
     * the job as it ran needs more, modules are recomputed and a step's batch is cut so that an
     * iteration is as fast as possible; then all else is searched. DPRO_EEMPTY when the job's
     * memory, or the device's, is not known. */
    uint64_t memory_bytes;
    double memory_share;
    int no_accumulation; /* 1: the batch is not cut, as a plan alone can't do that */
    /* That the model was built from: of a job with FSDP's fully_shard, it is searched which units
     * free their parameters after the forward pass. NULL: that is not searched. */
    const struct dpro_graph *graph;
    const char *const *pass_files; /* shared objects with a pass; DPRO_EFORMAT where one has none */
    size_t n_pass_files;
    const struct dpro_pass *const *passes; /* and the caller's own, called in this process */
    size_t n_passes;
    /* Called now and then by the thread that called dpro_optimize_run. Not 0 stops the search with
     * the best found so far. May be NULL. */
    int (*progress)(void *arg, const struct dpro_optimize_progress *progress);
    void *arg;
    struct dpro_sink sink; /* warnings: a pass that was rejected, and why */
    uint32_t n_finalists;  /* so many are told, at most (dpro_optimum_finalist) */
};

struct dpro_optimum; /* a result; owns its memory, but borrows the model's */

/* Searches among the strategies that the job's stack can be given (dpro_model_capabilities);
 * *optimum is the caller's. By the model the result is never slower than the job's own strategy or
 * any baseline, unless the job does not fit its memory. Algorithm 1 and dynamic programming alone
 * give what they find, which may be slower. If nothing fits, it is the job's own
 * strategy. The default algorithm chooses by expected time among all strategies that were the best
 * so far when they were tried, and the baselines. It gives the simplest of those that take no more
 * than 0.5 %, or half a standard error of the difference, longer than the best. */
DPRO_API int dpro_optimize_run(const struct dpro_model *model,
                               const struct dpro_optimize_options *options,
                               struct dpro_optimum **optimum, struct dpro_error *err);
DPRO_API void dpro_optimum_destroy(struct dpro_optimum *optimum); /* NULL is fine */

struct dpro_optimum_summary {
    int64_t measured_ns; /* 0: unknown */
    int64_t baseline_ns; /* the job's own strategy, replayed */
    int64_t best_ns;     /* of the best strategy. All times but baseline_ns are means over draws of
                            the model's errors and of the measured iterations, but: */
    int64_t likely_ns;   /* of the best strategy by the model's best guess, as dpro_whatif_run
                            predicts it */
    int64_t found_ns;    /* of the fastest strategy; the best one is a simpler one that is about as
                            fast */
    const char *setting; /* the plain setting that gives the best strategy, "bucket_cap_mb 5";
                            static; NULL: it needs a plan */
    int64_t lower_bound_ns; /* no bucketing without compression is faster; two standard errors of
                               the model are taken off */
    double uncertainty_pct; /* standard deviation of the gain (baseline_ns / best_ns - 1), in
                               points: from the model's numbers, its misfit, the spread of the
                               measured iterations, and 15 % of the gain; for a generated job from
                               the numbers alone */
    /* Plans that trained this job by turns (doc/formats/turns-json.md), by which what is expected
     * was corrected; without them best_ns and uncertainty_pct of the best strategy. 0: none did.
     */
    uint32_t n_turns;
    int64_t unmeasured_ns;
    double unmeasured_pct;
    enum dpro_compression compression;
    uint32_t prefetch; /* units of FSDP that each unit gathers ahead; 0: as it ran */
    const char *algorithm;
    double seconds;
    uint64_t n_candidates; /* evaluated */
    uint32_t n_rounds;
    const char *stopped_by; /* "converged", "nothing left to try", "budget", "stopped" (by the
                               callback); static */
};

/* Common strategies that the job's stack can be given, each evaluated in the same way. If modules
 * may be computed otherwise, also what people usually do, and "communication", the best without. */
struct dpro_baseline {
    const char *name; /* "ddp", "one-bucket", "bucket-per-tensor", "horovod", "cap-5", "byteps" */
    const char *text; /* what it is, a few words */
    int64_t iteration_ns, likely_ns; /* as best_ns and likely_ns of the summary */
    uint32_t n_buckets;
    uint64_t peak_bytes;    /* of units of FSDP, and pipelines; 0: not known */
    int computes;           /* 1: modules are compiled or in 16 bits; with the job's own buckets */
    double uncertainty_pct; /* as that of the summary; 0: not known, or it is how the job ran */
};

/* Which ways to compute modules the options allowed, and how many of them are known. */
struct dpro_computing_search {
    unsigned allowed;         /* bits of enum dpro_computing */
    uint32_t n_modules;       /* modules that may be computed otherwise, in a known time */
    uint32_t n_assumed;       /* of these, those of the best strategy with an assumed time */
    uint32_t n_assumable;     /* modules with an assumed time, which was not allowed */
    int64_t communication_ns; /* the best of communication alone; 0: nothing else was tried, or it
                                 does not fit the memory */
};

/* Each number of parameter servers that was tried, fewest first; none if the options name none. The
 * best strategy has the job's own number, unless another is better by 10 %; then it has the fewest
 * that are as good as any within 1 %. */
struct dpro_server_count {
    uint32_t n_servers;
    uint32_t n_hosts; /* servers with hosts of their own; the others are on ranks' hosts */
    int64_t usual_ns,
        best_ns; /* with servers given tensors as usual; with the best strategy found */
};

enum dpro_which { DPRO_BASELINE, DPRO_BEST, DPRO_FINALISTS };

enum { DPRO_MOST_FINALISTS = 64 };
/* Strategies that a measurement is to choose among: the best, and the fastest of each other set of
 * kinds of changes that the model can't tell from it, in the order of what they are expected to
 * take. They are strategies of the best's model. */
struct dpro_finalist {
    const char *name; /* "cap-5", "buckets+compile" */
    int64_t iteration_ns;
    double uncertainty_pct; /* as that of the summary */
    int is_best;
};

struct dpro_memory_budget {
    uint64_t budget_bytes;   /* 0: none was asked for */
    uint64_t capacity_bytes; /* of the device with the least; 0: not known */
    uint64_t least_bytes;    /* the smallest budget that something tried fits; 0: the job as it ran
                                fits, or there is no budget */
    uint64_t leaked_bytes;   /* that the rank which leaks most never gave back; no peak has it */
    uint64_t growth_bytes;   /* what each iteration adds to that */
    int needed;              /* 1: the job as it ran does not fit */
    int fits;                /* 1: the best strategy does */
};
DPRO_API struct dpro_memory_budget dpro_optimum_memory_budget(const struct dpro_optimum *optimum);

/* What was tried to make a job fit, before its communication was searched; none if it does. The
 * fastest that fits is chosen. With micro-batches it must be faster than all others by 1 %, as a
 * plan alone can't do it, and by a standard error of its time, which was not recorded. */
struct dpro_memory_choice {
    const char *name;    /* "as it ran", "recompute all", "accumulate 2", "recompute chosen", ... */
    uint32_t n_computed; /* modules that are compiled, or in 16 bits */
    uint32_t n_recomputed, micro_batches; /* modules; 1: the batch at once */
    int64_t iteration_ns;                 /* with the job's own buckets */
    uint64_t peak_bytes;
    int fits, chosen,
        exact; /* exact: no choice of modules takes less time, as far as places can be told apart */
};

/* When a bucket of that strategy was ready on the last rank, and its transfer, in the replayed
 * iteration, from its start. */
struct dpro_bucket_times {
    int64_t ready_ns, start_ns, end_ns;
};

/* The changes from the job's strategy to the best one, for people. Borrowed. */
struct dpro_decision {
    const char *pass;     /* "tensor-fusion", "tensor-partition", ..., "op-fusion" */
    const char *target;   /* "bucket 3 (fc.weight ... head.bias)" */
    const char *decision; /* "6.3 MB, 12 tensors", "4 partitions", ... */
};

/* Each time a better strategy was found. */
struct dpro_improvement {
    double seconds;
    uint64_t n_candidates;
    int64_t best_ns;
};

/* All of a result, borrowed from it. What there are two of is by enum dpro_which: as the job ran,
 * and the best. */
struct dpro_optimum_view {
    struct dpro_optimum_summary summary;
    struct dpro_memory_budget memory;
    struct dpro_computing_search computing;
    const struct dpro_model *models[2];        /* the best's has its number of parameter servers */
    const struct dpro_strategy *strategies[2]; /* dpro_strategy_bucket (model.h) takes it, too */
    struct dpro_memory_peak peaks[2];          /* of the ranks; bytes 0: not known */
    struct dpro_pipeline_run pipeline[2];      /* zeroed: no pipeline was searched */
    const struct dpro_bucket_times *times[2];  /* of each of its buckets */
    const struct dpro_baseline *baselines;
    const struct dpro_server_count *counts;
    const struct dpro_unit *units; /* of FSDP; none where they were not searched */
    const struct dpro_finalist *finalists;
    const struct dpro_memory_choice *choices;
    const struct dpro_decision *decisions;
    const struct dpro_improvement *improvements;
    uint32_t n_baselines, n_counts, n_units, n_finalists, n_choices, n_decisions, n_improvements;
};
DPRO_API const struct dpro_optimum_view *dpro_optimum_view(const struct dpro_optimum *optimum);

#ifdef __cplusplus
}
#endif
#endif
