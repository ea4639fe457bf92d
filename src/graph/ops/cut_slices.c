/* Cuts tracks into slices.
 *
 * Spans on a CPU thread nest. Replay needs the innermost span at each moment. So a leaf is one
 * slice, and a span with children is the stretches between them, numbered. Even empty stretches are
 * kept here: clocks of one microsecond make them come and go, and sequences must match between
 * iterations. Ranges that a user or the profiler drew around ops are no work and are looked
 * through.
 *
 * CPU tracks come first: device work belongs to the slice of the call that launched it, and to the
 * iteration of that slice, wherever it ran. */
#include "graph/rank_build.h"

enum { MAX_OPEN = 512 }; /* deeper nesting counts as part of the innermost open span */

struct launch {
    uint32_t device; /* the first span of the work */
    uint32_t slice;  /* of the call, once CPU tracks are cut; NO_ID: none found */
    uint32_t step;   /* of the slice */
};

struct open_span {
    uint32_t span;
    uint32_t segment;
    int64_t cursor, end;
    bool after_op; /* its last child was an op */
};

struct slices_cutter {
    struct rank_build *rank;
    bool waits_for_rounds;
    struct map launch_of; /* build_correlation_key() -> index into `launches` */
    ARRAY(struct launch) launches;
    struct map stored_ns; /* see build_find_stores */

    /* of the track that is cut, the last one of the rank's */
    struct track *track;
    uint32_t step;  /* the step that the next slice falls into, or the one after it */
    uint32_t round; /* of Horovod's, that begins after the last slice */
    struct open_span open[MAX_OPEN];
    uint32_t n_open;
    bool after_op; /* the last span without parent was an op */
};

/* ---- one track ---- */

static void start_track(struct slices_cutter *cutter, uint8_t kind, uint32_t source)
{
    struct rank_build *rank = cutter->rank;
    array_add(&rank->tracks, kind, source, mem_array(rank->steps.n + 1, sizeof(uint32_t)));
    cutter->track = &rank->tracks.at[rank->tracks.n - 1];
    cutter->track->first[0] = (uint32_t)rank->slices.n;
    cutter->step = cutter->round = cutter->n_open = 0;
    cutter->after_op = false;
}

static void next_step(struct slices_cutter *cutter)
{
    cutter->track->first[++cutter->step] = (uint32_t)cutter->rank->slices.n;
}

static void finish_track(struct slices_cutter *cutter)
{
    while (cutter->step < cutter->rank->steps.n)
        next_step(cutter);
}

/* Moves on to the step that holds `time`; NO_ID when none does. Times come in ascending order. */
static uint32_t find_step(struct slices_cutter *cutter, int64_t time)
{
    const struct rank_build *rank = cutter->rank;
    bool program = cutter->track->source == rank->main_track;
    for (; cutter->step < rank->steps.n; next_step(cutter)) {
        const struct step *step = &rank->steps.at[cutter->step];
        if ((program ? step->program_end_ns : step->end_ns) > time)
            return (program ? step->program_start_ns : step->start_ns) <= time ? cutter->step
                                                                               : NO_ID;
    }
    return NO_ID;
}

/* Whether most of Horovod's rounds end in the iteration that handed over their first tensor. */
static bool waits_for_rounds(const struct rank_build *rank)
{
    const struct fused_rank *fused = &rank->trace->fused;
    uint32_t n = 0, n_over = 0;
    EACH (const struct step, step, rank->steps)
        for (uint32_t r = 0; r < fused->n_rounds; r++) {
            bool inside = fused->starts_ns[r] != ABSENT && fused->starts_ns[r] >= step->start_ns &&
                          fused->starts_ns[r] < step->end_ns;
            n += inside;
            n_over += inside && fused->ends_ns[r] <= step->end_ns;
        }
    return n_over * 2 > n;
}

/* What Horovod's thread did for a round belongs to where the rank handed over the round's first
 * tensor, as device work belongs to its launch, where the program waits for the round: of a rank
 * without a timeline, the last group may seem to end after the iteration, when its own part was
 * done. */
static int64_t belongs_at(struct slices_cutter *cutter, uint32_t span, int64_t start)
{
    const struct trace_rank *trace = cutter->rank->trace;
    const struct fused_rank *fused = &trace->fused;
    if (!cutter->waits_for_rounds || trace->spans[span].track != fused->track)
        return start;
    while (cutter->round < fused->n_rounds && fused->starts_ns[cutter->round] <= start)
        cutter->round++;
    for (uint32_t r = cutter->round; r-- > 0;)
        if (fused->starts_ns[r] != ABSENT)
            return fused->starts_ns[r];
    return start;
}

