/* Each rank's ends of the messages of its collectives, from messages in the transport's byte
 * streams and from the steps of NCCL's proxy threads; and which two ends are one message. */
#include "graph/messages/endpoints.h"

/* ---- each rank alone ---- */

/* The span that ran a slice of a collective: its own on a communication thread, its launch's where
 * it is a kernel. */
static uint32_t span_of(const struct rank_build *rank, const struct local_collective *c,
                        uint32_t slice)
{
    const struct local_op *op = &rank->ops.at[c->arrival];
    if (slice != NO_ID && (op->flags & GRAPH_OP_GPU))
        slice = rank->slices.at[slice].launch;
    else if (rank->tracks.at[op->track].kind != DPRO_DEVICE_COMM_THREAD)
        slice = NO_ID;
    return slice == NO_ID ? NO_ID : rank->slices.at[slice].span;
}

void build_parts(struct rank_build *rank)
{
    const struct rank_logged *logged = &rank->trace->logged;
    SCRATCH struct map by_span = {0}; /* span + 1 -> place in logged->parts */
    size_t n = rank->collectives.n * rank->n_samples;
    if (logged->parts.n == 0 || n == 0)
        return;
    rank->parts = mem_alloc(n * sizeof *rank->parts);
    for (size_t i = 0; i < logged->parts.n; i++)
        map_set(&by_span, (uint64_t)logged->parts.at[i].span + 1, i);
    for (size_t c = 0; c < rank->collectives.n; c++)
        for (uint32_t s = 0; s < rank->n_samples; s++) {
            struct net_part *part = &rank->parts[c * rank->n_samples + s];
            const struct local_collective *collective = &rank->collectives.at[c];
            uint32_t slice = rank->match[build_sample_at(rank, s, collective->arrival)];
            uint32_t span = span_of(rank, collective, slice);
            uint64_t found;
            *part = (struct net_part){NO_ID, NO_ID};
            while (span != NO_ID && !map_get(&by_span, (uint64_t)span + 1, &found))
                span = rank->trace->spans[span].parent;
            if (span != NO_ID)
                *part = logged->parts.at[found].part;
        }
}

const struct net_part *endpoints_part(const struct join *join, const struct member *member,
                                      uint32_t sample)
{
    const struct rank_build *rank = &join->ranks[member->rank];
    static const struct net_part nowhere = {NO_ID, NO_ID};
    return rank->parts ? &rank->parts[(size_t)member->collective * rank->n_samples + sample]
                       : &nowhere;
}

/* ---- the logs by collective ---- */

/* NO_ID: of none. */
static uint32_t collective_of(const struct endpoint_log *log, size_t event)
{
    if (log->transport) {
        const struct net_message *message = &log->transport->messages.at[event];
        bool wanted = message->opcode == GLOO_DATA || message->opcode == GLOO_RECV_READY;
        return wanted ? message->collective : NO_ID;
    }
    uint32_t operation = log->nccl->steps.at[event].operation;
    return operation == NO_ID ? NO_ID : log->leader[operation];
}

/* What one call of the framework made NCCL do is one collective of the profile. */
static void find_leaders(struct endpoint_log *log)
{
    SCRATCH struct map by_span = {0};
    log->leader = mem_alloc(log->nccl->operations.n * sizeof *log->leader);
    for (size_t o = 0; o < log->nccl->operations.n; o++) {
        uint32_t span = log->nccl->operations.at[o].span;
        log->leader[o] =
            span == NO_ID ? NO_ID : (uint32_t)map_first(&by_span, (uint64_t)span + 1, o);
    }
}

