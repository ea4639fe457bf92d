/* Edges from calls to their work, and of order on threads and streams. */

#include "graph/local/local_edges.h"

void rule_index_slices(struct rank_build *rank)
{
    rank->op_of_slice = mem_alloc((rank->slices.n + 1) * sizeof *rank->op_of_slice);
    memset(rank->op_of_slice, 0xFF, (rank->slices.n + 1) * sizeof *rank->op_of_slice);
    for (uint32_t s = 0; s < rank->steps.n; s++)
        for (uint32_t o = (uint32_t)rank->ops.n; o-- > 0;) { /* a collective's: its arrival */
            uint32_t slice = rank->match[build_at(rank, s, o)];
            if (slice != NO_ID)
                rank->op_of_slice[slice] = o;
        }
}

/* A call hands over at the latest when its work starts; what remains of the call is its own affair
 * and shows as the gap of the thread's next op. So a kernel never starts before its launch has
 * ended. */
void rule_trim_launches(struct rank_build *rank)
{
    for (uint32_t o = 0; o < rank->ops.n; o++) {
        const struct local_op *op = &rank->ops.at[o];
        if (op->slice == NO_ID || (op->flags & GRAPH_OP_GPU) ||
            rank->slices.at[op->slice].launch == NO_ID)
            continue;
        for (uint32_t s = 0; s < rank->steps.n; s++) {
            uint32_t slice = rank->match[build_at(rank, s, o)];
            int64_t *end = step_end(rank, s, o);
            if (slice == NO_ID)
                continue;
            for (uint32_t work = rank->slices.at[slice].launch; work != NO_ID;
                 work = rank->slices.at[work].next)
                *end = MIN(*end, rank->slices.at[work].start_ns);
            *end = MAX(*end, *step_start(rank, s, o));
        }
    }
}

/* How long the head of a copying call took by itself: what it waited for its stream is not its own,
 * where the call was still there when its work started. */
static int64_t head_of_copy(const struct rank_build *rank, uint32_t step, uint32_t call,
                            uint32_t before)
{
    int64_t start = *step_start(rank, step, call), end = *step_end(rank, step, call);
    uint32_t work = rank->slices.at[rank->match[build_at(rank, step, call)]].launch;
    int64_t over = before == NO_ID ? ABSENT : *step_end(rank, step, before);
    if (work != NO_ID && rank->slices.at[work].start_ns == end && over > start)
        return over < end ? end - over : 0;
    return end - start;
}

/* A copying call that blocks may wait for its stream before its work starts. That wait belongs to
 * the stream: the head is as long as the shortest one, the rest shows as the work's own delay, if
 * any. */
void rule_trim_copies(struct rank_build *rank)
{
    SCRATCH uint32_t *before = local_ops_before(rank);
    for (uint32_t o = 0; o < rank->ops.n; o++) {
        const struct local_op *op = &rank->ops.at[o];
        if (op->slice == NO_ID || !(rank->classes[op->name] & NAME_COPY_CALL) ||
            rank->slices.at[op->slice].launch == NO_ID || (op->flags & GRAPH_OP_GPU))
            continue;
        uint32_t work = rank->op_of_slice[rank->slices.at[op->slice].launch];
        int64_t shortest = INT64_MAX;
        for (int pass = 0; pass < 2; pass++)
            for (uint32_t s = 0; s < rank->steps.n; s++) {
                int64_t start = *step_start(rank, s, o), *end = step_end(rank, s, o);
                if (start == ABSENT)
                    continue;
                int64_t head = head_of_copy(rank, s, o, work == NO_ID ? NO_ID : before[work]);
                if (pass == 0)
                    shortest = MIN(shortest, head);
                else
                    *end = MIN(*end, start + shortest);
            }
    }
}

/* Of those that run as they come, between two ops of a device: each is before the later one. */
static void add_in_turn(struct rank_build *rank, uint32_t after, uint32_t before, uint32_t to,
                        bool next)
{
    uint32_t device = rank->ops.at[to].device;
    for (uint32_t o = after == NO_ID ? 0 : after + 1; o < before && rank->updates.in_turn; o++)
        if (rank->ops.at[o].device == device && local_is_in_turn(rank, o))
            local_add_edge(rank, o, to, next, false);
}

