/* The tables of a job. Arrays of the graph or the replay are lent as they lie; other forms, such as
 * edges in compressed rows, are made into rows once. */
#include "table/tables.h"

#include "base/writer.h"

/* ---- what there is ---- */

static const char *device_kind_word(int64_t kind)
{
    static const char *const words[] = {[DPRO_DEVICE_CPU_THREAD] = "CPU thread",
                                        [DPRO_DEVICE_GPU_STREAM] = "GPU stream",
                                        [DPRO_DEVICE_COMM_THREAD] = "communication thread",
                                        [DPRO_DEVICE_LINK_TX] = "link, sending",
                                        [DPRO_DEVICE_LINK_RX] = "link, receiving"};
    return words[kind];
}

static const char *op_kind_word(int64_t kind)
{
    return dpro_op_kind_name((enum dpro_op_kind)kind);
}

static const char *collective_word(int64_t kind)
{
    return dpro_collective_kind_name((enum dpro_collective_kind)kind);
}

static const char *parallelism_word(int64_t parallelism)
{
    return dpro_parallelism_name((enum dpro_parallelism)parallelism);
}

static const char *category_word(int64_t category)
{
    return dpro_memory_category_name((enum dpro_memory_category)category);
}

static const char *type_rule_word(int64_t rule)
{
    static const char *const words[] = {[TYPE_PROMOTED] = "promoted",
                                        [TYPE_LOWER] = "16 bits",
                                        [TYPE_FULL] = "32 bits",
                                        [TYPE_WIDENED] = "makes 32 bits",
                                        [TYPE_FIRST] = "as first input",
                                        [TYPE_STATISTICS] = "statistics",
                                        [TYPE_MATH] = "32 bits within",
                                        [TYPE_CONVOLUTION] = "convolution",
                                        [TYPE_CAST] = "cast",
                                        [TYPE_FUNCTION] = "backward function",
                                        [TYPE_PARAMETER] = "parameter",
                                        [TYPE_SUM] = "sum"};
    return words[rule];
}

#define OP_TIMES(COLUMN, ROW)                                                                      \
    COLUMN(ROW, int64_t, sample_dur_ns, NS, "duration of the op in the iteration")                 \
    COLUMN(ROW, int64_t, sample_gap_ns, NS, "time from ready to start there that no edge explains")
#define LEFT_OUT(COLUMN, ROW)                                                                      \
    COLUMN(ROW, int64_t, number, NUMBER, "the job's own number of the iteration")                  \
    COLUMN(ROW, const char *, reason, STATIC, "why nothing is learnt from it")
#define CRITICAL_PATH(COLUMN, ROW)                                                                 \
    COLUMN(ROW, uint32_t, op, ID(ops), "the op")                                                   \
    COLUMN(ROW, int64_t, start_ns, NS, "its start, from the beginning of the replayed iteration")  \
    COLUMN(ROW, int64_t, dur_ns, NS, "its time on the path, without the gap before it")            \
    COLUMN(ROW, int64_t, gap_ns, NS, "the gap before it, on the path")
#define RANK_TIMES(COLUMN, ROW)                                                                    \
    COLUMN(ROW, int, rank, NUMBER, "the rank's number in the job")                                 \
    COLUMN(ROW, int64_t, iteration_ns, NS,                                                         \
           "its iteration, mean over the replayed ones; the parts that follow, but for "           \
           "communication_ns, add up to it")                                                       \
    COLUMN(ROW, int64_t, forward_ns, NS, "computing the forward pass")                             \
    COLUMN(ROW, int64_t, backward_ns, NS, "computing the backward pass")                           \
    COLUMN(ROW, int64_t, update_ns, NS, "computing the update")                                    \
    COLUMN(ROW, int64_t, input_ns, NS, "loading data")                                             \
    COLUMN(ROW, int64_t, exposed_communication_ns, NS, "transferring while nothing is computed")   \
    COLUMN(ROW, int64_t, wait_for_peers_ns, NS,                                                    \
           "in a collective before its last rank arrived, with nothing computed")                  \
    COLUMN(ROW, int64_t, idle_ns, NS, "none of these")                                             \
    COLUMN(ROW, int64_t, communication_ns, NS, "all transfers, hidden or not")                     \
    COLUMN(ROW, int, waited_most_for, NUMBER,                                                      \
           "the number of the rank that arrived last in most of that waiting; -1: none")