/* Appends a slice if it lies in a step, and returns its id or NO_ID. */
static uint32_t slices_emit(struct slices_cutter *cutter, uint32_t span, uint32_t segment,
                            int64_t start, int64_t end)
{
    struct rank_build *rank = cutter->rank;
    int64_t at = belongs_at(cutter, span, start);
    uint32_t step = find_step(cutter, at);
    if (step == NO_ID)
        return NO_ID;
    if (at != start) {
        int64_t over_ns = rank->steps.at[step].end_ns;
        start = MIN(start, over_ns);
        end = MIN(end, over_ns);
    }
    array_add(&rank->slices, .start_ns = start, .end_ns = end, .span = span, .segment = segment,
              .launch = NO_ID, .next = NO_ID);
    return (uint32_t)rank->slices.n - 1;
}

/* The profiler takes its time before an op's start and after its end, outside of the op itself. */
static bool is_profiled(const struct slices_cutter *cutter, uint32_t span)
{
    return cutter->rank->trace->spans[span].kind == SPAN_CPU_OP;
}

/* What the profiler did in the slice just appended and before it. */
static void count_profiled(struct slices_cutter *cutter, uint32_t slice, unsigned within,
                           bool outermost, uint32_t span)
{
    if (slice == NO_ID)
        return;
    struct slice *is = &cutter->rank->slices.at[slice];
    is->profiled_within = within & 3;
    if (outermost && is->segment == 0)
        is->profiled_before = (cutter->after_op + is_profiled(cutter, span)) & 3;
}

/* ---- what calls launch ---- */

static bool is_device_work(const struct trace_span *span)
{
    return span->kind == SPAN_KERNEL || span->kind == SPAN_MEMCPY || span->kind == SPAN_MEMSET;
}

static uint64_t launch_key(const struct trace_span *span)
{
    return build_correlation_key(span->correlation, span->window);
}

/* All device work that may have been launched. */
static void find_launches(struct slices_cutter *cutter)
{
    EACH_OF (const struct trace_span, span, cutter->rank->trace->spans,
             cutter->rank->trace->n_spans)
        if (cutter->rank->trace->tracks[span->track].gpu && is_device_work(span) &&
            span->correlation &&
            map_insert(&cutter->launch_of, launch_key(span), cutter->launches.n))
            array_add(&cutter->launches, .device = (uint32_t)(span - cutter->rank->trace->spans),
                      .slice = NO_ID);
}

/* What the device did for a call, or is part of, by the correlation of either; NULL: nothing. */
static struct launch *launch_of(const struct slices_cutter *cutter, const struct trace_span *span)
{
    uint64_t found;
    return span->correlation && map_get(&cutter->launch_of, launch_key(span), &found)
               ? &cutter->launches.at[found]
               : NULL;
}

/* An op launches where no call of a runtime was recorded. */
static struct launch *find_launch(const struct slices_cutter *cutter, const struct trace_span *span)
{
    return span->kind == SPAN_RUNTIME || span->kind == SPAN_CPU_OP ? launch_of(cutter, span) : NULL;
}

static void set_launch(struct slices_cutter *cutter, struct launch *launch, uint32_t slice)
{
    launch->slice = slice;
    launch->step = cutter->step;
}

/* ---- threads ---- */

/* A span without children. A call that copies is cut where its device work starts: the head
 * launches, the tail waits if the copy blocks. */
static void emit_leaf(struct slices_cutter *cutter, const struct open_span *open)
{
    const struct trace_span *span = &cutter->rank->trace->spans[open->span];
    struct launch *launch = find_launch(cutter, span);
    if (!launch) {
        uint32_t slice = slices_emit(cutter, open->span, 0, open->cursor, open->end);
        count_profiled(cutter, slice, 0, cutter->n_open == 0, open->span);
        return;
    }
    bool copies = cutter->rank->classes[span->name] & NAME_COPY_CALL;
    int64_t split = MAX(cutter->rank->trace->spans[launch->device].start_ns, open->cursor);
    if (split > open->end || !copies)
        split = open->end;
    uint32_t slice = slices_emit(cutter, open->span, 0, open->cursor, split);
    set_launch(cutter, launch, slice);
    if (copies && slice != NO_ID)
        slices_emit(cutter, open->span, SEGMENT_TAIL, split, open->end);
}

