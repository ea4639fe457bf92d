/* gloo's messages in the byte streams, the collectives they belong to, and which span and bucket
 * each of those is.
 *
 * A gloo context (one a process group) has one connection to each peer and numbers its collectives:
 * (context, kind, number) is one collective on all its ranks. The thread that runs it sends first,
 * while the profiler's span of it is open on that thread. */

#include "ingest/trace.h"

/* ---- messages ---- */

/* Whether a connection's messages are gloo's. */
static bool has_gloo(const struct net_transport *t, uint32_t connection)
{
    uint32_t first = t->first_message[connection * 2];
    return first < t->first_message[connection * 2 + 2] &&
           t->messages.at[first].protocol == NET_GLOO;
}

/* ---- gloo's contexts and collectives ---- */

/* A collective's messages on one connection. Connections on which the same collective runs at the
 * same time are of one context. */
struct part_of {
    uint64_t key; /* prefix << 32 | tag */
    int64_t first_ns, last_ns;
    uint32_t connection;
};

ORDER(by_key, struct part_of, ASCENDING(key) ?: ASCENDING(first_ns) ?: ASCENDING(connection));
typedef ARRAY(struct part_of) part_array;

/* Sets of connections of all processes, which grow into contexts. */
struct contexts {
    uint32_t *first;          /* by transport: the number of its first connection */
    uint32_t *parents, *next; /* by number; next: the members of a set in a ring */
    struct map peers;         /* (set, peer) that there is a connection for */
    struct map numbers;       /* of collectives, by context, kind and number */
};

/* The member that stands for the set. */
static uint32_t root_of(const struct contexts *contexts, uint32_t member)
{
    uint32_t *parents = contexts->parents;
    while (parents[member] != member)
        member = parents[member] = parents[parents[member]];
    return member;
}

static uint64_t peer_key(uint32_t root, const struct net_connection *connection)
{
    return ((uint64_t)root << 32 | connection->peer) + 1;
}

/* Makes one set of two of a process, unless both have a connection to the same peer. */
static void join_sets(struct contexts *contexts, const struct net_transport *t, uint32_t first,
                      uint32_t into, uint32_t from)
{
    const struct net_connection *connections = t->connections.at;
    uint32_t c = from;
    do {
        if (connections[c - first].peer != NO_ID &&
            map_get(&contexts->peers, peer_key(into, &connections[c - first]), NULL))
            return;
        c = contexts->next[c];
    } while (c != from);
    do {
        map_set(&contexts->peers, peer_key(into, &connections[c - first]), 1);
        c = contexts->next[c];
    } while (c != from);
    contexts->parents[from] = into;
    uint32_t swap = contexts->next[into];
    contexts->next[into] = contexts->next[from];
    contexts->next[from] = swap;
}

/* A collective's kind and number in its context. */
static uint64_t number_key(const struct net_message *message)
{
    return (uint64_t)message->prefix << 32 | message->tag;
}

/* One part for each run of messages of one collective on a connection; both directions. */
static void collect_parts(const struct net_transport *t, uint32_t connection, part_array *parts)
{
    SCRATCH struct map numbers = {0}; /* of the keys */
    size_t first = parts->n;
    for (uint32_t m = t->first_message[connection * 2]; m < t->first_message[connection * 2 + 2];
         m++) {
        const struct net_message *message = &t->messages.at[m];
        uint64_t key = number_key(message);
        if (message->start_ns == INT64_MIN)
            continue;
        size_t place = first + (size_t)map_number(&numbers, key + 1);
        if (place == parts->n)
            array_add(parts, key, message->start_ns, message->start_ns, connection);
        struct part_of *part = &parts->at[place];
        part->first_ns = MIN(part->first_ns, message->start_ns);
        part->last_ns = MAX(part->last_ns, MAX(message->start_ns, message->end_ns));
    }
}

/* Joins the connections of a process. */
static void find_contexts(struct contexts *contexts, const struct net_transport *t, uint32_t first)
{
    uint32_t n = (uint32_t)t->connections.n;
    SCRATCH part_array parts = {0};
    for (uint32_t c = 0; c < n; c++) {
        contexts->parents[first + c] = contexts->next[first + c] = first + c;
        map_set(&contexts->peers, peer_key(first + c, &t->connections.at[c]), 1);
        if (has_gloo(t, c))
            collect_parts(t, c, &parts);
    }
    array_sort(&parts, by_key);
    for (size_t i = 1; i < parts.n; i++) {
        const struct part_of *a = &parts.at[i - 1], *b = &parts.at[i];
        uint32_t x = root_of(contexts, first + a->connection);
        uint32_t y = root_of(contexts, first + b->connection);
        if (x != y && a->key == b->key && b->first_ns <= a->last_ns)
            join_sets(contexts, t, first, MIN(x, y), MAX(x, y));
    }
}

