/* report/slices.c: ops as slices on tracks.
 *
 * A collective is shown as two slices, waiting for its last rank and then transferring, in the
 * measured iteration as in the replayed one, so that the two can be compared by eye. */
#include "report/slices.h"

#include <stdlib.h>

#include "base/error.h"
#include "graph/graph.h"

static bool is_drawn(const struct dpro_graph *g, dpro_op_id op)
{
    if (g->device[op] >= g->n_devices)
        return false;
    return g->dur_ns[op] > 0 || (g->kind[op] != DPRO_OP_IN && g->kind[op] != DPRO_OP_OUT &&
                                 g->kind[op] != DPRO_OP_BARRIER);
}

static bool was_seen(const struct dpro_graph *g, dpro_op_id op)
{
    if (!g->seen_start_ns || !g->seen_dur_ns || g->seen_dur_ns[op] < 0)
        return false;
    return g->seen_start_ns[op] != 0 || g->seen_dur_ns[op] != 0;
}

static void add(struct slice_track *track, int64_t start_ns, int64_t end_ns, dpro_op_id op,
                bool waiting, uint32_t collective)
{
    track->at[track->n++] = (struct slice){
        .start_ns = start_ns,
        .dur_ns = end_ns > start_ns ? end_ns - start_ns : 0,
        .op = op,
        .collective = collective,
        .waiting = waiting,
    };
}

/* What is known of an op that transfers for a collective; zeroed for others. */
struct wait {
    int64_t measured_ns;    /* before the last rank arrived, from the op's start */
    int64_t from_ns, to_ns; /* in the replay; may overlap with what the device did before */
    int64_t missing_ns;     /* at the front of the transfer, for ranks that the trace lacks */
    uint32_t collective;
};

static void find_waiting(const struct dpro_graph *g, const struct dpro_replay *replay,
                         struct wait *waits)
{
    for (uint32_t c = 0; c < g->n_collectives; c++) {
        const struct graph_member *m = g->members + g->collectives[c].first_member;
        uint32_t n = g->collectives[c].n_members;
        int64_t seen_last = INT64_MIN, last = INT64_MIN;
        for (uint32_t i = 0; i < n; i++) {
            int64_t arrived = dpro_replay_end_ns(replay, m[i].arrival);
            last = arrived > last ? arrived : last;
            if (was_seen(g, m[i].transfer) && g->seen_start_ns[m[i].transfer] > seen_last)
                seen_last = g->seen_start_ns[m[i].transfer];
        }
        for (uint32_t i = 0; i < n; i++) {
            uint32_t op = m[i].transfer;
            int64_t start = dpro_replay_start_ns(replay, op);
            struct wait *wait = &waits[op];
            *wait = (struct wait){.from_ns = dpro_replay_end_ns(replay, m[i].arrival),
                                  .to_ns = last < start ? last : start,
                                  .missing_ns = g->collectives[c].missing_wait_ns,
                                  .collective = c};
            if (!was_seen(g, op))
                continue;
            wait->measured_ns = seen_last - g->seen_start_ns[op] + wait->missing_ns;
            if (wait->measured_ns > g->seen_dur_ns[op])
                wait->measured_ns = g->seen_dur_ns[op];
        }
    }
}

static int compare_slices(const void *a, const void *b)
{
    const struct slice *x = a, *y = b;
    if (x->start_ns != y->start_ns)
        return x->start_ns < y->start_ns ? -1 : 1;
    if (x->dur_ns != y->dur_ns)
        return x->dur_ns > y->dur_ns ? -1 : 1;
    if (x->op != y->op)
        return x->op < y->op ? -1 : 1;
    return y->waiting - x->waiting;
}

static int64_t end_of(const struct slice *s)
{
    return s->start_ns + s->dur_ns;
}

/* Viewers draw slices that overlap in part wrongly or not at all. Waiting gives way to work;
 * otherwise the earlier slice ends where the later one starts (the ends of CPU spans are off by a
 * clock tick now and then). `open` has room for the track's slices. */
