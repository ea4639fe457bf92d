/* optimize/coarsened_view.h: the same job, smaller (paper, section 4.3). */
#ifndef OPTIMIZE_COARSENED_VIEW_H
#define OPTIMIZE_COARSENED_VIEW_H

#include "base/arena.h"
#include "cost/model.h"

struct coarsened_view {
    struct arena arena;
    struct dpro_model model;
    uint32_t *first; /* [n_tensors + 1] tensors of the original that make up each of these */
    bool differs;    /* from the original, in its tensors */
};

/* `coarsen`: tensors that are ready at once are one; `symmetry`: of ranks that run one program the
 * slowest stands for all. If more ranks than most_ranks are left, those that most gradients wait
 * for stand for all: then it is no longer the same job to the nanosecond. -1: out of memory. */
int coarsened_view_make(const struct dpro_model *model, bool coarsen, bool symmetry,
                        uint32_t most_ranks, struct coarsened_view *view);
void coarsened_view_fini(struct coarsened_view *view);
/* The strategy of the original that one of the view stands for. */
void coarsened_view_expand(const struct coarsened_view *view, const struct dpro_strategy *from,
                           struct dpro_strategy *to);

#endif
