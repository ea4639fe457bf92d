/* A rank's ops and their samples.
 *
 * Every slice of the reference iteration becomes an op, and every collective two: arrival and
 * transfer. Slices that are empty in every measured iteration are left out. */

#include "base/parallel.h"
#include "graph/ops/match_slices.h"
#include "ingest/pytorch/kineto_words.h"

static bool always_empty(const struct rank_build *rank, const struct slice_matches *matches,
                         uint32_t place)
{
    for (uint32_t s = 0; s < rank->steps.n; s++) {
        uint32_t slice = matches->found[(size_t)s * matches->n + place];
        if (slice != NO_ID && rank->slices.at[slice].end_ns > rank->slices.at[slice].start_ns)
            return false;
    }
    return true;
}

static int compare_times(const void *a, const void *b, void *slices)
{
    const struct placed *x = a, *y = b;
    const struct slice *p = (const struct slice *)slices + x->slice,
                       *q = (const struct slice *)slices + y->slice;
    return COMPARE(p->start_ns, q->start_ns) ?: COMPARE(x->slice, y->slice);
}

/* The device that runs a track's slice: its track. A thread of an executor's pool only starts a
 * collective, which goes on while the thread runs other ops: collectives are on a device of their
 * own. */
static uint32_t device_of(struct rank_build *rank, const struct track *track, uint32_t slice,
                          uint32_t *device_of_track)
{
    uint32_t source = slice_span(rank, slice)->track;
    if (track->kind == DPRO_DEVICE_COMM_THREAD && rank->trace->tracks[source].pool)
        device_of_track += rank->trace->n_tracks;
    if (device_of_track[source] == NO_ID) {
        bool serial = rank->trace->tracks[source].serial; /* its copies are communication, too */
        device_of_track[source] = (uint32_t)rank->devices.n;
        array_add(&rank->devices, .kind = serial ? DPRO_DEVICE_COMM_THREAD : track->kind,
                  .rank = rank->trace->rank, .name = source);
    }
    return device_of_track[source];
}

static uint8_t phase_of_slice(const struct rank_build *rank, uint32_t slice)
{
    const struct slice *it = &rank->slices.at[slice];
    if (!rank->trace->tracks[slice_span(rank, slice)->track].gpu)
        return rank->phases[it->span];
    return it->launch == NO_ID ? DPRO_OP_FW : rank->phases[rank->slices.at[it->launch].span];
}

/* From when on kernels of one launch of a CUDA graph are of the backward pass, and of the update,
 * by the names of some of them. */
struct graph_launch {
    bool lacks_ops;  /* no op of the framework was recorded that could tell */
    uint32_t launch; /* slice; NO_ID: none yet */
    int64_t backward_ns, update_ns;
};

static bool has_word(const char *name, const char *const *words)
{
    for (; *words; words++)
        if (strcasestr(name, *words))
            return true;
    return false;
}

/* A backward pass lasts from its first kernel that is named so to the last; what follows is the
 * update, if there is one named for it. */
static void look_into_launch(const struct rank_build *rank, struct graph_launch *graph)
{
    static const char *const backward[] = {"backward", "bwd", "dgrad", "wgrad", NULL};
    static const char *const update[] = {"multi_tensor_apply", "adam", "sgd", "lamb_",
                                         "optimizer",          NULL};
    int64_t last_ns = INT64_MIN, first_update_ns = INT64_MAX;
    graph->backward_ns = graph->update_ns = INT64_MAX;
    for (int updates = 0; updates < 2; updates++)
        for (uint32_t s = rank->slices.at[graph->launch].launch; s != NO_ID;
             s = rank->slices.at[s].next) {
            const struct slice *slice = &rank->slices.at[s];
            const char *name = strtab_get(rank->names, slice_span(rank, s)->name);
            if (!updates && has_word(name, backward)) {
                graph->backward_ns = MIN(graph->backward_ns, slice->start_ns);
                last_ns = MAX(last_ns, slice->start_ns);
            } else if (updates && slice->start_ns > last_ns && has_word(name, update)) {
                first_update_ns = MIN(first_update_ns, slice->start_ns);
            }
        }
    if (last_ns > INT64_MIN)
        graph->update_ns = first_update_ns;
}

/* What the program calls its range around a launch; FW: forward, or nothing that tells, then not
 * *known. */
