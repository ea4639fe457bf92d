/* What TensorFlow's readers add to a part: tracks, details, names; and its files told apart by
 * their first bytes. */
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

/* ---- which file ---- */

static bool is_text(const unsigned char *p, uint64_t len, size_t there)
{
    for (size_t i = 0; i < len && i < there; i++)
        if (!isprint(p[i]))
            return false;
    return len > 0;
}

/* What the first field of a protobuf file is: of XSpace a plane {id, name}, of GraphDef a node
 * {name, op}, of RunMetadata a list of devices {{device}} or a graph. Only the first bytes of the
 * file are there. */
enum protobuf_file protobuf_recognise(const struct head *head)
{
    const unsigned char *p = (const unsigned char *)head->bytes;
    struct pb_view file = {p, p, false};
    uint64_t tag = 0, len;
    if (head->piece == HEAD_BYTES)
        file.end += head->n_bytes;
    for (; file.p < file.end; file.p += len) {
        size_t there;
        struct pb_field field;
        tag = *file.p;
        if (tag != 0x0a && tag != 0x1a && tag != 0x22)
            return PROTOBUF_OTHER;
        /* its length, while what it holds may reach beyond what is there */
        for (len = 0, there = 1; file.p + there < file.end && there <= 9; there++) {
            len |= (uint64_t)(file.p[there] & 0x7f) << (7 * (there - 1));
            if (file.p[there] < 0x80)
                break;
        }
        if (file.p + there >= file.end || there > 9)
            return PROTOBUF_OTHER;
        file.p += there + 1;
        there = (size_t)(file.end - file.p);
        if (len == 0)
            continue; /* no step_stats: a function's graphs come next */
        struct pb_view inner = {file.p, file.p + (len < there ? len : there), false};
        if (inner.p < inner.end && tag != 0x0a)
            return *inner.p == 0x0a ? PROTOBUF_RUN_METADATA : PROTOBUF_OTHER;
        while (inner.p < inner.end) {
            const unsigned char *at = inner.p;
            bool whole = pb_view_next(&inner, &field);
            size_t left = (size_t)(file.end - field.payload);
            if (!whole && (field.number == 0 || (at[0] & 7) != PB_BYTES))
                break;
            if (field.number == 1 && field.wire == PB_VARINT)
                continue;
            if (field.number == 1)
                return is_text(field.payload, field.value, left)            ? PROTOBUF_GRAPH_DEF
                       : field.payload < file.end && *field.payload == 0x0a ? PROTOBUF_RUN_METADATA
                                                                            : PROTOBUF_OTHER;
            return field.number == 2 && is_text(field.payload, field.value, left) ? PROTOBUF_XPLANE
                                                                                  : PROTOBUF_OTHER;
        }
        return PROTOBUF_OTHER;
    }
    return PROTOBUF_OTHER;
}
