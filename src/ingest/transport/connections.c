/* The two ends of each connection, and the bytes that both ends, or one of them, have a record
 * of. */

#include "ingest/trace.h"

/* ---- the two ends of a connection ---- */

struct connection_end {
    struct net_address low, high; /* of both ends, the lesser first */
    bool local_is_low;
    int64_t first_ns;
    uint32_t transport, connection;
};

ORDER(compare_ends, struct connection_end,
      memcmp(&x->low, &y->low, 2 * sizeof x->low) ?: DESCENDING(local_is_low)
          ?: ASCENDING(transport) ?: ASCENDING(first_ns) ?: ASCENDING(connection));

static int64_t first_seen(const struct net_transport *t, uint32_t connection)
{
    int64_t first = INT64_MAX;
    for (uint32_t i = t->first_transfer[connection * 2]; i < t->first_transfer[connection * 2 + 2];
         i++)
        first = MIN(first, t->transfers.at[i].start_ns);
    return first;
}

typedef ARRAY(struct connection_end) end_array;

static void list_ends(const struct dpro_trace *trace, end_array *ends)
{
    for (uint32_t t = 0; t < trace->n_transports; t++)
        for (uint32_t c = 0; c < trace->transports[t].connections.n; c++) {
            const struct net_connection *connection = &trace->transports[t].connections.at[c];
            bool is_low =
                memcmp(&connection->local, &connection->remote, sizeof connection->local) < 0;
            struct connection_end end = {.low = is_low ? connection->local : connection->remote,
                                         .high = is_low ? connection->remote : connection->local,
                                         .local_is_low = is_low,
                                         .transport = t,
                                         .connection = c};
            if (!connection->whole)
                continue;
            end.first_ns = first_seen(&trace->transports[t], c);
            array_push(ends, end);
        }
    array_sort(ends, compare_ends);
}

static void set_peer(struct dpro_trace *trace, const struct connection_end *end,
                     const struct connection_end *peer)
{
    struct net_connection *own = &trace->transports[end->transport].connections.at[end->connection];
    own->peer = peer->transport;
    own->peer_connection = peer->connection;
}

/* Equal pairs of addresses are the two ends of one connection. Where a pair was used again, the
 * k-th at one end is the k-th at the other. */
void net_join_connections(struct dpro_trace *trace)
{
    SCRATCH end_array ends = {0};
    list_ends(trace, &ends);
    for (size_t i = 0, end; i < ends.n; i = end) {
        size_t n_low = 0;
        for (end = i; end < ends.n &&
                      memcmp(&ends.at[end].low, &ends.at[i].low, 2 * sizeof ends.at[i].low) == 0;
             end++)
            n_low += ends.at[end].local_is_low;
        for (size_t k = 0; k < n_low && i + n_low + k < end; k++) {
            set_peer(trace, &ends.at[i + k], &ends.at[i + n_low + k]);
            set_peer(trace, &ends.at[i + n_low + k], &ends.at[i + k]);
        }
    }
}

const struct net_transport *net_peer(const struct dpro_trace *trace, const struct net_transport *t,
                                     uint32_t stream, uint32_t *peer_stream)
{
    const struct net_connection *c = &t->connections.at[stream / 2];
    if (c->peer == NO_ID)
        return NULL;
    *peer_stream = c->peer_connection * 2 + !(stream % 2);
    return &trace->transports[c->peer];
}

const struct net_transfer *net_call_of_byte(const struct net_transport *t, uint32_t stream,
                                            uint64_t offset, uint32_t *next)
{
    const struct net_transfer *transfers = t->transfers.at;
    uint32_t end = t->first_transfer[stream + 1];
    while (*next < end && transfers[*next].offset + transfers[*next].bytes <= offset)
        ++*next;
    return *next < end && transfers[*next].offset <= offset ? &transfers[*next] : NULL;
}

/* ---- bytes ---- */

