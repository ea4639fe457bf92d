/* cost/model_graph.c: the global DFG of a model and a strategy.
 *
 * A rank computes on one device and has one for each direction of its link and one for adding up.
 * A collective's message is three ops: what precedes it, then SEND and RECV, which wait for both
 * links. What parameter servers are sent goes in chunks, so that ways that have a link in common
 * share it; servers' threads, and what passes within a rank's host, have places of their own behind
 * the nodes. Ops are noted first and then handed to the builder place by place. */
#include "cost/model_graph.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cost/buckets.h"
#include "cost/fused.h"
#include "cost/server_placement.h"
#include "cost/sync.h"
#include "graph/builder.h"

enum { COMPUTE, SENDS, RECEIVES, ADDS, N_DEVICES };
enum { CHUNKS = 64 }; /* of the largest bucket */

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
    uint32_t n_nodes; /* ranks, then servers on hosts of their own, then other places */
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
static uint32_t add_collective(struct maker *m, uint32_t barrier, uint64_t size_bytes)
{
    uint32_t start =
        add_op(m, DPRO_OP_COLLECTIVE, 0, DPRO_NO_DEVICE, "all_reduce", sync_start_ns(m->net));
    add_edge(m, barrier, start, false);
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

static int maker_init(struct maker *m, const struct model_net *net, uint32_t n_more)
{
    *m = (struct maker){.net = net, .n_nodes = sync_n_nodes(net)};
    m->n_nodes += n_more;
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
    if (maker_init(&m, net, 0) == 0) {
        add_collective(&m, DPRO_NO_OP, size_bytes);
        rc = 0;
    }
    rc = rc < 0 ? dpro_error_nomem(err) : hand_over(&m, graph, err);
    maker_fini(&m);
    return rc;
}

/* ---- a job ---- */

struct bucket_ops {
    uint64_t size_bytes; /* on the wires */
    double copy_ns, launch_ns, cast_ns;
    uint32_t n_missing; /* tensors, on the rank at hand */
};

/* Of a bucket on one rank, or of a collective on all. */
struct bucket_ends {
    uint32_t barrier, end; /* ops: launched, and back */
};

/* From a rank to a server or back. What it carries keeps its order. */
struct way {
    uint32_t from, to;                 /* nodes */
    uint32_t first, sent, received[2]; /* ops: the first and the last one sent; the last received */
};

struct job {
    struct maker m;
    const struct dpro_model *model;
    const struct dpro_strategy *strategy;
    struct bucket_ops *buckets;
    struct bucket_ends *at; /* [bucket * n_ranks + rank] */
    uint32_t *bucket_of;    /* by tensor */
    uint32_t *ends;         /* collectives in their order */
    uint32_t n_ends;
    uint32_t n_servers; /* parameter servers; 0: collectives */
    struct way *ways;   /* [rank * n_servers + server], then those back */
    double chunk_bytes;
    uint32_t begins, ends_step; /* of a session's step */
};

static struct bucket_ends *at(const struct job *j, uint32_t bucket, uint32_t rank)
{
    return &j->at[(size_t)bucket * j->model->net.collective.n_ranks + rank];
}

/* The rank's next op; *last is the one before. */
static uint32_t go_on(struct job *j, uint32_t rank, enum dpro_op_kind kind, const char *name,
                      double dur_ns, uint32_t *last)
{
    uint32_t op = add_op(&j->m, kind, rank, COMPUTE, name, (int64_t)(dur_ns + 0.5));
    add_edge(&j->m, *last, op, false);
    *last = op;
    return op;
}

static void add_launch(struct job *j, uint32_t rank, uint32_t b, double scale, uint32_t *last)
{
    struct bucket_ops *bucket = &j->buckets[b];
    if (bucket->launch_ns > 0)
        go_on(j, rank, DPRO_OP_LAUNCH, "launch", bucket->launch_ns * scale, last);
    uint32_t launched = go_on(j, rank, DPRO_OP_BARRIER, "launched", 0, last);
    add_edge(&j->m, launched, at(j, b, rank)->barrier, false);
    add_edge(&j->m, at(j, b, rank)->end, launched, true); /* its memory is in use until then */
}

static void add_waits(struct job *j, uint32_t rank, const struct model_op *op, double scale,
                      uint32_t *last)
{
    for (uint32_t b = 0; op->needs == MODEL_ALL && b < j->strategy->n_buckets; b++) {
        uint32_t copy =
            go_on(j, rank, DPRO_OP_COPY, "copy back", j->buckets[b].copy_ns * scale, last);
        add_edge(&j->m, at(j, b, rank)->end, copy, false);
    }
}

static void add_rank(struct job *j, uint32_t rank)
{
    const struct model_rank *r = &j->model->ranks[rank % j->model->n_ranks];
    const struct model_program *program = &j->model->programs[r->program];
    const struct dpro_strategy *s = j->strategy;
    uint32_t last = DPRO_NO_OP, first = (uint32_t)j->m.nodes.n, next = 0;
    for (uint32_t b = 0; b < s->n_buckets; b++)
        j->buckets[b].n_missing = s->buckets[b].n;
    for (uint32_t i = 0; i < program->n_ops && !j->m.failed; i++) {
        const struct model_op *op = &program->ops[i];
        uint32_t f = fused_find(s, r->program, i);
        const struct dpro_fused_op *fused = f < s->n_fused ? &s->fused[f] : NULL;
        bool within = fused && fused->program == r->program && fused->first <= i;
        add_waits(j, rank, op, r->work_scale, &last);
        if (!within || fused->first == i) {
            int64_t work_ns = within ? fused->work_ns : op->work_ns;
            uint32_t node = go_on(j, rank, (enum dpro_op_kind)op->phase, op->name,
                                  (double)work_ns * r->work_scale, &last);
            if (op->needs < j->model->n_tensors)
                add_edge(&j->m, at(j, j->bucket_of[op->needs], rank)->end, node, op->needs_before);
        }
        if (op->tensor == MODEL_NONE)
            continue;
        uint32_t b = j->bucket_of[op->tensor];
        bool whole = --j->buckets[b].n_missing == 0;
        if (whole && !j->model->net.gate.in_order)
            add_launch(j, rank, b, r->work_scale, &last);
        while (j->model->net.gate.in_order && next < s->n_buckets &&
               j->buckets[next].n_missing == 0)
            add_launch(j, rank, next++, r->work_scale, &last);
    }
    uint32_t boundary = go_on(j, rank, DPRO_OP_BARRIER, "iteration", 0, &last);
    if (!j->m.failed)
        j->m.nodes.at[boundary].flags |= GRAPH_OP_BOUNDARY;
    add_edge(&j->m, boundary, first, true);
    add_edge(&j->m, j->begins, first, false);
    add_edge(&j->m, boundary, j->ends_step, false);
}

/* A bucket's transfers, one after the other; each collective waits for a free stream. */
static void add_bucket(struct job *j, uint32_t b)
{
    struct bucket_ops *bucket = &j->buckets[b];
    struct maker *m = &j->m;
    uint32_t parts = j->strategy->buckets[b].partitions, n_streams = j->model->net.gate.n_streams;
    uint32_t bucket_end = add_op(m, DPRO_OP_BARRIER, 0, DPRO_NO_DEVICE, "bucket ends", 0);
    uint32_t barrier = add_op(m, DPRO_OP_BARRIER, 0, DPRO_NO_DEVICE, "all have launched", 0);
    for (uint32_t r = 0; r < j->model->net.collective.n_ranks; r++)
        *at(j, b, r) = (struct bucket_ends){barrier, bucket_end};
    for (uint32_t p = 0; p < parts && !m->failed; p++) {
        uint64_t size = bucket->size_bytes / parts;
        if (p + 1 == parts)
            size = bucket->size_bytes - (parts - 1) * size;
        uint32_t free = add_op(m, DPRO_OP_BARRIER, 0, DPRO_NO_DEVICE, "a stream is free", 0);
        uint32_t cast =
            add_op(m, DPRO_OP_BARRIER, 0, DPRO_NO_DEVICE, "cast", (int64_t)(bucket->cast_ns + 0.5));
        for (uint32_t i = n_streams > 1 ? 0 : j->n_ends ? j->n_ends - 1 : 0; i < j->n_ends; i++)
            add_edge(m, j->ends[i], free, false);
        if (!m->failed && n_streams > 1 && j->n_ends >= n_streams)
            m->nodes.at[free].spare = (uint8_t)(n_streams - 1);
        if (n_streams == 1 || j->n_ends >= n_streams)
            add_edge(m, free, cast, false);
        add_edge(m, barrier, cast, false);
        uint32_t end = add_collective(m, cast, size);
        add_edge(m, end, bucket_end, false);
        j->ends[j->n_ends++] = end;
    }
}

/* ---- parameter servers ---- */

static double slowness(const struct job *j, uint32_t node)
{
    double rate = node < j->model->net.collective.n_ranks ? 1 : j->model->net.servers.link_rate;
    return rate > 0 ? 1 / rate : 1;
}

/* One of n chunks: a link's time for what comes before its end, less that for what comes before its
 * begin. */
static int64_t chunk_ns(double all_ns, uint32_t chunk, uint32_t n)
{
    return (int64_t)(all_ns * (chunk + 1) / n + 0.5) - (int64_t)(all_ns * chunk / n + 0.5);
}

/* As much as two chunks are between what is sent and what is received. */
static uint32_t add_chunks(struct job *j, struct way *way, uint32_t after, double bytes)
{
    struct maker *m = &j->m;
    uint32_t n = (uint32_t)(bytes / j->chunk_bytes) + 1, recv = after;
    double wire_ns = bytes * j->model->net.link.byte_ns.value;
    for (uint32_t c = 0; c < n && !m->failed; c++) {
        uint32_t send = add_op(m, DPRO_OP_SEND, way->from, SENDS, "send",
                               chunk_ns(wire_ns * slowness(j, way->from), c, n));
        recv = add_op(m, DPRO_OP_RECV, way->to, RECEIVES, "recv",
                      chunk_ns(wire_ns * slowness(j, way->to), c, n));
        if (m->failed)
            break;
        m->nodes.at[send].op.size_bytes = m->nodes.at[recv].op.size_bytes = (uint64_t)(bytes / n);
        m->nodes.at[send].op.transaction = m->nodes.at[recv].op.transaction = ++m->transaction;
        add_edge(m, after, send, false);
        add_edge(m, way->sent, send, false);
        add_edge(m, way->received[0], send, false);
        add_edge(m, send, recv, false);
        if (way->first == DPRO_NO_OP)
            way->first = send;
        way->sent = send;
        way->received[0] = way->received[1];
        way->received[1] = recv;
    }
    return recv;
}

/* From `after` on until it has arrived. */
static uint32_t carry(struct job *j, uint32_t rank, uint32_t server, bool down, uint32_t after,
                      double bytes)
{
    const struct model_net *net = &j->model->net;
    struct maker *m = &j->m;
    uint32_t n_ranks = net->collective.n_ranks, there;
    struct way *way = &j->ways[((down ? n_ranks : 0) + rank) * j->n_servers + server];
    if (way->from == way->to) {
        uint32_t place = sync_n_nodes(net) + j->n_servers + rank;
        there = add_op(m, DPRO_OP_COPY, place, down ? RECEIVES : SENDS, "within the host",
                       (int64_t)(bytes * net->link.within_ns.value + 0.5));
        add_edge(m, after, there, false);
    } else {
        there = add_chunks(j, way, after, bytes);
    }
    double more_ns = net->link.message_ns.value + (down ? net->collective.overhead_ns.value : 0);
    uint32_t arrived =
        add_op(m, DPRO_OP_BARRIER, rank, DPRO_NO_DEVICE, "arrives", (int64_t)(more_ns + 0.5));
    add_edge(m, there, arrived, false);
    return arrived;
}

/* When a server sends what a rank pulls, from the begin of a session's step. */
static int64_t read_ns(const struct job *j, uint32_t b, uint32_t rank)
{
    const struct strategy_bucket *bucket = &j->strategy->buckets[b];
    const int64_t *times = j->model->ranks[rank % j->model->n_ranks].read_ns;
    int64_t last = 0;
    for (uint32_t i = bucket->first; times && i < bucket->first + bucket->n; i++)
        if (times[j->strategy->order[i]] > last)
            last = times[j->strategy->order[i]];
    return last;
}

static double part_bytes(const struct job *j, uint32_t b, uint32_t part)
{
    uint64_t size = j->buckets[b].size_bytes, n = j->strategy->buckets[b].partitions;
    return (double)(size * (part + 1) / n - size * part / n);
}

static void pull(struct job *j, uint32_t b, uint32_t part, uint32_t rank, uint32_t after)
{
    uint32_t server = servers_of_part(j->model, j->strategy, b, part);
    uint32_t there = carry(j, rank, server, true, after, part_bytes(j, b, part));
    add_edge(&j->m, there, at(j, b, rank)->end, false);
    add_edge(&j->m, there, j->ends_step, false);
}

/* What all ranks push is answered, in a session when it is read. */
static void add_part(struct job *j, uint32_t b, uint32_t part)
{
    const struct model_net *net = &j->model->net;
    struct maker *m = &j->m;
    uint32_t server = servers_of_part(j->model, j->strategy, b, part);
    double bytes = part_bytes(j, b, part);
    double serve_ns = net->servers.push_ns.value + bytes * net->collective.reduce_ns.value;
    uint32_t answer =
        add_op(m, DPRO_OP_BARRIER, 0, DPRO_NO_DEVICE, "all have pushed",
               net->gate.pulls_with_step ? 0 : (int64_t)(net->servers.answer_ns.value + 0.5));
    for (uint32_t r = 0; r < net->collective.n_ranks && !m->failed; r++) {
        uint32_t pushed = carry(j, r, server, false, at(j, b, r)->barrier, bytes);
        uint32_t serve = add_op(m, DPRO_OP_REDUCE, sync_n_nodes(net) + server, ADDS, "serve",
                                (int64_t)(serve_ns + 0.5));
        add_edge(m, pushed, serve, false);
        add_edge(m, serve, answer, false);
    }
    for (uint32_t r = 0; r < net->collective.n_ranks && !m->failed && !net->gate.pulls_with_step;
         r++)
        pull(j, b, part, r, answer);
    add_edge(m, answer, j->ends_step, false);
}

static void add_served_bucket(struct job *j, uint32_t b)
{
    for (uint32_t r = 0; r < j->model->net.collective.n_ranks; r++) {
        at(j, b, r)->barrier = add_op(&j->m, DPRO_OP_BARRIER, r, DPRO_NO_DEVICE, "launched", 0);
        at(j, b, r)->end = add_op(&j->m, DPRO_OP_BARRIER, r, DPRO_NO_DEVICE, "bucket is back", 0);
    }
    for (uint32_t p = 0; p < j->strategy->buckets[b].partitions && !j->m.failed; p++)
        add_part(j, b, p);
}

/* The next bucket to be read after one, by time and number. */
static uint32_t next_read(const struct job *j, uint32_t rank, uint32_t last)
{
    uint32_t next = MODEL_NONE;
    for (uint32_t b = 0; b < j->strategy->n_buckets; b++) {
        int64_t ns = read_ns(j, b, rank), from = last == MODEL_NONE ? -1 : read_ns(j, last, rank);
        bool after = ns > from || (ns == from && b > last);
        if (after && (next == MODEL_NONE || ns < read_ns(j, next, rank)))
            next = b;
    }
    return next;
}

/* What a rank of a session pulls, in the order in which it is read. */
static void add_reads(struct job *j, uint32_t rank)
{
    uint32_t b = next_read(j, rank, MODEL_NONE);
    for (uint32_t i = 0; i < j->strategy->n_buckets && !j->m.failed; i++) {
        uint32_t read =
            add_op(&j->m, DPRO_OP_BARRIER, rank, DPRO_NO_DEVICE, "read", read_ns(j, b, rank));
        add_edge(&j->m, j->begins, read, false);
        for (uint32_t p = 0; p < j->strategy->buckets[b].partitions; p++)
            pull(j, b, p, rank, read);
        b = next_read(j, rank, b);
    }
}

/* A session's step ends when all of it is done. */
static void add_step(struct job *j)
{
    const struct model_net *net = &j->model->net;
    if (!net->gate.pulls_with_step)
        return;
    j->begins = add_op(&j->m, DPRO_OP_BARRIER, 0, DPRO_NO_DEVICE, "the step begins", 0);
    j->ends_step = add_op(&j->m, DPRO_OP_BARRIER, 0, DPRO_NO_DEVICE, "between steps",
                          (int64_t)(net->gate.step_ns.value + 0.5));
    add_edge(&j->m, j->ends_step, j->begins, true);
}

static int ways_init(struct job *j)
{
    const struct model_net *net = &j->model->net;
    uint64_t largest = 0;
    uint32_t n_ways = net->collective.n_ranks * j->n_servers;
    j->ways = calloc(2 * (size_t)n_ways + 1, sizeof *j->ways);
    if (!j->ways)
        return -1;
    for (uint32_t w = 0; w < 2 * n_ways; w++) {
        uint32_t rank = w % n_ways / j->n_servers;
        uint32_t host = net->link.rank_hosts ? net->link.rank_hosts[rank] : rank;
        uint32_t node = sync_server_node(net, w % j->n_servers);
        j->ways[w] = (struct way){.from = w < n_ways ? host : node,
                                  .to = w < n_ways ? node : host,
                                  .first = DPRO_NO_OP,
                                  .sent = DPRO_NO_OP,
                                  .received = {DPRO_NO_OP, DPRO_NO_OP}};
    }
    for (uint32_t b = 0; b < j->strategy->n_buckets; b++)
        if (j->buckets[b].size_bytes > largest)
            largest = j->buckets[b].size_bytes;
    j->chunk_bytes = largest > CHUNKS ? (double)largest / CHUNKS : 1;
    return 0;
}

/* And so on, iteration after iteration. */
static void join_ways(struct job *j)
{
    for (uint32_t w = 0; w < 2 * j->model->net.collective.n_ranks * j->n_servers; w++)
        add_edge(&j->m, j->ways[w].sent, j->ways[w].first, true);
}

/* ---- all of it ---- */

static int job_init(struct job *j, const struct dpro_model *model,
                    const struct dpro_strategy *strategy)
{
    const struct model_net *net = &model->net;
    bool casts = strategy->compression != DPRO_COMPRESSION_NONE;
    bool hooked = bucket_needs_hook(model, strategy);
    size_t n_collectives = 1;
    *j = (struct job){.model = model,
                      .strategy = strategy,
                      .n_servers = sync_n_servers(net),
                      .begins = DPRO_NO_OP,
                      .ends_step = DPRO_NO_OP};
    for (uint32_t b = 0; b < strategy->n_buckets; b++)
        n_collectives += strategy->buckets[b].partitions;
    j->buckets = calloc(strategy->n_buckets + (size_t)1, sizeof *j->buckets);
    j->bucket_of = calloc(model->n_tensors + (size_t)1, sizeof *j->bucket_of);
    j->ends = calloc(n_collectives, sizeof *j->ends);
    j->at = calloc((size_t)strategy->n_buckets * net->collective.n_ranks + 1, sizeof *j->at);
    if (maker_init(&j->m, net, j->n_servers ? j->n_servers + net->collective.n_ranks : 0) < 0 ||
        !j->buckets || !j->bucket_of || !j->ends || !j->at)
        return -1;
    for (uint32_t b = 0; b < strategy->n_buckets; b++) {
        const struct strategy_bucket *bucket = &strategy->buckets[b];
        uint64_t size = bucket_size_bytes(model, strategy, b);
        double cast_ns = casts ? net->compute.cast_ns.value * (double)size / 2 : 0;
        j->buckets[b] = (struct bucket_ops){
            .size_bytes = casts ? size / 2 : size,
            .copy_ns = net->compute.copy_ns.value * (double)size,
            .launch_ns = bucket_launch_ns(model, strategy, b, size, hooked),
            .cast_ns = cast_ns / bucket->partitions,
        };
        for (uint32_t i = bucket->first; i < bucket->first + bucket->n; i++)
            j->bucket_of[strategy->order[i]] = b;
    }
    return j->n_servers ? ways_init(j) : 0;
}

int cost_graph_job(const struct dpro_model *model, const struct dpro_strategy *strategy,
                   const uint32_t *turns, struct dpro_graph **graph, struct dpro_error *err)
{
    struct job j;
    int rc = job_init(&j, model, strategy);
    if (rc == 0 && j.n_servers)
        add_step(&j);
    for (uint32_t i = 0; i < strategy->n_buckets && rc == 0; i++)
        (j.n_servers ? add_served_bucket : add_bucket)(&j, turns ? turns[i] : i);
    for (uint32_t r = 0;
         r < model->net.collective.n_ranks && rc == 0 && model->net.gate.pulls_with_step; r++)
        add_reads(&j, r);
    if (rc == 0 && j.n_servers)
        join_ways(&j);
    else if (rc == 0 && model->net.gate.n_streams == 1 && j.n_ends && !j.m.failed) {
        uint32_t first = turns ? turns[0] : 0; /* and so on, iteration after iteration */
        add_edge(&j.m, j.ends[j.n_ends - 1], at(&j, first, 0)->barrier, true);
    }
    for (uint32_t r = 0; r < model->net.collective.n_ranks && rc == 0; r++)
        add_rank(&j, r);
    rc = rc < 0 ? dpro_error_nomem(err) : hand_over(&j.m, graph, err);
    maker_fini(&j.m);
    free(j.buckets);
    free(j.at);
    free(j.ways);
    free(j.bucket_of);
    free(j.ends);
    return rc;
}
