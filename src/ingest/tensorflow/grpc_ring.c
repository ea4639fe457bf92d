/* The messages of TensorFlow's rings over gRPC.
 *
 * A rank's collective is a span with a number that is equal on all ranks (group_key, instance_key).
 * In it the rank sends its neighbour 2 (n - 1) chunks of the tensor, or a multiple of that, each
 * the answer to a RecvBuf request: bytes in one call on a stream, or in a few if the socket was
 * full, hundreds of times what else goes over gRPC then. All chunks are as long but for what
 * rounding leaves of the last. When they are fewer or more, nothing tells which bytes are whose:
 * these stay whole. */
#include <string.h>

#include "base/map.h"
#include "base/sort.h"
#include "ingest/trace.h"
#include "ingest/transport/transport.h"

/* What else goes over gRPC is shorter, and so far may chunks differ. */
enum { LEAST_CHUNK = 4096, CHUNK_SLACK = 8192, MOST_CHUNKS = 1 << 16 };
static const int64_t SLACK_NS = 1000000; /* a span is read off the clock beside the calls */

struct run {
    uint64_t key; /* of all ranks' */
    int64_t start_ns, end_ns;
    uint32_t transport, span;
    uint32_t joint; /* number of the collective */
};
typedef ARRAY(struct run) run_array;

/* One write, or what could be written of it at a time. */
struct piece {
    uint64_t offset, bytes;
};
typedef ARRAY(struct piece) piece_array;

struct ring {
    struct dpro_trace *trace;
    struct arena arena;
    run_array runs;
    uint32_t n;        /* collectives */
    uint32_t *n_ranks; /* by collective */
    bool *mixed;       /* by collective: another one ran at the same time */
    uint8_t *n_found;  /* [transport * n + collective]: streams with chunks that it sent */
    uint32_t *run_of;  /* [transport * n + collective]: its run; NO_ID */
    piece_array pieces;
};

static size_t cell_of(const struct ring *ring, uint32_t transport, uint32_t joint)
{
    return (size_t)transport * ring->n + joint;
}

ORDER(by_time, struct run, ASCENDING(transport) ?: ASCENDING(start_ns) ?: ASCENDING(span));

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
                      .start_ns = span->start_ns, .end_ns = span->start_ns + span->dur_ns,
                      .transport = t, .span = i);
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
    struct map repeated = {0}, seen = {0};
    uint64_t n = 0;
    EACH (const struct run, run, *runs) {
        uint64_t here = key_with(run->key, run->transport);
        if (map_get(&seen, here, NULL))
            map_set(&repeated, run->key, 1);
        else
            map_set(&seen, here, 1);
    }
    map_fini(&seen);
    for (size_t i = 0; i < runs->n && repeated.n > 0; i++) {
        struct run *run = &runs->at[i];
        if (!map_get(&repeated, run->key, NULL))
            continue;
        uint64_t window =
            trace->ranks[trace->transports[run->transport].rank_index].spans[run->span].window;
        run->key = key_with(run->key, window);
        uint64_t here = key_with(run->key, run->transport);
        n = map_get(&seen, here, &n) ? n + 1 : 0;
        map_set(&seen, here, n);
        run->key = key_with(run->key, n);
    }
    map_fini(&repeated);
    map_fini(&seen);
}

/* ---- chunks ---- */

/* Lists the stream's long writes between two times. */
static void list_pieces(const struct net_transport *t, uint32_t stream, const struct run *run,
                        int64_t until_ns, piece_array *pieces)
{
    uint32_t end = t->first_transfer[stream + 1];
    uint32_t i = LOWER_BOUND(k, t->first_transfer[stream], end,
                             t->transfers.at[k].start_ns < run->start_ns - SLACK_NS);
    pieces->n = 0;
    for (bool partial = false; i < end && t->transfers.at[i].start_ns < until_ns; i++) {
        const struct net_transfer *at = &t->transfers.at[i];
        struct piece fresh = {at->offset, at->bytes};
        struct piece *last = pieces->n ? &pieces->at[pieces->n - 1] : NULL;
        if (partial && last && last->offset + last->bytes == at->offset)
            last->bytes += at->bytes;
        else if (at->bytes >= LEAST_CHUNK)
            array_push(pieces, fresh);
        partial =
            at->requested > at->bytes && pieces->n > 0 && (partial || at->bytes >= LEAST_CHUNK);
    }
}

static bool are_chunks(const piece_array *pieces, uint64_t n)
{
    uint64_t least = UINT64_MAX, most = 0;
    for (size_t i = 0; i < pieces->n; i++) {
        least = MIN(least, pieces->at[i].bytes);
        most = MAX(most, pieces->at[i].bytes);
    }
    return pieces->n > 0 && pieces->n <= MOST_CHUNKS && pieces->n % n == 0 &&
           most - least <= CHUNK_SLACK + most / 256;
}

