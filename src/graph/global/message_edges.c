/* What each message waited for, read from who sent what to whom:
 *
 * - its sender has arrived, and has sent all earlier messages of the connection;
 * - its sender has received as many messages from each other rank as it had in every measured
 *   iteration when it sent this one: in a ring, the data that it passes on, or room for them. What
 *   others of its node group received may have been passed to it;
 * - its receiver has arrived, where that is so in every iteration, as gloo asks before it sends. */

#include "graph/global/assembly.h"

/* Times of one thing in all samples. */
struct times {
    const int64_t *at;
    size_t stride;
};

static struct times starts_of(const struct assembly *a, uint32_t message)
{
    return (struct times){&message_time_of(a->messages, message, 0)->start_ns,
                          sizeof(struct message_time) / sizeof(int64_t)};
}

static struct times ends_of(const struct assembly *a, uint32_t message)
{
    return (struct times){&message_time_of(a->messages, message, 0)->end_ns,
                          sizeof(struct message_time) / sizeof(int64_t)};
}

/* As local_holds, between times of one rank or of two. */
static bool edges_holds(const struct assembly *a, struct times ends, struct times starts,
                        int64_t most_ns)
{
    struct agreement agreement = {0};
    for (uint32_t s = 0; s < a->n_samples && !agreement.is_broken; s++)
        agreement_see(&agreement, ends.at[s * ends.stride], starts.at[s * starts.stride], most_ns);
    return agreement_holds(&agreement);
}

/* One rank's messages from another in a stream, of a collective, in order: data, then ready
 * messages. */
struct inbound {
    uint32_t from, to; /* members */
    uint32_t channel;
    uint32_t first; /* into messages[] */
    uint32_t n, n_ready;
};

/* What the last message over a connection waited for; of data and ready messages apart. */
struct sender {
    uint32_t last;     /* that message; NO_ID: none yet */
    uint32_t waited;   /* from here on in waited[]: how many of each of its inbounds */
    uint32_t n_others; /* and how many calls of the other kind */
};

struct linker {
    struct assembly *a;
    const struct joined *joined;
    const struct member *members;
    struct arena scratch;    /* what follows */
    uint32_t *messages;      /* of the collective, in the order of inbound */
    struct inbound *inbound; /* by the receiver's node group, receiver, sender, stream */
    uint32_t n_inbound;
    uint32_t *first_inbound; /* of each node group, by the member that it is called by; one more */
    struct sender *senders;  /* by twice the connection (an inbound of its receiver), one more for
                                ready messages */
    uint32_t *waited;
};

/* The graph's op of one of a member's rank. */
static uint32_t member_op(const struct linker *l, uint32_t member, uint32_t local)
{
    return l->a->first_op[l->members[member].rank] + local;
}

static uint32_t call_of(const struct linker *l, uint32_t message)
{
    return assembly_message_op(l->a, message, MESSAGE_CALL);
}

static void edges_add(const struct linker *l, uint32_t from, uint32_t to)
{
    assembly_add_edge(l->a, from, to, true);
}

/* Of a server its own. */
static uint32_t node_group_of(const struct linker *l, uint32_t member)
{
    return member < l->joined->n_members ? l->members[member].node_group : member;
}

static int compare_connections(const struct linker *l, const struct message *x,
                               const struct message *y)
{
    uint32_t group = node_group_of(l, x->to), other = node_group_of(l, y->to);
    return COMPARE(group, other) ?: ASCENDING(to) ?: ASCENDING(from) ?: ASCENDING(stream);
}

static int compare_receivers(const void *a, const void *b, void *arg)
{
    const struct linker *l = arg;
    const struct message *all = l->a->messages->all.at;
    const struct message *x = &all[*(const uint32_t *)a], *y = &all[*(const uint32_t *)b];
    return compare_connections(l, x, y) ?: ASCENDING(is_ready) ?: COMPARE(x, y);
}

