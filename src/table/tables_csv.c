/* The tables of a job as CSV files (RFC 4180, UTF-8), and the list of them as Markdown. */

#include "table/tables.h"

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

struct csv_file {
    const struct dpro_tables *tables;
    uint32_t table;
};

static void put_cell(struct writer *w, struct cell cell)
{
    switch (cell.kind) {
    case CELL_INT:
        writer_int(w, cell.integer);
        return;
    case CELL_COUNT:
        writer_printf(w, "%llu", (unsigned long long)cell.count);
        return;
    case CELL_REAL:
        put_real(w, cell.real);
        return;
    case CELL_TEXT:
        put_text(w, cell.text);
        return;
    case CELL_NONE:
        return;
    }
}

static void write_csv(struct writer *w, const void *of)
{
    SCRATCH_ARENA struct arena arena = {0};
    const struct csv_file *file = of;
    struct table_view view = table_view_open(&arena, file->tables, file->table);
    writer_text(w, view.is.of_ranks ? "in_rank,id" : "id");
    for (uint32_t c = 0; c < view.is.n_columns; c++)
        writer_printf(w, ",%s", view.columns[c].is.name);
    writer_text(w, "\n");
    for (uint32_t r = 0; r < table_view_n_ranks(&view); r++) {
        table_view_turn(&view, r);
        for (uint64_t row = 0; row < view.n_rows; row++) {
            if (view.is.of_ranks)
                writer_printf(w, "%u,", r);
            writer_int(w, (int64_t)row);
            for (uint32_t c = 0; c < view.is.n_columns; c++) {
                writer_put(w, ",", 1);
                put_cell(w, table_view_cell(&view, row, c));
            }
            writer_put(w, "\n", 1);
        }
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
                   "`dpro export --csv DIR TRACE` writes them, a file each, `--sqlite F` as a "
                   "database; `dpro export --list` prints this\npage. In Python, "
                   "`dpro.tables(\"TRACE\")` has them, with columns that numpy sees without a "
                   "copy.\n\n"
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
