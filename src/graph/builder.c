/* graph/builder.c: making a graph op by op. Ops and edges are collected in growing arrays; finish
 * turns them into rows and moves one array after the other into the graph's arena, freeing each as
 * it goes, so that the peak stays near the finished size. */
#include "graph/builder.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/map.h"
#include "base/memory.h"

struct edge {
    uint32_t from, to;
};

struct edges {
    ARRAY(struct edge) list;
};

struct dpro_graph_builder {
    struct dpro_graph *graph; /* NULL once handed over */
    uint32_t n_ops;
    size_t cap; /* of every array that exists */
    int64_t *dur_ns, *gap_ns;
    uint32_t *device, *name, *tensor;
    uint8_t *kind, *flags, *phase;
    uint16_t *rank;
    uint64_t *size_bytes, *transaction;
    int64_t *seen_start_ns, *seen_dur_ns;
    struct edges same, next;
    ARRAY(struct graph_device) devices;
    ARRAY(struct graph_rank) ranks;
    struct map rank_index; /* rank + 2^32 -> index */
    struct memory_scope scope;
};

static __attribute__((noinline)) int create(struct dpro_graph_builder **builder)
{
    *builder = mem_array(1, sizeof **builder);
    (*builder)->graph = mem_array(1, sizeof *(*builder)->graph);
    return 0;
}

struct dpro_graph_builder *dpro_graph_builder_create(struct dpro_error *err)
{
    struct dpro_graph_builder *builder;
    return WITHIN_SCOPE(dpro_error_nomem(err), create(&builder)) < 0 ? NULL : builder;
}

static void free_ops(struct dpro_graph_builder *b)
{
    void *arrays[] = {b->dur_ns,      b->gap_ns,        b->device,     b->name, b->tensor,
                      b->kind,        b->flags,         b->phase,      b->rank, b->size_bytes,
                      b->transaction, b->seen_start_ns, b->seen_dur_ns};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        mem_free(arrays[i]);
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
    free_ops(builder);
    array_fini(&builder->same.list);
    array_fini(&builder->next.list);
    array_fini(&builder->devices);
    array_fini(&builder->ranks);
    map_fini(&builder->rank_index);
    dpro_graph_destroy(builder->graph);
    memory_scope_forget(&builder->scope);
    mem_free(builder);
}

struct strtab *graph_builder_names(struct dpro_graph_builder *builder)
{
    return &builder->graph->names;
}

uint32_t graph_builder_n_ops(const struct dpro_graph_builder *builder)
{
    return builder->n_ops;
}

static int64_t add_device(struct dpro_graph_builder *builder, enum dpro_device_kind kind, int rank,
                          const char *name)
{
    if (!builder->graph || (unsigned)kind > DPRO_DEVICE_LINK_RX)
        return DPRO_EUSAGE;
    if (builder->devices.n >= DPRO_NO_DEVICE)
        return DPRO_ENOMEM;
    uint32_t id = strtab_add(&builder->graph->names, name ? name : "", name ? strlen(name) : 0);
    struct graph_device device = {.kind = (uint8_t)kind, .rank = rank, .name = id};
    if (id == STRTAB_FULL || array_push(&builder->devices, device) < 0)
        return DPRO_ENOMEM;
    return (int64_t)builder->devices.n - 1;
}

int64_t dpro_graph_add_device(struct dpro_graph_builder *builder, enum dpro_device_kind kind,
                              int rank, const char *name)
{
    return WITHIN_SCOPE_OF(&builder->scope, DPRO_ENOMEM, add_device(builder, kind, rank, name));
}

/* The array for a field that most graphs leave at zero is made when the first value comes. */
static int resize(void *at, size_t cap, size_t size, bool wanted, size_t n_zeroed)
{
    void *old, *grown;
    memcpy(&old, at, sizeof old);
    if (!old && !wanted)
        return 0;
    grown = mem_resize(old, cap, size);
    if (!grown)
        return -1;
    if (!old && n_zeroed)
        memset(grown, 0, n_zeroed * size);
    memcpy(at, &grown, sizeof grown);
    return 0;
}

