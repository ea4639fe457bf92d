/* graph/clocks/clock_constraints.c: what a job's processes sent each other, as facts about their
 * clocks. A byte is sent before it is received, whatever the clocks say; and no rank can leave a
 * collective whose result needs all contributions before the last one has entered it. */
#include "graph/clocks/clock_constraints.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sort.h"
enum { ROUNDING_NS = 1000 }; /* what is written in whole microseconds */

/* ---- processes ---- */

/* Processes that are no ranks, which are negative, come last. */
ORDER(by_rank, struct evidence_node, COMPARE((unsigned)x->rank, (unsigned)y->rank));

static struct evidence_node *add_node(evidence_nodes *nodes, size_t n_profiled, int rank)
{
    struct evidence_node key = {.rank = rank, .rank_index = NO_ID, .host = "", .boot_id = ""};
    struct evidence_node *known =
        n_profiled ? bsearch(&key, nodes->at, n_profiled, sizeof key, by_rank) : NULL;
    if (known)
        return known;
    return array_push(nodes, key) < 0 ? NULL : &nodes->at[nodes->n - 1];
}

/* One node a rank, with all that is known of it. */
static void merge_nodes(evidence_nodes *nodes)
{
    size_t n = 0;
    array_sort(nodes, by_rank);
    for (size_t i = 0; i < nodes->n; i++) {
        struct evidence_node *last = n ? &nodes->at[n - 1] : NULL;
        if (last && last->rank == nodes->at[i].rank) {
            last->host = last->host[0] ? last->host : nodes->at[i].host;
            last->boot_id = last->boot_id[0] ? last->boot_id : nodes->at[i].boot_id;
        } else {
            nodes->at[n++] = nodes->at[i];
        }
    }
    nodes->n = n;
}

int evidence_list(const struct join *join, const struct dpro_trace *trace, evidence_nodes *nodes)
{
    for (uint32_t r = 0; r < join->n_ranks; r++) {
        const struct trace_rank *rank = join->ranks[r].trace;
        struct evidence_node node = {rank->rank, r, strtab_get(&trace->names, rank->host), ""};
        if (array_push(nodes, node) < 0)
            return -1;
    }
    size_t n_profiled = nodes->n;
    for (uint32_t t = 0; t < trace->n_transports; t++) {
        const struct net_transport *transport = &trace->transports[t];
        struct evidence_node *node = add_node(nodes, n_profiled, transport->rank);
        if (!node)
            return -1;
        if (transport->host[0])
            node->host = transport->host;
        if (transport->boot_id[0])
            node->boot_id = transport->boot_id;
    }
    for (uint32_t l = 0; l < trace->n_nccl_logs; l++)
        if (!add_node(nodes, n_profiled, trace->nccl_logs[l]->rank))
            return -1;
    merge_nodes(nodes);
    return 0;
}

uint32_t evidence_node_of(const evidence_nodes *nodes, int rank)
{
    struct evidence_node key = {.rank = rank};
    const struct evidence_node *found =
        nodes->n ? bsearch(&key, nodes->at, nodes->n, sizeof key, by_rank) : NULL;
    return found ? (uint32_t)(found - nodes->at) : NO_ID;
}

/* ---- socket calls ---- */

/* A stream's calls come one after the other. One that is out of order with its neighbours has a
 * broken time, or shared the socket with another thread's: nothing is lost without it. */
static bool in_order(const struct net_transfer *at, uint32_t i, uint32_t n, bool sends)
{
    int64_t own = sends ? at[i].start_ns : at[i].end_ns;
    if (at[i].bytes == 0 || at[i].end_ns < at[i].start_ns)
        return false;
    if (i > 0 && (sends ? at[i - 1].start_ns : at[i - 1].end_ns) > own)
        return false;
    return i + 1 == n || (sends ? at[i + 1].start_ns : at[i + 1].end_ns) >= own;
}

struct stream {
    const struct net_transfer *at;
    uint32_t n;
};

static struct stream stream_of(const struct net_transport *t, uint32_t stream)
{
    return (struct stream){t->transfers.at + t->first_transfer[stream],
                           t->first_transfer[stream + 1] - t->first_transfer[stream]};
}

static uint64_t mark_of(uint32_t transport, uint32_t transfer)
{
    return (uint64_t)transport << 32 | transfer;
}