/* A call that encloses others launches with its last stretch, unless one of them does. */
static void emit_rest(struct slices_cutter *cutter, const struct open_span *open)
{
    const struct trace_span *span = &cutter->rank->trace->spans[open->span];
    uint32_t slice = slices_emit(cutter, open->span, open->segment, open->cursor, open->end);
    count_profiled(cutter, slice, open->after_op, false, open->span);
    struct launch *launch = find_launch(cutter, span);
    if (launch && launch->slice == NO_ID)
        set_launch(cutter, launch, slice);
}

static void close_top(struct slices_cutter *cutter, int64_t at)
{
    struct open_span *top = &cutter->open[--cutter->n_open];
    struct open_span *around = cutter->n_open > 0 ? top - 1 : NULL;
    top->end = MIN(top->end, at); /* a sibling begins before it is over: cut */
    top->end = MAX(top->end, top->cursor);
    if (top->segment == 0)
        emit_leaf(cutter, top);
    else
        emit_rest(cutter, top);
    if (around)
        around->cursor = MAX(around->cursor, top->end);
    *(around ? &around->after_op : &cutter->after_op) = is_profiled(cutter, top->span);
}

static void open_one(struct slices_cutter *cutter, uint32_t index, int64_t *floor)
{
    const struct trace_span *span = &cutter->rank->trace->spans[index];
    int64_t start = MAX(span->start_ns, *floor);
    int64_t end = MAX(span_end_ns(span), start);
    while (cutter->n_open > 0) {
        const struct open_span *top = &cutter->open[cutter->n_open - 1];
        bool inside = start < top->end && (end <= top->end || span->parent == top->span);
        if (inside)
            end = MIN(end, top->end); /* beyond by rounding */
        if (inside || (start == top->end && end == start && span->parent == top->span))
            break;
        close_top(cutter, MIN(top->end, start));
    }
    if (cutter->n_open == MAX_OPEN)
        return;
    if (cutter->n_open > 0) {
        struct open_span *top = &cutter->open[cutter->n_open - 1];
        start = MAX(start, top->cursor);
        end = MAX(end, start);
        uint32_t slice = slices_emit(cutter, top->span, top->segment, top->cursor, start);
        count_profiled(cutter, slice, top->after_op + is_profiled(cutter, index),
                       cutter->n_open == 1, top->span);
        top->segment++;
        top->cursor = start;
    }
    *floor = start;
    cutter->open[cutter->n_open++] =
        (struct open_span){.span = index, .segment = 0, .cursor = start, .end = end};
}

/* What a collective's own thread does within it, copying and dividing, is part of it. */
static bool in_collective(const struct rank_build *rank, const struct trace_span *span)
{
    for (uint32_t up = span->parent; up != NO_ID; up = rank->trace->spans[up].parent) {
        span = &rank->trace->spans[up];
        if (build_runs_collective(rank, span))
            return true;
    }
    return false;
}

static bool is_work(const struct rank_build *rank, const struct trace_span *span)
{
    uint32_t class = rank->classes[span->name];
    if (class & (NAME_STEP | NAME_OPTIMIZER_STEP | NAME_ZERO_GRAD))
        return false;
    return span->kind == SPAN_CPU_OP || span->kind == SPAN_RUNTIME ||
           (span->kind == SPAN_ANNOTATION && (class & NAME_LOADER));
}

/* What a CPU track is for: a thread that only polls (event queries of a watchdog) takes no part;
 * one that runs collectives may do other work between them, such as what a DDP hook asked for. */
enum track_use { TRACK_OPS = 1, TRACK_COMM = 2, TRACK_INBOX = 4 };

static unsigned use_of(const struct slices_cutter *cutter, const struct trace_track *track)
{
    const struct rank_build *rank = cutter->rank;
    unsigned use = 0;
    EACH_OF (const struct trace_span, span, rank->trace->spans + track->first, track->n)
        if (span->kind == SPAN_TRANSFER)
            use |= TRACK_INBOX;
        else if (build_runs_collective(rank, span))
            use |= TRACK_COMM;
        else if (use & TRACK_OPS)
            continue;
        else if (span->kind == SPAN_CPU_OP ? !in_collective(rank, span)
                                           : span->kind == SPAN_RUNTIME && launch_of(cutter, span))
            use |= TRACK_OPS;
    return use;
}

