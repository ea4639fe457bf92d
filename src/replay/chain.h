/* The chain of iterations that a prediction is made from.
 *
 * A job's iteration time is the period of consecutive iterations, not the makespan of one. So
 * copies of the graph run one after the other:
 * - warm-up: two with mean durations or, where it was measured, the iteration that led up to the
 *   first, which each rank begins when it did;
 * - main: one for each measured iteration, with its durations and gaps;
 * - after: the last one again, so that it has a successor, too;
 * - drawn, if asked for: iterations drawn at random from the measured ones.
 *
 * All ranks and servers take the same iteration. So what they had in common stays in common, the
 * slowest of noisy ranks is as slow as it was, and two ranks' waits of different iterations never
 * add up.
 *
 * If the recording began with the first main copy, what overlaps it from the warm-up ends before
 * it. That does not hold for iterations measured on the GPU, which always has work queued.
 *
 * An iteration that is left out is predicted from the others: after the up to three iterations that
 * came before it, with the mean of all the others. Where only the time is asked for, it is
 * predicted with each of the others in turn, as the slowest of average ranks is faster than the
 * slowest of real ones. */
#pragma once

#include "replay/replay.h"

#define CHAIN_MEAN UINT32_MAX /* instead of a sample */

struct chain {
    struct arena arena;
    const struct dpro_graph *g;
    struct dpro_graph delayed; /* g, where there are delays */
    const struct dpro_replay_options *options;
    uint32_t *samples; /* the samples that are learnt from */
    uint32_t n_samples;
    uint32_t stand_in;     /* the sample, or CHAIN_MEAN, with which a left-out one is replayed */
    uint32_t first_sample; /* sample of the first main copy; the others follow in order */
    bool drains;           /* everything ends before that copy begins */
    bool leads; /* the copy before it is the measured iteration that led up to the first sample */
    bool ranks_meet; /* in each iteration, so that they have one time */
    uint32_t n_warm_up;
    uint32_t n_main; /* the prediction is the mean of these copies, or the last of them if a sample
                        is left out */
    uint32_t n_kept; /* warm-up, main, after: end times are kept for breakdown and path */
    uint32_t n_copies; /* those and the drawn ones */
    uint32_t n_closed;
    bool only_time; /* only what the iteration times need is kept */
    bool all_prev;  /* what its device ran before each op is kept of all copies */
    int64_t *mean_dur_ns,
        *mean_gap_ns;           /* means without the left-out sample; NULL: the graph's own */
    int64_t *draining_gap_ns;   /* of the last warm-up copy, if it drains */
    int64_t *boundary_ns;       /* [copy * n_ranks + rank index]: ends of iterations */
    int64_t *work_begin_ns;     /* likewise: where they begin on the GPU, of ranks that are measured
                                   there */
    struct replay_copy *copies; /* the first n_kept */
    int64_t *release_ns;        /* NULL: all ranks are ready at 0 */
    int64_t first_ns, last_ns;  /* of a single iteration: first start, last end */
    uint32_t last_op;           /* the op that ends last in it */
};

typedef __int128 chain_total; /* hostile durations fit, too */

struct chain_sums { /* over all samples, by op; NULL: there are none */
    chain_total *dur, *gap;
};

/* Durations and gaps that no recording can have are an error: DPRO_EFORMAT. */
void chain_check_times(const struct dpro_graph *graph);
void chain_sums_make(struct chain_sums *sums, const struct dpro_graph *graph, struct arena *arena);

/* With the `sums` of a graph whose times are checked and that has no delays; or NULL. Fails where
 * the options ask for what the graph does not have. */
void chain_init(struct chain *chain, const struct dpro_graph *graph,
                const struct dpro_replay_options *options, const struct chain_sums *sums);
void chain_fini(struct chain *chain);
void chain_run(struct chain *chain);
/* When the last rank ends the copy's iteration; *rank: which. */
int64_t chain_latest_boundary(const struct chain *chain, uint32_t copy, uint32_t *rank);
/* The time since the boundary in the copy before: the latest of ranks that meet, else each rank's,
 * mean over them. */
int64_t chain_period(const struct chain *chain, uint32_t copy);
/* Each main copy's iteration time, and what is predicted from them. */
void chain_periods(const struct chain *chain, int64_t *iterations_ns);
int64_t chain_predicted_ns(const struct chain *chain, const int64_t *iterations_ns);
/* The last copy that replays the sample which the graph shows. */
uint32_t chain_shown_copy(const struct chain *chain);

/* The iteration that dpro_replay_predict tells; `sums` as of chain_init, options are not NULL. */
int64_t replay_predict(const struct dpro_graph *graph, const struct dpro_replay_options *options,
                       const struct chain_sums *sums);
