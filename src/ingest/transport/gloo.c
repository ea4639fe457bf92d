/* ingest/transport/gloo.c: gloo's messages in the byte streams, the collectives they belong to, and
 * which span and bucket each of those is.
 *
 * A gloo context (one a process group) has one connection to each peer and numbers its collectives:
 * (context, kind, number) is one collective on all its ranks. The thread that runs it sends first,
 * while the profiler's span of it is open on that thread. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/map.h"
#include "base/sort.h"
#include "ingest/load.h"
#include "ingest/pytorch/kineto_words.h"
#include "ingest/transport/runs.h"

/* ---- messages ---- */

/* A preamble that came in two reads was not decoded where it was received, but where it was sent:
 * messages known at the other end only are added. */
static int add_from_peers(struct dpro_trace *trace)
{
    for (uint32_t t = 0; t < trace->n_transports; t++) {
        struct net_transport *transport = &trace->transports[t];
        size_t n_own = transport->messages.n;
        for (uint32_t s = 0; s < transport->connections.n * 2; s++) {
            uint32_t peer_stream;
            const struct net_transport *peer = net_peer(trace, transport, s, &peer_stream);
            if (!peer)
                continue;
            uint32_t own = transport->first_message[s], end = transport->first_message[s + 1];
            for (uint32_t m = peer->first_message[peer_stream];
                 m < peer->first_message[peer_stream + 1]; m++) {
                struct net_message message = peer->messages.at[m];
                while (own < end && transport->messages.at[own].offset < message.offset)
                    own++;
                if (own < end && transport->messages.at[own].offset == message.offset)
                    continue;
                message.stream = s;
                if (transport->messages.n >= NO_ID - 1 ||
                    array_push(&transport->messages, message) < 0)
                    return -1;
            }
        }
        if (transport->messages.n > n_own && net_sort_messages(transport) < 0)
            return -1;
    }
    return 0;
}

/* When each message's first and last byte passed this end. */
static void time_messages(struct net_transport *t)
{
    for (uint32_t s = 0; s < t->connections.n * 2; s++) {
        uint32_t i = t->first_transfer[s], end = t->first_transfer[s + 1];
        for (uint32_t m = t->first_message[s]; m < t->first_message[s + 1]; m++) {
            struct net_message *message = &t->messages.at[m];
            uint64_t last, next = m + 1 < t->first_message[s + 1] ? message[1].offset : UINT64_MAX;
            if (__builtin_add_overflow(message->offset, message->size_bytes - 1, &last) ||
                last >= next)
                last = next - 1;
            while (i < end &&
                   t->transfers.at[i].offset + t->transfers.at[i].bytes <= message->offset)
                i++;
            if (i < end && t->transfers.at[i].offset <= message->offset) {
                message->start_ns = t->transfers.at[i].start_ns;
                message->thread = t->transfers.at[i].thread;
            }
            while (i < end && t->transfers.at[i].offset + t->transfers.at[i].bytes <= last)
                i++;
            if (i < end && t->transfers.at[i].offset <= last)
                message->end_ns = t->transfers.at[i].end_ns;
        }
    }
}

/* Messages follow each other without a byte between, but for where nothing was recorded. */
static int count_breaks(const struct net_transport *t, net_range_array *ranges, uint64_t *n)
{
    for (uint32_t s = 0; s < t->connections.n * 2; s++) {
        size_t i = 0;
        if (t->first_message[s] == t->first_message[s + 1])
            continue;
        if (net_ranges(t, s, ranges) < 0)
            return -1;
        for (uint32_t m = t->first_message[s]; m + 1 < t->first_message[s + 1]; m++) {
            const struct net_message *message = &t->messages.at[m];
            uint64_t over = message->offset + message->size_bytes, next = message[1].offset;
            while (i < ranges->n && ranges->at[i].end < next)
                i++;
            bool recorded = i < ranges->n && ranges->at[i].start <= message->offset;
            *n += recorded && over != next;
        }
    }
    return 0;
}

/* ---- gloo's contexts and collectives ---- */

/* A context (one a process group) has one connection to each peer and numbers its collectives.
 * Connections on which the same collective runs at the same time are of one context. */
