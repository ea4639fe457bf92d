/* ingest/transport/exchange.c: where ps-lite's messages stand in the byte streams, their two ends,
 * and the spans of the profiles that they are of.
 *
 * dpro's own log has every frame's place. A CSV of another tracer has what was passed to a socket
 * of ZeroMQ, in order, and the calls that moved the bytes, in pieces: between two pauses of the
 * recording, what was passed on adds up to what went through, to the byte, and that tells which
 * connection a socket is and where its messages begin.
 *
 * A worker's span around a push, a pull or both begins before its request is passed on, and spans
 * and requests come in the same order: the timestamps count. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/sort.h"
#include "ingest/load.h"
#include "ingest/transport/ps.h"

/* A new connection exchanges at most so much before the first message. */
enum { MAX_GREETING = 1024, SLACK_NS = 200000, MAX_SERVERS = 255 };
/* Programs number their keys from 0; what is above has a server's part of the range in it. */
#define MAX_KEY (UINT64_C(1) << 40)

/* ---- streams of messages that came by socket ---- */

/* What was recorded of a stream without a pause. */
struct piece {
    uint64_t start, end;
    int64_t first_ns, last_ns;
};
typedef ARRAY(struct piece) piece_array;

static int find_pieces(const struct net_transport *t, uint32_t stream, piece_array *pieces)
{
    pieces->n = 0;
    for (uint32_t i = t->first_transfer[stream]; i < t->first_transfer[stream + 1]; i++) {
        const struct net_transfer *at = &t->transfers.at[i];
        struct piece *last = pieces->n ? &pieces->at[pieces->n - 1] : NULL;
        struct piece fresh = {at->offset, at->offset + at->bytes, at->start_ns, at->end_ns};
        if (at->bytes == 0)
            continue;
        if (last && fresh.start <= last->end) {
            last->end = fresh.end > last->end ? fresh.end : last->end;
            last->last_ns = fresh.last_ns;
        } else if (array_push(pieces, fresh) < 0) {
            return -1;
        }
    }
    return 0;
}

/* The messages of a channel, by index in t->ps, in order. */
struct channel {
    uint32_t first, n;
    bool received;
};

/* Messages passed on in a piece's time: up to where they go, from `first` on, and their bytes. */
static uint32_t take_messages(const struct ps_message *messages, const uint32_t *order, uint32_t n,
                              uint32_t first, const piece_array *pieces, size_t p, bool received,
                              uint64_t *bytes)
{
    *bytes = 0;
    for (; first < n; first++) {
        const struct ps_message *m = &messages[order[first]];
        bool later = received ? p + 1 < pieces->n && m->sent_ns >= pieces->at[p + 1].first_ns
                              : m->sent_ns > pieces->at[p].last_ns;
        if (later || __builtin_add_overflow(*bytes, m->size_bytes, bytes))
            break;
    }
    return first;
}

/* How many pieces of the stream the channel's messages add up to; sets their places when `place`.
 */
static uint32_t fit_channel(struct net_transport *t, const uint32_t *order,
                            const struct channel *channel, uint32_t stream,
                            const piece_array *pieces, bool place)
{
    const uint32_t *own = order + channel->first;
    uint32_t n_fit = 0, next = 0;
    for (size_t p = 0; p < pieces->n; p++) {
        const struct piece *piece = &pieces->at[p];
        uint64_t bytes, length = piece->end - piece->start, at;
        uint32_t first = next;
        next =
            take_messages(t->ps.at, own, channel->n, first, pieces, p, channel->received, &bytes);
        bool opens = piece->start == 0;
        if (next == first || bytes > length || (length > bytes && !opens) ||
            length - bytes > MAX_GREETING)
            continue;
        n_fit += opens ? 1 : 2; /* to the byte */
        at = piece->end - bytes;
        for (uint32_t i = first; i < next && place; i++) {
            struct ps_message *m = &t->ps.at[own[i]];
            m->stream = stream;
            m->offset = at;
            at += m->size_bytes;
        }
    }
    return n_fit;
}

