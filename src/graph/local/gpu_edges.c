/* How CPU calls and streams wait for each other.
 *
 * One walk over the calls in time order keeps the last work launched on each stream. A
 * cudaStreamWaitEvent makes the stream that is launched to next wait for the work of other streams.
 * Only Kineto's cuda_sync events name these; without them every other stream is a candidate, and
 * what the timeline contradicts is dropped; so many calls make so many streams wait at most.
 * Synchronize calls and blocking copies end when their work has ended and keep only the time after
 * it. */

#include "graph/local/local_edges.h"

/* Work launched and not yet done that a CUDA stream takes on before launches block: about a
 * thousand. A trace in which nearly as much or more was outstanding shows the number itself. */
enum { QUEUE_DEPTH = 1024 };

/* Work that a stream was idle for begins that soon after it. */
enum { RIGHT_AFTER_NS = 5000 };

struct edges_work {
    uint32_t op; /* NO_ID: none */
    bool next;   /* of the iteration before */
};

/* All work of a stream in the reference iteration, in order of launch. */
struct edges_queue {
    ARRAY(uint32_t) ops;
    uint32_t n_launched; /* so far in the walk */
    uint32_t depth;      /* of its queue; 0: not known to be bounded */
};

/* What a thread's latest stream wait saw, per waiting stream. */
struct edges_wait {
    struct edges_work *sources; /* by stream; borrowed */
    const uint32_t *n_launched; /* by stream, at the call; 0 where the event is known */
    int64_t only_stream;        /* the stream waited for, where recorded; -1: any */
};

/* A stream that another may wait for, and when its work is over. */
struct edges_source {
    uint32_t stream;
    int64_t end_ns;
};

ORDER(latest_first, struct edges_source, DESCENDING(end_ns) ?: ASCENDING(stream));

/* A call that waits until work is done. */
struct awaited {
    uint32_t call;
    struct edges_work work;
};

struct walker {
    struct rank_build *rank;
    struct arena scratch;
    uint32_t n_streams;
    uint32_t *streams;          /* their devices */
    uint32_t *stream_of;        /* device -> index into streams */
    struct edges_work *last;    /* by stream */
    struct edges_queue *queues; /* by stream */
    struct edges_wait **waits;  /* by track: NULL, or by waiting stream */
    uint32_t *n_waits;          /* by track: calls that name no stream and made none wait so far */
    struct map waited;          /* waiting stream + 1 and source stream -> work last waited for */
    struct map sync_detail;     /* call -> span of kind SPAN_SYNC + 1 */
    struct map records;         /* event record -> its snapshot */
    ARRAY(struct edges_work *) snapshots;
    ARRAY(struct awaited) awaited;
    ARRAY(struct edges_source) found;
};

static uint64_t key_of(const struct trace_span *span)
{
    return build_correlation_key(span->correlation, span->window);
}

static struct edges_work *take_snapshot(struct walker *w)
{
    return arena_copy(&w->scratch, w->last, w->n_streams + (size_t)1, sizeof *w->last);
}

static const struct trace_track *track_of(const struct walker *w, uint32_t stream)
{
    return &w->rank->trace->tracks[w->rank->devices.at[w->streams[stream]].name];
}

/* What Kineto recorded of a call in its own span; NULL: nothing. */
static const struct trace_span *recorded_sync(const struct walker *w, const struct trace_span *call)
{
    uint64_t index;
    if (!call->correlation || !map_get(&w->sync_detail, key_of(call), &index))
        return NULL;
    return &w->rank->trace->spans[index - 1];
}

static const struct trace_detail *detail_of(const struct walker *w, const struct trace_span *sync)
{
    return sync && sync->detail != NO_ID ? &w->rank->trace->details[sync->detail] : NULL;
}

/* What had been launched before the event that a call waits for; NULL: not known. */
static struct edges_work *before_event(const struct walker *w, const struct trace_span *call,
                                       const struct trace_detail *detail)
{
    uint64_t snapshot;
    return detail && detail->wait_correlation &&
                   map_get(&w->records,
                           build_correlation_key(detail->wait_correlation, call->window), &snapshot)
               ? w->snapshots.at[snapshot]
               : NULL;
}

