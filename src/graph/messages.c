/* graph/messages.c: from the transport logs' messages to those of each collective of the graph.
 *
 * A message is known at both ends by its connection, direction and place in the stream; the k-th
 * from one rank to another in a collective is the same work in every iteration. A collective is
 * taken apart only if every byte of data that its ranks exchanged is known at both ends in every
 * iteration, as a SEND without its RECV would be replayed in no time. */
#include "graph/messages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/error.h"
#include "graph/join.h"
#include "graph/pattern.h"

void messages_fini(struct messages *messages)
{
    array_fini(&messages->all);
    array_fini(&messages->times);
    array_fini(&messages->links);
    free(messages->lacks);
    messages->lacks = NULL;
}

/* ---- each rank alone ---- */

static bool on_comm_thread(const struct rank_build *rank, const struct local_collective *c)
{
    uint32_t device = rank->ops.at[c->arrival].device;
    return device != NO_ID && rank->devices.at[device].kind == DPRO_DEVICE_COMM_THREAD;
}

/* Span -> transport and collective, of what the rank's transports logged. */
static int index_spans(const struct dpro_trace *trace, uint32_t rank_index, struct map *by_span)
{
    for (uint32_t t = 0; t < trace->n_transports; t++) {
        const struct net_transport *transport = &trace->transports[t];
        for (size_t c = 0; c < transport->collectives.n && transport->rank_index == rank_index; c++)
            if (transport->collectives.at[c].span != NO_ID &&
                map_set(by_span, (uint64_t)transport->collectives.at[c].span + 1,
                        (uint64_t)t << 32 | c) < 0)
                return -1;
    }
    return 0;
}

int build_parts(struct rank_build *rank, const struct dpro_trace *trace, struct dpro_error *err)
{
    struct map by_span = {0};
    size_t n = rank->collectives.n * rank->n_samples;
    if (trace->n_transports == 0 || n == 0)
        return 0;
    rank->parts = malloc(n * sizeof *rank->parts);
    if (!rank->parts || index_spans(trace, (uint32_t)(rank->trace - trace->ranks), &by_span) < 0) {
        map_fini(&by_span);
        return dpro_error_nomem(err);
    }
    for (size_t c = 0; c < rank->collectives.n; c++)
        for (uint32_t s = 0; s < rank->n_samples; s++) {
            struct net_part *part = &rank->parts[c * rank->n_samples + s];
            size_t step = rank->sample_step[s];
            uint32_t item = rank->match[step * rank->n_timed + rank->collectives.at[c].arrival];
            uint32_t span = item == NO_ID || !on_comm_thread(rank, &rank->collectives.at[c])
                                ? NO_ID
                                : rank->items.at[item].span;
            uint64_t found;
            *part = (struct net_part){NO_ID, NO_ID};
            while (span != NO_ID && !map_get(&by_span, (uint64_t)span + 1, &found))
                span = rank->trace->spans[span].parent;
            if (span != NO_ID)
                *part = (struct net_part){(uint32_t)(found >> 32), (uint32_t)found};
        }
    map_fini(&by_span);
    return 0;
}

/* ---- the messages of one collective in one iteration ---- */

struct found {
    uint32_t from, to, stream;
    uint32_t delta; /* gloo's number within the collective: a notice is for data of the same one */
    bool is_notice;
    uint64_t offset, size_bytes;
    struct message_time time;
    const struct net_connection *sender, *receiver;
};
typedef ARRAY(struct found) found_array;

/* Each transport's messages by collective: data, and notices that a receiver is ready. */
struct message_index {
    uint32_t *first, *message;
};

struct finder {
    struct join *join;
    struct messages *messages;
    const struct dpro_trace *trace;
    struct message_index *index; /* by transport */
    bool with_notices;
    struct map link_of;
    found_array found, shown; /* in an iteration; in the one that the graph shows */
    uint32_t *place;          /* of the i-th in order of members among the graph's messages */
    size_t n_places;
};

static bool is_wanted(const struct net_message *message)
{
    return message->opcode == GLOO_DATA || message->opcode == GLOO_RECV_READY;
}

