/* Which format a file is of, by its head. */
#pragma once

#include "ingest/readers.h"

/* The reader of a document, from its first bytes; NULL: none of the table's, and *other is what it
 * is instead, static text; NULL where that is not known, either. */
const struct reader *recognise(const struct reader_table *table, struct json *js,
                               const char **other);
