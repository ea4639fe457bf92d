/* Passes (the paper's Graph Pass Registry, section 4.2), and what they propose. */
#pragma once

#include <dpro/optimize.h>

#include "cost/program/model.h"
#include "optimize/computing.h"
#include <dpro/pass.h>

/* ---- registry.c ---- */

struct registered {
    const struct dpro_pass *pass; /* NULL: of a file */
    const char *path;
    char *name;
    bool changes_numerics, rejected;
    unsigned computes; /* bits of enum dpro_computing, one of which must be allowed for it; 0: none.
                          Without propose() it is computing_propose(). */
};
struct registry {
    ARRAY(struct registered) passes;
    const struct dpro_optimize_options *options;
    struct dpro_edit *edits;          /* room for one candidate */
    unsigned compressions, computing; /* those that may be proposed now */
    bool plain;                       /* only tensor fusion */
};
enum {
    PASS_TENSOR_FUSION,
    PASS_TENSOR_PARTITION,
    PASS_PRIORITY,
    PASS_BUCKET_ORDER,
    PASS_COMPRESSION,
    PASS_OP_FUSION,
    PASS_MIXED_PRECISION,
    PASS_RECOMPUTATION,
    N_BUILT_IN_PASSES
};
extern const struct dpro_pass built_in_passes[N_BUILT_IN_PASSES]; /* passes.c */

/* Registers the built-in passes and those of the options. DPRO_EFORMAT when a file has no pass. */
void registry_init(struct registry *registry, const struct dpro_optimize_options *options);
void registry_fini(struct registry *registry);
/* Whether a pass is to be asked: it is not rejected, and does only what the user allowed. */
bool registry_uses(const struct registry *registry, const struct registered *entry);
/* Reports why a pass is left out from now on. */
void registry_reject(struct registry *registry, struct registered *entry, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* What passes are asked about, and where their candidates go. */
struct question {
    struct registry *registry;
    const struct dpro_model *model;
    const struct dpro_strategy *strategy;
    const struct dpro_pass_view *view;
    const struct module_gain *gains;
    struct candidates *candidates;
};

/* ---- pass_process.c ---- */

/* Appends all that the pass proposes; `room` holds DPRO_PASS_MAX_EDITS. False: a candidate had more
 * edits than that. */
bool pass_propose(const struct dpro_pass *pass, const struct dpro_pass_view *view,
                  struct candidates *candidates, struct dpro_edit *room);

/* A file's pass, in a child process. */
struct child_answer {
    char name[64];
    int changes_numerics;
    char why[256]; /* why it was of no use; "": it was */
};
/* Appends what it proposes to `candidates`; view NULL: says only what it is. */
struct child_answer child_run(const char *path, const struct dpro_pass_view *view,
                              struct candidates *candidates);

/* ---- edit.c: changing a strategy by edits ---- */

static inline bool edit_is_of_buckets(const struct dpro_edit *edit)
{
    return (unsigned)edit->kind <= DPRO_EDIT_COMPRESS; /* others are of modules */
}
/* Whether the job's stack can be given the result of the edit. */
bool edit_is_within(const struct model_capabilities *capabilities, const struct dpro_edit *edit);
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
