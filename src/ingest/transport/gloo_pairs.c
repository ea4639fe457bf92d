/* Which messages are those of a send and of its receive, and of which spans.
 *
 * Both ends announce each transfer, within the calls that ask for it, and the sender sends the data
 * of one tag in the order of the announcements. So the k-th announcements on a connection belong to
 * the k-th data, but for announcements from before the logs began. The data of a send starts after
 * the send was asked for, that of a receive likewise, and ends before either has been waited
 * for. */

#include "ingest/trace.h"

enum {
    MOST_BEFORE = 64,     /* announcements before the logs began */
    SLACK_NS = 200 * 1000 /* profiler and logs read the same clock, at different moments */
};

static bool is_pair(const struct net_message *message)
{
    return message->protocol == NET_GLOO && message->prefix == 0 && message->opcode != 0;
}

/* A message of a transfer, its data or what announces them. */
struct transfer_message {
    uint64_t slot;   /* what the program called the transfer, in place of a collective's number */
    uint32_t stream; /* of the data */
    struct net_message *message;
};

ORDER(by_transfer, struct transfer_message,
      ASCENDING(stream) ?: ASCENDING(slot) ?: ASCENDING(message->opcode)
          ?: ASCENDING(message->offset));

/* How many of the first data were announced before the logs began. */
static size_t count_before(const struct transfer_message *data, size_t n_data,
                           const struct transfer_message *ready, size_t n_ready)
{
    size_t n = 0;
    for (size_t k = 0; k < n_data && n < MOST_BEFORE; k++)
        while (n <= k && n < MOST_BEFORE && k - n < n_ready &&
               ready[k - n].message->start_ns != INT64_MIN &&
               data[k].message->start_ns != INT64_MIN &&
               ready[k - n].message->start_ns > data[k].message->start_ns)
            n++;
    return n;
}

/* Numbers the data of one slot on a stream from `number` on, and what announced them. Returns the
 * next number. */
static uint32_t number_transfers(const struct transfer_message *at, size_t n, uint32_t number)
{
    size_t n_data = 0;
    for (size_t i = 0, end; i < n; i = end) {
        end = RUN_END(k, i, n, at[k].message->opcode == at[i].message->opcode);
        size_t before = 0;
        if (at[i].message->opcode == GLOO_DATA)
            n_data = end;
        else
            before = count_before(at, n_data, at + i, end - i);
        if (at[i].message->opcode > GLOO_RECV_READY)
            before = n_data;
        for (size_t k = i; k < end; k++) /* UINT32_MAX: what belongs to no data */
            at[k].message->tag =
                before + (k - i) < n_data ? number + (uint32_t)(before + (k - i)) : UINT32_MAX;
    }
    return number + (uint32_t)n_data;
}

void gloo_number_pairs(struct dpro_trace *trace)
{
    SCRATCH ARRAY(struct transfer_message) all = {0};
    uint32_t number = 0, peer_stream;
    EACH_OF (struct net_transport, t, trace->transports, trace->n_transports) {
        all.n = 0;
        EACH (struct net_message, m, t->messages)
            if (is_pair(m))
                array_add(&all, (uint64_t)m->tag << 32 | m->delta,
                          m->opcode == GLOO_RECV_READY ? m->stream ^ 1 : m->stream, m);
        array_sort(&all, by_transfer);
        for (size_t k = 0, end; k < all.n; k = end) {
            end = RUN_END(i, k, all.n,
                          all.at[i].stream == all.at[k].stream && all.at[i].slot == all.at[k].slot);
            number = number_transfers(all.at + k, end - k, number);
        }
        EACH (const struct transfer_message, own, all) { /* the other end may have numbered it */
            const struct net_transport *peer =
                net_peer(trace, t, own->message->stream, &peer_stream);
            const struct net_message *other =
                peer && peer < t ? net_message_at(peer, peer_stream, own->message->offset) : NULL;
            if (other)
                own->message->tag = other->tag;
        }
    }
}

/* ---- spans ---- */

/* A send or receive, or the data of one. */
struct pair_end {
    int64_t start_ns, end_ns;
    uint64_t size_bytes;
    uint32_t peer; /* rank; UINT32_MAX: not known */
    bool sends;
    struct comm_run *run; /* or */
    struct net_collective *collective;
};
typedef ARRAY(struct pair_end) end_array;

ORDER(by_start, struct pair_end, ASCENDING(start_ns) ?: ASCENDING(end_ns));

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
static void cut_run(struct trace_rank *rank, const struct comm_run *run,
                    const struct pair_end *data)
{
    int64_t posted = MIN(data->start_ns, data->collective->first_send_ns);
    int64_t start = MIN(run->start_ns, MAX(posted, run->call_ns));
    array_add(&rank->logged.moves, run->span, start, MIN(run->end_ns, MAX(data->end_ns, start)));
}

/* Data of one direction and peer keep the order in which they were asked for. */
static void tie_ends(struct trace_rank *rank, const end_array *asked, const end_array *data)
{
    SCRATCH bool *taken = mem_array(data->n + 1, sizeof *taken);
    size_t first = 0; /* older data are of older calls */
    EACH (const struct pair_end, end, *asked) {
        while (first < data->n &&
               (taken[first] || data->at[first].end_ns < end->start_ns - SLACK_NS))
            first++;
        for (size_t d = first; d < data->n; d++) {
            const struct pair_end *one = &data->at[d];
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
}

void gloo_tie_pairs(const struct dpro_trace *trace, struct trace_rank *rank,
                    struct net_transport *t)
{
    SCRATCH end_array asked = {0}, data = {0};
    list_runs(&rank->runs.gloo, &asked);
    list_data(trace, t, &data);
    tie_ends(rank, &asked, &data);
}
