/* Protobuf messages on the wire, field by field into a growing buffer; a nested message is made in
 * a buffer of its own. Zeros are written, too: proto3 reads them as it would read their absence. */
#pragma once

#include "base/base.h"

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