ORDER_OF_INDICES(compare_channels, struct ps_message, ASCENDING(channel));

struct fit {
    uint32_t score, channel, stream;
};

ORDER(compare_fits, struct fit, DESCENDING(score) ?: ASCENDING(channel) ?: ASCENDING(stream));

/* The best fits first; a channel has one stream, and a stream one channel. */
static int place_channels(struct net_transport *t, const uint32_t *order,
                          const struct channel *channels, uint32_t n_channels)
{
    uint32_t n_streams = (uint32_t)t->connections.n * 2;
    ARRAY(struct fit) fits = {0};
    piece_array pieces = {0};
    bool *taken = calloc(n_streams + (size_t)n_channels + 1, sizeof *taken);
    int status = taken ? 0 : -1;
    for (uint32_t s = 0; s < n_streams && status == 0; s++) {
        status = find_pieces(t, s, &pieces);
        for (uint32_t c = 0; c < n_channels && status == 0 && pieces.n > 0; c++) {
            if (channels[c].received != (s % 2 == 1))
                continue;
            struct fit fit = {fit_channel(t, order, &channels[c], s, &pieces, false), c, s};
            if (fit.score > 0)
                status = array_push(&fits, fit);
        }
    }
    array_sort(&fits, compare_fits);
    for (size_t f = 0; f < fits.n && status == 0; f++) {
        const struct fit *fit = &fits.at[f];
        if (taken[fit->stream] || taken[n_streams + fit->channel])
            continue;
        taken[fit->stream] = taken[n_streams + fit->channel] = true;
        status = find_pieces(t, fit->stream, &pieces);
        if (status == 0)
            fit_channel(t, order, &channels[fit->channel], fit->stream, &pieces, true);
    }
    array_fini(&fits);
    array_fini(&pieces);
    free(taken);
    return status;
}

static int place_messages(struct net_transport *t)
{
    uint32_t *order = malloc((t->ps.n + 1) * sizeof *order), n = 0;
    ARRAY(struct channel) channels = {0};
    int status = order ? 0 : -1;
    for (uint32_t i = 0; i < t->ps.n && status == 0; i++)
        if (t->ps.at[i].stream == NO_ID)
            order[n++] = i;
    if (n > 1)
        qsort_r(order, n, sizeof *order, compare_channels, t->ps.at);
    for (uint32_t i = 0; i < n && status == 0; i++) {
        const struct ps_message *m = &t->ps.at[order[i]];
        struct channel fresh = {i, 0, m->received};
        if (i == 0 || m->channel != t->ps.at[order[i - 1]].channel)
            status = array_push(&channels, fresh);
        if (status == 0)
            channels.at[channels.n - 1].n++;
    }
    if (status == 0 && channels.n > 0)
        status = place_channels(t, order, channels.at, (uint32_t)channels.n);
    free(order);
    array_fini(&channels);
    return status;
}

/* ---- in order, with both ends ---- */

ORDER(by_place, struct ps_message, ASCENDING(stream) ?: ASCENDING(offset) ?: ASCENDING(sent_ns));

/* Keeps what moves data, or asks for them, and has a place; one for each place. */
static int sort_messages(struct net_transport *t)
{
    uint32_t n_streams = (uint32_t)t->connections.n * 2;
    size_t kept = 0;
    if (!t->first_ps)
        t->first_ps = calloc(n_streams + (size_t)1, sizeof *t->first_ps);
    if (!t->first_ps)
        return -1;
    array_sort(&t->ps, by_place);
    for (size_t i = 0; i < t->ps.n; i++) {
        const struct ps_message *m = &t->ps.at[i];
        bool twice = kept > 0 && t->ps.at[kept - 1].stream == m->stream &&
                     t->ps.at[kept - 1].offset == m->offset;
        if (m->stream < n_streams && (m->flags & (PS_PUSH | PS_PULL)) && !twice)
            t->ps.at[kept++] = *m;
    }
    t->ps.n = kept;
    for (uint32_t s = 0, i = 0; s <= n_streams; s++) {
        while (i < t->ps.n && t->ps.at[i].stream < s)
            i++;
        t->first_ps[s] = i;
    }
    return 0;
}

