/* The global data-flow graph as Chakra execution traces (mlcommons/chakra, et_def.proto; field by
 * field in doc/formats/exports.md), as simulators take them: a file a rank, and the ranks of each
 * group in comm_group.json.
 *
 * An op is a node with the op's number. Nodes depend on the ops that they wait for (data) and on
 * the op before them on their device (control), in the order of the replay, so that there is no
 * circle; nodes that nothing waits for come before the iteration's end. A collective is one node a
 * rank, its messages are left to the simulator. */
#include "table/tables.h"

#include "base/protobuf.h"
#include "base/writer.h"

enum { GLOBAL_VERSION = 1 };
enum {
    NODE_ID = 1,
    NODE_NAME,
    NODE_TYPE,
    NODE_CTRL,
    NODE_DATA,
    NODE_START,
    NODE_US,
    NODE_ATTR = 10
};
enum node_type { TYPE_COMP = 4, TYPE_SEND, TYPE_RECV, TYPE_COLLECTIVE };
enum { ATTR_NAME = 1, ATTR_INT32 = 7, ATTR_INT64 = 9, ATTR_BOOL = 27, ATTR_TEXT = 29 };

/* As the schema counts them; of others there is no word. */
static int comm_type(enum dpro_collective_kind kind)
{
    static const enum dpro_collective_kind known[] = {
        DPRO_ALL_REDUCE, DPRO_REDUCE,    DPRO_ALL_GATHER, DPRO_GATHER,
        DPRO_SCATTER,    DPRO_BROADCAST, DPRO_ALL_TO_ALL, DPRO_REDUCE_SCATTER};
    for (int i = 0; i < (int)(sizeof known / sizeof *known); i++)
        if (known[i] == kind)
            return i;
    return kind == DPRO_BARRIER ? 9 : -1;
}

struct chakra {
    struct arena arena;
    const struct dpro_graph *graph;
    const int64_t *start_ns;
    bool *is_left_out;    /* by op: messages of collectives, and what joins their ranks */
    uint32_t *transfer;   /* by op: 1 + the member whose transfer it is; 0: none */
    uint32_t *collective; /* by member */
    const char **group;   /* by collective: the number of its ranks, which are in groups */
    struct strtab groups; /* "0, 1" */
};

/* A rank's ops, and what each waits for. */
struct chakra_rank {
    const struct chakra *of;
    const struct graph_rank *rank;
    uint32_t *order;             /* ops in the order in which they start */
    uint32_t *place;             /* of an op in that order, from the rank's first op */
    uint32_t *first_pred, *pred; /* compressed rows, from the rank's first op */
    bool *has_successor;         /* likewise */
    int64_t *owed_ns;            /* by device: what rounding to microseconds has left so far */
    uint32_t *before;            /* by device: 1 + the last node on it; 0: none yet */
    struct pb_out node, attr;
};

/* ---- the ops' order ---- */

static bool is_of(const struct graph_rank *rank, dpro_op_id op)
{
    return op - rank->first_op < rank->n_ops;
}

struct started_op {
    int64_t start_ns;
    uint32_t depth, op; /* depth: place in an order that no edge goes against */
};
ORDER(by_start, struct started_op, ASCENDING(start_ns) ?: ASCENDING(depth));