static int visit_stream(const struct dpro_trace *trace, const evidence_nodes *nodes, uint32_t t,
                        uint32_t number, const struct evidence_visitor *visitor)
{
    const struct net_transport *transport = &trace->transports[t];
    uint32_t peer_number;
    const struct net_transport *peer = net_peer(trace, transport, number, &peer_number);
    if (!peer)
        return 0;
    struct stream sent = stream_of(transport, number), received = stream_of(peer, peer_number);
    struct evidence evidence = {EVIDENCE_TRANSPORT,
                                evidence_node_of(nodes, transport->rank),
                                evidence_node_of(nodes, peer->rank),
                                0,
                                0,
                                0};
    if (evidence.from == evidence.to)
        return 0;
    for (uint32_t s = 0, r = 0; s < sent.n && r < received.n;) {
        uint64_t sent_end = sent.at[s].offset + sent.at[s].bytes;
        uint64_t received_end = received.at[r].offset + received.at[r].bytes;
        if (sent.at[s].offset < received_end && received.at[r].offset < sent_end &&
            in_order(sent.at, s, sent.n, true) && in_order(received.at, r, received.n, false)) {
            evidence.from_ns = sent.at[s].start_ns;
            evidence.to_ns = received.at[r].end_ns;
            evidence.mark = mark_of(t, (uint32_t)(&sent.at[s] - transport->transfers.at));
            int status = visitor->before(visitor->arg, &evidence);
            if (status < 0)
                return status;
        }
        if (sent_end <= received_end)
            s++;
        else
            r++;
    }
    return 0;
}

int evidence_visit_transports(const struct dpro_trace *trace, const evidence_nodes *nodes,
                              const struct evidence_visitor *visitor)
{
    int status = 0;
    for (uint32_t t = 0; t < trace->n_transports; t++)
        for (uint32_t c = 0; c < trace->transports[t].connections.n && status == 0; c++)
            status = visit_stream(trace, nodes, t, 2 * c, visitor);
    return status;
}

/* ---- collectives ---- */

enum {
    /* Profilers round times, and convert them from another clock. */
    COLLECTIVE_ROUNDING_NS = 2000,
    /* From more members on, one of them stands for all others: every pair of them would do more
       work and tell little more. */
    MANY_MEMBERS = 16,
};

struct moment {
    uint32_t node;
    int64_t enter_ns, leave_ns; /* ABSENT: not measured */
};

struct gathering {
    const struct evidence_visitor *visitor;
    const struct joined *joined;
    struct moment *at;
    uint32_t n;
    uint64_t mark;
};

static int visit_pair(const struct gathering *g, const struct moment *from, const struct moment *to)
{
    int64_t enter;
    if (from->node == to->node ||
        __builtin_sub_overflow(from->enter_ns, (int64_t)COLLECTIVE_ROUNDING_NS, &enter))
        return 0;
    struct evidence evidence = {EVIDENCE_COLLECTIVES, from->node, to->node, enter,
                                to->leave_ns,         g->mark};
    return g->visitor->before(g->visitor->arg, &evidence);
}

static bool needs_all(const char *kind)
{
    static const char *const kinds[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                        "barrier"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kind, kinds[i]) == 0)
            return true;
    return false;
}

/* Members of these need not leave together. */
static bool ends_together(const char *kind)
{
    return needs_all(kind) || strcmp(kind, "send_recv") == 0;
}

static int visit_all(const struct gathering *g)
{
    uint32_t first = 0;
    int status = 0;
    for (uint32_t i = 1; i < g->n && g->n <= 4 * MANY_MEMBERS; i++)
        if (g->at[i].leave_ns - g->at[i].enter_ns < g->at[first].leave_ns - g->at[first].enter_ns)
            first = i; /* the one that waited least knows most */
    for (uint32_t i = 0; i < g->n; i++)
        for (uint32_t k = i + 1; k < g->n && status == 0; k++)
            if (g->n <= MANY_MEMBERS || i == first || k == first) {
                status = visit_pair(g, &g->at[i], &g->at[k]);
                if (status == 0)
                    status = visit_pair(g, &g->at[k], &g->at[i]);
            }
    return status;
}