static uint8_t phase_of_ranges(const struct rank_build *rank, uint32_t span, bool *known)
{
    static const struct {
        uint8_t phase;
        const char *words[4];
    } ranges[] = {{DPRO_OP_FW, {"forward", "fwd"}},
                  {DPRO_OP_BW, {"backward", "bwd"}},
                  {DPRO_OP_UPDATE, {"optimizer", "update"}}};
    enum { N_RANGES = sizeof ranges / sizeof *ranges };
    for (; span != NO_ID; span = rank->trace->spans[span].parent) {
        const struct trace_span *it = &rank->trace->spans[span];
        uint32_t n = 0, found = 0;
        for (uint32_t i = 0; i < N_RANGES && it->kind == SPAN_ANNOTATION; i++)
            if (has_word(strtab_get(rank->names, it->name), ranges[i].words)) {
                found = i;
                n++;
            }
        *known = n == 1;
        if (n == 1)
            return ranges[found].phase;
    }
    return DPRO_OP_FW;
}

/* The phase of a kernel that a forward pass launched, as it seems. */
static uint8_t phase_in_graph(struct rank_build *rank, uint32_t slice, struct graph_launch *graph)
{
    const struct slice *it = &rank->slices.at[slice];
    bool known = false;
    bool of_graph =
        it->launch != NO_ID &&
        text_ends(strtab_get(rank->names, slice_span(rank, it->launch)->name), "GraphLaunch");
    if (!of_graph && !graph->lacks_ops)
        return DPRO_OP_FW;
    if (of_graph && graph->launch != it->launch) {
        graph->launch = it->launch;
        look_into_launch(rank, graph);
    }
    if (of_graph && it->start_ns >= graph->backward_ns)
        return it->start_ns >= graph->update_ns ? DPRO_OP_UPDATE : DPRO_OP_BW;
    uint32_t launch = it->launch == NO_ID ? NO_ID : rank->slices.at[it->launch].span;
    uint8_t phase = phase_of_ranges(rank, launch, &known);
    rank->hides_phases |= !known;
    return phase;
}

/* What a parameter server takes in was pushed to it, what comes from one was pulled. */
static uint8_t received_as(const struct rank_build *rank, const struct trace_span *span)
{
    uint32_t key = span->detail == NO_ID ? 0 : rank->trace->details[span->detail].process_group;
    if (rank->trace->rank < 0)
        return DPRO_OP_PUSH;
    return strstr(strtab_get(rank->names, key), " /job:ps/") ? DPRO_OP_PULL : DPRO_OP_RECV;
}

/* From one GPU's memory to another one's, as Kineto and TensorFlow name it. */
static bool copies_to_peer(const struct rank_build *rank, const struct trace_span *span)
{
    const char *name = strtab_get(rank->names, span->name);
    return span->kind == SPAN_MEMCPY &&
           (text_begins(name, "Memcpy PtoP") || text_begins(name, "MemcpyP2P"));
}

static void rank_ops_classify(struct rank_build *rank, struct local_op *op,
                              struct graph_launch *graph)
{
    const struct trace_span *span = slice_span(rank, op->slice);
    uint32_t class = rank->classes[span->name];
    uint8_t track_kind = rank->tracks.at[op->track].kind;
    op->phase = phase_of_slice(rank, op->slice);
    op->kind = op->phase;
    if (track_kind == DPRO_DEVICE_COMM_THREAD) {
        op->kind = op->phase = DPRO_OP_COLLECTIVE;
    } else if (track_kind == DPRO_DEVICE_LINK_RX) {
        op->kind = op->phase = received_as(rank, span);
    } else if (track_kind == DPRO_DEVICE_GPU_STREAM) {
        op->flags |= GRAPH_OP_GPU;
        if (op->phase == DPRO_OP_FW)
            op->phase = op->kind = phase_in_graph(rank, op->slice, graph);
        if (span->kind == SPAN_MEMCPY)
            op->kind = DPRO_OP_COPY;
        if (copies_to_peer(rank, span))
            op->phase = DPRO_OP_COLLECTIVE;
        if ((class & NAME_INPUT_COPY) && op->phase == DPRO_OP_FW)
            op->phase = DPRO_OP_INPUT;
        if ((class & NAME_INPUT_COPY) && op->phase == DPRO_OP_INPUT)
            op->kind = DPRO_OP_INPUT;
        if (build_communicates(rank, op->slice))
            op->kind = op->phase = DPRO_OP_COLLECTIVE;
    } else if (span->kind == SPAN_RUNTIME ||
               (class & (NAME_COMM_CALL | NAME_COMM_WAIT | NAME_EXECUTOR_CALL))) {
        op->kind = DPRO_OP_LAUNCH;
    } else if (class & (NAME_FUSION_COPY | NAME_CALLBACK)) {
        op->kind = class & NAME_FUSION_COPY ? DPRO_OP_COPY : DPRO_OP_LAUNCH;
        op->phase = DPRO_OP_COLLECTIVE;
    } else if (class & (NAME_PUSH | NAME_PULL)) {
        op->kind = class & NAME_PUSH ? DPRO_OP_PUSH : DPRO_OP_PULL;
        op->phase = DPRO_OP_COLLECTIVE;
    } else if (class & (NAME_BUCKET_IN | NAME_BUCKET_OUT)) {
        op->kind = DPRO_OP_COPY;
    }
    if (span->detail != NO_ID && op->kind != DPRO_OP_COLLECTIVE)
        op->size_bytes = rank->trace->details[span->detail].bytes;
}

