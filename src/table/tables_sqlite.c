/* The tables of a job as a SQLite database: a table each, ids as primary keys, indices on the
 * columns that lead to rows of other tables. */
#include "table/tables.h"

#include <errno.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

struct database {
    sqlite3 *db;
    int rc; /* the first that failed; SQLITE_OK: none */
};

static void run_sql(struct database *to, const char *sql)
{
    if (to->rc == SQLITE_OK)
        to->rc = sqlite3_exec(to->db, sql, NULL, NULL, NULL);
}

static const char *sql_type(const struct dpro_column *column)
{
    if (column->type == DPRO_COLUMN_TEXT || column->is_name || column->word)
        return "TEXT";
    return column->type == DPRO_COLUMN_FLOAT || column->type == DPRO_COLUMN_DOUBLE ? "REAL"
                                                                                   : "INTEGER";
}

/* "from" and others are words of SQL. */
static const char *sql_create(struct arena *arena, const struct table_view *view)
{
    const char *sql =
        arena_format(arena, "CREATE TABLE \"%s\"(%s", view->is.name,
                     view->is.of_ranks ? "in_rank INTEGER, id INTEGER" : "id INTEGER PRIMARY KEY");
    for (uint32_t c = 0; c < view->is.n_columns; c++)
        sql = arena_format(arena, "%s, \"%s\" %s", sql, view->columns[c].is.name,
                           sql_type(&view->columns[c].is));
    return arena_format(arena, "%s%s", sql,
                        view->is.of_ranks ? ", PRIMARY KEY(in_rank, id)) WITHOUT ROWID" : ")");
}

static const char *sql_insert(struct arena *arena, const struct table_view *view)
{
    const char *sql = arena_format(arena, "INSERT INTO \"%s\" VALUES(?", view->is.name);
    for (uint32_t c = view->is.of_ranks ? 0 : 1; c < view->is.n_columns + 1; c++)
        sql = arena_format(arena, "%s, ?", sql);
    return arena_format(arena, "%s)", sql);
}

static int bind_cell(sqlite3_stmt *insert, int at, struct cell cell)
{
    switch (cell.kind) {
    case CELL_INT:
        return sqlite3_bind_int64(insert, at, cell.integer);
    case CELL_COUNT: /* there are none of 64 bits without a sign: the same bits */
        return sqlite3_bind_int64(insert, at, (int64_t)cell.count);
    case CELL_REAL:
        return sqlite3_bind_double(insert, at, cell.real);
    case CELL_TEXT:
        return sqlite3_bind_text(insert, at, cell.text, -1, SQLITE_STATIC);
    default:
        return sqlite3_bind_null(insert, at);
    }
}

static void insert_rows(struct database *to, struct table_view *view, sqlite3_stmt *insert)
{
    for (uint32_t r = 0; r < table_view_n_ranks(view); r++) {
        table_view_turn(view, r);
        for (uint64_t row = 0; row < view->n_rows && to->rc == SQLITE_OK; row++) {
            int at = 1;
            if (view->is.of_ranks)
                sqlite3_bind_int64(insert, at++, r);
            sqlite3_bind_int64(insert, at++, (int64_t)row);
            for (uint32_t c = 0; c < view->is.n_columns && to->rc == SQLITE_OK; c++)
                to->rc = bind_cell(insert, at++, table_view_cell(view, row, c));
            if (to->rc == SQLITE_OK && sqlite3_step(insert) != SQLITE_DONE)
                to->rc = sqlite3_errcode(to->db);
            sqlite3_reset(insert);
        }
    }
}

static void write_table(struct database *to, const struct dpro_tables *tables, uint32_t table)
{
    SCRATCH_ARENA struct arena arena = {0};
    struct table_view view = table_view_open(&arena, tables, table);
    sqlite3_stmt *insert = NULL;
    run_sql(to, sql_create(&arena, &view));
    if (to->rc == SQLITE_OK)
        to->rc = sqlite3_prepare_v2(to->db, sql_insert(&arena, &view), -1, &insert, NULL);
    if (to->rc == SQLITE_OK)
        insert_rows(to, &view, insert);
    sqlite3_finalize(insert);
    for (uint32_t c = 0; c < view.is.n_columns; c++)
        if (view.columns[c].is.table && !view.is.of_ranks)
            run_sql(to,
                    arena_format(&arena, "CREATE INDEX \"%s_%s\" ON \"%s\"(\"%s\")", view.is.name,
                                 view.columns[c].is.name, view.is.name, view.columns[c].is.name));
}

