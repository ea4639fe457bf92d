/* Structs as bytes and back: every kind of member, over the ends of pieces; what is cut fails. */

#include "base/pack.h"
#include "case.h"

struct item {
    const char *name;
    int64_t ns;
};

struct thing {
    int first, second;
    const char *text, *none;
    uint32_t n_bytes, n_lent;
    char *bytes;
    int *lent, *absent;
    ARRAY(struct item) items;
};

static const struct packed of_item[] = {PACKED_TEXT(struct item, name), PACKED_LAST};
static const struct packed of_thing[] = {PACKED_TO(struct thing, first, second),
                                         PACKED(struct thing, n_bytes),
                                         PACKED(struct thing, n_lent),
                                         PACKED_TEXT(struct thing, text),
                                         PACKED_TEXT(struct thing, none),
                                         PACKED_ITEMS(struct thing, bytes, n_bytes),
                                         PACKED_LENT(struct thing, lent, n_lent),
                                         PACKED_ITEMS(struct thing, absent, n_bytes),
                                         PACKED_ARRAY_OF(struct thing, items, of_item),
                                         PACKED_LAST};

/* The message so far, or what is left of it. */
struct wire {
    char *bytes;
    size_t n, at;
};

static void pass(struct pack *pack)
{
    struct wire *wire = pack->other;
    if (pack->reading) {
        pack->n = wire->n - wire->at < PACK_PIECE ? wire->n - wire->at : PACK_PIECE;
        memcpy(pack->piece, wire->bytes + wire->at, pack->n);
        wire->at += pack->n;
        pack->at = 0;
        return;
    }
    wire->bytes = mem_resize(wire->bytes, wire->n + pack->n + 1, 1);
    memcpy(wire->bytes + wire->n, pack->piece, pack->n);
    wire->n += pack->n;
    pack->n = 0;
}

static struct wire write_thing(struct thing *thing)
{
    struct wire wire = {0};
    struct pack pack = {.piece = mem_alloc(PACK_PIECE), .pass = pass, .other = &wire};
    pack_struct(&pack, of_thing, thing);
    pass(&pack);
    mem_free(pack.piece);
    return wire;
}

static __attribute__((noinline)) int read_thing(struct wire *wire, struct arena *arena,
                                                struct thing *thing)
{
    struct pack pack = {.reading = true,
                        .piece = mem_alloc(PACK_PIECE),
                        .arena = arena,
                        .pass = pass,
                        .other = wire};
    pass(&pack);
    pack_struct(&pack, of_thing, thing);
    mem_free(pack.piece);
    return 0;
}

static struct thing make(uint32_t n_bytes)
{
    static int lent[] = {3, 4, 5};
    struct thing thing = {.first = 1, .second = 2, .text = "text", .n_bytes = n_bytes, .n_lent = 3};
    thing.bytes = mem_alloc(n_bytes + 1);
    thing.lent = lent;
    for (uint32_t i = 0; i < n_bytes; i++)
        thing.bytes[i] = (char)(i * 7);
    array_add(&thing.items, "a", 10);
    array_add(&thing.items, NULL, 20);
    array_add(&thing.items, "", 30);
    return thing;
}

TEST(what_is_listed_comes_out_as_it_went_in)
{
    const uint32_t sizes[] = {0, 1, PACK_PIECE - 300, PACK_PIECE, 3 * PACK_PIECE + 17};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct thing in = make(sizes[i]), out = {0};
        struct wire wire = write_thing(&in);
        struct arena arena = {0};
        assert_int_equal(read_thing(&wire, &arena, &out), 0);
        assert_int_equal(out.first + 10 * out.second, 21);
        assert_string_equal(out.text, "text");
        assert_null(out.none);
        assert_null(out.absent);
        assert_memory_equal(out.bytes, in.bytes, sizes[i]);
        assert_memory_equal(out.lent, in.lent, sizeof *in.lent * in.n_lent);
        assert_int_equal(out.items.n, 3);
        assert_string_equal(out.items.at[0].name, "a");
        assert_null(out.items.at[1].name);
        assert_string_equal(out.items.at[2].name, "");
        assert_int_equal(out.items.at[2].ns, 30);
        struct thing copy = out;
        packed_copy(of_thing, &copy, &arena);
        assert_true(copy.bytes != out.bytes);
        assert_memory_equal(copy.bytes, in.bytes, sizes[i]);
        packed_free(of_thing, &out);
        packed_free(of_thing, &in);
        mem_free(wire.bytes);
        arena_fini(&arena);
    }
}

/* Wherever a message ends too early, reading fails and what was made for it is freed. */
TEST(a_message_that_is_cut_fails)
{
    struct thing in = make(40);
    struct wire wire = write_thing(&in);
    for (size_t n = 0; n < wire.n; n++) {
        struct wire cut = {wire.bytes, n, 0};
        struct thing out = {0};
        struct arena arena = {0};
        assert_int_equal(WITHIN_SCOPE(DPRO_ENOMEM, read_thing(&cut, &arena, &out)), DPRO_ENOMEM);
    }
    packed_free(of_thing, &in);
    mem_free(wire.bytes);
}
