/* report/report_facts.h: all facts of a replay's report: sums, contradictions, the verdict. */
#ifndef REPORT_REPORT_FACTS_H
#define REPORT_REPORT_FACTS_H

#include <stdio.h>

#include "report/facts.h"

/* Borrows from `report` until facts_fini. */
int facts_init(struct report_facts *facts, const struct dpro_report *report,
               struct dpro_error *err);
void facts_fini(struct report_facts *facts);
/* Writes the facts of a report to a file by one function. */
int facts_write(const struct dpro_report *report, FILE *out,
                void (*write)(struct writer *writer, const void *facts), struct dpro_error *err);

#endif
