/* The messages of TensorFlow's rings over gRPC.
 *
 * A rank's collective is a span with a number that is equal on all ranks (group_key, instance_key).
 * In it the rank sends its neighbour 2 (n - 1) chunks of the tensor, or twice as many, each the
 * answer to a RecvBuf request. What one answer adds to its chunk is little, and chunks' lengths
 * follow from the tensors', so that a write is read as the chunks that it is made of: of those that
 * are still to be sent the largest that fits, then of what is left. Where no graph tells the
 * tensors' sizes, they are what is written during the collective. A collective is tied where all of
 * its chunks are found so on every rank; those whose chunks are short, or as long as another's at
 * the time, may not be, and stay whole. */

#include "ingest/trace.h"

/* What else goes over gRPC is shorter. */
enum { LEAST_CHUNK = 4096, MOST_RUNS = 1 << 22 };
static const int64_t SLACK_NS = 1000000; /* a span is read off the clock beside the calls */

struct ring_run {
    uint64_t key; /* of all ranks' */
    int64_t start_ns, end_ns;
    uint32_t transport, span;
    uint32_t joint; /* number of the collective */
};
typedef ARRAY(struct ring_run) run_array;

/* A collective of one rank that has chunks to send. */
struct sending {
    const struct ring_run *run;
    uint64_t chunk;
    uint32_t n_left;
};

struct grpc_ring {
    struct dpro_trace *trace;
    struct arena arena;
    run_array runs;
    uint32_t n;        /* collectives */
    uint32_t *n_ranks; /* by collective */
    bool *found;       /* [transport * n + collective]: all chunks that it sent */
};

static size_t cell_of(const struct grpc_ring *ring, uint32_t transport, uint32_t joint)
{
    return (size_t)transport * ring->n + joint;
}

ORDER(by_time, struct ring_run, ASCENDING(transport) ?: ASCENDING(start_ns) ?: ASCENDING(span));

static void list_runs(const struct dpro_trace *trace, run_array *runs)
{
    for (uint32_t t = 0; t < trace->n_transports; t++) {
        if (trace->transports[t].rank_index == NO_ID)
            continue;
        const struct trace_rank *rank = &trace->ranks[trace->transports[t].rank_index];
        for (uint32_t i = 0; i < rank->n_spans; i++) {
            const struct trace_span *span = &rank->spans[i];
            if (span->kind != SPAN_COLLECTIVE || span->detail == NO_ID ||
                rank->details[span->detail].comm_sequence < 0)
                continue;
            const struct trace_detail *detail = &rank->details[span->detail];
            array_add(runs,
                      .key = map_mix(map_mix(detail->process_group + UINT64_C(1)) ^
                                     (uint64_t)detail->comm_sequence) |
                             1,
                      .start_ns = span->start_ns, .end_ns = span_end_ns(span), .transport = t,
                      .span = i);
        }
    }
    array_sort(runs, by_time);
}

static uint64_t key_with(uint64_t key, uint64_t number)
{
    return map_mix(key ^ map_mix(number + 1)) | 1;
}

/* Sessions, and users' own code, give collectives the same numbers in each iteration. The key of
 * these is made of the number, the window, and the place among its like in the window. */
static void tell_apart(const struct dpro_trace *trace, run_array *runs)
{
    SCRATCH struct map repeated = {0}, seen = {0};
    EACH (const struct ring_run, run, *runs) {
        uint64_t here = key_with(run->key, run->transport);
        if (!map_insert(&seen, here, 1))
            map_set(&repeated, run->key, 1);
    }
    map_fini(&seen);
    EACH (struct ring_run, run, *runs) {
        if (!map_get(&repeated, run->key, NULL))
            continue;
        uint64_t window =
            trace->ranks[trace->transports[run->transport].rank_index].spans[run->span].window;
        run->key = key_with(run->key, window);
        uint64_t here = key_with(run->key, run->transport);
        run->key = key_with(run->key, map_add(&seen, here, 1) - 1);
    }
}

/* ---- chunks ---- */

static void push_chunk(struct grpc_ring *ring, const struct ring_run *run, uint32_t stream,
                       uint64_t offset, uint64_t bytes)
{
    struct net_transport *t = &ring->trace->transports[run->transport];
    struct net_message message = {.offset = offset,
                                  .size_bytes = bytes,
                                  .length = bytes,
                                  .stream = stream,
                                  .tag = run->joint,
                                  .protocol = NET_GRPC,
                                  .prefix = GLOO_ALL_REDUCE,
                                  .opcode = GLOO_DATA,
                                  NET_UNTIMED};
    message.collective = run->joint;
    array_push(&t->messages, message);
}

