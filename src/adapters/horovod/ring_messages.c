/* The messages that carried each of Horovod's groups.
 *
 * Gloo does not number Horovod's operations, and its negotiation shares their connections. But a
 * ring's messages are known: how many a rank sends to its neighbour, and how long each is, follows
 * from the bytes of the group and the number of ranks. Horovod's thread does one thing after the
 * other, so of a stream's messages those of one group are a run of just these lengths, after the
 * group before and before the next. Rank 0's timeline says when that was on rank 0; what its
 * neighbour moved of the same messages says when it was there, and so on around the ring. */

#include "adapters/horovod/thread.h"

/* ---- messages of a log that has calls only ---- */

static void end_message(const struct net_transport *receiver, uint32_t last,
                        struct net_message *message)
{
    const struct net_transfer *transfer = &receiver->transfers.at[last];
    message->size_bytes = transfer->offset + transfer->bytes - message->offset;
    message->length = message->size_bytes - GLOO_PREAMBLE_BYTES;
    if (message->length > 0)
        message->opcode = GLOO_DATA;
}

/* Gloo writes each message on its own and reads its preamble on its own, so a message begins where
 * calls of both ends begin and the receiver's next one begins 48 bytes further on. */
static void frame_stream(struct net_transport *t, uint32_t stream,
                         const struct net_transport *receiver, uint32_t received)
{
    uint32_t k = t->first_transfer[stream], k_end = t->first_transfer[stream + 1];
    uint32_t end = receiver->first_transfer[received + 1];
    bool open = false;
    for (uint32_t i = receiver->first_transfer[received]; i < end; i++) {
        const struct net_transfer *at = &receiver->transfers.at[i];
        uint32_t j = i;
        while (k < k_end && t->transfers.at[k].offset < at->offset)
            k++;
        while (j + 1 < end && receiver->transfers.at[j].offset + receiver->transfers.at[j].bytes <
                                  at->offset + GLOO_PREAMBLE_BYTES)
            j++;
        uint64_t over = receiver->transfers.at[j].offset + receiver->transfers.at[j].bytes;
        bool begins = k < k_end && t->transfers.at[k].offset == at->offset && at->bytes > 0 &&
                      over == at->offset + GLOO_PREAMBLE_BYTES;
        bool hole =
            i > receiver->first_transfer[received] && at[-1].offset + at[-1].bytes < at->offset;
        if (open && (begins || hole)) {
            end_message(receiver, i - 1, &t->messages.at[t->messages.n - 1]);
            open = false;
        }
        if (!begins)
            continue;
        array_add(&t->messages, .offset = at->offset, .stream = stream, NET_UNTIMED);
        open = true;
        i = j;
    }
    if (open)
        end_message(receiver, end - 1, &t->messages.at[t->messages.n - 1]);
}

static bool has_messages(const struct net_transport *t, uint32_t stream)
{
    return t->first_message[stream] < t->first_message[stream + 1];
}

static void frame_all(struct dpro_trace *trace)
{
    bool any = false;
    for (uint32_t n = 0; n < trace->n_transports; n++) {
        struct net_transport *t = &trace->transports[n];
        size_t n_own = t->messages.n;
        for (uint32_t s = 0; s < t->connections.n * 2; s += 2) {
            uint32_t received;
            const struct net_transport *peer = net_peer(trace, t, s, &received);
            if (peer && !has_messages(t, s) && !has_messages(peer, received))
                frame_stream(t, s, peer, received);
        }
        if (t->messages.n > n_own)
            net_sort_messages(t);
        trace->transport_info.n_messages += t->messages.n - n_own;
        any |= t->messages.n > n_own;
    }
    if (any)
        net_share_messages(trace);
}

/* ---- what a ring sends ---- */

enum { SEGMENT_BYTES = 1 << 20, MOST_LENGTHS = 1 << 16 };
typedef ARRAY(uint64_t) length_array;

static uint64_t round_up(uint64_t value, uint64_t to)
{
    return (value + to - 1) / to * to;
}

/* What a rank sends for a tensor, in order. Every rank has as many segments of it, two at least and
 * none longer than a MiB. In a first pass a rank sends those of all ranks but its own, from the
 * next rank's on; in a second all but the next one's, from its own on. None where that is not
 * known. */
