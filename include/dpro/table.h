/* The tables of a job: ops, edges, collectives, messages, iterations, memory, critical path, ...
 * Each column has a name, a type, a unit and a meaning (doc/formats/tables.md); its values lie in
 * an array, which is lent without a copy. */
#ifndef DPRO_TABLE_H
#define DPRO_TABLE_H

#include <stdio.h>

#include <dpro/graph.h>
#include <dpro/replay.h>

#ifdef __cplusplus
extern "C" {
#endif

enum dpro_column_type {
    DPRO_COLUMN_UINT8,
    DPRO_COLUMN_BOOL,
    DPRO_COLUMN_UINT16,
    DPRO_COLUMN_INT32,
    DPRO_COLUMN_UINT32,
    DPRO_COLUMN_INT64,
    DPRO_COLUMN_UINT64,
    DPRO_COLUMN_FLOAT,
    DPRO_COLUMN_DOUBLE,
    DPRO_COLUMN_TEXT, /* const char *; NULL: none */
    DPRO_N_COLUMN_TYPES
};
DPRO_API const char *dpro_column_type_name(enum dpro_column_type type); /* "uint32", ...; static */

/* Strings are static. */
struct dpro_column {
    const char *name, *unit, *meaning; /* unit: "ns", "bytes", "" */
    enum dpro_column_type type;        /* of the values as they are stored */
    const char *table; /* the table whose rows the values are, UINT32_MAX: none; NULL: they are no
                          ids */
    int is_name;       /* 1: the values are dpro_tables_name()s */
    const char *(*word)(int64_t value); /* of an enum: a value's name; NULL: it is none */
};
struct dpro_table {
    const char *name, *meaning;
    int of_ranks; /* 1: each rank has a table of its own, and ids are those of the same rank */
    uint32_t n_columns;
};
DPRO_API uint32_t dpro_n_tables(void);
DPRO_API struct dpro_table dpro_table(uint32_t table);
DPRO_API struct dpro_column dpro_table_column(uint32_t table, uint32_t column);
/* The list of all tables and columns, as Markdown. */
DPRO_API int dpro_tables_list(FILE *out, struct dpro_error *err);

/* The tables of a graph and of a replay of it, both borrowed until the destruction; *tables is the
 * caller's. */
struct dpro_tables;
DPRO_API int dpro_tables_create(const struct dpro_graph *graph, const struct dpro_replay *replay,
                                struct dpro_tables **tables, struct dpro_error *err);
DPRO_API void dpro_tables_destroy(struct dpro_tables *tables); /* NULL is fine */
DPRO_API uint32_t dpro_tables_n_ranks(const struct dpro_tables *tables);
/* Rows of a table; rank_index is looked at where it is `of_ranks`. */
DPRO_API uint64_t dpro_tables_n_rows(const struct dpro_tables *tables, uint32_t table,
                                     uint32_t rank_index);
/* The first value of a column; the next one is *stride bytes behind it. NULL: no row has a value.
 */
DPRO_API const void *dpro_tables_values(const struct dpro_tables *tables, uint32_t table,
                                        uint32_t column, uint32_t rank_index, size_t *stride);
DPRO_API const char *dpro_tables_name(const struct dpro_tables *tables, uint32_t id); /* borrowed */
/* Writes a file NAME.csv for each table into `folder`, made when missing: all or none. */
DPRO_API int dpro_tables_csv(const struct dpro_tables *tables, const char *folder,
                             const struct dpro_sink *sink, struct dpro_error *err);
/* Writes all tables into a SQLite database, and what their columns mean as the table `columns`;
 * what is there is replaced. */
DPRO_API int dpro_tables_sqlite(const struct dpro_tables *tables, const char *path,
                                struct dpro_error *err);

/* The global data-flow graph for other programs; everything is borrowed. */
struct dpro_graphml {
    const struct dpro_graph *graph;
    int shown_iteration;     /* 1: times of the iteration that is shown; 0: means over all */
    int first_rank, n_ranks; /* only these ranks' ops, and the edges between them; 0: all */
};
/* As GraphML, gzip-compressed where the path ends in .gz. */
DPRO_API int dpro_graphml_write(const struct dpro_graphml *asked, const char *path,
                                struct dpro_error *err);
/* As Chakra execution traces, job.RANK.et each, with comm_group.json, into `folder`, which is made
 * when missing. DPRO_EUSAGE for jobs with parameter servers. */
DPRO_API int dpro_chakra_write(const struct dpro_graph *graph, const struct dpro_replay *replay,
                               const char *folder, const struct dpro_sink *sink,
                               struct dpro_error *err);

#ifdef __cplusplus
}
#endif
#endif
