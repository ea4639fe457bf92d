/* Makes the ops, the messages of collectives, and the graph of them.
 *
 * A rank has a device for computation, one for each direction of its link, and one for adding up. A
 * message is three ops: what precedes it, then SEND and RECV, which wait for both links. */
#include "graph_maker.h"
#include "base/base.h"
#include "graph_op.h"

uint32_t maker_op(struct maker *m, uint32_t after, enum dpro_op_kind kind, uint32_t rank,
                  enum maker_device device, const char *name, double dur_ns)
{
    uint32_t op = (uint32_t)m->nodes.n;
    struct node node = {
        .op = {.kind = kind,
               .rank = (int)rank,
               .device = device == NO_DEVICE ? DPRO_NO_DEVICE : rank * N_DEVICES + device,
               .name = name,
               .dur_ns = (int64_t)(dur_ns + 0.5)}};
    if (m->nodes.n >= DPRO_NO_OP - 1)
        mem_fail();
    array_push(&m->nodes, node);
    maker_edge(m, after, op);
    return op;
}

uint32_t maker_wait(struct maker *m, uint32_t after, uint32_t rank, const char *name, double dur_ns)
{
    return maker_op(m, after, DPRO_OP_BARRIER, rank, NO_DEVICE, name, dur_ns);
}

static void add_edge(struct maker *m, struct edge edge)
{
    if (edge.from != DPRO_NO_OP && edge.to != DPRO_NO_OP)
        array_push(&m->edges, edge);
}

void maker_edge(struct maker *m, uint32_t from, uint32_t to)
{
    add_edge(m, (struct edge){from, to, false});
}

void maker_next(struct maker *m, uint32_t from, uint32_t to)
{
    add_edge(m, (struct edge){from, to, true});
}

static uint32_t add_half(struct maker *m, uint32_t call, bool sends,
                         const struct sync_message *message)
{
    double wire_ns = (double)sync_wire_ns(m->net, message);
    uint32_t op = sends ? maker_op(m, call, DPRO_OP_SEND, message->from, SENDS, "send", wire_ns)
                        : maker_op(m, call, DPRO_OP_RECV, message->to, RECEIVES, "recv", wire_ns);
    m->nodes.at[op].op.size_bytes = message->bytes;
    m->nodes.at[op].op.transaction = m->transaction;
    maker_edge(m, m->stations[message->from].sent, op);
    maker_edge(m, m->stations[message->to].received, op);
    return op;
}

static void add_message(struct maker *m, uint32_t index, uint32_t start)
{
    const struct sync_message *message = &m->messages.list.at[index];
    struct station *from = &m->stations[message->from], *to = &m->stations[message->to];
    uint32_t after = message->needs == SYNC_NONE ? start : m->ready[message->needs];
    uint32_t call = maker_op(m, after, DPRO_OP_LAUNCH, message->from, NO_DEVICE, "message",
                             (double)sync_message_ns(m->net, message));
    m->transaction++;
    uint32_t send = add_half(m, call, true, message);
    uint32_t recv = add_half(m, call, false, message);
    from->sent = send;
    to->received = m->ready[index] = recv;
    if (message->adds) {
        uint32_t sum = maker_op(m, recv, DPRO_OP_REDUCE, message->to, ADDS, "add",
                                (double)sync_ns(m->net->collective.reduce_ns, message->bytes));
        maker_edge(m, to->added, sum);
        to->added = m->ready[index] = sum;
    }
}