/* Returns whether the log has any message of a collective. */
static bool index_log(struct endpoint_log *log)
{
    size_t n_events = log->transport ? log->transport->messages.n : log->nccl->steps.n;
    size_t n_collectives = log->transport ? log->transport->collectives.n : log->nccl->operations.n;
    uint32_t n = 0, collective;
    if (log->nccl)
        find_leaders(log);
    log->first = mem_array(n_collectives + 1, sizeof *log->first);
    log->events = mem_alloc(n_events * sizeof *log->events);
    for (size_t e = 0; e < n_events; e++)
        if ((collective = collective_of(log, e)) != NO_ID)
            log->first[collective]++;
    for (size_t c = 0; c <= n_collectives; c++) /* the end of each part ... */
        log->first[c] = n += log->first[c];
    for (size_t e = n_events; e-- > 0;) /* ... and, filled from the back, its start */
        if ((collective = collective_of(log, e)) != NO_ID)
            log->events[--log->first[collective]] = (uint32_t)e;
    return n > 0;
}

void endpoints_index(struct endpoints *endpoints, const struct join *join,
                     const struct dpro_trace *trace)
{
    size_t n_members = join->n_ranks + (size_t)join->n_servers;
    *endpoints = (struct endpoints){
        .join = join, .trace = trace, .unlogged = mem_array(n_members, sizeof(bool))};
    endpoints->n_logs = trace->n_transports + trace->n_nccl_logs;
    endpoints->logs = mem_array(endpoints->n_logs, sizeof *endpoints->logs);
    for (uint32_t l = 0; l < trace->n_transports; l++) {
        endpoints->logs[l].transport = &trace->transports[l];
        bool any = index_log(&endpoints->logs[l]);
        *(trace->transports[l].has_ps ? &endpoints->has_ps : &endpoints->has_gloo) |= any;
    }
    for (uint32_t l = 0; l < trace->n_nccl_logs; l++) {
        struct endpoint_log *log = &endpoints->logs[trace->n_transports + l];
        log->nccl = trace->nccl_logs[l];
        endpoints->has_nccl |= index_log(log);
    }
}

void endpoints_fini(struct endpoints *endpoints)
{
    for (uint32_t l = 0; l < endpoints->n_logs; l++)
        FREE_ALL(&endpoints->logs[l].leader, &endpoints->logs[l].first, &endpoints->logs[l].events);
    FREE_ALL(&endpoints->logs, &endpoints->comm_members, &endpoints->ends, &endpoints->found,
             &endpoints->unlogged);
}

/* Adds an end on its member's clock. */
static void add_end(struct endpoints *endpoints, const struct joined *joined, uint32_t member,
                    struct endpoint end)
{
    const struct join *join = endpoints->join;
    const struct clock_map *clock = &join->clocks.of_rank[joined_rank(join, joined, member)];
    if (end.start_ns != ABSENT)
        end.start_ns = clock_aligned(clock, end.start_ns);
    if (end.end_ns != ABSENT)
        end.end_ns = clock_aligned(clock, end.end_ns);
    array_push(&endpoints->ends, end);
}

/* ---- of a transport log ---- */

/* The member that a process is, of those behind the ranks if it is a server; NO_ID: none. */
static uint32_t member_of(const struct join *join, const struct joined *joined,
                          const struct net_transport *process)
{
    const struct member *members = joined_members(join, joined);
    uint32_t n = joined->n_members, rank = process->rank_index;
    for (uint32_t k = 0; joined->has_servers && k < join->n_servers; k++)
        if (join->ranks[join->n_ranks + k].trace->rank == process->rank)
            return n + k;
    uint32_t low = LOWER_BOUND(i, 0, n, members[i].rank < rank);
    return !joined->has_servers && low < n && members[low].rank == rank ? low : NO_ID;
}

/* The end of a message at one member, where the other end is another's. */
static struct endpoint end_of(const struct net_transport *t, const struct net_message *message,
                              uint32_t member, uint32_t other)
{
    bool sends = message->stream % 2 == 0;
    return (struct endpoint){.from = sends ? member : other,
                             .to = sends ? other : member,
                             .number =
                                 message->protocol == NET_PS ? message->flags : message->delta,
                             .stream = message->stream,
                             .offset = message->offset,
                             .is_ready = message->opcode != GLOO_DATA,
                             .sends = sends,
                             .size_bytes = net_message_payload(message),
                             .start_ns = message->start_ns,
                             .end_ns = message->end_ns,
                             .connection = &t->connections.at[message->stream / 2]};
}