static void cut_ops(struct slices_cutter *cutter, uint32_t track_index, bool communicates)
{
    const struct rank_build *rank = cutter->rank;
    const struct trace_track *track = &rank->trace->tracks[track_index];
    int64_t floor = INT64_MIN;
    start_track(cutter, DPRO_DEVICE_CPU_THREAD, track_index);
    for (uint32_t i = track->first; i < track->first + track->n; i++)
        if (is_work(rank, &rank->trace->spans[i]) &&
            !map_get(&cutter->stored_ns, i + UINT64_C(1), NULL) &&
            !(communicates && in_collective(rank, &rank->trace->spans[i])))
            open_one(cutter, i, &floor);
    while (cutter->n_open > 0)
        close_top(cutter, INT64_MAX);
    finish_track(cutter);
}

/* What came in, in order of when it was asked for; many at a time. */
static void cut_inbox(struct slices_cutter *cutter, uint32_t track_index)
{
    const struct trace_rank *trace = cutter->rank->trace;
    const struct trace_track *track = &trace->tracks[track_index];
    start_track(cutter, DPRO_DEVICE_LINK_RX, track_index);
    for (uint32_t i = track->first; i < track->first + track->n; i++) {
        const struct trace_span *span = &trace->spans[i];
        if (span->kind == SPAN_TRANSFER)
            slices_emit(cutter, i, 0, span->start_ns, span_end_ns(span));
    }
    finish_track(cutter);
}

ORDER(compare_starts, struct slice, ASCENDING(start_ns) ?: ASCENDING(span));

/* Cuts all CPU tracks; the collectives of all communication threads are one track, in order of
 * start. */
static void cut_threads(struct slices_cutter *cutter)
{
    struct rank_build *rank = cutter->rank;
    SCRATCH ARRAY(struct slice) collectives = {0};
    for (uint32_t t = 0; t < rank->trace->n_tracks; t++) {
        const struct trace_track *track = &rank->trace->tracks[t];
        unsigned use = track->gpu ? 0 : use_of(cutter, track);
        if (use & TRACK_OPS)
            cut_ops(cutter, t, use & TRACK_COMM);
        if (use & TRACK_INBOX)
            cut_inbox(cutter, t);
        for (uint32_t i = track->first; (use & TRACK_COMM) && i < track->first + track->n; i++) {
            const struct trace_span *span = &rank->trace->spans[i];
            uint64_t end = map_or(&cutter->stored_ns, i + UINT64_C(1), (uint64_t)span_end_ns(span));
            if (build_runs_collective(rank, span))
                array_add(&collectives, .start_ns = span->start_ns, .end_ns = (int64_t)end,
                          .span = i);
        }
    }
    if (collectives.n == 0)
        return;
    array_sort(&collectives, compare_starts);
    start_track(cutter, DPRO_DEVICE_COMM_THREAD, NO_ID);
    EACH (const struct slice, slice, collectives)
        slices_emit(cutter, slice->span, 0, slice->start_ns, slice->end_ns);
    finish_track(cutter);
}

/* ---- streams ---- */

/* Where a span of a stream belongs. */
struct device_work {
    uint32_t launch; /* the slice of the call that launched it; NO_ID: none is known */
    uint32_t step;   /* NO_ID: none, or it is no work */
};

/* By step: when a stream begins the first work that was launched in the row of steps that follow
 * each other. A stream's work runs in order, so what comes before was launched before the row; not
 * before a step alone if other work of calls that were not recorded runs between its own. */
static void find_own_work(const struct rank_build *rank, const struct trace_track *track,
                          const struct device_work *works, int64_t *own_ns)
{
    const struct trace_span *spans = rank->trace->spans + track->first;
    for (size_t s = 0; s < rank->steps.n; s++)
        own_ns[s] = INT64_MAX;
    for (uint32_t i = 0; i < track->n; i++)
        if (works[i].step != NO_ID)
            own_ns[works[i].step] = MIN(own_ns[works[i].step], spans[i].start_ns);
    for (uint32_t i = track->n, step = NO_ID; i-- > 0;) {
        step = works[i].step != NO_ID ? works[i].step : step;
        bool lacks_call = works[i].launch == NO_ID && is_device_work(&spans[i]);
        if (lacks_call && step != NO_ID && spans[i].start_ns > own_ns[step] &&
            step_is_alone(rank, step))
            own_ns[step] = INT64_MIN;
    }
    for (size_t s = 1; s < rank->steps.n; s++)
        if (rank->steps.at[s].follows)
            own_ns[s] = MIN(own_ns[s], own_ns[s - 1]);
    for (size_t s = rank->steps.n; s-- > 1;)
        if (rank->steps.at[s].follows)
            own_ns[s - 1] = own_ns[s];
}

