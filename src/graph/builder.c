/* Makes a graph op by op. Ops and edges are collected in growing arrays. The end turns them into
 * rows and moves one array after the other into the graph's arena, freeing each, so that the peak
 * of memory stays near the finished size. */
#include "graph/builder.h"

struct edge {
    uint32_t from, to;
};
typedef ARRAY(struct edge) edge_array;

struct dpro_graph_builder {
    struct dpro_graph *graph; /* NULL once handed over */
    size_t cap;               /* of every column of ops that exists */
    int n_moved;              /* of these: that are in the graph's arena */
    edge_array same, next;
    ARRAY(struct graph_device) devices;
    ARRAY(struct graph_rank) ranks;
    struct map rank_index; /* rank + 2^32 -> index */
    struct memory_scope scope;
};

static const size_t always[] = {AT_OP(dur_ns), AT_OP(device), AT_OP(name), AT_OP(rank),
                                AT_OP(kind),   AT_OP(flags),  AT_OP(phase)};

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

struct dpro_graph_builder *graph_builder_create(void)
{
    struct dpro_graph_builder *builder = mem_array(1, sizeof *builder);
    builder->graph = mem_array(1, sizeof *builder->graph);
    return builder;
}

static __attribute__((noinline)) int create(struct dpro_graph_builder **builder)
{
    *builder = graph_builder_create();
    return 0;
}

struct dpro_graph_builder *dpro_graph_builder_create(struct dpro_error *err)
{
    struct dpro_graph_builder *builder;
    return WITHIN_SCOPE(dpro_error_nomem(err), create(&builder)) < 0 ? NULL : builder;
}

void dpro_graph_builder_destroy(struct dpro_graph_builder *builder)
{
    if (!builder)
        return;
    if (builder->scope.failed) {
        memory_scope_free(&builder->scope);
        mem_free(builder->graph);
        mem_free(builder);
        return;
    }
    for (int i = builder->n_moved; i < N_OP_COLUMNS && builder->graph; i++)
        mem_free(get_field(builder->graph, &graph_op_columns[i]));
    FREE_ALL(&builder->same, &builder->next, &builder->devices, &builder->ranks,
             &builder->rank_index);
    dpro_graph_destroy(builder->graph);
    memory_scope_forget(&builder->scope);
    mem_free(builder);
}

uint32_t graph_builder_add_name(struct dpro_graph_builder *builder, const char *name)
{
    return strtab_add(&builder->graph->names, name ? name : "", name ? strlen(name) : 0);
}

int64_t graph_builder_add_device(struct dpro_graph_builder *builder, enum dpro_device_kind kind,
                                 int rank, const char *name)
{
    if (!builder->graph || (unsigned)kind > DPRO_DEVICE_LINK_RX)
        return DPRO_EUSAGE;
    if (builder->devices.n >= DPRO_NO_DEVICE)
        mem_fail();
    array_add(&builder->devices, .kind = (uint8_t)kind, .rank = rank,
              .name = graph_builder_add_name(builder, name));
    return (int64_t)builder->devices.n - 1;
}

int64_t dpro_graph_add_device(struct dpro_graph_builder *builder, enum dpro_device_kind kind,
                              int rank, const char *name)
{
    return WITHIN_SCOPE_OF(&builder->scope, DPRO_ENOMEM,
                           graph_builder_add_device(builder, kind, rank, name));
}

static void *resize(struct dpro_graph_builder *b, const struct column_place *field)
{
    void *at = mem_resize(get_field(b->graph, field), b->cap, field->size);
    set_field(b->graph, field, at);
    return at;
}

static void grow_ops(struct dpro_graph_builder *b)
{
    if (b->graph->n_ops >= DPRO_NO_OP - 1)
        mem_fail();
    b->cap = MIN(b->cap ? b->cap + b->cap / 2 : 64, UINT32_MAX);
    for (int i = 0; i < N_OP_COLUMNS; i++)
        if (!is_rare(&graph_op_columns[i]) || get_field(b->graph, &graph_op_columns[i]))
            resize(b, &graph_op_columns[i]);
}

