/* The table of formats. */
#include "ingest/readers.h"

#define ROW_OF(name) &name,
static const struct reader *const rows[] = {READERS(ROW_OF)};

const struct reader_table readers = {rows, sizeof rows / sizeof *rows};
