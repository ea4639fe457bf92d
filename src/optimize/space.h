/* Strategies of one model, and their iteration times. */
#pragma once

#include "cost/program/evaluate.h"
#include "cost/program/sync.h"
#include "optimize/registry.h"

/* ---- computation.c: a job's computation, as if nothing slowed it down ---- */

/* Times are from when a rank has all that it waits for at once (MODEL_ALL), else from the
 * iteration's start. A round goes from one such point to the next. */
struct computation_class { /* ranks of one program, or the slowest of them */
    double *ready_ns;      /* [tensor] its gradient is ready */
    double total_ns;       /* of a round's computation */
    double scale;          /* negative: no rank runs the program */
};
struct computation {
    struct computation_class *classes;
    uint32_t n_classes;
    double *work_ns;     /* [op] scratch, for the program at hand */
    bool drains;         /* every rank waits for all tensors at once */
    double min_cycle_ns; /* no round is shorter: the time from waiting for a tensor until it is
                            ready again, and to communicate it */
};
/* The computation of the model under the strategy. */
struct computation computation_of(const struct dpro_model *model,
                                  const struct dpro_strategy *strategy, struct arena *arena);
/* Changes it to another strategy: when tensors are ready, and how long a round is. */
void computation_set(const struct dpro_model *model, const struct dpro_strategy *strategy,
                     struct computation *computation);
/* When a tensor is ready on its last rank. */
double computation_ready_ns(const struct computation *computation, uint32_t tensor);

/* No strategy without compression, with this computation, makes an iteration shorter. */
int64_t lower_bound(const struct dpro_model *model, const struct computation *computation);

/* ---- space.c ---- */

struct coarsened_view;
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
    const struct memory_search *memory;  /* NULL: there is no budget */
    const struct dpro_strategy *modules; /* has the recomputed modules, micro-batches and ways to
                                            compute of new strategies; NULL: the job's own */
    ARRAY(struct dpro_strategy) pool; /* each that was the best of an algorithm when it was found */
    const char *stopped_by;           /* NULL: goes on */
    uint64_t random;
    /* Choices of ways to compute modules, to start from; none if nothing is allowed. */
    struct computing_choice ways[MOST_COMPUTING_CHOICES];
    uint32_t n_ways;
    const struct dpro_strategy *alone; /* the best of communication alone; NULL: nothing else was
                                          searched, or it does not fit the memory */
};

struct worker { /* what a thread evaluates with */
    struct evaluator *evaluator;
    struct dpro_strategy strategy;
    struct map peaks; /* of memory, by what strategies do to modules */
};

struct space {
    struct search *search;
    const struct dpro_model *model;
    struct space *fine;              /* whose coarsened view this is; NULL: it is none */
    const struct coarsened_view *of; /* likewise */
    struct arena arena;
    struct computation work;         /* with search->modules */
    const struct module_gain *gains; /* [n_modules] */
    struct worker *workers;
    uint32_t n_workers;
    struct sync *sync;
    struct dpro_strategy best, plain; /* plain: only buckets in the order of tensors */
    int64_t best_ns, plain_ns;        /* INT64_MAX: none yet */
    int64_t own_ns; /* of the best since an algorithm began, which sets it to INT64_MAX: what it
 finds by itself goes into the pool, even if others found better */
    struct dpro_pass_view view;
    struct dpro_pass_tensor *tensors;
    struct dpro_pass_bucket *buckets;
    struct dpro_pass_program *programs;
    struct dpro_pass_module *modules;
    struct computation seen; /* of the strategy that was looked at last */
    bool seen_changed;       /* its work differs from that of `work` */
    struct candidates candidates;
    ARRAY(int64_t) values; /* of candidates */
};

void space_init(struct space *space, struct search *search, const struct dpro_model *model);
/* To be called after search->modules changed. */
void space_renew(struct space *space);
void space_fini(struct space *space);
/* A strategy with room for any: with a bucket for each tensor and search->modules; or a copy of
 * `from`. */
struct dpro_strategy space_strategy(struct space *space);
struct dpro_strategy space_copy_of(struct space *space, const struct dpro_strategy *from);
void space_copy(const struct space *space, const struct dpro_strategy *from,
                struct dpro_strategy *to);

/* Whether all it does is group the tensors, in the order of the model, into whole buckets. */
bool space_is_plain(const struct dpro_model *model, const struct dpro_strategy *strategy);
/* The iteration time of a strategy. It is noted if it is the best so far, or the best plain one. */
int64_t space_evaluate(struct space *space, const struct dpro_strategy *strategy);
/* The same, without noting it. */
int64_t space_value(struct space *space, const struct dpro_strategy *strategy);
void space_note(struct space *space, const struct dpro_strategy *strategy, int64_t ns);
/* Looks at a strategy, for passes and theorems. */
const struct dpro_pass_view *space_look(struct space *space, const struct dpro_strategy *strategy);
void space_collect(struct space *space, const struct dpro_strategy *strategy);
/* Evaluates the collected candidates on all threads; fills in values[]. */
void space_evaluate_candidates(struct space *space, const struct dpro_strategy *strategy);
/* t_sync(s, k), and the k that makes it least. */
int64_t space_sync_ns(struct space *space, uint64_t size_bytes, uint32_t partitions);
uint32_t space_best_partitions(struct space *space, uint64_t size_bytes);

double search_seconds(const struct search *search);
/* Whether to stop; calls the caller's progress function now and then. */
bool search_stops(struct search *search);
/* What ended it. Without rounds all that there was has been tried. */
const char *search_end(const struct search *search);
uint64_t search_random(struct search *search);
static inline double search_uniform(struct search *search) /* [0, 1) */
{
    return (double)(search_random(search) >> 11) * 0x1p-53;
}

/* Stops the search when little has changed over 5 rounds (paper, section 4.3; reference: 0.1 %). */
struct convergence {
    int64_t best_ns;
    uint32_t n_quiet;
};
bool has_converged(struct convergence *convergence, int64_t best_ns);