/* Edges within the rank, by the op that waits; then Kahn's order, then that by start. */
static void order_ops_of(struct chakra_rank *r)
{
    SCRATCH_ARENA struct arena scratch = {0};
    const struct dpro_graph *g = r->of->graph;
    uint32_t first = r->rank->first_op, n = r->rank->n_ops, n_succ, n_done = 0;
    uint32_t *left = arena_array(&scratch, n + (size_t)1, sizeof *left);
    struct started_op *started = arena_array(&scratch, n + (size_t)1, sizeof *started);
    for (uint32_t op = first; op < first + n; op++) {
        const dpro_op_id *succ = dpro_graph_successors(g, op, 0, &n_succ);
        for (uint32_t e = 0; e < n_succ; e++)
            if (is_of(r->rank, succ[e]))
                r->first_pred[succ[e] - first + 1]++;
    }
    for (uint32_t i = 0; i < n; i++) {
        left[i] = r->first_pred[i + 1];
        if (left[i] == 0)
            started[n_done++].op = i;
        r->first_pred[i + 1] += r->first_pred[i];
    }
    uint32_t *fill = arena_copy(&scratch, r->first_pred, n + (size_t)1, sizeof *fill);
    for (uint32_t i = 0; i < n_done; i++) {
        const dpro_op_id *succ = dpro_graph_successors(g, first + started[i].op, 0, &n_succ);
        started[i].start_ns = r->of->start_ns[first + started[i].op];
        started[i].depth = i;
        for (uint32_t e = 0; e < n_succ; e++)
            if (is_of(r->rank, succ[e])) {
                uint32_t to = succ[e] - first;
                r->pred[fill[to]++] = first + started[i].op;
                if (--left[to] == 0)
                    started[n_done++].op = to;
            }
    }
    qsort(started, n_done, sizeof *started, by_start);
    for (uint32_t i = 0; i < n_done; i++) {
        r->order[i] = first + started[i].op;
        r->place[started[i].op] = i;
    }
}

/* ---- nodes ---- */

static void begin_attr(struct chakra_rank *r, const char *name)
{
    r->attr.n = 0;
    pb_put_text(&r->attr, ATTR_NAME, name);
}

static void put_int_attr(struct chakra_rank *r, const char *name, uint32_t as, int64_t value)
{
    begin_attr(r, name);
    pb_put_uint(&r->attr, as, (uint64_t)value);
    pb_put_message(&r->node, NODE_ATTR, &r->attr);
}

static const char *group_of(struct chakra *c, const struct graph_collective *collective)
{
    SCRATCH_ARENA struct arena scratch = {0};
    const char *text = "";
    for (uint32_t m = 0; m < collective->n_members; m++) {
        dpro_op_id op = c->graph->members[collective->first_member + m].transfer;
        text = arena_format(&scratch, "%s%s%d", text, m ? ", " : "",
                            c->graph->ranks[c->graph->rank[op]].rank);
    }
    return arena_format(&c->arena, "%u", strtab_add(&c->groups, text, strlen(text)));
}

/* What a node says of a communication; false: there is no word for it. */
static bool put_communication(struct chakra_rank *r, uint32_t member, enum node_type *type)
{
    const struct dpro_graph *g = r->of->graph;
    const struct graph_collective *c = &g->collectives[r->of->collective[member]];
    enum dpro_op_kind kind = (enum dpro_op_kind)g->kind[g->members[member].transfer];
    int how = comm_type((enum dpro_collective_kind)c->kind);
    bool is_message = (kind == DPRO_OP_SEND || kind == DPRO_OP_RECV) && c->n_members == 2;
    if (how < 0 && !is_message)
        return false;
    put_int_attr(r, "comm_size", ATTR_INT64, (int64_t)c->size_bytes);
    if (!is_message) {
        *type = TYPE_COLLECTIVE;
        put_int_attr(r, "comm_type", ATTR_INT64, how);
        begin_attr(r, "pg_name");
        pb_put_text(&r->attr, ATTR_TEXT, r->of->group[r->of->collective[member]]);
        pb_put_message(&r->node, NODE_ATTR, &r->attr);
        return true;
    }
    uint32_t other = 2 * c->first_member + 1 - member;
    int own = r->rank->rank, peer = g->ranks[g->rank[g->members[other].transfer]].rank;
    *type = kind == DPRO_OP_SEND ? TYPE_SEND : TYPE_RECV;
    put_int_attr(r, "comm_src", ATTR_INT32, kind == DPRO_OP_SEND ? own : peer);
    put_int_attr(r, "comm_dst", ATTR_INT32, kind == DPRO_OP_SEND ? peer : own);
    put_int_attr(r, "comm_tag", ATTR_INT32, r->of->collective[member]);
    return true;
}

