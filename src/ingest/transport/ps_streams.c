/* Where ps-lite's messages stand in the byte streams, their two ends and their keys.
 *
 * dpro's own log has every frame's place. A CSV of another tracer has what was passed to a socket
 * of ZeroMQ, in order, and the calls that moved the bytes, in pieces: between two pauses of the
 * recording, what was passed on adds up to what went through, to the byte, and that tells which
 * connection a socket is and where its messages begin. */
#include "ingest/transport/ps.h"

#include "ingest/trace.h"

/* A new connection exchanges at most so much before the first message. */
enum { MAX_GREETING = 1024, MAX_SERVERS = 255 };
/* Programs number their keys from 0; what is above has a server's part of the range in it. */
#define MAX_KEY (UINT64_C(1) << 40)

/* ---- streams of messages that came by socket ---- */

/* The messages of a channel, by index in t->messages, in order. */
struct channel {
    uint32_t first, n;
    bool received;
};

/* Messages passed on in the time of a range p of a stream's bytes, which was recorded without a
 * pause: up to where they go, from `first` on, and their bytes. */
static uint32_t take_messages(const struct net_message *messages, const uint32_t *order, uint32_t n,
                              uint32_t first, const net_range_array *ranges, size_t p,
                              bool received, uint64_t *bytes)
{
    *bytes = 0;
    for (; first < n; first++) {
        const struct net_message *m = &messages[order[first]];
        bool later = received ? p + 1 < ranges->n && m->sent_ns >= ranges->at[p + 1].first_ns
                              : m->sent_ns > ranges->at[p].last_ns;
        if (later || __builtin_add_overflow(*bytes, m->size_bytes, bytes))
            break;
    }
    return first;
}

/* How well the channel's messages add up to the ranges of the stream; sets their places when
 * `place`. */
static uint32_t fit_channel(struct net_transport *t, const uint32_t *order,
                            const struct channel *channel, uint32_t stream,
                            const net_range_array *ranges, bool place)
{
    const uint32_t *own = order + channel->first;
    uint32_t n_fit = 0, next = 0;
    for (size_t p = 0; p < ranges->n; p++) {
        const struct net_range *range = &ranges->at[p];
        uint64_t bytes, length = range->end - range->start, at;
        uint32_t first = next;
        next = take_messages(t->messages.at, own, channel->n, first, ranges, p, channel->received,
                             &bytes);
        bool opens = range->start == 0;
        if (next == first || bytes > length || (length > bytes && !opens) ||
            length - bytes > MAX_GREETING)
            continue;
        n_fit += opens ? 1 : 2; /* to the byte */
        at = range->end - bytes;
        for (uint32_t i = first; i < next && place; i++) {
            struct net_message *m = &t->messages.at[own[i]];
            m->stream = stream;
            m->offset = at;
            at += m->size_bytes;
        }
    }
    return n_fit;
}

ORDER_OF_INDICES(compare_channels, struct net_message, ASCENDING(channel));

struct channel_fit {
    uint32_t score, channel, stream;
};

ORDER(compare_fits, struct channel_fit,
      DESCENDING(score) ?: ASCENDING(channel) ?: ASCENDING(stream));

/* The best fits first; a channel has one stream, and a stream one channel. */
static void place_channels(struct net_transport *t, const uint32_t *order,
                           const struct channel *channels, uint32_t n_channels)
{
    uint32_t n_streams = (uint32_t)t->connections.n * 2;
    SCRATCH ARRAY(struct channel_fit) fits = {0};
    SCRATCH net_range_array ranges = {0};
    SCRATCH bool *taken = mem_array(n_streams + (size_t)n_channels, sizeof *taken);
    for (uint32_t s = 0; s < n_streams; s++) {
        net_ranges(t, s, &ranges);
        for (uint32_t c = 0; c < n_channels && ranges.n > 0; c++) {
            if (channels[c].received != (s % 2 == 1))
                continue;
            struct channel_fit fit = {fit_channel(t, order, &channels[c], s, &ranges, false), c, s};
            if (fit.score > 0)
                array_push(&fits, fit);
        }
    }
    array_sort(&fits, compare_fits);
    EACH (const struct channel_fit, fit, fits) {
        if (taken[fit->stream] || taken[n_streams + fit->channel])
            continue;
        taken[fit->stream] = taken[n_streams + fit->channel] = true;
        net_ranges(t, fit->stream, &ranges);
        fit_channel(t, order, &channels[fit->channel], fit->stream, &ranges, true);
    }
}

