/* optimize/search.h: the parts of the search, inside the library. */
#ifndef OPTIMIZE_SEARCH_H
#define OPTIMIZE_SEARCH_H

#include <stdbool.h>

#include <dpro/optimize.h>

#include "base/arena.h"
#include "base/array.h"
#include "base/map.h"
#include "cost/evaluate.h"
#include "cost/model.h"
#include "cost/sync.h"
#include "optimize/edit.h"

/* ---- work.c: a job's computation, as if nothing slowed it down ---- */

/* Times are from when a rank has all that it waits for at once (MODEL_ALL), else from the
 * iteration's start; a round goes from there to there. */
struct work_class {   /* ranks of one program, or the slowest of them */
    double *ready_ns; /* [tensor] its gradient is ready */
    double total_ns;  /* of a round's computation */
    double scale;
};
struct work {
    struct work_class *classes;
    uint32_t n_classes;
    bool drains;         /* every rank waits for all tensors at once */
    double min_cycle_ns; /* no round is shorter: from where a tensor is waited for to where it is
                            ready again, and to communicate it */
};
/* Of the model under a strategy, as far as that fuses ops. -1: out of memory. */
int work_of(const struct dpro_model *model, const struct dpro_strategy *strategy,
            struct arena *arena, struct work *work);
/* Of another strategy: when tensors are ready, and how long a round is. */
void work_set(const struct dpro_model *model, const struct dpro_strategy *strategy,
              struct work *work);
/* When a tensor is ready on its last rank. */
double work_ready_ns(const struct work *work, uint32_t tensor);

/* No strategy without compression that fuses the ops that this work is of makes an iteration
 * shorter. -1: out of memory. */
int lower_bound(const struct dpro_model *model, const struct work *work, int64_t *bound_ns);

/* ---- condense.c: the Coarsened View and symmetry of ranks (paper, section 4.3) ---- */

struct condensed {
    struct arena arena;
    struct dpro_model model;
    uint32_t *first; /* [n_tensors + 1] tensors of the original that make up each of these */
    bool differs;    /* from the original, in its tensors */
};
/* If more ranks than most_ranks are left, those that most gradients wait for stand for all: then it
 * is no longer the same job to the nanosecond. */
int condense(const struct dpro_model *model, bool coarsen, bool symmetry, uint32_t most_ranks,
             struct condensed *condensed);
void condensed_fini(struct condensed *condensed);
/* The strategy that it stands for. */
void condensed_expand(const struct condensed *condensed, const struct dpro_strategy *from,
                      struct dpro_strategy *to);

/* ---- registry.c, child.c, fuse.c: passes ---- */

struct candidate {
    uint32_t first, n; /* edits */
    uint32_t pass;
};
struct candidates {
    ARRAY(struct candidate) list;
    ARRAY(struct dpro_edit) edits;
};
void candidates_fini(struct candidates *candidates);

struct registered {
    const struct dpro_pass *pass; /* NULL: of a file */
    const char *path;
    char *name;
    bool changes_numerics, rejected;
    bool proposes, fuses; /* it has propose(), opfs_ns() */
    struct map times;     /* what opfs_ns() has said */
    uint32_t n_known;     /* of a file: it has been asked about all runs of up to that many ops */
};
struct registry {
    ARRAY(struct registered) passes;
    const struct dpro_optimize_options *options;
    struct dpro_edit *edits; /* room for one candidate */
    unsigned compressions;
    bool plain;  /* tensor fusion alone */
    bool failed; /* out of memory */
};
/* Those built in, and those of the options. A file without a pass is an error: DPRO_EFORMAT. */
int registry_init(struct registry *registry, const struct dpro_optimize_options *options,
                  struct dpro_error *err);
void registry_fini(struct registry *registry);
/* What opfs_ns() has said, of another model's ops. */
void registry_forget(struct registry *registry);
/* All candidates of all passes, in their order. A pass that misbehaves is told of and not asked
 * again. -1: out of memory. */
int registry_collect(struct registry *registry, const struct dpro_model *model,
                     const struct dpro_strategy *strategy, const struct dpro_pass_view *view,
                     struct candidates *candidates);

