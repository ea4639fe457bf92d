/* The measures of stragglers, of a trace that is a stage timeline; of another one nothing. */
#pragma once

#include "base/writer.h"

struct dpro_trace;

void straggler_write_text(struct writer *w, const struct dpro_trace *trace);
/* Fields of the object "measures". */
void straggler_write_json(struct writer *w, const struct dpro_trace *trace);
