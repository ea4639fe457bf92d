/* A format that tests add to the table of readers. */
#pragma once

#include "ingest/reader.h"

extern const struct reader toy_reader;
extern int n_toys_freed; /* payloads */
