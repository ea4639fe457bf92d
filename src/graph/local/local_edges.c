/* graph/local/local_edges.c: what must wait for what within one rank.
 *
 * Order on a thread or stream, launch -> device work, and recorded synchronization are facts. The
 * rest is read off the timeline and kept only where it holds in every measured iteration (nine in
 * ten, and never off by more than a thousandth of the iteration, to survive the clocks): an edge
 * that holds never delays the replay of what was measured, it decides what happens when something
 * else changes. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/sort.h"
#include "graph/local/framework_graph.h"
#include "graph/local/local_edges.h"
#include "graph/names/span_names.h"
#include "graph/rank_build.h"

enum { HANDOVER_NS = 5000 };

static size_t at(const struct rank_build *rank, uint32_t step, uint32_t op)
{
    return (size_t)step * rank->n_timed + op;
}

int64_t local_pred_end(const struct rank_build *rank, uint32_t step, uint32_t op, bool next)
{
    if (!next)
        return rank->end_ns[at(rank, step, op)];
    if (op == rank->boundary)
        return rank->steps.at[step].start_ns;
    return rank->steps.at[step].follows ? rank->end_ns[at(rank, step - 1, op)] : ABSENT;
}

bool local_holds(const struct rank_build *rank, uint32_t from, uint32_t to, bool next, bool to_end)
{
    uint32_t seen = 0, held = 0;
    for (uint32_t i = 0; i < rank->n_samples; i++) {
        uint32_t s = rank->sample_step[i];
        int64_t end = local_pred_end(rank, s, from, next);
        int64_t start = to_end ? rank->end_ns[at(rank, s, to)] : rank->start_ns[at(rank, s, to)];
        if (end == ABSENT || start == ABSENT)
            continue;
        seen++;
        if (start >= end - LOCAL_ROUNDING_NS)
            held++;
        else if (end - start > (rank->steps.at[s].end_ns - rank->steps.at[s].start_ns) / 1000)
            return false; /* it would delay this iteration by what can be seen */
    }
    return seen > 0 && held * 10 >= seen * 9;
}

int local_add_edge(struct rank_build *rank, uint32_t from, uint32_t to, bool next, bool soft)
{
    if (from == to && !next)
        return 0;
    struct local_edge edge = {from, to, next, soft};
    return array_push(&rank->edges, edge);
}

/* Within an iteration soft edges follow the order of ends in the reference iteration, as the hard
 * ones do, so that together they close no cycle: clocks' rounding lets tiny ops hold both ways. */
static bool in_order(const struct rank_build *rank, uint32_t from, uint32_t to)
{
    int64_t a = rank->end_ns[at(rank, rank->steps.reference, from)];
    int64_t b = rank->end_ns[at(rank, rank->steps.reference, to)];
    return a < b || (a == b && from < to);
}

int local_add_if_holds(struct rank_build *rank, uint32_t from, uint32_t to, bool next)
{
    if (from == to || (!next && !in_order(rank, from, to)) ||
        !local_holds(rank, from, to, next, false))
        return 0;
    return local_add_edge(rank, from, to, next, true);
}

int local_add_completion(struct rank_build *rank, uint32_t transfer, uint32_t to, bool known)
{
    uint32_t seen = 0, held = 0, begun = 0;
    for (uint32_t i = 0; i < rank->n_samples; i++) {
        uint32_t s = rank->sample_step[i];
        int64_t start = rank->start_ns[at(rank, s, transfer)],
                end = rank->end_ns[at(rank, s, transfer)];
        int64_t went_on = rank->start_ns[at(rank, s, to)];
        if (start == ABSENT || went_on == ABSENT)
            continue;
        seen++;
        held += went_on >= end - LOCAL_ROUNDING_NS;
        begun += went_on > start;
    }
    if (seen == 0 || begun * 10 < seen * 9 || (!known && held * 2 < seen))
        return 0;
    for (uint32_t s = 0; s < rank->steps.n; s++) {
        int64_t start = rank->start_ns[at(rank, s, to)];
        int64_t *end = &rank->end_ns[at(rank, s, transfer)];
        if (start != ABSENT && *end != ABSENT && start < *end &&
            start > rank->start_ns[at(rank, s, transfer)])
            *end = start;
    }
    return local_add_edge(rank, transfer, to, false, true);
}

