/* graph/local/gpu_edges.c: how CPU calls and streams wait for each other.
 *
 * One walk over the calls in time order keeps, for each stream, the work launched last. A
 * cudaStreamWaitEvent makes the stream that is launched to next wait for what other streams had
 * been given; Kineto names the streams only in its cuda_sync events, so without these every other
 * stream is a candidate, and what the timeline contradicts is dropped. Synchronize calls and
 * blocking copies end when their work has: their own time is only what is left after it. */
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/memory.h"
#include "base/sort.h"
#include "graph/local/local_edges.h"
#include "graph/names/span_names.h"
#include "graph/rank_build.h"

/* Work launched and not yet done that a CUDA stream takes on before launches block: about a
 * thousand. A trace in which nearly as much or more was outstanding shows the number itself. */
enum { QUEUE_DEPTH = 1024 };

struct work {
    uint32_t op; /* NO_ID: none */
    bool next;   /* of the iteration before */
};

/* All work of a stream in the reference iteration, in order of launch. */
struct queue {
    ARRAY(uint32_t) ops;
    uint32_t n_launched; /* so far in the walk */
    uint32_t depth;      /* of its queue; 0: not known to be bounded */
};

/* What a thread's latest stream wait saw, per waiting stream. */
struct wait {
    struct work *sources; /* by stream; borrowed */
    int64_t only_stream;  /* the stream waited for, where recorded; -1: any */
};

struct walker {
    struct rank_build *rank;
    const uint32_t *op_of_slice;
    uint32_t n_streams;
    uint32_t *streams;      /* their devices */
    uint32_t *stream_of;    /* device -> index into streams */
    struct work *last;      /* by stream */
    struct queue *queues;   /* by stream */
    struct wait **waits;    /* by track: NULL, or by waiting stream */
    struct map waited;      /* waiting stream + 1 and source stream -> work last waited for */
    struct map sync_detail; /* call -> span of kind SPAN_SYNC + 1 */
    struct map records;     /* event record -> its snapshot */
    ARRAY(struct work *) snapshots;
    ARRAY(uint32_t) awaited; /* pairs: sync op, device op it waits for; next in the low bit */
};

static uint64_t key_of(const struct trace_span *span)
{
    return build_correlation_key(span->correlation, span->window);
}

static struct work *take_snapshot(struct walker *w)
{
    struct work *copy = mem_alloc((w->n_streams + 1) * sizeof *copy);
    if (!copy)
        return NULL;
    memcpy(copy, w->last, w->n_streams * sizeof *copy);
    if (array_push(&w->snapshots, copy) < 0) {
        mem_free(copy);
        return NULL;
    }
    return copy;
}

static const struct trace_track *track_of(const struct walker *w, uint32_t stream)
{
    return &w->rank->trace->tracks[w->rank->devices.at[w->streams[stream]].name];
}

static const struct trace_span *recorded_sync(const struct walker *w, const struct trace_span *call)
{
    uint64_t index;
    if (!call->correlation || !map_get(&w->sync_detail, key_of(call), &index))
        return NULL;
    return &w->rank->trace->spans[index - 1];
}

static int on_stream_wait(struct walker *w, const struct local_op *op,
                          const struct trace_span *call)
{
    const struct trace_span *sync = recorded_sync(w, call);
    const struct trace_detail *detail =
        sync && sync->detail != NO_ID ? &w->rank->trace->details[sync->detail] : NULL;
    struct work *seen = NULL;
    uint64_t snapshot;
    if (detail && detail->wait_correlation &&
        map_get(&w->records, build_correlation_key(detail->wait_correlation, call->window),
                &snapshot))
        seen = w->snapshots.at[snapshot];
    if (!seen)
        seen = take_snapshot(w);
    if (!seen)
        return -1;
    struct wait **waits = &w->waits[op->track];
    if (!*waits && !(*waits = mem_array(w->n_streams + 1, sizeof **waits)))
        return -1;
    const struct trace_track *waiting = detail ? &w->rank->trace->tracks[sync->track] : NULL;
    for (uint32_t d = 0; d < w->n_streams; d++) {
        if (waiting && waiting->id >= 0 && track_of(w, d) != waiting)
            continue;
        (*waits)[d] = (struct wait){seen, detail ? detail->wait_stream : -1};
    }
    return 0;
}

