/* What TensorFlow's readers add to a part: tracks, details, names. */
#include "adapters/tensorflow/tf_parts.h"

uint32_t tf_track(struct trace_part *part, struct trace_track track)
{
    struct part_track fresh = {.track = track};
    for (uint32_t t = 0; t < part->tracks.n; t++) {
        const struct trace_track *other = &part->tracks.at[t].track;
        if (other->gpu == track.gpu && other->pid == track.pid && other->id == track.id)
            return t;
    }
    array_push(&part->tracks, fresh);
    return (uint32_t)part->tracks.n - 1;
}

uint32_t tf_detail(struct trace_part *part, const struct trace_detail *detail)
{
    array_push(&part->details, *detail);
    return (uint32_t)part->details.n - 1;
}

uint32_t tf_intern(struct trace_part *part, const struct pb_field *field)
{
    return part_intern(part, (const char *)field->payload, pb_length(field));
}

uint32_t *tf_idle_track(struct tf_idle_tracks *idle, int64_t start_ns, int64_t end_ns)
{
    uint32_t i = 0;
    while (i < idle->n && i < TF_IDLE_TRACKS - 1 && idle->end_ns[i] > start_ns)
        i++;
    if (i == idle->n) {
        idle->tracks[idle->n++] = NO_ID;
        idle->end_ns[i] = INT64_MIN;
    }
    idle->end_ns[i] = MAX(idle->end_ns[i], end_ns);
    return &idle->tracks[i];
}

struct trace_part *tf_device_part(const struct trace_part *from, uint64_t device)
{
    struct trace_part *part = mem_array(1, sizeof *part);
    part->base_ns = from->base_ns;
    part->framework = from->framework;
    part->missing = from->missing;
    part->process.is_device = true;
    part->process.device = device;
    return part;
}

void tf_replace_part(struct trace_part *part, struct trace_part *list)
{
    list->n_events = part->n_events;
    list->losses = part->losses;
    list->damage = part->damage;
    part_fini(part);
    *part = *list;
    mem_free(list);
}