uint32_t maker_collective(struct maker *m, uint32_t barrier, uint64_t size_bytes)
{
    uint32_t start = maker_op(m, barrier, DPRO_OP_COLLECTIVE, 0, NO_DEVICE, "all_reduce",
                              (double)sync_ns(m->net->collective.overhead_ns, 1));
    uint32_t end = maker_wait(m, start, 0, "all_reduce ends", 0);
    sync_list(m->net, size_bytes, false, &m->messages);
    if (m->messages.list.n > DPRO_NO_OP / 8)
        mem_fail();
    if (m->messages.list.n > m->n_ready) {
        m->n_ready = m->messages.list.n;
        m->ready = arena_alloc(&m->arena, m->n_ready * sizeof *m->ready);
    }
    memset(m->stations, 0xff, m->n_nodes * sizeof *m->stations);
    for (uint32_t i = 0; i < m->messages.list.n; i++)
        add_message(m, i, start);
    for (uint32_t i = 0; i < m->n_nodes; i++) {
        maker_edge(m, m->stations[i].received, end);
        maker_edge(m, m->stations[i].added, end);
    }
    return end;
}

/* ---- handing over ---- */

static void add_devices(const struct maker *m, struct graph_builder *builder)
{
    static const struct {
        enum dpro_device_kind kind;
        const char *name;
    } devices[N_DEVICES] = {[COMPUTE] = {DPRO_DEVICE_CPU_THREAD, "compute"},
                            [SENDS] = {DPRO_DEVICE_LINK_TX, "link, sending"},
                            [RECEIVES] = {DPRO_DEVICE_LINK_RX, "link, receiving"},
                            [ADDS] = {DPRO_DEVICE_CPU_THREAD, "adding up"}};
    for (uint32_t node = 0; node < m->n_nodes; node++)
        for (uint32_t d = 0; d < N_DEVICES; d++)
            graph_builder_add_device(builder, devices[d].kind, (int)node, devices[d].name);
}

/* Ops by rank, each rank's as they were noted; ids: what the builder calls them. */
static void add_nodes(struct maker *m, struct graph_builder *builder, uint32_t *ids)
{
    uint32_t *first = arena_array(&m->arena, m->n_nodes + (size_t)2, sizeof *first);
    uint32_t *order = arena_alloc(&m->arena, m->nodes.n * sizeof *order);
    for (size_t i = 0; i < m->nodes.n; i++)
        first[m->nodes.at[i].op.rank + 1]++;
    for (uint32_t r = 0; r < m->n_nodes; r++)
        first[r + 1] += first[r];
    for (uint32_t i = 0; i < m->nodes.n; i++) {
        ids[i] = first[m->nodes.at[i].op.rank]++;
        order[ids[i]] = i;
    }
    for (uint32_t i = 0; i < m->nodes.n; i++) {
        const struct node *node = &m->nodes.at[order[i]];
        add_op(builder, &node->op, node->flags);
    }
}

static void add_spares(const struct maker *m, const uint32_t *ids, struct dpro_graph *g)
{
    for (size_t i = 0; i < m->nodes.n; i++) {
        if (!m->nodes.at[i].spare)
            continue;
        if (!g->spare)
            g->spare = arena_array(&g->arena, g->n_ops, 1);
        g->spare[ids[i]] = m->nodes.at[i].spare;
    }
}

struct dpro_graph *maker_finish(struct maker *m)
{
    struct graph_builder *builder = graph_builder_create();
    uint32_t *ids = arena_alloc(&m->arena, m->nodes.n * sizeof *ids);
    add_devices(m, builder);
    add_nodes(m, builder, ids);
    for (size_t i = 0; i < m->edges.n; i++) {
        const struct edge *edge = &m->edges.at[i];
        graph_builder_add_edge(builder, ids[edge->from], ids[edge->to], edge->next);
    }
    struct dpro_graph *graph = graph_builder_finish(builder);
    add_spares(m, ids, graph);
    return graph;
}

void maker_init(struct maker *m, const struct model_net *net, uint32_t n_more)
{
    *m = (struct maker){.net = net, .n_nodes = sync_n_nodes(net)};
    m->n_nodes += n_more;
    m->stations = arena_array(&m->arena, m->n_nodes, sizeof *m->stations);
}

void maker_fini(struct maker *m)
{
    sync_messages_fini(&m->messages);
    array_fini(&m->nodes);
    array_fini(&m->edges);
    arena_fini(&m->arena);
}