static uint64_t range_overlap(struct net_range a, struct net_range b)
{
    uint64_t start = MAX(a.start, b.start), end = MIN(a.end, b.end);
    return end > start ? end - start : 0;
}

void net_ranges(const struct net_transport *t, uint32_t stream, net_range_array *ranges)
{
    ranges->n = 0;
    for (uint32_t i = t->first_transfer[stream]; i < t->first_transfer[stream + 1]; i++) {
        const struct net_transfer *transfer = &t->transfers.at[i];
        struct net_range fresh = {transfer->offset, transfer->offset + transfer->bytes,
                                  transfer->start_ns, transfer->end_ns};
        struct net_range *last = ranges->n ? &ranges->at[ranges->n - 1] : NULL;
        if (transfer->bytes == 0)
            continue;
        if (last && fresh.start <= last->end) {
            last->end = MAX(last->end, fresh.end);
            last->last_ns = fresh.last_ns;
        } else {
            array_push(ranges, fresh);
        }
    }
}

static uint64_t ranges_total(const net_range_array *ranges)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < ranges->n; i++)
        sum += ranges->at[i].end - ranges->at[i].start;
    return sum;
}

/* Bytes that only the other end saw. A hole in the record that the other end filled wholly is a
 * loss and unpaired; one that reaches further than what the other end saw is a pause of the
 * recording. Returns how many there are. */
static uint64_t count_holes(const net_range_array *own, const net_range_array *other,
                            struct dpro_transport_info *info)
{
    uint64_t sum = 0;
    size_t k = 0;
    for (size_t i = 0; i <= own->n; i++) {
        struct net_range hole = {.start = i ? own->at[i - 1].end : 0,
                                 .end = i < own->n ? own->at[i].start : UINT64_MAX};
        uint64_t seen = 0;
        while (k < other->n && other->at[k].end <= hole.start)
            k++;
        for (size_t at = k; at < other->n && other->at[at].start < hole.end; at++) {
            seen += range_overlap(hole, other->at[at]);
            if (other->at[at].end <= hole.end)
                k = at + 1;
        }
        if (i > 0 && i < own->n && seen == hole.end - hole.start)
            info->unpaired_bytes += seen;
        sum += seen;
    }
    return sum;
}

static void count_connection(const struct dpro_trace *trace, uint32_t t, uint32_t c,
                             net_range_array ranges[3], struct dpro_transport_info *info)
{
    const struct net_transport *transport = &trace->transports[t];
    const struct net_connection *connection = &transport->connections.at[c];
    uint32_t peer_stream;
    const struct net_transport *peer = net_peer(trace, transport, c * 2, &peer_stream);
    net_ranges(transport, c * 2, &ranges[0]);
    net_ranges(transport, c * 2 + 1, &ranges[1]);
    info->sent_bytes += ranges_total(&ranges[0]);
    info->received_bytes += ranges_total(&ranges[1]);
    if (!peer) {
        info->n_one_sided += ranges[0].n > 0 || ranges[1].n > 0;
        return;
    }
    /* each direction once, from the sender's side */
    net_ranges(peer, peer_stream, &ranges[2]);
    bool first = t != connection->peer ? t < connection->peer : c < connection->peer_connection;
    info->n_connections += first && (ranges[0].n || ranges[1].n || ranges[2].n);
    info->paired_bytes += ranges_total(&ranges[2]) - count_holes(&ranges[0], &ranges[2], info);
    count_holes(&ranges[2], &ranges[0], info);
}

void net_count_bytes(const struct dpro_trace *trace, struct dpro_transport_info *info)
{
    net_range_array ranges[3] = {{0}};
    for (uint32_t t = 0; t < trace->n_transports; t++)
        for (uint32_t c = 0; c < trace->transports[t].connections.n; c++)
            count_connection(trace, t, c, ranges, info);
    for (int i = 0; i < 3; i++)
        array_fini(&ranges[i]);
}
