/* The state of one direction of a connection whose protocol is followed, and what the protocols'
 * decoders have in common. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "record.h"

/* Zeroed: at a connection's first byte. */
struct decoder {
    uint8_t phase;     /* enum decode_phase */
    uint16_t n_have;   /* bytes in `have` */
    uint8_t revision;  /* ZMTP: that this side announced, plus 1; 0: not yet */
    uint8_t index;     /* ZMTP: of the next frame in its message */
    uint8_t flags;     /* ZMTP: of the frame at hand */
    uint64_t skip;     /* bytes that belong to what was decoded last */
    uint64_t length;   /* ZMTP: of the frame at hand */
    uint64_t position; /* where in the stream have[0] was */
    uint8_t have[ZMTP_BODY_MAX];
};

enum decode_phase {
    DECODE_START,   /* nothing recognised yet */
    DECODE_UNKNOWN, /* a protocol that is not known */
    DECODE_BROKEN,  /* one that was known, and then did not go on as it should */
    DECODE_GLOO,
    DECODE_ZMTP_GREETING,
    DECODE_ZMTP_HEADER,
    DECODE_ZMTP_BODY,
};

/* What the decoders find goes into the log when `emit` is set. */
struct decode_sink {
    uint32_t connection;
    uint8_t direction;
    bool emit;
    /* Called once a direction, before what was recognised is written; may set emit. */
    void (*recognised)(struct decode_sink *sink, enum connection_protocol protocol);
};

/* Adds bytes to d->have until it holds `wanted`; returns how many were taken. */
size_t decode_collect(struct decoder *d, size_t wanted, const uint8_t *bytes, size_t n,
                      uint64_t position);
/* The bytes that follow are not known in order: ends decoding. */
void decode_give_up(struct decoder *d);
