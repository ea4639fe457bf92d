/* Streams: which device work each call launched, and in which iteration. */
#include "base/parallel.h"
#include "graph/ops/cuts.h"

/* Where a span of a stream belongs. */
struct device_work {
    uint32_t launch; /* the slice of the call that launched it; NO_ID: none is known */
    uint32_t step;   /* NO_ID: none, or it is no work */
};

struct stream {
    struct track is;
    struct device_work *works; /* by span */
};

struct cut_streams {
    const struct cuts *cuts;
    struct stream *at;
    uint32_t n;
};

static bool is_device_work(const struct trace_span *span)
{
    return span->kind == SPAN_KERNEL || span->kind == SPAN_MEMCPY || span->kind == SPAN_MEMSET;
}

static uint64_t launch_key(const struct trace_span *span)
{
    return build_correlation_key(span->correlation, span->window);
}

const struct launch *cuts_find_launch(const struct cuts *cuts, const struct trace_span *span)
{
    uint64_t found;
    return span->correlation && map_get(&cuts->launch_of, launch_key(span), &found)
               ? &cuts->launches.at[found]
               : NULL;
}

void cuts_find_launches(struct cuts *cuts)
{
    const struct trace_rank *trace = cuts->rank->trace;
    for (uint32_t t = 0; t < trace->n_tracks; t++)
        for (uint32_t i = 0; trace->tracks[t].gpu && i < trace->tracks[t].n; i++) {
            const struct trace_span *span = &trace->spans[trace->tracks[t].first + i];
            if (is_device_work(span) && span->correlation &&
                map_insert(&cuts->launch_of, launch_key(span), cuts->launches.n))
                array_add(&cuts->launches, .device = trace->tracks[t].first + i, .slice = NO_ID);
        }
}

/* The step that goes on at a time; NO_ID: none. */
static uint32_t step_at(const struct rank_build *rank, int64_t ns)
{
    size_t low = LOWER_BOUND(i, 0, rank->steps.n, rank->steps.at[i].end_ns <= ns);
    return low < rank->steps.n && rank->steps.at[low].start_ns <= ns ? (uint32_t)low : NO_ID;
}

/* By step: when a stream begins the first work that was launched in the row of steps that follow
 * each other. A stream's work runs in order, so what comes before was launched before the row. */
static void find_own_work(const struct rank_build *rank, const struct trace_track *track,
                          const struct device_work *works, int64_t *own_ns)
{
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
static uint32_t step_without_call(const struct rank_build *rank, const int64_t *own_ns,
                                  const struct trace_span *span)
{
    uint32_t step = step_at(rank, span->start_ns);
    bool before = step != NO_ID && rank->steps.at[step].follows && own_ns[step] != INT64_MAX &&
                  span->start_ns < own_ns[step];
    return before ? NO_ID : step;
}

/* The step of each device span is that of the call which launched it, wherever it ran. */
static void find_works(void *arg, size_t s)
{
    const struct cut_streams *streams = arg;
    const struct rank_build *rank = streams->cuts->rank;
    struct stream *stream = &streams->at[s];
    const struct trace_track *track = &rank->trace->tracks[stream->is.source];
    const struct trace_span *spans = rank->trace->spans + track->first;
    struct device_work *works = mem_alloc((track->n + 1) * sizeof *works);
    SCRATCH int64_t *own_ns = mem_array(rank->steps.n + 1, sizeof *own_ns);
    for (uint32_t i = 0; i < track->n; i++) {
        const struct launch *known =
            is_device_work(&spans[i]) ? cuts_find_launch(streams->cuts, &spans[i]) : NULL;
        works[i].launch = known ? known->slice : NO_ID;
        works[i].step = works[i].launch != NO_ID ? known->step : NO_ID;
    }
    find_own_work(rank, track, works, own_ns);
    for (uint32_t i = 0; i < track->n; i++) {
        if (works[i].launch == NO_ID && is_device_work(&spans[i]))
            works[i].step = step_without_call(rank, own_ns, &spans[i]);
        if (works[i].step != NO_ID)
            stream->is.first[works[i].step + 1]++;
    }
    stream->works = works;
}

static void fill_stream(void *arg, size_t s)
{
    const struct cut_streams *streams = arg;
    struct rank_build *rank = streams->cuts->rank;
    const struct stream *stream = &streams->at[s];
    const struct trace_track *track = &rank->trace->tracks[stream->is.source];
    SCRATCH uint32_t *fill = mem_alloc((rank->steps.n + 1) * sizeof *fill);
    memcpy(fill, stream->is.first, (rank->steps.n + 1) * sizeof *fill);
    for (uint32_t i = 0; i < track->n; i++) {
        const struct trace_span *span = &rank->trace->spans[track->first + i];
        const struct device_work *work = &stream->works[i];
        if (work->step != NO_ID)
            rank->slices.at[fill[work->step]++] = (struct slice){.start_ns = span->start_ns,
                                                                 .end_ns = span_end_ns(span),
                                                                 .span = track->first + i,
                                                                 .launch = work->launch,
                                                                 .next = NO_ID};
    }
    mem_free(stream->works);
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

static void find_streams(struct cut_streams *streams)
{
    const struct rank_build *rank = streams->cuts->rank;
    const struct trace_rank *trace = rank->trace;
    streams->at = mem_array(trace->n_tracks + 1, sizeof *streams->at);
    for (uint32_t t = 0; t < trace->n_tracks; t++)
        if (trace->tracks[t].gpu)
            streams->at[streams->n++].is =
                (struct track){.kind = DPRO_DEVICE_GPU_STREAM,
                               .source = t,
                               .first = mem_array(rank->steps.n + 1, sizeof(uint32_t))};
}

void cuts_add_streams(struct cuts *cuts)
{
    struct rank_build *rank = cuts->rank;
    struct cut_streams streams = {.cuts = cuts};
    uint32_t first_device = (uint32_t)rank->slices.n, n = first_device;
    find_streams(&streams);
    parallel_for(streams.n, rank->threads, find_works, &streams);
    EACH_OF (struct stream, stream, streams.at, streams.n) {
        stream->is.first[0] = n;
        for (size_t s = 0; s < rank->steps.n; s++)
            n = stream->is.first[s + 1] += n;
        array_push(&rank->tracks, stream->is);
    }
    array_reserve(&rank->slices, n - rank->slices.n);
    rank->slices.n = n;
    parallel_for(streams.n, rank->threads, fill_stream, &streams);
    mem_free(streams.at);
    chain_launches(rank, first_device);
}