struct part_of {  /* a collective's messages on one connection */
    uint64_t key; /* prefix << 32 | tag */
    int64_t first_ns, last_ns;
    uint32_t connection;
};

ORDER(compare_parts, struct part_of, ASCENDING(key) ?: ASCENDING(first_ns) ?: ASCENDING(connection));

/* Sets of connections that grow into contexts. */
struct sets {
    uint32_t *parents, *next; /* next: the members of a set in a ring */
    struct map peers;         /* (set, peer) that there is a connection for */
};

static uint32_t root_of(struct sets *sets, uint32_t c)
{
    while (sets->parents[c] != c)
        c = sets->parents[c] = sets->parents[sets->parents[c]];
    return c;
}

static uint64_t peer_key(uint32_t root, const struct net_connection *connection)
{
    return ((uint64_t)root << 32 | connection->peer) + 1;
}

/* Makes one set of two, unless both have a connection to the same peer. */
static int join_sets(const struct net_transport *t, struct sets *sets, uint32_t into, uint32_t from)
{
    uint32_t c = from;
    do {
        if (t->connections.at[c].peer != NO_ID &&
            map_get(&sets->peers, peer_key(into, &t->connections.at[c]), NULL))
            return 0;
        c = sets->next[c];
    } while (c != from);
    do {
        if (map_set(&sets->peers, peer_key(into, &t->connections.at[c]), 1) < 0)
            return -1;
        c = sets->next[c];
    } while (c != from);
    sets->parents[from] = into;
    uint32_t swap = sets->next[into];
    sets->next[into] = sets->next[from];
    sets->next[from] = swap;
    return 0;
}

static uint64_t message_key(const struct net_message *message)
{
    return (uint64_t)message->prefix << 32 | message->tag;
}

typedef ARRAY(struct part_of) part_array;

/* One part for each run of messages of one collective on a connection; both directions. */
static int collect_parts(const struct net_transport *t, uint32_t connection, part_array *parts)
{
    struct map open = {0}; /* key -> index + 1 */
    int status = 0;
    for (uint32_t m = t->first_message[connection * 2];
         m < t->first_message[connection * 2 + 2] && status == 0; m++) {
        const struct net_message *message = &t->messages.at[m];
        uint64_t key = message_key(message), at;
        if (message->start_ns == INT64_MIN)
            continue;
        int64_t end = message->end_ns > message->start_ns ? message->end_ns : message->start_ns;
        if (map_get(&open, key + 1, &at)) {
            struct part_of *part = &parts->at[at - 1];
            part->first_ns =
                message->start_ns < part->first_ns ? message->start_ns : part->first_ns;
            part->last_ns = end > part->last_ns ? end : part->last_ns;
            continue;
        }
        struct part_of part = {key, message->start_ns, end, connection};
        status = array_push(parts, part) < 0 || map_set(&open, key + 1, parts->n) < 0 ? -1 : 0;
    }
    map_fini(&open);
    return status;
}

static int find_contexts(struct net_transport *t)
{
    uint32_t n = (uint32_t)t->connections.n, n_contexts = 0;
    struct sets sets = {malloc((n + (size_t)1) * sizeof *sets.parents),
                        malloc((n + (size_t)1) * sizeof *sets.next),
                        {0}};
    part_array parts = {0};
    int status = sets.parents && sets.next ? 0 : -1;
    for (uint32_t c = 0; c < n && status == 0; c++) {
        sets.parents[c] = sets.next[c] = c;
        status = map_set(&sets.peers, peer_key(c, &t->connections.at[c]), 1);
        if (status == 0)
            status = collect_parts(t, c, &parts);
    }
    if (status == 0 && parts.n > 1)
        qsort(parts.at, parts.n, sizeof *parts.at, compare_parts);
    for (size_t i = 1; i < parts.n && status == 0; i++) {
        const struct part_of *a = &parts.at[i - 1], *b = &parts.at[i];
        uint32_t x = root_of(&sets, a->connection), y = root_of(&sets, b->connection);
        if (x != y && a->key == b->key && b->first_ns <= a->last_ns)
            status = join_sets(t, &sets, x < y ? x : y, x < y ? y : x);
    }
    for (uint32_t c = 0; c < n && status == 0; c++) {
        uint32_t root = root_of(&sets, c);
        if (t->first_message[c * 2] == t->first_message[c * 2 + 2])
            continue;
        if (t->connections.at[root].context == NO_ID)
            t->connections.at[root].context = n_contexts++;
        t->connections.at[c].context = t->connections.at[root].context;
    }
    free(sets.parents);
    free(sets.next);
    map_fini(&sets.peers);
    array_fini(&parts);
    return status;
}

