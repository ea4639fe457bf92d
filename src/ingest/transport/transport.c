/* ingest/transport/transport.c: one transport a process from its files, the two ends of each
 * connection, and gloo's collectives from their messages. */
#include "ingest/transport/transport.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/log.h"
#include "base/map.h"
#include "base/parallel.h"
#include "base/sort.h"
#include "ingest/load.h"

void net_transport_fini(struct net_transport *t)
{
    array_fini(&t->connections);
    array_fini(&t->transfers);
    array_fini(&t->messages);
    array_fini(&t->collectives);
    array_fini(&t->ps);
    array_fini(&t->marks);
    array_fini(&t->anchors);
    free(t->first_transfer);
    free(t->first_message);
    free(t->first_ps);
    *t = (struct net_transport){.rank = -1};
}

/* ---- processes that are no ranks ---- */

static const struct role {
    const char *word;
    bool single; /* a job has one, without a number */
} roles[] = {{"server", false}, {"ps", false}, {"scheduler", true}};

bool net_process_is(int64_t rank)
{
    int64_t n_roles = sizeof roles / sizeof *roles;
    return (rank >= 0 && rank < NET_MAX_PROCESSES) ||
           (rank >= INT_MIN && rank < INT_MIN + n_roles * NET_MAX_PROCESSES);
}

void net_process_format(char out[NET_PROCESS_TEXT], int rank)
{
    if (rank >= -1) {
        snprintf(out, NET_PROCESS_TEXT, "rank %d", rank);
        return;
    }
    unsigned process = (unsigned)rank - (unsigned)INT_MIN;
    const struct role *role = &roles[process / NET_MAX_PROCESSES];
    if (role->single)
        snprintf(out, NET_PROCESS_TEXT, "%s", role->word);
    else
        snprintf(out, NET_PROCESS_TEXT, "%s %u", role->word, process % NET_MAX_PROCESSES);
}

static bool is_between(char c, char low, char high)
{
    return c >= low && c <= high;
}

static bool is_letter(char c)
{
    return is_between(c, 'a', 'z') || is_between(c, 'A', 'Z');
}

/* The number that follows a role's word; -1: none, or another word. */
static int role_number(const struct role *role, const char *at, const char *end)
{
    int number = 0, n = 0;
    if (!role->single && at < end && (*at == '_' || *at == '-' || *at == '.' || *at == '='))
        at++;
    for (; !role->single && at < end && is_between(*at, '0', '9'); at++, n++) {
        number = number * 10 + (*at - '0');
        if (number >= NET_MAX_PROCESSES)
            return -1;
    }
    return (role->single || n > 0) && !(at < end && is_letter(*at)) ? number : -1;
}

int net_process_in(const char *name, size_t len)
{
    for (size_t r = 0; r < sizeof roles / sizeof *roles; r++) {
        size_t n = strlen(roles[r].word);
        for (size_t i = 0; i + n <= len; i++) {
            if (strncasecmp(name + i, roles[r].word, n) != 0 || (i > 0 && is_letter(name[i - 1])))
                continue;
            int number = role_number(&roles[r], name + i + n, name + len);
            if (number >= 0)
                return INT_MIN + (int)r * NET_MAX_PROCESSES + number;
        }
    }
    return -1;
}

/* ---- one process's files together ---- */

static uint64_t connection_key(const struct net_transport *t, const struct net_connection *c)
{
    uint64_t words[sizeof(struct net_address) * 2 / 8], key = (uint64_t)c->number + 1;
    if (t->numbered)
        return key;
    memcpy(words, &c->local, sizeof c->local);
    memcpy((char *)words + sizeof c->local, &c->remote, sizeof c->remote);
    for (size_t i = 0; i < sizeof words / 8; i++)
        key = map_mix(key ^ words[i]) + i;
    return key | 1;
}

/* The connections of one file after those of the files before: what is new gets the next number,
 * and to[] says which one each is. */
static int merge_connections(struct net_transport *into, const struct net_transport *from,
                             struct map *seen, uint32_t *to)
{
    for (size_t c = 0; c < from->connections.n; c++) {
        uint64_t key = connection_key(from, &from->connections.at[c]), index;
        if (!map_get(seen, key, &index)) {
            index = into->connections.n;
            if (index >= NO_ID / 2 - 1 ||
                array_push(&into->connections, from->connections.at[c]) < 0 ||
                map_set(seen, key, index) < 0)
                return -1;
        } else if (into->connections.at[index].local.family == 0) {
            into->connections.at[index] = from->connections.at[c];
        }
        to[c] = (uint32_t)index;
    }
    return 0;
}

