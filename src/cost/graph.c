/* cost/graph.c: the global DFG of a model and a strategy.
 *
 * A rank computes on one device and has one for each direction of its link and one for adding up.
 * A message is three ops: what precedes it, then SEND and RECV, which wait for both links; ops are
 * noted first and then handed to the builder rank by rank. */
#include "cost/graph.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cost/buckets.h"
#include "cost/sync.h"
#include "graph/builder.h"

enum { COMPUTE, SENDS, RECEIVES, ADDS, N_DEVICES };

struct node {
    struct dpro_op op;
    uint8_t flags, spare;
};

struct edge {
    uint32_t from, to;
    bool next;
};

/* What a node of a collective did last. */
struct station {
    uint32_t sent, received, added; /* ops; DPRO_NO_OP: none yet */
};

struct maker {
    const struct model_net *net;
    uint32_t n_nodes; /* ranks, then servers */
    struct sync_messages messages;
    ARRAY(struct node) nodes;
    ARRAY(struct edge) edges;
    struct station *stations;
    uint32_t *ready; /* by message of the collective: the op with which it is there */
    size_t n_ready;
    uint64_t transaction;
    bool failed; /* out of memory */
};

static uint32_t add_op(struct maker *m, enum dpro_op_kind kind, uint32_t rank, uint32_t device,
                       const char *name, int64_t dur_ns)
{
    struct node node = {
        .op = {.kind = kind,
               .rank = (int)rank,
               .device = device == DPRO_NO_DEVICE ? device : rank * N_DEVICES + device,
               .name = name,
               .dur_ns = dur_ns}};
    if (m->nodes.n >= DPRO_NO_OP - 1 || array_push(&m->nodes, node) < 0) {
        m->failed = true;
        return 0;
    }
    return (uint32_t)m->nodes.n - 1;
}

static void add_edge(struct maker *m, uint32_t from, uint32_t to, bool next)
{
    struct edge edge = {from, to, next};
    if (from != DPRO_NO_OP && to != DPRO_NO_OP && array_push(&m->edges, edge) < 0)
        m->failed = true;
}

static uint32_t add_half(struct maker *m, enum dpro_op_kind kind,
                         const struct sync_message *message, uint32_t call)
{
    bool sends = kind == DPRO_OP_SEND;
    uint32_t op = add_op(m, kind, sends ? message->from : message->to, sends ? SENDS : RECEIVES,
                         sends ? "send" : "recv", sync_wire_ns(m->net, message->bytes));
    if (m->failed)
        return op;
    m->nodes.at[op].op.size_bytes = message->bytes;
    m->nodes.at[op].op.transaction = m->transaction;
    add_edge(m, call, op, false);
    add_edge(m, m->stations[message->from].sent, op, false);
    add_edge(m, m->stations[message->to].received, op, false);
    return op;
}

static void add_message(struct maker *m, uint32_t index, uint32_t start)
{
    const struct sync_message *message = &m->messages.list.at[index];
    struct station *from = &m->stations[message->from], *to = &m->stations[message->to];
    uint32_t call = add_op(m, DPRO_OP_LAUNCH, message->from, DPRO_NO_DEVICE, "message",
                           sync_message_ns(m->net));
    add_edge(m, message->needs == SYNC_NONE ? start : m->ready[message->needs], call, false);
    m->transaction++;
    uint32_t send = add_half(m, DPRO_OP_SEND, message, call);
    uint32_t recv = add_half(m, DPRO_OP_RECV, message, call);
    from->sent = send;
    to->received = m->ready[index] = recv;
    if (message->adds) {
        uint32_t sum = add_op(m, DPRO_OP_REDUCE, message->to, ADDS, "add",
                              sync_add_ns(m->net, message->bytes));
        add_edge(m, recv, sum, false);
        add_edge(m, to->added, sum, false);
        to->added = m->ready[index] = sum;
    }
}