static int index_messages(struct message_index *index, const struct net_transport *t)
{
    uint32_t n = 0;
    index->first = calloc(t->collectives.n + 1, sizeof *index->first);
    index->message = malloc((t->messages.n + 1) * sizeof *index->message);
    if (!index->first || !index->message)
        return -1;
    for (size_t m = 0; m < t->messages.n; m++)
        if (is_wanted(&t->messages.at[m]))
            index->first[t->messages.at[m].collective]++;
    for (size_t c = 0; c <= t->collectives.n; c++) /* the end of each part ... */
        index->first[c] = n += index->first[c];
    for (size_t m = t->messages.n; m-- > 0;) /* ... and, filled from the back, its start */
        if (is_wanted(&t->messages.at[m]))
            index->message[--index->first[t->messages.at[m].collective]] = (uint32_t)m;
    return 0;
}

/* Who sends the data that a message is or gives notice of, and to whom. */
static uint64_t way_of(const struct found *found)
{
    return found->is_notice ? (uint64_t)found->to << 32 | found->from
                            : (uint64_t)found->from << 32 | found->to;
}

/* Of each way and number first the data, then the notices: the k-th is for the k-th. */
static int compare_found(const void *a, const void *b)
{
    const struct found *x = a, *y = b;
    if (way_of(x) != way_of(y))
        return way_of(x) < way_of(y) ? -1 : 1;
    if (x->delta != y->delta)
        return x->delta < y->delta ? -1 : 1;
    if (x->is_notice != y->is_notice)
        return x->is_notice ? 1 : -1;
    if (x->stream != y->stream)
        return x->stream < y->stream ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static const struct net_message *message_at(const struct net_transport *t, uint32_t stream,
                                            uint64_t offset)
{
    uint32_t low = t->first_message[stream], high = t->first_message[stream + 1];
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (t->messages.at[mid].offset < offset)
            low = mid + 1;
        else
            high = mid;
    }
    return low < t->first_message[stream + 1] && t->messages.at[low].offset == offset
               ? &t->messages.at[low]
               : NULL;
}

static const struct net_part *part_of(const struct join *join, const struct member *member,
                                      uint32_t sample)
{
    const struct rank_build *rank = &join->ranks[member->rank];
    static const struct net_part nowhere = {NO_ID, NO_ID};
    return rank->parts ? &rank->parts[(size_t)member->collective * rank->n_samples + sample]
                       : &nowhere;
}

static const struct net_collective *collective_of(const struct dpro_trace *trace,
                                                  const struct net_part *part)
{
    return &trace->transports[part->transport].collectives.at[part->collective];
}

static uint32_t find_member(const struct member *members, uint32_t n, uint32_t rank)
{
    uint32_t low = 0, high = n;
    while (low < high) {
        uint32_t mid = (low + high) / 2;
        if (members[mid].rank < rank)
            low = mid + 1;
        else
            high = mid;
    }
    return low < n && members[low].rank == rank ? low : NO_ID;
}

/* What one member sent, onto f->found. *n_received grows by what it received. Returns whether all
 * of it is known at both ends, -1 when memory runs out. */
