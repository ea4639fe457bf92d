/* Cuts tracks into slices.
 *
 * Spans on a CPU thread nest. Replay needs the innermost span at each moment. So a leaf is one
 * slice, and a span with children is the stretches between them, numbered. Even empty stretches are
 * kept here: clocks of one microsecond make them come and go, and sequences must match between
 * iterations. Ranges that a user or the profiler drew around ops are no work and are looked
 * through. */
#include "base/parallel.h"
#include "graph/ops/cuts.h"

enum { MAX_OPEN = 512 }; /* deeper nesting counts as part of the innermost open span */

struct open_span {
    uint32_t span;
    uint32_t segment;
    int64_t cursor, end;
    bool after_op; /* its last child was an op */
};

struct slices_cutter {
    const struct cuts *cuts;
    struct rank_build *rank;
    struct cut_track *track;
    uint32_t step;  /* the step that the next slice falls into, or the one after it */
    uint32_t round; /* of Horovod's, that begins after the last slice */
    struct open_span open[MAX_OPEN];
    uint32_t n_open;
    bool after_op; /* the last span without parent was an op */
};

/* Moves on to the step that holds `time`; NO_ID when none does. Times come in ascending order. */
static uint32_t find_step(struct slices_cutter *cutter, int64_t time)
{
    const struct rank_build *rank = cutter->rank;
    struct cut_track *track = cutter->track;
    bool program = track->is.source == rank->main_track;
    for (; cutter->step < rank->steps.n; track->is.first[++cutter->step] = track->n) {
        const struct step *step = &rank->steps.at[cutter->step];
        if ((program ? step->program_end_ns : step->end_ns) > time)
            return (program ? step->program_start_ns : step->start_ns) <= time ? cutter->step
                                                                               : NO_ID;
    }
    return NO_ID;
}

/* The profiler takes its time before an op's start and after its end, outside of the op itself. */
static bool is_profiled(const struct slices_cutter *cutter, uint32_t span)
{
    return cutter->rank->trace->spans[span].kind == SPAN_CPU_OP;
}

