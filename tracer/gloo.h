/* Messages of gloo's TCP transport. */
#pragma once

#include "decoder.h"

#define GLOO_PREAMBLE 48
bool gloo_is_preamble(const uint8_t *bytes);
/* Takes at least one of the bytes and returns how many. */
size_t gloo_decode(struct decoder *d, const uint8_t *bytes, size_t n, uint64_t position,
                   struct decode_sink *sink);
