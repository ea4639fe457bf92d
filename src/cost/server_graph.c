/* cost/server_graph.c: parameter servers in the global DFG of a model. What they are sent goes in
 * chunks, so that connections that have a link in common share it; servers' threads, and what
 * passes within a rank's host, have places of their own behind the nodes. */
#include <stdlib.h>

#include "base/sort.h"
#include "cost/graph_maker.h"
#include "cost/server_placement.h"

enum { CHUNKS = 64 }; /* of the largest bucket */

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
static uint32_t add_chunks(struct job *j, struct connection *link, uint32_t after, double bytes)
{
    struct maker *m = &j->m;
    uint32_t n = (uint32_t)(bytes / j->chunk_bytes) + 1, recv = after;
    double wire_ns = bytes * j->model->net.link.byte_ns.value;
    for (uint32_t c = 0; c < n; c++) {
        uint32_t send = maker_op(m, DPRO_OP_SEND, link->from, SENDS, "send",
                                 chunk_ns(wire_ns * slowness(j, link->from), c, n));
        recv = maker_op(m, DPRO_OP_RECV, link->to, RECEIVES, "recv",
                        chunk_ns(wire_ns * slowness(j, link->to), c, n));
        m->nodes.at[send].op.size_bytes = m->nodes.at[recv].op.size_bytes = (uint64_t)(bytes / n);
        m->nodes.at[send].op.transaction = m->nodes.at[recv].op.transaction = ++m->transaction;
        maker_edge(m, after, send, false);
        maker_edge(m, link->sent, send, false);
        maker_edge(m, link->received[0], send, false);
        maker_edge(m, send, recv, false);
        if (link->first == DPRO_NO_OP)
            link->first = send;
        link->sent = send;
        link->received[0] = link->received[1];
        link->received[1] = recv;
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
    struct connection *to = &j->connections[((down ? n_ranks : 0) + rank) * j->n_servers + server];
    if (to->from == to->to) {
        uint32_t place = sync_n_nodes(net) + j->n_servers + rank;
        there = maker_op(m, DPRO_OP_COPY, place, down ? RECEIVES : SENDS, "within the host",
                         (int64_t)(bytes * net->link.within_ns.value + 0.5));
        maker_edge(m, after, there, false);
    } else {
        there = add_chunks(j, to, after, bytes);
    }
    double more_ns = net->link.message_ns.value + (down ? net->collective.overhead_ns.value : 0);
    uint32_t arrived =
        maker_op(m, DPRO_OP_BARRIER, rank, DPRO_NO_DEVICE, "arrives", (int64_t)(more_ns + 0.5));
    maker_edge(m, there, arrived, false);
    return arrived;
}

static int64_t read_ns(const struct job *j, uint32_t b, uint32_t rank)
{
    return bucket_read_ns(j->model, j->strategy, b, rank % j->model->n_ranks);
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
    maker_edge(&j->m, there, at(j, b, rank)->end, false);
    maker_edge(&j->m, there, j->ends_step, false);
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
        maker_op(m, DPRO_OP_BARRIER, 0, DPRO_NO_DEVICE, "all have pushed",
                 net->gate.pulls_with_step ? 0 : (int64_t)(net->servers.answer_ns.value + 0.5));
    for (uint32_t r = 0; r < net->collective.n_ranks; r++) {
        uint32_t pushed = carry(j, r, server, false, at(j, b, r)->barrier, bytes);
        uint32_t serve = maker_op(m, DPRO_OP_REDUCE, sync_n_nodes(net) + server, ADDS, "serve",
                                  (int64_t)(serve_ns + 0.5));
        maker_edge(m, pushed, serve, false);
        maker_edge(m, serve, answer, false);
    }
    for (uint32_t r = 0; r < net->collective.n_ranks && !net->gate.pulls_with_step; r++)
        pull(j, b, part, r, answer);
    maker_edge(m, answer, j->ends_step, false);
}

void server_graph_bucket(struct job *j, uint32_t b)
{
    for (uint32_t r = 0; r < j->model->net.collective.n_ranks; r++) {
        at(j, b, r)->barrier = maker_op(&j->m, DPRO_OP_BARRIER, r, DPRO_NO_DEVICE, "launched", 0);
        at(j, b, r)->end = maker_op(&j->m, DPRO_OP_BARRIER, r, DPRO_NO_DEVICE, "bucket is back", 0);
    }
    for (uint32_t p = 0; p < j->strategy->buckets[b].partitions; p++)
        add_part(j, b, p);
}

struct read {
    int64_t ns;
    uint32_t bucket;
};

ORDER(by_time, struct read, ASCENDING(ns) ?: ASCENDING(bucket));

/* What a rank of a session pulls, in the order in which it is read. */
static void add_reads(struct job *j, uint32_t rank)
{
    uint32_t n = j->strategy->n_buckets;
    struct read *reads = arena_array(&j->m.arena, n, sizeof *reads);
    for (uint32_t b = 0; b < n; b++)
        reads[b] = (struct read){read_ns(j, b, rank), b};
    qsort(reads, n, sizeof *reads, by_time);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t b = reads[i].bucket;
        uint32_t read = maker_op(&j->m, DPRO_OP_BARRIER, rank, DPRO_NO_DEVICE, "read", reads[i].ns);
        maker_edge(&j->m, j->begins, read, false);
        for (uint32_t p = 0; p < j->strategy->buckets[b].partitions; p++)
            pull(j, b, p, rank, read);
    }
}

