/* The messages of transports, whatever protocol framed them: in order, at both ends, when they
 * passed, and what they add up to. */

#include "ingest/trace.h"

ORDER(by_place, struct net_message,
      ASCENDING(stream) ?: ASCENDING(offset) ?: ASCENDING(size_bytes));

void net_sort_messages(struct net_transport *t)
{
    uint32_t n_streams = (uint32_t)t->connections.n * 2;
    size_t kept = 0;
    if (!t->first_message)
        t->first_message = mem_array(n_streams + (size_t)1, sizeof *t->first_message);
    array_sort(&t->messages, by_place);
    t->has_ps = false;
    EACH (const struct net_message, m, t->messages) {
        bool twice = kept > 0 && t->messages.at[kept - 1].stream == m->stream &&
                     t->messages.at[kept - 1].offset == m->offset;
        if (m->stream >= n_streams || twice || (m->protocol == NET_PS && m->flags == 0))
            continue;
        t->has_ps |= m->protocol == NET_PS;
        t->messages.at[kept++] = *m;
    }
    t->messages.n = kept;
    for (uint32_t s = 0, i = 0; s <= n_streams; s++) {
        while (i < t->messages.n && t->messages.at[i].stream < s)
            i++;
        t->first_message[s] = i;
    }
}

struct net_message *net_message_from(const struct net_transport *t, uint32_t stream,
                                     uint64_t offset)
{
    uint32_t end = t->first_message[stream + 1];
    uint32_t m = LOWER_BOUND(i, t->first_message[stream], end, t->messages.at[i].offset < offset);
    return m < end ? &t->messages.at[m] : NULL;
}

struct net_message *net_message_at(const struct net_transport *t, uint32_t stream, uint64_t offset)
{
    struct net_message *from = net_message_from(t, stream, offset);
    return from && from->offset == offset ? from : NULL;
}

/* ---- both ends ---- */

/* Adds messages that only the other end has. A preamble that came in two reads was decoded where it
 * was sent only. */
static void add_from_peers(const struct dpro_trace *trace, struct net_transport *t)
{
    size_t n_own = t->messages.n;
    for (uint32_t s = 0; s < t->connections.n * 2; s++) {
        uint32_t peer_stream, own = t->first_message[s], end = t->first_message[s + 1];
        const struct net_transport *peer = net_peer(trace, t, s, &peer_stream);
        for (uint32_t m = peer ? peer->first_message[peer_stream] : 0;
             peer && m < peer->first_message[peer_stream + 1]; m++) {
            struct net_message message = peer->messages.at[m];
            while (own < end && t->messages.at[own].offset < message.offset)
                own++;
            if (own < end && t->messages.at[own].offset == message.offset)
                continue;
            message.stream = s;
            message.sent_ns = message.start_ns = message.end_ns = INT64_MIN;
            array_push(&t->messages, message);
        }
    }
    if (t->messages.n > n_own)
        net_sort_messages(t);
}

/* When a byte had passed. One call may receive several of ps-lite's messages: their times are
 * spread over it by bytes. */
static int64_t passed_at(const struct net_transfer *call, uint64_t offset, uint8_t protocol)
{
    double part = (double)(offset + 1 - call->offset) / call->bytes;
    if (protocol != NET_PS || call->stream % 2 == 0)
        return call->end_ns;
    return call->start_ns + (int64_t)(part * (double)(call->end_ns - call->start_ns));
}

static void time_messages(struct net_transport *t)
{
    for (uint32_t s = 0; s < t->connections.n * 2; s++) {
        uint32_t call = t->first_transfer[s];
        for (uint32_t m = t->first_message[s]; m < t->first_message[s + 1]; m++) {
            struct net_message *message = &t->messages.at[m];
            uint64_t last, next = m + 1 < t->first_message[s + 1] ? message[1].offset : UINT64_MAX;
            if (__builtin_add_overflow(message->offset, message->size_bytes - 1, &last) ||
                last >= next)
                last = next - 1;
            const struct net_transfer *at = net_call_of_byte(t, s, message->offset, &call);
            if (at) {
                message->start_ns = at->start_ns;
                message->thread = at->thread;
            }
            if ((at = net_call_of_byte(t, s, last, &call)) != NULL)
                message->end_ns = passed_at(at, last, message->protocol);
        }
    }
}

void net_share_messages(struct dpro_trace *trace)
{
    for (uint32_t t = 0; t < trace->n_transports; t++)
        add_from_peers(trace, &trace->transports[t]);
    for (uint32_t t = 0; t < trace->n_transports; t++)
        time_messages(&trace->transports[t]);
}

uint32_t net_add_exchange(struct net_transport *t, uint32_t span)
{
    array_add(&t->collectives, NET_UNSUMMED, .joint = NO_ID);
    t->collectives.at[t->collectives.n - 1].span = span;
    return (uint32_t)t->collectives.n - 1;
}

void net_sum_collectives(struct net_transport *t)
{
    EACH (const struct net_message, message, t->messages) {
        if (message->collective == NO_ID)
            continue;
        struct net_collective *collective = &t->collectives.at[message->collective];
        if (message->start_ns == INT64_MIN)
            continue; /* not recorded at this end */
        *(message->stream % 2 ? &collective->received_bytes : &collective->sent_bytes) +=
            net_message_payload(message);
        collective->last_ns = MAX(collective->last_ns, message->end_ns);
        if (message->stream % 2 == 0)
            collective->first_send_ns = MIN(collective->first_send_ns, message->start_ns);
    }
}