/* What one end's log has of a stream the other end's has, too. */
static int add_from_peers(struct dpro_trace *trace)
{
    for (uint32_t n = 0; n < trace->n_transports; n++) {
        struct net_transport *t = &trace->transports[n];
        size_t n_own = t->ps.n;
        for (uint32_t s = 0; s < t->connections.n * 2; s++) {
            uint32_t peer_stream, own = t->first_ps[s], end = t->first_ps[s + 1];
            const struct net_transport *peer = net_peer(trace, t, s, &peer_stream);
            for (uint32_t m = peer ? peer->first_ps[peer_stream] : 0;
                 peer && m < peer->first_ps[peer_stream + 1]; m++) {
                struct ps_message message = peer->ps.at[m];
                while (own < end && t->ps.at[own].offset < message.offset)
                    own++;
                if (own < end && t->ps.at[own].offset == message.offset)
                    continue;
                message.stream = s;
                message.sent_ns = message.start_ns = message.end_ns = INT64_MIN;
                if (t->ps.n >= NO_ID - 1 || array_push(&t->ps, message) < 0)
                    return -1;
            }
        }
        if (t->ps.n > n_own && sort_messages(t) < 0)
            return -1;
    }
    return 0;
}

/* One call may receive many messages: they are spread over it, in their order. */
static int64_t passed_at(const struct net_transfer *transfer, uint64_t offset)
{
    double part = (double)(offset + 1 - transfer->offset) / transfer->bytes;
    int64_t dur_ns = transfer->end_ns - transfer->start_ns;
    if (transfer->stream % 2 == 0)
        return transfer->end_ns;
    return transfer->start_ns + (int64_t)(part * (double)dur_ns);
}

static void time_messages(struct net_transport *t)
{
    for (uint32_t s = 0; s < t->connections.n * 2; s++) {
        uint32_t i = t->first_transfer[s], end = t->first_transfer[s + 1];
        for (uint32_t k = t->first_ps[s]; k < t->first_ps[s + 1]; k++) {
            struct ps_message *m = &t->ps.at[k];
            uint64_t last = m->offset + m->size_bytes - 1;
            while (i < end && t->transfers.at[i].offset + t->transfers.at[i].bytes <= m->offset)
                i++;
            if (i < end && t->transfers.at[i].offset <= m->offset) {
                m->start_ns = t->transfers.at[i].start_ns;
                m->thread = t->transfers.at[i].thread;
            }
            while (i < end && t->transfers.at[i].offset + t->transfers.at[i].bytes <= last)
                i++;
            if (i < end && t->transfers.at[i].offset <= last)
                m->end_ns = passed_at(&t->transfers.at[i], last);
        }
    }
}

/* ---- keys ---- */

static uint64_t request_key(const struct ps_message *m, uint32_t connection)
{
    uint64_t what = (uint64_t)connection << 2 | (m->flags & PS_PUSH);
    return map_mix(map_mix((uint32_t)m->timestamp + UINT64_C(1)) ^ what) | 1;
}

/* An answer without a key has its request's: of the same connection, or where the two have one each
 * the only one with the timestamp. What has none is left out. */