static int append(struct net_transport *into, struct net_transport *from, struct map *seen)
{
    uint32_t *to = malloc((from->connections.n + 1) * sizeof *to);
    int status = to ? merge_connections(into, from, seen, to) : -1;
    if (status == 0 &&
        (into->transfers.n + from->transfers.n >= NO_ID ||
         into->messages.n + from->messages.n >= NO_ID ||
         array_reserve(&into->transfers, from->transfers.n) < 0 ||
         array_reserve(&into->messages, from->messages.n) < 0 || into->ps.n + from->ps.n >= NO_ID ||
         array_reserve(&into->ps, from->ps.n) < 0 ||
         array_reserve(&into->marks, from->marks.n) < 0 ||
         array_reserve(&into->anchors, from->anchors.n) < 0))
        status = -1;
    if (status == 0) {
        for (size_t i = 0; i < from->transfers.n; i++) {
            struct net_transfer transfer = from->transfers.at[i];
            transfer.stream = to[transfer.stream / 2] * 2 + transfer.stream % 2;
            into->transfers.at[into->transfers.n++] = transfer;
        }
        for (size_t i = 0; i < from->messages.n; i++) {
            struct net_message message = from->messages.at[i];
            message.stream = to[message.stream / 2] * 2 + message.stream % 2;
            into->messages.at[into->messages.n++] = message;
        }
        uint32_t n_channels = 0;
        for (size_t i = 0; i < into->ps.n; i++)
            n_channels =
                into->ps.at[i].channel + 1 > n_channels ? into->ps.at[i].channel + 1 : n_channels;
        for (size_t i = 0; i < from->ps.n; i++) {
            struct ps_message message = from->ps.at[i];
            message.channel += n_channels;
            if (message.stream != NO_ID)
                message.stream = to[message.stream / 2] * 2 + message.stream % 2;
            into->ps.at[into->ps.n++] = message;
        }
        for (size_t i = 0; i < from->marks.n; i++)
            into->marks.at[into->marks.n++] = from->marks.at[i];
        for (size_t i = 0; i < from->anchors.n; i++)
            into->anchors.at[into->anchors.n++] = from->anchors.at[i];
        /* loss is counted from the log's start, through all its segments */
        into->n_lost = from->n_lost > into->n_lost ? from->n_lost : into->n_lost;
        into->n_unframed =
            from->n_unframed > into->n_unframed ? from->n_unframed : into->n_unframed;
        into->n_frames += from->n_frames;
        into->n_unknown += from->n_unknown;
        if (!into->zone)
            into->zone = from->zone;
    }
    free(to);
    return status;
}

ORDER(by_offset, struct net_transfer, ASCENDING(offset) ?: ASCENDING(start_ns) ?: ASCENDING(bytes));

ORDER(by_place, struct net_message, ASCENDING(stream) ?: ASCENDING(offset) ?: ASCENDING(size_bytes));

static bool same_transfer(const struct net_transfer *a, const struct net_transfer *b)
{
    return a->offset == b->offset && a->start_ns == b->start_ns && a->bytes == b->bytes &&
           a->end_ns == b->end_ns;
}

/* By stream, then offset. A stream is written by one or two threads, each in order, so its
 * transfers are nearly sorted already. What was logged twice is kept once. */