/* What each column means, so that the file explains itself. */
static void write_meanings(struct database *to)
{
    sqlite3_stmt *insert = NULL;
    run_sql(to, "CREATE TABLE columns(\"table\" TEXT, \"column\" TEXT, unit TEXT, leads_to TEXT, "
                "meaning TEXT, PRIMARY KEY(\"table\", \"column\")) WITHOUT ROWID");
    if (to->rc == SQLITE_OK)
        to->rc = sqlite3_prepare_v2(to->db, "INSERT INTO columns VALUES(?, ?, ?, ?, ?)", -1,
                                    &insert, NULL);
    for (uint32_t t = 0; t < dpro_n_tables() && to->rc == SQLITE_OK; t++)
        for (uint32_t c = 0; c < dpro_table(t).n_columns && to->rc == SQLITE_OK; c++) {
            struct dpro_column is = dpro_table_column(t, c);
            const char *texts[] = {dpro_table(t).name, is.name, is.unit, is.table, is.meaning};
            for (int i = 0; i < 5; i++)
                sqlite3_bind_text(insert, i + 1, texts[i], -1, SQLITE_STATIC);
            if (sqlite3_step(insert) != SQLITE_DONE)
                to->rc = sqlite3_errcode(to->db);
            sqlite3_reset(insert);
        }
    sqlite3_finalize(insert);
}

static int fill_database(struct database *to, const struct dpro_tables *tables)
{
    run_sql(to, "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; BEGIN");
    for (uint32_t t = 0; t < dpro_n_tables(); t++)
        write_table(to, tables, t);
    write_meanings(to);
    run_sql(to, "COMMIT");
    return to->rc == SQLITE_OK ? 0 : DPRO_EIO;
}

/* The reason, static or the database's. */
static const char *why_not(struct database *of)
{
    int code = of->db ? sqlite3_system_errno(of->db) : ENOMEM;
    return code ? strerror(code) : sqlite3_errmsg(of->db);
}

/* Beside its place first, so that there is never half of one. */
static __attribute__((noinline)) int write_database(const struct dpro_tables *tables,
                                                    const char *path, const char *beside,
                                                    struct dpro_error *err)
{
    struct database to = {.db = NULL};
    struct stat there;
    if (stat(path, &there) == 0 && !S_ISREG(there.st_mode))
        return dpro_error_set(err, DPRO_EIO,
                              "%s: is no file that a database could replace; name "
                              "another place",
                              path);
    to.rc = sqlite3_open(beside, &to.db);
    int rc = to.rc ? DPRO_EIO : WITHIN_SCOPE(DPRO_ENOMEM, fill_database(&to, tables));
    if (rc == DPRO_EIO)
        dpro_error_set(err, rc, "%s: can't be written: %s; name another place", path, why_not(&to));
    for (sqlite3_stmt *left; to.db && (left = sqlite3_next_stmt(to.db, NULL));)
        sqlite3_finalize(left); /* memory ran out within */
    sqlite3_close(to.db);
    if (rc == 0 && rename(beside, path) < 0)
        rc = dpro_error_set(err, DPRO_EIO, "%s: can't be written: %s; name another place", path,
                            strerror(errno));
    if (rc < 0)
        unlink(beside);
    memory_check();
    return rc;
}

static __attribute__((noinline)) int write_sqlite(const struct dpro_tables *tables,
                                                  const char *path, struct dpro_error *err)
{
    SCRATCH_ARENA struct arena arena = {0};
    return write_database(tables, path, arena_format(&arena, "%s.dpro-%ld", path, (long)getpid()),
                          err);
}

int dpro_tables_sqlite(const struct dpro_tables *tables, const char *path, struct dpro_error *err)
{
    return WITHIN_SCOPE(dpro_error_nomem(err), write_sqlite(tables, path, err));
}
