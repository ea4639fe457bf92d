/* The columns of a table, each described once: type, name, what its numbers are, meaning. The
 * struct of a row, what is exported and doc/formats/tables.md are made from one list:
 *
 *     #define GRAPH_MEMBERS(COLUMN, ROW)                                                          \
 *         COLUMN(ROW, uint32_t, arrival, ID(ops), "the rank reaches the collective with it")      \
 *         COLUMN(ROW, int64_t, exchange_ns, NS, "...")
 *     struct graph_member {
 *         GRAPH_MEMBERS(COLUMN_FIELD, )
 *     };
 *     static const struct column members[] = {GRAPH_MEMBERS(COLUMN_OF, struct graph_member)};
 *
 * With COLUMN_ARRAY_FIELD the struct has a pointer to all values of a column instead.
 *
 * What values are: NUMBER, NS, BYTES, FLAG (0 or 1), NAME (a string id of the graph), STATIC
 * (text), ID(table) (a row of that table; UINT32_MAX: none), WORD(function) (an enum, with the
 * function that names its values). */
#pragma once

#include "base/base.h"

#include <dpro/table.h>

struct column {
    struct dpro_column is;
    size_t at,
        size; /* where the value, or the pointer to all of them, is in its struct; of a value */
};

struct column_place {
    size_t at, size;
};
#define COLUMN_PLACE_OF(row, c_type, column, what, text) {offsetof(row, column), sizeof(c_type)},

#define COLUMN_FIELD(row, c_type, name, what, meaning)       c_type name;
#define COLUMN_ARRAY_FIELD(row, c_type, name, what, meaning) c_type *name;
#define COLUMN_OF(row, c_type, column, what, text)                                                 \
    COLUMN_MAKE(row, c_type, column, text, COLUMN_##what),
#define COLUMN_MAKE(row, c_type, column, text, ...)                                                \
    {                                                                                              \
        {.name = #column, .meaning = text, .type = COLUMN_TYPE(c_type), __VA_ARGS__},              \
            offsetof(row, column), sizeof(c_type)                                                  \
    }
#define COLUMN_NUMBER      .unit = ""
#define COLUMN_NS          .unit = "ns"
#define COLUMN_BYTES       .unit = "bytes"
#define COLUMN_FLAG        .unit = ""
#define COLUMN_STATIC      .unit = ""
#define COLUMN_NAME        .unit = "", .is_name = 1
#define COLUMN_ID(to)      .unit = "", .table = #to
#define COLUMN_WORD(names) .unit = "", .word = names
#define COLUMN_TYPE(c_type)                                                                        \
    _Generic((c_type){0}, uint8_t                                                                  \
             : DPRO_COLUMN_UINT8, bool                                                             \
             : DPRO_COLUMN_BOOL, uint16_t                                                          \
             : DPRO_COLUMN_UINT16, int32_t                                                         \
             : DPRO_COLUMN_INT32, uint32_t                                                         \
             : DPRO_COLUMN_UINT32, int64_t                                                         \
             : DPRO_COLUMN_INT64, uint64_t                                                         \
             : DPRO_COLUMN_UINT64, float                                                           \
             : DPRO_COLUMN_FLOAT, double                                                           \
             : DPRO_COLUMN_DOUBLE, const char *                                                    \
             : DPRO_COLUMN_TEXT)
