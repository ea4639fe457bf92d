/* Changes of a what-if by the ops of the recorded graph: delays, modules, batches, units, shares,
 * pipelines. */
#pragma once

#include "cost/change/change.h"
#include "cost/change/change_pipeline.h"
#include "cost/change/change_units.h"
#include "cost/learn/uncertainty.h"

/* All of it is zero where nothing was asked for. */
struct program_change {
    struct unit_change units;  /* of FSDP */
    bool has_modules;          /* of FSDP: */
    struct dpro_model modules; /* what ranks compute and hold; its strategy is the changed one */
    struct dpro_model passes;  /* a micro-batch but the last, */
    uint32_t n_passes;         /* so many times */
    struct dpro_memory_peak memory[2]; /* before and after; not known: zeroed */
    struct pipeline_change pipeline;
    double computing_error_ns; /* standard error of what modules take in other ways */
};

/* `model` is a copy; it becomes that of the job with longer ops, other units, modules and batches.
 * Modules and batches are changed here only if groups of ranks communicate, as each micro-batch
 * does then. Fails with DPRO_EUSAGE where changes make no sense. */
void change_programs(const struct dpro_graph *graph, const struct dpro_changes *changes,
                     struct dpro_model *model, struct notes *notes, struct program_change *change);

/* How unsure the changed job is; `beside` has what else makes it so. */
struct uncertainty program_uncertainty(struct timed_job *before, struct timed_job *after,
                                       const struct program_change *change,
                                       struct change_beside beside);

/* ---- the result of a what-if ---- */

struct dpro_whatif {
    struct arena arena;
    struct dpro_model model; /* changed */
    struct program_change programs;
    struct dpro_whatif_answer answer;
    struct dpro_question *questions; /* the answer's */
    struct notes notes;
};
