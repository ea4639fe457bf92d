/* Protocols are followed whatever calls their bytes came in, and nothing else is. */
#include <stdlib.h>
#include <string.h>

#include "../unit/case.h"
#include "decode.h"
#include "log.h"

/* ---- a log in memory ---- */

static struct record_gloo gloo[64];
static struct record_zmtp zmtp[64];
static int n_gloo, n_zmtp, n_broken, n_recognised;
static enum connection_protocol recognised;
static union {
    struct record head;
    struct record_gloo gloo;
    struct record_zmtp zmtp;
} next;

void *log_reserve(size_t size_bytes)
{
    assert_true(size_bytes <= sizeof next && size_bytes % 8 == 0);
    return &next;
}

void log_commit(void)
{
    if (next.head.type == RECORD_GLOO)
        gloo[n_gloo++ % 64] = next.gloo;
    else
        zmtp[n_zmtp++ % 64] = next.zmtp;
}

struct record log_head(enum record_type type, size_t size_bytes)
{
    return (struct record){(uint8_t)type, 1, (uint16_t)size_bytes, 1};
}

void log_count(enum loss_cause cause)
{
    assert_int_equal(cause, LOSS_FRAMING);
    n_broken++;
}

static void note(struct decode_sink *sink, enum connection_protocol protocol)
{
    sink->emit = true;
    recognised = protocol;
    n_recognised++;
}

/* ---- bytes ---- */

struct stream {
    uint8_t bytes[8192];
    size_t n;
};

static void put(struct stream *s, const void *bytes, size_t n)
{
    assert_true(s->n + n <= sizeof s->bytes);
    if (bytes)
        memcpy(s->bytes + s->n, bytes, n);
    else
        memset(s->bytes + s->n, 0xaa, n);
    s->n += n;
}

static void put_word(struct stream *s, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        put(s, &(uint8_t){(uint8_t)(value >> 8 * i)}, 1);
}

static void put_gloo(struct stream *s, uint64_t opcode, uint64_t slot, uint64_t length)
{
    uint64_t payload = opcode <= 1 ? length : 0;
    put_word(s, 48 + payload);
    put_word(s, opcode);
    put_word(s, slot);
    put_word(s, 96); /* offset */
    put_word(s, length);
    put_word(s, 0);
    put(s, NULL, payload);
}

static struct decoder decode_in_pieces(const struct stream *s, size_t piece,
                                       const struct decoder *other)
{
    static const struct decoder nothing;
    struct decoder d = {0};
    struct decode_sink sink = {5, DIRECTION_RECEIVE, false, note};
    n_gloo = n_zmtp = n_broken = n_recognised = 0;
    recognised = PROTOCOL_UNKNOWN;
    for (size_t at = 0; at < s->n; at += piece) {
        size_t n = s->n - at < piece ? s->n - at : piece;
        uint8_t *copy = malloc(n); /* exactly as long, so that reading past it is found */
        memcpy(copy, s->bytes + at, n);
        decode(&d, other ? other : &nothing, copy, n, at, &sink);
        free(copy);
    }
    return d;
}

TEST(gloo_messages_are_found_in_calls_of_any_size)
{
    for (int sequence = 0; sequence < 2; sequence++)
        for (size_t piece = 1; piece < 700; piece = piece < 130 ? piece + 1 : piece + 97) {
            struct stream s = {.n = 0};
            if (sequence)
                put_word(&s, 255);
            size_t first = s.n;
            put_gloo(&s, 3, (uint64_t)4 << 56 | 21 << 24, 500);
            put_gloo(&s, 1, (uint64_t)4 << 56 | 21 << 24 | 7, 500);
            put_gloo(&s, 2, (uint64_t)7 << 56 | 22 << 24, 0);
            put_gloo(&s, 1, 1, 0);
            put_gloo(&s, 0, 2, 1);
            decode_in_pieces(&s, piece, NULL);
            assert_int_equal(n_broken, 0);
            assert_int_equal(n_recognised, 1);
            assert_int_equal(recognised, PROTOCOL_GLOO);
            assert_int_equal(n_gloo, 5);
            assert_int_equal(gloo[0].position, first);
            assert_int_equal(gloo[1].position, first + 48);
            assert_int_equal(gloo[2].position, first + 48 + 548);
            assert_int_equal(gloo[3].position, first + 48 + 548 + 48);
            assert_int_equal(gloo[4].position, first + 48 + 548 + 48 + 48);
            assert_int_equal(gloo[0].opcode, 3);
            assert_int_equal(gloo[0].length, 500);
            assert_int_equal(gloo[1].opcode, 1);
            assert_int_equal(gloo[1].slot, (uint64_t)4 << 56 | 21 << 24 | 7);
            assert_int_equal(gloo[1].buffer_offset, 96);
            assert_int_equal(gloo[1].connection, 5);
            assert_int_equal(gloo[1].direction, DIRECTION_RECEIVE);
        }
}

