/* What a job's processes sent each other, as constraints of their clocks. A byte is sent before it
 * is received, whatever the clocks say. */
#include "align/transport_constraints.h"

/* ---- processes ---- */

/* Processes that are no ranks, which are negative, come last. */
ORDER(by_rank, struct clock_node, COMPARE((unsigned)x->rank, (unsigned)y->rank));

/* Among the first n. NULL: there is none. */
static struct clock_node *find_node(const clock_nodes *nodes, size_t n, int rank)
{
    struct clock_node key = {.rank = rank};
    return n ? bsearch(&key, nodes->at, n, sizeof key, by_rank) : NULL;
}

static struct clock_node *add_node(clock_nodes *nodes, size_t n_profiled, int rank)
{
    struct clock_node *known = find_node(nodes, n_profiled, rank);
    if (known)
        return known;
    array_add(nodes, rank, NO_ID, "", "");
    return &nodes->at[nodes->n - 1];
}

/* One node a rank, with all that is known of it. */
static void merge_nodes(clock_nodes *nodes)
{
    size_t n = 0;
    array_sort(nodes, by_rank);
    for (size_t i = 0; i < nodes->n; i++) {
        struct clock_node *last = n ? &nodes->at[n - 1] : NULL;
        if (last && last->rank == nodes->at[i].rank) {
            last->host = last->host[0] ? last->host : nodes->at[i].host;
            last->boot_id = last->boot_id[0] ? last->boot_id : nodes->at[i].boot_id;
        } else {
            nodes->at[n++] = nodes->at[i];
        }
    }
    nodes->n = n;
}

void clock_nodes_list(const struct dpro_trace *trace, uint32_t n_ranks, clock_nodes *nodes)
{
    for (uint32_t r = 0; r < n_ranks; r++) {
        const struct trace_rank *rank = &trace->ranks[r];
        const char *boot_id =
            rank->recording ? strtab_get(&trace->names, rank->recording->boot_id) : "";
        array_add(nodes, rank->rank, r, strtab_get(&trace->names, rank->host), boot_id);
    }
    size_t n_profiled = nodes->n;
    EACH_OF (const struct net_transport, transport, trace->transports, trace->n_transports) {
        struct clock_node *node = add_node(nodes, n_profiled, transport->rank);
        if (transport->host[0])
            node->host = transport->host;
        if (transport->boot_id[0])
            node->boot_id = transport->boot_id;
    }
    for (uint32_t l = 0; l < trace->n_nccl_logs; l++)
        add_node(nodes, n_profiled, trace->nccl_logs[l]->rank);
    merge_nodes(nodes);
}