/* Finds the contexts of all processes; both ends of a connection are of one. */
static struct contexts contexts_find(const struct dpro_trace *trace, struct arena *arena)
{
    struct contexts contexts = {
        .first = arena_array(arena, trace->n_transports + 1, sizeof *contexts.first)};
    for (uint32_t t = 0; t < trace->n_transports; t++)
        contexts.first[t + 1] = contexts.first[t] + (uint32_t)trace->transports[t].connections.n;
    uint32_t n = contexts.first[trace->n_transports];
    contexts.parents = arena_array(arena, n, sizeof *contexts.parents);
    contexts.next = arena_array(arena, n, sizeof *contexts.next);
    for (uint32_t t = 0; t < trace->n_transports; t++)
        find_contexts(&contexts, &trace->transports[t], contexts.first[t]);
    for (uint32_t t = 0; t < trace->n_transports; t++)
        for (uint32_t c = 0; c < trace->transports[t].connections.n; c++) {
            const struct net_connection *own = &trace->transports[t].connections.at[c];
            if (own->peer == NO_ID || !has_gloo(&trace->transports[t], c))
                continue;
            uint32_t a = root_of(&contexts, contexts.first[t] + c);
            uint32_t b = root_of(&contexts, contexts.first[own->peer] + own->peer_connection);
            contexts.parents[MAX(a, b)] = MIN(a, b);
        }
    map_fini(&contexts.peers);
    return contexts;
}

/* (Context, kind, number) is one collective on all its ranks. */
static void find_collectives(struct contexts *contexts, struct net_transport *t, uint32_t first)
{
    SCRATCH struct map places = {0};
    EACH (struct net_message, message, t->messages) {
        if (message->protocol != NET_GLOO)
            continue;
        uint64_t context = root_of(contexts, first + message->stream / 2) + UINT64_C(1);
        int64_t joint =
            map_number(&contexts->numbers, map_mix(map_mix(context) ^ number_key(message)) | 1);
        message->collective = (uint32_t)map_number(&places, (uint64_t)joint + 1);
        if (message->collective == t->collectives.n)
            array_add(&t->collectives, .tag = message->tag, .prefix = message->prefix,
                      .joint = (uint32_t)joint, NET_UNSUMMED);
    }
    net_sum_collectives(t);
}

/* ---- spans ---- */

ORDER_OF_POINTERS(by_first_send, struct net_collective, ASCENDING(first_send_ns) ?: COMPARE(x, y));

/* The run of a collective: the one that was open on the thread of its first send. Sends of gloo's
 * own thread, when a full socket has room again, are in no run. */
struct first_send {
    struct comm_run *run; /* NULL: none */
    int64_t ns;
};

static void find_runs(const struct net_transport *t, const comm_run_array *runs,
                      struct first_send *firsts)
{
    EACH (const struct net_message, message, t->messages) {
        if (message->stream % 2 != 0 || message->start_ns == INT64_MIN ||
            message->collective == NO_ID)
            continue;
        struct first_send *first = &firsts[message->collective];
        if (first->run && first->ns <= message->start_ns)
            continue;
        struct comm_run *run = runs_at(runs, message->thread, message->start_ns);
        if (run)
            *first = (struct first_send){run, message->start_ns};
    }
}

/* What DDP's reducer asks for has no mark. */
static bool gloo_is_asked_by_python(const struct dpro_trace *trace, const struct trace_rank *rank,
                                    const struct comm_run *run)
{
    uint32_t at = run->call == NO_ID ? NO_ID : rank->spans[run->call].parent;
    return at != NO_ID && strcmp(strtab_get(&trace->names, rank->spans[at].name), "dpro.call") == 0;
}

static void find_buckets(struct dpro_trace *trace, const struct trace_rank *rank,
                         const struct first_send *firsts, struct net_collective **order, size_t n,
                         const struct net_transport *t)
{
    struct recorded_walk walk = recorded_walk_begin(rank, &trace->names);
    for (size_t i = 0; i < n; i++) {
        const struct comm_run *run = firsts[order[i] - t->collectives.at].run;
        order[i]->bucket = run->unit;
        order[i]->size_bytes = run->size_bytes;
        if (rank->recording && order[i]->bucket == NO_ID && order[i]->prefix == GLOO_ALL_REDUCE &&
            (run->numel || run->size_bytes || !gloo_is_asked_by_python(trace, rank, run)))
            order[i]->bucket = recorded_walk_next(&walk, run->numel, run->size_bytes);
        if (order[i]->size_bytes == 0 && order[i]->bucket != NO_ID)
            order[i]->size_bytes = rank->recording->buckets.at[order[i]->bucket].size_bytes;
        trace->transport_info.n_in_buckets += order[i]->bucket != NO_ID;
    }
}

