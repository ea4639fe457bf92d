/* Parameter servers in the global DFG of a model. Messages are cut in chunks, so that connections
 * share a link. Servers' threads, and links within a rank's host, are extra places behind the
 * nodes. */

#include "base/base.h"
#include "graph_maker.h"

enum { CHUNKS = 64 }; /* of the largest bucket */

/* One of n chunks: a link's time for what comes before its end, less that for what comes before its
 * begin. */
static double chunk_ns(double all_ns, uint32_t chunk, uint32_t n)
{
    return floor(all_ns * (chunk + 1) / n + 0.5) - floor(all_ns * chunk / n + 0.5);
}

/* As much as two chunks are between what is sent and what is received. */
static uint32_t add_chunks(struct job *j, struct connection *link, uint32_t after, double bytes)
{
    const struct model_net *net = &j->model->net;
    struct maker *m = &j->m;
    uint32_t n = (uint32_t)(bytes / j->chunk_bytes) + 1, recv = after;
    double wire_ns = bytes * net->link.byte_ns.value;
    double send_ns = wire_ns * servers_slowness(net, link->route.from);
    double recv_ns = wire_ns * servers_slowness(net, link->route.to);
    for (uint32_t c = 0; c < n; c++) {
        uint32_t send = maker_op(m, after, DPRO_OP_SEND, link->route.from, SENDS, "send",
                                 chunk_ns(send_ns, c, n));
        recv = maker_op(m, send, DPRO_OP_RECV, link->route.to, RECEIVES, "recv",
                        chunk_ns(recv_ns, c, n));
        m->nodes.at[send].op.size_bytes = m->nodes.at[recv].op.size_bytes = (uint64_t)(bytes / n);
        m->nodes.at[send].op.transaction = m->nodes.at[recv].op.transaction = ++m->transaction;
        maker_edge(m, link->sent, send);
        maker_edge(m, link->received[0], send);
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
    uint32_t n_ranks = net->collective.n_ranks, there;
    struct connection *to = &j->connections[((down ? n_ranks : 0) + rank) * j->n_servers + server];
    if (to->route.from == to->route.to)
        there =
            maker_op(&j->m, after, DPRO_OP_COPY, sync_n_nodes(net) + j->n_servers + rank,
                     down ? RECEIVES : SENDS, "within the host", bytes * net->link.within_ns.value);
    else
        there = add_chunks(j, to, after, bytes);
    return maker_wait(&j->m, there, rank, "arrives",
                      net->link.message_ns.value + (down ? net->collective.overhead_ns.value : 0));
}

static double part_bytes(const struct job *j, uint32_t b, uint32_t part)
{
    return servers_part_bytes(j->buckets[b].size_bytes, part, j->strategy->buckets[b].partitions);
}

static void pull(struct job *j, uint32_t b, uint32_t part, uint32_t rank, uint32_t after)
{
    uint32_t server = servers_of_part(j->model, j->strategy, b, part);
    uint32_t there = carry(j, rank, server, true, after, part_bytes(j, b, part));
    maker_edge(&j->m, there, at(j, b, rank)->end);
    maker_edge(&j->m, there, j->ends_step);
}

/* What all ranks push is answered, in a session when it is read. */
static void add_part(struct job *j, uint32_t b, uint32_t part)
{
    const struct model_net *net = &j->model->net;
    struct maker *m = &j->m;
    bool session = net->gate.pulls_with_step;
    uint32_t server = servers_of_part(j->model, j->strategy, b, part);
    double bytes = part_bytes(j, b, part);
    double serve_ns = net->servers.push_ns.value + bytes * net->collective.reduce_ns.value;
    uint32_t answer =
        maker_wait(m, DPRO_NO_OP, 0, "all have pushed", session ? 0 : net->servers.answer_ns.value);
    for (uint32_t r = 0; r < net->collective.n_ranks; r++) {
        uint32_t pushed = carry(j, r, server, false, at(j, b, r)->barrier, bytes);
        uint32_t serve = maker_op(m, pushed, DPRO_OP_REDUCE, sync_n_nodes(net) + server, ADDS,
                                  "serve", serve_ns);
        maker_edge(m, serve, answer);
    }
    for (uint32_t r = 0; r < net->collective.n_ranks && !session; r++)
        pull(j, b, part, r, answer);
    maker_edge(m, answer, j->ends_step);
}

void server_graph_bucket(struct job *j, uint32_t b)
{
    for (uint32_t r = 0; r < j->model->net.collective.n_ranks; r++) {
        at(j, b, r)->barrier = maker_wait(&j->m, DPRO_NO_OP, r, "launched", 0);
        at(j, b, r)->end = maker_wait(&j->m, DPRO_NO_OP, r, "bucket is back", 0);
    }
    for (uint32_t p = 0; p < j->strategy->buckets[b].partitions; p++)
        add_part(j, b, p);
}

/* What a rank of a session pulls. */
static void add_reads(struct job *j, uint32_t rank)
{
    for (uint32_t b = 0; b < j->strategy->n_buckets; b++) {
        uint32_t read = maker_wait(&j->m, j->begins, rank, "read", 0);
        for (uint32_t p = 0; p < j->strategy->buckets[b].partitions; p++)
            pull(j, b, p, rank, read);
    }
}

void server_graph_init(struct job *j)
{
    const struct model_net *net = &j->model->net;
    uint64_t largest = 0;
    uint32_t n_connections = net->collective.n_ranks * j->n_servers;
    j->connections = arena_array(&j->m.arena, 2 * (size_t)n_connections, sizeof *j->connections);
    if (net->gate.pulls_with_step) { /* a session's step ends when all of it is done */
        j->begins = maker_wait(&j->m, DPRO_NO_OP, 0, "the step begins", 0);
        j->ends_step = maker_wait(&j->m, DPRO_NO_OP, 0, "between steps", net->gate.step_ns.value);
        maker_next(&j->m, j->ends_step, j->begins);
    }
    for (uint32_t w = 0; w < 2 * n_connections; w++)
        j->connections[w] = (struct connection){servers_route(net, w % n_connections / j->n_servers,
                                                              w % j->n_servers, w >= n_connections),
                                                DPRO_NO_OP,
                                                DPRO_NO_OP,
                                                {DPRO_NO_OP, DPRO_NO_OP}};
    for (uint32_t b = 0; b < j->strategy->n_buckets; b++)
        largest = MAX(largest, j->buckets[b].size_bytes);
    j->chunk_bytes = largest > CHUNKS ? (double)largest / CHUNKS : 1;
}

void server_graph_finish(struct job *j)
{
    uint32_t n_ranks = j->model->net.collective.n_ranks;
    for (uint32_t r = 0; r < n_ranks && j->model->net.gate.pulls_with_step; r++)
        add_reads(j, r);
    for (uint32_t w = 0; w < 2 * n_ranks * j->n_servers; w++)
        maker_next(&j->m, j->connections[w].sent, j->connections[w].first);
}