static bool kernel_name(const struct rank_build *rank, uint32_t name, struct comm_name *kernel)
{
    return comm_name_of_kernel(strtab_get(rank->names, name), strtab_len(rank->names, name),
                               kernel);
}

/* The kind of collective that a span's name stands for; none: it does not tell. */
static enum dpro_collective_kind kind_of(const struct rank_build *rank,
                                         const struct trace_span *span)
{
    struct comm_name kernel;
    if (span->kind == SPAN_COLLECTIVE)
        return DPRO_NO_COLLECTIVE;
    return span->kind == SPAN_KERNEL && kernel_name(rank, span->name, &kernel)
               ? kernel.kind
               : name_collective(strtab_get(rank->names, span->name));
}

static void learn_kind(struct local_collective *c, enum dpro_collective_kind kind)
{
    if (kind && (!c->kind || c->kind == DPRO_SEND_RECV))
        c->kind = (uint8_t)kind;
}

/* Takes what a span says of a collective where nothing is known yet. */
static void learn_collective(const struct rank_build *rank, const struct trace_span *span,
                             struct local_collective *c, uint64_t *item_bytes)
{
    learn_kind(c, kind_of(rank, span));
    if (span->detail == NO_ID)
        return;
    const struct trace_detail *d = &rank->trace->details[span->detail];
    learn_kind(c, name_collective(strtab_get(rank->names, d->collective)));
    *item_bytes = *item_bytes ?: kineto_dtype_bytes(strtab_get(rank->names, d->dtype));
    c->numel = c->numel ?: d->numel;
    c->group = c->group ?: d->process_group;
    c->group_ranks = c->group_ranks ?: d->group_ranks;
    c->description = c->description ?: d->group_description;
    c->group_size = c->group_size > 0 ? c->group_size : d->group_size;
    c->sequence = c->sequence >= 0 ? c->sequence : d->comm_sequence;
    c->peer = c->peer >= 0 ? c->peer : d->peer;
    c->key = c->key ?: d->key;
    c->call = c->call ?: d->call;
}

void build_learn_collective(const struct rank_build *rank, uint32_t span_index,
                            struct local_collective *c)
{
    const uint32_t asks = NAME_COMM_CALL | NAME_COMM_PARAM | NAME_COMM_SCOPE;
    const uint32_t wanted = NAME_COMM_RUN | NAME_COMM_KERNEL | asks;
    uint64_t item_bytes = 0;
    if (c->numel && c->size_bytes)
        item_bytes = c->size_bytes / c->numel;
    for (uint32_t at = span_index; at != NO_ID; at = rank->trace->spans[at].parent) {
        const struct trace_span *span = &rank->trace->spans[at];
        if (span->kind == SPAN_COLLECTIVE || (rank->classes[span->name] & wanted)) {
            learn_collective(rank, span, c, &item_bytes);
            if (rank->classes[span->name] & NAME_EXCHANGE)
                break; /* what is around it in time are others */
            if (rank->classes[span->name] & asks)
                c->launch_span = at;
        }
    }
    c->size_bytes = c->numel * (item_bytes ? item_bytes : 4);
}

static uint8_t end_of(const struct rank_build *rank, const struct local_op *op)
{
    struct comm_name kernel;
    if (!(op->flags & GRAPH_OP_GPU))
        return COMM_ENDS_TOGETHER;
    return kernel_name(rank, op->name, &kernel) ? kernel.end : COMM_ENDS_UNSURE;
}