static int find_keys(struct net_transport *t)
{
    struct map requests = {0}; /* -> index + 1; 0: several */
    int status = 0;
    size_t n_left_out = 0;
    for (size_t i = 0; i < t->ps.n && status == 0; i++) {
        const struct ps_message *m = &t->ps.at[i];
        uint64_t any = request_key(m, NO_ID), own = request_key(m, m->stream / 2);
        if ((m->flags & (PS_REQUEST | PS_BYTEPS)) != (PS_REQUEST | PS_BYTEPS))
            continue;
        if (map_set(&requests, own, i + 1) < 0 ||
            map_set(&requests, any, map_get(&requests, any, NULL) ? 0 : i + 1) < 0)
            status = -1;
    }
    for (size_t i = 0; i < t->ps.n && status == 0; i++) {
        struct ps_message *m = &t->ps.at[i];
        uint64_t request = 0;
        if (!(m->flags & PS_KEYLESS))
            continue;
        if (!map_get(&requests, request_key(m, m->stream / 2), &request))
            map_get(&requests, request_key(m, NO_ID), &request);
        if (request && !(t->ps.at[request - 1].flags & PS_KEYLESS)) {
            m->key = t->ps.at[request - 1].key;
            m->flags &= (uint8_t)~PS_KEYLESS;
        } else {
            m->flags = 0;
            n_left_out++;
        }
    }
    map_fini(&requests);
    return status < 0 || n_left_out == 0 ? status : sort_messages(t);
}

/* Servers share the range of keys evenly: the fewest with which all keys are small. */
static uint64_t find_range(const struct dpro_trace *trace)
{
    for (uint64_t n = 1; n <= MAX_SERVERS; n++) {
        uint64_t range = UINT64_MAX / n;
        bool small = true;
        for (uint32_t t = 0; t < trace->n_transports && small; t++)
            for (size_t m = 0; m < trace->transports[t].ps.n && small; m++)
                small = trace->transports[t].ps.at[m].key % range < MAX_KEY;
        if (small)
            return range;
    }
    return UINT64_MAX;
}

static void number_keys(struct dpro_trace *trace)
{
    uint64_t range = find_range(trace);
    for (uint32_t t = 0; t < trace->n_transports; t++)
        for (size_t i = 0; i < trace->transports[t].ps.n; i++) {
            struct ps_message *m = &trace->transports[t].ps.at[i];
            m->server = (uint8_t)(m->key / range);
            m->key %= range;
        }
}

/* ---- spans ---- */

static bool is_exchange(const struct dpro_trace *trace, const struct trace_span *span)
{
    return span->kind == SPAN_ANNOTATION && span->detail != NO_ID &&
           strncmp(strtab_get(&trace->names, span->name), "KVStoreDist", 11) == 0;
}

struct request {
    int32_t timestamp;
    int64_t first_ns; /* passed on, or else sent */
    uint32_t message; /* the first of them: a key that several servers share has one a server */
};

ORDER(by_timestamp, struct request, ASCENDING(timestamp) ?: ASCENDING(message));

/* What began in one microsecond ends in the order in which it was sent, or nearly so. */
ORDER_OF_INDICES(by_start, struct trace_span, ASCENDING(start_ns) ?: ASCENDING(dur_ns));

static uint64_t answer_key(const struct ps_message *m)
{
    return map_mix(map_mix((uint32_t)m->timestamp + UINT64_C(1)) ^ (m->key << 8 | m->server)) | 1;
}

ORDER(compare_keys, struct ps_key, ASCENDING(key));

/* The keys that a worker pushes or pulls, by number, with the names of their parameters. A key that
 * several servers share counts what all of them get. */