void rule_device_order(struct rank_build *rank)
{
    size_t n_devices = rank->devices.n;
    SCRATCH uint32_t *first = mem_alloc((n_devices + 1) * 2 * sizeof *first);
    uint32_t *last = first + n_devices + 1;
    memset(first, 0xFF, (n_devices + 1) * 2 * sizeof *first);
    for (uint32_t o = 0; o < rank->ops.n; o++) {
        uint32_t device = rank->ops.at[o].device, track = rank->ops.at[o].track;
        if (device == NO_ID || local_in_pool(rank, device) ||
            rank->devices.at[device].kind == DPRO_DEVICE_LINK_RX)
            continue;
        if (track != NO_ID && build_is_pool(rank, &rank->tracks.at[track])) {
            if (last[device] != NO_ID && !dfg_is_known(rank))
                local_add_if_holds(rank, last[device], o, false);
            last[device] = o;
            continue;
        }
        if (last[device] != NO_ID) { /* by rounding it may reach into its successor */
            local_cut_end(rank, last[device], o);
            local_add_edge(rank, last[device], o, false, false);
        }
        if (local_is_in_turn(rank, o))
            continue;
        add_in_turn(rank, last[device], o, o, false);
        if (last[device] == NO_ID)
            first[device] = o;
        last[device] = o;
    }
    for (size_t d = 0; d < n_devices; d++)
        if (first[d] != NO_ID) {
            local_add_edge(rank, last[d], first[d], true, false);
            add_in_turn(rank, last[d], (uint32_t)rank->ops.n, first[d], true);
        }
}

/* A collective on a communication thread: arrival, then transfer. Which thread ran it is chance, so
 * there is no order on those; see comm_thread_queue.c. */
void rule_transfers(struct rank_build *rank)
{
    for (uint32_t o = 0; o < rank->ops.n; o++) {
        const struct local_op *op = &rank->ops.at[o];
        if ((op->device == NO_ID || local_in_pool(rank, op->device)) &&
            (op->flags & GRAPH_OP_ARRIVAL))
            local_add_edge(rank, o, o + 1, false, false);
    }
}

/* The main thread's last op ends the iteration; the next one begins after that. */
void rule_thread_boundary(struct rank_build *rank)
{
    uint32_t first = NO_ID, last = NO_ID;
    for (uint32_t o = 0; o < rank->ops.n; o++) {
        const struct local_op *op = &rank->ops.at[o];
        if (op->track == NO_ID || rank->tracks.at[op->track].source != rank->main_track)
            continue;
        if (first == NO_ID)
            first = o;
        last = o;
    }
    if (last == NO_ID && rank->boundary > 0) { /* device work only: the last op of all */
        last = local_end_op(rank, rank->boundary - 1);
        first = 0;
    }
    if (last != NO_ID) {
        local_add_edge(rank, last, rank->boundary, false, false);
        local_add_edge(rank, rank->boundary, first, true, false);
    }
}

/* Whether a call may have asked for a collective. The calls of sharded training list the whole
 * tensor first where the collective has one rank's part, or the other way round, and gloo does a
 * reduce-scatter as an all-reduce. */
static bool may_have_asked(const struct local_collective *asked,
                           const struct local_collective *coll)
{
    bool scatters = asked->kind == DPRO_REDUCE_SCATTER;
    bool gathers = asked->kind == DPRO_ALL_GATHER;
    bool same_kind = !asked->kind || asked->kind == coll->kind;
    if (!same_kind && !(scatters && coll->kind == DPRO_ALL_REDUCE))
        return false;
    if (!asked->numel || !coll->numel || asked->numel == coll->numel ||
        coll->kind == DPRO_ALL_TO_ALL) /* what comes in is listed first */
        return true;
    return (scatters || gathers) &&
           MAX(asked->numel, coll->numel) % MIN(asked->numel, coll->numel) == 0;
}

