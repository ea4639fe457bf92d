/* Each GPU that one process of JAX drives becomes a rank, with the calls that launched its work. */

#include "adapters/tensorflow/tf_parts.h"
#include "adapters/tensorflow/xla.h"

struct gpu {
    struct trace_part *part;
    uint32_t *tracks; /* by track of the file: that of the part; NO_ID: none yet */
};

struct gpu_splitter {
    const struct trace_part *from;
    struct arena arena;
    struct map numbers;  /* of the devices, by their pids */
    struct map launched; /* correlation -> number of the device that did the work */
    struct gpu *gpus;
};

static void number_gpus(struct gpu_splitter *s)
{
    EACH (const struct part_track, track, s->from->tracks)
        if (track->track.gpu && track->n_spans > 0)
            map_number(&s->numbers, map_key(track->track.pid));
}

static bool find_gpu(const struct gpu_splitter *s, const struct trace_span *span, uint64_t *number)
{
    const struct trace_track *track = &s->from->tracks.at[span->track].track;
    return track->gpu && map_get(&s->numbers, map_key(track->pid), number);
}

static void open_gpu(struct gpu_splitter *s, struct gpu *gpu, uint64_t device)
{
    gpu->part = tf_device_part(s->from, device);
    gpu->tracks = arena_array(&s->arena, s->from->tracks.n, sizeof *gpu->tracks);
    memset(gpu->tracks, 0xFF, s->from->tracks.n * sizeof *gpu->tracks);
}

static void open_gpus(struct gpu_splitter *s)
{
    uint64_t number;
    s->gpus = arena_array(&s->arena, s->numbers.n, sizeof *s->gpus);
    for (size_t t = 0; t < s->from->tracks.n; t++) {
        const struct trace_track *track = &s->from->tracks.at[t].track;
        if (track->gpu && map_get(&s->numbers, map_key(track->pid), &number) &&
            !s->gpus[number].part)
            open_gpu(s, &s->gpus[number], track->pid);
    }
    FOR_EACH_SPAN (s->from, span) {
        if (span->correlation && find_gpu(s, span, &number))
            map_set(&s->launched, map_key(span->correlation), number);
    }
}

static void copy_span(struct gpu_splitter *s, struct gpu *gpu, const struct trace_span *span)
{
    uint32_t *track = &gpu->tracks[span->track];
    struct trace_span copy = *span;
    if (*track == NO_ID) {
        struct trace_track fresh = s->from->tracks.at[span->track].track;
        fresh.name = strtab_copy(&gpu->part->names, &s->from->names, fresh.name);
        *track = tf_track(gpu->part, fresh);
    }
    copy.track = *track;
    copy.name = strtab_copy(&gpu->part->names, &s->from->names, span->name);
    if (span->detail != NO_ID) {
        struct trace_detail detail = {.bytes = s->from->details.at[span->detail].bytes,
                                      DETAIL_UNKNOWN};
        copy.detail = tf_detail(gpu->part, &detail);
    }
    part_place_span(gpu->part, &copy);
}

/* A call goes to the device that did its work, every other span to all devices. */
static void share_out(struct gpu_splitter *s, const struct trace_span *span)
{
    uint64_t own = 0;
    bool gpu = s->from->tracks.at[span->track].track.gpu;
    if (gpu ? find_gpu(s, span, &own)
            : span->correlation && map_get(&s->launched, map_key(span->correlation), &own)) {
        copy_span(s, &s->gpus[own], span);
        return;
    }
    for (size_t g = 0; g < s->numbers.n; g++)
        copy_span(s, &s->gpus[g], span);
}

void xla_split_gpus(struct trace_part *part)
{
    struct gpu_splitter s = {.from = part};
    struct trace_part *list = NULL;
    number_gpus(&s);
    if (s.numbers.n > 1) {
        open_gpus(&s);
        FOR_EACH_SPAN (part, span)
            share_out(&s, span);
        for (size_t g = s.numbers.n; g-- > 0;) {
            s.gpus[g].part->next = list;
            list = s.gpus[g].part;
        }
        tf_replace_part(part, list);
    }
    arena_fini(&s.arena);
    FREE_ALL(&s.numbers, &s.launched);
}
