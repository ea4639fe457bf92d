/* graph/ops/cut_slices.c: cuts tracks into slices.
 *
 * Spans on a CPU thread nest. What counts for replay is which span is innermost at each moment, so
 * a span with children becomes the stretches between them, numbered, and a leaf becomes one slice.
 * Even empty stretches are kept here: clocks of one microsecond make them come and go, and
 * sequences must match between iterations. Ranges that a user or the profiler drew around ops are
 * no work and are looked through. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/map.h"
#include "base/memory.h"
#include "base/sort.h"
#include "graph/names/span_names.h"
#include "graph/rank_build.h"

enum { MAX_OPEN = 512 }; /* deeper nesting counts as part of the innermost open span */

struct open_span {
    uint32_t span;
    uint32_t segment;
    int64_t cursor, end;
    bool after_op; /* its last child was an op */
};

/* Device work and the call that launched it. */
struct launch {
    uint32_t device; /* the first span of the work */
    uint32_t slice;  /* of the call; NO_ID: none found */
};

struct cutter {
    struct rank_build *rank;
    struct track *track;
    uint32_t step;  /* the step that the next slice falls into, or the one after it */
    uint32_t round; /* of Horovod's, that begins after the last slice */
    bool waits_for_rounds;
    struct map launch_of; /* window and correlation -> index into `launches` */
    ARRAY(struct launch) launches;
    struct map stored_ns; /* see build_find_stores */
    struct open_span open[MAX_OPEN];
    uint32_t n_open;
    bool after_op; /* the last span without parent was an op */
};

static bool is_device_work(const struct trace_span *span)
{
    return span->kind == SPAN_KERNEL || span->kind == SPAN_MEMCPY || span->kind == SPAN_MEMSET;
}

/* What the device did for a call, which has its correlation; NULL: nothing. */
static struct launch *find_launch(const struct cutter *cutter, const struct trace_span *span)
{
    uint64_t at;
    return span->correlation && map_get(&cutter->launch_of,
                                        build_correlation_key(span->correlation, span->window), &at)
               ? &cutter->launches.at[at]
               : NULL;
}

/* Moves on to the step that holds `time`; NO_ID when none does. Times come in ascending order. */
static uint32_t find_step(struct cutter *cutter, int64_t time)
{
    const struct rank_build *rank = cutter->rank;
    bool program = cutter->track->source == rank->main_track;
    for (; cutter->step < rank->steps.n;
         cutter->track->first[++cutter->step] = (uint32_t)rank->slices.n) {
        const struct step *step = &rank->steps.at[cutter->step];
        if ((program ? step->program_end_ns : step->end_ns) > time)
            return (program ? step->program_start_ns : step->start_ns) <= time ? cutter->step
                                                                               : NO_ID;
    }
    return NO_ID;
}

/* The profiler takes its time before an op's start and after its end, outside of the op itself. */
static bool is_profiled(const struct cutter *cutter, uint32_t span)
{
    return cutter->rank->trace->spans[span].kind == SPAN_CPU_OP;
}

/* Whether most rounds of Horovod's are over in the iteration that handed over their first tensor.
 */
static bool waits_for_rounds(const struct rank_build *rank)
{
    const struct fused_rank *fused = &rank->trace->fused;
    uint32_t n = 0, n_over = 0;
    for (size_t s = 0; s < rank->steps.n; s++)
        for (uint32_t r = 0; r < fused->n_rounds; r++) {
            const struct step *step = &rank->steps.at[s];
            if (fused->starts_ns[r] == ABSENT || fused->starts_ns[r] < step->start_ns ||
                fused->starts_ns[r] >= step->end_ns)
                continue;
            n++;
            n_over += fused->ends_ns[r] <= step->end_ns;
        }
    return n_over * 2 > n;
}

/* What Horovod's thread did for a round belongs to where the rank handed over the round's first
 * tensor, as device work belongs to its launch, where the program waits for the round: of a rank
 * without a timeline, the last group may seem to end after the iteration, when its own part was
 * done. */
static int64_t belongs_at(struct cutter *cutter, uint32_t span, int64_t start)
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

/* Appends a slice if it lies in a step; *slice is its id or NO_ID. */
static int emit(struct cutter *cutter, uint32_t span, uint32_t segment, int64_t start, int64_t end,
                uint32_t *slice)
{
    *slice = NO_ID;
    int64_t at = belongs_at(cutter, span, start);
    uint32_t step = find_step(cutter, at);
    if (step == NO_ID)
        return 0;
    if (at != start) {
        int64_t over_ns = cutter->rank->steps.at[step].end_ns;
        start = start < over_ns ? start : over_ns;
        end = end < over_ns ? end : over_ns;
    }
    struct slice fresh = {.start_ns = start,
                          .end_ns = end,
                          .span = span,
                          .segment = segment,
                          .launch = NO_ID,
                          .next = NO_ID};
    *slice = (uint32_t)cutter->rank->slices.n;
    return array_push(&cutter->rank->slices, fresh);
}