static void find_inbound(struct linker *l)
{
    const struct message *all = l->a->messages->all.at;
    uint32_t n = l->joined->n_messages;
    uint32_t n_members =
        l->joined->n_members + (l->joined->has_servers ? l->a->join->n_servers : 0);
    l->messages = arena_alloc(&l->scratch, n * sizeof *l->messages);
    l->inbound = arena_alloc(&l->scratch, n * sizeof *l->inbound);
    l->first_inbound = arena_array(&l->scratch, n_members + (size_t)1, sizeof *l->first_inbound);
    for (uint32_t i = 0; i < n; i++)
        l->messages[i] = l->joined->first_message + i;
    qsort_r(l->messages, n, sizeof *l->messages, compare_receivers, l);
    for (uint32_t i = 0; i < n; i++) {
        const struct message *m = &all[l->messages[i]];
        if (i == 0 || compare_connections(l, &all[l->messages[i - 1]], m) != 0) {
            l->inbound[l->n_inbound++] =
                (struct inbound){.from = m->from, .to = m->to, .channel = m->channel, .first = i};
            l->first_inbound[node_group_of(l, m->to) + 1]++;
        }
        l->inbound[l->n_inbound - 1].n += !m->is_ready;
        l->inbound[l->n_inbound - 1].n_ready += m->is_ready;
    }
    for (uint32_t m = 0; m < n_members; m++)
        l->first_inbound[m + 1] += l->first_inbound[m];
    size_t n_waited = 0;
    l->senders = arena_alloc(&l->scratch, l->n_inbound * (size_t)2 * sizeof *l->senders);
    for (size_t i = 0; i < l->n_inbound * (size_t)2; i++) {
        uint32_t node_group = node_group_of(l, l->inbound[i / 2].from);
        l->senders[i] = (struct sender){NO_ID, (uint32_t)n_waited, 0};
        n_waited += l->first_inbound[node_group + 1] - l->first_inbound[node_group];
    }
    if (n_waited >= NO_ID)
        mem_fail();
    l->waited = arena_array(&l->scratch, n_waited, sizeof *l->waited);
}

static uint32_t connection_of(const struct linker *l, const struct message *message)
{
    const struct message *all = l->a->messages->all.at;
    return LOWER_BOUND(i, 1, l->n_inbound,
                       compare_connections(l, &all[l->messages[l->inbound[i].first]], message) <=
                           0) -
           1;
}

static bool is_there_before(const struct linker *l, uint32_t member, uint32_t m, int64_t most_ns)
{
    struct agreement agreement = {0};
    for (uint32_t s = 0; s < l->a->n_samples && !agreement.is_broken; s++)
        agreement_see(&agreement, member_arrived_ns(l->a->join, &l->members[member], s),
                      message_time_of(l->a->messages, m, s)->start_ns, most_ns);
    return agreement_holds(&agreement);
}

/* A message's wait for a member to be there: if it always did, where that is not sure. Of those
 * without a log any may be the one. */
static void add_arrival(const struct linker *l, uint32_t m, uint32_t member, bool sure,
                        int64_t most_ns)
{
    if (member >= l->joined->n_members)
        return; /* a server is always there */
    bool unlogged = l->members[member].unlogged;
    for (uint32_t k = unlogged ? 0 : member; k < l->joined->n_members; k++) {
        bool may = k == member || l->members[k].unlogged;
        if (may && ((sure && !unlogged) || is_there_before(l, k, m, most_ns)))
            edges_add(l, member_op(l, k, JOIN_PART(l->a->join, &l->members[k])->arrival),
                      call_of(l, m));
        if (!unlogged)
            break;
    }
}

/* What a message follows in its stream: the call that sends the one before. When only the
 * receiver's end is known it sets out when it begins to come in, when the one before has. */
static uint32_t turn_of(const struct linker *l, uint32_t m, uint32_t before)
{
    bool is_sent = l->a->messages->all.at[m].tx != NO_ID;
    return is_sent ? call_of(l, before) : assembly_message_end(l->a, before);
}