static void on_stream_wait(struct walker *w, const struct local_op *op,
                           const struct trace_span *call)
{
    const struct trace_span *sync = recorded_sync(w, call);
    const struct trace_detail *detail = detail_of(w, sync);
    struct edges_work *known = before_event(w, call, detail), *seen = known ?: take_snapshot(w);
    struct edges_wait **waits = &w->waits[op->track];
    uint32_t *n_launched = arena_array(&w->scratch, w->n_streams + 1, sizeof *n_launched);
    if (!*waits)
        *waits = arena_array(&w->scratch, w->n_streams + 1, sizeof **waits);
    w->n_waits[op->track] += !detail;
    for (uint32_t d = 0; d < w->n_streams && !known; d++)
        n_launched[d] = w->queues[d].n_launched;
    const struct trace_track *waiting = detail ? &w->rank->trace->tracks[sync->track] : NULL;
    for (uint32_t d = 0; d < w->n_streams; d++)
        if (!waiting || waiting->id < 0 || track_of(w, d) == waiting)
            (*waits)[d] = (struct edges_wait){seen, n_launched, detail ? detail->wait_stream : -1};
}

static uint64_t wait_key(uint32_t waiting, uint32_t source)
{
    return (uint64_t)(waiting + 1) << 32 | source;
}

static uint64_t work_id(struct edges_work work)
{
    return (uint64_t)work.op << 1 | work.next;
}

static int64_t end_of(const struct walker *w, struct edges_work work)
{
    const struct rank_build *rank = w->rank;
    return local_work_end(rank, rank->steps.reference, work.op, work.next);
}

/* The latest of the first n that a stream was given that was over at a time; op NO_ID: none was. */
static struct edges_work last_over(const struct walker *w, uint32_t stream, uint32_t n, bool next,
                                   int64_t ns)
{
    const uint32_t *ops = w->queues[stream].ops.at;
    uint32_t over = LOWER_BOUND(k, 0u, n,
                                end_of(w, (struct edges_work){local_end_op(w->rank, ops[k]),
                                                              next}) <= ns + CLOCK_ROUNDING_NS);
    return (struct edges_work){over > 0 ? local_end_op(w->rank, ops[over - 1]) : NO_ID, next};
}

/* The event may have been recorded before the last that its stream was given. Then only time tells
 * which work it was for: the stream that waits was idle up to its end, and no longer. Returns
 * whether any is found. */
static bool wait_for_earlier(struct walker *w, const struct edges_wait *wait, uint32_t stream,
                             uint32_t op, int64_t explained_ns)
{
    int64_t start = local_start(w->rank, op), latest = explained_ns;
    uint32_t found = NO_ID;
    for (uint32_t d = 0; d < w->n_streams && start - explained_ns > RIGHT_AFTER_NS; d++) {
        if (d == stream || (wait->only_stream >= 0 && track_of(w, d)->id != wait->only_stream))
            continue;
        struct edges_work last = last_over(w, d, wait->n_launched[d], false, start);
        if (last.op != NO_ID && end_of(w, last) > latest) {
            latest = end_of(w, last);
            found = last.op;
        }
    }
    return found != NO_ID && start - latest <= RIGHT_AFTER_NS &&
           local_add_if_holds(w->rank, found, op, false);
}

/* One call makes one stream wait: when all of a thread's have, no other stream does. */
static void use_wait(struct walker *w, uint32_t track)
{
    if (w->n_waits[track] == 0 || --w->n_waits[track] > 0)
        return;
    for (uint32_t d = 0; d < w->n_streams; d++)
        w->waits[track][d].sources = NULL;
}

/* The thread that made the stream wait: the one that launches to it, else another one, as where a
 * program waits for a message before autograd's thread computes with it. NO_ID: none. */
static uint32_t track_that_waited(const struct walker *w, uint32_t own, uint32_t stream)
{
    if (w->waits[own] && w->waits[own][stream].sources)
        return own;
    for (uint32_t t = 0; t < w->rank->tracks.n; t++)
        if (w->waits[t] && w->waits[t][stream].sources)
            return t;
    return NO_ID;
}

/* What the stream has waited for before holds for all that it was given since: an edge is made only
 * for work that is new. Of many streams that may have been meant, those whose work was over last
 * before `op` began say most: one wait is for one stream. */
