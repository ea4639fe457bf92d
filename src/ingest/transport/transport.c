/* Puts the files of a process's log together into one transport, and has its messages found. */
#include "ingest/transport/transport.h"

#include "base/parallel.h"
#include "ingest/rank_job.h"
#include "ingest/transport/ps.h"

void net_transport_fini(void *transport)
{
    struct net_transport *t = transport;
    FREE_ALL(&t->connections, &t->transfers, &t->messages, &t->collectives, &t->first_transfer,
             &t->first_message);
    *t = (struct net_transport){.rank = -1};
}

const struct payload_kind transport_payload = {sizeof(struct net_transport),
                                               .fini = net_transport_fini};

static struct net_transport *transport_of(const struct source *source)
{
    return source_payload(source, &transport_payload);
}

bool transports_are_logged(const struct trace_build *build)
{
    EACH (const struct source, source, build->list)
        if (source_payload(source, &transport_payload) || source_payload(source, &nccl_payload))
            return true;
    return false;
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

/* Appends the connections of a file that are new. to[] says which one each of the file's is. */
static void merge_connections(struct net_transport *into, const struct net_transport *from,
                              struct map *seen, uint32_t *to)
{
    for (size_t c = 0; c < from->connections.n; c++) {
        const struct net_connection *connection = &from->connections.at[c];
        int64_t index = map_number(seen, connection_key(from, connection));
        if (index >= NO_ID / 2 - 1)
            mem_fail();
        if ((size_t)index == into->connections.n)
            array_push(&into->connections, *connection);
        else if (into->connections.at[index].local.family == 0)
            into->connections.at[index] = *connection;
        to[c] = (uint32_t)index;
    }
}

static uint32_t moved_stream(const uint32_t *to, uint32_t stream)
{
    return stream == NO_ID ? NO_ID : to[stream / 2] * 2 + stream % 2;
}

/* Appends an array that is not needed any more; to an empty one without a copy. */
#define MOVE_ITEMS(into, from)                                                                     \
    do {                                                                                           \
        __typeof__(into) empty_ = (into);                                                          \
        if (empty_.n == 0)                                                                         \
            (into) = (from), (from) = empty_;                                                      \
        else                                                                                       \
            array_append(&(into), (from).at, (from).n);                                            \
    } while (0)

/* Appends what a file holds. */
static void append_transport(struct net_transport *into, struct net_transport *from,
                             const uint32_t *to)
{
    size_t transfer = into->transfers.n, message = into->messages.n;
    uint32_t n_channels = 0;
    MOVE_ITEMS(into->transfers, from->transfers);
    MOVE_ITEMS(into->messages, from->messages);
    for (; transfer < into->transfers.n; transfer++)
        into->transfers.at[transfer].stream = moved_stream(to, into->transfers.at[transfer].stream);
    EACH_OF (const struct net_message, known, into->messages.at, message)
        if (known->stream == NO_ID)
            n_channels = MAX(n_channels, known->channel + 1);
    for (; message < into->messages.n; message++) {
        struct net_message *fresh = &into->messages.at[message];
        if (fresh->stream == NO_ID)
            fresh->channel += n_channels;
        fresh->stream = moved_stream(to, fresh->stream);
    }
    into->has_ps |= from->has_ps;
    /* loss is counted from the log's start, through all its segments */
    into->n_lost = MAX(into->n_lost, from->n_lost);
    into->n_frames += from->n_frames;
    if (!into->zone)
        into->zone = from->zone;
}

static void take_file(struct net_transport *into, struct trace_part *part, struct map *seen)
{
    struct net_transport *from = part_payload(part, &transport_payload);
    SCRATCH uint32_t *to = mem_array(from->connections.n, sizeof *to);
    merge_connections(into, from, seen, to);
    append_transport(into, from, to);
    part_free_payload(part);
}

ORDER_OF_POINTERS(by_process, struct source,
                  COMPARE((unsigned)x->rank, (unsigned)y->rank)
                      ?: COMPARE(transport_of(x)->pid, transport_of(y)->pid)
                      ?: COMPARE(transport_of(x)->segment, transport_of(y)->segment)
                      ?: COMPARE(x, y));

/* One transport for the files of a process, which are next to each other. */
static void collect_files(struct dpro_trace *trace, struct source **sources, size_t n)
{
    trace->transports = mem_array(n, sizeof *trace->transports);
    for (size_t i = 0; i < n;) {
        struct net_transport *t = &trace->transports[trace->n_transports++];
        const struct net_transport *first = transport_of(sources[i]);
        SCRATCH struct map seen = {0};
        *t = (struct net_transport){
            .rank = sources[i]->rank, .rank_index = NO_ID, .pid = first->pid, .zone = first->zone};
        memcpy(t->host, first->host, sizeof t->host);
        memcpy(t->boot_id, first->boot_id, sizeof t->boot_id);
        for (; i < n && sources[i]->rank == t->rank && transport_of(sources[i])->pid == t->pid; i++)
            take_file(t, &sources[i]->part, &seen);
        const struct trace_rank *rank = trace_rank_of(trace, t->rank);
        if (rank)
            t->rank_index = (uint32_t)(rank - trace->ranks);
    }
}

/* ---- in order ---- */

ORDER(by_place, struct net_transfer,
      ASCENDING(stream) ?: ASCENDING(offset) ?: ASCENDING(start_ns) ?: ASCENDING(bytes)
          ?: ASCENDING(end_ns));

/* Sorts by stream, then offset, and keeps once what was logged twice. */
static void sort_transfers(struct net_transport *t)
{
    uint32_t n_streams = (uint32_t)t->connections.n * 2;
    size_t kept = 0;
    array_sort(&t->transfers, by_place);
    EACH (const struct net_transfer, transfer, t->transfers)
        if (kept == 0 || by_place(&t->transfers.at[kept - 1], transfer) != 0)
            t->transfers.at[kept++] = *transfer;
    t->transfers.n = kept;
    t->first_transfer = mem_array(n_streams + (size_t)1, sizeof *t->first_transfer);
    for (uint32_t s = 0, i = 0; s <= n_streams; s++) {
        while (i < kept && t->transfers.at[i].stream < s)
            i++;
        t->first_transfer[s] = i;
    }
}

/* Sets the zone of addresses that mean something in their own network namespace only. */
static void set_zones(struct net_transport *t)
{
    for (size_t c = 0; c < t->connections.n; c++) {
        struct net_address *ends[] = {&t->connections.at[c].local, &t->connections.at[c].remote};
        for (int e = 0; e < 2; e++)
            if (net_address_is_local(ends[e]) && !ends[e]->zone)
                ends[e]->zone = t->zone;
    }
}

static void sort_one(void *transports, size_t item)
{
    struct net_transport *t = (struct net_transport *)transports + item;
    set_zones(t);
    sort_transfers(t);
    if (t->has_ps)
        ps_place_messages(t);
    net_sort_messages(t);
    if (t->has_ps)
        ps_find_keys(t);
}

/* ---- warnings ---- */

/* Of a process that is known to have a log. */
static const char *path_of(struct source **sources, int rank)
{
    while ((*sources)->rank != rank)
        sources++;
    return (*sources)->path;
}

/* A rank with a log and without a profile makes the world larger. Where there are logs only, they
 * are read for their clocks. */
static void note_missing(struct trace_build *build, struct source **sources)
{
    struct dpro_trace *trace = build->trace;
    uint32_t n = 0;
    for (uint32_t t = 0; t < trace->n_transports && trace->n_ranks > 0; t++) {
        const struct net_transport *transport = &trace->transports[t];
        if (transport->rank < 0 || transport->rank_index != NO_ID)
            continue;
        if (n++ == 0)
            build_warn(build,
                       "%s: rank %d has a transport log and no profile, so its computation is "
                       "unknown, and its arrival at a collective is known only where others waited "
                       "for it; add its profile",
                       path_of(sources, transport->rank), transport->rank);
        trace->world_size = MAX(trace->world_size, transport->rank + 1);
    }
}

static void warn_misnamed(struct trace_build *build)
{
    struct dpro_trace *trace = build->trace;
    if (trace->n_misnamed > 0)
        build_warn(
            build,
            "rank %d%s pushes other parameters than its graph or recording lists, by number or "
            "size, so they are named by their keys; is the graph of this run?",
            trace->first_misnamed, trace->n_misnamed > 1 ? " (and others)" : "");
}

/* How many connections of the process have no other end in any log; 0 if one to another process
 * has. */
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
static void warn_strangers(struct trace_build *build, struct source **sources)
{
    struct dpro_trace *trace = build->trace;
    uint32_t n = 0, first = 0;
    for (uint32_t t = 0; t < trace->n_transports && trace->n_transports > 1; t++)
        if (n_alone(trace, t) > 0)
            first = n++ ? first : t;
    if (n == 0)
        return;
    build_warn(build,
               "%s: no other log has the other end of any of the %u connections of %s%s; are all "
               "logs of one run?",
               path_of(sources, trace->transports[first].rank), n_alone(trace, first),
               NET_PROCESS(trace->transports[first].rank), n > 1 ? " (and of others)" : "");
}

/* ---- the hooks ---- */

static bool same_process(const struct source *a, const struct source *b)
{
    const struct net_transport *s = transport_of(a), *t = transport_of(b);
    return s->pid && s->pid == t->pid && strcmp(s->host, t->host) == 0;
}

/* Of a role and number there is one process; its log may have several parts. */
void transports_complete(struct trace_build *build)
{
    for (size_t i = 0; i < build->list.n; i++) {
        struct source *source = &build->list.at[i];
        for (size_t k = 0; k < i && source->rank < -1; k++) {
            const struct source *other = &build->list.at[k];
            if (other->rank != source->rank || other->reader != source->reader ||
                other->attempt != source->attempt || !transport_of(source) ||
                !transport_of(other) || same_process(source, other))
                continue;
            build_warn(build,
                       "%s: a second process's log of %s, skipped; %s is used; name the file after "
                       "another number",
                       source->path, NET_PROCESS(source->rank), other->path);
            source->rank = -1;
        }
    }
}

static void warn_lost(struct trace_build *build)
{
    const struct dpro_trace *trace = build->trace;
    uint64_t n_lost = 0;
    for (uint32_t t = 0; t < trace->n_transports; t++)
        n_lost += trace->transports[t].n_lost;
    if (n_lost > 0)
        build_warn(build,
                   "the transport logs lost %" PRIu64 " records: raise DPRO_NET_MAX_MB, or record "
                   "fewer iterations",
                   n_lost);
}

/* All-reduces that a rank took part in while it was profiled, and that its profile, which is whole,
 * does not show. */
static void warn_unseen(struct trace_build *build)
{
    enum { LEAST_SHARE = 10 }; /* one of so many bytes */
    const struct dpro_trace *trace = build->trace;
    uint64_t sent_bytes = 0, unseen_bytes = 0;
    for (uint32_t t = 0; t < trace->n_transports; t++) {
        const struct net_transport *transport = &trace->transports[t];
        if (transport->rank_index == NO_ID)
            continue;
        const struct trace_rank *rank = &trace->ranks[transport->rank_index];
        EACH (const struct net_collective, collective, transport->collectives) {
            uint32_t window = trace_window_at(rank, collective->first_send_ns);
            if (collective->prefix != GLOO_ALL_REDUCE || window == NO_ID ||
                rank->windows[window].is_cut)
                continue;
            sent_bytes += collective->sent_bytes;
            unseen_bytes += collective->span == NO_ID ? collective->sent_bytes : 0;
        }
    }
    if (unseen_bytes * LEAST_SHARE > sent_bytes)
        build_warn(build,
                   "%.0f %% of the bytes that all-reduces sent are of calls that no profile shows, "
                   "from a thread that PyTorch's profiler does not watch (a communication hook "
                   "such as PowerSGD's); the replay lacks them",
                   100.0 * (double)unseen_bytes / (double)sent_bytes);
}

static void build_all(struct trace_build *build, struct source **sources, size_t n)
{
    struct dpro_trace *trace = build->trace;
    struct dpro_transport_info *info = &trace->transport_info;
    collect_files(trace, sources, n);
    note_missing(build, sources);
    parallel_for(trace->n_transports, build->options->threads, sort_one, trace->transports);
    net_join_connections(trace);
    net_share_messages(trace);
    gloo_build(trace);
    ps_build(trace);
    ring_build(trace);
    net_count_bytes(trace, info);
    info->n_processes = trace->n_transports;
    for (uint32_t t = 0; t < trace->n_transports; t++) {
        info->n_calls += trace->transports[t].transfers.n;
        info->n_lost += trace->transports[t].n_lost;
        info->n_zmtp_frames += trace->transports[t].n_frames;
    }
    warn_misnamed(build);
    warn_strangers(build, sources);
    warn_lost(build);
    warn_unseen(build);
}

void transports_build(struct trace_build *build)
{
    SCRATCH struct source **sources = mem_array(build->list.n, sizeof *sources);
    size_t n = 0;
    for (size_t i = 0; i < build->list.n; i++)
        if (transport_of(&build->list.at[i]) && build->list.at[i].rank != -1)
            sources[n++] = &build->list.at[i];
    if (n > 0) {
        qsort(sources, n, sizeof *sources, by_process);
        build_all(build, sources, n);
    }
}