/* What it has to be there for: its sender's arrival or message before, and its receiver's. */
static void add_turn(const struct linker *l, uint32_t m, const struct sender *sender,
                     int64_t most_ns)
{
    const struct message *message = &l->a->messages->all.at[m];
    if (sender->last != NO_ID) {
        edges_add(l, turn_of(l, m, sender->last), call_of(l, m));
        return;
    }
    add_arrival(l, m, message->from, true, most_ns);
    if (!message->is_ready)
        add_arrival(l, m, message->to, false, most_ns);
}

/* Ready messages and data over one connection, as far as one came before the other in every
 * iteration. */
static void add_others(const struct linker *l, uint32_t m, const struct inbound *in,
                       struct sender *sender, int64_t most_ns)
{
    bool is_ready = l->a->messages->all.at[m].is_ready;
    const uint32_t *others = l->messages + in->first + (is_ready ? 0 : in->n);
    uint32_t n = sender->n_others, n_others = is_ready ? in->n : in->n_ready;
    while (n < n_others && others[n] < m &&
           edges_holds(l->a, starts_of(l->a, others[n]), starts_of(l->a, m), most_ns))
        n++;
    if (n > sender->n_others)
        edges_add(l, call_of(l, others[n - 1]), call_of(l, m));
    sender->n_others = n;
}

/* What its sender had received, or may have been passed. */
static void add_received(const struct linker *l, uint32_t m, const struct sender *sender,
                         int64_t most_ns)
{
    const struct message *message = &l->a->messages->all.at[m];
    uint32_t node_group = node_group_of(l, message->from), *waited = l->waited + sender->waited;
    for (uint32_t i = l->first_inbound[node_group]; i < l->first_inbound[node_group + 1];
         i++, waited++) {
        const uint32_t *received = l->messages + l->inbound[i].first;
        uint32_t n = *waited;
        if (l->inbound[i].channel != message->channel)
            continue;
        while (n < l->inbound[i].n &&
               edges_holds(l->a, ends_of(l->a, received[n]), starts_of(l->a, m), most_ns))
            n++;
        if (n > *waited)
            edges_add(l, assembly_message_end(l->a, received[n - 1]), call_of(l, m));
        *waited = n;
    }
}

static void add_message(struct linker *l, uint32_t m)
{
    const struct message *message = &l->a->messages->all.at[m];
    const struct rank_build *from =
        &l->a->join->ranks[joined_rank(l->a->join, l->joined, message->from)];
    const struct step *step = &from->steps.at[from->steps.reference];
    int64_t most_ns = assembly_span(step->start_ns, step->end_ns) / 1000;
    uint32_t connection = connection_of(l, message);
    struct sender *sender = &l->senders[connection * 2 + message->is_ready];
    for (int as = MESSAGE_SEND; as < N_MESSAGE_OPS; as++)
        if (assembly_message_op(l->a, m, as) != DPRO_NO_OP)
            assembly_add_edge(l->a, call_of(l, m), assembly_message_op(l->a, m, as), false);
    add_turn(l, m, sender, most_ns);
    sender->last = m;
    if (message->ready != NO_ID &&
        edges_holds(l->a, ends_of(l->a, message->ready), starts_of(l->a, m), most_ns))
        edges_add(l, assembly_message_end(l->a, message->ready), call_of(l, m));
    add_others(l, m, &l->inbound[connection], sender, most_ns);
    add_received(l, m, sender, most_ns);
}

static void add_end(const struct linker *l, uint32_t m, uint32_t member)
{
    const struct message *message = &l->a->messages->all.at[m];
    uint32_t end = assembly_message_end(l->a, m), sent = end;
    if (member >= l->joined->n_members)
        return;
    if (!message->ends_sender)
        sent = call_of(l, m);
    else if (message->tx != NO_ID)
        sent = assembly_message_op(l->a, m, MESSAGE_SEND);
    uint32_t transfer = JOIN_PART(l->a->join, &l->members[member])->transfer;
    for (int receives = 0; receives < 2; receives++)
        if (message_ends_member(l->a->messages, l->a->join, l->joined, m, receives, member))
            edges_add(l, receives ? end : sent, member_op(l, member, transfer));
}

