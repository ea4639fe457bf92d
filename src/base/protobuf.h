/* One pass over a protobuf message on the wire, without a schema compiler and without a tree:
 * fields come one by one, nested messages are entered or skipped.
 *
 * Memory is bounded by the longest text that the caller asks for (the window of struct bytes). The
 * first thing that cannot be stops the pass: `fail` says what, `fail_offset` where; everything
 * before it has been handed out. */
#pragma once

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
    const unsigned char *payload; /* of a message that is in memory whole: what follows the tag */
};

/* The value of a number, 0 of bytes; and the length of bytes, 0 of a number. */
static inline uint64_t pb_number(const struct pb_field *field)
{
    return field->wire == PB_BYTES ? 0 : field->value;
}
static inline size_t pb_length(const struct pb_field *field)
{
    return field->wire == PB_BYTES ? field->value : 0;
}
/* Whether a field of a message that is in memory whole is that text. */
static inline bool pb_is(const struct pb_field *field, const char *text)
{
    size_t len = strlen(text);
    return pb_length(field) == len && memcmp(field->payload, text, len) == 0;
}

void pb_init(struct pb *pb, struct bytes *bytes);

/* The next field of the current message; what was not taken of the field before it is skipped.
 * False at the message's end and on failure. */
bool pb_next(struct pb *pb, struct pb_field *field);

/* Goes into the field, a message; `outer` keeps what pb_leave needs. False on failure (also when
 * the field is of another wire type). */
bool pb_enter(struct pb *pb, const struct pb_field *field, uint64_t *outer);
/* Back to the message around; the rest of the inner one is skipped. */
void pb_leave(struct pb *pb, uint64_t outer);

/* for (struct pb_field field: those of `message`, a field). Not to be left by return. */
#define PB_EACH(pb, message, field)                                                                \
    for (uint64_t outer_, entered_ = pb_enter((pb), (message), &outer_); entered_;                 \
         pb_leave((pb), outer_), entered_ = false)                                                 \
        for (struct pb_field field; pb_next((pb), &field);)

/* The field's bytes, borrowed until the next call; those longer than the window are left out, and
 * what is no PB_BYTES: *len = 0. False on failure. */
bool pb_text(struct pb *pb, const struct pb_field *field, const char **text, size_t *len);
/* Stops the pass for a reason of the caller's: values that make no sense. Always false. */
bool pb_stop(struct pb *pb, const char *why);

/* A message that is in memory whole, field by field; PB_BYTES's payload is borrowed from it. */
struct pb_view {
    const unsigned char *p, *end;
    bool broken;
};

/* The field's bytes, as pb_text has them. */
static inline bool pb_whole(struct pb *pb, const struct pb_field *field, struct pb_view *view)
{
    const char *text;
    size_t len;
    bool fine = pb_text(pb, field, &text, &len);
    *view = (struct pb_view){(const unsigned char *)text, (const unsigned char *)text + len, false};
    return fine;
}
static inline struct pb_view pb_view_of(const struct pb_field *field)
{
    return (struct pb_view){field->payload, field->payload + pb_length(field), false};
}

/* False at its end, or with `broken` where it makes no sense any more. */
bool pb_view_next(struct pb_view *view, struct pb_field *field);

/* The last field of each number below n, an empty one with number 0 where there is none. False: it
 * is broken. */
bool pb_view_fields(struct pb_view view, struct pb_field *fields, uint32_t n);

struct pb_out {
    unsigned char *at; /* memory of the scope (base/memory.h), the first member: SCRATCH frees it */
    size_t n, room;
};

void pb_put_varint(struct pb_out *out, uint64_t value); /* without a tag */
void pb_put_uint(struct pb_out *out, uint32_t field, uint64_t value);
void pb_put_fixed64(struct pb_out *out, uint32_t field, uint64_t value);
void pb_put_double(struct pb_out *out, uint32_t field, double value);
void pb_put_bytes(struct pb_out *out, uint32_t field, const void *data, size_t len);
void pb_put_text(struct pb_out *out, uint32_t field, const char *text);
/* Empties `inner` behind it. */
void pb_put_message(struct pb_out *out, uint32_t field, struct pb_out *inner);