static int find_sent(struct finder *f, const struct member *members, uint32_t n_members,
                     uint32_t own, const struct net_part *part, size_t *n_received)
{
    const struct net_transport *t = &f->trace->transports[part->transport];
    const struct message_index *index = &f->index[part->transport];
    for (uint32_t i = index->first[part->collective]; i < index->first[part->collective + 1]; i++) {
        const struct net_message *sent = &t->messages.at[index->message[i]], *received;
        bool is_notice = sent->opcode != GLOO_DATA;
        uint32_t peer_stream;
        *n_received += !is_notice && sent->stream % 2 == 1;
        if (sent->stream % 2 == 1 || (is_notice && !f->with_notices))
            continue;
        const struct net_transport *peer = net_peer(f->trace, t, sent->stream, &peer_stream);
        uint32_t to = peer ? find_member(members, n_members, peer->rank_index) : NO_ID;
        received = to != NO_ID ? message_at(peer, peer_stream, sent->offset) : NULL;
        if (!received || sent->start_ns == INT64_MIN || received->end_ns == INT64_MIN)
            return 0;
        const struct clock_map *of_peer =
            &f->join->clocks.of_transport[peer - f->trace->transports];
        struct found found = {
            .from = own,
            .to = to,
            .stream = sent->stream,
            .delta = sent->delta,
            .is_notice = is_notice,
            .offset = sent->offset,
            .size_bytes = net_message_payload(sent),
            .time = {clock_aligned(&f->join->clocks.of_transport[part->transport], sent->start_ns),
                     clock_aligned(of_peer, received->end_ns),
                     received->start_ns == INT64_MIN ? ABSENT
                                                     : clock_aligned(of_peer, received->start_ns)},
            .sender = &t->connections.at[sent->stream / 2],
            .receiver = &peer->connections.at[peer_stream / 2]};
        if (array_push(&f->found, found) < 0)
            return -1;
    }
    return 1;
}

/* A receiver that went on has received, even if the call that did it was noted later. */
static void clip_to_leaving(const struct join *join, const struct member *members, uint32_t sample,
                            found_array *found)
{
    for (size_t i = 0; i < found->n; i++) {
        const struct member *member = &members[found->at[i].to];
        const struct rank_build *rank = &join->ranks[member->rank];
        uint32_t transfer = rank->collectives.at[member->collective].transfer;
        int64_t left = rank->end_ns[(size_t)rank->sample_step[sample] * rank->n_timed + transfer];
        if (left != ABSENT && found->at[i].time.end_ns > left)
            found->at[i].time.end_ns = left;
    }
}

/* Those of one way and number from `first` on, data and notices: where they end. */
static size_t run_end(const found_array *found, size_t first, size_t *n_data)
{
    size_t end = first;
    *n_data = 0;
    for (; end < found->n && way_of(&found->at[end]) == way_of(&found->at[first]) &&
           found->at[end].delta == found->at[first].delta;
         end++)
        *n_data += !found->at[end].is_notice;
    return end;
}

/* Keeps the notices that share their stream with data; there is one for each message, or 0 is
 * returned. */
static int keep_notices(found_array *found)
{
    struct map ways = {0};
    size_t n_kept = 0, n_data;
    int status = 1;
    for (size_t i = 0; i < found->n && status == 1; i++)
        if (!found->at[i].is_notice && map_set(&ways, way_of(&found->at[i]) + 1, 1) < 0)
            status = -1;
    for (size_t i = 0, end; i < found->n && status == 1; i = end) {
        uint64_t way = way_of(&found->at[i]);
        bool both_ways = map_get(&ways, (way << 32 | way >> 32) + 1, NULL);
        end = run_end(found, i, &n_data);
        if (both_ways && n_data * 2 != end - i)
            status = 0;
        for (size_t k = i; k < end; k++)
            if (both_ways || !found->at[k].is_notice)
                found->at[n_kept++] = found->at[k];
    }
    found->n = n_kept;
    map_fini(&ways);
    return status;
}

/* All messages of a collective in an iteration, in the order of compare_found, into f->found.
 * Returns as find_sent does. */
static int find_messages(struct finder *f, const struct joined *joined, uint32_t sample)
{
    const struct member *members = &f->join->members.at[joined->first_member];
    size_t n_received = 0;
    int complete = 1;
    uint32_t joint = NO_ID;
    f->found.n = 0;
    for (uint32_t m = 0; m < joined->n_members; m++) {
        const struct net_part *part = part_of(f->join, &members[m], sample);
        if (part->transport != NO_ID && joint == NO_ID)
            joint = collective_of(f->trace, part)->joint;
        if (part->transport != NO_ID && collective_of(f->trace, part)->joint == joint)
            continue;
        f->messages->lacks[members[m].rank] = 1;
        complete = 0;
    }
    for (uint32_t m = 0; m < joined->n_members && complete == 1; m++)
        complete = find_sent(f, members, joined->n_members, m,
                             part_of(f->join, &members[m], sample), &n_received);
    if (complete != 1)
        return complete;
    if (f->found.n > 1)
        qsort(f->found.at, f->found.n, sizeof *f->found.at, compare_found);
    size_t n_sent = 0;
    for (size_t i = 0; i < f->found.n; i++)
        n_sent += !f->found.at[i].is_notice;
    if (n_sent != n_received)
        return 0;
    complete = f->with_notices ? keep_notices(&f->found) : 1;
    if (complete != 1)
        return complete;
    clip_to_leaving(f->join, members, sample, &f->found);
    return 1;
}