/* Whether most of Horovod's rounds end in the iteration that handed over their first tensor. */
static bool waits_for_rounds(const struct rank_build *rank)
{
    const struct fused_rank *fused = &rank->trace->fused;
    uint32_t n = 0, n_over = 0;
    for (size_t s = 0; s < rank->steps.n; s++)
        for (uint32_t r = 0; r < fused->n_rounds; r++) {
            const struct step *step = &rank->steps.at[s];
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
    if (!cutter->cuts->waits_for_rounds || trace->spans[span].track != fused->track)
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
    const struct rank_build *rank = cutter->rank;
    int64_t at = belongs_at(cutter, span, start);
    uint32_t step = find_step(cutter, at);
    if (step == NO_ID)
        return NO_ID;
    if (at != start) {
        int64_t over_ns = rank->steps.at[step].end_ns;
        start = MIN(start, over_ns);
        end = MIN(end, over_ns);
    }
    cutter->track->slices[cutter->track->n] = (struct slice){.start_ns = start,
                                                             .end_ns = end,
                                                             .span = span,
                                                             .segment = segment,
                                                             .launch = NO_ID,
                                                             .next = NO_ID};
    return cutter->track->n++;
}

/* What the profiler did in the slice just appended and before it. */
static void count_profiled(struct slices_cutter *cutter, uint32_t slice, unsigned within,
                           bool outermost, uint32_t span)
{
    if (slice == NO_ID)
        return;
    struct slice *is = &cutter->track->slices[slice];
    is->profiled_within = within & 3;
    if (outermost && is->segment == 0)
        is->profiled_before = (cutter->after_op + is_profiled(cutter, span)) & 3;
}

static void add_call(struct slices_cutter *cutter, const struct launch *launch, uint32_t slice,
                     bool yields)
{
    array_add(&cutter->track->calls, (uint32_t)(launch - cutter->cuts->launches.at), slice,
              cutter->step, yields);
}

/* An op launches where no call of a runtime was recorded. */
static const struct launch *find_launch(struct slices_cutter *cutter, const struct trace_span *span)
{
    return span->kind == SPAN_RUNTIME || span->kind == SPAN_CPU_OP
               ? cuts_find_launch(cutter->cuts, span)
               : NULL;
}

/* A span without children. A call that copies is cut where its device work starts: the head
 * launches, the tail waits if the copy blocks. */
static void emit_leaf(struct slices_cutter *cutter, const struct open_span *open)
{
    const struct trace_span *span = &cutter->rank->trace->spans[open->span];
    const struct launch *launch = find_launch(cutter, span);
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
    add_call(cutter, launch, slice, false);
    if (copies && slice != NO_ID)
        slices_emit(cutter, open->span, SEGMENT_TAIL, split, open->end);
}

/* A call that encloses others launches with its last stretch, unless one of them does. */
static void emit_rest(struct slices_cutter *cutter, const struct open_span *open)
{
    const struct trace_span *span = &cutter->rank->trace->spans[open->span];
    uint32_t slice = slices_emit(cutter, open->span, open->segment, open->cursor, open->end);
    count_profiled(cutter, slice, open->after_op, false, open->span);
    const struct launch *launch = find_launch(cutter, span);
    if (launch)
        add_call(cutter, launch, slice, true);
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
    switch (span->kind) {
    case SPAN_CPU_OP:
    case SPAN_RUNTIME:
        return true;
    case SPAN_ANNOTATION:
        return class & NAME_LOADER;
    default:
        return false;
    }
}

static void finish_track(struct slices_cutter *cutter)
{
    while (cutter->step < cutter->rank->steps.n)
        cutter->track->is.first[++cutter->step] = cutter->track->n;
}

static void start_track(struct slices_cutter *cutter, const struct cuts *cuts,
                        struct cut_track *track, uint8_t kind, uint32_t source,
                        struct slice *slices)
{
    track->is = (struct track){.kind = kind,
                               .source = source,
                               .first = mem_array(cuts->rank->steps.n + 1, sizeof(uint32_t))};
    track->slices = slices;
    cutter->cuts = cuts;
    cutter->rank = cuts->rank;
    cutter->track = track;
    cutter->step = cutter->round = cutter->n_open = 0;
    cutter->after_op = false;
}

/* What a CPU track is for: a thread that only polls (event queries of a watchdog) takes no part;
 * one that runs collectives may do other work between them, such as what a DDP hook asked for. */
enum track_use { TRACK_IDLE = 0, TRACK_OPS = 1, TRACK_COMM = 2, TRACK_INBOX = 4 };

/* A span gives its parent's stretch before it, and its own two parts or its last stretch. */
enum { MOST_SLICES = 3 };

static void cut_ops(struct cuts *cuts, uint32_t track_index)
{
    const struct rank_build *rank = cuts->rank;
    const struct trace_track *track = &rank->trace->tracks[track_index];
    unsigned use = cuts->uses[track_index];
    int64_t floor = INT64_MIN;
    struct slices_cutter cutter;
    start_track(&cutter, cuts, &cuts->tracks[CUTS_A_TRACK * track_index + CUT_OPS],
                DPRO_DEVICE_CPU_THREAD, track_index,
                rank->slices.at + (size_t)MOST_SLICES * track->first);
    for (uint32_t i = track->first; i < track->first + track->n; i++)
        if (is_work(rank, &rank->trace->spans[i]) &&
            !map_get(&cuts->stored_ns, i + UINT64_C(1), NULL) &&
            !((use & TRACK_COMM) && in_collective(rank, &rank->trace->spans[i])))
            open_one(&cutter, i, &floor);
    while (cutter.n_open > 0)
        close_top(&cutter, INT64_MAX);
    finish_track(&cutter);
}

static unsigned use_of(const struct cuts *cuts, uint32_t track_index)
{
    const struct rank_build *rank = cuts->rank;
    const struct trace_track *track = &rank->trace->tracks[track_index];
    unsigned use = TRACK_IDLE;
    EACH_OF (const struct trace_span, span, rank->trace->spans + track->first, track->n)
        if (span->kind == SPAN_TRANSFER)
            use |= TRACK_INBOX;
        else if (build_runs_collective(rank, span))
            use |= TRACK_COMM;
        else if (use & TRACK_OPS)
            continue;
        else if (span->kind == SPAN_CPU_OP)
            use |= in_collective(rank, span) ? TRACK_IDLE : TRACK_OPS;
        else if (span->kind == SPAN_RUNTIME && cuts_find_launch(cuts, span))
            use |= TRACK_OPS;
    return use;
}

/* What came in, in order of when it was asked for; many at a time. */
static void cut_inbox(struct cuts *cuts, uint32_t track_index)
{
    const struct trace_rank *trace = cuts->rank->trace;
    const struct trace_track *track = &trace->tracks[track_index];
    struct cut_track *tracks = &cuts->tracks[CUTS_A_TRACK * track_index];
    struct slices_cutter cutter;
    start_track(&cutter, cuts, &tracks[CUT_INBOX], DPRO_DEVICE_LINK_RX, track_index,
                cuts->rank->slices.at + (size_t)MOST_SLICES * track->first + tracks[CUT_OPS].n);
    for (uint32_t i = track->first; i < track->first + track->n; i++) {
        const struct trace_span *span = &trace->spans[i];
        if (span->kind == SPAN_TRANSFER)
            slices_emit(&cutter, i, 0, span->start_ns, span_end_ns(span));
    }
    finish_track(&cutter);
}

static void cut_cpu_track(void *arg, size_t t)
{
    struct cuts *cuts = arg;
    if (cuts->rank->trace->tracks[t].gpu)
        return;
    cuts->uses[t] = use_of(cuts, (uint32_t)t);
    if (cuts->uses[t] & TRACK_OPS)
        cut_ops(cuts, (uint32_t)t);
    if (cuts->uses[t] & TRACK_INBOX)
        cut_inbox(cuts, (uint32_t)t);
}

ORDER(compare_starts, struct slice, ASCENDING(start_ns) ?: ASCENDING(span));

/* A call's slice, by its number in the rank. */
static void join_calls(struct cuts *cuts, struct cut_track *track)
{
    uint32_t n_before = (uint32_t)cuts->rank->slices.n;
    EACH (const struct call, call, track->calls) {
        struct launch *launch = &cuts->launches.at[call->launch];
        if (call->yields && launch->slice != NO_ID)
            continue;
        launch->slice = call->slice == NO_ID ? NO_ID : n_before + call->slice;
        launch->step = call->step;
    }
    array_fini(&track->calls);
}

/* Its slices follow those of the tracks that were joined. */
static void join_track(struct cuts *cuts, struct cut_track *track)
{
    struct rank_build *rank = cuts->rank;
    join_calls(cuts, track);
    for (size_t s = 0; s <= rank->steps.n; s++)
        track->is.first[s] += (uint32_t)rank->slices.n;
    array_push(&rank->tracks, track->is);
    memmove(rank->slices.at + rank->slices.n, track->slices, track->n * sizeof *track->slices);
    rank->slices.n += track->n;
}

/* All communication threads in one track, in order of start. */
static void join_comm_tracks(struct cuts *cuts)
{
    struct rank_build *rank = cuts->rank;
    SCRATCH ARRAY(struct slice) found = {0};
    for (uint32_t t = 0; t < rank->trace->n_tracks; t++) {
        const struct trace_track *track = &rank->trace->tracks[t];
        if (track->gpu || !(cuts->uses[t] & TRACK_COMM))
            continue;
        for (uint32_t i = track->first; i < track->first + track->n; i++) {
            const struct trace_span *span = &rank->trace->spans[i];
            uint64_t end = map_or(&cuts->stored_ns, i + UINT64_C(1), (uint64_t)span_end_ns(span));
            if (build_runs_collective(rank, span))
                array_add(&found, .start_ns = span->start_ns, .end_ns = (int64_t)end, .span = i);
        }
    }
    if (found.n > 0) {
        struct slices_cutter cutter;
        struct cut_track track = {.n = 0};
        array_sort(&found, compare_starts);
        array_reserve(&rank->slices, found.n);
        start_track(&cutter, cuts, &track, DPRO_DEVICE_COMM_THREAD, NO_ID,
                    rank->slices.at + rank->slices.n);
        EACH (const struct slice, slice, found)
            slices_emit(&cutter, slice->span, 0, slice->start_ns, slice->end_ns);
        finish_track(&cutter);
        join_track(cuts, &track);
    }
}

void build_slices(struct rank_build *rank)
{
    const struct trace_rank *trace = rank->trace;
    size_t n_tracks = (size_t)CUTS_A_TRACK * trace->n_tracks;
    struct cuts cuts = {.rank = rank,
                        .waits_for_rounds = waits_for_rounds(rank),
                        .tracks = mem_array(n_tracks + 1, sizeof *cuts.tracks),
                        .uses = mem_array(trace->n_tracks + 1, sizeof *cuts.uses)};
    build_find_stores(rank, &cuts.stored_ns);
    cuts_find_launches(&cuts);
    array_reserve(&rank->slices, MOST_SLICES * (size_t)trace->n_spans); /* touched where used */
    parallel_for(trace->n_tracks, rank->threads, cut_cpu_track, &cuts);
    EACH_OF (struct cut_track, track, cuts.tracks, n_tracks)
        if (track->is.first)
            join_track(&cuts, track);
    join_comm_tracks(&cuts);
    cuts_add_streams(&cuts);
    rank->slices.cap = rank->slices.n;
    rank->slices.at = mem_resize(rank->slices.at, rank->slices.n, sizeof *rank->slices.at);
    FREE_ALL(&cuts.launch_of, &cuts.stored_ns, &cuts.launches, &cuts.tracks, &cuts.uses);
}