TEST(a_break_in_gloos_framing_ends_decoding_and_is_counted)
{
    struct stream s = {.n = 0};
    put_gloo(&s, 1, 1, 10);
    put(&s, NULL, 48);
    put_gloo(&s, 1, 1, 10);
    struct decoder d = decode_in_pieces(&s, s.n, NULL);
    assert_int_equal(d.phase, DECODE_BROKEN);
    assert_int_equal(n_gloo, 1);
    assert_int_equal(n_broken, 1);
}

TEST(what_is_no_known_protocol_is_not_decoded)
{
    static const char http[] =
        "GET /a/rather/long/path/so/that/enough/bytes/are/seen HTTP/1.1\r\n\r\n";
    for (size_t piece = 1; piece < 80; piece++) {
        struct stream s = {.n = 0};
        put(&s, http, sizeof http);
        put_gloo(&s, 1, 1, 0); /* not at its beginning */
        struct decoder d = decode_in_pieces(&s, piece, NULL);
        assert_int_equal(d.phase, DECODE_UNKNOWN);
        assert_int_equal(n_recognised + n_gloo + n_zmtp + n_broken, 0);
    }
}

TEST(bytes_that_were_not_seen_are_passed_over_in_a_payload_only)
{
    struct stream s = {.n = 0};
    struct decode_sink sink = {1, DIRECTION_SEND, true, note};
    put_gloo(&s, 1, 1, 100);
    put_gloo(&s, 2, 1, 100);
    struct decoder d = {0}, other = {0};
    n_gloo = n_broken = 0;
    decode(&d, &other, s.bytes, 48, 0, &sink);
    decode(&d, &other, NULL, 100, 48, &sink);
    decode(&d, &other, s.bytes + 148, 48, 148, &sink);
    assert_int_equal(n_gloo, 2);
    assert_int_equal(n_broken, 0);
    decode(&d, &other, NULL, 48, 196, &sink);
    assert_int_equal(d.phase, DECODE_BROKEN);
    assert_int_equal(n_broken, 1);
    decode(&d, &other, s.bytes, 48, 244, &sink);
    assert_int_equal(n_gloo, 2);
}

/* ---- ZMTP ---- */

static void put_signature(struct stream *s, uint8_t revision)
{
    static const uint8_t signature[10] = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f};
    put(s, signature, sizeof signature);
    put(s, &revision, 1);
}

static void put_greeting_3(struct stream *s, const char *mechanism)
{
    char rest[53] = {0};
    put_signature(s, 3);
    memcpy(rest + 1, mechanism, strlen(mechanism));
    put(s, rest, sizeof rest);
}

static void put_frame(struct stream *s, uint8_t flags, const void *body, size_t n)
{
    if (n > 255)
        flags |= ZMTP_LONG;
    put(s, &flags, 1);
    if (flags & ZMTP_LONG)
        for (int i = 7; i >= 0; i--)
            put(s, &(uint8_t){(uint8_t)((uint64_t)n >> 8 * i)}, 1);
    else
        put(s, &(uint8_t){(uint8_t)n}, 1);
    put(s, body, n);
}