/* What the profiler did in the slice just appended and before it. */
static void count_profiled(struct cutter *cutter, uint32_t slice, unsigned within, bool outermost,
                           uint32_t span)
{
    if (slice == NO_ID)
        return;
    cutter->rank->slices.at[slice].profiled_within = within & 3;
    if (outermost && cutter->rank->slices.at[slice].segment == 0)
        cutter->rank->slices.at[slice].profiled_before =
            (cutter->after_op + is_profiled(cutter, span)) & 3;
}

/* A span without children. A call that copies is cut where its device work starts: the head
 * launches, the tail waits if the copy blocks. */
static int emit_leaf(struct cutter *cutter, const struct open_span *open)
{
    const struct trace_span *span = &cutter->rank->trace->spans[open->span];
    struct launch *launch = span->kind == SPAN_RUNTIME ? find_launch(cutter, span) : NULL;
    uint32_t slice;
    if (launch) {
        int64_t split = cutter->rank->trace->spans[launch->device].start_ns;
        bool copies = cutter->rank->classes[span->name] & NAME_COPY_CALL;
        if (split < open->cursor)
            split = open->cursor;
        if (split > open->end || !copies)
            split = open->end;
        if (emit(cutter, open->span, 0, open->cursor, split, &slice) < 0)
            return -1;
        launch->slice = slice;
        if (copies && slice != NO_ID)
            return emit(cutter, open->span, SEGMENT_TAIL, split, open->end, &slice);
        return 0;
    }
    if (emit(cutter, open->span, 0, open->cursor, open->end, &slice) < 0)
        return -1;
    count_profiled(cutter, slice, 0, cutter->n_open == 0, open->span);
    return 0;
}

/* A call that encloses others launches with its last stretch, unless one of them does. */
static int emit_rest(struct cutter *cutter, const struct open_span *open)
{
    const struct trace_span *span = &cutter->rank->trace->spans[open->span];
    uint32_t slice;
    if (emit(cutter, open->span, open->segment, open->cursor, open->end, &slice) < 0)
        return -1;
    count_profiled(cutter, slice, open->after_op, false, open->span);
    struct launch *launch = span->kind == SPAN_RUNTIME ? find_launch(cutter, span) : NULL;
    if (launch && launch->slice == NO_ID)
        launch->slice = slice;
    return 0;
}

static int close_top(struct cutter *cutter, int64_t at)
{
    struct open_span *top = &cutter->open[--cutter->n_open];
    if (at < top->end)
        top->end = at; /* a sibling begins before it is over: cut */
    if (top->end < top->cursor)
        top->end = top->cursor;
    int status = top->segment == 0 ? emit_leaf(cutter, top) : emit_rest(cutter, top);
    if (cutter->n_open > 0 && cutter->open[cutter->n_open - 1].cursor < top->end)
        cutter->open[cutter->n_open - 1].cursor = top->end;
    if (cutter->n_open > 0)
        cutter->open[cutter->n_open - 1].after_op = is_profiled(cutter, top->span);
    else
        cutter->after_op = is_profiled(cutter, top->span);
    return status;
}

static int open_one(struct cutter *cutter, uint32_t index, int64_t *floor)
{
    const struct trace_span *span = &cutter->rank->trace->spans[index];
    int64_t start = span->start_ns < *floor ? *floor : span->start_ns;
    int64_t end = span->start_ns + span->dur_ns;
    if (end < start)
        end = start;
    while (cutter->n_open > 0) {
        const struct open_span *top = &cutter->open[cutter->n_open - 1];
        bool inside = start < top->end && (end <= top->end || span->parent == top->span);
        if (inside && end > top->end) /* by rounding */
            end = top->end;
        if (inside || (start == top->end && end == start && span->parent == top->span))
            break;
        int64_t top_end = top->end < start ? top->end : start;
        if (close_top(cutter, top_end) < 0)
            return -1;
    }
    if (cutter->n_open == MAX_OPEN)
        return 0;
    if (cutter->n_open > 0) {
        struct open_span *top = &cutter->open[cutter->n_open - 1];
        uint32_t slice;
        if (start < top->cursor)
            start = top->cursor;
        if (end < start)
            end = start;
        if (emit(cutter, top->span, top->segment, top->cursor, start, &slice) < 0)
            return -1;
        count_profiled(cutter, slice, top->after_op + is_profiled(cutter, index),
                       cutter->n_open == 1, top->span);
        top->segment++;
        top->cursor = start;
    }
    *floor = start;
    cutter->open[cutter->n_open++] =
        (struct open_span){.span = index, .segment = 0, .cursor = start, .end = end};
    return 0;
}

