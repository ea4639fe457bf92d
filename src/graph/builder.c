/* Makes a graph op by op. Ops and edges are collected in growing arrays. The end turns them into
 * rows and moves one array after the other into the graph's arena, freeing each, so that the peak
 * of memory stays near the finished size. */
#include "graph/builder.h"

#include <assert.h>

struct edge {
    uint32_t from, to;
};
typedef ARRAY(struct edge) edge_array;

struct graph_builder {
    struct dpro_graph *graph;
    size_t cap;          /* of every column of ops that exists */
    edge_array edges[2]; /* within an iteration, into the next one */
    ARRAY(struct graph_device) devices;
    ARRAY(struct graph_rank) ranks;
};

#define IN_ROW(row, c_type, column, what, text) offsetof(struct graph_op, column),
static const size_t in_row[] = {GRAPH_OPS(IN_ROW, )};

static const size_t always[] = {AT_OP(dur_ns), AT_OP(gap_ns), AT_OP(device),
                                AT_OP(name),   AT_OP(rank),   AT_OP(kind),
                                AT_OP(flags),  AT_OP(phase),  AT_OP(spare)};

/* Most graphs leave the other columns of ops at zero: they exist when the first value comes. */
static bool is_rare(const struct column_place *column)
{
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        if (always[i] == column->at)
            return false;
    return true;
}

static void *get_field(const struct dpro_graph *g, const struct column_place *field)
{
    void *at;
    memcpy(&at, (const char *)g + field->at, sizeof at);
    return at;
}

static void set_field(struct dpro_graph *g, const struct column_place *field, void *at)
{
    memcpy((char *)g + field->at, &at, sizeof at);
}

struct graph_builder *graph_builder_create(void)
{
    struct graph_builder *builder = mem_array(1, sizeof *builder);
    builder->graph = mem_array(1, sizeof *builder->graph);
    return builder;
}

struct strtab *graph_builder_names(struct graph_builder *builder)
{
    return &builder->graph->names;
}

dpro_device_id graph_builder_add_device(struct graph_builder *builder, enum dpro_device_kind kind,
                                        int rank, const char *name)
{
    array_add(&builder->devices, .kind = (uint8_t)kind, .rank = rank,
              .name = strtab_format(&builder->graph->names, "%s", name ?: ""));
    return (dpro_device_id)builder->devices.n - 1;
}

static void *builder_resize(struct graph_builder *b, const struct column_place *field)
{
    void *at = mem_resize(get_field(b->graph, field), b->cap, field->size);
    set_field(b->graph, field, at);
    return at;
}

static void grow_ops(struct graph_builder *b)
{
    if (b->graph->n_ops >= DPRO_NO_OP - 1)
        mem_fail();
    b->cap = MIN(b->cap ? b->cap + b->cap / 2 : 64, UINT32_MAX);
    for (int i = 0; i < N_OP_COLUMNS; i++)
        if (!is_rare(&graph_op_columns[i]) || get_field(b->graph, &graph_op_columns[i]))
            builder_resize(b, &graph_op_columns[i]);
}

/* A value of the next op. */
static void set_value(struct graph_builder *b, const struct column_place *column, const void *value)
{
    static const char zero[sizeof(uint64_t)];
    char *at = get_field(b->graph, column);
    if (!at && memcmp(value, zero, column->size) != 0)
        at = memset(builder_resize(b, column), 0, b->graph->n_ops * column->size);
    if (at)
        memcpy(at + b->graph->n_ops * column->size, value, column->size);
}

