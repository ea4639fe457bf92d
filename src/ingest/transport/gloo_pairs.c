/* Which messages are those of a send and of its receive, and of which spans.
 *
 * Both ends announce each transfer, within the calls that ask for it, and the sender sends the data
 * of one tag in the order of the announcements. So the k-th announcements on a connection belong to
 * the k-th data, but for announcements from before the logs began. The data of a send starts after
 * the send was asked for, that of a receive likewise, and ends before either has been waited
 * for. */
#include "ingest/transport/gloo_pairs.h"

#include <string.h>

#include "base/map.h"
#include "base/sort.h"
#include "ingest/trace.h"

enum {
    MOST_BEFORE = 64,     /* announcements before the logs began */
    SLACK_NS = 200 * 1000 /* profiler and logs read the same clock, at different moments */
};

static bool is_pair(const struct net_message *message)
{
    return message->protocol == NET_GLOO && message->prefix == 0 && message->opcode != 0;
}

typedef ARRAY(struct net_message *) message_array;

/* What the program called the transfer, which gloo puts in place of a collective's number. */
static uint64_t slot_of(const struct net_message *message)
{
    return (uint64_t)message->tag << 32 | message->delta;
}

static void list_messages(const struct net_transport *t, uint32_t stream, uint8_t opcode,
                          uint64_t slot, message_array *list)
{
    list->n = 0;
    for (uint32_t m = t->first_message[stream]; m < t->first_message[stream + 1]; m++) {
        struct net_message *message = &t->messages.at[m];
        if (is_pair(message) && message->opcode == opcode && slot_of(message) == slot)
            array_push(list, message);
    }
}

/* How many of the first data were announced before the logs began. */
static uint32_t count_before(const message_array *data, const message_array *ready)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < data->n && n < MOST_BEFORE; k++)
        while (n <= k && n < MOST_BEFORE && k - n < ready->n &&
               ready->at[k - n]->start_ns != INT64_MIN && data->at[k]->start_ns != INT64_MIN &&
               ready->at[k - n]->start_ns > data->at[k]->start_ns)
            n++;
    return n;
}

struct numbered {
    struct net_message *message;
    uint32_t number;
};

struct numbers {
    ARRAY(struct numbered) found;
    message_array data, ready;
    uint32_t n; /* of all transports */
};

/* Numbers what announced the data that have been listed. */
static void number_ready(struct net_transport *t, uint32_t stream, uint8_t opcode, uint64_t slot,
                         struct numbers *numbers)
{
    list_messages(t, stream, opcode, slot, &numbers->ready);
    uint32_t before = count_before(&numbers->data, &numbers->ready);
    for (uint32_t k = before; k < numbers->data.n && k - before < numbers->ready.n; k++)
        array_add(&numbers->found, numbers->ready.at[k - before], numbers->n + k);
}

/* Numbers the data of a stream, and what announced them on it and on the stream the other way. */
static void number_stream(struct net_transport *t, uint32_t stream, struct numbers *numbers)
{
    struct map slots = {0};
    for (uint32_t m = t->first_message[stream]; m < t->first_message[stream + 1]; m++) {
        uint64_t slot = slot_of(&t->messages.at[m]);
        if (!is_pair(&t->messages.at[m]) || t->messages.at[m].opcode != GLOO_DATA ||
            map_get(&slots, map_key(slot), NULL))
            continue;
        map_set(&slots, map_key(slot), 1);
        list_messages(t, stream, GLOO_DATA, slot, &numbers->data);
        for (uint32_t k = 0; k < numbers->data.n; k++)
            array_add(&numbers->found, numbers->data.at[k], numbers->n + k);
        number_ready(t, stream, GLOO_SEND_READY, slot, numbers);
        number_ready(t, stream ^ 1, GLOO_RECV_READY, slot, numbers);
        numbers->n += (uint32_t)numbers->data.n;
    }
    map_fini(&slots);
}

/* The other end has numbered the same messages. */
static void copy_numbers(const struct net_transport *peer, uint32_t peer_stream,
                         struct net_transport *t, uint32_t stream)
{
    uint32_t from = peer->first_message[peer_stream];
    for (uint32_t m = t->first_message[stream]; m < t->first_message[stream + 1]; m++) {
        struct net_message *message = &t->messages.at[m];
        while (from < peer->first_message[peer_stream + 1] &&
               peer->messages.at[from].offset < message->offset)
            from++;
        if (is_pair(message) && from < peer->first_message[peer_stream + 1] &&
            peer->messages.at[from].offset == message->offset)
            message->tag = peer->messages.at[from].tag;
    }
}

