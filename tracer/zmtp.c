/* Frames of ZMTP 2.0 and 3.x, which ps-lite's messages travel in.
 *
 * A side opens with a signature (FF, eight bytes, 7F) and its version. What follows depends on the
 * lower one of the two sides' versions: 2.0: the socket's type, one byte; 3.x: 53 bytes, the
 * security mechanism among them. Then come frames: flags, length (one byte, or eight in network
 * order), body. */
#include "zmtp.h"

#include <string.h>

#include "log.h"

#define REVISION_2     1 /* as they stand on the wire */
#define REVISION_3     3
#define GREETING_2     12
#define GREETING_3     64
#define MECHANISM_AT   12
#define MECHANISM_SIZE 20
#define BODIES         2 /* frames of a message whose first bytes are kept */

bool zmtp_is_signature(const uint8_t *bytes)
{
    static const uint8_t zeros[6] = {0};
    uint8_t revision = bytes[ZMTP_SIGNATURE - 1];
    return bytes[0] == 0xff && memcmp(bytes + 1, zeros, sizeof zeros) == 0 && bytes[9] == 0x7f &&
           revision >= REVISION_2 && revision <= REVISION_3;
}

static void next_frame(struct decoder *d)
{
    d->phase = DECODE_ZMTP_HEADER;
    d->n_have = 0;
}

static size_t decode_greeting(struct decoder *d, const struct decoder *other, const uint8_t *bytes,
                              size_t n, uint64_t position)
{
    if (d->n_have < ZMTP_SIGNATURE) {
        size_t taken = decode_collect(d, ZMTP_SIGNATURE, bytes, n, position);
        if (d->n_have == ZMTP_SIGNATURE)
            d->revision = d->have[ZMTP_SIGNATURE - 1];
        return taken;
    }
    /* a side that knows 3.x and hears that the other one does not goes on in 2.0 */
    bool third =
        d->revision >= REVISION_3 && (other->revision == 0 || other->revision >= REVISION_3);
    size_t size = third ? GREETING_3 : GREETING_2;
    size_t taken = decode_collect(d, size, bytes, n, position);
    if (d->n_have < size)
        return taken;
    static const char null[MECHANISM_SIZE] = "NULL", plain[MECHANISM_SIZE] = "PLAIN";
    if (third && memcmp(d->have + MECHANISM_AT, null, sizeof null) != 0 &&
        memcmp(d->have + MECHANISM_AT, plain, sizeof plain) != 0)
        d->phase = DECODE_UNKNOWN; /* encrypted */
    else
        next_frame(d);
    return taken;
}

static void end_frame(struct decoder *d, struct decode_sink *sink)
{
    size_t size = (offsetof(struct record_zmtp, body) + d->n_have + 7) / 8 * 8;
    struct record_zmtp *r = sink->emit ? log_reserve(size) : NULL;
    if (r) {
        memset(r, 0, size);
        r->head = log_head(RECORD_ZMTP, size);
        r->connection = sink->connection;
        r->direction = sink->direction;
        r->flags = d->flags;
        r->index = d->index;
        r->n_body = d->n_have < UINT8_MAX ? (uint8_t)d->n_have : UINT8_MAX;
        r->position = d->position;
        r->length = d->length;
        memcpy(r->body, d->have, d->n_have);
        log_commit();
    }
    d->skip = d->length - d->n_have;
    if (!(d->flags & ZMTP_COMMAND))
        d->index = !(d->flags & ZMTP_MORE) ? 0 : d->index < UINT8_MAX ? d->index + 1 : UINT8_MAX;
    next_frame(d);
}

static size_t bytes_to_keep(const struct decoder *d)
{
    if (d->index >= BODIES || (d->flags & ZMTP_COMMAND))
        return 0;
    size_t most = d->index == 0 ? ZMTP_BODY_MAX : ZMTP_KEYS_MAX;
    return d->length < most ? (size_t)d->length : most;
}

static size_t decode_header(struct decoder *d, const uint8_t *bytes, size_t n, uint64_t position,
                            struct decode_sink *sink)
{
    size_t wanted = d->n_have == 0 ? 1 : d->have[0] & ZMTP_LONG ? 9 : 2;
    size_t taken = decode_collect(d, wanted, bytes, n, position);
    if (wanted == 1 || d->n_have < wanted)
        return taken;
    d->flags = d->have[0];
    d->length = 0;
    for (size_t i = 1; i < wanted; i++)
        d->length = d->length << 8 | d->have[i];
    if ((d->flags & ~(ZMTP_MORE | ZMTP_LONG | ZMTP_COMMAND)) || d->length > UINT64_MAX / 2) {
        decode_give_up(d);
        return taken;
    }
    d->n_have = 0;
    d->phase = DECODE_ZMTP_BODY;
    if (bytes_to_keep(d) == 0)
        end_frame(d, sink);
    return taken;
}

static size_t decode_body(struct decoder *d, const uint8_t *bytes, size_t n,
                          struct decode_sink *sink)
{
    uint64_t header = d->position; /* stays the frame's */
    size_t wanted = bytes_to_keep(d), taken = decode_collect(d, wanted, bytes, n, header);
    if (d->n_have >= wanted)
        end_frame(d, sink);
    return taken;
}

size_t zmtp_decode(struct decoder *d, const struct decoder *other, const uint8_t *bytes, size_t n,
                   uint64_t position, struct decode_sink *sink)
{
    if (d->phase == DECODE_ZMTP_GREETING)
        return decode_greeting(d, other, bytes, n, position);
    if (d->phase == DECODE_ZMTP_HEADER)
        return decode_header(d, bytes, n, position, sink);
    return decode_body(d, bytes, n, sink);
}