/* Its messages after `start`; the op with which it has ended. */
static uint32_t add_collective(struct maker *m, uint32_t meet, uint64_t size_bytes)
{
    uint32_t start =
        add_op(m, DPRO_OP_COLLECTIVE, 0, DPRO_NO_DEVICE, "all_reduce", sync_start_ns(m->net));
    add_edge(m, meet, start, false);
    uint32_t end = add_op(m, DPRO_OP_BARRIER, 0, DPRO_NO_DEVICE, "all_reduce ends", 0);
    add_edge(m, start, end, false);
    if (sync_list(m->net, size_bytes, false, &m->messages) < 0 ||
        m->messages.list.n > DPRO_NO_OP / 8) {
        m->failed = true;
        return end;
    }
    if (m->messages.list.n > m->n_ready) {
        free(m->ready);
        m->ready = malloc(m->messages.list.n * sizeof *m->ready);
        m->n_ready = m->ready ? m->messages.list.n : 0;
        m->failed |= !m->ready;
    }
    memset(m->stations, 0xff, m->n_nodes * sizeof *m->stations);
    for (uint32_t i = 0; i < m->messages.list.n && !m->failed; i++)
        add_message(m, i, start);
    for (uint32_t i = 0; i < m->n_nodes && !m->failed; i++) {
        add_edge(m, m->stations[i].received, end, false);
        add_edge(m, m->stations[i].added, end, false);
    }
    return end;
}

/* ---- handing over ---- */

static int add_devices(const struct maker *m, struct dpro_graph_builder *builder)
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
            if (dpro_graph_add_device(builder, devices[d].kind, (int)node, devices[d].name) < 0)
                return -1;
    return 0;
}

/* Ops by rank, each rank's as they were noted. */
static int add_nodes(const struct maker *m, struct dpro_graph_builder *builder, uint32_t *ids)
{
    uint32_t *first = calloc(m->n_nodes + (size_t)2, sizeof *first);
    uint32_t *order = malloc((m->nodes.n + 1) * sizeof *order);
    int rc = first && order ? 0 : -1;
    for (size_t i = 0; i < m->nodes.n && rc == 0; i++)
        first[m->nodes.at[i].op.rank + 1]++;
    for (uint32_t r = 0; r < m->n_nodes && rc == 0; r++)
        first[r + 1] += first[r];
    for (uint32_t i = 0; i < m->nodes.n && rc == 0; i++) {
        ids[i] = first[m->nodes.at[i].op.rank]++;
        order[ids[i]] = i;
    }
    for (size_t i = 0; i < m->nodes.n && rc == 0; i++) {
        const struct node *node = &m->nodes.at[order[i]];
        rc = dpro_graph_add_op(builder, &node->op) < 0 ? -1 : 0;
        if (rc == 0)
            graph_builder_flag(builder, (uint32_t)i, node->flags);
    }
    free(first);
    free(order);
    return rc;
}

static int hand_over(const struct maker *m, struct dpro_graph **graph, struct dpro_error *err)
{
    struct dpro_graph_builder *builder = m->failed ? NULL : dpro_graph_builder_create(err);
    uint32_t *ids = malloc((m->nodes.n + 1) * sizeof *ids);
    int rc = -1;
    if (!builder || !ids || add_devices(m, builder) < 0 || add_nodes(m, builder, ids) < 0)
        goto out;
    for (size_t i = 0; i < m->edges.n; i++) {
        const struct edge *edge = &m->edges.at[i];
        if (dpro_graph_add_edge(builder, ids[edge->from], ids[edge->to], edge->next) < 0)
            goto out;
    }
    rc = dpro_graph_finish(builder, graph, err);
    if (rc < 0)
        goto fail;
    for (size_t i = 0; i < m->nodes.n; i++) {
        if (!m->nodes.at[i].spare)
            continue;
        struct dpro_graph *g = *graph;
        if (!g->spare && !(g->spare = arena_array(&g->arena, g->n_ops, 1))) {
            dpro_graph_destroy(g);
            rc = -1;
            break;
        }
        g->spare[ids[i]] = m->nodes.at[i].spare;
    }
out:
    if (rc < 0)
        rc = dpro_error_nomem(err);
fail:
    free(ids);
    dpro_graph_builder_destroy(builder);
    return rc;
}

static int maker_init(struct maker *m, const struct model_net *net)
{
    *m = (struct maker){.net = net, .n_nodes = sync_n_nodes(net)};
    m->stations = calloc(m->n_nodes + (size_t)1, sizeof *m->stations);
    return m->stations ? 0 : -1;
}

static void maker_fini(struct maker *m)
{
    sync_messages_fini(&m->messages);
    array_fini(&m->nodes);
    array_fini(&m->edges);
    free(m->stations);
    free(m->ready);
}

int cost_graph_collective(const struct model_net *net, uint64_t size_bytes,
                          struct dpro_graph **graph, struct dpro_error *err)
{
    struct maker m;
    int rc = -1;
    if (maker_init(&m, net) == 0) {
        add_collective(&m, DPRO_NO_OP, size_bytes);
        rc = 0;
    }
    rc = rc < 0 ? dpro_error_nomem(err) : hand_over(&m, graph, err);
    maker_fini(&m);
    return rc;
}
