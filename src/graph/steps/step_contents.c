/* What each iteration of a rank holds, by which iterations are chosen. */

#include "base/parallel.h"
#include "graph/rank_build.h"

static bool is_call(const struct rank_build *rank, const struct slice *slice)
{
    return rank->trace->spans[slice->span].kind == SPAN_RUNTIME && slice->segment == 0;
}

/* An all-to-all may move another number of elements in each iteration. */
static bool sized_by_data(const struct rank_build *rank, const struct trace_span *span)
{
    return name_collective(strtab_get(rank->names, span->name)) == DPRO_ALL_TO_ALL;
}

static uint64_t key_of(const struct rank_build *rank, uint32_t slice)
{
    const struct trace_span *span = slice_span(rank, slice);
    uint64_t key = (uint64_t)span->name << 32 | rank->slices.at[slice].segment;
    if (span->node != NO_ID)
        key = map_mix((uint64_t)span->node << 32 | rank->slices.at[slice].segment);
    /* one of a node's kernels, or of the parts in which its tensor travels */
    if (span->node != NO_ID &&
        (rank->trace->tracks[span->track].gpu || span->kind == SPAN_COLLECTIVE))
        key = map_mix(key ^ span->name);
    if (span->detail != NO_ID && span->kind == SPAN_ANNOTATION &&
        !sized_by_data(rank, span)) /* buckets of one name differ in size */
        key ^= map_mix(rank->trace->details[span->detail].numel +
                       ((uint64_t)rank->trace->details[span->detail].process_group << 32));
    return key;
}

struct contents {
    struct rank_build *rank;
    bool *launches; /* by name: whether calls of it launch work */
};

static void add_slice(const struct rank_build *rank, const struct slice *slice, bool gpu,
                      const bool *launches, struct step_content *c)
{
    const struct trace_span *span = &rank->trace->spans[slice->span];
    if (gpu && slice->launch == NO_ID) {
        c->n_before++;
        c->before_ns = time_add(c->before_ns, slice->end_ns - slice->start_ns);
        return;
    }
    c->n_works += gpu;
    c->n_kernels += gpu && span->kind == SPAN_KERNEL;
    c->n_ops +=
        !gpu && slice->segment == 0 && span->kind != SPAN_RUNTIME; /* those that poll vary */
    bool collective =
        (rank->classes[span->name] & NAME_COMM_KERNEL) != 0 || build_runs_collective(rank, span);
    c->n_collectives += collective;
    c->left_ns = collective ? MAX(c->left_ns, slice->end_ns) : c->left_ns;
    c->n_meetings += collective;
    c->n_waits +=
        is_call(rank, slice) && (rank->classes[span->name] & (NAME_STREAM_SYNC | NAME_DEVICE_SYNC));
    c->n_lost += is_call(rank, slice) && slice->launch == NO_ID && launches[span->name];
}

/* What a step holds, and a hash of its slices' keys: see struct step. */
static void look_through(void *arg, size_t s)
{
    const struct contents *contents = arg;
    struct rank_build *rank = contents->rank;
    struct step *step = &rank->steps.at[s];
    uint64_t hash = 1, pooled = 0; /* in whatever order */
    for (uint32_t l = 0; l < rank->tracks.n; l++) {
        const struct track *track = &rank->tracks.at[l];
        bool unordered = build_is_unordered(rank, track);
        bool gpu = track->kind == DPRO_DEVICE_GPU_STREAM;
        if (!unordered)
            hash = map_mix(hash + l + 1);
        for (uint32_t i = track->first[s]; i < track->first[s + 1]; i++) {
            uint64_t key = key_of(rank, i);
            if (unordered)
                pooled += map_mix(key + 1);
            else
                hash = (hash ^ key) * 0xd6e8feb86659fd93u + 1;
            add_slice(rank, &rank->slices.at[i], gpu, contents->launches, &step->holds);
        }
    }
    step->hash = map_mix(hash + pooled);
}

static void find_step_keys(void *arg, size_t s)
{
    struct rank_build *rank = arg;
    EACH (const struct track, track, rank->tracks)
        for (uint32_t i = track->first[s]; i < track->first[s + 1]; i++)
            rank->keys[i] = key_of(rank, i);
}

void build_find_keys(struct rank_build *rank)
{
    rank->keys = mem_alloc((rank->slices.n + 1) * sizeof *rank->keys);
    parallel_for(rank->steps.n, rank->threads, find_step_keys, rank);
}

void build_contents(struct rank_build *rank)
{
    struct contents contents = {rank, mem_array(rank->names->n, sizeof *contents.launches)};
    EACH (const struct track, track, rank->tracks)
        for (uint32_t i = track->first[0];
             track->kind == DPRO_DEVICE_GPU_STREAM && i < track->first[rank->steps.n]; i++) {
            uint32_t call = rank->slices.at[i].launch;
            if (call != NO_ID && is_call(rank, &rank->slices.at[call]))
                contents.launches[slice_span(rank, call)->name] = true;
        }
    parallel_for(rank->steps.n, rank->threads, look_through, &contents);
    mem_free(contents.launches);
    for (uint32_t s = 0; s < rank->steps.n; s++) {
        rank->steps.at[s].holds.ns = build_step_ns(rank, s);
        rank->steps.at[s].holds.cpu_ns = rank->steps.at[s].end_ns - rank->steps.at[s].start_ns;
        EACH (const struct track, track, rank->tracks)
            rank->steps.at[s].n_slices += track->first[s + 1] - track->first[s];
    }
    if (rank->main_track == NO_ID)
        return;
    const struct trace_track *track = &rank->trace->tracks[rank->main_track];
    for (uint32_t i = track->first, s = 0; i < track->first + track->n; i++) {
        const struct trace_span *span = &rank->trace->spans[i];
        while (s < rank->steps.n && rank->steps.at[s].end_ns <= span->start_ns)
            s++;
        if (s < rank->steps.n && rank->steps.at[s].start_ns <= span->start_ns)
            rank->steps.at[s].holds.n_meetings +=
                (rank->classes[span->name] & NAME_OPTIMIZER_STEP) != 0;
    }
}

bool build_has_gpu(const struct trace_rank *trace)
{
    for (uint32_t t = 0; t < trace->n_tracks; t++)
        for (uint32_t i = 0; trace->tracks[t].gpu && i < trace->tracks[t].n; i++)
            if (trace->spans[trace->tracks[t].first + i].kind != SPAN_SYNC)
                return true;
    return false;
}

bool build_lacks_gpu(const struct trace_rank *trace, const struct strtab *names)
{
    if (build_has_gpu(trace))
        return false;
    EACH_OF (const struct trace_span, span, trace->spans, trace->n_spans) {
        const char *name = strtab_get(names, span->name);
        if ((span->kind == SPAN_ANNOTATION && text_begins(name, "nccl:")) ||
            (span->kind == SPAN_RUNTIME && strstr(name, "Launch") && !strstr(name, "HostFunc")))
            return true;
    }
    return false;
}