static int visit_sample(const struct join *join, struct gathering *g)
{
    const char *kind = join->ranks[g->joined->rank].collectives.at[g->joined->collective].kind;
    int status = 0;
    if (needs_all(kind))
        status = visit_all(g);
    for (uint32_t i = 1; i < g->n && status == 0 && g->visitor->near && ends_together(kind); i++)
        status = g->visitor->near(g->visitor->arg, g->at[0].node, g->at[0].leave_ns, g->at[i].node,
                                  g->at[i].leave_ns);
    if (g->n != 2 || g->joined->n_members != 2 || status < 0)
        return status;
    const struct member *members = &join->members.at[g->joined->first_member];
    for (int m = 0; m < 2 && status == 0; m++) {
        const char *own = join->ranks[members[m].rank].collectives.at[members[m].collective].kind;
        const char *other =
            join->ranks[members[!m].rank].collectives.at[members[!m].collective].kind;
        if (strcmp(own, "send") == 0 && strcmp(other, "recv") == 0)
            status = visit_pair(g, &g->at[m], &g->at[!m]);
    }
    return status;
}

/* Whether its members are known to wait for each other. */
static bool ends_for_sure(const struct join *join, size_t j)
{
    const struct joined *joined = &join->joined.at[j];
    return join->ranks[joined->rank].collectives.at[joined->collective].end == COMM_ENDS_TOGETHER;
}

int evidence_visit_collectives(const struct join *join, const evidence_nodes *nodes,
                               const struct evidence_visitor *visitor)
{
    uint32_t n_samples = join->n_ranks ? join->ranks[0].n_samples : 0;
    struct moment *moments = malloc((join->n_ranks + (size_t)1) * sizeof *moments);
    uint32_t *node_of = malloc((join->n_ranks + (size_t)1) * sizeof *node_of);
    int status = moments && node_of ? 0 : -1;
    for (uint32_t r = 0; r < join->n_ranks && status == 0; r++)
        node_of[r] = evidence_node_of(nodes, join->ranks[r].trace->rank);
    for (size_t j = 0; j < join->joined.n; j++)
        for (uint32_t s = 0; s < n_samples && status == 0; s++) {
            if (join_is_inferred(join, &join->joined.at[j]) || !ends_for_sure(join, j))
                break;
            struct gathering g = {visitor, &join->joined.at[j], moments, 0, (uint64_t)j << 32 | s};
            for (uint32_t m = 0; m < g.joined->n_members; m++) {
                const struct member *member = &join->members.at[g.joined->first_member + m];
                const struct rank_build *rank = &join->ranks[member->rank];
                const struct local_collective *c = &rank->collectives.at[member->collective];
                size_t row = (size_t)rank->sample_step[s] * rank->n_timed;
                struct moment moment = {node_of[member->rank], rank->start_ns[row + c->arrival],
                                        rank->end_ns[row + c->transfer]};
                if (moment.enter_ns != ABSENT && moment.leave_ns != ABSENT &&
                    trace_time_fits(moment.enter_ns) && trace_time_fits(moment.leave_ns))
                    moments[g.n++] = moment;
            }
            status = visit_sample(join, &g);
        }
    free(moments);
    free(node_of);
    return status;
}

/* ---- NCCL's proxies ---- */

struct step_end {
    uint64_t key; /* equal for the two ends of one step */
    int64_t ns;   /* send: handed to the network; receive: there */
    uint64_t mark;
    uint32_t node;
    bool sends;
};

typedef ARRAY(struct step_end) step_ends;

/* The communicator, its collective, the channel, the two ranks and the step. Point-to-point calls
 * have no number that both ends know. */
static bool find_step_end(const struct nccl_log *log, const struct nccl_step *step,
                          struct step_end *end)
{
    if (step->proxy_op == NO_ID)
        return false;
    const struct nccl_proxy_op *op = &log->proxy_ops.at[step->proxy_op];
    end->sends = op->flags & NCCL_OP_SENDS;
    if (op->operation == NO_ID || end->sends == ((op->flags & NCCL_OP_RECEIVES) != 0))
        return false;
    const struct nccl_operation *operation = &log->operations.at[op->operation];
    if (operation->point_to_point || operation->comm == NO_ID)
        return false;
    const struct nccl_comm *comm = &log->comms.at[operation->comm];
    uint64_t ranks[2] = {(uint64_t)comm->rank, (uint64_t)op->peer};
    uint64_t func = join_hash_text(strtab_get(&log->names, operation->func));
    uint64_t key = map_mix(comm->hash) + func;
    key = map_mix(key ^ operation->sequence) + (uint64_t)op->channel;
    key = map_mix(key ^ ranks[!end->sends]) + ranks[end->sends];
    end->key = map_mix(key ^ map_mix((uint64_t)step->step + 1));
    int64_t sent_ns = nccl_step_sent_ns(step);
    if (log->of_rings && step->stop_ns - ROUNDING_NS > sent_ns)
        sent_ns = step->stop_ns - ROUNDING_NS; /* they have been sent when their time is over */
    end->ns = end->sends ? sent_ns : nccl_step_there_ns(step);
    return end->ns > 0;
}

