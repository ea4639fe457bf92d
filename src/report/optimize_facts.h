/* The facts of a search's reports, worked out once. */
#pragma once

#include <dpro/report.h>

#include "base/writer.h"
#include "optimize/result.h"
#include "report/warnings.h"
#include "report/words.h"

struct optimize_facts {
    const struct dpro_optimize_report *report;
    const struct dpro_optimum *o; /* its */
    double speedup;               /* baseline over best */
    double less_pct;              /* how much less time the best takes than the baseline */
    double less_half_pct;         /* half of its 95 % interval, in points */
    double uncertainty_pct;       /* of the best iteration relative to the baseline: half of a 95 %
                                     interval */
    bool helps;
    bool communicates; /* gradients */
    bool is_undivided; /* a bucket's gradients were not recorded, so that it is moved as a whole */
    bool is_of_units;  /* of FSDP */
    bool is_of_pipeline;
    bool is_likely_other;    /* what 'dpro whatif' answers is another time than the expected one */
    bool is_for_job;         /* what was found can be given to the job as a plan */
    enum dpro_which planned; /* the best, or the baseline when that does not help */
    bool is_named;           /* the trace names parameters, so that a job can be given the plan */
    bool computes;           /* the best strategy compiles modules, or computes them in 16 bits */
    const char *cut_changes; /* what its micro-batches change beside rounding; "": nothing */
    char script[320];        /* how the script does it where no plan can; "": a plan can */
    char misfit[224];        /* a warning; "": the model fits the measured iterations */
    char unsure_peak[224];   /* a warning; "": it fits for sure */
    struct dpro_memory_budget budget;
    struct warnings warnings;
};

void optimize_facts_fill(struct optimize_facts *facts, const struct dpro_optimize_report *report);
/* Half of the 95 % interval of a strategy's time beside the baseline's, in percent of `ns`, where
 * its speedup has the standard error `uncertainty_pct`. */
double optimize_half_pct(const struct optimize_facts *facts, int64_t ns, double uncertainty_pct);
/* Whether the row is of any use: of buckets that are moved as a whole most are not. */
bool optimize_is_row(const struct optimize_facts *facts, const struct dpro_baseline *baseline);

/* Modules of a strategy that are compiled, or in 16 bits. */
struct computed_modules {
    uint32_t n;
    bool is_all; /* the whole model */
    const char *first, *last;
};
struct computed_modules optimize_computed(const struct dpro_optimum *optimum, enum dpro_which which,
                                          unsigned bit);
/* Modules that the strategy recomputes; micro-batches of a step. */
uint32_t optimize_n_recomputed(const struct dpro_optimum *optimum, enum dpro_which which);
uint32_t optimize_n_parts(const struct dpro_optimum *optimum, enum dpro_which which);

/* ---- optimize_text.c ---- */

/* "2 buckets (19.1, 10.4 MB), recomputing 4 modules, in 2 micro-batches"; returns out. */
#define OPTIMIZE_TEXT         200
#define STRATEGY_OF(f, which) optimize_strategy_text(f, (char[OPTIMIZE_TEXT]){""}, which)
const char *optimize_strategy_text(const struct optimize_facts *facts, char out[OPTIMIZE_TEXT],
                                   enum dpro_which which);
/* How the job is started. */
struct launcher {
    const char *program, *script, *where;
};
struct launcher optimize_launcher(const struct optimize_facts *facts);
void optimize_say_verdict(struct lines *lines, const struct optimize_facts *facts);