static void resolve_wait(struct walker *w, uint32_t launch, uint32_t stream, uint32_t op)
{
    enum { MOST = 8 };
    struct rank_build *rank = w->rank;
    uint32_t track = track_that_waited(w, rank->ops.at[launch].track, stream);
    if (track == NO_ID)
        return;
    struct edges_wait *wait = &w->waits[track][stream];
    w->found.n = 0;
    bool any = false;
    int64_t explained = end_of(w, (struct edges_work){launch, false});
    if (w->last[stream].op != NO_ID)
        explained = MAX(explained, end_of(w, w->last[stream]));
    int64_t start = local_start(rank, op);
    for (uint32_t d = 0; d < w->n_streams; d++) {
        struct edges_work source = wait->sources[d];
        uint64_t before;
        if (d == stream || source.op == NO_ID ||
            (wait->only_stream >= 0 && track_of(w, d)->id != wait->only_stream) ||
            (map_get(&w->waited, wait_key(stream, d), &before) && before == work_id(source)))
            continue;
        int64_t end = end_of(w, source);
        if (end <= start + CLOCK_ROUNDING_NS)
            array_add(&w->found, d, end);
    }
    array_sort(&w->found, latest_first);
    for (size_t i = 0; i < w->found.n && i < MOST; i++) {
        uint32_t from = w->found.at[i].stream;
        struct edges_work source = wait->sources[from];
        if (local_add_if_holds(rank, source.op, op, source.next)) {
            map_set(&w->waited, wait_key(stream, from), work_id(source));
            explained = MAX(explained, w->found.at[i].end_ns);
            any = true;
        }
    }
    any |= wait_for_earlier(w, wait, stream, op, explained);
    wait->sources = NULL;
    if (any)
        use_wait(w, track);
}

static void edges_await(struct walker *w, uint32_t call, struct edges_work work)
{
    local_add_edge(w->rank, work.op, call, work.next, true);
    array_add(&w->awaited, call, work);
}

/* The call waits until the work as many places before as the queue is deep is done. */
static void wait_for_room(struct walker *w, uint32_t o, uint32_t stream)
{
    struct edges_queue *queue = &w->queues[stream];
    uint32_t place = queue->n_launched++;
    bool follows = w->rank->steps.at[w->rank->steps.reference].follows;
    if (queue->depth == 0)
        return;
    bool next = place < queue->depth;
    if (next && (!follows || place + queue->ops.n < queue->depth))
        return; /* more than an iteration fits in the queue */
    uint64_t before = (uint64_t)place + (next ? queue->ops.n : 0) - queue->depth;
    struct edges_work work = {local_end_op(w->rank, queue->ops.at[before]), next};
    if (local_holds(w->rank, work.op, o, next, true))
        edges_await(w, o, work);
}

struct edges_stretch {
    int64_t start_ns, end_ns;
    uint32_t op;
};

ORDER(compare_starts, struct edges_stretch, ASCENDING(start_ns) ?: ASCENDING(op));

ORDER(compare_ends, struct edges_stretch, ASCENDING(end_ns) ?: ASCENDING(op));

typedef ARRAY(struct edges_stretch) stretches;

/* Streams fork and join without a call: work that starts right after work on another stream, while
 * its own stream had been idle, has waited for it. Sorts the list. */
static void add_joins(struct rank_build *rank, stretches *list, int64_t within_ns)
{
    SCRATCH stretches by_end = {0};
    array_append(&by_end, list->at, list->n);
    array_sort(&by_end, compare_ends);
    array_sort(list, compare_starts);
    for (size_t i = 0, ended = 0; i < list->n; i++) {
        const struct edges_stretch *to = &list->at[i];
        while (ended < list->n && by_end.at[ended].end_ns <= to->start_ns)
            ended++;
        const struct edges_stretch *from = ended > 0 ? &by_end.at[ended - 1] : NULL;
        if (from && to->start_ns - from->end_ns <= within_ns &&
            rank->ops.at[from->op].device != rank->ops.at[to->op].device)
            local_add_if_holds(rank, local_end_op(rank, from->op), to->op, false);
    }
}