/* Ids follow rank: a rank's ops are one block. */
static int find_rank(struct dpro_graph_builder *b, int rank)
{
    if (b->ranks.n && b->ranks.at[b->ranks.n - 1].rank == rank)
        return 0;
    uint64_t key = (1ull << 32) + (uint32_t)rank;
    if (map_get(&b->rank_index, key, NULL) || b->ranks.n > UINT16_MAX)
        return DPRO_EUSAGE;
    struct graph_rank fresh = {.rank = rank, .first_op = b->graph->n_ops, .boundary = DPRO_NO_OP};
    map_set(&b->rank_index, key, b->ranks.n);
    array_push(&b->ranks, fresh);
    return 0;
}

static enum dpro_op_kind phase_of(enum dpro_op_kind kind)
{
    switch (kind) {
    case DPRO_OP_FW:
    case DPRO_OP_BW:
    case DPRO_OP_UPDATE:
    case DPRO_OP_INPUT:
        return kind;
    case DPRO_OP_SEND:
    case DPRO_OP_RECV:
    case DPRO_OP_PUSH:
    case DPRO_OP_PULL:
    case DPRO_OP_REDUCE:
    case DPRO_OP_COLLECTIVE:
        return DPRO_OP_COLLECTIVE;
    default:
        return DPRO_OP_BARRIER;
    }
}

/* Sets a rare field of the next op. */
#define SET_RARE(b, field, value)                                                                  \
    do {                                                                                           \
        if (!(b)->graph->field && (value))                                                         \
            make_rare((b), offsetof(struct dpro_graph, field));                                    \
        if ((b)->graph->field)                                                                     \
            (b)->graph->field[(b)->graph->n_ops] = (value);                                        \
    } while (0)

static void make_rare(struct dpro_graph_builder *b, size_t offset)
{
    int i = 0;
    while (graph_op_columns[i].at != offset)
        i++;
    memset(resize(b, &graph_op_columns[i]), 0, b->graph->n_ops * graph_op_columns[i].size);
}

int64_t graph_builder_add(struct dpro_graph_builder *b, const struct dpro_op *op, uint32_t name,
                          uint32_t tensor)
{
    struct dpro_graph *g = b->graph;
    if (!g || (unsigned)op->kind >= DPRO_N_OP_KINDS ||
        (op->device != DPRO_NO_DEVICE && op->device >= b->devices.n))
        return DPRO_EUSAGE;
    if (g->n_ops == b->cap)
        grow_ops(b);
    int rc = find_rank(b, op->rank);
    if (rc < 0)
        return rc;
    int64_t gap_ns = graph_clamp_ns(op->gap_ns);
    SET_RARE(b, gap_ns, gap_ns);
    SET_RARE(b, tensor, tensor);
    SET_RARE(b, size_bytes, op->size_bytes);
    SET_RARE(b, transaction, op->transaction);
    SET_RARE(b, seen_start_ns, op->seen_start_ns);
    SET_RARE(b, seen_dur_ns, op->seen_dur_ns);
    uint32_t id = g->n_ops++;
    g->dur_ns[id] = graph_clamp_ns(op->dur_ns);
    g->device[id] = op->device;
    g->name[id] = name;
    g->kind[id] = (uint8_t)op->kind;
    g->phase[id] = (uint8_t)phase_of(op->kind);
    bool gpu =
        op->device != DPRO_NO_DEVICE && b->devices.at[op->device].kind == DPRO_DEVICE_GPU_STREAM;
    g->flags[id] = gpu ? GRAPH_OP_GPU : 0;
    g->rank[id] = (uint16_t)(b->ranks.n - 1);
    b->ranks.at[b->ranks.n - 1].n_ops++;
    return id;
}

int64_t graph_builder_add_op(struct dpro_graph_builder *builder, const struct dpro_op *op)
{
    if (!builder->graph)
        return DPRO_EUSAGE;
    uint32_t name = graph_builder_add_name(builder, op->name);
    return graph_builder_add(builder, op, name, graph_builder_add_name(builder, op->tensor));
}

int64_t dpro_graph_add_op(struct dpro_graph_builder *builder, const struct dpro_op *op)
{
    return WITHIN_SCOPE_OF(&builder->scope, DPRO_ENOMEM, graph_builder_add_op(builder, op));
}

void graph_builder_flag(struct dpro_graph_builder *builder, dpro_op_id op, uint8_t flags)
{
    builder->graph->flags[op] |= flags;
}

static void push_edge(edge_array *edges, uint32_t from, uint32_t to)
{
    if (edges->n >= UINT32_MAX / 2)
        mem_fail();
    array_add(edges, from, to);
}