#define CLOCKS(COLUMN, ROW)                                                                        \
    COLUMN(ROW, const char *, host, STATIC, "its host")                                            \
    COLUMN(ROW, const char *, method, STATIC,                                                      \
           "what tied it to the reference: transport, nccl, collectives; none: it is used as "     \
           "recorded")

/* Where a table's rows and their number lie: in the graph, in a rank's memory, or in struct
 * made_tables. */
enum table_place { IN_GRAPH, IN_MEMORY, IN_MADE };

struct table_rows {
    struct dpro_table is;
    const struct column *columns;
    enum table_place place;
    size_t at, count_at, row_size; /* row_size 0: a column is an array there */
    bool is_wide;                  /* the number has 64 bits */
};

/* TABLE(list of columns, row, in, its struct, member, number, what one row is) */
#define JOB_TABLES(TABLE, ARRAYS)                                                                  \
    ARRAYS(GRAPH_OPS, ops, IN_GRAPH, struct dpro_graph, n_ops,                                     \
           "an op of the global data-flow graph, rank by rank")                                    \
    TABLE(EDGES, edges, IN_MADE, struct made_tables, edges, "an op waits for another one")         \
    TABLE(GRAPH_RANKS, ranks, IN_MADE, struct made_tables, ranks,                                  \
          "a rank of the trace; then the parameter servers")                                       \
    TABLE(GRAPH_DEVICES, devices, IN_GRAPH, struct dpro_graph, devices,                            \
          "what runs one op at a time: a CPU thread, a GPU stream, a direction of a link")         \
    TABLE(GRAPH_COLLECTIVES, collectives, IN_GRAPH, struct dpro_graph, collectives,                \
          "a communication over several ranks")                                                    \
    TABLE(GRAPH_MEMBERS, members, IN_GRAPH, struct dpro_graph, members,                            \
          "a rank's part in a collective")                                                         \
    TABLE(MESSAGES, messages, IN_MADE, struct made_tables, messages,                               \
          "a message between two ranks, as the transport logs show it")                            \
    TABLE(GRAPH_DIMENSIONS, dimensions, IN_GRAPH, struct dpro_graph, dimensions,                   \
          "a dimension of parallelism")                                                            \
    TABLE(GRAPH_TENSORS, tensors, IN_GRAPH, struct dpro_graph, tensors,                            \
          "a rank's gradient, and the collective that it travels with")                            \
    TABLE(GRAPH_EXCHANGES, exchanges, IN_GRAPH, struct dpro_graph, exchanges,                      \
          "a tensor that ranks push to parameter servers and pull from them")                      \
    TABLE(GRAPH_EXCHANGE_ENDS, exchange_ends, IN_MADE, struct made_tables, exchange_ends,          \
          "what a rank does in an exchange")                                                       \
    TABLE(ITERATIONS, iterations, IN_MADE, struct made_tables, iterations, "a measured iteration") \
    TABLE(LEFT_OUT, left_out, IN_MADE, struct made_tables, left_out,                               \
          "a recorded iteration that nothing is learnt from")                                      \
    ARRAYS(OP_TIMES, op_times, IN_MADE, struct made_tables, n_samples,                             \
           "an op in an iteration: id = iteration x number of ops + op")                           \
    TABLE(GRAPH_SLOWER, slower, IN_GRAPH, struct dpro_graph, grown,                                \
          "what took longer than usual on a rank, slow iterations or not")                         \
    TABLE(REPLAYED, replayed, IN_MADE, struct made_tables, replayed,                               \
          "an op as it is replayed; ids are those of ops")                                         \
    TABLE(RANK_TIMES, rank_times, IN_MADE, struct made_tables, rank_times,                         \
          "where a rank's iteration goes")                                                         \
    TABLE(CRITICAL_PATH, critical_path, IN_MADE, struct made_tables, path,                         \
          "an op on the critical path, first op first")                                            \
    TABLE(CLOCKS, clocks, IN_MADE, struct made_tables, clocks,                                     \
          "a host's clock; the reference is the first")                                            \
    TABLE(CLOCK_RANKS, clock_ranks, IN_MADE, struct made_tables, clock_ranks,                      \
          "a rank has a clock")                                                                    \
    TABLE(CLOCK_SEGMENTS, clock_segments, IN_MADE, struct made_tables, clock_segments,             \
          "a part of a clock's time: aligned = local + offset_ns + drift_ppm / 1e6 * (local - "    \
          "start_ns)")                                                                             \
    TABLE(MEMORY_BLOCKS, memory_blocks, IN_MEMORY, struct graph_memory, blocks,                    \
          "a block of memory that the rank's device holds in the iteration")                       \
    TABLE(MEMORY_MOMENTS, memory_moments, IN_MEMORY, struct graph_memory, moments,                 \
          "a block is taken or given back, in the order of the iteration")                         \
    TABLE(MEMORY_USES, memory_uses, IN_MEMORY, struct graph_memory, uses,                          \
          "a call of a module uses a block in a pass")                                             \
    TABLE(MEMORY_CALLS, memory_calls, IN_MEMORY, struct graph_memory, calls, "a call of a module") \
    TABLE(MEMORY_OPS, memory_ops, IN_MEMORY, struct graph_memory, typed_ops,                       \
          "an op of the execution trace, by its start, outer ones first")                          \
    TABLE(MEMORY_OPERANDS, memory_operands, IN_MEMORY, struct graph_memory, operands,              \
          "a tensor that such an op reads or makes")