/* Inside of a CUDA graph. */
static void add_graph_edges(struct rank_build *rank, uint32_t first_slice)
{
    SCRATCH stretches list = {0};
    if (first_slice == NO_ID || rank->slices.at[first_slice].next == NO_ID)
        return;
    for (uint32_t s = first_slice; s != NO_ID; s = rank->slices.at[s].next) {
        const struct slice *slice = &rank->slices.at[s];
        if (rank->op_of_slice[s] != NO_ID)
            array_add(&list, slice->start_ns, slice->end_ns, rank->op_of_slice[s]);
    }
    add_joins(rank, &list, RIGHT_AFTER_NS);
}

enum { WAKES_WITHIN_NS = 20000 };

/* In an iteration that was recorded alone on a GPU that is never done: what a call waited for, but
 * for `own_ns`, was given in the one before. If that was the last of it, so it is in each. */
static void await_before(struct walker *w, uint32_t call, int64_t own_ns)
{
    struct rank_build *rank = w->rank;
    uint32_t step = rank->steps.reference;
    int64_t before = step_before(rank, step);
    int64_t *start = step_start(rank, step, call), end = *step_end(rank, step, call);
    if (before == ABSENT || *start == ABSENT || end - *start <= own_ns)
        return;
    bool last = own_ns == 0 && end >= before && end - before <= WAKES_WITHIN_NS;
    edges_await(w, call, (struct edges_work){last ? rank->pace.last : rank->pace.first, true});
    *start = MAX(*start, own_ns > 0 ? end - own_ns : MIN(before, end));
}

static void on_launch(struct walker *w, uint32_t o, const struct local_op *op)
{
    struct rank_build *rank = w->rank;
    for (uint32_t slice = rank->slices.at[op->slice].launch; slice != NO_ID;
         slice = rank->slices.at[slice].next) {
        uint32_t work = rank->op_of_slice[slice];
        if (work == NO_ID)
            continue;
        uint32_t stream = w->stream_of[rank->ops.at[work].device];
        local_add_edge(rank, o, work, false, false);
        resolve_wait(w, o, stream, work);
        wait_for_room(w, o, stream);
        w->last[stream] = (struct edges_work){local_end_op(rank, work), false};
    }
    add_graph_edges(rank, rank->slices.at[op->slice].launch);
    await_before(w, o, WAKES_WITHIN_NS);
}

/* Whether the call blocked and returned as soon as the work was over, in nearly all iterations. */
static bool returns_after(const struct rank_build *rank, uint32_t call, struct edges_work work)
{
    uint32_t n_seen = 0, n_after = 0;
    for (uint32_t i = 0; i < rank->n_samples; i++) {
        uint32_t s = rank->sample_step[i];
        int64_t over = local_work_end(rank, s, work.op, work.next), end = *step_end(rank, s, call);
        if (over == ABSENT || end == ABSENT)
            continue;
        n_seen++;
        n_after += over > *step_start(rank, s, call) && over <= end + CLOCK_ROUNDING_NS &&
                   end - over <= WAKES_WITHIN_NS;
    }
    return n_seen > 0 && n_after * 10 >= n_seen * 9;
}

/* An event that was recorded before later work of its stream: which work it is of, only time tells.
 */
static struct edges_work find_earlier(const struct walker *w, uint32_t call)
{
    struct edges_work best = {.op = NO_ID};
    int64_t end = *step_end(w->rank, w->rank->steps.reference, call), best_end = INT64_MIN;
    for (uint32_t i = 0; i < 2 * w->n_streams; i++) {
        uint32_t d = i / 2;
        bool next = i % 2;
        if (next && !w->rank->steps.at[w->rank->steps.reference].follows)
            continue;
        uint32_t n = next ? (uint32_t)w->queues[d].ops.n : w->queues[d].n_launched;
        struct edges_work work = last_over(w, d, n, next, end);
        if (work.op != NO_ID && end_of(w, work) > best_end && returns_after(w->rank, call, work)) {
            best_end = end_of(w, work);
            best = work;
        }
    }
    return best;
}

/* The latest work that had been launched and was over when the call returned; for a device-wide
 * call each stream's. Where it is known which event was awaited, what had been launched before the
 * event. */
