/* Tags, varints and lengths, each checked against the message around it. */
#include "base/protobuf.h"

void pb_init(struct pb *pb, struct bytes *bytes)
{
    *pb = (struct pb){.bytes = bytes, .end = UINT64_MAX, .field_end = bytes_offset(bytes)};
}

bool pb_stop(struct pb *pb, const char *why)
{
    if (!pb->fail) {
        pb->fail = why;
        pb->fail_offset = bytes_offset(pb->bytes);
    }
    return false;
}

static const char ends_early[] = "the file ends in the middle of a message";

static bool take_varint_slow(struct pb *pb, uint64_t *value)
{
    uint64_t v = 0, left = pb->end - bytes_offset(pb->bytes);
    for (unsigned i = 0; i < PB_VARINT_MAX; i++) {
        if (i == left)
            return pb_stop(pb, "a number that reaches beyond its message");
        if (!bytes_need(pb->bytes, 1))
            return pb_stop(pb, ends_early);
        unsigned char byte = *pb->bytes->p++;
        v |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (byte < 0x80) {
            *value = v;
            return true;
        }
    }
    return pb_stop(pb, "a number of more than 10 bytes");
}

static inline bool take_varint(struct pb *pb, uint64_t *value)
{
    struct bytes *bytes = pb->bytes;
    if (bytes->p < bytes->end && *bytes->p < 0x80 && bytes_offset(bytes) < pb->end) {
        *value = *bytes->p++;
        return true;
    }
    return take_varint_slow(pb, value);
}

static uint64_t fixed_at(const unsigned char *p, size_t size)
{
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++)
        value |= (uint64_t)p[i] << (8 * i);
    return value;
}

static bool take_fixed(struct pb *pb, unsigned size, uint64_t *value)
{
    if (pb->end - bytes_offset(pb->bytes) < size)
        return pb_stop(pb, "a number that reaches beyond its message");
    if (!bytes_need(pb->bytes, size))
        return pb_stop(pb, ends_early);
    *value = fixed_at(pb->bytes->p, size);
    pb->bytes->p += size;
    return true;
}

/* Moves to an offset ahead. */
static bool skip_to(struct pb *pb, uint64_t offset)
{
    struct bytes *bytes = pb->bytes;
    for (;;) {
        uint64_t there = (uint64_t)(bytes->end - bytes->p), left = offset - bytes_offset(bytes);
        if (left <= there) {
            bytes->p += left;
            return true;
        }
        bytes->p = bytes->end;
        if (!bytes_fill(bytes, 1))
            return pb_stop(pb, ends_early);
    }
}

bool pb_next(struct pb *pb, struct pb_field *field)
{
    struct bytes *bytes = pb->bytes;
    uint64_t tag;
    if (pb->fail || (pb->field_end > bytes_offset(bytes) && !skip_to(pb, pb->field_end)))
        return false;
    if (bytes_offset(bytes) >= pb->end || (pb->end == UINT64_MAX && !bytes_need(bytes, 1)))
        return false;
    if (!take_varint(pb, &tag))
        return false;
    field->number = (uint32_t)(tag >> 3);
    field->wire = tag & 7;
    if (tag >> 3 == 0 || tag >> 32)
        return pb_stop(pb, "a field number that no message has");
    bool fine;
    switch (field->wire) {
    case PB_VARINT:
        fine = take_varint(pb, &field->value);
        break;
    case PB_FIXED64:
        fine = take_fixed(pb, 8, &field->value);
        break;
    case PB_FIXED32:
        fine = take_fixed(pb, 4, &field->value);
        break;
    case PB_BYTES:
        fine = take_varint(pb, &field->value);
        if (fine && field->value > pb->end - bytes_offset(bytes))
            fine = pb_stop(pb, "a length that reaches beyond its message");
        break;
    default: /* groups, and what never was */
        return pb_stop(pb, "a wire type that no such message has");
    }
    pb->field_end = bytes_offset(bytes) + (fine && field->wire == PB_BYTES ? field->value : 0);
    return fine;
}

bool pb_enter(struct pb *pb, const struct pb_field *field, uint64_t *outer)
{
    *outer = pb->end;
    if (pb->fail)
        return false;
    if (field->wire != PB_BYTES)
        return pb_stop(pb, "a number where a message belongs");
    if (pb->depth == PB_DEPTH_MAX)
        return pb_stop(pb, "nested deeper than 64");
    pb->depth++;
    pb->end = pb->field_end;
    pb->field_end = bytes_offset(pb->bytes);
    return true;
}

void pb_leave(struct pb *pb, uint64_t outer)
{
    pb->depth--;
    pb->field_end = pb->end;
    pb->end = outer;
}

bool pb_text(struct pb *pb, const struct pb_field *field, const char **text, size_t *len)
{
    *text = "";
    *len = 0;
    if (pb->fail)
        return false;
    if (field->wire != PB_BYTES || field->value > pb->bytes->max)
        return true;
    if (!bytes_need(pb->bytes, (size_t)field->value))
        return pb_stop(pb, ends_early);
    *text = (const char *)pb->bytes->p;
    *len = (size_t)field->value;
    return true;
}

static bool view_varint(struct pb_view *view, uint64_t *value)
{
    uint64_t v = 0;
    for (unsigned i = 0; i < PB_VARINT_MAX && view->p < view->end; i++) {
        unsigned char byte = *view->p++;
        v |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (byte < 0x80) {
            *value = v;
            return true;
        }
    }
    view->broken = true;
    return false;
}

bool pb_view_next_slow(struct pb_view *view, struct pb_field *field)
{
    uint64_t tag;
    *field = (struct pb_field){.payload = view->p};
    if (view->broken || view->p >= view->end || !view_varint(view, &tag))
        return false;
    field->number = (uint32_t)(tag >> 3);
    field->wire = tag & 7;
    field->payload = view->p;
    size_t left = (size_t)(view->end - view->p), size = 0;
    view->broken = tag >> 3 == 0 || tag >> 32;
    switch (field->wire) {
    case PB_VARINT:
        return !view->broken && view_varint(view, &field->value);
    case PB_BYTES:
        if (view->broken || !view_varint(view, &field->value))
            return false;
        field->payload = view->p;
        view->broken = field->value > (size_t)(view->end - view->p);
        view->p += view->broken ? 0 : field->value;
        return !view->broken;
    case PB_FIXED64:
    case PB_FIXED32:
        size = field->wire == PB_FIXED64 ? 8 : 4;
        view->broken |= left < size;
        if (view->broken)
            return false;
        field->value = fixed_at(view->p, size);
        view->p += size;
        return true;
    default:
        view->broken = true;
        return false;
    }
}

bool pb_view_fields(struct pb_view view, struct pb_field *fields, uint32_t n)
{
    struct pb_field field;
    for (uint32_t i = 0; i < n; i++)
        fields[i] = (struct pb_field){.payload = view.end};
    while (pb_view_next(&view, &field))
        if (field.number < n)
            fields[field.number] = field;
    return !view.broken;
}