#define ROW_OF(in, member) __typeof__(*((in *)NULL)->member)
#define COLUMNS_OF_ROWS(list, table, place, in, member, text)                                      \
    static const struct column table##_columns[] = {list(COLUMN_OF, ROW_OF(in, member))};
#define COLUMNS_OF_ARRAYS(list, table, place, in, n, text)                                         \
    static const struct column table##_columns[] = {list(COLUMN_OF, in)};
#define N_COLUMNS(table) (sizeof table##_columns / sizeof *table##_columns)
#define TABLE_OF_ROWS(list, table, place, in, member, text)                                        \
    {{#table, text, (place) == IN_MEMORY, N_COLUMNS(table)},                                       \
     table##_columns,                                                                              \
     place,                                                                                        \
     offsetof(in, member),                                                                         \
     offsetof(in, n_##member),                                                                     \
     sizeof(ROW_OF(in, member)),                                                                   \
     sizeof((in *)NULL)->n_##member == sizeof(uint64_t)},
#define TABLE_OF_ARRAYS(list, table, place, in, n, text)                                           \
    {{#table, text, 0, N_COLUMNS(table)},      table##_columns, place, 0, offsetof(in, n), 0,      \
     sizeof((in *)NULL)->n == sizeof(uint64_t)},

JOB_TABLES(COLUMNS_OF_ROWS, COLUMNS_OF_ARRAYS)
static const struct table_rows job_tables[] = {JOB_TABLES(TABLE_OF_ROWS, TABLE_OF_ARRAYS)};
enum { N_TABLES = sizeof job_tables / sizeof *job_tables };

uint32_t dpro_n_tables(void)
{
    return N_TABLES;
}

struct dpro_table dpro_table(uint32_t table)
{
    return table < N_TABLES ? job_tables[table].is : (struct dpro_table){"", "", 0, 0};
}

struct dpro_column dpro_table_column(uint32_t table, uint32_t column)
{
    if (table >= N_TABLES || column >= job_tables[table].is.n_columns)
        return (struct dpro_column){.name = "", .unit = "", .meaning = ""};
    return job_tables[table].columns[column].is;
}

const char *dpro_column_type_name(enum dpro_column_type type)
{
    static const char *const names[DPRO_N_COLUMN_TYPES] = {
        "uint8", "bool", "uint16", "int32", "uint32", "int64", "uint64", "float", "double", "text"};
    return (unsigned)type < DPRO_N_COLUMN_TYPES ? names[type] : NULL;
}

/* ---- rows that are made ---- */

static void make_edges(struct dpro_tables *t)
{
    const struct dpro_graph *g = t->graph;
    struct edge_row *edge = t->made.edges =
        arena_array(&t->arena, dpro_graph_n_edges(g) + (size_t)1, sizeof *edge);
    for (uint32_t op = 0; op < g->n_ops; op++)
        for (int next = 0; next < 2; next++) {
            uint32_t n;
            const dpro_op_id *to = dpro_graph_successors(g, op, next, &n);
            for (uint32_t i = 0; i < n; i++)
                *edge++ = (struct edge_row){op, to[i], next};
        }
    t->made.n_edges = (uint64_t)(edge - t->made.edges);
}

static void add_message(void *made, dpro_op_id send, dpro_op_id receive)
{
    struct made_tables *to = made;
    to->messages[to->n_messages++] = (struct message_row){send, receive};
}

static void make_messages(struct dpro_tables *t)
{
    uint64_t n_ops = 0; /* of messages, each of which has several */
    EACH_OF (const struct graph_rank, rank, t->graph->ranks, t->graph->n_ranks)
        n_ops += rank->n_message_ops;
    t->made.messages = arena_array(&t->arena, n_ops + 1, sizeof *t->made.messages);
    graph_each_message(t->graph, add_message, &t->made);
}

static void make_iterations(struct dpro_tables *t)
{
    const struct dpro_graph *g = t->graph;
    struct made_tables *to = &t->made;
    uint32_t n;
    const int64_t *measured_ns = dpro_graph_measured_ns(g, &n);
    to->iterations = arena_array(&t->arena, n + (size_t)1, sizeof *to->iterations);
    to->n_iterations = n;
    for (uint32_t i = 0; i < n; i++)
        to->iterations[i] =
            (struct iteration_row){.number = g->sample_number ? g->sample_number[i] : (int64_t)i,
                                   .measured_ns = measured_ns[i],
                                   .follows = !g->sample_follows || g->sample_follows[i],
                                   .shown = i == g->shown_sample};
    to->sample_dur_ns = g->sample_dur_ns;
    to->sample_gap_ns = g->sample_gap_ns;
    to->n_samples = g->sample_dur_ns ? (uint64_t)g->n_samples * g->n_ops : 0;
}

static void make_clocks(struct dpro_tables *t)
{
    struct made_tables *to = &t->made;
    const struct clocks *clocks = &t->graph->clocks;
    to->clocks = clocks->at;
    to->n_clocks = clocks->n;
    size_t n_ranks = 0, n_segments = 0;
    EACH_OF (const struct dpro_clock, clock, clocks->at, clocks->n) {
        n_ranks += clock->n_ranks;
        n_segments += clock->n_segments;
    }
    to->clock_ranks = arena_array(&t->arena, n_ranks + 1, sizeof *to->clock_ranks);
    to->clock_segments = arena_array(&t->arena, n_segments + 1, sizeof *to->clock_segments);
    for (uint32_t c = 0; c < clocks->n; c++) {
        const struct dpro_clock *clock = &clocks->at[c];
        for (uint32_t r = 0; r < clock->n_ranks; r++)
            to->clock_ranks[to->n_clock_ranks++] = (struct clock_rank_row){c, clock->ranks[r]};
        EACH_OF (const struct dpro_clock_segment, s, clock->segments, clock->n_segments)
            to->clock_segments[to->n_clock_segments++] = (struct clock_segment_row){
                c, s->start_ns, s->end_ns, s->offset_ns, s->drift_ppm, s->uncertainty_ns};
    }
}

static void make_replayed(struct dpro_tables *t, const struct dpro_replay_view *replay)
{
    struct made_tables *to = &t->made;
    to->path = replay->critical;
    to->n_path = replay->n_critical;
    to->rank_times = replay->ranks;
    to->n_rank_times = replay->n_ranks;
    to->replayed = arena_array(&t->arena, replay->n_ops + (size_t)1, sizeof *to->replayed);
    for (; to->n_replayed < replay->n_ops; to->n_replayed++)
        to->replayed[to->n_replayed] =
            (struct replayed_row){replay->start_ns[to->n_replayed], replay->end_ns[to->n_replayed]};
}

static __attribute__((noinline)) int make_tables(const struct dpro_graph *graph,
                                                 const struct dpro_replay *replay,
                                                 struct dpro_tables **tables)
{
    struct dpro_tables *t = mem_array(1, sizeof *t);
    struct made_tables *to = &t->made;
    t->graph = graph;
    to->ranks = graph->ranks;
    to->n_ranks = (uint64_t)graph->n_ranks + graph->n_servers;
    to->exchange_ends = graph->exchange_ends;
    EACH_OF (const struct graph_exchange, e, graph->exchanges, graph->n_exchanges)
        to->n_exchange_ends = MAX(to->n_exchange_ends, (uint64_t)e->first_end + e->n_ends);
    to->left_out = graph->left_out.at;
    to->n_left_out = graph->left_out.n;
    make_edges(t);
    make_messages(t);
    make_iterations(t);
    make_clocks(t);
    make_replayed(t, dpro_replay_view(replay));
    *tables = t;
    return 0;
}

int dpro_tables_create(const struct dpro_graph *graph, const struct dpro_replay *replay,
                       struct dpro_tables **tables, struct dpro_error *err)
{
    return WITHIN_SCOPE(dpro_error_nomem(err), make_tables(graph, replay, tables));
}

void dpro_tables_destroy(struct dpro_tables *tables)
{
    if (!tables)
        return;
    arena_fini(&tables->arena);
    mem_free(tables);
}

/* ---- values ---- */

/* The struct that has them; NULL: nothing is known of the rank. */
static const void *place_of(const struct dpro_tables *t, const struct table_rows *table,
                            uint32_t rank_index)
{
    const struct dpro_graph *g = t->graph;
    if (table->place == IN_GRAPH)
        return g;
    if (table->place == IN_MADE)
        return &t->made;
    return g->memory && rank_index < g->n_ranks ? &g->memory[rank_index] : NULL;
}

uint64_t dpro_tables_n_rows(const struct dpro_tables *tables, uint32_t table, uint32_t rank_index)
{
    const struct table_rows *rows = &job_tables[table < N_TABLES ? table : 0];
    const char *place = place_of(tables, rows, rank_index);
    if (!place || table >= N_TABLES)
        return 0;
    return rows->is_wide ? *(const uint64_t *)(const void *)(place + rows->count_at)
                         : *(const uint32_t *)(const void *)(place + rows->count_at);
}

const void *dpro_tables_values(const struct dpro_tables *tables, uint32_t table, uint32_t column,
                               uint32_t rank_index, size_t *stride)
{
    if (dpro_tables_n_rows(tables, table, rank_index) == 0 ||
        column >= job_tables[table].is.n_columns)
        return NULL;
    const struct table_rows *rows = &job_tables[table];
    const struct column *of = &rows->columns[column];
    const char *place = place_of(tables, rows, rank_index);
    *stride = rows->row_size ? rows->row_size : of->size;
    if (!rows->row_size)
        return *(const void *const *)(const void *)(place + of->at);
    return *(const char *const *)(const void *)(place + rows->at) + of->at;
}

uint32_t dpro_tables_n_ranks(const struct dpro_tables *tables)
{
    return tables->graph->n_ranks;
}

const char *dpro_tables_name(const struct dpro_tables *tables, uint32_t id)
{
    return id < tables->graph->names.n ? strtab_get(&tables->graph->names, id) : "";
}

/* ---- values as other programs take them ---- */

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