ORDER(by_context, struct net_collective, ASCENDING(context) ?: ASCENDING(prefix) ?: ASCENDING(tag));

static uint64_t collective_key(uint32_t context, uint64_t key)
{
    return map_mix(map_mix(context + 1) ^ key) | 1;
}

static int find_collectives(struct net_transport *t)
{
    struct map seen = {0};
    int status = 0;
    for (size_t m = 0; m < t->messages.n && status == 0; m++) {
        const struct net_message *message = &t->messages.at[m];
        uint32_t context = t->connections.at[message->stream / 2].context;
        uint64_t key = collective_key(context, message_key(message)), index;
        if (!map_get(&seen, key, &index)) {
            struct net_collective fresh = {.context = context,
                                           .tag = message->tag,
                                           .prefix = message->prefix,
                                           .first_send_ns = INT64_MAX,
                                           .last_ns = INT64_MIN,
                                           .span = NO_ID,
                                           .bucket = NO_ID,
                                           .joint = NO_ID};
            status =
                array_push(&t->collectives, fresh) < 0 || map_set(&seen, key, t->collectives.n) < 0
                    ? -1
                    : 0;
        }
    }
    map_fini(&seen);
    if (status < 0)
        return -1;
    array_sort(&t->collectives, by_context);
    for (size_t c = 0; c < t->collectives.n && status == 0; c++) {
        const struct net_collective *collective = &t->collectives.at[c];
        uint64_t key = (uint64_t)collective->prefix << 32 | collective->tag;
        status = map_set(&seen, collective_key(collective->context, key), c);
    }
    for (size_t m = 0; m < t->messages.n && status == 0; m++) {
        struct net_message *message = &t->messages.at[m];
        uint64_t index = 0;
        uint32_t context = t->connections.at[message->stream / 2].context;
        map_get(&seen, collective_key(context, message_key(message)), &index);
        message->collective = (uint32_t)index;
    }
    if (status == 0)
        net_sum_collectives(t);
    map_fini(&seen);
    return status;
}

/* ---- spans ---- */

static uint64_t span_bytes(const struct dpro_trace *trace, const struct trace_rank *rank,
                           uint32_t span, uint64_t *numel)
{
    uint32_t detail = rank->spans[span].detail;
    *numel = detail == NO_ID ? 0 : rank->details[detail].numel;
    uint64_t item =
        detail == NO_ID
            ? 0
            : kineto_dtype_bytes(strtab_get(&trace->names, rank->details[detail].dtype));
    uint64_t bytes;
    return __builtin_mul_overflow(*numel, item, &bytes) ? 0 : bytes;
}

ORDER_OF_POINTERS(by_first_send, struct net_collective, ASCENDING(first_send_ns) ?: COMPARE(x, y));

/* By collective: the run that was open on the thread of its first send. What gloo's own thread
 * sends when a socket that was full has room again tells nothing. NULL: no memory. */
static struct run **find_runs(const struct net_transport *t, const run_array *runs)
{
    struct run **of = calloc(t->collectives.n + 1, sizeof *of);
    int64_t *since_ns = malloc((t->collectives.n + 1) * sizeof *since_ns);
    for (size_t m = 0; of && since_ns && m < t->messages.n; m++) {
        const struct net_message *message = &t->messages.at[m];
        uint32_t c = message->collective;
        if (message->stream % 2 != 0 || message->start_ns == INT64_MIN || c == NO_ID ||
            (of[c] && since_ns[c] <= message->start_ns))
            continue;
        struct run *run = runs_at(runs, message->thread, message->start_ns);
        if (run) {
            of[c] = run;
            since_ns[c] = message->start_ns;
        }
    }
    if (!since_ns) {
        free(of);
        of = NULL;
    }
    free(since_ns);
    return of;
}