/* Those that it waits for and that come before it: not each has to (graph.h, spare). */
static void put_deps(struct chakra_rank *r, dpro_op_id op, uint32_t member)
{
    uint32_t i = op - r->rank->first_op, device = r->of->graph->device[op];
    struct pb_out *list = &r->attr;
    list->n = 0;
    for (uint32_t p = r->first_pred[i]; p < r->first_pred[i + 1]; p++) {
        dpro_op_id pred = r->pred[p];
        if (!r->of->is_left_out[pred] && r->place[pred - r->rank->first_op] < r->place[i]) {
            pb_put_varint(list, pred);
            r->has_successor[pred - r->rank->first_op] = true;
        }
    }
    if (member != UINT32_MAX) { /* what lies between is left out */
        dpro_op_id arrival = r->of->graph->members[member].arrival;
        pb_put_varint(list, arrival);
        r->has_successor[arrival - r->rank->first_op] = true;
    }
    pb_put_message(&r->node, NODE_DATA, list);
    if (device < r->of->graph->n_devices) {
        if (r->before[device] > 0) {
            pb_put_varint(list, r->before[device] - 1);
            r->has_successor[r->before[device] - 1 - r->rank->first_op] = true;
        }
        r->before[device] = 1 + op;
    }
    if (r->of->graph->flags[op] & GRAPH_OP_BOUNDARY)
        for (uint32_t k = 0; k < r->rank->n_ops; k++)
            if (!r->has_successor[k] && k != i && !r->of->is_left_out[r->rank->first_op + k])
                pb_put_varint(list, r->rank->first_op + k);
    pb_put_message(&r->node, NODE_CTRL, list);
}

/* The gap before an op is a part of it. Whole microseconds: what rounding takes from a device's op
 * it gives to the next. */
static int64_t node_us(struct chakra_rank *r, dpro_op_id op)
{
    const struct dpro_graph *g = r->of->graph;
    int64_t none = 0, *owed = g->device[op] < g->n_devices ? &r->owed_ns[g->device[op]] : &none;
    int64_t ns = g->dur_ns[op] + g->gap_ns[op] + *owed, us = MAX((ns + 500) / 1000, (int64_t)0);
    *owed = ns - 1000 * us;
    return us;
}

static void put_node(struct writer *w, struct chakra_rank *r, dpro_op_id id)
{
    struct dpro_op op = dpro_graph_op(r->of->graph, id);
    uint32_t member = r->of->transfer[id] - 1;
    enum node_type type = TYPE_COMP;
    struct pb_out length = {0};
    r->node.n = 0;
    pb_put_uint(&r->node, NODE_ID, id);
    pb_put_text(&r->node, NODE_NAME, op.name);
    put_deps(r, id, member);
    pb_put_uint(&r->node, NODE_START, (uint64_t)MAX(r->of->start_ns[id] / 1000, (int64_t)0));
    pb_put_uint(&r->node, NODE_US, (uint64_t)node_us(r, id));
    put_int_attr(r, "is_cpu_op", ATTR_BOOL, !(r->of->graph->flags[id] & GRAPH_OP_GPU));
    if (member != UINT32_MAX)
        put_communication(r, member, &type);
    pb_put_uint(&r->node, NODE_TYPE, type);
    pb_put_varint(&length, r->node.n);
    writer_put(w, length.at, length.n);
    writer_put(w, r->node.at, r->node.n);
    mem_free(length.at);
}

static void write_rank(struct writer *w, const void *arg)
{
    SCRATCH_ARENA struct arena arena = {0};
    struct chakra_rank r = *(const struct chakra_rank *)arg;
    const struct dpro_graph *g = r.of->graph;
    size_t n = r.rank->n_ops + (size_t)1;
    r.order = arena_array(&arena, n, sizeof *r.order);
    r.place = arena_array(&arena, n, sizeof *r.place);
    r.first_pred = arena_array(&arena, n + 1, sizeof *r.first_pred);
    r.pred = arena_array(&arena, dpro_graph_n_edges(g) + (size_t)1, sizeof *r.pred);
    r.has_successor = arena_array(&arena, n, sizeof *r.has_successor);
    r.owed_ns = arena_array(&arena, g->n_devices + (size_t)1, sizeof *r.owed_ns);
    r.before = arena_array(&arena, g->n_devices + (size_t)1, sizeof *r.before);
    order_ops_of(&r);
    pb_put_text(&r.node, GLOBAL_VERSION, "0.0.4");
    pb_put_varint(&r.attr, r.node.n);
    writer_put(w, r.attr.at, r.attr.n);
    writer_put(w, r.node.at, r.node.n);
    for (uint32_t i = 0; i + 1 < n; i++) /* the boundary comes last: it waits for all */
        if (!r.of->is_left_out[r.order[i]] && r.order[i] != r.rank->boundary)
            put_node(w, &r, r.order[i]);
    r.place[r.rank->boundary - r.rank->first_op] = UINT32_MAX;
    put_node(w, &r, r.rank->boundary);
    FREE_ALL(&r.node, &r.attr);
}

