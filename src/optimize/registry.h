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
    bool proposes, fuses; /* whether it has propose(), opfs_ns() */
    unsigned computes; /* bits of enum dpro_computing, one of which must be allowed for it; 0: none.
                          Without propose() it is computing_propose(). */
    struct map times;  /* answers of opfs_ns() */
    uint32_t n_known;  /* of a file: all runs of up to so many ops have been asked for */
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
/* Forgets the answers of opfs_ns(), for another model. */
void registry_forget(struct registry *registry);
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
struct child_question {
    const struct dpro_pass_view *view; /* NULL: only what the pass is */
    uint32_t least, most; /* 0: propose; else opfs_ns() of all runs of so many ops, by program,
                             number of ops and first op; negative: can't be fused */
};
struct child_answer {
    char name[64];
    int changes_numerics, proposes, fuses;
    char why[256]; /* why it was of no use; "": it was */
};
typedef ARRAY(int64_t) times_array;
struct child_answer child_run(const char *path, const struct child_question *question,
                              struct candidates *candidates, times_array *times);

/* ---- op_fusion.c ---- */

/* An op as a strategy runs it: one, or several fused. */
struct search_step {
    uint32_t first, n;
    int64_t work_ns;
    bool waits; /* for communication, so it is never fused with the one before it */
};
struct search_step step_at(const struct dpro_model *model, const struct dpro_strategy *strategy,
                           uint32_t program, uint32_t op);
bool fuse_may(const struct registry *registry);
/* Appends the edits that fuse n ops from `first` on in `program`, and the same ops in other ranks'
 * programs, which make the same gradients ready. Their durations are those of the pass `entry`, or
 * the least of any pass (NULL); *ns is that of `program`. Appends none if they can't be fused;
 * returns how many. */
uint32_t fuse_edits(const struct question *question, struct registered *entry, uint32_t program,
                    uint32_t first, uint32_t n, int64_t *ns);
/* Appends candidates: neighbouring ops are fused, and with them the buckets of their gradients;
 * fused ones are separated. */
void fuse_propose(const struct question *question, struct registered *entry);

/* ---- edit.c: changing a strategy by edits ---- */

#define EDIT_MOST_WORK_NS 1000000000000000 /* of a fused op: eleven days */

static inline bool edit_is_of_buckets(const struct dpro_edit *edit)
{
    return (unsigned)edit->kind <= DPRO_EDIT_COMPRESS; /* others are of ops and of modules */
}
/* Whether the job's stack can be given the result of the edit. */
bool edit_is_within(const struct model_capabilities *capabilities, const struct dpro_edit *edit);
/* Of an edit that fuses ops. NULL: it can be made; else what is wrong with it (static). */
const char *edit_check_fuse(const struct dpro_model *model, const struct dpro_strategy *strategy,
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