/* Joins consecutive pieces up to a chunk's length. */
static void merge_pieces(piece_array *pieces, uint64_t n)
{
    uint64_t sum = 0;
    size_t kept = 0;
    for (size_t i = 0; i < pieces->n; i++)
        sum += pieces->at[i].bytes;
    uint64_t chunk = sum / n - sum / n / 256;
    for (size_t i = 0; i < pieces->n; i++) {
        struct piece *last = kept ? &pieces->at[kept - 1] : NULL;
        if (last && last->bytes + CHUNK_SLACK < chunk)
            last->bytes = pieces->at[i].offset + pieces->at[i].bytes - last->offset;
        else
            pieces->at[kept++] = pieces->at[i];
    }
    pieces->n = kept;
}

/* Splits pieces that are several chunks written as one: several times as long as the shortest, or
 * as an n-th of all. */
static void split_pieces(piece_array *pieces, uint64_t n_chunks)
{
    uint64_t chunk = UINT64_MAX, sum = 0;
    size_t n = pieces->n;
    for (size_t i = 0; i < n; i++) {
        chunk = MIN(chunk, pieces->at[i].bytes);
        sum += pieces->at[i].bytes;
    }
    if (sum / n_chunks < chunk)
        chunk = sum / n_chunks + !(sum / n_chunks);
    for (size_t i = 0; i < n; i++) {
        uint64_t k = (pieces->at[i].bytes + chunk / 2) / chunk, bytes = pieces->at[i].bytes;
        uint64_t off = bytes > k * chunk ? bytes - k * chunk : k * chunk - bytes;
        if (k < 2 || pieces->n + k > MOST_CHUNKS || off > k * (CHUNK_SLACK + chunk / 256))
            continue;
        for (uint64_t c = 1; c < k; c++) {
            array_add(pieces, pieces->at[i].offset + c * bytes / k,
                      (c + 1) * bytes / k - c * bytes / k);
        }
        pieces->at[i].bytes = bytes / k;
    }
}

static void find_mixed(struct ring *ring)
{
    for (size_t i = 0; i < ring->runs.n; i++) {
        const struct run *run = &ring->runs.at[i];
        for (size_t k = i + 1; k < ring->runs.n && ring->runs.at[k].transport == run->transport &&
                               ring->runs.at[k].start_ns < run->end_ns;
             k++)
            ring->mixed[run->joint] = ring->mixed[ring->runs.at[k].joint] = true;
    }
}

/* Whether a rank received a stream's byte while in the collective, or its log has no record. */
static bool arrives_in(const struct ring *ring, uint32_t transport, uint32_t stream,
                       uint64_t offset, uint32_t joint)
{
    const struct net_transport *t = &ring->trace->transports[transport];
    uint32_t end = t->first_transfer[stream + 1];
    uint32_t i = LOWER_BOUND(k, t->first_transfer[stream], end,
                             t->transfers.at[k].offset + t->transfers.at[k].bytes <= offset);
    const struct net_transfer *at = &t->transfers.at[i];
    if (i == end || at->offset > offset)
        return true;
    uint32_t index = ring->run_of[cell_of(ring, transport, joint)];
    const struct run *run = index == NO_ID ? NULL : &ring->runs.at[index];
    return run && at->end_ns >= run->start_ns - SLACK_NS && at->start_ns <= run->end_ns + SLACK_NS;
}

static void push_chunk(struct ring *ring, const struct run *run, uint32_t stream,
                       const struct piece *piece)
{
    struct net_transport *t = &ring->trace->transports[run->transport];
    struct net_message message = {.offset = piece->offset,
                                  .size_bytes = piece->bytes,
                                  .length = piece->bytes,
                                  .stream = stream,
                                  .tag = run->joint,
                                  .protocol = NET_GRPC,
                                  .prefix = GLOO_ALL_REDUCE,
                                  .opcode = GLOO_DATA,
                                  NET_UNTIMED};
    message.collective = run->joint;
    array_push(&t->messages, message);
}