static int list_keys(struct dpro_trace *trace, const struct net_transport *t, ps_keys *keys)
{
    struct map seen = {0}; /* key + 1 -> place; server's part of it */
    int status = 0;
    for (size_t i = 0; i < t->ps.n && status == 0; i++) {
        const struct ps_message *m = &t->ps.at[i];
        struct ps_key fresh = {.key = m->key};
        uint64_t at, part = map_mix(map_mix(m->key + 1) + m->server) | 1;
        if (m->stream % 2 || !ps_is_push(m) || m->span == NO_ID || map_get(&seen, part, NULL))
            continue;
        if (!map_get(&seen, map_mix(m->key) << 1 | 1, &at)) {
            at = keys->n;
            status = array_push(keys, fresh) < 0 || map_set(&seen, map_mix(m->key) << 1 | 1, at) < 0
                         ? -1
                         : 0;
        }
        if (status == 0) {
            keys->at[at].size_bytes += m->data_bytes;
            status = map_set(&seen, part, 1);
        }
    }
    map_fini(&seen);
    array_sort(keys, compare_keys);
    return status == 0 ? mxnet_name_keys(trace, &trace->ranks[t->rank_index], keys) : -1;
}

/* What the messages' spans carry, by name. */
static int name_spans(struct dpro_trace *trace, const struct net_transport *t)
{
    struct trace_rank *rank = &trace->ranks[t->rank_index];
    ps_keys keys = {0};
    int status = list_keys(trace, t, &keys);
    for (size_t i = 0; i < t->ps.n && status == 0; i++) {
        const struct ps_message *m = &t->ps.at[i];
        struct ps_key wanted = {.key = m->key}, *key;
        if (m->span == NO_ID || rank->details[rank->spans[m->span].detail].process_group)
            continue;
        key = keys.n == 0 ? NULL : bsearch(&wanted, keys.at, keys.n, sizeof wanted, compare_keys);
        uint32_t name = key ? key->name : 0;
        char text[32];
        if (name == 0) {
            int len = snprintf(text, sizeof text, "key %" PRIu64, m->key);
            name = strtab_add(&trace->names, text, (size_t)len);
        }
        if (name == STRTAB_FULL)
            status = -1;
        else
            rank->details[rank->spans[m->span].detail].process_group = name;
    }
    array_fini(&keys);
    return status;
}

/* What a span exchanges, for whoever looks at it as at a collective. */
static void describe(struct dpro_trace *trace, struct trace_rank *rank, uint32_t span,
                     const struct ps_message *m, uint32_t names[4])
{
    struct trace_detail *detail = &rank->details[rank->spans[span].detail];
    detail->numel += ps_is_push(m) || ps_is_pull(m) ? m->data_bytes / sizeof(float) : 0;
    detail->collective = names[(ps_is_push(m) ? 1 : 0) + (m->flags & PS_PULL ? 2 : 0)];
    detail->group_size = trace->world_size;
    detail->key = m->key < UINT32_MAX ? (uint32_t)m->key + 1 : 0;
}

