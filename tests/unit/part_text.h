/* What a reader makes of a text in memory. */
#pragma once

#include "ingest/part.h"

struct reader;

/* How the last JSON ended. */
extern enum json_fail last_fail;

/* Reads with a buffer of `chunk` bytes (0: the usual). What the part holds is kept (case.h). */
struct trace_part part_of_text(const struct reader *reader, const char *text, size_t chunk);
void keep_part(const struct trace_part *part);