/* A session's step ends when all of it is done. */
static void add_step(struct job *j)
{
    const struct model_net *net = &j->model->net;
    if (!net->gate.pulls_with_step)
        return;
    j->begins = maker_op(&j->m, DPRO_OP_BARRIER, 0, DPRO_NO_DEVICE, "the step begins", 0);
    j->ends_step = maker_op(&j->m, DPRO_OP_BARRIER, 0, DPRO_NO_DEVICE, "between steps",
                            (int64_t)(net->gate.step_ns.value + 0.5));
    maker_edge(&j->m, j->ends_step, j->begins, true);
}

void server_graph_init(struct job *j)
{
    const struct model_net *net = &j->model->net;
    uint64_t largest = 0;
    uint32_t n_connections = net->collective.n_ranks * j->n_servers;
    j->connections = arena_array(&j->m.arena, 2 * (size_t)n_connections, sizeof *j->connections);
    add_step(j);
    for (uint32_t w = 0; w < 2 * n_connections; w++) {
        uint32_t rank = w % n_connections / j->n_servers;
        uint32_t host = net->link.rank_hosts ? net->link.rank_hosts[rank] : rank;
        uint32_t node = sync_server_node(net, w % j->n_servers);
        j->connections[w] = (struct connection){.from = w < n_connections ? host : node,
                                                .to = w < n_connections ? node : host,
                                                .first = DPRO_NO_OP,
                                                .sent = DPRO_NO_OP,
                                                .received = {DPRO_NO_OP, DPRO_NO_OP}};
    }
    for (uint32_t b = 0; b < j->strategy->n_buckets; b++)
        if (j->buckets[b].size_bytes > largest)
            largest = j->buckets[b].size_bytes;
    j->chunk_bytes = largest > CHUNKS ? (double)largest / CHUNKS : 1;
}

void server_graph_finish(struct job *j)
{
    uint32_t n_ranks = j->model->net.collective.n_ranks;
    for (uint32_t r = 0; r < n_ranks && j->model->net.gate.pulls_with_step; r++)
        add_reads(j, r);
    for (uint32_t w = 0; w < 2 * n_ranks * j->n_servers; w++)
        maker_edge(&j->m, j->connections[w].sent, j->connections[w].first, true);
}
