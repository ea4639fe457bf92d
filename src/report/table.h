/* report/table.h: text for a terminal: paragraphs and tables of at most TABLE_COLUMNS columns. */
#ifndef REPORT_TABLE_H
#define REPORT_TABLE_H

#include <stdbool.h>

#include "base/array.h"
#include "base/writer.h"

#define TABLE_COLUMNS 100
#define TABLE_MOST    12 /* columns of a table */
#define NAME_COLUMNS  54 /* a cell holds that much of a name */

struct table_cell {
    char text[NAME_COLUMNS * 4];
};

struct table {
    int n_cols;
    bool left[TABLE_MOST]; /* else right-aligned */
    ARRAY(struct table_cell) cells;
    bool failed;
};

void table_cell(struct table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
void table_fixed(struct table *table, double value, int digits, const char *unit);
/* Its width in columns, and each column's. */
int table_widths(const struct table *table, int widths[TABLE_MOST]);
/* The first row is the header. Empties the table. */
void table_write(struct writer *writer, struct table *table);

/* Words of `text` in lines, all but the first indented. */
void table_wrapped(struct writer *writer, const char *first, int indent, const char *text);
/* Of a list of warnings, escaped; the first one comes with the heading. */
void table_warning(struct writer *writer, size_t index, const char *text);

#endif
