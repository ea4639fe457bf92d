/* A search, and the algorithms that it is made of. */
#pragma once

#include "optimize/space.h"

/* search.c: a whole search, of the job with n_servers parameter servers. */
void search_one(const struct dpro_model *model, uint32_t n_servers,
                const struct dpro_optimize_options *options, struct dpro_optimum **optimum);

/* program_search.c: of a job whose groups of ranks communicate, each try a what-if: which units of
 * FSDP are resharded, or how the micro-batches of a pipeline pass. */
void search_programs(const struct dpro_model *model, const struct dpro_optimize_options *options,
                     bool of_units, struct dpro_optimum **optimum);

/* ---- coarsened_view.c: the same job, smaller (paper, section 4.3) ---- */

struct coarsened_view {
    struct arena arena;
    struct dpro_model model;
    uint32_t *first; /* [n_tensors + 1] tensors of the original that make up each of these */
    bool differs;    /* from the original, in its tensors */
};

/* `coarsen`: tensors that are ready together become one. `symmetry`: of ranks that run one program
 * only the slowest is kept. If more than most_ranks ranks are left, only those that most gradients
 * wait for are kept; then times are approximate. */
void coarsened_view_make(const struct dpro_model *model, bool coarsen, bool symmetry,
                         uint32_t most_ranks, struct coarsened_view *view);
void coarsened_view_fini(struct coarsened_view *view);
/* Translates a strategy of the view to one of the original. */
void coarsened_view_expand(const struct coarsened_view *view, const struct dpro_strategy *from,
                           struct dpro_strategy *to);

/* ---- the algorithms; all leave what they find in space->best and ->plain ---- */

void search_dynamic(struct space *space, double slowdown); /* dynamic.c */
void search_paper(struct space *space);                    /* paper.c: Algorithm 1 */
void search_local(struct space *space, bool plain); /* local_search.c: from space->best or ->plain
                                                     */
/* Descends from a strategy until no candidate helps. */
void search_descend(struct space *space, const struct dpro_strategy *from);

/* ---- cycles.c: of Horovod ---- */

/* Limits the cycle time with which groups are searched to the usual one. */
void cycles_prepare(struct dpro_model *model);
/* The iteration time of the job's own strategy, which fuses; its groups become a start of the
 * search. */
int64_t cycles_baseline(struct space *space, const struct dpro_strategy *baseline);
/* Searches the settings. The best ones become the best strategy if they are about as good as the
 * best groups, and no slower than `limit_ns`. */
void cycles_search(struct space *space, const struct dpro_strategy *baseline, int64_t limit_ns);

/* The best that Horovod's autotune can find. False: nothing is known of cycles. */
bool cycles_autotune(struct space *space, struct dpro_strategy *found);

/* ---- placement.c: partitions over servers, and tensors' servers ---- */

/* Whether that is all that the job's stack can be given. */
bool placement_is_all(const struct dpro_model *model);
/* Of the best strategy, in which size of parts all that is larger travels. */
void search_part_size(struct space *space);
/* Searches from how the job ran. */
void search_placement(struct space *space, const struct dpro_strategy *baseline);

/* ---- defaults.c: what frameworks do by themselves, and what a person would try ---- */

enum { N_DEFAULTS = 12 };
struct default_strategy {
    const char *name, *text;
    uint64_t first_bytes, cap_bytes; /* of buckets, as for buckets_by_cap() */
};
extern const struct default_strategy default_strategies[N_DEFAULTS];
/* Whether a job's stack can be given the default strategy. */
bool default_is_within(const struct model_capabilities *capabilities, uint32_t index);
void default_make(const struct dpro_model *model, const struct computation *work, uint32_t index,
                  struct dpro_strategy *strategy);