uint32_t local_end_op(const struct rank_build *rank, uint32_t op)
{
    return rank->ops.at[op].flags & GRAPH_OP_ARRIVAL ? op + 1 : op;
}

/* ---- launches ---- */

/* A call hands over at the latest when its work starts; what remains of the call is its own affair
 * and shows as the gap of the thread's next op. So a kernel never starts before its launch has
 * ended. */
static void trim_launches(struct rank_build *rank)
{
    for (uint32_t o = 0; o < rank->ops.n; o++) {
        const struct local_op *op = &rank->ops.at[o];
        if (op->slice == NO_ID || op->track == NO_ID || (op->flags & GRAPH_OP_GPU) ||
            rank->slices.at[op->slice].launch == NO_ID)
            continue;
        for (uint32_t s = 0; s < rank->steps.n; s++) {
            uint32_t slice = rank->match[at(rank, s, o)];
            int64_t *end = &rank->end_ns[at(rank, s, o)];
            if (slice == NO_ID)
                continue;
            for (uint32_t work = rank->slices.at[slice].launch; work != NO_ID;
                 work = rank->slices.at[work].next)
                if (rank->slices.at[work].start_ns < *end)
                    *end = rank->slices.at[work].start_ns;
            if (*end < rank->start_ns[at(rank, s, o)])
                *end = rank->start_ns[at(rank, s, o)];
        }
    }
}

/* By op: the device work before it on its stream; NO_ID: none in the iteration. */
static uint32_t *find_work_before(const struct rank_build *rank)
{
    uint32_t *before = mem_alloc((rank->ops.n + 1) * sizeof *before);
    uint32_t *last = mem_alloc((rank->devices.n + 1) * sizeof *last);
    if (before && last) {
        memset(last, 0xFF, (rank->devices.n + 1) * sizeof *last);
        for (uint32_t o = 0; o < rank->ops.n; o++) {
            before[o] = NO_ID;
            if (rank->ops.at[o].flags & GRAPH_OP_GPU) {
                before[o] = last[rank->ops.at[o].device];
                last[rank->ops.at[o].device] = o;
            }
        }
    } else {
        mem_free(before);
        before = NULL;
    }
    mem_free(last);
    return before;
}

/* How long the head of a copying call took by itself: what it waited for its stream is not its own,
 * where the call was still there when its work started. */
static int64_t head_of_copy(const struct rank_build *rank, uint32_t step, uint32_t call,
                            uint32_t before)
{
    int64_t start = rank->start_ns[at(rank, step, call)], end = rank->end_ns[at(rank, step, call)];
    uint32_t work = rank->slices.at[rank->match[at(rank, step, call)]].launch;
    int64_t over = before == NO_ID ? ABSENT : rank->end_ns[at(rank, step, before)];
    if (work != NO_ID && rank->slices.at[work].start_ns == end && over > start)
        return over < end ? end - over : 0;
    return end - start;
}

/* A copying call that blocks may wait for its stream before its work starts. That wait belongs to
 * the stream: the head is as long as the shortest one, the rest shows as the work's own delay, if
 * any. */