/* The chunks that a rank sent in a collective. */
static void take_run(struct ring *ring, const struct run *run, int64_t until_ns)
{
    struct net_transport *t = &ring->trace->transports[run->transport];
    uint64_t n = 2 * (ring->n_ranks[run->joint] - UINT64_C(1));
    for (uint32_t s = 0; s < t->connections.n * 2; s += 2) {
        uint32_t peer_stream;
        const struct net_transport *peer = net_peer(ring->trace, t, s, &peer_stream);
        if (!peer || peer->rank_index == NO_ID)
            continue;
        list_pieces(t, s, run, until_ns, &ring->pieces);
        if (!are_chunks(&ring->pieces, n))
            merge_pieces(&ring->pieces, n);
        if (!are_chunks(&ring->pieces, n))
            split_pieces(&ring->pieces, n);
        if (!are_chunks(&ring->pieces, n) ||
            !arrives_in(ring, (uint32_t)(peer - ring->trace->transports), peer_stream,
                        ring->pieces.at[0].offset, run->joint))
            continue;
        uint8_t *found = &ring->n_found[cell_of(ring, run->transport, run->joint)];
        *found += *found < UINT8_MAX;
        for (size_t i = 0; i < ring->pieces.n; i++)
            push_chunk(ring, run, s, &ring->pieces.at[i]);
    }
}

/* ---- collectives that run at once ----
 *
 * What one answer adds to its chunk is little, and chunks' lengths follow from the tensors', so
 * that a write is read as the chunks that it is made of: of those that are still to be sent the
 * largest that fits, then of what is left. A collective is tied where all of its chunks are found
 * so on every rank; those whose chunks are short, or as long as another's at the time, may not be.
 */

/* A collective of one rank that has chunks to send. */
struct sending {
    const struct run *run;
    uint64_t chunk;
    uint32_t n_left;
};

/* Bytes that gRPC adds to a chunk at least: a header, and one for each 16 KiB. */
static uint64_t around(uint64_t bytes)
{
    return 32 + bytes / 16384 * 9;
}

static uint64_t run_bytes(const struct dpro_trace *trace, const struct run *run)
{
    const struct trace_rank *rank = &trace->ranks[trace->transports[run->transport].rank_index];
    const struct trace_span *span = &rank->spans[run->span];
    uint64_t bytes = rank->details[span->detail].bytes;
    return bytes == 0 && span->node != NO_ID ? rank->dfg_nodes[span->node].size_bytes : bytes;
}

