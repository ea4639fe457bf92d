/* A search among jobs that a what-if predicts: with other units of FSDP, or with other
 * micro-batches, another schedule of a pipeline, and recomputed modules. */
#pragma once

#include "cost/change/change_programs.h"
#include "optimize/result.h"
#include "optimize/search.h"

/* What is asked of the what-if. */
struct setting {
    bool *reshards;    /* by unit of FSDP: it frees its parameters after the forward pass */
    uint32_t prefetch; /* units that each gathers ahead; 0: as it ran */
    struct dpro_pipeline_run run; /* of a pipeline; zeroed: as it ran */
    uint32_t micro_batches;       /* one after the other, of others; 0: as it ran */
    bool *recomputed;             /* by module; NULL: none but those that were */
    uint8_t kind;                 /* the simpler, the less; AS_IT_RAN (finals.h) or more */
    int64_t ns;                   /* INT64_MAX: such a job can't be predicted */
    struct dpro_memory_peak peak;
    struct correction measured; /* by turns, that `ns` has */
    struct changed_job *asked;  /* NULL: as it ran, or not asked yet */
};

struct program_search {
    struct search search;
    const struct dpro_graph *graph;
    const struct dpro_model *model;
    struct dpro_optimum *optimum; /* its arena has all that settings point to */
    bool *gathered;               /* by unit: its parameters are */
    uint64_t limit_bytes;
    uint64_t least_bytes; /* the lowest peak of all that was tried */
    struct setting as_ran, best;
    struct timed_job before;    /* as it ran */
    double *averaged;           /* of its pipeline */
    struct kept *kept;          /* by unit: what keeping it changes */
    ARRAY(struct setting) pool; /* that fit, and may be chosen */
    struct {
        const char *name, *text;
        struct setting setting;
    } rows[16]; /* of the table */
    uint32_t n_rows;
};

/* ---- settings.c ---- */

/* A copy that can be changed, and has not been asked for. */
struct setting setting_like(struct program_search *search, const struct setting *from);
/* The job so changed; all copies of a setting have the same. */
struct changed_job {
    struct dpro_model model;
    struct program_change change;
    struct timed_job after;
    double speedup_std;         /* standard error */
    struct correction measured; /* by turns; ratio 0: not judged yet */
};
/* Made when it is first needed, of a setting that was answered. */
struct changed_job *setting_job(const struct program_search *search, const struct setting *setting);
/* Asks what the job takes and holds so. Fails where the what-if refuses it. */
int program_ask(struct program_search *search, struct setting *setting, struct dpro_error *err);
/* Whether it is answered. */
bool program_try(struct program_search *search, struct setting *setting);
bool program_fits(const struct program_search *search, const struct setting *setting);
/* By what was measured by turns. */
void program_correct(struct program_search *search, struct setting *setting);
/* Notes one that fits. */
void program_keep(struct program_search *search, const struct setting *setting);
/* A row of the table, if it was answered and there is room. */
void program_list(struct program_search *search, const char *name, const char *text,
                  const struct setting *setting);
/* How sure it is. */
const struct changed_job *program_judge(struct program_search *search,
                                        const struct setting *setting);

/* micro_batch_search.c */
void search_micro_batches(struct program_search *search);