static void tidy(struct slice_track *track, uint32_t *open)
{
    struct slice *s = track->at;
    uint32_t n_open = 0, kept = 0;
    int64_t busy_until = INT64_MIN;
    qsort(s, track->n, sizeof *s, compare_slices);
    for (uint32_t i = 0; i < track->n; i++) {
        struct slice now = s[i];
        if (now.waiting && now.start_ns < busy_until) {
            int64_t end = end_of(&now);
            if (end <= busy_until)
                continue;
            now.start_ns = busy_until;
            now.dur_ns = end - busy_until;
        }
        while (n_open > 0) {
            struct slice *top = &s[open[n_open - 1]];
            if (end_of(top) > now.start_ns && end_of(top) >= end_of(&now) && !top->waiting)
                break; /* nested */
            if (end_of(top) > now.start_ns)
                top->dur_ns = now.start_ns > top->start_ns ? now.start_ns - top->start_ns : 0;
            n_open--;
        }
        if (!now.waiting && end_of(&now) > busy_until)
            busy_until = end_of(&now);
        s[kept] = now;
        open[n_open++] = kept++;
    }
    track->n = kept;
    /* a waiting slice that was moved may have passed one that started before its new place */
    qsort(s, track->n, sizeof *s, compare_slices);
}

int slices_init(struct slices *slices, const struct dpro_graph *g, const struct dpro_replay *replay,
                struct dpro_error *err)
{
    *slices = (struct slices){.n_devices = g->n_devices};
    struct wait *waits = calloc((size_t)g->n_ops + 1, sizeof *waits);
    uint32_t *open = malloc(((size_t)g->n_ops * 2 + 1) * sizeof *open);
    slices->all = calloc((size_t)g->n_ops * 4 + 1, sizeof *slices->all);
    slices->measured = calloc((size_t)g->n_devices * 2 + 1, sizeof *slices->measured);
    if (!waits || !open || !slices->all || !slices->measured) {
        free(open);
        free(waits);
        slices_fini(slices);
        return dpro_error_nomem(err);
    }
    slices->replayed = slices->measured + g->n_devices;
    find_waiting(g, replay, waits);

    /* room for two slices an op in each of a device's tracks */
    for (dpro_op_id op = 0; op < g->n_ops; op++)
        if (is_drawn(g, op))
            slices->measured[g->device[op]].n += 2;
    struct slice *at = slices->all;
    for (uint32_t d = 0; d < g->n_devices; d++) {
        uint32_t room = slices->measured[d].n;
        slices->measured[d] = (struct slice_track){.at = at};
        slices->replayed[d] = (struct slice_track){.at = at + room};
        at += (size_t)room * 2;
    }
    for (dpro_op_id op = 0; op < g->n_ops; op++) {
        if (!is_drawn(g, op))
            continue;
        const struct wait *wait = &waits[op];
        struct slice_track *track = &slices->replayed[g->device[op]];
        int64_t start = dpro_replay_start_ns(replay, op), end = dpro_replay_end_ns(replay, op);
        int64_t missing = wait->missing_ns < end - start ? wait->missing_ns : end - start;
        int64_t wait_end = missing > 0 ? start + missing : wait->to_ns;
        if (wait_end > wait->from_ns)
            add(track, wait->from_ns, wait_end, op, true, wait->collective);
        add(track, start + missing, end, op, false, 0);
        if (!was_seen(g, op))
            continue;
        track = &slices->measured[g->device[op]];
        start = g->seen_start_ns[op];
        end = start + g->seen_dur_ns[op];
        if (wait->measured_ns > 0)
            add(track, start, start + wait->measured_ns, op, true, wait->collective);
        add(track, start + wait->measured_ns, end, op, false, 0);
    }
    for (uint32_t d = 0; d < g->n_devices; d++) {
        tidy(&slices->measured[d], open);
        tidy(&slices->replayed[d], open);
    }
    free(open);
    free(waits);
    return 0;
}

void slices_fini(struct slices *slices)
{
    free(slices->all);
    free(slices->measured);
    *slices = (struct slices){0};
}

uint32_t slices_last_member(const struct dpro_graph *g, const struct dpro_replay *replay,
                            uint32_t collective)
{
    const struct graph_collective *c = &g->collectives[collective];
    uint32_t last = c->first_member;
    for (uint32_t m = c->first_member; m < c->first_member + c->n_members; m++)
        if (dpro_replay_end_ns(replay, g->members[m].arrival) >
            dpro_replay_end_ns(replay, g->members[last].arrival))
            last = m;
    return last;
}
