/* A stage timeline as ranks: each worker is one, with its ops as spans. */
#pragma once

#include "ingest/sources.h"
#include "ingest/stages/stage_table.h"

extern const struct payload_kind stage_payload; /* struct stage_table */

/* Makes the file's part and those behind it, one a worker, of a table in order, which the first
 * takes: *table is empty then. */
void stage_ranks_make(struct trace_part *part, struct stage_table *table);
/* Hook: of several files the first. */
void stage_ranks_choose(struct trace_build *build);
/* Hook: what waits for what, and the table, to the trace. */
void stage_ranks_join(struct trace_build *build);
