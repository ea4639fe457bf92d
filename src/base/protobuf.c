/* Reads protobuf messages.
 *
 * Tags, varints and lengths, each checked against the message around it. */
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
static const char beyond[] = "a number that reaches beyond its message";

/* NULL; or why there is no number, `beyond` where it does not end before `end`. */
static const char *take_varint(const unsigned char **p, const unsigned char *end, uint64_t *value)
{
    uint64_t v = 0;
    for (unsigned i = 0; i < PB_VARINT_MAX; i++) {
        if (*p == end)
            return beyond;
        unsigned char byte = *(*p)++;
        v |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (byte < 0x80) {
            *value = v;
            return NULL;
        }
    }
    return "a number of more than 10 bytes";
}

static size_t fixed_size(const struct pb_field *field)
{
    return field->wire == PB_FIXED64 ? 8 : field->wire == PB_FIXED32 ? 4 : 0;
}

/* Takes a field up to the bytes that it may have; *p is where it failed. */
static const char *take_field(const unsigned char **p, const unsigned char *end,
                              struct pb_field *field)
{
    uint64_t tag;
    *field = (struct pb_field){.payload = *p};
    const char *why = take_varint(p, end, &tag);
    if (why)
        return why;
    field->number = (uint32_t)(tag >> 3);
    field->wire = tag & 7;
    field->payload = *p;
    if (tag >> 3 == 0 || tag >> 32)
        return "a field number that no message has";
    if (field->wire == PB_VARINT || field->wire == PB_BYTES)
        return take_varint(p, end, &field->value);
    size_t size = fixed_size(field);
    if (size == 0) /* groups, and what never was */
        return "a wire type that no such message has";
    if ((size_t)(end - *p) < size)
        return beyond;
    for (size_t i = 0; i < size; i++)
        field->value |= (uint64_t)(*p)[i] << (8 * i);
    *p += size;
    return NULL;
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
    if (pb->fail || (pb->field_end > bytes_offset(bytes) && !skip_to(pb, pb->field_end)))
        return false;
    if (bytes_offset(bytes) >= pb->end || (pb->end == UINT64_MAX && !bytes_need(bytes, 1)))
        return false;
    bytes_need(bytes, 2 * (size_t)PB_VARINT_MAX); /* or what there is */
    uint64_t left = pb->end - bytes_offset(bytes), there = (uint64_t)(bytes->end - bytes->p);
    const unsigned char *p = bytes->p;
    const char *why = take_field(&p, p + MIN(left, there), field);
    left -= (uint64_t)(p - bytes->p);
    bytes->p = p;
    if (why == beyond && left >= MAX(fixed_size(field), 1))
        why = ends_early;
    if (!why && pb_length(field) > left)
        why = "a length that reaches beyond its message";
    pb->field_end = bytes_offset(bytes) + (why ? 0 : pb_length(field));
    return !why || pb_stop(pb, why);
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

bool pb_view_next(struct pb_view *view, struct pb_field *field)
{
    *field = (struct pb_field){.payload = view->p};
    if (view->broken || view->p >= view->end)
        return false;
    view->broken = take_field(&view->p, view->end, field) != NULL;
    if (field->wire == PB_BYTES && !view->broken) {
        field->payload = view->p;
        view->broken = field->value > (size_t)(view->end - view->p);
        view->p += view->broken ? 0 : field->value;
    }
    return !view->broken;
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
