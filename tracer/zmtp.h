/* Frames of ZMTP, which ps-lite's messages travel in. */
#pragma once

#include "decoder.h"

#define ZMTP_SIGNATURE 11 /* the version included */
bool zmtp_is_signature(const uint8_t *bytes);
/* Takes at least one of the bytes and returns how many. `other` is the other direction. */
size_t zmtp_decode(struct decoder *d, const struct decoder *other, const uint8_t *bytes, size_t n,
                   uint64_t position, struct decode_sink *sink);