static int grow_ops(struct dpro_graph_builder *b)
{
    size_t cap = b->cap ? b->cap + b->cap / 2 : 64;
    if (cap > UINT32_MAX)
        cap = UINT32_MAX;
    if (b->n_ops >= DPRO_NO_OP - 1 || resize(&b->dur_ns, cap, sizeof *b->dur_ns, true, 0) < 0 ||
        resize(&b->gap_ns, cap, sizeof *b->gap_ns, false, 0) < 0 ||
        resize(&b->device, cap, sizeof *b->device, true, 0) < 0 ||
        resize(&b->name, cap, sizeof *b->name, true, 0) < 0 ||
        resize(&b->tensor, cap, sizeof *b->tensor, false, 0) < 0 ||
        resize(&b->kind, cap, sizeof *b->kind, true, 0) < 0 ||
        resize(&b->flags, cap, sizeof *b->flags, true, 0) < 0 ||
        resize(&b->phase, cap, sizeof *b->phase, true, 0) < 0 ||
        resize(&b->rank, cap, sizeof *b->rank, true, 0) < 0 ||
        resize(&b->size_bytes, cap, sizeof *b->size_bytes, false, 0) < 0 ||
        resize(&b->transaction, cap, sizeof *b->transaction, false, 0) < 0 ||
        resize(&b->seen_start_ns, cap, sizeof *b->seen_start_ns, false, 0) < 0 ||
        resize(&b->seen_dur_ns, cap, sizeof *b->seen_dur_ns, false, 0) < 0)
        return -1;
    b->cap = cap;
    return 0;
}