/* A member's end; of an exchange with servers also the server's, which has no part of its own.
 * Returns whether they can be told. */
static bool add_message(struct endpoints *endpoints, const struct joined *joined, uint32_t member,
                        const struct net_transport *t, const struct net_message *message)
{
    uint32_t peer_stream, other = NO_ID;
    const struct net_transport *peer = net_peer(endpoints->trace, t, message->stream, &peer_stream);
    if (peer && (other = member_of(endpoints->join, joined, peer)) == NO_ID)
        return false; /* what does it do in this collective? */
    struct endpoint end = end_of(t, message, member, other);
    if (!end.sends && peer)
        end.stream = peer_stream;
    if (!end.is_ready || endpoints->with_ready)
        add_end(endpoints, joined, member, end);
    if (!joined->has_servers)
        return true;
    const struct net_message *there =
        peer ? net_message_at(peer, peer_stream, message->offset) : NULL;
    if (!there)
        return false;
    struct endpoint back = end_of(peer, there, other, member);
    back.number = end.number;
    back.stream = end.stream;
    add_end(endpoints, joined, other, back);
    return true;
}

/* ---- NCCL's ---- */

static const struct nccl_comm *comm_of(const struct nccl_log *nccl,
                                       const struct nccl_operation *operation)
{
    return operation->comm == NO_ID ? NULL : &nccl->comms.at[operation->comm];
}

/* The communicator of a member's part; NULL: the part is not NCCL's, or says nothing of it. */
static const struct nccl_comm *comm_of_part(const struct endpoints *endpoints,
                                            const struct net_part *part)
{
    const struct nccl_log *nccl = part->log == NO_ID ? NULL : endpoints->logs[part->log].nccl;
    return nccl ? comm_of(nccl, &nccl->operations.at[part->collective]) : NULL;
}

static void find_comm_members(struct endpoints *endpoints, const struct member *members,
                              uint32_t n_members, uint32_t sample)
{
    map_fini(&endpoints->comm_members);
    for (uint32_t m = 0; m < n_members; m++) {
        const struct nccl_comm *comm =
            comm_of_part(endpoints, endpoints_part(endpoints->join, &members[m], sample));
        if (comm && !endpoints->unlogged[m])
            map_set(&endpoints->comm_members, map_key((uint64_t)comm->rank), m);
    }
}

static uint32_t find_comm_member(const struct endpoints *endpoints, int32_t rank)
{
    return (uint32_t)map_or(&endpoints->comm_members, map_key((uint64_t)rank), NO_ID);
}

/* A point-to-point call has no number that both ends know. The operation's communicator must be
 * that of the part: ranks are its. */
static bool add_step(struct endpoints *endpoints, const struct joined *joined, uint32_t member,
                     const struct nccl_log *nccl, const struct nccl_comm *comm,
                     const struct nccl_step *step)
{
    struct endpoint end = {.from = member, .to = member};
    const struct nccl_operation *operation = &nccl->operations.at[step->operation];
    const struct nccl_comm *own = comm_of(nccl, operation);
    end.sends = step->flags & NCCL_OP_SENDS;
    if (end.sends == ((step->flags & NCCL_OP_RECEIVES) != 0) || !own || !comm ||
        own->hash != comm->hash)
        return false;
    *(end.sends ? &end.to : &end.from) = find_comm_member(endpoints, step->peer);
    if (!operation->point_to_point)
        end.number = (uint32_t)map_mix(map_text_key(strtab_get(&nccl->names, operation->func)) +
                                       operation->sequence);
    end.stream = end.channel = (uint32_t)step->channel;
    end.offset = (uint64_t)step->step;
    end.size_bytes = step->size_bytes;
    int64_t start = end.sends ? step->sent_ns : step->start_ns;
    int64_t stop = end.sends ? step->stop_ns : step->there_ns;
    end.start_ns = start > 0 ? start : ABSENT;
    end.end_ns = stop > 0 ? stop : ABSENT;
    add_end(endpoints, joined, member, end);
    return true;
}