/* The rest of the collective follows the last message over each connection. */
static void add_ends(const struct linker *l)
{
    EACH_OF (const struct inbound, in, l->inbound, l->n_inbound) {
        if (in->n == 0)
            continue;
        uint32_t last = l->messages[in->first + in->n - 1];
        if (!l->joined->has_node_groups) {
            add_end(l, last, in->from);
            add_end(l, last, in->to);
        }
        for (uint32_t k = 0; k < l->joined->n_members && l->joined->has_node_groups; k++)
            add_end(l, last, k);
    }
}

/* From pushes through the servers' ops to answers. */
static void add_server_edges(struct assembly *a)
{
    const struct servers *servers = a->servers;
    const uint32_t *messages = servers->exchanged.at;
    EACH (const struct served, served, servers->served) {
        uint32_t first = a->first_op[a->join->n_ranks + served->server] + served->op;
        for (uint32_t p = 0; p < served->n_pushes; p++) {
            uint32_t push = messages[served->first_push + p];
            assembly_add_edge(a, assembly_message_end(a, push), first + p, true);
            for (uint32_t n = 0; n < served->n_answers; n++)
                assembly_add_edge(
                    a, first + p,
                    assembly_message_op(a, messages[served->first_answer + n], MESSAGE_CALL), true);
        }
    }
}

static bool is_exchange(const struct assembly *a, uint32_t message)
{
    const struct joined *joined = &a->join->joined.at[a->messages->all.at[message].joined];
    return JOIN_PART(a->join, joined)->kind == DPRO_PUSH_PULL;
}

/* Keys are exchanged beside each other, over one connection: a small one that is sent a moment
 * before a large one goes first. What was sent one after the other in every iteration keeps that
 * order, and a link takes what is sent as it comes. */
static void add_link_order(struct assembly *a)
{
    const struct messages *messages = a->messages;
    const struct rank_build *lead = &a->join->ranks[0];
    SCRATCH struct sent_message *sent = mem_alloc(messages->all.n * sizeof *sent);
    SCRATCH struct map last = {0}; /* of a pair of links: the last message between them, + 1 */
    uint32_t shown = 0;
    for (uint32_t s = 0; s < a->n_samples; s++)
        if (lead->sample_step[s] == lead->steps.reference)
            shown = s;
    messages_by_start(messages, shown, 1, sent);
    for (size_t i = 0; i < messages->all.n; i++) {
        uint32_t m = sent[i].message;
        const struct message *message = &messages->all.at[m];
        uint64_t key = map_mix((uint64_t)message->tx << 32 | message->rx) | 1, seen = 0;
        if (message->tx == NO_ID || !is_exchange(a, m))
            continue;
        map_get(&last, key, &seen);
        map_set(&last, key, (uint64_t)m + 1);
        uint32_t before = (uint32_t)seen - 1;
        if (seen > 0 && message_time_of(a->messages, before, shown)->start_ns == sent[i].start_ns &&
            edges_holds(a, starts_of(a, before), starts_of(a, m), 0) &&
            edges_holds(a, ends_of(a, before), ends_of(a, m), 0))
            assembly_add_edge(a, assembly_message_op(a, before, MESSAGE_CALL),
                              assembly_message_op(a, m, MESSAGE_CALL), true);
    }
}

void assembly_message_edges(struct assembly *a)
{
    add_link_order(a);
    for (size_t j = 0; j < a->join->joined.n; j++) {
        struct linker l = {.a = a, .joined = &a->join->joined.at[j]};
        if (l.joined->n_messages == 0)
            continue;
        l.members = joined_members(a->join, l.joined);
        find_inbound(&l);
        for (uint32_t i = 0; i < l.joined->n_messages; i++)
            add_message(&l, l.joined->first_message + i);
        add_ends(&l);
        arena_fini(&l.scratch);
    }
    add_server_edges(a);
}