/* The rank's collectives that run at the same time as others, by start. */
static size_t list_sending(const struct ring *ring, uint32_t transport, struct sending *list)
{
    enum { MOST_BYTES = 4 << 20, MOST_PARTS = 2 }; /* TensorFlow cuts longer chunks in two */
    size_t n = 0;
    EACH (const struct run, run, ring->runs) {
        uint32_t n_ranks = ring->n_ranks[run->joint], parts = 1;
        uint64_t bytes = run_bytes(ring->trace, run);
        if (run->transport != transport || !ring->mixed[run->joint] || n_ranks < 2)
            continue;
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
    const struct run *run = sending->run; /* as long after it as in take_all */
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

static void take_write(struct ring *ring, struct sending *list, size_t n, uint32_t stream,
                       const struct piece *write, int64_t start_ns)
{
    enum { MOST_IN_A_WRITE = 64, BESIDE = 1024 }; /* BESIDE: of a chunk, at most */
    struct sending *found[MOST_IN_A_WRITE];
    size_t n_found = 0;
    uint64_t left = write->bytes, offset = write->offset;
    for (struct sending *next;
         n_found < MOST_IN_A_WRITE && (next = largest_in(list, n, start_ns, left)) != NULL;) {
        uint64_t more = around(next->chunk);
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
        uint64_t end = write->offset + write->bytes, bytes = found[i]->chunk;
        struct piece piece = {offset, i + 1 == n_found ? end - offset : bytes};
        push_chunk(ring, found[i]->run, stream, &piece);
        offset += piece.bytes;
    }
}

/* All writes of a stream; one may take several calls. */
static void take_stream(struct ring *ring, struct sending *list, size_t n, uint32_t transport,
                        uint32_t stream)
{
    const struct net_transport *t = &ring->trace->transports[transport];
    struct piece write = {0};
    int64_t start_ns = 0;
    for (uint32_t i = t->first_transfer[stream]; i < t->first_transfer[stream + 1]; i++) {
        const struct net_transfer *at = &t->transfers.at[i];
        if (write.bytes == 0) {
            write.offset = at->offset;
            start_ns = at->start_ns;
        }
        write.bytes += at->bytes;
        if (at->requested > at->bytes)
            continue;
        for (; n > 0 && is_over(list, start_ns); n--)
            list++;
        if (write.bytes >= LEAST_CHUNK)
            take_write(ring, list, n, stream, &write, start_ns);
        write.bytes = 0;
    }
}

static void take_mixed(struct ring *ring)
{
    struct sending *list = arena_array(&ring->arena, ring->runs.n, sizeof *list);
    for (uint32_t transport = 0; transport < ring->trace->n_transports; transport++) {
        const struct net_transport *t = &ring->trace->transports[transport];
        size_t n = t->rank_index == NO_ID ? 0 : list_sending(ring, transport, list);
        for (uint32_t s = 0; n > 0 && s < t->connections.n * 2; s += 2) {
            uint32_t peer_stream;
            const struct net_transport *peer = net_peer(ring->trace, t, s, &peer_stream);
            if (peer && peer->rank_index != NO_ID)
                take_stream(ring, list, n, transport, s);
        }
        for (size_t i = 0; i < n; i++)
            ring->n_found[cell_of(ring, transport, list[i].run->joint)] = list[i].n_left == 0;
    }
}

static void take_all(struct ring *ring)
{
    for (size_t i = 0; i < ring->runs.n; i++) {
        const struct run *run = &ring->runs.at[i];
        bool last = i + 1 == ring->runs.n || run[1].transport != run->transport;
        /* the last chunk may still be on its way when the rank has all of its own */
        int64_t until_ns = last ? run->end_ns + (run->end_ns - run->start_ns) : run[1].start_ns;
        if (!ring->mixed[run->joint] && ring->n_ranks[run->joint] > 1)
            take_run(ring, run, until_ns);
    }
    take_mixed(ring);
    for (uint32_t t = 0; t < ring->trace->n_transports; t++)
        net_sort_messages(&ring->trace->transports[t]);
    net_share_messages(ring->trace);
}

/* One collective of each number, on all ranks alike, each of which has one neighbour. */
static void add_collectives(struct ring *ring)
{
    struct dpro_trace *trace = ring->trace;
    bool *exact = arena_array(&ring->arena, ring->n, sizeof *exact);
    for (uint32_t j = 0; j < ring->n; j++)
        exact[j] = ring->n_ranks[j] > 1;
    EACH (const struct run, run, ring->runs)
        exact[run->joint] &= ring->n_found[cell_of(ring, run->transport, run->joint)] == 1;
    for (uint32_t t = 0; t < trace->n_transports; t++)
        for (uint32_t j = 0; j < ring->n; j++) {
            array_add(&trace->transports[t].collectives, .tag = j, .prefix = GLOO_ALL_REDUCE,
                      .joint = j, NET_UNSUMMED);
        }
    EACH (const struct run, run, ring->runs) {
        trace->transport_info.n_tied += exact[run->joint];
        if (exact[run->joint])
            trace->transports[run->transport].collectives.at[run->joint].span = run->span;
    }
    trace->transport_info.n_collectives += ring->runs.n;
    for (uint32_t t = 0; t < trace->n_transports; t++)
        net_sum_collectives(&trace->transports[t]);
}

/* Numbers the collectives, and makes room for what is found of each. */
static void number_runs(struct ring *ring)
{
    struct map numbers = {0};
    for (size_t i = 0; i < ring->runs.n; i++)
        ring->runs.at[i].joint = (uint32_t)map_number(&numbers, ring->runs.at[i].key);
    ring->n = (uint32_t)numbers.n;
    map_fini(&numbers);
    size_t n_cells = (size_t)ring->trace->n_transports * ring->n;
    ring->n_ranks = arena_array(&ring->arena, ring->n, sizeof *ring->n_ranks);
    ring->mixed = arena_array(&ring->arena, ring->n, sizeof *ring->mixed);
    ring->n_found = arena_array(&ring->arena, n_cells, sizeof *ring->n_found);
    ring->run_of = arena_array(&ring->arena, n_cells, sizeof *ring->run_of);
    memset(ring->run_of, 0xFF, n_cells * sizeof *ring->run_of);
    for (size_t i = 0; i < ring->runs.n; i++) {
        const struct run *run = &ring->runs.at[i];
        ring->n_ranks[run->joint]++;
        ring->run_of[cell_of(ring, run->transport, run->joint)] = (uint32_t)i;
    }
}

void ring_build(struct dpro_trace *trace)
{
    struct ring ring = {.trace = trace};
    for (uint32_t t = 0; t < trace->n_transports; t++)
        if (trace->transports[t].messages.n > 0)
            return; /* their own numbers say what they are */
    list_runs(trace, &ring.runs);
    if (ring.runs.n > 0 && ring.runs.n <= MOST_CHUNKS * (size_t)64) {
        tell_apart(trace, &ring.runs);
        number_runs(&ring);
        find_mixed(&ring);
        take_all(&ring);
        add_collectives(&ring);
    }
    array_fini(&ring.pieces);
    array_fini(&ring.runs);
    arena_fini(&ring.arena);
}