static void list_lengths(uint64_t bytes, uint64_t item, uint32_t n, uint32_t rank,
                         length_array *lengths)
{
    uint64_t most = item * (SEGMENT_BYTES / item ? SEGMENT_BYTES / item : 1);
    uint64_t n_segments = (bytes + most - 1) / most;
    lengths->n = 0;
    n_segments = round_up(MAX(n_segments, n * UINT64_C(2)), n);
    uint64_t each = n_segments / n, segment = round_up((bytes + n_segments - 1) / n_segments, item);
    if (n_segments > MOST_LENGTHS)
        return;
    for (uint64_t pass = 0; pass < 2; pass++)
        for (uint64_t i = 0; i < n_segments - each; i++) {
            uint64_t offset = ((rank + 1 - pass) * each + i) % n_segments * segment;
            uint64_t length = offset >= bytes ? 0 : MIN(bytes - offset, segment);
            if (length > 0)
                array_push(lengths, length);
        }
}

/* ---- from one rank to the next ---- */

struct span_ns {
    int64_t first_ns, last_ns; /* first INT64_MAX: not known */
};

struct hvd_ring {
    struct dpro_trace *trace;
    const struct rounds *rounds;
    struct arena arena;
    uint32_t n; /* ranks */
    size_t n_groups;
    struct group_size {
        uint64_t bytes, item; /* bytes 0: not known */
    } * sizes;
    uint32_t *transport_of; /* a rank; NO_ID */
    struct span_ns *spans;  /* [rank * n_groups + group]: when the rank moved its messages */
    uint8_t *found;         /* like spans: bits, FOUND_SENT */
    length_array lengths;
};

enum { FOUND_SENT = 1, FOUND_RECEIVED = 2 };

/* From the end of the group before to the start of the next one, as far as these are known. */
static struct span_ns window_of(const struct hvd_ring *ring, uint32_t rank, size_t group)
{
    const int64_t SLACK_NS = 1000000000;
    const struct span_ns *spans = ring->spans + rank * ring->n_groups;
    struct span_ns window = {spans[group].first_ns - SLACK_NS, spans[group].last_ns + SLACK_NS};
    if (group > 0 && spans[group - 1].first_ns != INT64_MAX)
        window.first_ns = spans[group - 1].last_ns;
    if (group + 1 < ring->n_groups && spans[group + 1].first_ns != INT64_MAX)
        window.last_ns = spans[group + 1].first_ns;
    return window;
}

static bool is_wanted(const struct net_message *message, uint8_t opcode)
{
    return message->opcode == opcode && message->length > 0;
}

/* The first message of a run of exactly these lengths that begins in the window; NO_ID: none. */
static uint32_t find_run(const struct net_transport *t, uint32_t stream, uint32_t from,
                         uint8_t opcode, const length_array *lengths, struct span_ns window)
{
    enum { MOST_TRIES = 1000 };
    uint32_t end = t->first_message[stream + 1], n_tries = 0;
    for (uint32_t m = from; m < end && n_tries < MOST_TRIES; m++) {
        const struct net_message *first = &t->messages.at[m];
        if (!is_wanted(first, opcode) || first->start_ns == INT64_MIN ||
            first->start_ns < window.first_ns)
            continue;
        if (first->start_ns >= window.last_ns)
            return NO_ID;
        n_tries++;
        size_t k = 0;
        for (uint32_t at = m; at < end && k < lengths->n; at++) {
            const struct net_message *message = &t->messages.at[at];
            if (!is_wanted(message, opcode))
                continue;
            if (message->length != lengths->at[k])
                break;
            k++;
        }
        if (k == lengths->n)
            return m;
    }
    return NO_ID;
}

static void widen_span(struct span_ns *span, const struct net_message *message)
{
    if (message->start_ns != INT64_MIN)
        span->first_ns = MIN(span->first_ns, message->start_ns);
    span->last_ns = MAX(span->last_ns, message->end_ns);
}

