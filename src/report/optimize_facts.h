/* The facts of a search's reports, worked out once. */
#pragma once

#include <dpro/report.h>

#include "base/writer.h"
#include "report/warnings.h"
#include "report/words.h"

/* Modules that are compiled, or in 16 bits. */
struct computed_modules {
    uint32_t n;
    bool is_all; /* the whole model */
    const char *first, *last;
};

struct optimize_facts {
    const struct dpro_optimize_report *report;
    struct dpro_optimum_summary found;
    double speedup;         /* baseline over best */
    double less_pct;        /* how much less time the best takes than the baseline */
    double less_half_pct;   /* half of its 95 % interval, in points */
    double at_most_pct;     /* what no bucketing can win more than */
    double uncertainty_pct; /* of the best iteration relative to the baseline: half of a 95 %
                               interval */
    bool helps;
    bool is_undivided; /* a bucket's gradients were not recorded, so that it is moved as a whole */
    bool is_of_units;  /* of FSDP */
    bool is_of_pipeline;
    bool is_likely_other;    /* what 'dpro whatif' answers is another time than the expected one */
    bool is_for_job;         /* what was found can be given to the job as a plan */
    bool is_for_memory;      /* the job does not fit a budget: that decides, not the time */
    enum dpro_which planned; /* the best, or the baseline when that does not help */
    bool is_named;           /* the trace names parameters, so that a job can be given the plan */
    const char *cut_changes; /* what its micro-batches change beside rounding; "": nothing */
    char script[320];        /* how the script does it where no plan can; "": a plan can */
    bool computes;           /* the best strategy compiles modules, or computes them in 16 bits */
    char misfit[224];        /* a warning; "": the model fits the measured iterations */
    char unsure_peak[224];   /* a warning; "": it fits for sure */
    struct dpro_memory_budget budget;
    struct dpro_memory_peak peaks[2]; /* by enum dpro_which, as all pairs here */
    struct dpro_computing_search computing;
    struct computed_modules compiled[2], bf16[2];
    struct warnings warnings;
};

void optimize_facts_fill(struct optimize_facts *facts, const struct dpro_optimize_report *report);
/* Half of the 95 % interval of a strategy's time beside the baseline's, in percent of `ns`, where
 * its speedup has the standard error `uncertainty_pct`. */
double optimize_half_pct(const struct optimize_facts *facts, int64_t ns, double uncertainty_pct);
/* Modules that the strategy recomputes. */
uint32_t optimize_n_recomputed(const struct dpro_optimum *optimum, enum dpro_which which);

/* ---- optimize_memory.c ---- */

void optimize_memory_fill(struct optimize_facts *facts); /* its part of the facts */
/* A line. If a budget made the search change the job, or nothing fits, it is the verdict;
 * `time` is the text of what it costs. */
void optimize_memory_say(struct lines *lines, const struct optimize_facts *facts, const char *time);
/* What was tried; nothing where nothing had to be. */
void optimize_memory_table(struct writer *writer, const struct optimize_facts *facts);
/* The key "memory"; null where nothing is known. */
void optimize_memory_json(struct writer *writer, const struct optimize_facts *facts);
/* ", recomputing 4 modules, in 2 micro-batches"; nothing where it does neither. */
void optimize_memory_words(struct words *words, const struct dpro_optimum *optimum,
                           enum dpro_which which);

/* ---- optimize_computing.c ---- */

void optimize_computing_fill(struct optimize_facts *facts); /* its part of the facts */
/* A line: what is changed, what that brings and costs; or why nothing is. Nothing where
 * nothing was allowed. */
void optimize_computing_say(struct lines *lines, const struct optimize_facts *facts);
/* ", compiling the model, 4 modules in 16 bits"; nothing where all are as they are. */
void optimize_computing_words(struct words *words, const struct optimize_facts *facts,
                              enum dpro_which which);
/* A list: the best strategy's modules that are computed so. */
void optimize_computing_modules(struct writer *writer, const char *key,
                                const struct dpro_optimum *optimum, unsigned bit);
/* The key "computing"; null where nothing was allowed. */
void optimize_computing_json(struct writer *writer, const struct optimize_facts *facts);
/* A warning: what that does to numbers; "": nothing. */
const char *optimize_computing_warning(const struct optimize_facts *facts);
