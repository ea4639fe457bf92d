/* The values of tables, row by row, as CSV and SQLite take them. */
#include "table/tables.h"

struct table_view table_view_open(struct arena *arena, const struct dpro_tables *tables,
                                  uint32_t table)
{
    struct table_view view = {.tables = tables, .is = dpro_table(table), .number = table};
    view.columns = arena_array(arena, view.is.n_columns, sizeof *view.columns);
    for (uint32_t c = 0; c < view.is.n_columns; c++)
        view.columns[c].is = dpro_table_column(table, c);
    table_view_turn(&view, 0);
    return view;
}

void table_view_turn(struct table_view *view, uint32_t rank_index)
{
    view->n_rows = dpro_tables_n_rows(view->tables, view->number, rank_index);
    for (uint32_t c = 0; c < view->is.n_columns; c++)
        view->columns[c].at =
            dpro_tables_values(view->tables, view->number, c, rank_index, &view->columns[c].stride);
}

uint32_t table_view_n_ranks(const struct table_view *view)
{
    return view->is.of_ranks ? dpro_tables_n_ranks(view->tables) : 1;
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

static struct cell text_cell(const char *text)
{
    return (struct cell){.kind = text ? CELL_TEXT : CELL_NONE, .text = text};
}

struct cell table_view_cell(const struct table_view *view, uint64_t row, uint32_t column)
{
    const struct view_column *of = &view->columns[column];
    const void *value = of->at + row * of->stride;
    if (!of->at)
        return (struct cell){.kind = CELL_NONE};
    switch (of->is.type) {
    case DPRO_COLUMN_TEXT:
        return text_cell(*(const char *const *)value);
    case DPRO_COLUMN_FLOAT:
        return (struct cell){.kind = CELL_REAL, .real = (double)*(const float *)value};
    case DPRO_COLUMN_DOUBLE:
        return (struct cell){.kind = CELL_REAL, .real = *(const double *)value};
    case DPRO_COLUMN_UINT64:
        return (struct cell){.kind = CELL_COUNT, .count = *(const uint64_t *)value};
    default:
        break;
    }
    int64_t number = read_int(of->is.type, value);
    if (of->is.is_name)
        return text_cell(dpro_tables_name(view->tables, (uint32_t)number));
    if (of->is.word)
        return text_cell(of->is.word(number));
    if (of->is.table && number == UINT32_MAX)
        return (struct cell){.kind = CELL_NONE};
    return (struct cell){.kind = CELL_INT, .integer = number};
}