dpro_op_id graph_builder_add(struct graph_builder *b, int rank, const struct graph_op *op)
{
    struct dpro_graph *g = b->graph;
    struct graph_op row = *op;
    if (g->n_ops == b->cap)
        grow_ops(b);
    if (b->ranks.n == 0 || b->ranks.at[b->ranks.n - 1].rank != rank) {
        if (b->ranks.n > UINT16_MAX)
            mem_fail();
        array_add(&b->ranks, .rank = rank, .first_op = g->n_ops, .boundary = DPRO_NO_OP);
    }
    struct graph_rank *of = &b->ranks.at[b->ranks.n - 1];
    row.rank = (uint16_t)(b->ranks.n - 1);
    row.dur_ns = graph_clamp_ns(op->dur_ns);
    row.gap_ns = graph_clamp_ns(op->gap_ns);
    assert(op->device == DPRO_NO_DEVICE || op->device < b->devices.n);
    if (op->device != DPRO_NO_DEVICE && b->devices.at[op->device].kind == DPRO_DEVICE_GPU_STREAM)
        row.flags |= GRAPH_OP_GPU;
    if (row.flags & GRAPH_OP_BOUNDARY)
        of->boundary = g->n_ops;
    for (int i = 0; i < N_OP_COLUMNS; i++)
        set_value(b, &graph_op_columns[i], (const char *)&row + in_row[i]);
    of->n_ops++;
    return g->n_ops++;
}

void graph_builder_add_edge(struct graph_builder *builder, dpro_op_id from, dpro_op_id to,
                            bool next)
{
    assert(from < builder->graph->n_ops && to < builder->graph->n_ops);
    if (builder->edges[next].n >= UINT32_MAX / 2)
        mem_fail();
    array_add(&builder->edges[next], from, to);
}

/* An op that waits for nothing, not even in the iteration before, could run in all iterations at
 * once. Its rank gets to it when it has passed its boundary, if it has one. */
static void tie_roots(struct graph_builder *b)
{
    uint32_t n_ops = b->graph->n_ops;
    SCRATCH bool *waits = mem_array((size_t)n_ops + 1, sizeof *waits);
    for (int next = 0; next < 2; next++)
        EACH (const struct edge, edge, b->edges[next])
            waits[edge->to] = true;
    for (uint32_t op = 0; op < n_ops; op++) {
        uint32_t boundary = b->ranks.at[b->graph->rank[op]].boundary;
        if (!waits[op] && boundary != DPRO_NO_OP)
            graph_builder_add_edge(b, boundary, op, true);
    }
}

/* Counting sort by `from`; keeps the order in which a row's edges came. */
static void make_rows(struct dpro_graph *g, edge_array *edges, uint32_t **row, uint32_t **succ)
{
    *row = arena_array(&g->arena, (size_t)g->n_ops + 1, sizeof **row);
    *succ = arena_alloc(&g->arena, edges->n * sizeof **succ);
    for (size_t i = 0; i < edges->n; i++)
        (*row)[edges->at[i].from]++;
    uint32_t sum = 0;
    for (uint32_t op = 0; op <= g->n_ops; op++) /* the end of each row ... */
        (*row)[op] = sum += (*row)[op];
    for (size_t i = edges->n; i-- > 0;) /* ... and, filled from the back, its start */
        (*succ)[--(*row)[edges->at[i].from]] = edges->at[i].to;
    array_fini(edges);
}

struct dpro_graph *graph_builder_finish(struct graph_builder *b)
{
    struct dpro_graph *g = b->graph;
    if (b->cap == 0) /* an empty graph has arrays too */
        grow_ops(b);
    bool has_next = b->edges[true].n > 0;
    if (has_next)
        tie_roots(b);
    make_rows(g, &b->edges[false], &g->row, &g->succ);
    make_rows(g, &b->edges[true], &g->next_row, &g->next_succ);
    EACH_OF (const struct column_place, field, graph_op_columns, N_OP_COLUMNS) {
        void *grown = get_field(g, field);
        if (grown)
            set_field(g, field, arena_copy(&g->arena, grown, g->n_ops, field->size));
        mem_free(grown);
    }
    g->n_devices = (uint32_t)b->devices.n;
    g->n_ranks = (uint32_t)b->ranks.n;
    g->devices = arena_copy(&g->arena, b->devices.at, g->n_devices, sizeof *g->devices);
    g->ranks = arena_copy(&g->arena, b->ranks.at, g->n_ranks, sizeof *g->ranks);
    /* Nothing leads into a next iteration: there is no period to predict, only one run. */
    g->single_iteration = !has_next;
    FREE_ALL(&b->devices, &b->ranks);
    mem_free(b);
    return g;
}