static int trim_copy_heads(struct rank_build *rank, const uint32_t *op_of_slice)
{
    uint32_t *before = find_work_before(rank);
    if (!before)
        return -1;
    for (uint32_t o = 0; o < rank->ops.n; o++) {
        const struct local_op *op = &rank->ops.at[o];
        if (op->slice == NO_ID || !(rank->classes[op->name] & NAME_COPY_CALL) ||
            rank->slices.at[op->slice].launch == NO_ID || (op->flags & GRAPH_OP_GPU))
            continue;
        uint32_t work = op_of_slice[rank->slices.at[op->slice].launch];
        int64_t shortest = INT64_MAX;
        for (int pass = 0; pass < 2; pass++)
            for (uint32_t s = 0; s < rank->steps.n; s++) {
                int64_t start = rank->start_ns[at(rank, s, o)],
                        *end = &rank->end_ns[at(rank, s, o)];
                if (start == ABSENT)
                    continue;
                int64_t head = head_of_copy(rank, s, o, work == NO_ID ? NO_ID : before[work]);
                if (pass == 0 && head < shortest)
                    shortest = head;
                if (pass == 1 && *end > start + shortest)
                    *end = start + shortest;
            }
    }
    mem_free(before);
    return 0;
}

/* One thing at a time: rounding must not let an op reach into its successor on the device. */
static void trim_overlaps(struct rank_build *rank, uint32_t before, uint32_t after)
{
    for (uint32_t s = 0; s < rank->steps.n; s++) {
        int64_t *end = &rank->end_ns[at(rank, s, before)];
        int64_t start = rank->start_ns[at(rank, s, after)];
        if (*end == ABSENT || start == ABSENT || *end <= start)
            continue;
        *end = start > rank->start_ns[at(rank, s, before)] ? start
                                                           : rank->start_ns[at(rank, s, before)];
    }
}

bool local_in_pool(const struct rank_build *rank, uint32_t device)
{
    const struct graph_device *d = &rank->devices.at[device]; /* its name is still its track */
    return d->kind == DPRO_DEVICE_COMM_THREAD && !rank->trace->tracks[d->name].serial;
}

/* Of those that run as they come, between two ops of a device: each is before the later one. */
static int add_in_turn(struct rank_build *rank, uint32_t after, uint32_t before, uint32_t to,
                       bool next)
{
    uint32_t device = rank->ops.at[to].device;
    for (uint32_t o = after == NO_ID ? 0 : after + 1; o < before && rank->updates.in_turn; o++)
        if (rank->ops.at[o].device == device && local_is_in_turn(rank, o) &&
            local_add_edge(rank, o, to, next, false) < 0)
            return -1;
    return 0;
}

static int add_device_order(struct rank_build *rank)
{
    size_t n_devices = rank->devices.n;
    uint32_t *first = mem_alloc((n_devices + 1) * 2 * sizeof *first);
    if (!first)
        return -1;
    uint32_t *last = first + n_devices + 1;
    memset(first, 0xFF, (n_devices + 1) * 2 * sizeof *first);
    int status = 0;
    for (uint32_t o = 0; o < rank->ops.n && status == 0; o++) {
        uint32_t device = rank->ops.at[o].device;
        if (device == NO_ID || local_in_pool(rank, device))
            continue;
        if (rank->devices.at[device].kind == DPRO_DEVICE_LINK_RX)
            continue;
        if (local_is_pooled(rank, o)) {
            if (last[device] != NO_ID && !dfg_is_known(rank))
                status = local_add_if_holds(rank, last[device], o, false);
            last[device] = o;
            continue;
        }
        if (last[device] != NO_ID) {
            trim_overlaps(rank, last[device], o);
            status = local_add_edge(rank, last[device], o, false, false);
        }
        if (local_is_in_turn(rank, o))
            continue;
        if (status == 0)
            status = add_in_turn(rank, last[device], o, o, false);
        if (last[device] == NO_ID)
            first[device] = o;
        last[device] = o;
    }
    for (size_t d = 0; d < n_devices && status == 0; d++)
        if (first[d] != NO_ID) {
            status = local_add_edge(rank, last[d], first[d], true, false);
            if (status == 0)
                status = add_in_turn(rank, last[d], (uint32_t)rank->ops.n, first[d], true);
        }
    mem_free(first);
    return status;
}

/* A collective on a communication thread: arrival, then transfer. Which thread ran it is chance, so
 * there is no order on those; see comm_thread_queue.c. */
