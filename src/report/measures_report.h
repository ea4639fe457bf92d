/* The field's own measures of a job, for a terminal and as JSON. */
#pragma once

#include "base/writer.h"
#include "diagnose/measures.h"

void measures_write_text(struct writer *writer, const struct dpro_measures *measures);
/* "measures": {...}; of a stage timeline with those of stragglers. */
void measures_write_json(struct writer *writer, const struct dpro_measures *measures,
                         const struct dpro_trace *trace);