static void push_collective(struct rank_build *rank, struct local_op op)
{
    struct local_collective c = {.sequence = -1,
                                 .peer = -1,
                                 .second_peer = -1,
                                 .launch_span = NO_ID,
                                 .launch_op = NO_ID,
                                 .bucket = NO_ID,
                                 .members = NO_ID};
    build_learn_collective(rank, rank->slices.at[op.slice].span, &c);
    uint32_t launch = rank->slices.at[op.slice].launch;
    if ((op.flags & GRAPH_OP_GPU) && launch != NO_ID)
        build_learn_collective(rank, rank->slices.at[launch].span, &c);
    if (!c.kind)
        c.kind = DPRO_OTHER_COLLECTIVE;
    c.end = end_of(rank, &op);
    op.collective = (uint32_t)rank->collectives.n;
    c.arrival = (uint32_t)rank->ops.n;
    c.transfer = c.arrival + 1;
    struct local_op arrival = op;
    arrival.kind = DPRO_OP_BARRIER;
    arrival.phase = DPRO_OP_BARRIER;
    arrival.flags |= GRAPH_OP_ARRIVAL;
    op.size_bytes = c.size_bytes;
    if (c.kind == DPRO_SEND)
        op.kind = DPRO_OP_SEND;
    else if (c.kind == DPRO_RECV)
        op.kind = DPRO_OP_RECV;
    array_push(&rank->ops, arrival);
    array_push(&rank->ops, op);
    array_push(&rank->collectives, c);
}

static void make_ops(struct rank_build *rank, const struct slice_matches *matches)
{
    struct graph_launch graph = {.launch = NO_ID, .lacks_ops = true};
    size_t n_devices = 2 * (size_t)rank->trace->n_tracks + 1; /* a track's own, its collectives' */
    SCRATCH_ARENA struct arena scratch = {0};
    uint32_t *device_of_track = arena_alloc(&scratch, n_devices * sizeof *device_of_track);
    struct placed *by_time = arena_copy(&scratch, matches->placed, matches->n, sizeof *by_time);
    memset(device_of_track, 0xFF, n_devices * sizeof *device_of_track);
    for (uint32_t i = 0; i < rank->trace->n_spans; i++)
        graph.lacks_ops &=
            rank->trace->spans[i].kind != SPAN_CPU_OP && rank->trace->spans[i].node == NO_ID;
    qsort_r(by_time, matches->n, sizeof *by_time, compare_times, rank->slices.at);
    for (uint32_t i = 0; i < matches->n; i++) {
        struct local_op op = {
            .slice = by_time[i].slice, .track = by_time[i].track, .collective = NO_ID};
        const struct track *track = &rank->tracks.at[op.track];
        const struct slice *slice = &rank->slices.at[op.slice];
        if (track->kind == DPRO_DEVICE_CPU_THREAD && slice->launch == NO_ID &&
            always_empty(rank, matches, slice_place(matches, op.slice)))
            continue;
        op.name = slice_span(rank, op.slice)->name;
        op.profiled = (uint8_t)(slice->profiled_within | slice->profiled_before << PROFILED_BEFORE);
        if (slice_span(rank, op.slice)->kind == SPAN_RUNTIME)
            op.profiled |= slice->launch != NO_ID ? PROFILED_LAUNCH
                           : slice->segment == 0  ? PROFILED_CALL
                                                  : 0;
        bool exchange = track->kind == DPRO_DEVICE_COMM_THREAD && /* no thread runs it */
                        (rank->classes[op.name] & NAME_EXCHANGE);
        op.device = exchange ? NO_ID : device_of(rank, track, op.slice, device_of_track);
        rank_ops_classify(rank, &op, &graph);
        if (op.kind == DPRO_OP_COLLECTIVE)
            push_collective(rank, op);
        else
            array_push(&rank->ops, op);
    }
    rank->boundary = build_push_virtual(rank, DPRO_OP_BARRIER, 0);
    rank->ops.at[rank->boundary].flags = GRAPH_OP_BOUNDARY;
}

void build_alloc_free_ns(struct rank_build *rank)
{
    size_t n = (size_t)rank->n_timed * rank->steps.n;
    mem_free(rank->free_ns);
    rank->free_ns = mem_alloc((n + 1) * sizeof *rank->free_ns);
    for (size_t i = 0; i < n; i++)
        rank->free_ns[i] = ABSENT;
}

uint32_t build_push_virtual(struct rank_build *rank, uint8_t kind, uint64_t size_bytes)
{
    array_add(&rank->ops, .slice = NO_ID, .track = NO_ID, .device = NO_ID, .kind = kind,
              .phase = DPRO_OP_BARRIER, .size_bytes = size_bytes, .collective = NO_ID);
    return (uint32_t)rank->ops.n - 1;
}

/* How long a slice runs on a stream for a call of the iteration's own. */
static int64_t stream_ns(const struct rank_build *rank, const struct track *track, uint32_t slice)
{
    const struct slice *it = &rank->slices.at[slice];
    return track->kind == DPRO_DEVICE_GPU_STREAM && it->launch != NO_ID ? it->end_ns - it->start_ns
                                                                        : 0;
}