static uint64_t wait_key(uint32_t waiting, uint32_t source)
{
    return (uint64_t)(waiting + 1) << 32 | source;
}

static uint64_t work_id(struct work work)
{
    return (uint64_t)work.op << 1 | work.next;
}

/* What the stream has waited for before holds for all that it was given since: an edge is made only
 * for work that is new. Of many streams that may have been meant, those whose work was over last
 * before `op` began say most: one wait is for one stream. */
static int resolve_wait(struct walker *w, uint32_t track, uint32_t stream, uint32_t op)
{
    enum { MOST = 8 };
    struct rank_build *rank = w->rank;
    struct wait *wait = w->waits[track] ? &w->waits[track][stream] : NULL;
    struct {
        uint32_t stream;
        int64_t end_ns;
    } found[MOST];
    size_t n = 0;
    if (!wait || !wait->sources)
        return 0;
    int64_t start = rank->start_ns[(size_t)rank->steps.reference * rank->n_timed + op];
    for (uint32_t d = 0; d < w->n_streams; d++) {
        struct work source = wait->sources[d];
        uint64_t before;
        if (d == stream || source.op == NO_ID ||
            (wait->only_stream >= 0 && track_of(w, d)->id != wait->only_stream) ||
            (map_get(&w->waited, wait_key(stream, d), &before) && before == work_id(source)))
            continue;
        int64_t end = local_pred_end(rank, rank->steps.reference, source.op, source.next);
        if (end > start + LOCAL_ROUNDING_NS || (n == MOST && end <= found[n - 1].end_ns))
            continue;
        size_t at = n < MOST ? n++ : n - 1;
        for (; at > 0 && found[at - 1].end_ns < end; at--)
            found[at] = found[at - 1];
        found[at].stream = d;
        found[at].end_ns = end;
    }
    for (size_t i = 0; i < n; i++) {
        struct work source = wait->sources[found[i].stream];
        size_t n_before = rank->edges.n;
        if (local_add_if_holds(rank, source.op, op, source.next) < 0 ||
            (rank->edges.n > n_before &&
             map_set(&w->waited, wait_key(stream, found[i].stream), work_id(source)) < 0))
            return -1;
    }
    wait->sources = NULL;
    return 0;
}

static int await(struct walker *w, uint32_t op, struct work work)
{
    if (local_add_edge(w->rank, work.op, op, work.next, true) < 0 ||
        array_push(&w->awaited, op) < 0)
        return -1;
    return array_push(&w->awaited, work.op << 1 | work.next);
}

/* The call waits until the work as many places before as the queue is deep is done. */
static int wait_for_room(struct walker *w, uint32_t o, uint32_t stream)
{
    struct queue *queue = &w->queues[stream];
    uint32_t place = queue->n_launched++;
    bool follows = w->rank->steps.at[w->rank->steps.reference].follows;
    if (queue->depth == 0)
        return 0;
    bool next = place < queue->depth;
    if (next && (!follows || place + queue->ops.n < queue->depth))
        return 0; /* more than an iteration fits in the queue */
    uint64_t before = (uint64_t)place + (next ? queue->ops.n : 0) - queue->depth;
    struct work work = {local_end_op(w->rank, queue->ops.at[before]), next};
    if (work.op >= UINT32_MAX / 2 || !local_holds(w->rank, work.op, o, next, true))
        return 0;
    return await(w, o, work);
}

struct stretch {
    int64_t start_ns, end_ns;
    uint32_t op;
};

ORDER(compare_starts, struct stretch, ASCENDING(start_ns) ?: ASCENDING(op));

ORDER(compare_ends, struct stretch, ASCENDING(end_ns) ?: ASCENDING(op));

/* Inside of a CUDA graph streams fork and join without a call: work that starts right after work on
 * another stream, while its own stream had been idle, has waited for it. */