/* What a collective's own thread does within it, copying and dividing, is part of the collective.
 */
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

/* First slices of the steps after the last slice. */
static void finish_track(struct cutter *cutter)
{
    while (cutter->step < cutter->rank->steps.n)
        cutter->track->first[++cutter->step] = (uint32_t)cutter->rank->slices.n;
}

static int start_track(struct cutter *cutter, uint8_t kind, uint32_t source)
{
    struct rank_build *rank = cutter->rank;
    struct track *track = &rank->tracks.at[rank->tracks.n];
    *track = (struct track){.kind = kind, .source = source};
    track->first = mem_array(rank->steps.n + 1, sizeof *track->first);
    if (!track->first)
        return -1;
    rank->tracks.n++;
    track->first[0] = (uint32_t)rank->slices.n;
    cutter->track = track;
    cutter->step = cutter->round = 0;
    cutter->n_open = 0;
    cutter->after_op = false;
    return 0;
}

/* What a CPU track is for: a thread that only polls (event queries of a watchdog) takes no part;
 * one that runs collectives may do other work between them, such as what a DDP hook asked for. */
enum track_use { TRACK_IDLE = 0, TRACK_OPS = 1, TRACK_COMM = 2, TRACK_INBOX = 4 };

static int cut_cpu_track(struct cutter *cutter, uint32_t track_index, unsigned use)
{
    struct rank_build *rank = cutter->rank;
    const struct trace_track *track = &rank->trace->tracks[track_index];
    int64_t floor = INT64_MIN;
    if (start_track(cutter, DPRO_DEVICE_CPU_THREAD, track_index) < 0)
        return -1;
    for (uint32_t i = track->first; i < track->first + track->n; i++)
        if (is_work(rank, &rank->trace->spans[i]) &&
            !map_get(&cutter->stored_ns, i + UINT64_C(1), NULL) &&
            !((use & TRACK_COMM) && in_collective(rank, &rank->trace->spans[i])) &&
            open_one(cutter, i, &floor) < 0)
            return -1;
    while (cutter->n_open > 0)
        if (close_top(cutter, INT64_MAX) < 0)
            return -1;
    finish_track(cutter);
    return 0;
}

static unsigned use_of(const struct cutter *cutter, uint32_t track_index)
{
    const struct rank_build *rank = cutter->rank;
    const struct trace_track *track = &rank->trace->tracks[track_index];
    unsigned use = TRACK_IDLE;
    for (uint32_t i = track->first; i < track->first + track->n; i++) {
        const struct trace_span *span = &rank->trace->spans[i];
        if (span->kind == SPAN_TRANSFER)
            use |= TRACK_INBOX;
        else if (build_runs_collective(rank, span))
            use |= TRACK_COMM;
        else if (use & TRACK_OPS)
            continue;
        else if (span->kind == SPAN_CPU_OP)
            use |= in_collective(rank, span) ? TRACK_IDLE : TRACK_OPS;
        else if (span->kind == SPAN_RUNTIME && find_launch(cutter, span))
            use |= TRACK_OPS;
    }
    return use;
}

/* What came in, in order of when it was asked for; many at a time. */
static int cut_inbox(struct cutter *cutter, uint32_t track_index)
{
    const struct trace_rank *trace = cutter->rank->trace;
    const struct trace_track *track = &trace->tracks[track_index];
    uint32_t slice;
    if (start_track(cutter, DPRO_DEVICE_LINK_RX, track_index) < 0)
        return -1;
    for (uint32_t i = track->first; i < track->first + track->n; i++) {
        const struct trace_span *span = &trace->spans[i];
        if (span->kind == SPAN_TRANSFER &&
            emit(cutter, i, 0, span->start_ns, span->start_ns + span->dur_ns, &slice) < 0)
            return -1;
    }
    finish_track(cutter);
    return 0;
}

ORDER(compare_starts, struct slice, ASCENDING(start_ns) ?: ASCENDING(span));

