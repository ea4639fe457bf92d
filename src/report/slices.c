/* The ops of an iteration as slices on tracks.
 *
 * A collective is two slices, waiting for its last rank and transferring, in the measured iteration
 * as in the replayed one, so that the two can be compared by eye. */
#include "report/slices.h"

#include "graph/graph.h"

static bool was_seen(const struct dpro_graph *g, dpro_op_id op)
{
    if (!g->seen_start_ns || !g->seen_dur_ns || g->seen_dur_ns[op] < 0)
        return false;
    return g->seen_start_ns[op] != 0 || g->seen_dur_ns[op] != 0;
}

bool slices_draw(const struct dpro_graph *g, dpro_op_id op, bool replayed)
{
    if (g->device[op] >= g->n_devices || (!replayed && !was_seen(g, op)))
        return false;
    return g->dur_ns[op] > 0 || (g->kind[op] != DPRO_OP_IN && g->kind[op] != DPRO_OP_OUT &&
                                 g->kind[op] != DPRO_OP_BARRIER);
}

static void slices_add(struct slice_track *track, int64_t start_ns, int64_t end_ns, dpro_op_id op)
{
    track->at[track->n++] = (struct drawn_slice){
        .start_ns = start_ns, .dur_ns = end_ns > start_ns ? end_ns - start_ns : 0, .op = op};
}

/* What is known of an op that transfers for a collective. */
struct slices_wait {
    int64_t measured_ns;    /* before the last rank arrived, from the op's start */
    int64_t from_ns, to_ns; /* in the replay */
    int64_t missing_ns;     /* at the front of the transfer, for ranks that the trace lacks */
    uint32_t collective;
    bool known;        /* it is a collective's */
    bool has_messages; /* between the last arrival and the replayed op */
};

struct waits {
    struct slices_wait *at; /* [0], zeroed: of all other ops */
    uint32_t *of;           /* by op, into `at` */
};

static void find_waiting(const struct dpro_graph *g, const struct dpro_replay_view *replay,
                         struct waits *waits)
{
    uint32_t n_waits = 0;
    for (uint32_t c = 0; c < g->n_collectives; c++) {
        const struct graph_member *m = g->members + g->collectives[c].first_member;
        uint32_t n = g->collectives[c].n_members;
        int64_t seen_last = INT64_MIN, last = INT64_MIN;
        for (uint32_t i = 0; i < n; i++) {
            int64_t arrived = replay->end_ns[m[i].arrival];
            last = arrived > last ? arrived : last;
            if (was_seen(g, m[i].transfer) && g->seen_start_ns[m[i].transfer] > seen_last)
                seen_last = g->seen_start_ns[m[i].transfer];
        }
        for (uint32_t i = 0; i < n; i++) {
            uint32_t op = m[i].transfer;
            int64_t start = replay->start_ns[op];
            waits->of[op] = waits->of[op] ? waits->of[op] : ++n_waits;
            struct slices_wait *wait = &waits->at[waits->of[op]];
            *wait = (struct slices_wait){.from_ns = replay->end_ns[m[i].arrival],
                                         .to_ns = last < start ? last : start,
                                         .missing_ns = g->collectives[c].missing_wait_ns,
                                         .collective = c,
                                         .known = true,
                                         .has_messages = g->collectives[c].n_messages > 0};
            if (!was_seen(g, op))
                continue;
            wait->measured_ns = seen_last - g->seen_start_ns[op] + wait->missing_ns;
            if (wait->measured_ns > g->seen_dur_ns[op])
                wait->measured_ns = g->seen_dur_ns[op];
        }
    }
}

ORDER(by_place, struct drawn_slice, ASCENDING(start_ns) ?: DESCENDING(dur_ns) ?: ASCENDING(op));
ORDER(by_start, struct drawn_slice, by_place(x, y) ?: DESCENDING(waiting));

static int64_t end_of(const struct drawn_slice *s)
{
    return s->start_ns + s->dur_ns;
}

/* Viewers draw slices that overlap in part wrongly or not at all: the earlier one ends where the
 * later one starts (the ends of CPU spans are off by a clock tick now and then). `open` has room
 * for the track's slices. */
static void slices_tidy(struct slice_track *track, uint32_t *open)
{
    struct drawn_slice *s = track->at;
    uint32_t n_open = 0;
    qsort(s, track->n, sizeof *s, by_start);
    for (uint32_t i = 0; i < track->n; i++) {
        while (n_open > 0) {
            struct drawn_slice *top = &s[open[n_open - 1]];
            if (end_of(top) > s[i].start_ns && end_of(top) >= end_of(&s[i]))
                break; /* nested */
            if (end_of(top) > s[i].start_ns)
                top->dur_ns = s[i].start_ns - top->start_ns;
            n_open--;
        }
        open[n_open++] = i;
    }
}

/* Puts waiting before the transfers of a tidy track that has room for it: in the measured iteration
 * it is the front of what the profiler saw, in the replay the time since the rank arrived, as far
 * as the device did nothing else in it. */