static int find_rank(struct dpro_graph_builder *b, int rank)
{
    if (b->ranks.n && b->ranks.at[b->ranks.n - 1].rank == rank)
        return 0;
    uint64_t key = (1ull << 32) + (uint32_t)rank;
    if (map_get(&b->rank_index, key, NULL))
        return DPRO_EUSAGE; /* ids follow rank: a rank's ops are one block */
    if (b->ranks.n > UINT16_MAX)
        return DPRO_EUSAGE;
    struct graph_rank fresh = {.rank = rank, .first_op = b->n_ops, .boundary = DPRO_NO_OP};
    if (map_set(&b->rank_index, key, b->ranks.n) < 0 || array_push(&b->ranks, fresh) < 0)
        return DPRO_ENOMEM;
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

/* Sets a field that most graphs leave at zero; false when memory runs out. */
#define SET_RARE(b, field, value)                                                                  \
    (((b)->field || !(value) ||                                                                    \
      resize(&(b)->field, (b)->cap, sizeof *(b)->field, true, (b)->n_ops) == 0) &&                 \
     (!(b)->field || ((b)->field[(b)->n_ops] = (value), true)))

int64_t graph_builder_add(struct dpro_graph_builder *b, const struct dpro_op *op, uint32_t name,
                          uint32_t tensor)
{
    if (!b->graph || (unsigned)op->kind >= DPRO_N_OP_KINDS ||
        (op->device != DPRO_NO_DEVICE && op->device >= b->devices.n))
        return DPRO_EUSAGE;
    if (b->n_ops == b->cap && grow_ops(b) < 0)
        return DPRO_ENOMEM;
    int rc = find_rank(b, op->rank);
    if (rc < 0)
        return rc;
    int64_t gap_ns = graph_clamp_ns(op->gap_ns);
    uint32_t id = b->n_ops;
    if (!SET_RARE(b, gap_ns, gap_ns) || !SET_RARE(b, tensor, tensor) ||
        !SET_RARE(b, size_bytes, op->size_bytes) || !SET_RARE(b, transaction, op->transaction) ||
        !SET_RARE(b, seen_start_ns, op->seen_start_ns) ||
        !SET_RARE(b, seen_dur_ns, op->seen_dur_ns))
        return DPRO_ENOMEM;
    b->dur_ns[id] = graph_clamp_ns(op->dur_ns);
    b->device[id] = op->device;
    b->name[id] = name;
    b->kind[id] = (uint8_t)op->kind;
    b->phase[id] = (uint8_t)phase_of(op->kind);
    bool gpu =
        op->device != DPRO_NO_DEVICE && b->devices.at[op->device].kind == DPRO_DEVICE_GPU_STREAM;
    b->flags[id] = gpu ? GRAPH_OP_GPU : 0;
    b->rank[id] = (uint16_t)(b->ranks.n - 1);
    b->ranks.at[b->ranks.n - 1].n_ops++;
    b->n_ops++;
    return id;
}

static int64_t add_op(struct dpro_graph_builder *builder, const struct dpro_op *op)
{
    if (!builder->graph)
        return DPRO_EUSAGE;
    const char *name = op->name ? op->name : "", *tensor = op->tensor ? op->tensor : "";
    uint32_t name_id = strtab_add(&builder->graph->names, name, strlen(name));
    uint32_t tensor_id = strtab_add(&builder->graph->names, tensor, strlen(tensor));
    if (name_id == STRTAB_FULL || tensor_id == STRTAB_FULL)
        return DPRO_ENOMEM;
    return graph_builder_add(builder, op, name_id, tensor_id);
}

int64_t dpro_graph_add_op(struct dpro_graph_builder *builder, const struct dpro_op *op)
{
    return WITHIN_SCOPE_OF(&builder->scope, DPRO_ENOMEM, add_op(builder, op));
}

void graph_builder_flag(struct dpro_graph_builder *builder, dpro_op_id op, uint8_t flags)
{
    builder->flags[op] |= flags;
}

void graph_builder_set_phase(struct dpro_graph_builder *builder, dpro_op_id op,
                             enum dpro_op_kind phase)
{
    builder->phase[op] = (uint8_t)phase;
}

static int add_edge(struct dpro_graph_builder *builder, dpro_op_id from, dpro_op_id to, int next)
{
    if (!builder->graph || from >= builder->n_ops || to >= builder->n_ops || (from == to && !next))
        return DPRO_EUSAGE;
    struct edges *edges = next ? &builder->next : &builder->same;
    struct edge edge = {from, to};
    if (edges->list.n >= UINT32_MAX / 2)
        return DPRO_ENOMEM;
    return array_push(&edges->list, edge) < 0 ? DPRO_ENOMEM : 0;
}

int dpro_graph_add_edge(struct dpro_graph_builder *builder, dpro_op_id from, dpro_op_id to,
                        int next)
{
    return WITHIN_SCOPE_OF(&builder->scope, DPRO_ENOMEM, add_edge(builder, from, to, next));
}

/* An op that waits for nothing, not even in the iteration before, could run in all iterations at
 * once. Its rank gets to it when it has passed its boundary, if it has one. */
static int tie_roots(struct dpro_graph_builder *b)
{
    uint8_t *waits = mem_array((size_t)b->n_ops + 1, 1);
    if (!waits)
        return -1;
    for (size_t i = 0; i < b->same.list.n; i++)
        waits[b->same.list.at[i].to] = 1;
    for (size_t i = 0; i < b->next.list.n; i++)
        waits[b->next.list.at[i].to] = 1;
    int rc = 0;
    for (uint32_t op = 0; op < b->n_ops && rc == 0; op++) {
        uint32_t boundary = b->ranks.at[b->rank[op]].boundary;
        struct edge edge = {boundary, op};
        if (!waits[op] && boundary != DPRO_NO_OP)
            rc = b->next.list.n < UINT32_MAX / 2 ? array_push(&b->next.list, edge) : -1;
    }
    mem_free(waits);
    return rc;
}

/* Counting sort by `from`; keeps the order in which a row's edges came. */
static int make_rows(struct dpro_graph *g, struct edges *edges, uint32_t n_ops, uint32_t **row,
                     uint32_t **succ)
{
    size_t n = edges->list.n;
    uint32_t *r = arena_array(&g->arena, (size_t)n_ops + 1, sizeof *r);
    uint32_t *s = arena_alloc(&g->arena, n * sizeof *s);
    if (!r || !s)
        return DPRO_ENOMEM;
    for (size_t i = 0; i < n; i++)
        r[edges->list.at[i].from]++;
    uint32_t sum = 0;
    for (uint32_t op = 0; op <= n_ops; op++) { /* r[op] becomes the end of the row ... */
        sum += r[op];
        r[op] = sum;
    }
    for (size_t i = n; i-- > 0;) /* ... and, filled from the back, its start */
        s[--r[edges->list.at[i].from]] = edges->list.at[i].to;
    array_fini(&edges->list);
    *row = r;
    *succ = s;
    return 0;
}

/* Kahn's algorithm with the stack threaded through the counters: four bytes an op. */
static int check_acyclic(const struct dpro_graph *g, uint32_t n, const uint32_t *name,
                         struct dpro_error *err)
{
    bool forward = true; /* graphs in time order need no more than this look */
    for (uint32_t op = 0; op < n && forward; op++)
        for (uint32_t e = g->row[op]; e < g->row[op + 1]; e++)
            if (g->succ[e] <= op)
                forward = false;
    if (forward)
        return 0;
    uint32_t *left = mem_array((size_t)n + 1, sizeof *left);
    if (!left)
        return dpro_error_nomem(err);
    for (uint32_t e = 0; e < g->row[n]; e++)
        left[g->succ[e]]++;
    uint32_t top = DPRO_NO_OP, done = 0;
    for (uint32_t op = n; op-- > 0;)
        if (left[op] == 0) {
            left[op] = top;
            top = op;
        }
    while (top != DPRO_NO_OP) {
        uint32_t op = top;
        top = left[op];
        left[op] = 0;
        done++;
        for (uint32_t e = g->row[op]; e < g->row[op + 1]; e++)
            if (--left[g->succ[e]] == 0) {
                left[g->succ[e]] = top;
                top = g->succ[e];
            }
    }
    int rc = 0;
    if (done < n) {
        uint32_t op = 0;
        while (left[op] == 0)
            op++;
        rc = dpro_error_set(err, DPRO_EUSAGE,
                            "graph: op %u (%s) waits for itself within one iteration; %u ops are "
                            "on or behind the cycle",
                            op, strtab_get(&g->names, name[op]), n - done);
    }
    mem_free(left);
    return rc;
}

/* Moves a builder's array into the arena and frees it; NULL stays NULL. */
static int move(struct dpro_graph *g, void *to, void *from, uint32_t n, size_t size)
{
    void *source;
    memcpy(&source, from, sizeof source);
    if (!source)
        return 0;
    void *copy = arena_alloc(&g->arena, n * size);
    if (!copy)
        return -1;
    memcpy(copy, source, n * size);
    mem_free(source);
    memset(from, 0, sizeof source);
    memcpy(to, &copy, sizeof copy);
    return 0;
}
#define MOVE(field) (move(g, &g->field, &b->field, n, sizeof *b->field) < 0)

static int finish(struct dpro_graph_builder *builder, struct dpro_graph **graph,
                  struct dpro_error *err)
{
    struct dpro_graph_builder *b = builder;
    struct dpro_graph *g = b->graph;
    if (!g)
        return dpro_error_set(err, DPRO_EUSAGE, "graph: this builder has handed over its graph");
    uint32_t n = b->n_ops;
    if (b->cap == 0 && grow_ops(b) < 0) /* an empty graph has arrays too */
        return dpro_error_nomem(err);
    bool has_next = b->next.list.n > 0;
    for (uint32_t op = 0; op < n; op++)
        if (b->flags[op] & GRAPH_OP_BOUNDARY)
            b->ranks.at[b->rank[op]].boundary = op;
    if (has_next && tie_roots(b) < 0)
        return dpro_error_nomem(err);
    if (make_rows(g, &b->same, n, &g->row, &g->succ) < 0 ||
        (has_next && make_rows(g, &b->next, n, &g->next_row, &g->next_succ) < 0))
        return dpro_error_nomem(err);
    int rc = check_acyclic(g, n, b->name, err);
    if (rc < 0)
        return rc;
    if (MOVE(dur_ns) || MOVE(gap_ns) || MOVE(seen_start_ns) || MOVE(seen_dur_ns) ||
        MOVE(size_bytes) || MOVE(transaction) || MOVE(device) || MOVE(name) || MOVE(tensor) ||
        MOVE(rank) || MOVE(kind) || MOVE(flags) || MOVE(phase))
        return dpro_error_nomem(err);
    uint32_t n_devices = (uint32_t)b->devices.n, n_ranks = (uint32_t)b->ranks.n;
    g->devices = arena_array(&g->arena, n_devices, sizeof *g->devices);
    g->ranks = arena_array(&g->arena, n_ranks, sizeof *g->ranks);
    if (!g->devices || !g->ranks)
        return dpro_error_nomem(err);
    if (n_devices)
        memcpy(g->devices, b->devices.at, n_devices * sizeof *g->devices);
    if (n_ranks)
        memcpy(g->ranks, b->ranks.at, n_ranks * sizeof *g->ranks);
    g->n_ops = n;
    g->n_devices = n_devices;
    g->n_ranks = n_ranks;
    /* Nothing leads into a next iteration: there is no period to predict, only one run. */
    g->single_iteration = !has_next;
    b->graph = NULL;
    *graph = g;
    return 0;
}

int dpro_graph_finish(struct dpro_graph_builder *builder, struct dpro_graph **graph,
                      struct dpro_error *err)
{
    return WITHIN_SCOPE_OF(&builder->scope, dpro_error_nomem(err), finish(builder, graph, err));
}