uint32_t clock_node_of(const clock_nodes *nodes, int rank)
{
    const struct clock_node *found = find_node(nodes, nodes->n, rank);
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

struct call_stream {
    const struct net_transfer *at;
    uint32_t n;
};

static struct call_stream stream_of(const struct net_transport *t, uint32_t stream)
{
    return (struct call_stream){t->transfers.at + t->first_transfer[stream],
                                t->first_transfer[stream + 1] - t->first_transfer[stream]};
}

static void visit_stream(const struct dpro_trace *trace, const clock_nodes *nodes, uint32_t t,
                         uint32_t number, const struct constraint_visitor *visitor)
{
    const struct net_transport *transport = &trace->transports[t];
    uint32_t peer_number;
    const struct net_transport *peer = net_peer(trace, transport, number, &peer_number);
    if (!peer)
        return;
    struct call_stream sent = stream_of(transport, number), received = stream_of(peer, peer_number);
    struct clock_constraint constraint = {CONSTRAINT_FROM_TRANSPORT,
                                          clock_node_of(nodes, transport->rank),
                                          clock_node_of(nodes, peer->rank), 0, 0};
    if (constraint.from == constraint.to)
        return;
    for (uint32_t s = 0, r = 0; s < sent.n && r < received.n;) {
        uint64_t sent_end = sent.at[s].offset + sent.at[s].bytes;
        uint64_t received_end = received.at[r].offset + received.at[r].bytes;
        if (sent.at[s].offset < received_end && received.at[r].offset < sent_end &&
            in_order(sent.at, s, sent.n, true) && in_order(received.at, r, received.n, false)) {
            constraint.from_ns = sent.at[s].start_ns;
            constraint.to_ns = received.at[r].end_ns;
            visitor->before(visitor->arg, &constraint);
        }
        if (sent_end <= received_end)
            s++;
        else
            r++;
    }
}

void constraints_visit_transports(const struct dpro_trace *trace, const clock_nodes *nodes,
                                  const struct constraint_visitor *visitor)
{
    for (uint32_t t = 0; t < trace->n_transports; t++)
        for (uint32_t c = 0; c < trace->transports[t].connections.n; c++)
            visit_stream(trace, nodes, t, 2 * c, visitor);
}

/* ---- NCCL's proxies ---- */

struct step_end {
    uint64_t key; /* equal for the two ends of one step */
    int64_t ns;   /* send: handed to the network; receive: there */
    uint32_t node;
    bool sends;
};

typedef ARRAY(struct step_end) step_ends;

/* The communicator, its collective, the channel, the two ranks and the step. Point-to-point calls
 * have no number that both ends know. */
static bool find_step_end(const struct nccl_log *log, const struct nccl_step *step,
                          struct step_end *end)
{
    end->sends = step->flags & NCCL_OP_SENDS;
    if (step->operation == NO_ID || end->sends == ((step->flags & NCCL_OP_RECEIVES) != 0))
        return false;
    const struct nccl_operation *operation = &log->operations.at[step->operation];
    if (operation->point_to_point || operation->comm == NO_ID)
        return false;
    const struct nccl_comm *comm = &log->comms.at[operation->comm];
    uint64_t ranks[2] = {(uint64_t)comm->rank, (uint64_t)step->peer};
    uint64_t func = map_text_key(strtab_get(&log->names, operation->func));
    uint64_t key = map_mix(comm->hash) + func;
    key = map_mix(key ^ operation->sequence) + (uint64_t)step->channel;
    key = map_mix(key ^ ranks[!end->sends]) + ranks[end->sends];
    end->key = map_mix(key ^ map_mix((uint64_t)step->step + 1));
    end->ns = end->sends ? step->sent_ns : step->there_ns;
    return end->ns > 0;
}

ORDER(by_key, struct step_end, ASCENDING(key));

void constraints_visit_nccl(const struct dpro_trace *trace, const clock_nodes *nodes,
                            const struct constraint_visitor *visitor)
{
    SCRATCH step_ends ends = {0};
    for (uint32_t l = 0; l < trace->n_nccl_logs; l++) {
        const struct nccl_log *log = trace->nccl_logs[l];
        struct step_end end = {.node = clock_node_of(nodes, log->rank)};
        for (size_t i = 0; i < log->steps.n && end.node != NO_ID; i++)
            if (find_step_end(log, &log->steps.at[i], &end))
                array_push(&ends, end);
    }
    array_sort(&ends, by_key);
    for (size_t i = 0, next; i < ends.n; i = next) {
        next = RUN_END(k, i, ends.n, ends.at[k].key == ends.at[i].key);
        if (next - i != 2 || ends.at[i].sends == ends.at[i + 1].sends)
            continue; /* one end only, or told twice */
        const struct step_end *sent = &ends.at[i + !ends.at[i].sends];
        const struct step_end *received = &ends.at[i + ends.at[i].sends];
        if (sent->node == received->node)
            continue;
        struct clock_constraint constraint = {CONSTRAINT_FROM_NCCL, sent->node, received->node,
                                              sent->ns, received->ns};
        visitor->before(visitor->arg, &constraint);
    }
}