/* Finds the spans and the buckets of a rank's collectives. */
static void tie_rank(struct dpro_trace *trace, struct net_transport *t)
{
    struct trace_rank *rank = &trace->ranks[t->rank_index];
    struct arena scratch = {0};
    struct first_send *firsts = arena_array(&scratch, t->collectives.n, sizeof *firsts);
    struct net_collective **order = arena_array(&scratch, t->collectives.n, sizeof *order);
    size_t n = 0;
    EACH (struct comm_run, run, rank->runs.gloo)
        run->tied = false;
    find_runs(t, &rank->runs.gloo, firsts);
    gloo_tie_pairs(trace, rank, t);
    for (size_t c = 0; c < t->collectives.n; c++) {
        if (!firsts[c].run)
            continue;
        firsts[c].run->tied = true;
        t->collectives.at[c].span = firsts[c].run->span;
        order[n++] = &t->collectives.at[c];
    }
    qsort(order, n, sizeof *order, by_first_send);
    find_buckets(trace, rank, firsts, order, n, t);
    EACH (const struct comm_run, run, rank->runs.gloo)
        trace->transport_info.n_tied += run->tied;
    trace->transport_info.n_collectives += rank->runs.gloo.n;
    arena_fini(&scratch);
}

/* ---- one collective on all ranks ---- */

struct gloo_joint {
    uint64_t sent_bytes, received_bytes, size_bytes;
    uint32_t n_ranks;
    bool unequal; /* the ranks' spans say different sizes */
};

/* What the ranks of a collective of n send together, on gloo's rings: of an all-reduce every byte 2
 * (n - 1) times, of an all-gather every rank's part to all others. Known to the byte, also where
 * the parts are not equal. 0: not known of this kind. */
static uint64_t bytes_of(uint8_t prefix, uint64_t size_bytes, uint64_t n)
{
    uint64_t times = prefix == GLOO_ALL_REDUCE   ? 2 * (n - 1)
                     : prefix == GLOO_ALL_GATHER ? n * (n - 1)
                                                 : 0;
    uint64_t bytes;
    return __builtin_mul_overflow(size_bytes, times, &bytes) ? 0 : bytes;
}

/* Which collectives have all bytes of their size. */
static void check_collectives(struct dpro_trace *trace, size_t n_joints)
{
    SCRATCH struct gloo_joint *joints = mem_array(n_joints, sizeof *joints);
    for (uint32_t t = 0; t < trace->n_transports; t++)
        EACH (const struct net_collective, collective, trace->transports[t].collectives) {
            struct gloo_joint *joint = &joints[collective->joint];
            joint->n_ranks++;
            joint->sent_bytes += collective->sent_bytes;
            joint->received_bytes += collective->received_bytes;
            joint->unequal |= joint->n_ranks > 1 && collective->size_bytes != joint->size_bytes;
            joint->size_bytes = collective->size_bytes;
        }
    for (uint32_t t = 0; t < trace->n_transports; t++)
        EACH (struct net_collective, collective, trace->transports[t].collectives) {
            const struct gloo_joint *joint = &joints[collective->joint];
            uint64_t expected =
                bytes_of(collective->prefix, collective->size_bytes, joint->n_ranks);
            if (collective->span == NO_ID || expected == 0)
                continue;
            collective->exact = !joint->unequal && joint->sent_bytes == expected &&
                                joint->received_bytes == expected;
            trace->transport_info.n_checked++;
            trace->transport_info.n_exact += collective->exact;
        }
}

void gloo_build(struct dpro_trace *trace)
{
    struct dpro_transport_info *info = &trace->transport_info;
    struct arena scratch = {0};
    gloo_number_pairs(trace);
    struct contexts contexts = contexts_find(trace, &scratch);
    for (uint32_t t = 0; t < trace->n_transports; t++) {
        struct net_transport *transport = &trace->transports[t];
        EACH (const struct net_message, message, transport->messages)
            info->n_messages += message->protocol == NET_GLOO && message->stream % 2 == 0;
        find_collectives(&contexts, transport, contexts.first[t]);
        if (transport->rank_index != NO_ID)
            tie_rank(trace, transport);
    }
    check_collectives(trace, contexts.numbers.n);
    map_fini(&contexts.numbers);
    arena_fini(&scratch);
}