void gloo_number_pairs(struct dpro_trace *trace)
{
    struct numbers numbers = {.n = 0};
    for (uint32_t i = 0; i < trace->n_transports; i++) {
        struct net_transport *t = &trace->transports[i];
        numbers.found.n = 0;
        for (uint32_t s = 0; s < t->connections.n * 2; s++)
            number_stream(t, s, &numbers);
        EACH (struct net_message, message, t->messages)
            if (is_pair(message))
                message->tag = UINT32_MAX; /* what belongs to no data */
        EACH (const struct numbered, one, numbers.found)
            one->message->tag = one->number;
        for (uint32_t s = 0; s < t->connections.n * 2; s++) {
            uint32_t peer_stream;
            const struct net_transport *peer = net_peer(trace, t, s, &peer_stream);
            if (peer && peer < t)
                copy_numbers(peer, peer_stream, t, s);
        }
    }
    array_fini(&numbers.found);
    array_fini(&numbers.data);
    array_fini(&numbers.ready);
}

/* ---- spans ---- */

/* A send or receive, or the data of one. */
struct end {
    int64_t start_ns, end_ns;
    uint64_t size_bytes;
    uint32_t peer; /* rank; UINT32_MAX: not known */
    bool sends;
    struct comm_run *run; /* or */
    struct net_collective *collective;
};
typedef ARRAY(struct end) end_array;

ORDER(by_start, struct end, ASCENDING(start_ns) ?: ASCENDING(end_ns));

static void list_runs(comm_run_array *runs, end_array *ends)
{
    EACH (struct comm_run, run, *runs)
        if (run->posted)
            array_add(ends, .start_ns = run->start_ns, .end_ns = run->end_ns,
                      .size_bytes = run->size_bytes, .peer = run->peer, .sends = run->sends,
                      .run = run);
    array_sort(ends, by_start);
}

static void list_data(const struct dpro_trace *trace, struct net_transport *t, end_array *ends)
{
    EACH (const struct net_message, message, t->messages) {
        const struct net_connection *connection = &t->connections.at[message->stream / 2];
        if (is_pair(message) && message->opcode == GLOO_DATA && message->collective != NO_ID &&
            message->start_ns != INT64_MIN && connection->peer != NO_ID)
            array_add(ends, .start_ns = message->start_ns, .end_ns = message->end_ns,
                      .size_bytes = message->length,
                      .peer = (uint32_t)trace->transports[connection->peer].rank,
                      .sends = message->stream % 2 == 0,
                      .collective = &t->collectives.at[message->collective]);
    }
    array_sort(ends, by_start);
}

/* The span begins when the call returns. The transfer was posted when the call announced it, and
 * its data may be under way by then: gloo's own thread can hold the call up for long. */
static void cut_run(struct trace_rank *rank, const struct comm_run *run, const struct end *data)
{
    int64_t posted = MIN(data->start_ns, data->collective->first_send_ns);
    int64_t start = MIN(run->start_ns, MAX(posted, run->call_ns));
    array_add(&rank->logged.moves, run->span, start, MIN(run->end_ns, MAX(data->end_ns, start)));
}

/* Data of one direction and peer keep the order in which they were asked for. */
static void tie(struct trace_rank *rank, const end_array *asked, const end_array *data)
{
    bool *taken = mem_array(data->n + 1, sizeof *taken);
    size_t first = 0; /* older data are of older calls */
    EACH (const struct end, end, *asked) {
        while (first < data->n &&
               (taken[first] || data->at[first].end_ns < end->start_ns - SLACK_NS))
            first++;
        for (size_t d = first; d < data->n; d++) {
            const struct end *one = &data->at[d];
            if (one->start_ns > end->end_ns + SLACK_NS)
                break;
            if (taken[d] || one->sends != end->sends ||
                (end->peer != UINT32_MAX && one->peer != end->peer) ||
                one->end_ns < end->start_ns - SLACK_NS ||
                (end->size_bytes && end->size_bytes != one->size_bytes))
                continue;
            taken[d] = true;
            end->run->tied = true;
            one->collective->span = end->run->span;
            cut_run(rank, end->run, one);
            break;
        }
    }
    mem_free(taken);
}

void gloo_tie_pairs(const struct dpro_trace *trace, struct trace_rank *rank,
                    struct net_transport *t)
{
    end_array asked = {0}, data = {0};
    list_runs(&rank->runs.gloo, &asked);
    list_data(trace, t, &data);
    tie(rank, &asked, &data);
    array_fini(&asked);
    array_fini(&data);
}