/* Bytes that gRPC adds to a chunk at least: a header, and one for each 16 KiB. */
static uint64_t framing_bytes(uint64_t bytes)
{
    return 32 + bytes / 16384 * 9;
}

/* Whether a stream of a rank goes to another. */
static bool leads_to_rank(const struct dpro_trace *trace, const struct net_transport *t,
                          uint32_t stream)
{
    uint32_t peer_stream;
    const struct net_transport *peer = net_peer(trace, t, stream, &peer_stream);
    return stream % 2 == 0 && peer && peer->rank_index != NO_ID;
}

/* What a rank wrote to others between two times. */
static uint64_t written_bytes(const struct dpro_trace *trace, const struct net_transport *t,
                              int64_t from_ns, int64_t to_ns)
{
    uint64_t bytes = 0;
    EACH (const struct net_transfer, at, t->transfers)
        if (at->start_ns >= from_ns && at->start_ns < to_ns &&
            MAX(at->bytes, at->requested) >= LEAST_CHUNK && leads_to_rank(trace, t, at->stream))
            bytes += at->bytes;
    return bytes;
}

/* The bytes of a collective's tensor: as its span or the graph says, else from those that the rank
 * writes until its next one begins. */
static uint64_t run_bytes(const struct grpc_ring *ring, const struct ring_run *run)
{
    const struct net_transport *t = &ring->trace->transports[run->transport];
    const struct trace_rank *rank = &ring->trace->ranks[t->rank_index];
    const struct trace_span *span = &rank->spans[run->span];
    uint64_t bytes = rank->details[span->detail].bytes, n = ring->n_ranks[run->joint];
    if (bytes == 0 && span->node != NO_ID)
        bytes = rank->dfg_nodes[span->node].size_bytes;
    if (bytes > 0)
        return bytes;
    bool last = run + 1 == ring->runs.at + ring->runs.n || run[1].transport != run->transport;
    int64_t until_ns = last ? run->end_ns + (run->end_ns - run->start_ns) : run[1].start_ns;
    bytes = written_bytes(ring->trace, t, run->start_ns - SLACK_NS, until_ns) / (2 * (n - 1));
    return (bytes - bytes / 1024) * n; /* but for what gRPC adds */
}

/* The rank's collectives by start. */
static size_t list_sending(const struct grpc_ring *ring, uint32_t transport, struct sending *list)
{
    enum { MOST_BYTES = 4 << 20, MOST_PARTS = 2 }; /* TensorFlow cuts longer chunks in two */
    size_t n = 0;
    EACH (const struct ring_run, run, ring->runs) {
        uint32_t n_ranks = ring->n_ranks[run->joint], parts = 1;
        if (run->transport != transport || n_ranks < 2)
            continue;
        uint64_t bytes = run_bytes(ring, run);
        while (parts < MOST_PARTS && bytes / n_ranks / parts > MOST_BYTES)
            parts++;
        list[n] = (struct sending){run, bytes / n_ranks / parts, 2 * (n_ranks - 1) * parts};
        n += list[n].chunk >= LEAST_CHUNK;
    }
    return n;
}

/* Whether a write that begins then is too late for it. */
static bool is_over(const struct sending *sending, int64_t start_ns)
{
    const struct ring_run *run =
        sending->run; /* the last may be on its way when it has all its own */
    return sending->n_left == 0 ||
           run->end_ns + (run->end_ns - run->start_ns) + SLACK_NS <= start_ns;
}

/* The largest chunk that may be part of what is left of a write; NULL: there is none. */
static struct sending *largest_in(struct sending *list, size_t n, int64_t start_ns, uint64_t left)
{
    struct sending *best = NULL;
    for (size_t i = 0; i < n && list[i].run->start_ns - SLACK_NS <= start_ns; i++)
        if (!is_over(&list[i], start_ns) && list[i].chunk <= left &&
            (!best || list[i].chunk > best->chunk))
            best = &list[i];
    return best;
}

static void take_write(struct grpc_ring *ring, struct sending *list, size_t n, uint32_t stream,
                       uint64_t offset, uint64_t bytes, int64_t start_ns)
{
    enum { MOST_IN_A_WRITE = 64, BESIDE = 1024 }; /* BESIDE: of a chunk, at most */
    struct sending *found[MOST_IN_A_WRITE];
    size_t n_found = 0;
    uint64_t left = bytes, end = offset + bytes;
    for (struct sending *next;
         n_found < MOST_IN_A_WRITE && (next = largest_in(list, n, start_ns, left)) != NULL;) {
        uint64_t more = framing_bytes(next->chunk);
        left -= next->chunk + more < left ? next->chunk + more : left;
        next->n_left--;
        found[n_found++] = next;
    }
    if (left > LEAST_CHUNK + n_found * BESIDE) { /* something else is in it */
        for (size_t i = 0; i < n_found; i++)
            found[i]->n_left++;
        return;
    }
    for (size_t i = 0; i < n_found; i++) {
        uint64_t chunk = i + 1 == n_found ? end - offset : found[i]->chunk;
        push_chunk(ring, found[i]->run, stream, offset, chunk);
        offset += chunk;
    }
}