ORDER(by_key, struct step_end, ASCENDING(key) ?: ASCENDING(mark));

int evidence_visit_nccl(const struct dpro_trace *trace, const evidence_nodes *nodes,
                        const struct evidence_visitor *visitor)
{
    step_ends ends = {0};
    int status = 0;
    for (uint32_t l = 0; l < trace->n_nccl_logs; l++) {
        const struct nccl_log *log = trace->nccl_logs[l];
        struct step_end end = {.node = evidence_node_of(nodes, log->rank)};
        for (size_t i = 0; i < log->steps.n && end.node != NO_ID && status == 0; i++) {
            end.mark = mark_of(l, (uint32_t)i);
            if (find_step_end(log, &log->steps.at[i], &end))
                status = array_push(&ends, end);
        }
    }
    array_sort(&ends, by_key);
    for (size_t i = 0, next; i < ends.n && status == 0; i = next) {
        for (next = i + 1; next < ends.n && ends.at[next].key == ends.at[i].key; next++)
            ;
        const struct step_end *sent = &ends.at[i + !ends.at[i].sends], *received;
        if (next - i != 2 || ends.at[i].sends == ends.at[i + 1].sends)
            continue; /* one end only, or told twice */
        received = &ends.at[i + ends.at[i].sends];
        if (sent->node == received->node)
            continue;
        struct evidence evidence = {EVIDENCE_NCCL, sent->node,   received->node,
                                    sent->ns,      received->ns, sent->mark};
        status = visitor->before(visitor->arg, &evidence);
    }
    array_fini(&ends);
    return status;
}

/* ---- in words ---- */

static void describe_transfer(const struct dpro_trace *trace, uint64_t mark, char *out, size_t size)
{
    const struct net_transport *t = &trace->transports[mark >> 32];
    const struct net_transfer *transfer = &t->transfers.at[(uint32_t)mark];
    uint32_t stream;
    const struct net_transport *peer = net_peer(trace, t, transfer->stream, &stream);
    struct stream received = peer ? stream_of(peer, stream) : (struct stream){0};
    char sender[NET_PROCESS_TEXT], receiver[NET_PROCESS_TEXT];
    int64_t end = INT64_MIN;
    net_process_format(sender, t->rank);
    net_process_format(receiver, peer ? peer->rank : -1);
    for (uint32_t r = 0; r < received.n && end == INT64_MIN; r++)
        if (received.at[r].offset + received.at[r].bytes > transfer->offset)
            end = received.at[r].end_ns;
    snprintf(out, size,
             "byte %" PRIu64 " of a connection from %s to %s, sent at %" PRId64
             " ns and received at %" PRId64 " ns, each by its own clock",
             transfer->offset, sender, receiver, transfer->start_ns, end);
}

void evidence_describe(const struct join *join, const struct dpro_trace *trace,
                       enum evidence_source source, uint64_t mark, char *out, size_t size)
{
    if (source == EVIDENCE_TRANSPORT) {
        describe_transfer(trace, mark, out, size);
        return;
    }
    if (source == EVIDENCE_NCCL) {
        const struct nccl_log *log = trace->nccl_logs[mark >> 32];
        const struct nccl_step *step = &log->steps.at[(uint32_t)mark];
        const struct nccl_proxy_op *op = &log->proxy_ops.at[step->proxy_op];
        snprintf(out, size,
                 "step %d of channel %d of %s number %" PRIu64 " that rank %d sent at %" PRId64
                 " ns",
                 step->step, op->channel,
                 strtab_get(&log->names, log->operations.at[op->operation].func),
                 log->operations.at[op->operation].sequence, log->rank, step->start_ns);
        return;
    }
    const struct joined *joined = &join->joined.at[mark >> 32];
    const struct rank_build *rank = &join->ranks[joined->rank];
    snprintf(out, size, "%s number %" PRIu64 " of iteration %" PRId64,
             rank->collectives.at[joined->collective].kind, (mark >> 32) + 1,
             rank->steps.at[rank->sample_step[(uint32_t)mark]].number);
}