/* ---- links ---- */

static uint32_t find_link(struct finder *f, const struct net_connection *c, uint32_t rank)
{
    bool within =
        memcmp(c->local.ip, c->remote.ip, sizeof c->local.ip) == 0 || c->local.family == AF_UNIX;
    uint64_t words[2], index;
    memcpy(words, c->local.ip, sizeof words);
    if (c->local.family == AF_UNIX)
        words[0] = words[1] = 0;
    uint64_t key = map_mix(map_mix(words[0]) ^ words[1]) + c->local.zone;
    key = map_mix(key ^ (within ? rank + UINT64_C(1) : 0)) | 1;
    if (map_get(&f->link_of, key, &index))
        return (uint32_t)index;
    struct link link = {.rank = rank};
    if (within) {
        snprintf(link.name, sizeof link.name, "within the host");
    } else {
        net_address_format(link.name, &c->local);
        char *port = strrchr(link.name, ':');
        if (port)
            *port = '\0';
    }
    if (array_push(&f->messages->links, link) < 0 ||
        map_set(&f->link_of, key, f->messages->links.n - 1) < 0)
        return NO_ID;
    return (uint32_t)f->messages->links.n - 1;
}

/* ---- one collective ---- */

static int compare_sent(const void *a, const void *b, void *arg)
{
    const struct found *found = arg;
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    if (found[x].time.start_ns != found[y].time.start_ns)
        return found[x].time.start_ns < found[y].time.start_ns ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* The graph's messages of the collective, from those of the iteration that it shows; f->place says
 * where each of them, by members, went. */
static int add_shown(struct finder *f, uint32_t j)
{
    struct joined *joined = &f->join->joined.at[j];
    const struct member *members = &f->join->members.at[joined->first_member];
    size_t n = f->shown.n;
    if (f->n_places < n) {
        free(f->place);
        f->n_places = n * 2;
        f->place = malloc(f->n_places * 2 * sizeof *f->place);
        if (!f->place) {
            f->n_places = 0;
            return -1;
        }
    }
    uint32_t *order = f->place + f->n_places;
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    qsort_r(order, n, sizeof *order, compare_sent, f->shown.at);
    joined->first_message = (uint32_t)f->messages->all.n;
    joined->n_messages = (uint32_t)n;
    for (uint32_t i = 0; i < n; i++) {
        const struct found *found = &f->shown.at[order[i]];
        struct message message = {.joined = j,
                                  .from = found->from,
                                  .to = found->to,
                                  .tx = find_link(f, found->sender, members[found->from].rank),
                                  .rx = find_link(f, found->receiver, members[found->to].rank),
                                  .notice = NO_ID,
                                  .is_notice = found->is_notice,
                                  .size_bytes = found->size_bytes};
        f->place[order[i]] = i;
        joined->n_data += !found->is_notice;
        if (message.tx == NO_ID || message.rx == NO_ID ||
            array_push(&f->messages->all, message) < 0)
            return -1;
    }
    struct message *added = &f->messages->all.at[joined->first_message];
    for (size_t i = 0, end, n_data; i < n; i = end) {
        end = run_end(&f->shown, i, &n_data);
        for (size_t k = i + n_data; k < end; k++)
            added[f->place[k - n_data]].notice = joined->first_message + f->place[k];
    }
    return 0;
}

static int find_pattern(struct finder *f, struct joined *joined)
{
    const struct message *messages = &f->messages->all.at[joined->first_message];
    const struct local_collective *c =
        &f->join->ranks[joined->rank].collectives.at[joined->collective];
    struct pattern_message *pairs = malloc((joined->n_messages + (size_t)1) * sizeof *pairs);
    if (!pairs)
        return -1;
    size_t n = 0;
    for (uint32_t m = 0; m < joined->n_messages; m++)
        if (!messages[m].is_notice)
            pairs[n++] = (struct pattern_message){messages[m].from, messages[m].to};
    int status = pattern_find(pairs, n, joined->n_members,
                              strcmp(c->kind, "all_reduce") == 0 ? 2 : 1, &joined->pattern);
    free(pairs);
    return status;
}

static bool equal_messages(const found_array *a, const found_array *b)
{
    bool equal = a->n == b->n;
    for (size_t i = 0; i < a->n && equal; i++)
        equal = a->at[i].from == b->at[i].from && a->at[i].to == b->at[i].to &&
                a->at[i].is_notice == b->at[i].is_notice &&
                a->at[i].size_bytes == b->at[i].size_bytes;
    return equal;
}

static uint32_t shown_sample(const struct join *join)
{
    const struct rank_build *rank = &join->ranks[0];
    uint32_t s = 0;
    while (s + 1 < rank->n_samples && rank->sample_step[s] != rank->template_step)
        s++;
    return s;
}

/* Takes one collective apart, with notices where they can be had, or counts why it can't be. */
static int take_apart(struct finder *f, uint32_t j, bool with_notices)
{
    f->with_notices = with_notices;
    struct joined *joined = &f->join->joined.at[j];
    struct messages *messages = f->messages;
    uint32_t n_samples = f->join->ranks[0].n_samples;
    size_t first_time = messages->times.n, first_message = messages->all.n;
    int complete = find_messages(f, joined, shown_sample(f->join));
    if (complete == 1 && f->found.n == 0)
        return 0; /* a barrier, or all that it says is known without data */
    size_t n = first_message + f->found.n;
    if (complete == 1 && (n > MOST_MESSAGES || n > MOST_MESSAGE_TIMES / n_samples)) {
        messages->n_beyond++;
        messages->n_whole++;
        return 0;
    }
    if (complete == 1) {
        found_array swap = f->shown;
        f->shown = f->found;
        f->found = swap;
        if (add_shown(f, j) < 0 || array_reserve(&messages->times, f->shown.n * n_samples) < 0)
            return -1;
        messages->times.n += f->shown.n * n_samples;
    }
    bool uneven = false;
    for (uint32_t s = 0; s < n_samples && complete == 1 && !uneven; s++) {
        complete = find_messages(f, joined, s);
        uneven = complete == 1 && !equal_messages(&f->found, &f->shown);
        for (size_t i = 0; i < f->found.n && complete == 1 && !uneven; i++)
            messages->times.at[first_time + (size_t)f->place[i] * n_samples + s] =
                f->found.at[i].time;
    }
    if (complete == 1 && !uneven)
        return find_pattern(f, joined);
    messages->all.n = first_message;
    messages->times.n = first_time;
    joined->n_messages = joined->n_data = 0;
    if (complete < 0)
        return -1;
    if (with_notices)
        return take_apart(f, j, false);
    messages->n_whole++;
    messages->n_uneven += uneven;
    return 0;
}

/* ---- what remains of the transfers ---- */

static size_t transfer_at(const struct join *join, const struct member *member, uint32_t sample)
{
    const struct rank_build *rank = &join->ranks[member->rank];
    return (size_t)rank->sample_step[sample] * rank->n_timed +
           rank->collectives.at[member->collective].transfer;
}

/* The sender of each connection's last message waits for it to arrive, if it never left before. */
static int find_last_sends(const struct join *join, const struct joined *joined,
                           struct messages *messages)
{
    uint32_t n_samples = join->ranks[0].n_samples;
    struct map seen = {0};
    int status = 0;
    for (uint32_t i = joined->n_messages; i-- > 0 && status == 0;) {
        size_t m = joined->first_message + (size_t)i;
        struct message *message = &messages->all.at[m];
        uint64_t key = ((uint64_t)message->from << 32 | message->to) + 1;
        const struct member *from = &join->members.at[joined->first_member + message->from];
        if (message->is_notice || map_get(&seen, key, NULL))
            continue;
        status = map_set(&seen, key, 1);
        message->ends_sender = true;
        for (uint32_t s = 0; s < n_samples; s++) {
            int64_t left = join->ranks[from->rank].end_ns[transfer_at(join, from, s)];
            message->ends_sender &= messages->times.at[m * n_samples + s].end_ns <= left;
        }
    }
    map_fini(&seen);
    return status;
}

static void cut_transfers(struct join *join, const struct joined *joined,
                          const struct messages *messages)
{
    uint32_t n_samples = join->ranks[0].n_samples;
    struct member *members = &join->members.at[joined->first_member];
    for (uint32_t i = 0; i < joined->n_messages; i++) {
        size_t m = joined->first_message + (size_t)i;
        const struct message *message = &messages->all.at[m];
        for (int side = 0; side < 2 && !message->is_notice; side++) {
            struct member *member = &members[side ? message->to : message->from];
            struct rank_build *rank = &join->ranks[member->rank];
            for (uint32_t s = 0; s < n_samples; s++) {
                const struct message_time *time = &messages->times.at[m * n_samples + s];
                int64_t over = side || message->ends_sender ? time->end_ns : time->start_ns;
                size_t at = transfer_at(join, member, s);
                if (rank->start_ns[at] == ABSENT)
                    continue;
                if (over > rank->end_ns[at])
                    over = rank->end_ns[at];
                if (over > rank->start_ns[at]) {
                    member->exchange_ns += (over - rank->start_ns[at]) / n_samples;
                    rank->start_ns[at] = over;
                }
            }
        }
    }
}

int join_messages(struct join *join, const struct dpro_trace *trace, struct dpro_error *err)
{
    struct finder f = {.join = join, .messages = &join->messages, .trace = trace};
    size_t n_messages = 0;
    int status = 0;
    if (trace->n_transports == 0 || join->n_ranks < 2)
        return 0;
    join->messages.lacks = calloc(join->n_ranks, 1);
    f.index = calloc(trace->n_transports, sizeof *f.index);
    if (!join->messages.lacks || !f.index)
        status = -1;
    for (uint32_t t = 0; t < trace->n_transports && status == 0; t++) {
        const struct net_transport *transport = &trace->transports[t];
        status = index_messages(&f.index[t], transport);
        if (status == 0)
            n_messages += f.index[t].first[transport->collectives.n];
    }
    for (uint32_t j = 0; j < join->joined.n && status == 0 && n_messages > 0; j++) {
        struct joined *joined = &join->joined.at[j];
        const struct rank_build *rank = &join->ranks[joined->rank];
        if (joined->n_members < 2 || joined->n_members < joined->n_expected ||
            !on_comm_thread(rank, &rank->collectives.at[joined->collective]))
            continue;
        /* Where data are passed on, a notice stands behind data for a reason. Where all send what
         * they had before, which of a rank's notices and data comes first is chance, and must not
         * decide when other ranks are faster or slower. */
        bool passes_on = strcmp(rank->collectives.at[joined->collective].kind, "all_reduce") == 0;
        status = take_apart(&f, j, passes_on);
        if (status == 0 && joined->n_messages > 0)
            status = find_last_sends(join, joined, &join->messages);
        if (status == 0 && joined->n_messages > 0)
            cut_transfers(join, joined, &join->messages);
    }
    for (uint32_t t = 0; f.index && t < trace->n_transports; t++) {
        free(f.index[t].first);
        free(f.index[t].message);
    }
    free(f.index);
    free(f.place);
    map_fini(&f.link_of);
    array_fini(&f.found);
    array_fini(&f.shown);
    return status < 0 ? dpro_error_nomem(err) : 0;
}
