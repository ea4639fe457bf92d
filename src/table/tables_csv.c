/* The tables of a job as CSV files (RFC 4180, UTF-8), and the list of them as Markdown. */

#include <dpro/table.h>

#include "base/utf8.h"
#include "base/writer.h"

/* ---- CSV ---- */

/* In quotes where it needs them; what is not UTF-8 becomes U+FFFD. */
static void put_text(struct writer *w, const char *text)
{
    size_t len = text ? strlen(text) : 0;
    bool quoted = len > 0 && strpbrk(text, ",\"\r\n") != NULL;
    writer_text(w, quoted ? "\"" : "");
    for (size_t i = 0, step; i < len; i += MAX(step, (size_t)1)) {
        step = utf8_char(text + i, len - i);
        writer_text(w, text[i] == '"' ? "\"" : "");
        writer_put(w, step ? text + i : "\xEF\xBF\xBD", step ? step : 3);
    }
    writer_text(w, quoted ? "\"" : "");
}

static void put_real(struct writer *w, double value)
{
    char text[32];
    if (writer_format_fixed(text, sizeof text, value, 9) >= 0)
        writer_text(w, text);
}

static int64_t read_int(enum dpro_column_type type, const void *value)
{
    switch (type) {
    case DPRO_COLUMN_UINT8:
        return *(const uint8_t *)value;
    case DPRO_COLUMN_BOOL:
        return *(const bool *)value;
    case DPRO_COLUMN_UINT16:
        return *(const uint16_t *)value;
    case DPRO_COLUMN_INT32:
        return *(const int32_t *)value;
    case DPRO_COLUMN_UINT32:
        return *(const uint32_t *)value;
    default:
        return *(const int64_t *)value;
    }
}

static void put_value(struct writer *w, const struct dpro_tables *tables,
                      const struct dpro_column *column, const void *value)
{
    int64_t number;
    switch (column->type) {
    case DPRO_COLUMN_TEXT:
        put_text(w, *(const char *const *)value);
        return;
    case DPRO_COLUMN_FLOAT:
        put_real(w, (double)*(const float *)value);
        return;
    case DPRO_COLUMN_DOUBLE:
        put_real(w, *(const double *)value);
        return;
    case DPRO_COLUMN_UINT64:
        writer_printf(w, "%llu", (unsigned long long)*(const uint64_t *)value);
        return;
    default:
        number = read_int(column->type, value);
    }
    if (column->is_name)
        put_text(w, dpro_tables_name(tables, (uint32_t)number));
    else if (column->word)
        put_text(w, column->word(number));
    else if (!column->table || number != UINT32_MAX)
        writer_int(w, number);
}

struct csv_file {
    const struct dpro_tables *tables;
    uint32_t table;
};

struct csv_column {
    struct dpro_column is;
    const char *at; /* NULL: no row has a value */
    size_t stride;
};

static void write_rows(struct writer *w, const struct csv_file *file, uint32_t rank,
                       const char *prefix, struct csv_column *columns)
{
    uint32_t n_columns = dpro_table(file->table).n_columns;
    uint64_t n_rows = dpro_tables_n_rows(file->tables, file->table, rank);
    for (uint32_t c = 0; c < n_columns; c++)
        columns[c].at = dpro_tables_values(file->tables, file->table, c, rank, &columns[c].stride);
    for (uint64_t row = 0; row < n_rows; row++) {
        writer_text(w, prefix);
        writer_int(w, (int64_t)row);
        for (uint32_t c = 0; c < n_columns; c++) {
            writer_put(w, ",", 1);
            if (columns[c].at)
                put_value(w, file->tables, &columns[c].is, columns[c].at + row * columns[c].stride);
        }
        writer_put(w, "\n", 1);
    }
}

static void write_csv(struct writer *w, const void *of)
{
    const struct csv_file *file = of;
    struct dpro_table table = dpro_table(file->table);
    SCRATCH struct csv_column *columns = mem_array(table.n_columns, sizeof *columns);
    writer_text(w, table.of_ranks ? "in_rank,id" : "id");
    for (uint32_t c = 0; c < table.n_columns; c++) {
        columns[c].is = dpro_table_column(file->table, c);
        writer_printf(w, ",%s", columns[c].is.name);
    }
    writer_text(w, "\n");
    if (!table.of_ranks)
        write_rows(w, file, 0, "", columns);
    for (uint32_t r = 0; table.of_ranks && r < dpro_tables_n_ranks(file->tables); r++) {
        char prefix[16];
        snprintf(prefix, sizeof prefix, "%u,", r);
        write_rows(w, file, r, prefix, columns);
    }
}

static int write_files(const struct dpro_tables *tables, const char *folder,
                       const struct dpro_sink *sink, struct dpro_error *err)
{
    SCRATCH_ARENA struct arena arena = {0};
    uint32_t n = dpro_n_tables();
    struct set_file *files = arena_array(&arena, n, sizeof *files);
    struct csv_file *of = arena_array(&arena, n, sizeof *of);
    for (uint32_t t = 0; t < n; t++) {
        of[t] = (struct csv_file){tables, t};
        files[t] = (struct set_file){arena_format(&arena, "%s.csv", dpro_table(t).name), false,
                                     write_csv, &of[t]};
    }
    int rc = file_set_write(folder, "tables", files, n, sink, err);
    return rc;
}

int dpro_tables_csv(const struct dpro_tables *tables, const char *folder,
                    const struct dpro_sink *sink, struct dpro_error *err)
{
    return WITHIN_SCOPE(dpro_error_nomem(err), write_files(tables, folder, sink, err));
}

/* ---- the list ---- */

static void write_list(struct writer *w, const void *unused)
{
    (void)unused;
    writer_text(w, "# Tables\n\n"
                   "`dpro export --csv DIR TRACE` writes them, a file each; `dpro export --list` "
                   "prints this page. "
                   "In Python,\n`dpro.tables(\"TRACE\")` has them, with columns that numpy sees "
                   "without a copy.\n\n"
                   "Each table begins with the column `id`, a row's number from 0; an `id of` a "
                   "table is that number "
                   "there, and empty\nwhere there is none. A table of a rank begins with "
                   "`in_rank`, the rank's id; ids "
                   "of such tables are those of the same\nrank. Columns of which no row has a "
                   "value are empty. A bool is "
                   "0 or 1.\n\n");
    for (uint32_t t = 0; t < dpro_n_tables(); t++) {
        struct dpro_table table = dpro_table(t);
        writer_printf(w,
                      "%s## %s\n\nA row%s: %s.\n\n| column | type | unit | meaning |\n| --- | --- "
                      "| --- | --- |\n",
                      t ? "\n" : "", table.name, table.of_ranks ? " of a rank" : "", table.meaning);
        for (uint32_t c = 0; c < table.n_columns; c++) {
            struct dpro_column column = dpro_table_column(t, c);
            writer_printf(w, "| `%s` | ", column.name);
            if (column.table)
                writer_printf(w, "id of `%s`", column.table);
            else
                writer_text(w, column.is_name || column.word ? "text"
                                                             : dpro_column_type_name(column.type));
            writer_printf(w, " | %s | %s |\n", column.unit, column.meaning);
        }
    }
}

int dpro_tables_list(FILE *out, struct dpro_error *err)
{
    return WITHIN_SCOPE(dpro_error_nomem(err), writer_write_file(out, write_list, NULL, err));
}
