/* optimize/space.h: strategies of one model, and their iteration times. */
#pragma once

#include "base/arena.h"
#include "cost/evaluate.h"
#include "cost/sync.h"
#include "optimize/registry.h"

/* ---- computation.c, bound.c: a job's computation, as if nothing slowed it down ---- */

/* Times are from when a rank has all that it waits for at once (MODEL_ALL), else from the
 * iteration's start; a round goes from there to there. */
struct computation_class { /* ranks of one program, or the slowest of them */
    double *ready_ns;      /* [tensor] its gradient is ready */
    double total_ns;       /* of a round's computation */
    double scale;          /* negative: no rank runs the program */
};
struct computation {
    struct computation_class *classes;
    uint32_t n_classes;
    double *work_ns;     /* [op], scratch: of the program that is gone through */
    bool drains;         /* every rank waits for all tensors at once */
    double min_cycle_ns; /* no round is shorter: from where a tensor is waited for to where it is
                            ready again, and to communicate it */
};
/* Of the model under a strategy, as far as that fuses ops. */
struct computation computation_of(const struct dpro_model *model,
                                  const struct dpro_strategy *strategy, struct arena *arena);
/* Of another strategy: when tensors are ready, and how long a round is. */
void computation_set(const struct dpro_model *model, const struct dpro_strategy *strategy,
                     struct computation *computation);
/* When a tensor is ready on its last rank. */
double computation_ready_ns(const struct computation *computation, uint32_t tensor);

/* No strategy without compression that fuses the ops that this computation is of makes an iteration
 * shorter. */
int64_t lower_bound(const struct dpro_model *model, const struct computation *computation);

/* ---- space.c ---- */

struct memory_search;
struct space;

/* A search, whatever the space. */
struct search {
    const struct dpro_optimize_options *options;
    struct registry registry;
    double start_s, told_s;
    uint64_t n_candidates;
    uint32_t n_rounds;
    int64_t baseline_ns, best_ns; /* of any space */
    ARRAY(struct dpro_improvement) improvements;
    const struct memory_search *memory;  /* NULL: no strategy is made to fit any */
    const struct dpro_strategy *modules; /* what is recomputed, in how many micro-batches and how
                                            modules are computed in new strategies; NULL: as it is
                                          */
    const char *stopped_by;              /* NULL: goes on */
    uint64_t random;
    /* Without partial replay: instead of the replay of a whole graph; NULL: nothing. To count them.
     */
    int64_t (*whole)(struct space *space, const struct dpro_strategy *strategy);
    /* To begin with; none where modules may be computed as they are alone. */
    struct computing_choice ways[MOST_COMPUTING_CHOICES];
    uint32_t n_ways;
    const struct dpro_strategy *alone; /* the best of communication alone; NULL: nothing else was
                                          looked for, or it does not fit the memory */
};

struct worker { /* what a thread evaluates with */
    struct evaluator *evaluator;
    struct dpro_strategy strategy;
    struct map peaks; /* of memory, by what strategies do to modules */
};

struct space {
    struct search *search;
    const struct dpro_model *model;
    struct arena arena;
    struct computation work;         /* with nothing fused, of search->modules */
    const struct module_gain *gains; /* [n_modules] */
    struct worker *workers;
    uint32_t n_workers;
    struct sync *sync;
    struct dpro_strategy best, plain; /* plain: nothing but buckets in the order of tensors */
    int64_t best_ns, plain_ns;        /* INT64_MAX: none yet */
    /* the view of a strategy */
    struct dpro_pass_view view;
    struct dpro_pass_tensor *tensors;
    struct dpro_pass_bucket *buckets;
    struct dpro_pass_program *programs;
    struct dpro_pass_module *modules;
    struct computation seen; /* of the strategy that was looked at last */
    bool seen_changed;       /* its work is not that of `work` */
    struct candidates candidates;
    times_array values; /* of candidates */
};

void space_init(struct space *space, struct search *search, const struct dpro_model *model);
/* After another choice of search->modules. */
void space_renew(struct space *space);
void space_fini(struct space *space);
/* One with room for any: a bucket for each tensor, and what makes the job fit its memory; or a copy
 * of `from`. */
struct dpro_strategy space_strategy(struct space *space);
struct dpro_strategy space_copy_of(struct space *space, const struct dpro_strategy *from);
void space_copy(const struct space *space, const struct dpro_strategy *from,
                struct dpro_strategy *to);

/* Its iteration time; noted if it is the best so far, or the best plain one. */
int64_t space_evaluate(struct space *space, const struct dpro_strategy *strategy);
/* The same, of what is no start for other strategies: it is not noted. */
int64_t space_value(struct space *space, const struct dpro_strategy *strategy);
void space_note(struct space *space, const struct dpro_strategy *strategy, int64_t ns);
/* Looks at a strategy, for passes and theorems. */
const struct dpro_pass_view *space_look(struct space *space, const struct dpro_strategy *strategy);
/* All candidates of a strategy. */
void space_collect(struct space *space, const struct dpro_strategy *strategy);
/* Fills in values[] for the candidates that were collected, on all threads. */
void space_evaluate_candidates(struct space *space, const struct dpro_strategy *strategy);
/* t_sync(s, k), and the k that makes it least. */
int64_t space_sync_ns(struct space *space, uint64_t size_bytes, uint32_t partitions);
uint32_t space_best_partitions(struct space *space, uint64_t size_bytes);

double search_seconds(const struct search *search);
/* Whether to stop; calls the caller's progress function now and then. */
bool search_stops(struct search *search);
uint64_t search_random(struct search *search);
static inline double search_uniform(struct search *search) /* [0, 1) */
{
    return (double)(search_random(search) >> 11) * 0x1p-53;
}

/* Little has changed over 5 rounds (paper, section 4.3; reference: 0.1 %). */
struct convergence {
    int64_t best_ns;
    uint32_t n_quiet;
};
bool has_converged(struct convergence *convergence, int64_t best_ns);
