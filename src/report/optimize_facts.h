/* The facts of a search's reports, worked out once. */
#pragma once

#include <dpro/report.h>

#include "report/warnings.h"

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
    bool is_of_units; /* of FSDP */
    bool is_of_pipeline;
    bool is_likely_other;    /* what 'dpro whatif' answers is another time than the expected one */
    bool is_for_job;         /* what was found can be given to the job as a plan */
    bool is_for_memory;      /* the job does not fit a budget: that decides, not the time */
    enum dpro_which planned; /* the best, or the baseline when that does not help */
    bool is_named;           /* the trace names parameters, so that a job can be given the plan */
    uint32_t n_fusions;      /* of ops, that are planned */
    char fusions[320];       /* a warning about them */
    const char *cut_changes; /* what its micro-batches change beside rounding; "": nothing */
    char script[320];        /* how the script does it where no plan can; "": a plan can */
    bool computes;           /* the best strategy compiles modules, or computes them in 16 bits */
    char misfit[224];        /* a warning; "": the model fits the measured iterations */
    char unsure_peak[224];   /* a warning; "": it fits for sure */
    struct warnings warnings;
};

void optimize_facts_fill(struct optimize_facts *facts, const struct dpro_optimize_report *report);
/* Half of the 95 % interval of a strategy's time beside the baseline's, in percent of `ns`, where
 * its speedup has the standard error `uncertainty_pct`. */
double optimize_half_pct(const struct optimize_facts *facts, int64_t ns, double uncertainty_pct);
