/* Changing a strategy by edits. */
#pragma once

#include <dpro/pass.h>

#include "cost/program/model.h"

#define EDIT_MOST_WORK_NS 1000000000000000 /* of a fused op: eleven days */

bool edit_is_of_ops(const struct dpro_edit *edit);
bool edit_is_of_modules(const struct dpro_edit *edit); /* what is recomputed, compiled, in 16 bits;
                                                          micro-batches */
static inline bool edit_is_of_buckets(const struct dpro_edit *edit)
{
    return !edit_is_of_ops(edit) && !edit_is_of_modules(edit);
}
/* Whether the job's stack can be given the result of the edit. */
bool edit_is_within(const struct model_capabilities *capabilities, const struct dpro_edit *edit);
/* NULL: it can be made; else what is wrong with it (static). */
const char *edit_check(const struct dpro_model *model, const struct dpro_strategy *strategy,
                       const struct dpro_edit *edit);
/* NULL: done; else what is wrong with the edit (static), and the strategy is as it was. */
const char *edit_apply(const struct dpro_model *model, struct dpro_strategy *strategy,
                       const struct dpro_edit *edit);
/* Sets `to`, which has room for any strategy, to `from` after the edits. NULL: done; else what is
 * wrong with one of them. */
const char *edits_apply(const struct dpro_model *model, const struct dpro_strategy *from,
                        const struct dpro_edit *edits, uint32_t n, struct dpro_strategy *to);

/* Lists of edits, each of which a pass proposes to make together. */
struct candidate {
    uint32_t first, n; /* edits */
};
struct candidates {
    ARRAY(struct candidate) list;
    ARRAY(struct dpro_edit) edits;
};
void candidates_fini(struct candidates *candidates);
/* Makes a candidate of the edits from number `first` on, if there are any. */
void candidates_add(struct candidates *candidates, size_t first);