static int sort_transfers(struct net_transport *t)
{
    uint32_t n_streams = (uint32_t)t->connections.n * 2;
    struct net_transfer *sorted = malloc((t->transfers.n + 1) * sizeof *sorted);
    uint32_t *next = calloc(n_streams + (size_t)1, sizeof *next);
    t->first_transfer = calloc(n_streams + (size_t)1, sizeof *t->first_transfer);
    if (!sorted || !next || !t->first_transfer) {
        free(sorted);
        free(next);
        return -1;
    }
    for (size_t i = 0; i < t->transfers.n; i++)
        t->first_transfer[t->transfers.at[i].stream + 1]++;
    for (uint32_t s = 0; s < n_streams; s++) {
        t->first_transfer[s + 1] += t->first_transfer[s];
        next[s] = t->first_transfer[s];
    }
    for (size_t i = 0; i < t->transfers.n; i++)
        sorted[next[t->transfers.at[i].stream]++] = t->transfers.at[i];
    size_t kept = 0;
    for (uint32_t s = 0; s < n_streams; s++) {
        struct net_transfer *at = sorted + t->first_transfer[s];
        size_t n = next[s] - t->first_transfer[s], i = 1;
        while (i < n && by_offset(&at[i - 1], &at[i]) <= 0)
            i++;
        if (i < n)
            qsort(at, n, sizeof *at, by_offset);
        t->first_transfer[s] = (uint32_t)kept;
        for (i = 0; i < n; i++) {
            if (i > 0 && same_transfer(&at[i - 1], &at[i]))
                t->n_duplicates++;
            else
                t->transfers.at[kept++] = at[i];
        }
    }
    t->first_transfer[n_streams] = (uint32_t)kept;
    t->transfers.n = kept;
    free(sorted);
    free(next);
    return 0;
}

static void index_messages(struct net_transport *t)
{
    uint32_t n_streams = (uint32_t)t->connections.n * 2;
    for (uint32_t s = 0, i = 0; s <= n_streams; s++) {
        while (i < t->messages.n && t->messages.at[i].stream < s)
            i++;
        t->first_message[s] = i;
    }
}

int net_sort_messages(struct net_transport *t)
{
    if (!t->first_message)
        t->first_message = calloc(t->connections.n * 2 + 1, sizeof *t->first_message);
    if (!t->first_message)
        return -1;
    array_sort(&t->messages, by_place);
    size_t kept = 0;
    for (size_t i = 0; i < t->messages.n; i++)
        if (kept == 0 || t->messages.at[kept - 1].stream != t->messages.at[i].stream ||
            t->messages.at[kept - 1].offset != t->messages.at[i].offset)
            t->messages.at[kept++] = t->messages.at[i];
    t->messages.n = kept;
    index_messages(t);
    return 0;
}

void net_sum_collectives(struct net_transport *t)
{
    for (size_t m = 0; m < t->messages.n; m++) {
        const struct net_message *message = &t->messages.at[m];
        if (message->collective == NO_ID)
            continue;
        struct net_collective *collective = &t->collectives.at[message->collective];
        collective->n_messages++;
        if (message->start_ns == INT64_MIN)
            continue; /* not recorded at this end */
        *(message->stream % 2 ? &collective->received_bytes : &collective->sent_bytes) +=
            net_message_payload(message);
        if (message->end_ns > collective->last_ns)
            collective->last_ns = message->end_ns;
        if (message->stream % 2 == 0 && message->start_ns < collective->first_send_ns) {
            collective->first_send_ns = message->start_ns;
            collective->thread = message->thread;
        }
    }
}

/* Addresses that mean something in their own network namespace only are told apart by it. */
static void set_zones(struct net_transport *t)
{
    for (size_t c = 0; c < t->connections.n; c++) {
        struct net_address *ends[] = {&t->connections.at[c].local, &t->connections.at[c].remote};
        for (int e = 0; e < 2; e++)
            if (net_address_is_local(ends[e]) && !ends[e]->zone)
                ends[e]->zone = t->zone;
    }
}

struct sorting {
    struct net_transport *transports;
    int *status;
};

static void sort_item(void *arg, size_t item)
{
    struct sorting *sorting = arg;
    struct net_transport *t = &sorting->transports[item];
    set_zones(t);
    sorting->status[item] = sort_transfers(t) < 0 || net_sort_messages(t) < 0 ? -1 : 0;
}

ORDER_OF_POINTERS(by_process, struct source,
                  COMPARE((unsigned)x->rank, (unsigned)y->rank) ?: ASCENDING(part.transport->pid)
                      ?: ASCENDING(part.transport->segment) ?: COMPARE(x, y));