/* All writes of a stream; one may take several calls. */
static void take_stream(struct grpc_ring *ring, struct sending *list, size_t n, uint32_t transport,
                        uint32_t stream)
{
    const struct net_transport *t = &ring->trace->transports[transport];
    uint64_t offset = 0, bytes = 0;
    int64_t start_ns = 0;
    for (uint32_t i = t->first_transfer[stream]; i < t->first_transfer[stream + 1]; i++) {
        const struct net_transfer *at = &t->transfers.at[i];
        if (bytes == 0) {
            offset = at->offset;
            start_ns = at->start_ns;
        }
        bytes += at->bytes;
        if (at->requested > at->bytes)
            continue;
        for (; n > 0 && is_over(list, start_ns); n--)
            list++;
        if (bytes >= LEAST_CHUNK)
            take_write(ring, list, n, stream, offset, bytes, start_ns);
        bytes = 0;
    }
}

static void take_all(struct grpc_ring *ring)
{
    struct sending *list = arena_array(&ring->arena, ring->runs.n, sizeof *list);
    for (uint32_t transport = 0; transport < ring->trace->n_transports; transport++) {
        struct net_transport *t = &ring->trace->transports[transport];
        size_t n = t->rank_index == NO_ID ? 0 : list_sending(ring, transport, list);
        for (uint32_t s = 0; n > 0 && s < t->connections.n * 2; s++)
            if (leads_to_rank(ring->trace, t, s))
                take_stream(ring, list, n, transport, s);
        for (size_t i = 0; i < n; i++)
            ring->found[cell_of(ring, transport, list[i].run->joint)] = list[i].n_left == 0;
        net_sort_messages(t);
    }
    net_share_messages(ring->trace);
}

/* One collective of each number, on all ranks alike, each of which has one neighbour. */
static void add_collectives(struct grpc_ring *ring)
{
    struct dpro_trace *trace = ring->trace;
    bool *exact = arena_array(&ring->arena, ring->n, sizeof *exact);
    for (uint32_t j = 0; j < ring->n; j++)
        exact[j] = ring->n_ranks[j] > 1;
    EACH (const struct ring_run, run, ring->runs)
        exact[run->joint] &= ring->found[cell_of(ring, run->transport, run->joint)];
    for (uint32_t t = 0; t < trace->n_transports; t++)
        for (uint32_t j = 0; j < ring->n; j++)
            array_add(&trace->transports[t].collectives, .tag = j, .prefix = GLOO_ALL_REDUCE,
                      .joint = j, NET_UNSUMMED);
    EACH (const struct ring_run, run, ring->runs) {
        trace->transport_info.n_tied += exact[run->joint];
        if (exact[run->joint])
            trace->transports[run->transport].collectives.at[run->joint].span = run->span;
    }
    trace->transport_info.n_collectives += ring->runs.n;
    for (uint32_t t = 0; t < trace->n_transports; t++)
        net_sum_collectives(&trace->transports[t]);
}

/* Numbers the collectives, and makes room for what is found of each. */
static void number_runs(struct grpc_ring *ring)
{
    SCRATCH struct map numbers = {0};
    for (size_t i = 0; i < ring->runs.n; i++)
        ring->runs.at[i].joint = (uint32_t)map_number(&numbers, ring->runs.at[i].key);
    ring->n = (uint32_t)numbers.n;
    ring->n_ranks = arena_array(&ring->arena, ring->n, sizeof *ring->n_ranks);
    ring->found =
        arena_array(&ring->arena, (size_t)ring->trace->n_transports * ring->n, sizeof *ring->found);
    EACH (const struct ring_run, run, ring->runs)
        ring->n_ranks[run->joint]++;
}

void ring_build(struct dpro_trace *trace)
{
    struct grpc_ring ring = {.trace = trace};
    for (uint32_t t = 0; t < trace->n_transports; t++)
        if (trace->transports[t].messages.n > 0)
            return; /* their own numbers say what they are */
    list_runs(trace, &ring.runs);
    if (ring.runs.n > 0 && ring.runs.n <= MOST_RUNS) {
        tell_apart(trace, &ring.runs);
        number_runs(&ring);
        take_all(&ring);
        add_collectives(&ring);
    }
    array_fini(&ring.runs);
    arena_fini(&ring.arena);
}