static int add_graph_edges(struct walker *w, uint32_t first_slice)
{
    enum { RIGHT_AFTER_NS = 5000 };
    struct rank_build *rank = w->rank;
    ARRAY(struct stretch) list = {0};
    struct stretch *by_end = NULL;
    bool several = false;
    int status = 0;
    if (first_slice == NO_ID || rank->slices.at[first_slice].next == NO_ID)
        return 0;
    for (uint32_t slice = first_slice; slice != NO_ID && status == 0;
         slice = rank->slices.at[slice].next)
        if (w->op_of_slice[slice] != NO_ID) {
            const struct slice *it = &rank->slices.at[slice];
            uint32_t op = w->op_of_slice[slice];
            struct stretch stretch = {it->start_ns, it->end_ns, op};
            several |= list.n > 0 && rank->ops.at[list.at[0].op].device != rank->ops.at[op].device;
            status = array_push(&list, stretch);
        }
    if (status == 0 && several) {
        by_end = mem_alloc(list.n * sizeof *by_end);
        status = by_end ? 0 : -1;
    }
    if (by_end) {
        memcpy(by_end, list.at, list.n * sizeof *by_end);
        qsort(by_end, list.n, sizeof *by_end, compare_ends);
        qsort(list.at, list.n, sizeof *list.at, compare_starts);
    }
    for (size_t i = 0, ended = 0; by_end && i < list.n && status == 0; i++) {
        const struct stretch *to = &list.at[i];
        while (ended < list.n && by_end[ended].end_ns <= to->start_ns)
            ended++;
        if (ended == 0 || to->start_ns - by_end[ended - 1].end_ns > RIGHT_AFTER_NS ||
            rank->ops.at[by_end[ended - 1].op].device == rank->ops.at[to->op].device)
            continue;
        status = local_add_if_holds(rank, local_end_op(rank, by_end[ended - 1].op), to->op, false);
    }
    mem_free(by_end);
    array_fini(&list);
    return status;
}

static int on_launch(struct walker *w, uint32_t o, const struct local_op *op)
{
    struct rank_build *rank = w->rank;
    for (uint32_t slice = rank->slices.at[op->slice].launch; slice != NO_ID;
         slice = rank->slices.at[slice].next) {
        uint32_t work = w->op_of_slice[slice];
        if (work == NO_ID)
            continue;
        uint32_t stream = w->stream_of[rank->ops.at[work].device];
        if (local_add_edge(rank, o, work, false, false) < 0 ||
            resolve_wait(w, op->track, stream, work) < 0 || wait_for_room(w, o, stream) < 0)
            return -1;
        w->last[stream] = (struct work){local_end_op(rank, work), false};
    }
    return add_graph_edges(w, rank->slices.at[op->slice].launch);
}

/* The latest work that had been launched and was over when the call returned; for a device-wide
 * call each stream's. Where it is known which event was awaited, what had been launched before the
 * event. */
static int on_sync(struct walker *w, uint32_t o, const struct trace_span *call, bool all)
{
    const struct trace_span *sync = recorded_sync(w, call);
    const struct rank_build *rank = w->rank;
    const struct trace_detail *detail =
        sync && sync->detail != NO_ID ? &rank->trace->details[sync->detail] : NULL;
    const struct work *launched = w->last;
    struct work best = {.op = NO_ID};
    int64_t best_end = INT64_MIN;
    uint64_t snapshot;
    if (detail && detail->sync == SYNC_EVENT && detail->wait_correlation &&
        map_get(&w->records, build_correlation_key(detail->wait_correlation, call->window),
                &snapshot))
        launched = w->snapshots.at[snapshot];
    for (uint32_t d = 0; d < w->n_streams; d++) {
        struct work work = launched[d];
        if (work.op == NO_ID || work.op >= UINT32_MAX / 2 ||
            !local_holds(rank, work.op, o, work.next, true))
            continue;
        if (detail && detail->sync == SYNC_STREAM &&
            track_of(w, d) != &rank->trace->tracks[sync->track])
            continue;
        if (detail && detail->sync == SYNC_EVENT && detail->wait_stream >= 0 &&
            track_of(w, d)->id != detail->wait_stream)
            continue;
        int64_t end = local_pred_end(rank, rank->steps.reference, work.op, work.next);
        if (all) {
            if (await(w, o, work) < 0)
                return -1;
        } else if (end > best_end) {
            best_end = end;
            best = work;
        }
    }
    return best.op != NO_ID ? await(w, o, best) : 0;
}

