/* Text for a terminal: paragraphs and tables of at most TABLE_COLUMNS columns. */
#pragma once

#include "base/writer.h"

#define TABLE_COLUMNS 100
#define TABLE_MOST    17 /* columns of a table */
#define NAME_COLUMNS  54 /* a cell holds that much of a name */

/* Width of valid UTF-8 on a terminal. */
int columns_of(const char *text);
/* One printable line of at most `columns` (>= 5); what is wider loses its middle, since names of
 * kernels differ at both ends. */
void columns_shorten(char *out, size_t size, const char *text, int columns);

struct table_cell {
    char text[NAME_COLUMNS * 4];
};

struct table {
    int n_cols;
    bool left[TABLE_MOST]; /* else right-aligned */
    ARRAY(struct table_cell) cells;
};

/* Several cells, texts as they are. */
#define table_cells(table, ...)                                                                    \
    table_put_cells(table, (const char *const[]){__VA_ARGS__},                                     \
                    sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))
void table_put_cells(struct table *table, const char *const *texts, size_t n);
void table_cell(struct table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
void table_fixed(struct table *table, double value, int digits, const char *unit);
/* Its width in columns, and each column's. */
int table_widths(const struct table *table, int widths[TABLE_MOST]);
/* The first row is the header. Words of the last column, where it is left-aligned, may take several
 * lines. Empties the table. */
void table_write(struct writer *writer, struct table *table);

/* Words of `text` in lines, all but the first indented. */
void table_wrapped(struct writer *writer, const char *first, int indent, const char *text);
/* The same of a formatted text. */
void table_paragraph(struct writer *writer, const char *first, int indent, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The same of a text that may hold any bytes. */
void table_escaped(struct writer *writer, const char *first, int indent, const char *text);