static int add_comm_order(struct rank_build *rank)
{
    for (uint32_t o = 0; o < rank->ops.n; o++) {
        const struct local_op *op = &rank->ops.at[o];
        if ((op->device == NO_ID || local_in_pool(rank, op->device)) &&
            (op->flags & GRAPH_OP_ARRIVAL) && local_add_edge(rank, o, o + 1, false, false) < 0)
            return -1;
    }
    return 0;
}

/* The main thread's last op ends the iteration; the next one begins after that. Or all exchanges
 * have begun, whatever the main thread does. */
static int add_boundary(struct rank_build *rank)
{
    if (local_has_executor(rank))
        return local_add_executor_boundary(rank);
    if (rank->steps.end_with_exchange)
        return local_add_exchange_boundary(rank);
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
    if (last != NO_ID && local_add_edge(rank, last, rank->boundary, false, false) < 0)
        return -1;
    return first != NO_ID ? local_add_edge(rank, rank->boundary, first, true, false) : 0;
}

/* ---- collectives that a CPU thread runs ---- */

/* Whether a call may have asked for a collective. The calls of sharded training list the whole
 * tensor first where the collective has one rank's part, or the other way round, and gloo does a
 * reduce-scatter as an all-reduce. */
static bool may_have_asked(const struct local_collective *asked,
                           const struct local_collective *coll)
{
    bool scatters = asked->kind && strcmp(asked->kind, "reduce_scatter") == 0;
    bool gathers = asked->kind && strcmp(asked->kind, "all_gather") == 0;
    bool same_kind = !asked->kind || strcmp(asked->kind, coll->kind) == 0;
    if (!same_kind && !(scatters && strcmp(coll->kind, "all_reduce") == 0))
        return false;
    if (!asked->numel || !coll->numel || asked->numel == coll->numel)
        return true;
    uint64_t whole = asked->numel > coll->numel ? asked->numel : coll->numel;
    uint64_t part = asked->numel > coll->numel ? coll->numel : asked->numel;
    return (scatters || gathers) && whole % part == 0;
}

/* The framework's calls in order; each collective takes the first free one that fits. */
static int add_comm_launches(struct rank_build *rank)
{
    ARRAY(uint32_t) calls = {0};
    int status = 0;
    uint32_t last_span = NO_ID;
    for (uint32_t o = 0; o < rank->ops.n && status == 0; o++) {
        const struct local_op *op = &rank->ops.at[o];
        if (op->track == NO_ID || rank->tracks.at[op->track].kind != DPRO_DEVICE_CPU_THREAD)
            continue;
        uint32_t span = rank->slices.at[op->slice].span;
        if ((rank->classes[op->name] & NAME_COMM_CALL) && span != last_span) {
            status = array_push(&calls, o);
            last_span = span;
        }
    }
    size_t first = 0; /* not taken yet */
    for (size_t c = 0; c < rank->collectives.n && status == 0; c++) {
        struct local_collective *coll = &rank->collectives.at[c];
        if (rank->tracks.at[rank->ops.at[coll->arrival].track].kind != DPRO_DEVICE_COMM_THREAD)
            continue;
        int64_t start = rank->start_ns[at(rank, rank->steps.reference, coll->arrival)];
        while (first < calls.n && calls.at[first] == NO_ID)
            first++;
        for (size_t i = first; i < calls.n; i++) {
            if (calls.at[i] == NO_ID)
                continue;
            uint32_t call = calls.at[i], span = rank->slices.at[rank->ops.at[call].slice].span;
            struct local_collective asked = {.sequence = -1, .peer = -1, .launch_span = NO_ID};
            build_learn_collective(rank, span, &asked);
            if (rank->start_ns[at(rank, rank->steps.reference, call)] > start)
                break;
            if (!may_have_asked(&asked, coll))
                continue;
            calls.at[i] = NO_ID;
            build_learn_collective(rank, span, coll);
            coll->launch_span = span;
            for (uint32_t s = 0; s < rank->steps.n; s++) {
                int64_t begins = rank->start_ns[at(rank, s, coll->arrival)];
                int64_t *end = &rank->end_ns[at(rank, s, call)];
                if (begins != ABSENT && *end != ABSENT && begins < *end &&
                    begins >= rank->start_ns[at(rank, s, call)])
                    *end = begins;
            }
            status = local_add_if_holds(rank, call, coll->arrival, false);
            break;
        }
    }
    array_fini(&calls);
    return status;
}