/* The rest of a copying call, after its work has started: it blocks if it never returned before the
 * work was over. */
static int on_copy_tail(struct walker *w, uint32_t o, const struct local_op *op)
{
    uint32_t head = op->slice - 1;
    for (uint32_t slice = w->rank->slices.at[head].launch; slice != NO_ID;
         slice = w->rank->slices.at[slice].next) {
        uint32_t work = w->op_of_slice[slice];
        if (work != NO_ID && work < UINT32_MAX / 2 && local_holds(w->rank, work, o, false, true) &&
            await(w, o, (struct work){work, false}) < 0)
            return -1;
    }
    return 0;
}

static int walk(struct walker *w)
{
    struct rank_build *rank = w->rank;
    for (uint32_t o = 0; o < rank->ops.n; o++) {
        const struct local_op op = rank->ops.at[o];
        if (op.track == NO_ID || rank->tracks.at[op.track].kind != DPRO_DEVICE_CPU_THREAD)
            continue;
        const struct slice *slice = &rank->slices.at[op.slice];
        const struct trace_span *span = &rank->trace->spans[slice->span];
        uint32_t class = rank->classes[span->name];
        int status = 0;
        uint64_t there;
        if (slice->segment == SEGMENT_TAIL)
            status = on_copy_tail(w, o, &op);
        else if (slice->launch != NO_ID)
            status = on_launch(w, o, &op);
        else if (class & NAME_STREAM_WAIT)
            status = on_stream_wait(w, &op, span);
        else if (class & (NAME_STREAM_SYNC | NAME_DEVICE_SYNC))
            status = on_sync(w, o, span, class & NAME_DEVICE_SYNC);
        else if ((class & NAME_EVENT_RECORD) && w->sync_detail.n > 0 && span->correlation &&
                 !map_get(&w->records, key_of(span), &there))
            status = take_snapshot(w) ? map_set(&w->records, key_of(span), w->snapshots.n - 1) : -1;
        if (status < 0)
            return -1;
    }
    return 0;
}

/* A call that waited is only what came after its work was over. */
static void cut_waiting(struct walker *w)
{
    struct rank_build *rank = w->rank;
    for (size_t i = 0; i + 1 < w->awaited.n; i += 2) {
        uint32_t op = w->awaited.at[i], work = w->awaited.at[i + 1] >> 1;
        for (uint32_t s = 0; s < rank->steps.n; s++) {
            int64_t *start = &rank->start_ns[(size_t)s * rank->n_timed + op];
            int64_t end = rank->end_ns[(size_t)s * rank->n_timed + op];
            int64_t over = local_pred_end(rank, s, work, w->awaited.at[i + 1] & 1);
            if (*start == ABSENT || over == ABSENT || over <= *start)
                continue;
            *start = over < end ? over : end;
        }
    }
}

/* The most work that was outstanding on a stream when a call launched more. */
static int most_outstanding(const struct rank_build *rank, const struct track *track,
                            uint32_t *most)
{
    uint32_t first = track->first[0], n = track->first[rank->steps.n] - first, n_calls = 0,
             done = 0;
    int64_t *calls = mem_alloc(((size_t)n * 2 + 1) * sizeof *calls), *ends = calls + n;
    *most = 0;
    if (!calls)
        return -1;
    for (uint32_t i = first; i < first + n; i++) {
        const struct slice *work = &rank->slices.at[i];
        if (work->launch == NO_ID)
            continue;
        calls[n_calls] = rank->slices.at[work->launch].start_ns;
        ends[n_calls++] = work->end_ns;
    }
    sort_i64(calls, n_calls);
    sort_i64(ends, n_calls);
    for (uint32_t i = 0; i < n_calls; i++) {
        while (done < n_calls && ends[done] <= calls[i])
            done++;
        if (i > done && i - done > *most)
            *most = i - done;
    }
    mem_free(calls);
    return 0;
}