static int collect(struct loader *loader, struct source **sources, size_t n)
{
    struct dpro_trace *trace = loader->trace;
    trace->transports = calloc(n, sizeof *trace->transports);
    if (!trace->transports)
        return -1;
    for (size_t i = 0, end; i < n; i = end) {
        struct net_transport *t = &trace->transports[trace->n_transports++];
        struct net_transport *first = sources[i]->part.transport;
        struct map seen = {0};
        int status = 0;
        *t = (struct net_transport){
            .rank = sources[i]->rank, .rank_index = NO_ID, .pid = first->pid, .zone = first->zone};
        t->by_sender = first->by_sender;
        memcpy(t->host, first->host, sizeof t->host);
        memcpy(t->boot_id, first->boot_id, sizeof t->boot_id);
        for (end = i; end < n && sources[end]->rank == t->rank &&
                      sources[end]->part.transport->pid == t->pid && status == 0;
             end++) {
            status = append(t, sources[end]->part.transport, &seen);
            net_transport_fini(sources[end]->part.transport);
            free(sources[end]->part.transport);
            sources[end]->part.transport = NULL;
        }
        map_fini(&seen);
        if (status < 0)
            return -1;
        for (uint32_t r = 0; r < trace->n_ranks; r++)
            if (trace->ranks[r].rank == t->rank)
                t->rank_index = r;
    }
    return 0;
}

/* ---- the two ends of a connection ---- */

struct end {
    struct net_address low, high; /* of both ends, in an order of their own */
    bool local_is_low;
    int64_t first_ns;
    uint32_t transport, connection;
};

ORDER(compare_ends, struct end,
      memcmp(&x->low, &y->low, 2 * sizeof x->low) ?: DESCENDING(local_is_low)
          ?: ASCENDING(transport) ?: ASCENDING(first_ns) ?: ASCENDING(connection));

static int64_t first_seen(const struct net_transport *t, uint32_t connection)
{
    int64_t first = INT64_MAX;
    for (uint32_t i = t->first_transfer[connection * 2]; i < t->first_transfer[connection * 2 + 2];
         i++)
        first = t->transfers.at[i].start_ns < first ? t->transfers.at[i].start_ns : first;
    return first;
}

/* Equal pairs of addresses are the two ends of one connection; where a pair was used again, the
 * k-th at one end is the k-th at the other. */
static int join_connections(struct dpro_trace *trace)
{
    ARRAY(struct end) ends = {0};
    int status = 0;
    for (uint32_t t = 0; t < trace->n_transports && status == 0; t++) {
        const struct net_transport *transport = &trace->transports[t];
        for (uint32_t c = 0; c < transport->connections.n && status == 0; c++) {
            const struct net_connection *connection = &transport->connections.at[c];
            if (!connection->whole)
                continue;
            struct end end = {.transport = t,
                              .connection = c,
                              .first_ns = first_seen(transport, c),
                              .local_is_low = memcmp(&connection->local, &connection->remote,
                                                     sizeof connection->local) < 0};
            end.low = end.local_is_low ? connection->local : connection->remote;
            end.high = end.local_is_low ? connection->remote : connection->local;
            status = array_push(&ends, end);
        }
    }
    array_sort(&ends, compare_ends);
    for (size_t i = 0, end; i < ends.n && status == 0; i = end) {
        size_t n_low = 0;
        for (end = i; end < ends.n &&
                      memcmp(&ends.at[end].low, &ends.at[i].low, 2 * sizeof ends.at[i].low) == 0;
             end++)
            n_low += ends.at[end].local_is_low;
        for (size_t k = 0; k < n_low && i + n_low + k < end; k++) {
            const struct end *a = &ends.at[i + k], *b = &ends.at[i + n_low + k];
            struct net_connection *ca =
                &trace->transports[a->transport].connections.at[a->connection];
            struct net_connection *cb =
                &trace->transports[b->transport].connections.at[b->connection];
            ca->peer = b->transport;
            ca->peer_connection = b->connection;
            cb->peer = a->transport;
            cb->peer_connection = a->connection;
        }
    }
    array_fini(&ends);
    return status;
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

/* ---- bytes ---- */

static uint64_t overlap(struct net_range a, struct net_range b)
{
    uint64_t start = a.start > b.start ? a.start : b.start, end = a.end < b.end ? a.end : b.end;
    return end > start ? end - start : 0;
}

int net_ranges(const struct net_transport *t, uint32_t stream, net_range_array *ranges)
{
    ranges->n = 0;
    for (uint32_t i = t->first_transfer[stream]; i < t->first_transfer[stream + 1]; i++) {
        const struct net_transfer *transfer = &t->transfers.at[i];
        struct net_range fresh = {transfer->offset, transfer->offset + transfer->bytes};
        struct net_range *last = ranges->n ? &ranges->at[ranges->n - 1] : NULL;
        if (transfer->bytes == 0)
            continue;
        if (last && fresh.start <= last->end)
            last->end = fresh.end > last->end ? fresh.end : last->end;
        else if (array_push(ranges, fresh) < 0)
            return -1;
    }
    return 0;
}

static uint64_t total(const net_range_array *ranges)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < ranges->n; i++)
        sum += ranges->at[i].end - ranges->at[i].start;
    return sum;
}