/* Spans, then buckets in the order in which the collectives were asked for. */
static int tie_rank(struct dpro_trace *trace, struct net_transport *t)
{
    struct dpro_transport_info *info = &trace->transport_info;
    const struct trace_rank *rank = &trace->ranks[t->rank_index];
    struct net_collective **order = malloc((t->collectives.n + 1) * sizeof *order);
    struct run **of = NULL;
    run_array runs = {0};
    if (!order || runs_list(trace, rank, "gloo:", &runs) < 0 ||
        runs_find_calls(trace, rank, &runs) < 0 || !(of = find_runs(t, &runs))) {
        free(order);
        array_fini(&runs);
        return -1;
    }
    size_t n = 0;
    for (size_t c = 0; c < t->collectives.n; c++) {
        struct net_collective *collective = &t->collectives.at[c];
        struct run *run = of[c];
        if (!run)
            continue;
        run->tied = true;
        collective->span = run->span;
        collective->bucket = recorded_unit_of(&trace->names, rank, run->call);
        order[n++] = collective;
    }
    if (n > 1)
        qsort(order, n, sizeof *order, by_first_send);
    struct recorded_walk walk = {.recording = rank->recording};
    for (size_t i = 0; i < n; i++) {
        uint64_t numel;
        order[i]->size_bytes = span_bytes(trace, rank, order[i]->span, &numel);
        const char *kind = gloo_collective_name(order[i]->prefix);
        if (rank->recording && order[i]->bucket == NO_ID && kind && strcmp(kind, "all_reduce") == 0)
            order[i]->bucket = recorded_walk_next(&walk, numel, order[i]->size_bytes);
        info->n_in_buckets += order[i]->bucket != NO_ID;
    }
    for (size_t r = 0; r < runs.n; r++) {
        info->n_collectives++;
        info->n_tied += runs.at[r].tied;
    }
    array_fini(&runs);
    free(order);
    free(of);
    return 0;
}

/* ---- one collective on all ranks ---- */

/* Numbers contexts over all processes: joined connections are of one. */
static int number_contexts(const struct dpro_trace *trace, uint32_t **numbers, uint32_t **first)
{
    uint32_t n = 0;
    *first = calloc(trace->n_transports + (size_t)1, sizeof **first);
    if (!*first)
        return -1;
    for (uint32_t t = 0; t < trace->n_transports; t++) {
        uint32_t most = 0;
        for (size_t c = 0; c < trace->transports[t].connections.n; c++)
            if (trace->transports[t].connections.at[c].context != NO_ID &&
                trace->transports[t].connections.at[c].context >= most)
                most = trace->transports[t].connections.at[c].context + 1;
        (*first)[t] = n;
        n += most;
    }
    *numbers = malloc((n + (size_t)1) * sizeof **numbers);
    if (!*numbers)
        return -1;
    for (uint32_t i = 0; i < n; i++)
        (*numbers)[i] = i;
    for (uint32_t t = 0; t < trace->n_transports; t++)
        for (size_t c = 0; c < trace->transports[t].connections.n; c++) {
            const struct net_connection *connection = &trace->transports[t].connections.at[c];
            if (connection->peer == NO_ID || connection->context == NO_ID)
                continue;
            const struct net_connection *other =
                &trace->transports[connection->peer].connections.at[connection->peer_connection];
            if (other->context == NO_ID)
                continue;
            uint32_t a = (*first)[t] + connection->context;
            uint32_t b = (*first)[connection->peer] + other->context;
            while ((*numbers)[a] != a)
                a = (*numbers)[a] = (*numbers)[(*numbers)[a]];
            while ((*numbers)[b] != b)
                b = (*numbers)[b] = (*numbers)[(*numbers)[b]];
            (*numbers)[a > b ? a : b] = a > b ? b : a;
        }
    return 0;
}

