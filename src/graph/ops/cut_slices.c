/* Cuts tracks into slices.
 *
 * Spans on a CPU thread nest. Replay needs the innermost span at each moment. So a leaf is one
 * slice, and a span with children is the stretches between them, numbered. Even empty stretches are
 * kept here: clocks of one microsecond make them come and go, and sequences must match between
 * iterations. Ranges that a user or the profiler drew around ops are no work and are looked
 * through. */
#include "base/arena.h"
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

/* Correlations that lie together are looked up together: calls and work come nearly in their
 * order. */
enum { ROW_BITS = 4 };
struct launch_row {
    uint32_t at[1 << ROW_BITS]; /* index + 1 into `launches`; 0: none */
};

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
    struct map row_of; /* window and upper bits of a correlation -> index into `rows` */
    ARRAY(struct launch_row) rows;
    ARRAY(struct launch) launches;
    struct map stored_ns;    /* see build_find_stores */
    uint32_t *step_of_slice; /* of CPU tracks, once they are cut */
    struct open_span open[MAX_OPEN];
    uint32_t n_open;
    bool after_op; /* the last span without parent was an op */
};

static bool is_device_work(const struct trace_span *span)
{
    return span->kind == SPAN_KERNEL || span->kind == SPAN_MEMCPY || span->kind == SPAN_MEMSET;
}

static uint64_t row_key(const struct trace_span *span)
{
    return build_correlation_key(span->correlation >> ROW_BITS, span->window);
}

static unsigned place_in_row(const struct trace_span *span)
{
    return span->correlation & ((1 << ROW_BITS) - 1);
}

/* What the device did for a call, which has its correlation; NULL: nothing. */
static struct launch *find_launch(const struct cutter *cutter, const struct trace_span *span)
{
    uint64_t row;
    if (!span->correlation || !map_get(&cutter->row_of, row_key(span), &row))
        return NULL;
    uint32_t at = cutter->rows.at[row].at[place_in_row(span)];
    return at ? &cutter->launches.at[at - 1] : NULL;
}