/* ---- hand-over between threads ---- */

struct handover {
    uint32_t op;
    bool next;
    int64_t end_ns;
};

/* Keeps the latest op that ended in (after, before] and left its thread idle. */
static void consider(const struct rank_build *rank, const uint32_t *op_of_slice, uint32_t slice,
                     bool next, int64_t after, int64_t before, struct handover *best)
{
    int64_t end = rank->slices.at[slice].end_ns;
    if (op_of_slice[slice] == NO_ID || end <= after || end > before + LOCAL_ROUNDING_NS)
        return;
    if (best->op == NO_ID || end > best->end_ns)
        *best = (struct handover){local_end_op(rank, op_of_slice[slice]), next, end};
}

/* The first of the slices low..high-1, sorted by start, that starts at `ns` or later; high if none.
 */
static uint32_t first_from(const struct rank_build *rank, uint32_t low, uint32_t high, int64_t ns)
{
    return LOWER_BOUND(i, low, high, rank->slices.at[i].start_ns < ns);
}

static void look_for_handover(const struct rank_build *rank, const uint32_t *op_of_slice,
                              const struct track *track, int64_t after, int64_t before,
                              struct handover *best)
{
    uint32_t step = rank->steps.reference;
    bool pooled = track->source == NO_ID;
    for (int next = 0; next <= (rank->steps.at[step].follows ? 1 : 0); next++) {
        uint32_t first = track->first[step - (uint32_t)next];
        uint32_t low = first_from(rank, first, track->first[step - (uint32_t)next + 1], before);
        for (uint32_t i = low; i-- > first;) {
            if (!pooled && rank->slices.at[i].end_ns > before + LOCAL_ROUNDING_NS)
                return; /* the thread is busy: it hands nothing over now */
            if (!pooled && rank->slices.at[i].end_ns <= after)
                return;
            consider(rank, op_of_slice, i, next == 1, after, before, best);
            if (!pooled && op_of_slice[i] != NO_ID)
                return;
        }
    }
}

/* A busy thread hands over somewhere in its course: the latest of its ops, a few back at most, that
 * came before in every iteration. */
static int add_busy_handover(struct rank_build *rank, const uint32_t *op_of_slice,
                             const struct track *track, int64_t after, uint32_t to)
{
    enum { LOOK_BACK = 256 };
    uint32_t step = rank->steps.reference, first = track->first[step];
    int64_t before = rank->start_ns[at(rank, step, to)];
    uint32_t low = first_from(rank, first, track->first[step + 1], before);
    uint32_t last = low > first + LOOK_BACK ? low - LOOK_BACK : first;
    for (uint32_t i = low; i-- > last && rank->slices.at[i].end_ns > after;) {
        size_t n_before = rank->edges.n;
        if (op_of_slice[i] == NO_ID || rank->slices.at[i].end_ns > before)
            continue;
        if (local_add_if_holds(rank, local_end_op(rank, op_of_slice[i]), to, false) < 0)
            return -1;
        if (rank->edges.n > n_before)
            return 0;
    }
    return 0;
}

/* The tracks that others may wait for. Of very many threads the busiest ones: looking at each for
 * each op would cost their square. */
enum { MOST_LANES = 64 };

struct givers {
    uint32_t tracks[MOST_LANES];
    uint32_t n;
};

static uint32_t slices_around_reference(const struct rank_build *rank, uint32_t track)
{
    uint32_t t = rank->steps.reference, before = t - rank->steps.at[t].follows;
    return rank->tracks.at[track].first[t + 1] - rank->tracks.at[track].first[before];
}