/* Assigns the run to the group at both ends. Returns the message after it. */
static uint32_t take_run(const struct hvd_ring *ring, struct net_transport *t, uint32_t stream,
                         uint32_t run, uint8_t opcode, uint32_t peer_rank, uint32_t group)
{
    uint32_t peer_stream = 0, n = 0;
    /* of two logs of one rank the one with the connection's other end */
    const struct net_transport *peer = net_peer(ring->trace, t, stream, &peer_stream);
    for (; n < ring->lengths.n; run++) {
        struct net_message *message = &t->messages.at[run];
        if (!is_wanted(message, opcode))
            continue;
        n++;
        message->collective = group;
        struct net_message *other =
            peer ? net_message_at(peer, peer_stream, message->offset) : NULL;
        if (!other)
            continue;
        other->collective = group;
        if (opcode == GLOO_DATA)
            widen_span(&ring->spans[peer_rank * ring->n_groups + group], other);
    }
    return run;
}

/* Finds all groups' runs on a stream between a rank and its neighbour. */
static void take_stream(struct hvd_ring *ring, uint32_t rank, uint32_t stream, uint32_t peer_rank)
{
    struct net_transport *t = &ring->trace->transports[ring->transport_of[rank]];
    bool sends = stream % 2 == 0;
    uint32_t sender = sends ? rank : peer_rank, back = stream ^ 1;
    uint32_t next = t->first_message[stream], next_ready = t->first_message[back];
    for (size_t g = 0; g < ring->n_groups; g++) {
        uint8_t *own = &ring->found[rank * ring->n_groups + g];
        uint8_t *others = &ring->found[peer_rank * ring->n_groups + g];
        if (ring->sizes[g].bytes == 0 || (*own & (sends ? FOUND_SENT : FOUND_RECEIVED)) ||
            ring->spans[rank * ring->n_groups + g].first_ns == INT64_MAX)
            continue;
        list_lengths(ring->sizes[g].bytes, ring->sizes[g].item, ring->n, sender, &ring->lengths);
        struct span_ns window = window_of(ring, rank, g);
        uint32_t run = ring->lengths.n == 0
                           ? NO_ID
                           : find_run(t, stream, next, GLOO_DATA, &ring->lengths, window);
        if (run == NO_ID)
            continue;
        next = take_run(ring, t, stream, run, GLOO_DATA, peer_rank, (uint32_t)g);
        *own |= sends ? FOUND_SENT : FOUND_RECEIVED;
        *others |= sends ? FOUND_RECEIVED : FOUND_SENT;
        run = find_run(t, back, next_ready, GLOO_RECV_READY, &ring->lengths, window);
        if (run != NO_ID)
            next_ready = take_run(ring, t, back, run, GLOO_RECV_READY, peer_rank, (uint32_t)g);
    }
}

static void take_rank(struct hvd_ring *ring, uint32_t rank)
{
    const struct net_transport *t = &ring->trace->transports[ring->transport_of[rank]];
    uint32_t to = (rank + ring->n - 1) % ring->n, from = (rank + 1) % ring->n;
    for (uint32_t s = 0; s < t->connections.n * 2; s++) {
        uint32_t peer_stream, wanted = s % 2 == 0 ? to : from;
        const struct net_transport *peer = net_peer(ring->trace, t, s, &peer_stream);
        if (peer && peer->rank == (int)wanted && has_messages(t, s))
            take_stream(ring, rank, s, wanted);
    }
}

/* From the leading rank around the ring, to both sides. */
static void take_all(struct hvd_ring *ring, uint32_t lead)
{
    for (uint32_t i = 0; i < ring->n; i++) {
        uint32_t rank = (lead + (i % 2 ? ring->n - (i + 1) / 2 : i / 2)) % ring->n;
        if (ring->transport_of[rank] != NO_ID)
            take_rank(ring, rank);
    }
}

/* ---- collectives ---- */

/* Only rounds that fused as the graph does have the graph's collectives. */
static void tie_spans(const struct hvd_ring *ring, struct net_transport *t)
{
    const struct fusion *f = ring->trace->fusion;
    const struct trace_rank *rank = &ring->trace->ranks[t->rank_index];
    size_t n = ring->rounds->rounds.n * f->n_groups;
    if (rank->fused.track == NO_ID)
        return;
    const struct trace_track *track = &rank->tracks[rank->fused.track];
    for (uint32_t i = track->first; i < track->first + track->n; i++) {
        uint32_t detail = rank->spans[i].detail;
        int64_t sequence = detail == NO_ID ? -1 : rank->details[detail].comm_sequence;
        if (sequence < 0 || sequence % 2 == 0 || (uint64_t)sequence / 2 >= n)
            continue;
        uint32_t round = fusion_round(f, sequence), group = fusion_group(f, sequence);
        if (!f->alike[round])
            continue;
        struct net_collective *collective =
            &t->collectives.at[ring->rounds->rounds.at[round].first + group];
        if (collective->exact)
            collective->span = i;
    }
}

