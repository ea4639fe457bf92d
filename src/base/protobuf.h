/* base/protobuf.h: one pass over a protobuf message on the wire, without a schema compiler and
 * without a tree: fields come one by one, nested messages are entered or skipped.
 *
 * Memory is bounded by the longest text that the caller asks for (the window of struct bytes). The
 * first thing that cannot be stops the pass: `fail` says what, `fail_offset` where; everything
 * before it has been handed out. */
#ifndef BASE_PROTOBUF_H
#define BASE_PROTOBUF_H

#include "base/bytes.h"

enum pb_wire { PB_VARINT = 0, PB_FIXED64 = 1, PB_BYTES = 2, PB_FIXED32 = 5 };
enum { PB_DEPTH_MAX = 64, PB_VARINT_MAX = 10 };

struct pb {
    struct bytes *bytes;
    uint64_t end; /* offset of the end of the current message; UINT64_MAX: that of the input */
    uint64_t field_end; /* of the current field */
    unsigned depth;
    const char *fail; /* static text; NULL: nothing was wrong so far */
    uint64_t fail_offset;
};

struct pb_field {
    uint32_t number;
    uint8_t wire;   /* enum pb_wire */
    uint64_t value; /* PB_BYTES: its length; fixed ones: their bits; varints: as they are */
};

void pb_init(struct pb *pb, struct bytes *bytes);

/* The next field of the current message; what was not taken of the field before it is skipped.
 * False at the message's end and on failure. */
bool pb_next(struct pb *pb, struct pb_field *field);

/* Goes into the field, a message; `outer` keeps what pb_leave needs. False on failure (also when
 * the field is of another wire type). */
bool pb_enter(struct pb *pb, const struct pb_field *field, uint64_t *outer);
/* Back to the message around; the rest of the inner one is skipped. */
void pb_leave(struct pb *pb, uint64_t outer);

/* The field's bytes, borrowed until the next call; those longer than the window are left out, and
 * what is no PB_BYTES: *len = 0. False on failure. */
bool pb_text(struct pb *pb, const struct pb_field *field, const char **text, size_t *len);
/* Stops the pass for a reason of the caller's: values that make no sense. Always false. */
bool pb_stop(struct pb *pb, const char *why);

/* A message that is in memory whole, field by field; the payload of PB_BYTES is borrowed from it.
 */

struct pb_view {
    const unsigned char *p, *end;
    bool broken;
};

/* False at its end, or with `broken` where it makes no sense any more. */
bool pb_view_next(struct pb_view *view, struct pb_field *field, const unsigned char **payload);

/* The view of a field's payload. */
static inline struct pb_view pb_view_of(const struct pb_field *field, const unsigned char *payload)
{
    return (struct pb_view){payload, payload + (field->wire == PB_BYTES ? field->value : 0), false};
}

#endif
