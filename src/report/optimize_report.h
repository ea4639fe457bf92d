/* report/optimize_report.h: what every form of a search's report says, worked out once. */
#ifndef REPORT_OPTIMIZE_REPORT_H
#define REPORT_OPTIMIZE_REPORT_H

#include <stdbool.h>

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
    uint32_t n_fusions;    /* of ops, that are planned */
    char fusions[320];     /* a warning about them */
    char misfit[224];      /* a warning; "": the model fits the measured iterations */
    enum dpro_which which; /* is planned: best, or the baseline when that does not help */
    struct warnings warnings;
    const struct recording *recording; /* of the models; NULL: there is none */
    bool is_named; /* the trace names parameters, so that a job can be given the plan */
    const struct dpro_strategy *planned;
    const struct dpro_model *model;       /* of what is planned */
    uint32_t n_servers, baseline_servers; /* parameter servers of the planned job, and as it ran */
};

void optimize_facts_fill(struct optimize_facts *facts, const struct dpro_optimize_report *report);

/* Files of a struct optimize_facts. */
void optimize_write_json(struct writer *writer, const void *facts);
void optimize_write_page(struct writer *writer, const void *facts);
/* The ops that the best strategy of a struct dpro_optimum fuses, a JSON object. */
void optimize_write_fusions(struct writer *writer, const void *optimum);

#endif