/* All communication threads in one track, in order of start. */
static int cut_comm_tracks(struct cutter *cutter, const unsigned *uses)
{
    struct rank_build *rank = cutter->rank;
    ARRAY(struct slice) found = {0};
    int status = 0;
    for (uint32_t t = 0; t < rank->trace->n_tracks && status == 0; t++) {
        const struct trace_track *track = &rank->trace->tracks[t];
        if (track->gpu || !(uses[t] & TRACK_COMM))
            continue;
        for (uint32_t i = track->first; i < track->first + track->n && status == 0; i++) {
            const struct trace_span *span = &rank->trace->spans[i];
            if (!build_runs_collective(rank, span))
                continue;
            uint64_t end = (uint64_t)(span->start_ns + span->dur_ns);
            map_get(&cutter->stored_ns, i + UINT64_C(1), &end);
            struct slice slice = {.start_ns = span->start_ns,
                                  .end_ns = (int64_t)end,
                                  .span = i,
                                  .launch = NO_ID,
                                  .next = NO_ID};
            status = array_push(&found, slice);
        }
    }
    if (status == 0 && found.n > 0) {
        qsort(found.at, found.n, sizeof *found.at, compare_starts);
        status = start_track(cutter, DPRO_DEVICE_COMM_THREAD, NO_ID);
        uint32_t slice;
        for (size_t i = 0; i < found.n && status == 0; i++)
            status =
                emit(cutter, found.at[i].span, 0, found.at[i].start_ns, found.at[i].end_ns, &slice);
        if (status == 0)
            finish_track(cutter);
    }
    array_fini(&found);
    return status;
}

/* The step that goes on at a time; NO_ID: none. */
static uint32_t step_at(const struct rank_build *rank, int64_t ns)
{
    size_t low = LOWER_BOUND(i, 0, rank->steps.n, rank->steps.at[i].end_ns <= ns);
    return low < rank->steps.n && rank->steps.at[low].start_ns <= ns ? (uint32_t)low : NO_ID;
}

/* By step: when a stream begins the first work that was launched in the row of steps that follow
 * each other. A stream's work runs in order, so what comes before was launched before the row. */
static void find_own_work(const struct cutter *cutter, const uint32_t *step_of_slice,
                          const struct trace_track *track, int64_t *own_ns)
{
    const struct rank_build *rank = cutter->rank;
    for (size_t s = 0; s < rank->steps.n; s++)
        own_ns[s] = INT64_MAX;
    for (uint32_t i = track->first; i < track->first + track->n; i++) {
        const struct trace_span *span = &rank->trace->spans[i];
        const struct launch *known = is_device_work(span) ? find_launch(cutter, span) : NULL;
        uint32_t step = known && known->slice != NO_ID ? step_of_slice[known->slice] : NO_ID;
        if (step != NO_ID && span->start_ns < own_ns[step])
            own_ns[step] = span->start_ns;
    }
    for (size_t s = 1; s < rank->steps.n; s++)
        if (rank->steps.at[s].follows && own_ns[s - 1] < own_ns[s])
            own_ns[s] = own_ns[s - 1];
    for (size_t s = rank->steps.n; s-- > 1;)
        if (rank->steps.at[s].follows)
            own_ns[s - 1] = own_ns[s];
}

/* The step of each device span: that of the call which launched it, wherever it ran; without a
 * call, by its own start. Where the CPU is ahead by more than a step, work that was launched before
 * the first step still runs in later ones, of which it is no part. NO_ID: none. */
static uint32_t device_step(const struct cutter *cutter, const uint32_t *step_of_slice,
                            const int64_t *own_ns, const struct trace_span *span, uint32_t *launch)
{
    const struct rank_build *rank = cutter->rank;
    const struct launch *known = find_launch(cutter, span);
    *launch = NO_ID;
    if (known) {
        *launch = known->slice;
        if (*launch != NO_ID)
            return step_of_slice[*launch];
        /* its call was made outside of the measured iterations, or was not recorded */
    }
    uint32_t step = step_at(rank, span->start_ns);
    bool before = step != NO_ID && rank->steps.at[step].follows && own_ns[step] != INT64_MAX &&
                  span->start_ns < own_ns[step];
    return before ? NO_ID : step;
}

