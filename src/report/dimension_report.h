/* report/dimension_report.h: how the job is parallel. */
#pragma once

#include "report/facts.h"
#include "report/words.h"

/* "dp 2 x tp 4", or nothing. */
void dimensions_name_all(const struct dpro_graph *graph, struct words *words);
void dimensions_write_text(struct writer *writer, const struct report_facts *facts);
/* The members "dimensions" and "dimensions_note". */
void dimensions_write_json(struct writer *writer, const struct report_facts *facts);