/* Whether a pass is to be asked: it has not misbehaved, and does what the user allowed. */
bool registry_uses(const struct registry *registry, const struct registered *entry);
/* Tells why a pass is left out from now on. */
void registry_reject(struct registry *registry, struct registered *entry, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* What a file's pass is asked, and what it said, in a child process. */
struct child_question {
    const struct dpro_pass_view *view; /* NULL: what it is, no more */
    uint32_t least, most; /* 0: to propose; else opfs_ns() of all runs of so many ops, program by
                             program, by number of ops, by first op; negative where it can't be */
};
struct child_answer {
    char name[64];
    int changes_numerics, proposes, fuses;
    char why[256]; /* it was of no use; "" else */
};
typedef ARRAY(int64_t) times_array;
/* Appends candidates with pass 0, or times. -1: out of memory; all else is in `answer`. */
int child_run(const char *path, const struct child_question *question,
              struct candidates *candidates, times_array *times, struct child_answer *answer);

/* An op as a strategy runs it: one, or several fused. */
struct step {
    uint32_t first, n;
    int64_t work_ns;
    bool waits; /* for communication: it is never fused with the one before it */
};
struct step step_at(const struct dpro_model *model, const struct dpro_strategy *strategy,
                    uint32_t program, uint32_t op);
/* Whether any pass fuses ops. */
bool fuse_may(const struct registry *registry);
/* Appends the edits that fuse n ops from `first` on in `program` and those alike: other ranks' at
 * the same place that make the same gradients ready. Their durations are the least that any pass
 * says (`entry` NULL), or this one; *ns is that of `program`. Appends none where that can't be. */
uint32_t fuse_edits(struct registry *registry, struct registered *entry,
                    const struct dpro_model *model, const struct dpro_strategy *strategy,
                    const struct dpro_pass_view *view, uint32_t program, uint32_t first, uint32_t n,
                    struct candidates *candidates, int64_t *ns);
/* Appends candidates: neighbouring ops are fused, and with them the buckets of their gradients;
 * fused ones come apart. */
int fuse_propose(struct registry *registry, struct registered *entry,
                 const struct dpro_model *model, const struct dpro_strategy *strategy,
                 const struct dpro_pass_view *view, struct candidates *candidates);

/* ---- space.c: strategies of one model, and what they are worth ---- */

struct improvement {
    double seconds;
    uint64_t n_candidates;
    int64_t best_ns;
};

struct space;

/* What goes on while searching, whatever the space. */
struct search {
    const struct dpro_optimize_options *options;
    struct registry registry;
    double start_s, told_s;
    uint64_t n_candidates;
    uint32_t n_rounds;
    int64_t baseline_ns, best_ns; /* of any space */
    ARRAY(struct improvement) improvements;
    const char *stopped_by; /* NULL: goes on */
    uint64_t random;
    bool failed; /* out of memory */
    /* Without partial replay: instead of the replay of a whole graph; NULL: nothing. To count them.
     */
    int64_t (*whole)(struct space *space, const struct dpro_strategy *strategy);
};

struct space {
    struct search *search;
    const struct dpro_model *model;
    struct arena arena;
    struct work work;              /* with nothing fused */
    struct evaluator **evaluators; /* by thread */
    struct dpro_strategy *scratch; /* by thread */
    struct journal *journals;      /* by thread */
    uint32_t n_threads;
    struct sync *sync;
    struct dpro_strategy best, plain; /* plain: nothing but buckets in the order of tensors */
    int64_t best_ns, plain_ns;        /* INT64_MAX: none yet */
    /* the view of a strategy */
    struct dpro_pass_view view;
    struct dpro_pass_tensor *tensors;
    struct dpro_pass_bucket *buckets;
    struct dpro_pass_program *programs;
    struct work seen; /* of the strategy that was looked at last */
    bool seen_fused;  /* it fuses ops */
    struct candidates candidates;
    int64_t *values; /* of candidates */
    size_t n_values;
};

int space_init(struct space *space, struct search *search, const struct dpro_model *model,
               struct dpro_error *err);
void space_fini(struct space *space);
int space_strategy(struct space *space, struct dpro_strategy *strategy); /* room for any */
void space_copy(const struct space *space, const struct dpro_strategy *from,
                struct dpro_strategy *to);

/* Its iteration time; noted if it is the best so far, or the best plain one. */
int64_t space_evaluate(struct space *space, const struct dpro_strategy *strategy);
/* The same, of what is no start for other strategies: it is not noted. */
int64_t space_value(struct space *space, const struct dpro_strategy *strategy);
/* Looks at a strategy, for passes and theorems. */
const struct dpro_pass_view *space_look(struct space *space, const struct dpro_strategy *strategy);
/* Fills in values[] for the candidates that were collected, on all threads. */
void space_evaluate_candidates(struct space *space, const struct dpro_strategy *strategy);
/* t_sync(s, k), and the k that makes it least. */
int64_t space_sync_ns(struct space *space, uint64_t size_bytes, uint32_t partitions);
uint32_t space_best_partitions(struct space *space, uint64_t size_bytes);
void space_note(struct space *space, const struct dpro_strategy *strategy, int64_t ns);

double search_seconds(const struct search *search);
/* Whether to stop; tells the caller's callback now and then. */
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

/* ---- the algorithms; all leave what they find in space->best and ->plain ---- */

void search_dynamic(struct space *space, double stretch); /* dynamic.c */
void search_paper(struct space *space);                   /* paper.c: Algorithm 1 */
void search_local(struct space *space, bool plain); /* local.c: from space->best, or ->plain */
void search_mcmc(struct space *space);              /* mcmc.c: from space->best */

/* ---- optimize.c: a search from beginning to end ---- */

/* Of the job with so many parameter servers. */
int search_one(const struct dpro_model *model, uint32_t n_servers,
               const struct dpro_optimize_options *options, struct dpro_optimum **optimum,
               struct dpro_error *err);

/* ---- counts.c: each number of parameter servers that the options allow ---- */

int search_counts(const struct dpro_model *model, const struct dpro_optimize_options *options,
                  struct dpro_optimum **optimum, struct dpro_error *err);

/* ---- cycles.c: of Horovod ---- */

/* Groups are looked for with cycles that are no longer than usual. */
void cycles_prepare(struct dpro_model *model);
/* What the job's own strategy takes, that fuses; its groups become a start. */
int64_t cycles_own(struct space *space, const struct dpro_strategy *own);
/* The best settings, if they are as good as the best groups, and no slower than `limit_ns` or than
 * those, become the best strategy. */
void cycles_search(struct space *space, const struct dpro_strategy *own, int64_t limit_ns);

/* ---- assign.c: parts over servers, and tensors' servers ---- */

/* Whether that is all that the job's stack can be given. */
bool assign_is_all(const struct dpro_model *model);
/* From how the job ran. */
void search_assign(struct space *space, const struct dpro_strategy *own);

/* ---- baselines.c ---- */

enum { N_BASELINES = 12 };
struct baseline {
    const char *name, *text;
};
extern const struct baseline baselines[N_BASELINES];
/* Whether a job's stack can be given it. */
bool baseline_is_within(const struct model_capabilities *capabilities, uint32_t baseline);
void baseline_strategy(const struct dpro_model *model, const struct work *work, uint32_t baseline,
                       struct dpro_strategy *strategy);

#endif
