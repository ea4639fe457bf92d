/* When Horovod's thread moved each group on a rank that is not the leading one.
 *
 * When another rank moved the same bytes, its transport log tells: what the leading rank sent and
 * received while a group was transferred are ranges of its connections' bytes, and the other ends
 * moved the very same ranges. Where a rank has no log, its group took as long as the leading
 * rank's, at the same time. */

#include "adapters/horovod/thread.h"

/* The group that was being transferred at a time; NO_ID: none. */
static uint32_t group_at(const struct rounds *rounds, int64_t time_ns)
{
    size_t next = LOWER_BOUND(g, (size_t)0, rounds->groups.n,
                              rounds->groups.at[g].times.transfer_ns <= time_ns);
    return next > 0 && time_ns <= rounds->groups.at[next - 1].times.transferred_ns
               ? (uint32_t)next - 1
               : NO_ID;
}

/* Which bytes of a stream the leading rank moved during each group. */
static void find_ranges(const struct rounds *rounds, const struct net_transport *t, uint32_t stream,
                        struct net_range *ranges)
{
    for (size_t g = 0; g < rounds->groups.n; g++)
        ranges[g] = (struct net_range){UINT64_MAX, 0, INT64_MAX, INT64_MIN};
    for (uint32_t i = t->first_transfer[stream]; i < t->first_transfer[stream + 1]; i++) {
        const struct net_transfer *transfer = &t->transfers.at[i];
        uint32_t g = group_at(rounds, transfer->start_ns);
        if (g == NO_ID)
            continue;
        ranges[g].start = MIN(ranges[g].start, transfer->offset);
        ranges[g].end = MAX(ranges[g].end, transfer->offset + transfer->bytes);
    }
}

/* When the peer moved them; ranges ascend, as bytes do. */
static void time_ranges(const struct net_transport *peer, uint32_t stream, size_t n,
                        struct net_range *ranges)
{
    size_t g = 0;
    for (uint32_t i = peer->first_transfer[stream]; i < peer->first_transfer[stream + 1]; i++) {
        const struct net_transfer *transfer = &peer->transfers.at[i];
        uint64_t end = transfer->offset + transfer->bytes;
        while (g < n && (ranges[g].end <= transfer->offset || ranges[g].start >= ranges[g].end))
            g++;
        if (g == n)
            break;
        if (end <= ranges[g].start)
            continue;
        ranges[g].first_ns = MIN(ranges[g].first_ns, transfer->start_ns);
        ranges[g].last_ns = MAX(ranges[g].last_ns, transfer->end_ns);
    }
}

static const struct net_transport *transport_of(const struct dpro_trace *trace, int rank)
{
    for (uint32_t t = 0; t < trace->n_transports; t++)
        if (trace->transports[t].rank == rank)
            return &trace->transports[t];
    return NULL;
}

static int64_t after_of(const struct fused_times *times)
{
    return times->end_ns - times->transferred_ns;
}

/* Moves a group so that its transfer is from first to last. What comes before and after takes as
 * long as on rank 0, the latter no longer than usual_ns: rank 0's thread may have lost its core. */
static void move_group(struct fused_times *times, int64_t first_ns, int64_t last_ns,
                       int64_t usual_ns)
{
    int64_t out = times->out_ns - times->transferred_ns, after = after_of(times);
    if (after > usual_ns) {
        out = (int64_t)((double)out * (double)usual_ns / (double)after);
        after = usual_ns;
    }
    times->start_ns += first_ns - times->transfer_ns;
    times->transfer_ns = first_ns;
    times->transferred_ns = last_ns;
    times->out_ns = last_ns + out;
    times->end_ns = last_ns + after;
}

/* The upper quartile of what rank 0 did after a transfer. */
static int64_t usual_after(struct placing *p)
{
    size_t n = p->rounds->groups.n;
    int64_t *lengths = arena_array(&p->arena, n, sizeof *lengths);
    for (size_t g = 0; g < n; g++)
        lengths[g] = after_of(&p->rounds->groups.at[g].times);
    return n ? MAX(select_i64(lengths, n, n * 3 / 4), 0) : 0;
}