/* The step of work whose call was made outside of the measured iterations, or was not recorded: by
 * its own start. Where the CPU is ahead by more than a step, work that was launched before the
 * first step still runs in later ones, of which it is no part. NO_ID: none. */
static uint32_t step_without_call(const struct rank_build *rank, const int64_t *own_ns,
                                  const struct trace_span *span)
{
    size_t s = LOWER_BOUND(i, (size_t)0, rank->steps.n, rank->steps.at[i].end_ns <= span->start_ns);
    bool outside = s == rank->steps.n || rank->steps.at[s].start_ns > span->start_ns;
    return outside || ((rank->steps.at[s].follows || step_is_alone(rank, s)) &&
                       own_ns[s] != INT64_MAX && span->start_ns < own_ns[s])
               ? NO_ID
               : (uint32_t)s;
}

/* The step of each device span is that of the call which launched it, wherever it ran. */
static void cut_stream(struct slices_cutter *cutter, uint32_t track_index)
{
    struct rank_build *rank = cutter->rank;
    const struct trace_track *track = &rank->trace->tracks[track_index];
    const struct trace_span *spans = rank->trace->spans + track->first;
    SCRATCH struct device_work *works = mem_alloc((track->n + 1) * sizeof *works);
    SCRATCH int64_t *own_ns = mem_array(rank->steps.n + 1, sizeof *own_ns);
    SCRATCH uint32_t *fill = mem_array(rank->steps.n + 1, sizeof *fill);
    for (uint32_t i = 0; i < track->n; i++) {
        const struct launch *known =
            is_device_work(&spans[i]) ? launch_of(cutter, &spans[i]) : NULL;
        works[i].launch = known ? known->slice : NO_ID;
        works[i].step = works[i].launch != NO_ID ? known->step : NO_ID;
    }
    find_own_work(rank, track, works, own_ns);
    for (uint32_t i = 0; i < track->n; i++) {
        if (works[i].launch == NO_ID && is_device_work(&spans[i]))
            works[i].step = step_without_call(rank, own_ns, &spans[i]);
        if (works[i].step != NO_ID)
            fill[works[i].step + 1]++;
    }
    start_track(cutter, DPRO_DEVICE_GPU_STREAM, track_index);
    array_reserve(&rank->slices, track->n);
    fill[0] = (uint32_t)rank->slices.n;
    for (size_t s = 0; s < rank->steps.n; s++)
        cutter->track->first[s + 1] = fill[s + 1] += fill[s];
    rank->slices.n = fill[rank->steps.n];
    for (uint32_t i = 0; i < track->n; i++)
        if (works[i].step != NO_ID)
            rank->slices.at[fill[works[i].step]++] =
                (struct slice){.start_ns = spans[i].start_ns,
                               .end_ns = span_end_ns(&spans[i]),
                               .span = track->first + i,
                               .launch = works[i].launch,
                               .next = NO_ID};
}

/* Chains the device work of each call in order of slice id: stream by stream, then by start. */
static void chain_launches(struct rank_build *rank, uint32_t first_device)
{
    for (uint32_t i = (uint32_t)rank->slices.n; i-- > first_device;) {
        struct slice *slice = &rank->slices.at[i];
        if (slice->launch == NO_ID)
            continue;
        struct slice *call = &rank->slices.at[slice->launch];
        slice->next = call->launch;
        call->launch = i;
    }
}

void build_slices(struct rank_build *rank)
{
    enum { MOST_SLICES = 3 }; /* of a span: its parent's stretch before it, and its own two parts */
    struct slices_cutter cutter = {.rank = rank, .waits_for_rounds = waits_for_rounds(rank)};
    build_find_stores(rank, &cutter.stored_ns);
    find_launches(&cutter);
    array_reserve(&rank->slices, MOST_SLICES * (size_t)rank->trace->n_spans); /* touched if used */
    cut_threads(&cutter);
    uint32_t first_device = (uint32_t)rank->slices.n;
    for (uint32_t t = 0; t < rank->trace->n_tracks; t++)
        if (rank->trace->tracks[t].gpu)
            cut_stream(&cutter, t);
    chain_launches(rank, first_device);
    rank->slices.cap = rank->slices.n;
    rank->slices.at = mem_resize(rank->slices.at, rank->slices.n, sizeof *rank->slices.at);
    FREE_ALL(&cutter.launch_of, &cutter.stored_ns, &cutter.launches);
}