static void on_sync(struct walker *w, uint32_t o, const struct trace_span *call, bool all)
{
    const struct rank_build *rank = w->rank;
    const struct trace_span *sync = recorded_sync(w, call);
    const struct trace_detail *detail = detail_of(w, sync);
    bool for_event = detail && detail->sync == SYNC_EVENT;
    bool for_stream = detail && detail->sync == SYNC_STREAM;
    const struct edges_work *launched =
        (for_event ? before_event(w, call, detail) : NULL) ?: w->last;
    struct edges_work best = {.op = NO_ID};
    int64_t best_end = INT64_MIN;
    for (uint32_t d = 0; d < w->n_streams; d++) {
        struct edges_work work = launched[d];
        if (work.op == NO_ID || !local_holds(rank, work.op, o, work.next, true) ||
            (for_stream && track_of(w, d) != &rank->trace->tracks[sync->track]) ||
            (for_event && detail->wait_stream >= 0 && track_of(w, d)->id != detail->wait_stream))
            continue;
        int64_t end = end_of(w, work);
        if (all) {
            edges_await(w, o, work);
        } else if (end > best_end) {
            best_end = end;
            best = work;
        }
    }
    if (!all && !detail && (best.op == NO_ID || !returns_after(rank, o, best)) &&
        strstr(strtab_get(rank->names, call->name), "Event")) {
        struct edges_work earlier = find_earlier(w, o);
        best = earlier.op != NO_ID ? earlier : best;
    }
    if (best.op != NO_ID)
        edges_await(w, o, best);
    else
        await_before(w, o, 0);
}

/* The rest of a copying call, after its work has started: it blocks if it never returned before the
 * work was over. */
static void on_copy_tail(struct walker *w, uint32_t o, const struct local_op *op)
{
    const struct rank_build *rank = w->rank;
    uint32_t head = op->slice - 1;
    for (uint32_t slice = rank->slices.at[head].launch; slice != NO_ID;
         slice = rank->slices.at[slice].next) {
        uint32_t work = rank->op_of_slice[slice];
        if (work != NO_ID && local_holds(rank, work, o, false, true))
            edges_await(w, o, (struct edges_work){work, false});
    }
}

static void edges_walk(struct walker *w)
{
    struct rank_build *rank = w->rank;
    for (uint32_t o = 0; o < rank->ops.n; o++) {
        const struct local_op op = rank->ops.at[o];
        if (!local_on_thread(rank, o))
            continue;
        const struct slice *slice = &rank->slices.at[op.slice];
        const struct trace_span *span = slice_span(rank, op.slice);
        uint32_t class = rank->classes[span->name];
        if (slice->segment == SEGMENT_TAIL) {
            on_copy_tail(w, o, &op);
        } else if (slice->launch != NO_ID) {
            on_launch(w, o, &op);
        } else if (class & NAME_STREAM_WAIT) {
            on_stream_wait(w, &op, span);
        } else if (class & (NAME_STREAM_SYNC | NAME_DEVICE_SYNC)) {
            on_sync(w, o, span, class & NAME_DEVICE_SYNC);
        } else if ((class & NAME_EVENT_RECORD) && w->sync_detail.n > 0 && span->correlation &&
                   map_insert(&w->records, key_of(span), w->snapshots.n)) {
            array_push(&w->snapshots, take_snapshot(w));
        }
    }
}

static uint32_t most_outstanding(const struct rank_build *rank, const struct track *track)
{
    SCRATCH ARRAY(int64_t) calls = {0}, ends = {0};
    size_t done = 0, most = 0;
    for (uint32_t i = track->first[0]; i < track->first[rank->steps.n]; i++) {
        const struct slice *work = &rank->slices.at[i];
        if (work->launch == NO_ID)
            continue;
        array_push(&calls, rank->slices.at[work->launch].start_ns);
        array_push(&ends, work->end_ns);
    }
    sort_i64(calls.at, calls.n);
    sort_i64(ends.at, ends.n);
    for (size_t i = 0; i < calls.n; i++) {
        while (done < ends.n && ends.at[done] <= calls.at[i])
            done++;
        if (i > done)
            most = MAX(most, i - done);
    }
    return (uint32_t)most;
}