static void write_groups(struct writer *w, const void *arg)
{
    const struct chakra *c = arg;
    writer_text(w, "{");
    for (uint32_t id = 1; id < c->groups.n; id++)
        writer_printf(w, "%s\n\"%u\": [%s]", id > 1 ? "," : "", id, strtab_get(&c->groups, id));
    writer_text(w, "\n}\n");
}

static void find_communications(struct chakra *c)
{
    const struct dpro_graph *g = c->graph;
    c->is_left_out = arena_array(&c->arena, g->n_ops + (size_t)1, sizeof *c->is_left_out);
    c->transfer = arena_array(&c->arena, g->n_ops + (size_t)1, sizeof *c->transfer);
    c->collective = arena_array(&c->arena, g->n_members + (size_t)1, sizeof *c->collective);
    c->group = arena_array(&c->arena, g->n_collectives + (size_t)1, sizeof *c->group);
    EACH_OF (const struct graph_rank, rank, g->ranks, g->n_ranks)
        memset(c->is_left_out + rank->first_op + rank->n_ops - rank->n_message_ops, 1,
               rank->n_message_ops);
    for (uint32_t i = 0; i < g->n_collectives; i++) {
        const struct graph_collective *of = &g->collectives[i];
        if (of->barrier != DPRO_NO_OP)
            c->is_left_out[of->barrier] = true;
        c->group[i] = group_of(c, of);
        for (uint32_t m = of->first_member; m < of->first_member + of->n_members; m++) {
            c->transfer[g->members[m].transfer] = 1 + m;
            c->collective[m] = i;
        }
    }
}

static __attribute__((noinline)) int write_files(struct chakra *c, const char *folder,
                                                 const struct dpro_sink *sink,
                                                 struct dpro_error *err)
{
    const struct dpro_graph *g = c->graph;
    find_communications(c);
    size_t n = g->n_ranks + (size_t)1;
    struct set_file *files = arena_array(&c->arena, n, sizeof *files);
    struct chakra_rank *ranks = arena_array(&c->arena, n, sizeof *ranks);
    for (uint32_t r = 0; r < g->n_ranks; r++) {
        ranks[r] = (struct chakra_rank){.of = c, .rank = &g->ranks[r]};
        files[r] = (struct set_file){arena_format(&c->arena, "job.%d.et", g->ranks[r].rank), false,
                                     write_rank, &ranks[r]};
    }
    files[n - 1] = (struct set_file){"comm_group.json", false, write_groups, c};
    int rc = file_set_write(folder, "traces", files, n, sink, err);
    strtab_fini(&c->groups);
    arena_fini(&c->arena);
    return rc;
}

int dpro_chakra_write(const struct dpro_graph *graph, const struct dpro_replay *replay,
                      const char *folder, const struct dpro_sink *sink, struct dpro_error *err)
{
    struct chakra c = {.graph = graph, .start_ns = dpro_replay_view(replay)->start_ns};
    if (graph->n_servers > 0 || graph->n_exchanges > 0)
        return dpro_error_set(err, DPRO_EUSAGE,
                              "the job's gradients go over parameter servers, for which Chakra has "
                              "no word; --graphml and --sqlite hold them");
    return WITHIN_SCOPE(dpro_error_nomem(err), write_files(&c, folder, sink, err));
}