int graph_builder_add_edge(struct dpro_graph_builder *builder, dpro_op_id from, dpro_op_id to,
                           int next)
{
    const struct dpro_graph *g = builder->graph;
    if (!g || from >= g->n_ops || to >= g->n_ops || (from == to && !next))
        return DPRO_EUSAGE;
    push_edge(next ? &builder->next : &builder->same, from, to);
    return 0;
}

int dpro_graph_add_edge(struct dpro_graph_builder *builder, dpro_op_id from, dpro_op_id to,
                        int next)
{
    return WITHIN_SCOPE_OF(&builder->scope, DPRO_ENOMEM,
                           graph_builder_add_edge(builder, from, to, next));
}

/* An op that waits for nothing, not even in the iteration before, could run in all iterations at
 * once. Its rank gets to it when it has passed its boundary, if it has one. */
static void tie_roots(struct dpro_graph_builder *b)
{
    uint32_t n_ops = b->graph->n_ops;
    SCRATCH bool *waits = mem_array((size_t)n_ops + 1, sizeof *waits);
    for (size_t i = 0; i < b->same.n; i++)
        waits[b->same.at[i].to] = true;
    for (size_t i = 0; i < b->next.n; i++)
        waits[b->next.at[i].to] = true;
    for (uint32_t op = 0; op < n_ops; op++) {
        uint32_t boundary = b->ranks.at[b->graph->rank[op]].boundary;
        if (!waits[op] && boundary != DPRO_NO_OP)
            push_edge(&b->next, boundary, op);
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

/* Kahn's algorithm with the stack threaded through the counters: four bytes an op. */
int graph_check_acyclic(const struct dpro_graph *g, struct dpro_error *err)
{
    uint32_t n = g->n_ops, op = 0;
    bool forward = true; /* graphs in time order need no more than this look */
    for (; op < n && forward; op++)
        for (uint32_t e = g->row[op]; e < g->row[op + 1]; e++)
            forward &= g->succ[e] > op;
    if (forward)
        return 0;
    SCRATCH uint32_t *left = mem_array((size_t)n + 1, sizeof *left);
    for (uint32_t e = 0; e < g->row[n]; e++)
        left[g->succ[e]]++;
    uint32_t top = DPRO_NO_OP, done = 0;
    for (op = n; op-- > 0;)
        if (left[op] == 0) {
            left[op] = top;
            top = op;
        }
    while (top != DPRO_NO_OP) {
        op = top;
        top = left[op];
        left[op] = 0;
        done++;
        for (uint32_t e = g->row[op]; e < g->row[op + 1]; e++)
            if (--left[g->succ[e]] == 0) {
                left[g->succ[e]] = top;
                top = g->succ[e];
            }
    }
    for (op = 0; op < n && left[op] == 0;)
        op++;
    return done == n ? 0
                     : dpro_error_set(err, DPRO_EUSAGE,
                                      "graph: op %u (%s) waits for itself within one iteration; %u "
                                      "ops are on or behind the cycle",
                                      op, strtab_get(&g->names, g->name[op]), n - done);
}

int graph_builder_finish(struct dpro_graph_builder *b, struct dpro_graph **graph,
                         struct dpro_error *err)
{
    struct dpro_graph *g = b->graph;
    if (!g)
        return dpro_error_set(err, DPRO_EUSAGE, "graph: this builder has handed over its graph");
    if (b->cap == 0) /* an empty graph has arrays too */
        grow_ops(b);
    bool has_next = b->next.n > 0;
    for (uint32_t op = 0; op < g->n_ops; op++)
        if (g->flags[op] & GRAPH_OP_BOUNDARY)
            b->ranks.at[g->rank[op]].boundary = op;
    if (has_next)
        tie_roots(b);
    make_rows(g, &b->same, &g->row, &g->succ);
    if (has_next)
        make_rows(g, &b->next, &g->next_row, &g->next_succ);
    int rc = graph_check_acyclic(g, err);
    if (rc < 0)
        return rc;
    for (; b->n_moved < N_OP_COLUMNS; b->n_moved++) {
        const struct column_place *field = &graph_op_columns[b->n_moved];
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
    b->graph = NULL;
    *graph = g;
    return 0;
}

int dpro_graph_finish(struct dpro_graph_builder *builder, struct dpro_graph **graph,
                      struct dpro_error *err)
{
    return WITHIN_SCOPE_OF(&builder->scope, dpro_error_nomem(err),
                           graph_builder_finish(builder, graph, err));
}