/* The requests of a rank and the spans that made them, both in order; then the answers. */
static int tie_rank(struct dpro_trace *trace, struct net_transport *t)
{
    struct trace_rank *rank = &trace->ranks[t->rank_index];
    ARRAY(struct request) requests = {0};
    ARRAY(uint32_t) spans = {0};
    struct map asked = {0};
    uint32_t names[4] = {0, strtab_add(&trace->names, "push", 4),
                         strtab_add(&trace->names, "pull", 4),
                         strtab_add(&trace->names, "push_pull", 9)};
    int status =
        names[1] == STRTAB_FULL || names[2] == STRTAB_FULL || names[3] == STRTAB_FULL ? -1 : 0;
    for (uint32_t i = 0; i < rank->n_spans && status == 0; i++)
        if (is_exchange(trace, &rank->spans[i]))
            status = array_push(&spans, i);
    for (uint32_t i = 0; i < t->ps.n && status == 0; i++) {
        const struct ps_message *m = &t->ps.at[i];
        int64_t first = m->sent_ns == INT64_MIN ? m->start_ns : m->sent_ns;
        struct request request = {m->timestamp, first, i};
        if (m->stream % 2 == 0 && (m->flags & PS_REQUEST) && first != INT64_MIN)
            status = array_push(&requests, request);
    }
    if (spans.n > 1)
        qsort_r(spans.at, spans.n, sizeof *spans.at, by_start, rank->spans);
    array_sort(&requests, by_timestamp);
    for (size_t i = 0, s = 0, end; i < requests.n && status == 0; i = end) {
        int64_t first = requests.at[i].first_ns;
        for (end = i; end < requests.n && requests.at[end].timestamp == requests.at[i].timestamp;
             end++)
            first = requests.at[end].first_ns < first ? requests.at[end].first_ns : first;
        while (s < spans.n &&
               rank->spans[spans.at[s]].start_ns + rank->spans[spans.at[s]].dur_ns + SLACK_NS <
                   first)
            s++;
        if (s == spans.n || first < rank->spans[spans.at[s]].start_ns - SLACK_NS)
            continue;
        for (size_t k = i; k < end && status == 0; k++) {
            struct ps_message *m = &t->ps.at[requests.at[k].message];
            m->span = spans.at[s];
            describe(trace, rank, m->span, m, names);
            status = map_set(&asked, answer_key(m), m->span);
        }
        trace->transport_info.n_tied++;
        s++;
    }
    trace->transport_info.n_collectives += spans.n;
    for (uint32_t i = 0; i < t->ps.n && status == 0; i++) {
        struct ps_message *m = &t->ps.at[i];
        uint64_t span;
        if (m->stream % 2 == 0 || (m->flags & PS_REQUEST) || !map_get(&asked, answer_key(m), &span))
            continue;
        m->span = (uint32_t)span;
        struct trace_detail *detail = &rank->details[rank->spans[span].detail];
        if (ps_is_pull(m) && detail->collective == names[2])
            detail->numel += m->data_bytes / sizeof(float);
    }
    array_fini(&requests);
    array_fini(&spans);
    map_fini(&asked);
    return status < 0 ? status : name_spans(trace, t);
}

/* Where the messages of one worker are not known, all exchanges are told apart by their order: what
 * names they have would keep them from those that have none. */
static void forget_names(struct dpro_trace *trace)
{
    bool any = false, all = true;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t r = 0; r < trace->n_ranks; r++) {
            struct trace_rank *rank = &trace->ranks[r];
            bool exchanges = false, named = false;
            for (uint32_t i = 0; i < rank->n_spans; i++) {
                if (!is_exchange(trace, &rank->spans[i]))
                    continue;
                uint32_t *name = &rank->details[rank->spans[i].detail].process_group;
                exchanges = true;
                named |= *name != 0;
                if (pass == 1 && any && !all)
                    *name = 0;
            }
            any |= named;
            all &= named || !exchanges;
        }
}

int ps_build(struct dpro_trace *trace)
{
    int status = 0;
    bool any = false;
    for (uint32_t t = 0; t < trace->n_transports; t++)
        any |= trace->transports[t].ps.n > 0;
    for (uint32_t t = 0; t < trace->n_transports && any && status == 0; t++)
        if (place_messages(&trace->transports[t]) < 0 || sort_messages(&trace->transports[t]) < 0 ||
            find_keys(&trace->transports[t]) < 0)
            status = -1;
    if (any && status == 0)
        status = add_from_peers(trace);
    if (!any || status < 0)
        return status;
    number_keys(trace);
    for (uint32_t n = 0; n < trace->n_transports && status == 0; n++) {
        struct net_transport *t = &trace->transports[n];
        time_messages(t);
        for (size_t m = 0; m < t->ps.n; m++) {
            trace->transport_info.n_pushes +=
                t->ps.at[m].stream % 2 == 0 && ps_is_push(&t->ps.at[m]);
            trace->transport_info.n_pulls +=
                t->ps.at[m].stream % 2 == 0 && ps_is_pull(&t->ps.at[m]);
        }
        if (t->rank_index != NO_ID)
            status = tie_rank(trace, t);
        if (t->rank_index != NO_ID && status == 0)
            status = byteps_add_exchanges(trace, t);
    }
    forget_names(trace);
    return status < 0 ? status : ps_assign_profiles(trace);
}
