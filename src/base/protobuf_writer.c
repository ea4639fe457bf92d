/* Protobuf messages, written (protobuf.dev, "Encoding"). */

#include "base/protobuf.h"

static void put_raw(struct pb_out *out, const void *data, size_t len)
{
    if (out->n + len > out->room) {
        out->room = MAX(2 * out->room, out->n + len + 64);
        out->at = mem_resize(out->at, out->room, 1);
    }
    if (len > 0)
        memcpy(out->at + out->n, data, len);
    out->n += len;
}

void pb_put_varint(struct pb_out *out, uint64_t value)
{
    unsigned char bytes[PB_VARINT_MAX];
    size_t n = 0;
    for (; value >= 0x80; value >>= 7)
        bytes[n++] = (unsigned char)(value | 0x80);
    bytes[n++] = (unsigned char)value;
    put_raw(out, bytes, n);
}

static void put_tag(struct pb_out *out, uint32_t field, enum pb_wire wire)
{
    pb_put_varint(out, (uint64_t)field << 3 | wire);
}

void pb_put_uint(struct pb_out *out, uint32_t field, uint64_t value)
{
    put_tag(out, field, PB_VARINT);
    pb_put_varint(out, value);
}

void pb_put_fixed64(struct pb_out *out, uint32_t field, uint64_t value)
{
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(value >> 8 * i);
    put_tag(out, field, PB_FIXED64);
    put_raw(out, bytes, sizeof bytes);
}

void pb_put_double(struct pb_out *out, uint32_t field, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    pb_put_fixed64(out, field, bits);
}

void pb_put_bytes(struct pb_out *out, uint32_t field, const void *data, size_t len)
{
    put_tag(out, field, PB_BYTES);
    pb_put_varint(out, len);
    put_raw(out, data, len);
}

void pb_put_text(struct pb_out *out, uint32_t field, const char *text)
{
    pb_put_bytes(out, field, text, strlen(text));
}

void pb_put_message(struct pb_out *out, uint32_t field, struct pb_out *inner)
{
    pb_put_bytes(out, field, inner->at, inner->n);
    inner->n = 0;
}
