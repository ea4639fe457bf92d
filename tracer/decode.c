/* Which protocol a connection speaks, and handing its bytes to that protocol's decoder. */
#include "decode.h"

#include <string.h>

#include "gloo.h"
#include "zmtp.h"

#define SEQUENCE_BYTES 8 /* gloo: what the connecting side sends before its first message */
#define START_BYTES    (SEQUENCE_BYTES + GLOO_PREAMBLE)

static void feed(struct decoder *d, const struct decoder *other, const uint8_t *bytes, size_t n,
                 uint64_t position, struct decode_sink *sink);

/* `skip` bytes of the first ones are no message. */
static void begin(struct decoder *d, const struct decoder *other, enum decode_phase phase,
                  size_t skip, struct decode_sink *sink)
{
    uint8_t first[START_BYTES];
    size_t n = d->n_have;
    uint64_t position = d->position;
    memcpy(first, d->have, n);
    d->phase = (uint8_t)phase;
    d->n_have = 0;
    sink->recognised(sink, phase == DECODE_GLOO ? PROTOCOL_GLOO : PROTOCOL_ZMTP);
    feed(d, other, first + skip, n - skip, position + skip, sink);
}

static size_t recognise(struct decoder *d, const struct decoder *other, const uint8_t *bytes,
                        size_t n, uint64_t position, struct decode_sink *sink)
{
    size_t wanted = d->n_have < ZMTP_SIGNATURE  ? ZMTP_SIGNATURE
                    : d->n_have < GLOO_PREAMBLE ? GLOO_PREAMBLE
                                                : START_BYTES;
    size_t taken = decode_collect(d, wanted, bytes, n, position);
    if (d->n_have < wanted)
        return taken;
    if (wanted == ZMTP_SIGNATURE && zmtp_is_signature(d->have))
        begin(d, other, DECODE_ZMTP_GREETING, 0, sink);
    else if (wanted == GLOO_PREAMBLE && gloo_is_preamble(d->have))
        begin(d, other, DECODE_GLOO, 0, sink);
    else if (wanted == START_BYTES && gloo_is_preamble(d->have + SEQUENCE_BYTES))
        begin(d, other, DECODE_GLOO, SEQUENCE_BYTES, sink);
    else if (wanted == START_BYTES)
        d->phase = DECODE_UNKNOWN;
    return taken;
}

static void feed(struct decoder *d, const struct decoder *other, const uint8_t *bytes, size_t n,
                 uint64_t position, struct decode_sink *sink)
{
    while (n > 0) {
        size_t taken = 0;
        if (d->skip > 0) {
            taken = d->skip < n ? (size_t)d->skip : n;
            d->skip -= taken;
        } else if (d->phase == DECODE_UNKNOWN || d->phase == DECODE_BROKEN) {
            return;
        } else if (!bytes) {
            decode_give_up(d);
            return;
        } else if (d->phase == DECODE_START) {
            taken = recognise(d, other, bytes, n, position, sink);
        } else if (d->phase == DECODE_GLOO) {
            taken = gloo_decode(d, bytes, n, position, sink);
        } else {
            taken = zmtp_decode(d, other, bytes, n, position, sink);
        }
        if (taken == 0) /* can't be, unless two threads are here at once */
            return;
        position += taken;
        n -= taken;
        if (bytes)
            bytes += taken;
    }
}

void decode(struct decoder *d, const struct decoder *other, const void *bytes, size_t n,
            uint64_t position, struct decode_sink *sink)
{
    feed(d, other, bytes, n, position, sink);
}