struct joint {
    uint64_t sent_bytes, received_bytes, size_bytes;
    uint32_t n_ranks;
    bool equal; /* all ranks' spans say the same size */
};

/* What the ranks of a collective of n send together, on gloo's rings: of an all-reduce every byte 2
 * (n - 1) times, of an all-gather every rank's part to all others. Known to the byte, also where
 * the parts are not equal. 0: not known of this kind. */
static uint64_t bytes_of(uint8_t prefix, uint64_t size_bytes, uint64_t n)
{
    const char *kind = gloo_collective_name(prefix);
    uint64_t times = 0, bytes;
    if (kind && strcmp(kind, "all_reduce") == 0)
        times = 2 * (n - 1);
    else if (kind && strcmp(kind, "all_gather") == 0)
        times = n * (n - 1);
    return __builtin_mul_overflow(size_bytes, times, &bytes) ? 0 : bytes;
}

static int join_collectives(struct dpro_trace *trace)
{
    uint32_t *numbers = NULL, *first = NULL;
    struct map seen = {0};
    ARRAY(struct joint) joints = {0};
    int status = number_contexts(trace, &numbers, &first);
    for (uint32_t t = 0; t < trace->n_transports && status == 0; t++) {
        struct net_transport *transport = &trace->transports[t];
        for (size_t c = 0; c < transport->collectives.n && status == 0; c++) {
            struct net_collective *collective = &transport->collectives.at[c];
            uint32_t context = first[t] + collective->context;
            while (numbers[context] != context)
                context = numbers[context];
            uint64_t key = collective_key(context,
                                          (uint64_t)collective->prefix << 32 | collective->tag),
                     index;
            if (!map_get(&seen, key, &index)) {
                struct joint fresh = {.size_bytes = collective->size_bytes, .equal = true};
                index = joints.n;
                status = array_push(&joints, fresh) < 0 || map_set(&seen, key, index) < 0 ? -1 : 0;
                if (status < 0)
                    break;
            }
            struct joint *joint = &joints.at[index];
            collective->joint = (uint32_t)index;
            joint->n_ranks++;
            joint->sent_bytes += collective->sent_bytes;
            joint->received_bytes += collective->received_bytes;
            joint->equal &= collective->size_bytes == joint->size_bytes;
        }
    }
    for (uint32_t t = 0; t < trace->n_transports && status == 0; t++)
        for (size_t c = 0; c < trace->transports[t].collectives.n; c++) {
            struct net_collective *collective = &trace->transports[t].collectives.at[c];
            const struct joint *joint = &joints.at[collective->joint];
            uint64_t expected =
                bytes_of(collective->prefix, collective->size_bytes, joint->n_ranks);
            if (collective->span == NO_ID || expected == 0)
                continue;
            collective->exact =
                joint->equal && joint->sent_bytes == expected && joint->received_bytes == expected;
            trace->transport_info.n_checked++;
            trace->transport_info.n_exact += collective->exact;
        }
    free(numbers);
    free(first);
    map_fini(&seen);
    array_fini(&joints);
    return status;
}

int gloo_share_messages(struct dpro_trace *trace)
{
    int status = add_from_peers(trace);
    for (uint32_t t = 0; t < trace->n_transports && status == 0; t++)
        time_messages(&trace->transports[t]);
    return status;
}

int gloo_build(struct dpro_trace *trace)
{
    struct dpro_transport_info *info = &trace->transport_info;
    net_range_array ranges = {0};
    int status = gloo_share_messages(trace);
    for (uint32_t t = 0; t < trace->n_transports && status == 0; t++) {
        struct net_transport *transport = &trace->transports[t];
        for (size_t m = 0; m < transport->messages.n; m++)
            info->n_messages += transport->messages.at[m].stream % 2 == 0;
        if (count_breaks(transport, &ranges, &info->n_framing_breaks) < 0 ||
            find_contexts(transport) < 0 || find_collectives(transport) < 0 ||
            (transport->rank_index != NO_ID && tie_rank(trace, transport) < 0))
            status = -1;
    }
    array_fini(&ranges);
    return status == 0 ? join_collectives(trace) : -1;
}