static uint64_t in_both(const net_range_array *a, const net_range_array *b)
{
    uint64_t sum = 0;
    for (size_t i = 0, k = 0; i < a->n && k < b->n;) {
        sum += overlap(a->at[i], b->at[k]);
        if (a->at[i].end <= b->at[k].end)
            i++;
        else
            k++;
    }
    return sum;
}

/* Bytes that only the other end saw. A hole in the record that the other end filled wholly is a
 * loss; one that reaches further than what the other end saw is a pause of the recording. */
static void count_holes(const net_range_array *own, const net_range_array *other,
                        struct dpro_transport_info *info)
{
    size_t k = 0;
    for (size_t i = 0; i <= own->n; i++) {
        struct net_range hole = {i ? own->at[i - 1].end : 0,
                                 i < own->n ? own->at[i].start : UINT64_MAX};
        uint64_t seen = 0;
        while (k < other->n && other->at[k].end <= hole.start)
            k++;
        for (size_t at = k; at < other->n && other->at[at].start < hole.end; at++) {
            seen += overlap(hole, other->at[at]);
            if (other->at[at].end <= hole.end)
                k = at + 1;
        }
        if (i > 0 && i < own->n && seen == hole.end - hole.start) {
            info->n_gaps++;
            info->unpaired_bytes += seen;
        } else {
            info->edge_bytes += seen;
        }
    }
}

static int count_connection(const struct dpro_trace *trace, uint32_t t, uint32_t c,
                            net_range_array ranges[3], struct dpro_transport_info *info)
{
    const struct net_transport *transport = &trace->transports[t];
    uint32_t peer_stream;
    const struct net_transport *peer = net_peer(trace, transport, c * 2, &peer_stream);
    if (net_ranges(transport, c * 2, &ranges[0]) < 0 ||
        net_ranges(transport, c * 2 + 1, &ranges[1]) < 0)
        return -1;
    info->sent_bytes += total(&ranges[0]);
    info->received_bytes += total(&ranges[1]);
    if (!peer) {
        info->n_one_sided += ranges[0].n > 0 || ranges[1].n > 0;
        return 0;
    }
    /* each direction once, from the sender's side */
    if (net_ranges(peer, peer_stream, &ranges[2]) < 0)
        return -1;
    bool first =
        t < transport->connections.at[c].peer || (t == transport->connections.at[c].peer &&
                                                  c < transport->connections.at[c].peer_connection);
    info->n_connections += first && (ranges[0].n || ranges[1].n || ranges[2].n);
    info->paired_bytes += in_both(&ranges[0], &ranges[2]);
    count_holes(&ranges[0], &ranges[2], info);
    count_holes(&ranges[2], &ranges[0], info);
    return 0;
}

static int count_bytes(const struct dpro_trace *trace, struct dpro_transport_info *info)
{
    net_range_array ranges[3] = {{0}};
    int status = 0;
    for (uint32_t t = 0; t < trace->n_transports && status == 0; t++)
        for (uint32_t c = 0; c < trace->transports[t].connections.n && status == 0; c++)
            status = count_connection(trace, t, c, ranges, info);
    for (int i = 0; i < 3; i++)
        array_fini(&ranges[i]);
    return status;
}

/* ---- all of it ---- */

static int run_all(struct loader *loader, void (*run)(void *arg, size_t item), void *arg,
                   const int *status)
{
    parallel_for(loader->trace->n_transports, loader->options->threads, run, arg);
    for (uint32_t t = 0; t < loader->trace->n_transports; t++)
        if (status[t] < 0)
            return -1;
    return 0;
}

/* A rank may have left a log and no profile: then it is missing, and the world is larger by it.
 * Where there are logs only, clocks are asked for. */
