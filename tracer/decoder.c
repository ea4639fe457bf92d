/* What the decoders of protocols have in common. */
#include "decoder.h"

#include <string.h>

#include "log.h"

size_t decode_collect(struct decoder *d, size_t wanted, const uint8_t *bytes, size_t n,
                      uint64_t position)
{
    size_t have = d->n_have;
    if (have == 0)
        d->position = position;
    if (have >= wanted || wanted > sizeof d->have)
        return 0;
    size_t take = n < wanted - have ? n : wanted - have;
    memcpy(d->have + have, bytes, take);
    d->n_have = (uint16_t)(have + take);
    return take;
}

void decode_give_up(struct decoder *d)
{
    if (d->phase == DECODE_START) {
        d->phase = DECODE_UNKNOWN;
    } else if (d->phase != DECODE_UNKNOWN && d->phase != DECODE_BROKEN) {
        d->phase = DECODE_BROKEN;
        log_count(LOSS_FRAMING);
    }
}
