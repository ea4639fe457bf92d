/* Following the protocols that dpro knows (gloo, ZMTP) through one direction of a connection,
 * whatever the calls were cut into. Decoding goes on while nothing is recorded, so that a recording
 * that starts late knows where messages begin; inside a payload it costs a subtraction.
 *
 * Nothing is decoded that was not recognised from a connection's first bytes, and a stream that
 * does not go on as its protocol says is not followed any further. */
#pragma once

#include "decoder.h"

/* The next `n` bytes, which begin at `position` of the stream. `bytes` is NULL where they were not
 * to be seen (sendfile, splice). `other` is the other direction's decoder. */
void decode(struct decoder *d, const struct decoder *other, const void *bytes, size_t n,
            uint64_t position, struct decode_sink *sink);