static void split_waiting(struct slice_track *track, const struct waits *waits,
                          struct drawn_slice *scratch)
{
    uint32_t n = track->n;
    int64_t busy_until = INT64_MIN;
    if (n == 0)
        return;
    memcpy(scratch, track->at, n * sizeof *scratch);
    track->n = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct drawn_slice transfer = scratch[i], waiting = transfer;
        const struct slices_wait *wait = &waits->at[waits->of[transfer.op]];
        int64_t end = end_of(&transfer), from = transfer.start_ns, to;
        int64_t front = track->replayed ? wait->missing_ns : wait->measured_ns;
        front = front < transfer.dur_ns ? front : transfer.dur_ns;
        to = track->replayed && wait->known && front == 0 ? wait->to_ns : from + front;
        if (track->replayed && wait->known)
            from = wait->from_ns > busy_until ? wait->from_ns : busy_until;
        if (to > from) {
            waiting.start_ns = from;
            waiting.dur_ns = to - from;
            waiting.collective = wait->collective & INT32_MAX;
            waiting.waiting = true;
            track->at[track->n++] = waiting;
        }
        transfer.start_ns += front;
        if (track->replayed && wait->has_messages)
            transfer.start_ns = wait->to_ns;
        transfer.dur_ns = end - transfer.start_ns;
        track->at[track->n++] = transfer;
        busy_until = end > busy_until ? end : busy_until;
    }
}

/* Counts each track's slices, waiting included, in its `n`; returns the most that one has. */
static uint32_t count_slices(const struct dpro_graph *g, const struct waits *waits,
                             struct slices *slices)
{
    uint32_t most = 0;
    for (dpro_op_id op = 0; op < g->n_ops; op++) {
        if (!slices_draw(g, op, true))
            continue;
        struct slice_track *tracks = &slices->tracks[2 * g->device[op]];
        uint32_t n = waits->of[op] ? 2 : 1;
        tracks[0].n += was_seen(g, op) ? n : 0;
        tracks[1].n += n;
    }
    for (uint32_t t = 0; t < slices->n_tracks; t++)
        most = MAX(most, slices->tracks[t].n);
    return most;
}

void slices_init(struct slices *slices, const struct dpro_graph *g,
                 const struct dpro_replay_view *replay)
{
    *slices = (struct slices){.n_tracks = g->n_devices * 2};
    struct arena work = {0};
    struct waits waits = {arena_array(&work, g->n_members + (size_t)1, sizeof *waits.at),
                          arena_array(&work, g->n_ops + (size_t)1, sizeof *waits.of)};
    slices->tracks =
        arena_array(&slices->arena, (size_t)slices->n_tracks + 1, sizeof *slices->tracks);
    find_waiting(g, replay, &waits);
    size_t most = count_slices(g, &waits, slices);
    uint32_t *open = arena_alloc(&work, most * sizeof *open);
    struct drawn_slice *scratch = arena_alloc(&work, most * sizeof *scratch);
    for (uint32_t t = 0; t < slices->n_tracks; t++) {
        struct drawn_slice *at = arena_alloc(&slices->arena, slices->tracks[t].n * sizeof *at);
        slices->tracks[t] = (struct slice_track){.at = at, .device = t / 2, .replayed = t % 2};
    }
    for (dpro_op_id op = 0; op < g->n_ops; op++) {
        if (!slices_draw(g, op, true))
            continue;
        struct slice_track *tracks = &slices->tracks[2 * g->device[op]];
        slices_add(&tracks[1], replay->start_ns[op], replay->end_ns[op], op);
        if (was_seen(g, op))
            slices_add(&tracks[0], g->seen_start_ns[op], g->seen_start_ns[op] + g->seen_dur_ns[op],
                       op);
    }
    for (uint32_t t = 0; t < slices->n_tracks; t++) {
        slices_tidy(&slices->tracks[t], open);
        split_waiting(&slices->tracks[t], &waits, scratch);
        slices_tidy(&slices->tracks[t], open); /* what was nested in a transfer, or in its front */
    }
    arena_fini(&work);
}

void slices_fini(struct slices *slices)
{
    arena_fini(&slices->arena);
}

static int64_t arrival_of(const struct dpro_graph *g, const struct dpro_replay_view *replay,
                          const struct graph_member *member)
{
    if (replay)
        return replay->end_ns[member->arrival];
    bool seen = g->seen_start_ns && g->seen_dur_ns && g->seen_dur_ns[member->transfer] >= 0;
    return seen ? g->seen_start_ns[member->transfer] : INT64_MIN;
}

uint32_t slices_last_member(const struct dpro_graph *g, const struct dpro_replay_view *replay,
                            uint32_t collective)
{
    const struct graph_collective *c = &g->collectives[collective];
    uint32_t last = c->first_member;
    for (uint32_t m = c->first_member; m < c->first_member + c->n_members; m++)
        if (arrival_of(g, replay, &g->members[m]) > arrival_of(g, replay, &g->members[last]))
            last = m;
    return last;
}
