/* BytePS's own trace, comm.json, beside a framework's profile.
 *
 * It tells when each part of a tensor was copied to the host, pushed and pulled. From the first of
 * these to the pull's end is one exchange of the worker, replayed as a whole. A transport log tells
 * more, so that it goes first. */

#include "ingest/sources.h"
#include "ingest/transport/ps.h"

static const struct timeline *timeline_of(const struct source *source)
{
    const struct timeline *t = source_payload(source, &timeline_payload);
    return t && t->writer == TIMELINE_BYTEPS && t->on_epoch ? t : NULL;
}

static struct source *profile_of(struct trace_build *build, int rank)
{
    for (size_t i = 0; i < build->list.n; i++)
        if (source_is_profile(&build->list.at[i]) && build->list.at[i].rank == rank)
            return &build->list.at[i];
    return NULL;
}

/* Whether a rank's transport log has its pushes and pulls. */
static bool has_transport(const struct trace_build *build, int rank)
{
    EACH (const struct source, source, build->list) {
        const struct net_transport *transport = source_payload(source, &transport_payload);
        if (source->rank == rank && transport && byteps_n_exchanges(transport) > 0)
            return true;
    }
    return false;
}

/* "byteps.Gradient.fc.weight" is PyTorch's parameter fc.weight; a part's number follows. */
static uint32_t name_tensor(const struct source *source, uint32_t index, struct trace_part *to)
{
    static const char prefix[] = "byteps.Gradient.";
    const struct timeline *timeline = timeline_of(source);
    const struct timeline_tensor *t = &timeline->tensors.at[index];
    const char *raw = strtab_get(&source->part.names, t->name);
    bool parts = false;
    for (size_t i = 0; i < timeline->tensors.n; i++)
        parts |= timeline->tensors.at[i].name == t->name && timeline->tensors.at[i].partition > 0;
    if (text_begins(raw, prefix))
        raw += strlen(prefix);
    return parts ? part_name(to, "%.900s~PART%d", raw, (int)t->partition)
                 : part_name(to, "%.900s", raw);
}

/* What the exchanges of one tensor or part have in common. */
struct exchanged {
    uint32_t track, span_name;
    struct trace_detail detail;
};

static struct exchanged exchanged_of(const struct source *source, uint32_t index,
                                     struct source *profile, int32_t n_workers)
{
    struct trace_part *part = &profile->part;
    uint32_t name = name_tensor(source, index, part);
    struct part_track track = {.track = {.id = (int64_t)part->tracks.n + 1000000}};
    track.track.name = part_intern(part, "BytePS", strlen("BytePS"));
    struct exchanged of = {
        .track = (uint32_t)part->tracks.n,
        .span_name = part_name(part, "BytePSPushPull.%s", strtab_get(&part->names, name)),
        .detail = {.process_group = name,
                   .collective = part_intern(part, "push_pull", strlen("push_pull")),
                   .dtype = part_intern(part, "float32", strlen("float32")),
                   .group_size = n_workers, /* not all ranks, where hosts have several GPUs */
                   DETAIL_UNKNOWN}};
    array_push(&part->tracks, track);
    return of;
}

static void add_exchanges(const struct source *source, struct source *profile, int32_t n_workers)
{
    const struct timeline *timeline = timeline_of(source);
    struct trace_part *part = &profile->part;
    int64_t first_ns = part->start_ns, last_ns = part->end_ns;
    SCRATCH struct exchanged *of = mem_array(timeline->tensors.n + 1, sizeof *of);
    EACH (const struct timeline_run, run, timeline->runs) {
        int64_t start_ns = run->whole.start_ns;
        if (!timeline_has(run, STAGE_PUSH) || !timeline_has(run, STAGE_PULL) ||
            start_ns < first_ns || start_ns > last_ns)
            continue;
        struct exchanged *exchanged = &of[run->tensor];
        if (!exchanged->span_name)
            *exchanged = exchanged_of(source, run->tensor, profile, n_workers);
        array_push(&part->details, exchanged->detail);
        struct trace_span span = {
            .start_ns = start_ns - part->base_ns, /* which is added to all spans of the part */
            .dur_ns = run->whole.end_ns - start_ns,
            .name = exchanged->span_name,
            .track = exchanged->track,
            .kind = SPAN_COLLECTIVE,
            SPAN_UNKNOWN};
        span.detail = (uint32_t)part->details.n - 1;
        part_place_span(part, &span);
    }
}

void byteps_join(struct trace_build *build)
{
    int32_t n_workers = 0;
    for (size_t i = 0; i < build->list.n; i++)
        n_workers += timeline_of(&build->list.at[i]) && profile_of(build, build->list.at[i].rank);
    EACH (const struct source, source, build->list) {
        struct source *profile = timeline_of(source) ? profile_of(build, source->rank) : NULL;
        if (profile && !has_transport(build, source->rank))
            add_exchanges(source, profile, n_workers);
    }
}