static int cut_stream(struct cutter *cutter, uint32_t track_index, const uint32_t *step_of_slice)
{
    struct rank_build *rank = cutter->rank;
    const struct trace_track *track = &rank->trace->tracks[track_index];
    uint32_t n_steps = (uint32_t)rank->steps.n, launch;
    uint32_t *fill = mem_array(n_steps + 1, sizeof *fill);
    int64_t *own_ns = mem_alloc((n_steps + (size_t)1) * sizeof *own_ns);
    if (!fill || !own_ns || start_track(cutter, DPRO_DEVICE_GPU_STREAM, track_index) < 0) {
        mem_free(own_ns);
        mem_free(fill);
        return -1;
    }
    find_own_work(cutter, step_of_slice, track, own_ns);
    uint32_t *first = cutter->track->first, total = 0;
    for (uint32_t i = track->first; i < track->first + track->n; i++) {
        const struct trace_span *span = &rank->trace->spans[i];
        if (!is_device_work(span))
            continue;
        uint32_t step = device_step(cutter, step_of_slice, own_ns, span, &launch);
        if (step != NO_ID)
            fill[step]++;
    }
    for (uint32_t s = 0; s <= n_steps; s++) {
        uint32_t count = s < n_steps ? fill[s] : 0;
        first[s] = fill[s] = (uint32_t)rank->slices.n + total;
        total += count;
    }
    if (array_reserve(&rank->slices, total) < 0) {
        mem_free(own_ns);
        mem_free(fill);
        return -1;
    }
    for (uint32_t i = track->first; i < track->first + track->n; i++) {
        const struct trace_span *span = &rank->trace->spans[i];
        if (!is_device_work(span))
            continue;
        uint32_t step = device_step(cutter, step_of_slice, own_ns, span, &launch);
        if (step == NO_ID)
            continue;
        rank->slices.at[fill[step]++] = (struct slice){.start_ns = span->start_ns,
                                                       .end_ns = span->start_ns + span->dur_ns,
                                                       .span = i,
                                                       .launch = launch,
                                                       .next = NO_ID};
    }
    rank->slices.n += total;
    mem_free(own_ns);
    mem_free(fill);
    return 0;
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

static int cut_all(struct cutter *cutter, unsigned *uses)
{
    struct rank_build *rank = cutter->rank;
    const struct trace_rank *trace = rank->trace;
    for (uint32_t i = 0; i < trace->n_spans; i++) {
        const struct trace_span *span = &trace->spans[i];
        if (!is_device_work(span) || !span->correlation || find_launch(cutter, span))
            continue;
        struct launch launch = {.device = i, .slice = NO_ID};
        uint64_t key = build_correlation_key(span->correlation, span->window);
        if (map_set(&cutter->launch_of, key, cutter->launches.n) < 0 ||
            array_push(&cutter->launches, launch) < 0)
            return -1;
    }
    for (uint32_t t = 0; t < trace->n_tracks; t++) {
        if (trace->tracks[t].gpu)
            continue;
        uses[t] = use_of(cutter, t);
        if ((uses[t] & TRACK_OPS) && cut_cpu_track(cutter, t, uses[t]) < 0)
            return -1;
        if ((uses[t] & TRACK_INBOX) && cut_inbox(cutter, t) < 0)
            return -1;
    }
    if (cut_comm_tracks(cutter, uses) < 0)
        return -1;

    uint32_t first_device = (uint32_t)rank->slices.n;
    uint32_t *step_of_slice = mem_alloc((first_device + 1) * sizeof *step_of_slice);
    if (!step_of_slice)
        return -1;
    for (uint32_t l = 0; l < rank->tracks.n; l++)
        for (uint32_t s = 0; s < rank->steps.n; s++)
            for (uint32_t i = rank->tracks.at[l].first[s]; i < rank->tracks.at[l].first[s + 1]; i++)
                step_of_slice[i] = s;
    int status = 0;
    for (uint32_t t = 0; t < trace->n_tracks && status == 0; t++)
        if (trace->tracks[t].gpu)
            status = cut_stream(cutter, t, step_of_slice);
    mem_free(step_of_slice);
    if (status == 0)
        chain_launches(rank, first_device);
    return status;
}

int build_slices(struct rank_build *rank, struct dpro_error *err)
{
    const struct trace_rank *trace = rank->trace;
    struct cutter *cutter = mem_array(1, sizeof *cutter);
    unsigned *uses = mem_array(trace->n_tracks + 1, sizeof *uses);
    int status = -1;
    array_reserve(&rank->tracks, trace->n_tracks + 1);
    if (cutter) {
        cutter->rank = rank;
        cutter->waits_for_rounds = waits_for_rounds(rank);
    }
    if (cutter && uses && build_find_stores(rank, &cutter->stored_ns) == 0)
        status = cut_all(cutter, uses);
    if (cutter) {
        map_fini(&cutter->launch_of);
        map_fini(&cutter->stored_ns);
        array_fini(&cutter->launches);
    }
    mem_free(cutter);
    mem_free(uses);
    return status < 0 ? dpro_error_nomem(err) : 0;
}