static void note_missing(struct loader *loader, struct source **sources)
{
    struct dpro_trace *trace = loader->trace;
    uint32_t n = 0;
    for (uint32_t t = 0; t < trace->n_transports && trace->n_ranks > 0; t++) {
        const struct net_transport *transport = &trace->transports[t];
        if (transport->rank < 0 || transport->rank_index != NO_ID)
            continue;
        while ((*sources)->rank != transport->rank)
            sources++;
        if (n++ == 0)
            trace_warn(trace, &loader->options->sink,
                       "%s: rank %d has a transport log and no profile: what it computes is not "
                       "known, and when it gets to what it has in common with others only as far "
                       "as they waited for it; give its profile, too",
                       (*sources)->path, transport->rank);
        if (transport->rank >= trace->world_size)
            trace->world_size = transport->rank + 1;
    }
}

static int join_all(struct loader *loader, struct source **sources, size_t n)
{
    struct dpro_trace *trace = loader->trace;
    struct dpro_transport_info *info = &trace->transport_info;
    int *status = calloc(n, sizeof *status), rc = -1;
    struct sorting sorting = {.status = status};
    if (status && collect(loader, sources, n) == 0) {
        note_missing(loader, sources);
        sorting.transports = trace->transports;
        rc = run_all(loader, sort_item, &sorting, status);
    }
    if (rc < 0 || join_connections(trace) < 0 || gloo_build(trace) < 0 || ps_build(trace) < 0 ||
        ring_build(trace) < 0 || count_bytes(trace, info) < 0)
        rc = -1;
    info->n_processes = trace->n_transports;
    for (uint32_t t = 0; t < trace->n_transports; t++) {
        info->n_calls += trace->transports[t].transfers.n;
        info->n_lost += trace->transports[t].n_lost;
        info->n_zmtp_frames += trace->transports[t].n_frames;
        info->n_framing_breaks += trace->transports[t].n_unframed;
    }
    free(status);
    return rc;
}

static void warn_misnamed(struct loader *loader)
{
    struct dpro_trace *trace = loader->trace;
    if (trace->n_misnamed > 0)
        trace_warn(
            trace, &loader->options->sink,
            "what rank %d%s pushes are other parameters than its graph or recording lists, by "
            "number or size, so they are called by their keys; is the graph of this run?",
            trace->first_misnamed, trace->n_misnamed > 1 ? ", as others," : "");
}

/* How many connections of the process no other log has the other end of, if that is all of those to
 * other processes. */
static uint32_t n_alone(const struct dpro_trace *trace, uint32_t t)
{
    const struct net_transport *transport = &trace->transports[t];
    uint32_t n = 0;
    for (uint32_t c = 0; c < transport->connections.n; c++) {
        const struct net_connection *connection = &transport->connections.at[c];
        if (connection->peer != NO_ID && connection->peer != t)
            return 0;
        n += connection->peer == NO_ID && connection->whole &&
             transport->first_transfer[c * 2 + 2] > transport->first_transfer[c * 2];
    }
    return n;
}

/* Logs of two runs have no connection in common. */
static void warn_strangers(struct loader *loader, struct source **sources)
{
    struct dpro_trace *trace = loader->trace;
    char name[NET_PROCESS_TEXT];
    uint32_t n = 0, first = 0;
    for (uint32_t t = 0; t < trace->n_transports && trace->n_transports > 1; t++)
        if (n_alone(trace, t) > 0)
            first = n++ ? first : t;
    if (n == 0)
        return;
    while ((*sources)->rank != trace->transports[first].rank)
        sources++;
    net_process_format(name, (*sources)->rank);
    trace_warn(trace, &loader->options->sink,
               "%s: no other log has the other end of any of the %u connections of %s%s; are all "
               "logs of one run?",
               (*sources)->path, n_alone(trace, first), name, n > 1 ? " (and of others)" : "");
}

int transports_build(struct loader *loader, struct dpro_error *err)
{
    struct source **sources = calloc(loader->list.n + 1, sizeof *sources);
    size_t n = 0;
    for (size_t i = 0; sources && i < loader->list.n; i++)
        if (loader->list.at[i].part.transport && loader->list.at[i].rank != -1 &&
            source_usable(&loader->list.at[i]))
            sources[n++] = &loader->list.at[i];
    int rc = sources ? 0 : -1;
    if (n > 0) {
        qsort(sources, n, sizeof *sources, by_process);
        rc = join_all(loader, sources, n);
        warn_misnamed(loader);
        warn_strangers(loader, sources);
    }
    free(sources);
    return rc < 0 ? dpro_error_nomem(err) : 0;
}