const char *endpoints_algorithm(const struct endpoints *endpoints, const struct net_part *part)
{
    static const char *const names[][2] = {{"RING", "ring"},
                                           {"TREE", "tree"},
                                           {"COLLNET_DIRECT", "collnet direct"},
                                           {"COLLNET_CHAIN", "collnet chain"},
                                           {"NVLS", "nvls"},
                                           {"NVLS_TREE", "nvls tree"},
                                           {"PAT", "pat"}};
    const struct nccl_log *nccl = part->log == NO_ID ? NULL : endpoints->logs[part->log].nccl;
    for (size_t i = 0; i < sizeof names / sizeof *names && nccl; i++)
        if (strcmp(strtab_get(&nccl->names, nccl->operations.at[part->collective].algorithm),
                   names[i][0]) == 0)
            return names[i][1];
    return NULL;
}

/* ---- both ---- */

/* Lists the ends of a collective's messages in an iteration, of members with a log. Returns whether
 * all are known. */
static bool list_ends(struct endpoints *endpoints, const struct joined *joined, uint32_t sample)
{
    const struct member *members = joined_members(endpoints->join, joined);
    endpoints->ends.n = 0;
    if (endpoints->has_nccl)
        find_comm_members(endpoints, members, joined->n_members, sample);
    for (uint32_t m = 0; m < joined->n_members; m++) {
        const struct net_part *part = endpoints_part(endpoints->join, &members[m], sample);
        size_t n_before = endpoints->ends.n;
        if (endpoints->unlogged[m] && !joined->has_servers)
            continue;
        if (part->log == NO_ID)
            return false; /* nothing of an exchange is in the log */
        const struct endpoint_log *log = &endpoints->logs[part->log];
        const struct nccl_comm *comm = comm_of_part(endpoints, part);
        for (uint32_t i = log->first[part->collective]; i < log->first[part->collective + 1]; i++)
            if (log->transport ? !add_message(endpoints, joined, m, log->transport,
                                              &log->transport->messages.at[log->events[i]])
                               : !add_step(endpoints, joined, m, log->nccl, comm,
                                           &log->nccl->steps.at[log->events[i]]))
                return false;
        if (joined->has_servers && endpoints->ends.n == n_before)
            return false;
    }
    return true;
}

/* ---- the two ends of each message ---- */

/* Who sends the data that a message is or is the ready message of, and to whom. */
static uint64_t way_of(const struct endpoint *end)
{
    return end->is_ready ? (uint64_t)end->to << 32 | end->from
                         : (uint64_t)end->from << 32 | end->to;
}

/* By transaction. Of each way and number first the data, then the ready messages: the k-th is for
 * the k-th. */
static int compare_transactions(const struct endpoint *x, const struct endpoint *y)
{
    return COMPARE(way_of(x), way_of(y)) ?: ASCENDING(number) ?: ASCENDING(is_ready)
           ?: ASCENDING(stream) ?: ASCENDING(offset);
}

ORDER(by_transaction, struct endpoint, compare_transactions(x, y) ?: DESCENDING(sends));

/* Finds a message whose other end is unknown, as that rank has no log. */
static bool find_one_sided(const struct endpoints *endpoints, const struct endpoint *end,
                           struct found *found)
{
    found->sent = end->sends;
    found->received = !end->sends;
    if ((end->sends ? end->to : end->from) != endpoints->nobody || end->start_ns == ABSENT ||
        end->end_ns == ABSENT)
        return false;
    found->time =
        (struct message_time){end->start_ns, end->end_ns, end->sends ? ABSENT : end->start_ns};
    return true;
}