/* What each stream is given in the reference iteration, and how deep its queue is. */
static void survey_queues(struct walker *w)
{
    struct rank_build *rank = w->rank;
    w->queues = arena_array(&w->scratch, w->n_streams + 1, sizeof *w->queues);
    for (uint32_t o = 0; o < rank->ops.n; o++) {
        const struct local_op *op = &rank->ops.at[o];
        if (!local_on_thread(rank, o))
            continue;
        bool cuda = text_begins(strtab_get(rank->names, op->name), "cu");
        for (uint32_t slice = rank->slices.at[op->slice].launch; slice != NO_ID;
             slice = rank->slices.at[slice].next) {
            uint32_t work = rank->op_of_slice[slice];
            if (work == NO_ID)
                continue;
            struct edges_queue *queue = &w->queues[w->stream_of[rank->ops.at[work].device]];
            array_push(&queue->ops, work);
            if (cuda && queue->depth == 0) {
                uint32_t most = most_outstanding(rank, &rank->tracks.at[rank->ops.at[work].track]);
                queue->depth = most > QUEUE_DEPTH / 10 * 9 ? most : QUEUE_DEPTH;
            }
        }
    }
}

static void edges_prepare(struct walker *w)
{
    struct rank_build *rank = w->rank;
    size_t n_devices = rank->devices.n;
    w->streams = arena_array(&w->scratch, n_devices, sizeof *w->streams);
    w->stream_of = arena_array(&w->scratch, n_devices, sizeof *w->stream_of);
    w->last = arena_array(&w->scratch, n_devices + 1, sizeof *w->last);
    w->waits = arena_array(&w->scratch, rank->tracks.n, sizeof *w->waits);
    w->n_waits = arena_array(&w->scratch, rank->tracks.n + (size_t)1, sizeof *w->n_waits);
    for (uint32_t d = 0; d < n_devices; d++) {
        w->stream_of[d] = w->n_streams;
        if (rank->devices.at[d].kind == DPRO_DEVICE_GPU_STREAM)
            w->streams[w->n_streams++] = d;
    }
    for (uint32_t d = 0; d < w->n_streams; d++)
        w->last[d] = (struct edges_work){NO_ID, false};
    for (uint32_t o = 0; o < rank->ops.n && rank->steps.at[rank->steps.reference].follows; o++)
        if (rank->ops.at[o].flags & GRAPH_OP_GPU)
            w->last[w->stream_of[rank->ops.at[o].device]] =
                (struct edges_work){local_end_op(rank, o), true};
    EACH_OF (const struct trace_track, track, rank->trace->tracks, rank->trace->n_tracks) {
        for (uint32_t i = track->first; track->gpu && i < track->first + track->n; i++) {
            const struct trace_span *span = &rank->trace->spans[i];
            if (span->kind == SPAN_SYNC && span->correlation)
                map_set(&w->sync_detail, key_of(span), i + 1);
        }
    }
    survey_queues(w);
}

/* Where no call of a runtime was recorded, none that waits was either: a stream takes on work when
 * the work before it is over, and the thread waits for what was over when an iteration ended. */
static void add_unrecorded_waits(struct rank_build *rank)
{
    SCRATCH stretches list = {0};
    array_add(&list, local_start(rank, rank->boundary), INT64_MAX, rank->boundary);
    for (uint32_t o = 0; o < rank->ops.n && list.n > 0; o++) {
        const struct local_op *op = &rank->ops.at[o];
        if (op->slice != NO_ID && slice_span(rank, op->slice)->kind == SPAN_RUNTIME)
            list.n = 0;
        else if ((op->flags & GRAPH_OP_GPU) && rank->op_of_slice[op->slice] == o)
            array_add(&list, local_start(rank, o),
                      local_pred_end(rank, rank->steps.reference, local_end_op(rank, o), false), o);
    }
    add_joins(rank, &list, INT64_MAX);
}

void rule_gpu(struct rank_build *rank)
{
    struct walker w = {.rank = rank};
    edges_prepare(&w);
    edges_walk(&w);
    add_unrecorded_waits(rank);
    EACH (const struct awaited, it, w.awaited)
        local_cut_waiting(rank, it->call, it->work.op, it->work.next);
    for (uint32_t s = 0; s < w.n_streams; s++)
        array_fini(&w.queues[s].ops);
    FREE_ALL(&w.waited, &w.sync_detail, &w.records, &w.snapshots, &w.awaited, &w.found);
    arena_fini(&w.scratch);
}