/* When the rank moved the bytes that the leading rank moved during each group. */
static void find_in_logs(struct placing *p, int lead, struct net_range *found)
{
    const struct net_transport *own = transport_of(p->trace, lead);
    size_t n = p->rounds->groups.n;
    struct net_range *ranges = arena_array(&p->arena, n, sizeof *ranges);
    for (size_t g = 0; g < n; g++)
        found[g] = (struct net_range){0, 0, INT64_MAX, INT64_MIN};
    for (uint32_t s = 0; own && s < own->connections.n * 2; s++) {
        uint32_t peer_stream;
        const struct net_transport *peer = net_peer(p->trace, own, s, &peer_stream);
        if (!peer || peer->rank != p->rank->rank ||
            own->first_transfer[s] == own->first_transfer[s + 1])
            continue;
        find_ranges(p->rounds, own, s, ranges);
        time_ranges(peer, peer_stream, n, ranges);
        for (size_t g = 0; g < n; g++) {
            found[g].first_ns = MIN(found[g].first_ns, ranges[g].first_ns);
            found[g].last_ns = MAX(found[g].last_ns, ranges[g].last_ns);
        }
    }
}

void thread_times_from_logs(struct placing *p, int lead)
{
    size_t n = p->rounds->groups.n;
    struct net_range *found = arena_array(&p->arena, n, sizeof *found);
    int64_t shift_ns = 0, usual_ns = usual_after(p);
    bool any = false;
    find_in_logs(p, lead, found);
    for (size_t g = 0; g < n; g++) {
        struct fused_times *times = &p->actual[g];
        if (found[g].first_ns < found[g].last_ns) {
            shift_ns = found[g].first_ns - times->transfer_ns;
            move_group(times, found[g].first_ns, found[g].last_ns, usual_ns);
            any = true;
        } else if (any) { /* as far off as the last one that was found */
            move_group(times, times->transfer_ns + shift_ns, times->transferred_ns + shift_ns,
                       usual_ns);
        }
    }
}

/* ---- a rank that wrote a timeline, too ---- */

/* By run of a timeline: how many of its tensor's came before. */
static const uint32_t *place_runs(struct arena *arena, const struct timeline *t)
{
    uint32_t *seen = arena_array(arena, t->tensors.n, sizeof *seen);
    uint32_t *place = arena_array(arena, t->runs.n, sizeof *place);
    for (size_t i = 0; i < t->runs.n; i++)
        place[i] = seen[t->runs.at[i].tensor]++;
    return place;
}

static uint64_t run_key(const struct timeline *t, size_t run, const uint32_t *place)
{
    return map_key((uint64_t)t->tensors.at[t->runs.at[run].tensor].name << 32 | place[run]);
}

/* The k-th run of a tensor is the same on both ranks. A group that the rank fused otherwise gets
 * the times of its tensors. */
void thread_times_from_own(struct placing *p)
{
    const struct timeline *lead = p->fusion->timeline, *own = p->rank->timeline;
    const uint32_t *place = place_runs(&p->arena, lead), *own_place = place_runs(&p->arena, own);
    SCRATCH struct map runs = {0};
    for (size_t i = 0; i < own->runs.n; i++)
        map_set(&runs, run_key(own, i, own_place), i);
    for (size_t g = 0; g < p->rounds->groups.n; g++) {
        const struct actual_group *group = &p->rounds->groups.at[g];
        struct fused_times times = FUSED_NOTHING;
        uint64_t run;
        for (uint32_t i = group->first; i < group->first + group->n; i++)
            if (map_get(&runs, run_key(lead, p->rounds->runs.at[i], place), &run))
                fused_widen(&times, &own->runs.at[run]);
        if (times.start_ns <= times.end_ns)
            p->actual[g] = times;
    }
    p->rank->fused.own_times = true;
}