/* Adds a collective for each group. It is exact where all ranks' messages were found. */
static void add_collectives(struct hvd_ring *ring, struct net_transport *t)
{
    struct dpro_transport_info *info = &ring->trace->transport_info;
    uint32_t rank = (uint32_t)t->rank;
    t->collectives.n = 0;
    for (uint32_t g = 0; g < ring->n_groups; g++) {
        struct net_collective fresh = {.prefix = GLOO_ALL_REDUCE,
                                       .tag = g,
                                       .size_bytes = ring->sizes[g].bytes,
                                       .joint = g,
                                       .exact = ring->sizes[g].bytes > 0,
                                       NET_UNSUMMED};
        for (uint32_t r = 0; r < ring->n; r++)
            fresh.exact &= ring->found[r * ring->n_groups + g] == (FOUND_SENT | FOUND_RECEIVED);
        bool tied = ring->found[rank * ring->n_groups + g] != 0;
        info->n_collectives++;
        info->n_tied += tied;
        info->n_checked += tied;
        info->n_exact += fresh.exact;
        array_push(&t->collectives, fresh);
    }
    net_sum_collectives(t);
}

static void prepare_ring(struct hvd_ring *ring, int lead)
{
    size_t n_cells = ring->n * ring->n_groups;
    ring->sizes = arena_array(&ring->arena, ring->n_groups, sizeof *ring->sizes);
    ring->transport_of = arena_array(&ring->arena, ring->n, sizeof *ring->transport_of);
    ring->spans = arena_array(&ring->arena, n_cells, sizeof *ring->spans);
    ring->found = arena_array(&ring->arena, n_cells, 1);
    memset(ring->transport_of, 0xFF, ring->n * sizeof *ring->transport_of);
    for (uint32_t t = 0; t < ring->trace->n_transports; t++) {
        const struct net_transport *transport = &ring->trace->transports[t];
        if (transport->rank_index != NO_ID && transport->rank >= 0 &&
            transport->rank < (int)ring->n)
            ring->transport_of[transport->rank] = t;
    }
    for (size_t i = 0; i < n_cells; i++)
        ring->spans[i] = (struct span_ns){INT64_MAX, INT64_MIN};
    for (size_t g = 0; g < ring->n_groups; g++) {
        const struct actual_group *group = &ring->rounds->groups.at[g];
        struct group_size *size = &ring->sizes[g];
        ring->spans[(size_t)lead * ring->n_groups + g] =
            (struct span_ns){group->times.transfer_ns, group->times.transferred_ns};
        uint64_t largest, bytes = rounds_group_bytes(ring->rounds, group, &largest);
        size->bytes = bytes > UINT64_MAX / 4 ? 0 : bytes;
        size->item = rounds_item_bytes(ring->rounds,
                                       rounds_tensor(ring->rounds, group->first + group->n - 1));
    }
}

void fused_find_messages(struct dpro_trace *trace, const struct rounds *rounds, int lead)
{
    struct hvd_ring ring = {.trace = trace,
                            .rounds = rounds,
                            .n = (uint32_t)trace->world_size,
                            .n_groups = rounds->groups.n};
    if (trace->world_size < 2 || (uint32_t)trace->world_size > trace->n_transports || lead < 0 ||
        lead >= trace->world_size)
        return;
    for (uint32_t t = 0; t < trace->n_transports; t++)
        for (size_t m = 0; m < trace->transports[t].messages.n; m++)
            trace->transports[t].messages.at[m].collective = NO_ID;
    frame_all(trace);
    prepare_ring(&ring, lead);
    take_all(&ring, (uint32_t)lead);
    for (uint32_t t = 0; t < trace->n_transports; t++) {
        struct net_transport *transport = &trace->transports[t];
        transport->collectives.n = 0;
        if (transport->rank < 0 || transport->rank >= trace->world_size ||
            ring.transport_of[transport->rank] != t)
            continue;
        add_collectives(&ring, transport);
        tie_spans(&ring, transport);
    }
    array_fini(&ring.lengths);
    arena_fini(&ring.arena);
}