static struct givers find_givers(const struct rank_build *rank)
{
    struct givers givers = {.n = 0};
    for (uint32_t l = 0; l < rank->tracks.n; l++) {
        uint32_t n = slices_around_reference(rank, l), at = givers.n;
        if (rank->tracks.at[l].kind == DPRO_DEVICE_GPU_STREAM || n == 0)
            continue;
        if (givers.n < MOST_LANES)
            givers.n++;
        else if (slices_around_reference(rank, givers.tracks[--at]) >= n)
            continue;
        for (; at > 0 && slices_around_reference(rank, givers.tracks[at - 1]) < n; at--)
            givers.tracks[at] = givers.tracks[at - 1];
        givers.tracks[at] = l;
    }
    return givers;
}

static int add_handover(struct rank_build *rank, const uint32_t *op_of_slice,
                        const struct givers *givers, uint32_t own_track, int64_t idle_since,
                        uint32_t to)
{
    struct handover best = {.op = NO_ID};
    int64_t start = rank->start_ns[at(rank, rank->steps.reference, to)];
    for (uint32_t i = 0; i < givers->n; i++)
        if (givers->tracks[i] != own_track)
            look_for_handover(rank, op_of_slice, &rank->tracks.at[givers->tracks[i]], idle_since,
                              start, &best);
    size_t n_before = rank->edges.n;
    int status = 0;
    if (best.op != NO_ID && rank->ops.at[best.op].kind == DPRO_OP_COLLECTIVE && !best.next &&
        !build_is_exchange(rank, best.op))
        status = local_add_completion(rank, best.op, to, false);
    else if (best.op != NO_ID)
        status = local_add_if_holds(rank, best.op, to, best.next);
    if (status < 0 || rank->edges.n > n_before)
        return status;
    for (uint32_t i = 0; i < givers->n; i++) {
        const struct track *track = &rank->tracks.at[givers->tracks[i]];
        if (givers->tracks[i] != own_track && track->kind == DPRO_DEVICE_CPU_THREAD &&
            add_busy_handover(rank, op_of_slice, track, idle_since, to) < 0)
            return -1;
    }
    return 0;
}

/* A thread that stood idle goes on when another one falls idle: main -> autograd -> main, a wait
 * for a collective on gloo's threads. */
static int add_handovers(struct rank_build *rank, const uint32_t *op_of_slice)
{
    uint32_t t = rank->steps.reference;
    struct givers givers = find_givers(rank);
    for (uint32_t l = 0; l < rank->tracks.n; l++) {
        const struct track *track = &rank->tracks.at[l];
        if (track->kind != DPRO_DEVICE_CPU_THREAD)
            continue;
        if ((track->source != NO_ID && rank->trace->tracks[track->source].serial) ||
            (build_is_pool(rank, track) && dfg_is_known(rank)))
            continue; /* an executor's threads: its graph says why an op starts */
        int64_t idle_since = rank->steps.at[t].start_ns;
        if (rank->steps.at[t].follows && track->source != rank->main_track) {
            idle_since = rank->steps.at[t - 1].start_ns;
            if (track->first[t] > track->first[t - 1])
                idle_since = rank->slices.at[track->first[t] - 1].end_ns;
        } else if (track->source != rank->main_track) {
            idle_since = INT64_MIN;
        }
        for (uint32_t i = track->first[t]; i < track->first[t + 1]; i++) {
            const struct slice *slice = &rank->slices.at[i];
            if (op_of_slice[i] == NO_ID)
                continue;
            if ((idle_since == INT64_MIN || slice->start_ns - idle_since >= HANDOVER_NS) &&
                add_handover(rank, op_of_slice, &givers, l, idle_since, op_of_slice[i]) < 0)
                return -1;
            idle_since = slice->end_ns;
        }
    }
    return 0;
}

/* ---- forward -> backward ---- */