static void add_launch(struct cutter *cutter, uint32_t device)
{
    const struct trace_span *span = &cutter->rank->trace->spans[device];
    size_t row = (size_t)map_number(&cutter->row_of, row_key(span));
    if (row == cutter->rows.n)
        array_push(&cutter->rows, (struct launch_row){{0}});
    uint32_t *at = &cutter->rows.at[row].at[place_in_row(span)];
    if (*at)
        return;
    array_add(&cutter->launches, .device = device, .slice = NO_ID);
    *at = (uint32_t)cutter->launches.n;
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

/* Appends a slice if it lies in a step, and returns its id or NO_ID. */
static uint32_t emit(struct cutter *cutter, uint32_t span, uint32_t segment, int64_t start,
                     int64_t end)
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
static void emit_leaf(struct cutter *cutter, const struct open_span *open)
{
    const struct trace_span *span = &cutter->rank->trace->spans[open->span];
    struct launch *launch = span->kind == SPAN_RUNTIME ? find_launch(cutter, span) : NULL;
    if (!launch) {
        uint32_t slice = emit(cutter, open->span, 0, open->cursor, open->end);
        count_profiled(cutter, slice, 0, cutter->n_open == 0, open->span);
        return;
    }
    bool copies = cutter->rank->classes[span->name] & NAME_COPY_CALL;
    int64_t split = MAX(cutter->rank->trace->spans[launch->device].start_ns, open->cursor);
    if (split > open->end || !copies)
        split = open->end;
    launch->slice = emit(cutter, open->span, 0, open->cursor, split);
    if (copies && launch->slice != NO_ID)
        emit(cutter, open->span, SEGMENT_TAIL, split, open->end);
}

/* A call that encloses others launches with its last stretch, unless one of them does. */
static void emit_rest(struct cutter *cutter, const struct open_span *open)
{
    const struct trace_span *span = &cutter->rank->trace->spans[open->span];
    uint32_t slice = emit(cutter, open->span, open->segment, open->cursor, open->end);
    count_profiled(cutter, slice, open->after_op, false, open->span);
    struct launch *launch = span->kind == SPAN_RUNTIME ? find_launch(cutter, span) : NULL;
    if (launch && launch->slice == NO_ID)
        launch->slice = slice;
}

static void close_top(struct cutter *cutter, int64_t at)
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

static void open_one(struct cutter *cutter, uint32_t index, int64_t *floor)
{
    const struct trace_span *span = &cutter->rank->trace->spans[index];
    int64_t start = MAX(span->start_ns, *floor);
    int64_t end = MAX(span->start_ns + span->dur_ns, start);
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
        uint32_t slice = emit(cutter, top->span, top->segment, top->cursor, start);
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

static void finish_track(struct cutter *cutter)
{
    while (cutter->step < cutter->rank->steps.n)
        cutter->track->first[++cutter->step] = (uint32_t)cutter->rank->slices.n;
}

static void start_track(struct cutter *cutter, uint8_t kind, uint32_t source)
{
    struct rank_build *rank = cutter->rank;
    struct track track = {.kind = kind, .source = source};
    track.first = mem_array(rank->steps.n + 1, sizeof *track.first);
    track.first[0] = (uint32_t)rank->slices.n;
    array_push(&rank->tracks, track);
    cutter->track = &rank->tracks.at[rank->tracks.n - 1];
    cutter->step = cutter->round = 0;
    cutter->n_open = 0;
    cutter->after_op = false;
}

/* What a CPU track is for: a thread that only polls (event queries of a watchdog) takes no part;
 * one that runs collectives may do other work between them, such as what a DDP hook asked for. */
enum track_use { TRACK_IDLE = 0, TRACK_OPS = 1, TRACK_COMM = 2, TRACK_INBOX = 4 };

static void cut_cpu_track(struct cutter *cutter, uint32_t track_index, unsigned use)
{
    struct rank_build *rank = cutter->rank;
    const struct trace_track *track = &rank->trace->tracks[track_index];
    int64_t floor = INT64_MIN;
    start_track(cutter, DPRO_DEVICE_CPU_THREAD, track_index);
    for (uint32_t i = track->first; i < track->first + track->n; i++)
        if (is_work(rank, &rank->trace->spans[i]) &&
            !map_get(&cutter->stored_ns, i + UINT64_C(1), NULL) &&
            !((use & TRACK_COMM) && in_collective(rank, &rank->trace->spans[i])))
            open_one(cutter, i, &floor);
    while (cutter->n_open > 0)
        close_top(cutter, INT64_MAX);
    finish_track(cutter);
}

static unsigned use_of(const struct cutter *cutter, uint32_t track_index)
{
    const struct rank_build *rank = cutter->rank;
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
        else if (span->kind == SPAN_RUNTIME && find_launch(cutter, span))
            use |= TRACK_OPS;
    return use;
}

/* What came in, in order of when it was asked for; many at a time. */
static void cut_inbox(struct cutter *cutter, uint32_t track_index)
{
    const struct trace_rank *trace = cutter->rank->trace;
    const struct trace_track *track = &trace->tracks[track_index];
    start_track(cutter, DPRO_DEVICE_LINK_RX, track_index);
    for (uint32_t i = track->first; i < track->first + track->n; i++) {
        const struct trace_span *span = &trace->spans[i];
        if (span->kind == SPAN_TRANSFER)
            emit(cutter, i, 0, span->start_ns, span->start_ns + span->dur_ns);
    }
    finish_track(cutter);
}

ORDER(compare_starts, struct slice, ASCENDING(start_ns) ?: ASCENDING(span));

/* All communication threads in one track, in order of start. */
static void cut_comm_tracks(struct cutter *cutter, const unsigned *uses)
{
    struct rank_build *rank = cutter->rank;
    ARRAY(struct slice) found = {0};
    for (uint32_t t = 0; t < rank->trace->n_tracks; t++) {
        const struct trace_track *track = &rank->trace->tracks[t];
        if (track->gpu || !(uses[t] & TRACK_COMM))
            continue;
        for (uint32_t i = track->first; i < track->first + track->n; i++) {
            const struct trace_span *span = &rank->trace->spans[i];
            uint64_t end = (uint64_t)(span->start_ns + span->dur_ns);
            if (!build_runs_collective(rank, span))
                continue;
            map_get(&cutter->stored_ns, i + UINT64_C(1), &end);
            array_add(&found, .start_ns = span->start_ns, .end_ns = (int64_t)end, .span = i);
        }
    }
    array_sort(&found, compare_starts);
    if (found.n > 0)
        start_track(cutter, DPRO_DEVICE_COMM_THREAD, NO_ID);
    for (size_t i = 0; i < found.n; i++)
        emit(cutter, found.at[i].span, 0, found.at[i].start_ns, found.at[i].end_ns);
    if (found.n > 0)
        finish_track(cutter);
    array_fini(&found);
}

/* The step that goes on at a time; NO_ID: none. */
static uint32_t step_at(const struct rank_build *rank, int64_t ns)
{
    size_t low = LOWER_BOUND(i, 0, rank->steps.n, rank->steps.at[i].end_ns <= ns);
    return low < rank->steps.n && rank->steps.at[low].start_ns <= ns ? (uint32_t)low : NO_ID;
}

/* Where a span of a stream belongs. */
struct device_work {
    uint32_t launch; /* the slice of the call that launched it; NO_ID: none is known */
    uint32_t step;   /* NO_ID: none, or it is no work */
};

/* By step: when a stream begins the first work that was launched in the row of steps that follow
 * each other. A stream's work runs in order, so what comes before was launched before the row. */
static void find_own_work(const struct cutter *cutter, const struct trace_track *track,
                          const struct device_work *works, int64_t *own_ns)
{
    const struct rank_build *rank = cutter->rank;
    for (size_t s = 0; s < rank->steps.n; s++)
        own_ns[s] = INT64_MAX;
    for (uint32_t i = 0; i < track->n; i++)
        if (works[i].step != NO_ID)
            own_ns[works[i].step] =
                MIN(own_ns[works[i].step], rank->trace->spans[track->first + i].start_ns);
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
static uint32_t step_without_call(const struct cutter *cutter, const int64_t *own_ns,
                                  const struct trace_span *span)
{
    const struct rank_build *rank = cutter->rank;
    uint32_t step = step_at(rank, span->start_ns);
    bool before = step != NO_ID && rank->steps.at[step].follows && own_ns[step] != INT64_MAX &&
                  span->start_ns < own_ns[step];
    return before ? NO_ID : step;
}

/* The step of each device span is that of the call which launched it, wherever it ran. */
static void find_works(const struct cutter *cutter, const struct trace_track *track,
                       struct device_work *works, int64_t *own_ns)
{
    const struct trace_span *spans = cutter->rank->trace->spans + track->first;
    for (uint32_t i = 0; i < track->n; i++) {
        const struct launch *known =
            is_device_work(&spans[i]) ? find_launch(cutter, &spans[i]) : NULL;
        works[i].launch = known ? known->slice : NO_ID;
        works[i].step = works[i].launch != NO_ID ? cutter->step_of_slice[works[i].launch] : NO_ID;
    }
    find_own_work(cutter, track, works, own_ns);
    for (uint32_t i = 0; i < track->n; i++)
        if (works[i].launch == NO_ID && is_device_work(&spans[i]))
            works[i].step = step_without_call(cutter, own_ns, &spans[i]);
}

static void cut_stream(struct cutter *cutter, uint32_t track_index)
{
    struct rank_build *rank = cutter->rank;
    const struct trace_track *track = &rank->trace->tracks[track_index];
    uint32_t n_steps = (uint32_t)rank->steps.n, n = (uint32_t)rank->slices.n;
    struct arena scratch = {0};
    uint32_t *fill = arena_array(&scratch, n_steps + 1, sizeof *fill);
    int64_t *own_ns = arena_array(&scratch, n_steps + 1, sizeof *own_ns);
    struct device_work *works = arena_alloc(&scratch, track->n * sizeof *works);
    start_track(cutter, DPRO_DEVICE_GPU_STREAM, track_index);
    find_works(cutter, track, works, own_ns);
    for (uint32_t i = 0; i < track->n; i++)
        if (works[i].step != NO_ID)
            fill[works[i].step]++;
    for (uint32_t s = 0; s <= n_steps; s++) {
        uint32_t count = fill[s];
        cutter->track->first[s] = fill[s] = n;
        n += count;
    }
    array_reserve(&rank->slices, n - rank->slices.n);
    for (uint32_t i = 0; i < track->n; i++) {
        const struct trace_span *span = &rank->trace->spans[track->first + i];
        if (works[i].step != NO_ID)
            rank->slices.at[fill[works[i].step]++] =
                (struct slice){.start_ns = span->start_ns,
                               .end_ns = span->start_ns + span->dur_ns,
                               .span = track->first + i,
                               .launch = works[i].launch,
                               .next = NO_ID};
    }
    rank->slices.n = n;
    arena_fini(&scratch);
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

static void cut_all(struct cutter *cutter, unsigned *uses)
{
    struct rank_build *rank = cutter->rank;
    const struct trace_rank *trace = rank->trace;
    for (uint32_t t = 0; t < trace->n_tracks; t++)
        for (uint32_t i = 0; trace->tracks[t].gpu && i < trace->tracks[t].n; i++) {
            const struct trace_span *span = &trace->spans[trace->tracks[t].first + i];
            if (is_device_work(span) && span->correlation)
                add_launch(cutter, trace->tracks[t].first + i);
        }
    for (uint32_t t = 0; t < trace->n_tracks; t++) {
        if (trace->tracks[t].gpu)
            continue;
        uses[t] = use_of(cutter, t);
        if (uses[t] & TRACK_OPS)
            cut_cpu_track(cutter, t, uses[t]);
        if (uses[t] & TRACK_INBOX)
            cut_inbox(cutter, t);
    }
    cut_comm_tracks(cutter, uses);

    uint32_t first_device = (uint32_t)rank->slices.n;
    cutter->step_of_slice = mem_alloc((first_device + 1) * sizeof *cutter->step_of_slice);
    for (uint32_t l = 0; l < rank->tracks.n; l++)
        for (uint32_t s = 0; s < rank->steps.n; s++)
            for (uint32_t i = rank->tracks.at[l].first[s]; i < rank->tracks.at[l].first[s + 1]; i++)
                cutter->step_of_slice[i] = s;
    for (uint32_t t = 0; t < trace->n_tracks; t++)
        if (trace->tracks[t].gpu)
            cut_stream(cutter, t);
    chain_launches(rank, first_device);
}

void build_slices(struct rank_build *rank)
{
    struct cutter *cutter = mem_array(1, sizeof *cutter);
    unsigned *uses = mem_array(rank->trace->n_tracks + 1, sizeof *uses);
    cutter->rank = rank;
    cutter->waits_for_rounds = waits_for_rounds(rank);
    build_find_stores(rank, &cutter->stored_ns);
    cut_all(cutter, uses);
    map_fini(&cutter->row_of);
    array_fini(&cutter->rows);
    map_fini(&cutter->stored_ns);
    array_fini(&cutter->launches);
    mem_free(cutter->step_of_slice);
    mem_free(cutter);
    mem_free(uses);
}
