/* The tables of a job, inside the library: where each has its rows. */
#pragma once

#include <dpro/dimensions.h>
#include <dpro/table.h>

#include "graph/graph.h"

#define EDGES(COLUMN, ROW)                                                                         \
    COLUMN(ROW, uint32_t, from, ID(ops), "the op that is waited for")                              \
    COLUMN(ROW, uint32_t, to, ID(ops), "the op that waits")                                        \
    COLUMN(ROW, bool, next, FLAG, "it waits in the following iteration")
struct edge_row {
    EDGES(COLUMN_FIELD, )
};

#define MESSAGES(COLUMN, ROW)                                                                      \
    COLUMN(ROW, uint32_t, send, ID(ops), "the SEND")                                               \
    COLUMN(ROW, uint32_t, receive, ID(ops), "the RECV")
struct message_row {
    MESSAGES(COLUMN_FIELD, )
};

#define ITERATIONS(COLUMN, ROW)                                                                    \
    COLUMN(ROW, int64_t, number, NUMBER, "the job's own number of the iteration")                  \
    COLUMN(                                                                                        \
        ROW, int64_t, measured_ns, NS,                                                             \
        "how long it took: between the latest boundaries of ranks that meet, else the mean over "  \
        "ranks")                                                                                   \
    COLUMN(ROW, bool, follows, FLAG, "it came right after another recorded iteration")             \
    COLUMN(ROW, bool, shown, FLAG, "reports show it: its critical path, its timeline")
struct iteration_row {
    ITERATIONS(COLUMN_FIELD, )
};

#define REPLAYED(COLUMN, ROW)                                                                      \
    COLUMN(ROW, int64_t, start_ns, NS,                                                             \
           "start in the replay of the shown iteration, from its beginning")                       \
    COLUMN(ROW, int64_t, end_ns, NS, "end there")
struct replayed_row {
    REPLAYED(COLUMN_FIELD, )
};

#define CLOCK_RANKS(COLUMN, ROW)                                                                   \
    COLUMN(ROW, uint32_t, clock, ID(clocks), "the clock")                                          \
    COLUMN(ROW, int, rank, NUMBER, "the number in the job of a rank that has this clock")
struct clock_rank_row {
    CLOCK_RANKS(COLUMN_FIELD, )
};

#define CLOCK_SEGMENTS(COLUMN, ROW)                                                                \
    COLUMN(ROW, uint32_t, clock, ID(clocks), "the clock")                                          \
    COLUMN(ROW, int64_t, start_ns, NS, "where the segment begins, on the clock")                   \
    COLUMN(ROW, int64_t, end_ns, NS, "where it ends; the first and the last segment reach on")     \
    COLUMN(ROW, int64_t, offset_ns, NS,                                                            \
           "what is added to the clock's time at the segment's start")                             \
    COLUMN(ROW, double, drift_ppm, NUMBER,                                                         \
           "by how many millionths of the time since then this grows")                             \
    COLUMN(ROW, int64_t, uncertainty_ns, NS, "bound of the error; -1: not known")
struct clock_segment_row {
    CLOCK_SEGMENTS(COLUMN_FIELD, )
};

/* Rows made of other forms of the graph and the replay, and the counts of rows that are lent. */
struct made_tables {
    const struct graph_rank *ranks;
    const struct graph_exchange_end *exchange_ends;
    const struct dpro_clock *clocks;
    const struct dpro_left_out *left_out;
    const struct dpro_critical_op *path;
    const int64_t *sample_dur_ns, *sample_gap_ns;
    struct edge_row *edges;
    struct message_row *messages;
    struct iteration_row *iterations;
    struct replayed_row *replayed;
    const struct dpro_rank_time *rank_times;
    struct clock_rank_row *clock_ranks;
    struct clock_segment_row *clock_segments;
    uint64_t n_ranks, n_exchange_ends, n_clocks, n_left_out, n_path, n_samples, n_edges, n_messages;
    uint64_t n_iterations, n_replayed, n_rank_times, n_clock_ranks, n_clock_segments;
};

struct dpro_tables {
    struct arena arena;
    const struct dpro_graph *graph;
    struct made_tables made;
};

/* A value as other programs take it. */
enum cell_kind { CELL_NONE, CELL_INT, CELL_COUNT, CELL_REAL, CELL_TEXT };
struct cell {
    enum cell_kind kind;
    union {
        int64_t integer;
        uint64_t count; /* of 64 bits without a sign */
        double real;
        const char *text; /* borrowed */
    };
};

/* The rows of a table, a rank's of those that each rank has. */
struct table_view {
    const struct dpro_tables *tables;
    struct dpro_table is;
    uint32_t number;
    uint64_t n_rows;
    struct view_column {
        struct dpro_column is;
        const char *at; /* NULL: no row has a value */
        size_t stride;
    } * columns;
};

/* Its columns are the arena's; it is at the first rank, of all of them. */
struct table_view table_view_open(struct arena *arena, const struct dpro_tables *tables,
                                  uint32_t table);
void table_view_turn(struct table_view *view, uint32_t rank_index);
struct cell table_view_cell(const struct table_view *view, uint64_t row, uint32_t column);
/* Ranks whose tables follow each other: 1 where all have one together. */
uint32_t table_view_n_ranks(const struct table_view *view);