TEST(zmtp_frames_are_found_in_calls_of_any_size)
{
    static const char meta[] = "\x08\x00\x20\x01\x28\x00 meta of a push";
    uint64_t keys[16] = {3, 5};
    for (size_t piece = 1; piece < 900; piece = piece < 130 ? piece + 1 : piece + 61) {
        struct stream s = {.n = 0};
        put_greeting_3(&s, "NULL");
        put_frame(&s, ZMTP_COMMAND, "\5READY", 6);
        size_t first = s.n;
        put_frame(&s, ZMTP_MORE, meta, sizeof meta);
        put_frame(&s, ZMTP_MORE, keys, sizeof keys);
        put_frame(&s, ZMTP_MORE, NULL, 700);
        put_frame(&s, 0, NULL, 4);
        put_frame(&s, 0, "", 0);
        struct decoder d = decode_in_pieces(&s, piece, NULL);
        assert_int_equal(d.phase, DECODE_ZMTP_HEADER);
        assert_int_equal(recognised, PROTOCOL_ZMTP);
        assert_int_equal(n_recognised, 1);
        assert_int_equal(n_broken, 0);
        assert_int_equal(n_zmtp, 6);
        assert_int_equal(zmtp[0].flags, ZMTP_COMMAND);
        assert_int_equal(zmtp[0].n_body, 0);
        assert_int_equal(zmtp[1].position, first);
        assert_int_equal(zmtp[1].n_body, sizeof meta);
        assert_memory_equal(zmtp[1].body, meta, sizeof meta);
        assert_int_equal(zmtp[2].index, 1);
        assert_int_equal(zmtp[2].length, sizeof keys);
        assert_int_equal(zmtp[2].n_body, ZMTP_KEYS_MAX);
        assert_memory_equal(zmtp[2].body, keys, ZMTP_KEYS_MAX);
        assert_int_equal(zmtp[3].flags, ZMTP_MORE | ZMTP_LONG);
        assert_int_equal(zmtp[3].length, 700);
        assert_int_equal(zmtp[3].n_body, 0); /* values stay the job's */
        assert_int_equal(zmtp[4].index, 3);
        assert_int_equal(zmtp[4].n_body, 0);
        assert_int_equal(zmtp[5].index, 0);
        assert_int_equal(zmtp[5].length, 0);
        assert_int_equal(zmtp[5].position + 2, s.n);
    }
}

TEST(of_a_long_meta_frame_as_much_is_kept_as_a_record_holds)
{
    uint8_t meta[1200];
    for (size_t i = 0; i < sizeof meta; i++)
        meta[i] = (uint8_t)(i * 7);
    for (size_t size = 250; size <= sizeof meta; size += 95) {
        struct stream s = {.n = 0};
        put_greeting_3(&s, "NULL");
        put_frame(&s, ZMTP_MORE, meta, size);
        put_frame(&s, 0, meta, 3);
        decode_in_pieces(&s, 100, NULL);
        assert_int_equal(n_zmtp, 2);
        size_t kept = size < ZMTP_BODY_MAX ? size : ZMTP_BODY_MAX;
        assert_int_equal(zmtp[0].n_body, kept < 255 ? kept : 255);
        assert_int_equal(zmtp[0].head.size_bytes,
                         (offsetof(struct record_zmtp, body) + kept + 7) / 8 * 8);
        assert_memory_equal(zmtp[0].body, meta, kept);
        assert_int_equal(zmtp[1].n_body, 3);
    }
}

TEST(a_zmtp_side_goes_on_as_the_lower_version_says)
{
    for (size_t piece = 1; piece < 80; piece++) {
        struct stream two = {.n = 0}, three = {.n = 0};
        struct decoder other = {0};
        put_signature(&two, 1);
        put(&two, "\5", 1); /* socket type */
        put_frame(&two, 0, "", 0);
        put_frame(&two, 0, "hello", 5);
        decode_in_pieces(&two, piece, NULL);
        assert_int_equal(n_zmtp, 2);
        assert_int_equal(zmtp[1].length, 5);
        other = decode_in_pieces(&two, 11, NULL);
        put_signature(&three, 3);
        put(&three, "\5", 1);
        put_frame(&three, 0, "", 0);
        put_frame(&three, 0, "answer", 6);
        decode_in_pieces(&three, piece, &other);
        assert_int_equal(n_zmtp, 2);
        assert_int_equal(zmtp[1].length, 6);
    }
}

TEST(encrypted_zmtp_is_not_decoded)
{
    struct stream s = {.n = 0};
    put_greeting_3(&s, "CURVE");
    put_frame(&s, ZMTP_COMMAND, "\5HELLO", 6);
    struct decoder d = decode_in_pieces(&s, 7, NULL);
    assert_int_equal(d.phase, DECODE_UNKNOWN);
    assert_int_equal(n_zmtp, 0);
}

TEST(any_bytes_are_taken_without_harm)
{
    uint32_t random = 12345;
    for (int round = 0; round < 3000; round++) {
        struct stream s = {.n = 0};
        if (round % 3 == 0)
            put_greeting_3(&s, "NULL");
        else if (round % 3 == 1)
            put_gloo(&s, 1, 1, 5);
        for (int i = 0; i < 600; i++) {
            random = random * 1664525 + 1013904223;
            /* mostly small numbers, so that frames are plausible */
            put(&s, &(uint8_t){(uint8_t)(random >> (random >> 30 ? 29 : 24))}, 1);
        }
        struct decoder d = decode_in_pieces(&s, 1 + random % 50, NULL);
        assert_true(d.phase <= DECODE_ZMTP_BODY && d.n_have <= sizeof d.have);
    }
}
