/* optimize/search.h: a search, and the algorithms that it is made of. */
#pragma once

#include "optimize/space.h"

/* search.c: from beginning to end, of the job with so many parameter servers. */
int search_one(const struct dpro_model *model, uint32_t n_servers,
               const struct dpro_optimize_options *options, struct dpro_optimum **optimum,
               struct dpro_error *err);

/* ---- coarsened_view.c: the same job, smaller (paper, section 4.3) ---- */

struct coarsened_view {
    struct arena arena;
    struct dpro_model model;
    uint32_t *first; /* [n_tensors + 1] tensors of the original that make up each of these */
    bool differs;    /* from the original, in its tensors */
};

/* `coarsen`: tensors that are ready at once are one; `symmetry`: of ranks that run one program the
 * slowest stands for all. If more ranks than most_ranks are left, those that most gradients wait
 * for stand for all: then it is no longer the same job to the nanosecond. */
void coarsened_view_make(const struct dpro_model *model, bool coarsen, bool symmetry,
                         uint32_t most_ranks, struct coarsened_view *view);
void coarsened_view_fini(struct coarsened_view *view);
/* The strategy of the original that one of the view stands for. */
void coarsened_view_expand(const struct coarsened_view *view, const struct dpro_strategy *from,
                           struct dpro_strategy *to);

/* ---- the algorithms; all leave what they find in space->best and ->plain ---- */

void search_dynamic(struct space *space, double slowdown); /* dynamic.c */
void search_paper(struct space *space);                    /* paper.c: Algorithm 1 */
void search_local(struct space *space, bool plain); /* local_search.c: from space->best or ->plain
                                                     */
/* Down from a strategy to where nothing helps. */
void search_descend(struct space *space, const struct dpro_strategy *from);
void search_mcmc(struct space *space); /* mcmc.c: from space->best */

/* ---- cycles.c: of Horovod ---- */

/* Groups are looked for with cycles that are no longer than usual. */
void cycles_prepare(struct dpro_model *model);
/* What the job's own strategy takes, that fuses; its groups become a start. */
int64_t cycles_baseline(struct space *space, const struct dpro_strategy *baseline);
/* The best settings, if they are as good as the best groups, and no slower than `limit_ns` or than
 * those, become the best strategy. */
void cycles_search(struct space *space, const struct dpro_strategy *baseline, int64_t limit_ns);

/* ---- placement.c: partitions over servers, and tensors' servers ---- */

/* Whether that is all that the job's stack can be given. */
bool placement_is_all(const struct dpro_model *model);
/* From how the job ran. */
void search_placement(struct space *space, const struct dpro_strategy *baseline);

/* ---- defaults.c: what frameworks do by themselves, and what a person would try ---- */

enum { N_DEFAULTS = 12 };
struct default_strategy {
    const char *name, *text;
    uint64_t first_bytes, cap_bytes; /* of buckets, as for buckets_by_cap() */
};
extern const struct default_strategy default_strategies[N_DEFAULTS];
/* Whether a job's stack can be given it. */
bool default_is_within(const struct model_capabilities *capabilities, uint32_t index);
void default_make(const struct dpro_model *model, const struct computation *work, uint32_t index,
                  struct dpro_strategy *strategy);
