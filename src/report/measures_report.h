/* The field's own measures of a job, and those of stragglers, for a terminal and as JSON. */
#pragma once

#include "base/writer.h"
#include "diagnose/measures.h"

void measures_write_text(struct writer *writer, const struct dpro_measures *measures);
/* "measures": {...}; of a stage timeline with those of stragglers. */
void measures_write_json(struct writer *writer, const struct dpro_measures *measures,
                         const struct dpro_trace *trace);

/* The measures of stragglers, of a trace that is a stage timeline; of another one nothing. As JSON
 * fields of the object "measures". */
void straggler_write_text(struct writer *writer, const struct dpro_trace *trace);
void straggler_write_json(struct writer *writer, const struct dpro_trace *trace);