void ps_place_messages(struct net_transport *t)
{
    uint32_t *order = mem_array(t->messages.n, sizeof *order), n = 0;
    SCRATCH ARRAY(struct channel) channels = {0};
    for (uint32_t i = 0; i < t->messages.n; i++)
        if (t->messages.at[i].stream == NO_ID)
            order[n++] = i;
    if (n > 1)
        qsort_r(order, n, sizeof *order, compare_channels, t->messages.at);
    for (uint32_t i = 0; i < n; i++) {
        const struct net_message *m = &t->messages.at[order[i]];
        if (i == 0 || m->channel != t->messages.at[order[i - 1]].channel)
            array_add(&channels, i, 0, m->received);
        channels.at[channels.n - 1].n++;
    }
    if (channels.n > 0)
        place_channels(t, order, channels.at, (uint32_t)channels.n);
    mem_free(order);
}

/* ---- keys ---- */

static uint64_t request_key(const struct net_message *m, uint32_t connection)
{
    uint64_t what = (uint64_t)connection << 2 | (m->flags & PS_PUSH);
    return map_mix(map_mix((uint32_t)m->timestamp + UINT64_C(1)) ^ what) | 1;
}

/* An answer without a key gets that of its request: on the same connection, or the only one with
 * its timestamp. Answers without a request are left out. */
void ps_find_keys(struct net_transport *t)
{
    SCRATCH struct map requests = {0}; /* -> index + 1; 0: several */
    size_t n_left_out = 0;
    for (size_t i = 0; i < t->messages.n; i++) {
        const struct net_message *m = &t->messages.at[i];
        uint64_t any = request_key(m, NO_ID), own = request_key(m, m->stream / 2);
        if ((m->flags & (PS_REQUEST | PS_BYTEPS)) != (PS_REQUEST | PS_BYTEPS))
            continue;
        map_set(&requests, own, i + 1);
        map_set(&requests, any, map_get(&requests, any, NULL) ? 0 : i + 1);
    }
    EACH (struct net_message, m, t->messages) {
        if (!(m->flags & PS_KEYLESS))
            continue;
        uint64_t request = map_or(&requests, request_key(m, m->stream / 2), 0)
                               ?: map_or(&requests, request_key(m, NO_ID), 0);
        if (request && !(t->messages.at[request - 1].flags & PS_KEYLESS)) {
            m->key = t->messages.at[request - 1].key;
            m->flags &= (uint8_t)~PS_KEYLESS;
        } else {
            m->flags = 0;
            n_left_out++;
        }
    }
    if (n_left_out > 0)
        net_sort_messages(t);
}

/* Servers share the range of keys evenly. The range of one, with the fewest servers for which all
 * keys are small. */
static uint64_t find_range(const struct dpro_trace *trace)
{
    for (uint64_t n = 1; n <= MAX_SERVERS; n++) {
        uint64_t range = UINT64_MAX / n;
        bool small = true;
        for (uint32_t t = 0; t < trace->n_transports; t++)
            EACH (const struct net_message, m, trace->transports[t].messages)
                small &= m->protocol != NET_PS || m->key % range < MAX_KEY;
        if (small)
            return range;
    }
    return UINT64_MAX;
}

static void number_keys(struct dpro_trace *trace)
{
    uint64_t range = find_range(trace);
    for (uint32_t t = 0; t < trace->n_transports; t++)
        EACH (struct net_message, m, trace->transports[t].messages)
            if (m->protocol == NET_PS) {
                m->server = (uint8_t)(m->key / range);
                m->key %= range;
            }
}

/* ---- all of it ---- */

void ps_build(struct dpro_trace *trace)
{
    bool any = false;
    for (uint32_t t = 0; t < trace->n_transports; t++)
        any |= trace->transports[t].has_ps;
    if (!any)
        return;
    number_keys(trace);
    for (uint32_t t = 0; t < trace->n_transports; t++)
        EACH (const struct net_message, m, trace->transports[t].messages) {
            trace->transport_info.n_pushes += m->stream % 2 == 0 && ps_is_push(m);
            trace->transport_info.n_pulls += m->stream % 2 == 0 && ps_is_pull(m);
        }
    ps_tie_spans(trace);
    ps_assign_profiles(trace);
}