/* The group's name may be in a window that others are not in: with the execution trace. */
static void learn_group(const struct rank_build *rank, uint32_t call, struct local_collective *coll)
{
    for (uint32_t s = 0; s < rank->steps.n && !coll->group; s++) {
        uint32_t slice = rank->match[build_at(rank, s, call)];
        struct local_collective seen = {.sequence = -1, .peer = -1, .launch_span = NO_ID};
        if (slice == NO_ID)
            continue;
        build_learn_collective(rank, rank->slices.at[slice].span, &seen);
        coll->group = seen.group;
        coll->group_size = coll->group_size ? coll->group_size : seen.group_size;
    }
}

/* A transfer is drawn from the end of the call that posts it, which does so early. What the call
 * takes longer than the shortest of its kind, it takes after that: it may be held up. */
static void move_to_post(struct rank_build *rank, uint32_t call,
                         const struct local_collective *coll)
{
    const struct local_op *op = &rank->ops.at[coll->arrival];
    const struct trace_track *track = &rank->trace->tracks[slice_span(rank, op->slice)->track];
    int64_t shortest = INT64_MAX;
    for (uint32_t pass = 0; pass < 2 && track->posted && !track->announced; pass++)
        for (uint32_t s = 0; s < rank->steps.n; s++) {
            int64_t called = *step_start(rank, s, call);
            size_t arrival = build_at(rank, s, coll->arrival);
            int64_t begins = rank->start_ns[arrival];
            if (called == ABSENT || begins == ABSENT || begins < called)
                continue;
            if (pass == 0)
                shortest = MIN(shortest, begins - called);
            else
                rank->start_ns[arrival] = rank->end_ns[arrival] =
                    *step_start(rank, s, coll->transfer) = called + shortest;
        }
}

/* What a collective is known by is learnt from the call, too, which is over when it begins. */
static void add_comm_launch(struct rank_build *rank, uint32_t call, struct local_collective *coll)
{
    uint32_t span = rank->slices.at[rank->ops.at[call].slice].span;
    move_to_post(rank, call, coll);
    build_learn_collective(rank, span, coll);
    coll->launch_span = span;
    coll->launch_op = call;
    learn_group(rank, call, coll);
    for (uint32_t s = 0; s < rank->steps.n; s++) {
        int64_t begins = *step_start(rank, s, coll->arrival);
        int64_t *end = step_end(rank, s, call);
        if (begins != ABSENT && *end != ABSENT && begins >= *step_start(rank, s, call))
            *end = MIN(*end, begins);
    }
    local_add_if_holds(rank, call, coll->arrival, false);
}

/* The framework's calls in order; each collective takes the first free one that fits. */
void rule_comm_launches(struct rank_build *rank)
{
    SCRATCH ARRAY(uint32_t) calls = {0};
    uint32_t last_span = NO_ID;
    for (uint32_t o = 0; o < rank->ops.n; o++) {
        if (!local_on_thread(rank, o) || !(rank->classes[rank->ops.at[o].name] & NAME_COMM_CALL))
            continue;
        uint32_t span = rank->slices.at[rank->ops.at[o].slice].span;
        if (span != last_span)
            array_push(&calls, o);
        last_span = span;
    }
    size_t first = 0; /* not taken yet */
    EACH (struct local_collective, coll, rank->collectives) {
        if (rank->tracks.at[rank->ops.at[coll->arrival].track].kind != DPRO_DEVICE_COMM_THREAD)
            continue;
        int64_t start = local_start(rank, coll->arrival);
        while (first < calls.n && calls.at[first] == NO_ID)
            first++;
        for (size_t i = first; i < calls.n; i++) {
            uint32_t call = calls.at[i];
            if (call == NO_ID)
                continue;
            if (local_start(rank, call) > start)
                break;
            struct local_collective asked = {.sequence = -1, .peer = -1, .launch_span = NO_ID};
            build_learn_collective(rank, rank->slices.at[rank->ops.at[call].slice].span, &asked);
            if (!may_have_asked(&asked, coll))
                continue;
            calls.at[i] = NO_ID;
            add_comm_launch(rank, call, coll);
            break;
        }
    }
}
