/* One direction of a link whose connections share it evenly, as TCP's do: each of n active
 * connections gets an n-th of the rate. A connection sends one message after the other. The engine
 * says when something is to be sent, and asks when something happens next.
 *
 * Between two events every active connection has the same share, so the rest of each falls by the
 * time that passed divided by their number. The remainder of that division is carried on, and lost
 * when a connection starts or stops. Times are whole, so a replay is the same to the nanosecond on
 * any machine.
 *
 * The simulator of the coarse model shares links otherwise (cost/program/sim_flows.c): its flows
 * cross two resources each, slow down computation and are slowed by it, and its rates are clocks in
 * doubles. */
#include "replay/dispatch.h"

#define LATEST (INT64_MAX - 1) /* of times: hostile durations end there, too */

struct share *share_create(uint32_t n_streams)
{
    struct share *share = mem_array(1, sizeof *share + n_streams * sizeof *share->streams);
    share->n_streams = n_streams;
    share->next_ns = INT64_MAX;
    for (uint32_t s = 0; s < n_streams; s++)
        share->streams[s].previous = UINT64_MAX;
    return share;
}

void share_destroy(struct share *share)
{
    for (uint32_t s = 0; share && s < share->n_streams; s++)
        array_fini(&share->streams[s].items);
    mem_free(share);
}

static int64_t share_later(int64_t ns, int64_t by_ns)
{
    int64_t sum = time_add(ns, by_ns);
    return sum < LATEST ? sum : LATEST;
}

static void pass_time(struct share *share, int64_t now_ns)
{
    if (now_ns <= share->now_ns)
        return;
    int64_t passed = now_ns - share->now_ns, n = share->n_sending ? share->n_sending : 1;
    int64_t part = passed / n + (passed % n + share->rest_ns) / n;
    share->rest_ns = (passed % n + share->rest_ns) % n;
    share->now_ns = now_ns;
    EACH_OF (struct share_stream, stream, share->streams, share->n_streams) {
        if (stream->sends)
            stream->left_ns = stream->left_ns > part ? stream->left_ns - part : 0;
    }
}

static int64_t next_of(const struct share *share, const struct share_stream *stream)
{
    int64_t takes;
    if (stream->first == stream->items.n)
        return INT64_MAX;
    if (!stream->sends)
        return stream->begin_ns;
    if (__builtin_mul_overflow(stream->left_ns, (int64_t)share->n_sending, &takes))
        takes = INT64_MAX;
    return share_later(share->now_ns, takes > share->rest_ns ? takes - share->rest_ns : 0);
}

static void find_next(struct share *share)
{
    share->next_ns = INT64_MAX;
    for (uint32_t s = 0; s < share->n_streams; s++) {
        int64_t next = next_of(share, &share->streams[s]);
        if (next < share->next_ns)
            share->next_ns = next;
    }
}

void share_add(struct share *share, uint32_t stream, const struct share_item *item, int64_t now_ns)
{
    struct share_stream *to = &share->streams[stream];
    bool idle = to->first == to->items.n;
    if (to->first * 2 >= to->items.n && to->first > 0) { /* room again, where it costs little */
        to->items.n -= to->first;
        memmove(to->items.at, to->items.at + to->first, to->items.n * sizeof *to->items.at);
        to->first = 0;
    }
    array_push(&to->items, *item);
    pass_time(share, now_ns);
    if (idle)
        to->begin_ns = share_later(now_ns, item->gap_ns);
    find_next(share);
}

bool share_step(struct share *share, struct share_sent *sent)
{
    struct share_stream *stream = share->streams;
    int64_t now = share->next_ns;
    while (next_of(share, stream) != now)
        stream++;
    const struct share_item *item = &stream->items.at[stream->first];
    pass_time(share, now);
    if (!stream->sends) {
        stream->sends = true;
        stream->left_ns = item->work_ns;
        share->n_sending++;
        share->rest_ns = 0;
        find_next(share);
        return false;
    }
    *sent = (struct share_sent){item->id, stream->previous, stream->begin_ns, now};
    stream->previous = item->id;
    stream->sends = false;
    share->n_sending--;
    share->rest_ns = 0;
    stream->first++;
    if (stream->first < stream->items.n)
        stream->begin_ns = share_later(now, stream->items.at[stream->first].gap_ns);
    find_next(share);
    return true;
}