/* Span -> its last op, for the reference iteration's spans: sorted pairs span << 32 | op. */
int local_span_ops(const struct rank_build *rank, uint32_t step, uint64_t **pairs, size_t *n_pairs)
{
    uint64_t *list = mem_alloc((rank->ops.n + 1) * sizeof *list);
    size_t n = 0;
    if (!list)
        return -1;
    for (uint32_t o = 0; o < rank->ops.n; o++) {
        uint32_t slice = rank->match[at(rank, step, o)];
        if (slice != NO_ID && !(rank->ops.at[o].flags & GRAPH_OP_GPU))
            list[n++] = (uint64_t)rank->slices.at[slice].span << 32 | o;
    }
    sort_u64(list, n);
    *pairs = list;
    *n_pairs = n;
    return 0;
}

/* First (want_last false) or last op of a span; NO_ID: none. */
uint32_t local_op_of_span(const uint64_t *pairs, size_t n, uint32_t span, bool want_last)
{
    uint64_t key = (uint64_t)span << 32 | (want_last ? UINT32_MAX : 0);
    size_t low = LOWER_BOUND(i, 0, n, pairs[i] < key);
    size_t found = want_last ? low - 1 : low;
    if (found >= n || pairs[found] >> 32 != span)
        return NO_ID;
    return (uint32_t)pairs[found];
}

uint32_t local_nth_taken(const struct rank_build *rank, uint32_t k, uint32_t n)
{
    uint32_t set = strtab_find(rank->names, "aten::set_", strlen("aten::set_"));
    uint32_t n_sets = 0, found = NO_ID;
    for (uint32_t o = 0; o < rank->n_timed && set != STRTAB_FULL; o++) {
        const struct local_op *op = &rank->ops.at[o];
        if (op->name == set && op->slice != NO_ID && op->phase == DPRO_OP_UPDATE && n_sets++ == k)
            found = o;
    }
    return n_sets == n ? found : NO_ID;
}

static int add_forward_backward(struct rank_build *rank)
{
    uint64_t *pairs;
    size_t n;
    if (rank->trace->n_links == 0)
        return 0;
    if (local_span_ops(rank, rank->steps.reference, &pairs, &n) < 0)
        return -1;
    int status = 0;
    for (uint32_t i = 0; i < rank->trace->n_links && status == 0; i++) {
        uint32_t from = local_op_of_span(pairs, n, rank->trace->links[i].from, true);
        uint32_t to = local_op_of_span(pairs, n, rank->trace->links[i].to, false);
        if (from != NO_ID && to != NO_ID)
            status = local_add_if_holds(rank, from, to, false);
    }
    mem_free(pairs);
    return status;
}

int build_local_edges(struct rank_build *rank, struct dpro_error *err)
{
    uint32_t *op_of_slice = mem_alloc((rank->slices.n + 1) * sizeof *op_of_slice);
    int status = op_of_slice ? local_sort_updates(rank) : -1;
    if (status == 0) {
        memset(op_of_slice, 0xFF, (rank->slices.n + 1) * sizeof *op_of_slice);
        for (uint32_t s = 0; s < rank->steps.n; s++)
            for (uint32_t o = rank->ops.n; o-- > 0;) /* a collective's slice is its arrival */
                if (rank->match[at(rank, s, o)] != NO_ID)
                    op_of_slice[rank->match[at(rank, s, o)]] = o;
        trim_launches(rank);
        status = trim_copy_heads(rank, op_of_slice);
    }
    if (status == 0)
        status = local_count_slots(rank);
    if (status == 0)
        status = add_comm_launches(rank);
    if (status == 0)
        status = add_device_order(rank);
    if (status == 0)
        status = add_comm_order(rank);
    if (status == 0)
        status = local_add_gpu_edges(rank, op_of_slice);
    if (status == 0)
        status = local_add_engine_edges(rank, op_of_slice);
    if (status == 0)
        status = add_handovers(rank, op_of_slice);
    if (status == 0)
        status = add_forward_backward(rank);
    if (status == 0)
        status = local_add_data_edges(rank);
    if (status == 0)
        status = local_add_node_edges(rank);
    if (status == 0)
        status = add_boundary(rank);
    mem_free(op_of_slice);
    return status < 0 ? dpro_error_nomem(err) : 0;
}