/* Joins the two ends of each message. Returns whether none lacks one that should be there. */
static bool pair_ends(struct endpoints *endpoints)
{
    struct endpoint *at = endpoints->ends.at;
    size_t n = endpoints->ends.n;
    for (size_t i = 0; i < n; i++) {
        if (at[i].from == NO_ID || endpoints->unlogged[at[i].from])
            at[i].from = endpoints->nobody;
        if (at[i].to == NO_ID || endpoints->unlogged[at[i].to])
            at[i].to = endpoints->nobody;
        if (at[i].from == NO_ID || at[i].to == NO_ID)
            return false;
    }
    array_sort(&endpoints->ends, by_transaction);
    endpoints->found.n = 0;
    for (size_t i = 0, next; i < n; i = next) {
        next = RUN_END(k, i, n, compare_transactions(&at[i], &at[k]) == 0);
        const struct endpoint *sent = &at[i], *received = &at[next - 1];
        struct found found = {.end = at[i],
                              .sent = true,
                              .received = true,
                              .time = {sent->start_ns, received->end_ns, received->start_ns},
                              .sender = sent->connection,
                              .receiver = received->connection};
        if (next - i == 1 ? !find_one_sided(endpoints, &at[i], &found)
                          : next - i > 2 || !sent->sends || received->sends ||
                                sent->start_ns == ABSENT || received->end_ns == ABSENT)
            return false;
        array_push(&endpoints->found, found);
    }
    return true;
}

/* A receiver that went on has received, even if the call that did it was noted later. And what a
 * rank without a log sent, it sent when it was there. */
static void clip_times(const struct endpoints *endpoints, const struct joined *joined,
                       uint32_t sample)
{
    const struct member *members = joined_members(endpoints->join, joined);
    int64_t arrived = ABSENT;
    for (uint32_t m = 0; m < joined->n_members && endpoints->nobody != NO_ID; m++) {
        int64_t at = member_arrived_ns(endpoints->join, &members[m], sample);
        if (endpoints->unlogged[m] && at != ABSENT && (arrived == ABSENT || at < arrived))
            arrived = at;
    }
    EACH (struct found, found, endpoints->found) {
        bool leaves = found->received && found->end.to < joined->n_members; /* a server stays */
        int64_t left =
            leaves ? member_left_ns(endpoints->join, &members[found->end.to], sample) : ABSENT;
        if (left != ABSENT && found->time.end_ns > left)
            found->time.end_ns = left;
        if (!found->sent)
            found->time.start_ns = MIN(MAX(found->time.start_ns, arrived), found->time.end_ns);
    }
}

size_t found_run_end(const found_array *found, size_t first, size_t *n_data)
{
    size_t end = first;
    *n_data = 0;
    for (; end < found->n && way_of(&found->at[end].end) == way_of(&found->at[first].end) &&
           found->at[end].end.number == found->at[first].end.number;
         end++)
        *n_data += !found->at[end].end.is_ready;
    return end;
}

static uint64_t stream_key(const struct endpoint *end)
{
    return map_mix(map_mix(((uint64_t)end->from << 32 | end->to) + 1) + end->stream) | 1;
}

/* Keeps the ready messages that share their stream with data. Returns whether there is none, or one
 * for each message. */
static bool keep_ready(found_array *found)
{
    SCRATCH struct map with_data = {0}; /* streams */
    size_t n_kept = 0, n_data;
    bool complete = true;
    for (size_t i = 0; i < found->n; i++)
        if (!found->at[i].end.is_ready)
            map_set(&with_data, stream_key(&found->at[i].end), 1);
    for (size_t i = 0, end; i < found->n && complete; i = end) {
        size_t n_shared = 0;
        end = found_run_end(found, i, &n_data);
        for (size_t k = i; k < end; k++) {
            bool is_ready = found->at[k].end.is_ready;
            bool shared = is_ready && map_get(&with_data, stream_key(&found->at[k].end), NULL);
            n_shared += shared;
            if (shared || !is_ready)
                found->at[n_kept++] = found->at[k];
        }
        complete = n_shared == 0 || (n_shared == n_data && n_shared + n_data == end - i);
    }
    found->n = n_kept;
    return complete;
}

bool endpoints_pair(struct endpoints *endpoints, const struct joined *joined, uint32_t sample)
{
    if (!list_ends(endpoints, joined, sample) || !pair_ends(endpoints) ||
        (endpoints->with_ready && !keep_ready(&endpoints->found)))
        return false;
    clip_times(endpoints, joined, sample);
    return true;
}