/* What each stream is given in the reference iteration, and how deep its queue is. */
static int survey_queues(struct walker *w)
{
    struct rank_build *rank = w->rank;
    w->queues = mem_array(w->n_streams + (size_t)1, sizeof *w->queues);
    if (!w->queues)
        return -1;
    for (uint32_t o = 0; o < rank->ops.n; o++) {
        const struct local_op *op = &rank->ops.at[o];
        if (op->slice == NO_ID || (op->flags & GRAPH_OP_GPU) ||
            rank->tracks.at[op->track].kind != DPRO_DEVICE_CPU_THREAD)
            continue;
        bool cuda = strncmp(strtab_get(rank->names, op->name), "cu", 2) == 0;
        for (uint32_t slice = rank->slices.at[op->slice].launch; slice != NO_ID;
             slice = rank->slices.at[slice].next) {
            uint32_t work = w->op_of_slice[slice];
            if (work == NO_ID)
                continue;
            struct queue *queue = &w->queues[w->stream_of[rank->ops.at[work].device]];
            if (array_push(&queue->ops, work) < 0)
                return -1;
            if (cuda && queue->depth == 0) {
                uint32_t most;
                if (most_outstanding(rank, &rank->tracks.at[rank->ops.at[work].track], &most) < 0)
                    return -1;
                queue->depth = most > QUEUE_DEPTH / 10 * 9 ? most : QUEUE_DEPTH;
            }
        }
    }
    return 0;
}

static int prepare(struct walker *w)
{
    struct rank_build *rank = w->rank;
    size_t n_devices = rank->devices.n;
    w->streams = mem_alloc((n_devices + 1) * sizeof *w->streams);
    w->stream_of = mem_alloc((n_devices + 1) * sizeof *w->stream_of);
    w->last = mem_alloc((n_devices + 1) * sizeof *w->last);
    w->waits = mem_array(rank->tracks.n + (size_t)1, sizeof *w->waits);
    if (!w->streams || !w->stream_of || !w->last || !w->waits)
        return -1;
    for (uint32_t d = 0; d < n_devices; d++) {
        w->stream_of[d] = w->n_streams;
        if (rank->devices.at[d].kind == DPRO_DEVICE_GPU_STREAM)
            w->streams[w->n_streams++] = d;
    }
    for (uint32_t d = 0; d < w->n_streams; d++)
        w->last[d] = (struct work){NO_ID, false};
    for (uint32_t o = 0; o < rank->ops.n && rank->steps.at[rank->steps.reference].follows; o++)
        if (rank->ops.at[o].flags & GRAPH_OP_GPU)
            w->last[w->stream_of[rank->ops.at[o].device]] =
                (struct work){local_end_op(rank, o), true};
    for (uint32_t i = 0; i < rank->trace->n_spans; i++) {
        const struct trace_span *span = &rank->trace->spans[i];
        if (span->kind == SPAN_SYNC && span->correlation &&
            map_set(&w->sync_detail, key_of(span), i + 1) < 0)
            return -1;
    }
    return survey_queues(w);
}

int local_add_gpu_edges(struct rank_build *rank, const uint32_t *op_of_slice)
{
    struct walker w = {.rank = rank, .op_of_slice = op_of_slice};
    int status = prepare(&w);
    if (status == 0)
        status = walk(&w);
    if (status == 0)
        cut_waiting(&w);
    for (uint32_t l = 0; w.waits && l < rank->tracks.n; l++)
        mem_free(w.waits[l]);
    mem_free(w.streams);
    mem_free(w.stream_of);
    mem_free(w.last);
    for (uint32_t s = 0; w.queues && s < w.n_streams; s++)
        array_fini(&w.queues[s].ops);
    mem_free(w.queues);
    mem_free(w.waits);
    map_fini(&w.waited);
    map_fini(&w.sync_detail);
    map_fini(&w.records);
    for (size_t i = 0; i < w.snapshots.n; i++)
        mem_free(w.snapshots.at[i]);
    array_fini(&w.snapshots);
    array_fini(&w.awaited);
    return status;
}
