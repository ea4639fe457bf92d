/* Messages of gloo's TCP transport: a preamble of six little-endian 64-bit words (nbytes, opcode,
 * slot, offset, length, roffset), then the data that it announces. */
#include "gloo.h"

#include "log.h"

enum { GLOO_BUFFER = 0, GLOO_UNBOUND = 1, GLOO_SEND_READY = 2, GLOO_RECV_READY = 3 };

static uint64_t word(const uint8_t *bytes, int i)
{
    uint64_t value = 0;
    for (int b = 7; b >= 0; b--)
        value = value << 8 | bytes[8 * i + b];
    return value;
}

/* Strict, since it also recognises a connection: the size must be what the opcode asks. */
bool gloo_is_preamble(const uint8_t *bytes)
{
    uint64_t size = word(bytes, 0), opcode = word(bytes, 1), length = word(bytes, 4);
    if (opcode > GLOO_RECV_READY || length > UINT64_MAX / 2)
        return false;
    return size == GLOO_PREAMBLE + (opcode <= GLOO_UNBOUND ? length : 0);
}

size_t gloo_decode(struct decoder *d, const uint8_t *bytes, size_t n, uint64_t position,
                   struct decode_sink *sink)
{
    size_t taken = decode_collect(d, GLOO_PREAMBLE, bytes, n, position);
    if (d->n_have < GLOO_PREAMBLE)
        return taken;
    d->n_have = 0;
    if (!gloo_is_preamble(d->have)) {
        decode_give_up(d);
        return taken;
    }
    d->skip = word(d->have, 0) - GLOO_PREAMBLE;
    struct record_gloo *r = sink->emit ? log_reserve(sizeof *r) : NULL;
    if (r) {
        *r = (struct record_gloo){.head = log_head(RECORD_GLOO, sizeof *r),
                                  .connection = sink->connection,
                                  .direction = sink->direction,
                                  .opcode = (uint8_t)word(d->have, 1),
                                  .position = d->position,
                                  .slot = word(d->have, 2),
                                  .buffer_offset = word(d->have, 3),
                                  .length = word(d->have, 4)};
        log_commit();
    }
    return taken;
}