/* What a step's streams did for its own calls. */
static int64_t streams_ns(const struct rank_build *rank, uint32_t step)
{
    int64_t sum = 0;
    EACH (const struct track, track, rank->tracks)
        for (uint32_t i = track->first[step];
             track->kind == DPRO_DEVICE_GPU_STREAM && i < track->first[step + 1]; i++)
            sum = time_add(sum, stream_ns(rank, track, i));
    return sum;
}

struct rank_ops_placing {
    struct rank_build *rank;
    const struct slice_matches *matches;
    int64_t *unmatched_ns; /* by step: what its streams did for its own calls and is no op */
};

/* Where each op was found in a step, and its times. A collective's arrival takes no time; its
 * transfer is cut to what follows the last arrival once the ranks are joined. */
static void place_step(void *arg, size_t s)
{
    const struct rank_ops_placing *placing = arg;
    struct rank_build *rank = placing->rank;
    const struct slice_matches *matches = placing->matches;
    int64_t matched_ns = 0;
    for (uint32_t o = 0; o < rank->n_timed; o++) {
        const struct local_op *op = &rank->ops.at[o];
        size_t at = build_at(rank, (uint32_t)s, o);
        uint32_t found = op->slice == NO_ID
                             ? NO_ID
                             : matches->found[s * matches->n + slice_place(matches, op->slice)];
        rank->match[at] = found;
        rank->start_ns[at] = rank->end_ns[at] = ABSENT;
        if (found != NO_ID) {
            const struct slice *slice = &rank->slices.at[found];
            rank->start_ns[at] = slice->start_ns;
            rank->end_ns[at] = op->flags & GRAPH_OP_ARRIVAL ? slice->start_ns : slice->end_ns;
            if (!(op->flags & GRAPH_OP_ARRIVAL)) /* of the transfer's slice */
                matched_ns =
                    time_add(matched_ns, stream_ns(rank, &rank->tracks.at[op->track], found));
        }
    }
    *step_start(rank, (uint32_t)s, rank->boundary) = rank->steps.at[s].end_ns;
    *step_end(rank, (uint32_t)s, rank->boundary) = rank->steps.at[s].end_ns;
    placing->unmatched_ns[s] = streams_ns(rank, (uint32_t)s) - matched_ns;
}

static void place_ops(struct rank_build *rank, const struct slice_matches *matches)
{
    size_t n = rank->ops.n, total = n * rank->steps.n, shown = (size_t)rank->steps.shown * n;
    int64_t sum = 0, n_timed_steps = 0;
    rank->match = mem_alloc((total + 1) * sizeof *rank->match);
    rank->start_ns = mem_alloc((total + 1) * sizeof *rank->start_ns);
    rank->end_ns = mem_alloc((total + 1) * sizeof *rank->end_ns);
    rank->seen_start_ns = mem_alloc((n + 1) * sizeof *rank->seen_start_ns);
    rank->seen_end_ns = mem_alloc((n + 1) * sizeof *rank->seen_end_ns);
    struct rank_ops_placing placing = {rank, matches,
                                       mem_alloc(rank->steps.n * sizeof *placing.unmatched_ns)};
    parallel_for(rank->steps.n, rank->threads, place_step, &placing);
    memcpy(rank->seen_start_ns, rank->start_ns + shown, n * sizeof *rank->seen_start_ns);
    memcpy(rank->seen_end_ns, rank->end_ns + shown, n * sizeof *rank->seen_end_ns);
    for (uint32_t s = 0; s < rank->steps.n; s++)
        if (rank->steps.at[s].timed) {
            sum = time_add(sum, MAX(placing.unmatched_ns[s], 0));
            n_timed_steps++;
        }
    rank->unmatched_ns = n_timed_steps > 0 ? sum / n_timed_steps : 0;
    mem_free(placing.unmatched_ns);
}

void build_ops(struct rank_build *rank)
{
    struct slice_matches matches;
    build_find_keys(rank);
    slice_matches_find(rank, &matches);
    mem_free(rank->keys);
    build_find_scopes(rank);
    make_ops(rank, &matches);
    rank->n_timed = (uint32_t)rank->ops.n;
    place_ops(rank, &matches);
    slice_matches_fini(&matches);
}

void build_forget(struct rank_build *rank)
{
    for (uint32_t l = 0; l < rank->tracks.n; l++)
        mem_free(rank->tracks.at[l].first);
    array_fini(&rank->tracks); /* which then has none: they are freed once */
    FREE_ALL(&rank->slices, &rank->named_scopes, &rank->match, &rank->phases);
}
