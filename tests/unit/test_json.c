/* The JSON scanner: values, escapes, limits, and the same answers wherever the buffer ends. */
#include <isa-l/igzip_lib.h>
#include <malloc.h>

#include "base/json.h"
#include "case.h"

struct text {
    char *at;
    size_t n, cap;
};

static void put(struct text *out, const char *text, size_t len)
{
    array_reserve(out, len + 1);
    memcpy(out->at + out->n, text, len);
    out->n += len;
    out->at[out->n] = '\0';
}

/* Writes what the scanner sees of one value; `skip_key` values are skipped, "raw" ones lent raw. */
static void dump(struct json *js, struct text *out)
{
    const char *text;
    size_t len;
    int c = json_peek(js);
    if (c == '{') {
        js->p++;
        put(out, "{", 1);
        while (json_object_next(js, &text, &len)) {
            bool skip = json_is(text, len, "skip"), raw = json_is(text, len, "raw");
            put(out, text, len);
            put(out, "=", 1);
            if (skip) {
                json_skip(js);
            } else if (raw) {
                bool cut;
                if (json_raw(js, 100, &text, &len, &cut))
                    put(out, text, len);
            } else {
                dump(js, out);
            }
            put(out, ";", 1);
        }
        put(out, "}", 1);
    } else if (c == '[') {
        js->p++;
        put(out, "[", 1);
        while (json_array_next(js)) {
            dump(js, out);
            put(out, ",", 1);
        }
        put(out, "]", 1);
    } else if (json_scalar(js, &text, &len)) {
        put(out, text, len);
    }
}

static char *dump_text(const char *json, size_t len, size_t chunk, enum json_fail *fail)
{
    struct input in;
    struct json js;
    struct dpro_error err;
    struct text out = {0};
    input_open_memory(&in, json, len, "text");
    json_init(&js, &in, chunk, &err);
    put(&out, "", 0);
    dump(&js, &out);
    if (fail)
        *fail = js.fail;
    json_fini(&js);
    input_close(&in);
    return out.at;
}

static void expect(const char *json, const char *want, enum json_fail want_fail)
{
    for (size_t chunk = 0; chunk <= 64; chunk++) {
        enum json_fail fail;
        char *got = dump_text(json, strlen(json), chunk, &fail);
        assert_string_equal(got, want);
        assert_int_equal(fail, want_fail);
        mem_free(got);
    }
}

TEST(values_are_the_same_at_any_chunk_size)
{
    expect("{\"a\": 1, \"b\" : [true, null , -1.5e3,\"x\"],\"c\":{}}",
           "{a=1;b=[true,null,-1.5e3,x,];c={};}", JSON_OK);
    expect("{\"name that is longer than thirty-two bytes, to be sure\"\n\t:\n\n   \"value that is "
           "longer "
           "than thirty-two bytes, too\"}",
           "{name that is longer than thirty-two bytes, to be sure=value that is longer than "
           "thirty-two "
           "bytes, too;}",
           JSON_OK);
    expect("[NaN, Infinity, -Infinity, 4458676522690.655, 123456789012345678901234567890123]",
           "[NaN,Infinity,-Infinity,4458676522690.655,123456789012345678901234567890123,]",
           JSON_OK);
}

TEST(unwanted_values_are_skipped_whatever_they_hold)
{
    expect("{\"skip\":[[\"]\",\"}{\\\"]\",{\"a\\\\\":[]}],[50, 3, 224, 224], "
           "[1,[2,[3,[4,[5,[6,[7]]]]]]]],\"b\":2}",
           "{skip=;b=2;}", JSON_OK);
    expect("{\"skip\":\"a \\\\\\\" , ] } long enough to leave the first thirty-two "
           "bytes\\\\\",\"b\":2}",
           "{skip=;b=2;}", JSON_OK);
    expect("{\"skip\":{\"a\":\"\\u005d\\\"\"},\"skip\":-1.25E-7,\"skip\":false,\"b\":2}",
           "{skip=;skip=;skip=;b=2;}", JSON_OK);
}

TEST(raw_values_come_as_written)
{
    expect("{\"raw\":[[1, 2], \"a\\n]\"],\"raw\":\"x\",\"raw\":12}",
           "{raw=[[1, 2], \"a\\n]\"];raw=\"x\";raw=12;}", JSON_OK);
    expect(
        "{\"raw\":"
        "\"0123456789012345678901234567890123456789012345678901234567890123456789012345678901234"
        "567890123456789\"}",
        "{raw="
        "\"01234567890123456789012345678901234567890123456789012345678901234567890123456789012345"
        "6789012345678;}",
        JSON_OK);
}

TEST(strings_are_unescaped_to_utf8)
{
    expect("[\"\\u00e9\\u20ac\\ud83d\\ude00\\n\\t\\/\\\"\\\\\"]",
           "[\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\n\t/\"\\,]", JSON_OK);
    expect("[\"\\ud83dx\",\"\\u12\",\"\\q\"]", "[\xEF\xBF\xBDx,u12,q,]", JSON_OK);
    expect("[\"\\b\\f\\r\",\"\\u0041\\u07ff\\u0800\\uffff\\udbff\\udfff\"]",
           "[\b\f\r,A\xDF\xBF\xE0\xA0\x80\xEF\xBF\xBF\xF4\x8F\xBF\xBF,]", JSON_OK);
    expect("[\"\xFF\xC0 raw bytes\"]", "[\xFF\xC0 raw bytes,]", JSON_OK);
}

TEST(commas_too_many_or_too_few_are_fine)
{
    expect("[1,,2,]", "[1,2,]", JSON_OK);
    expect("{\"a\":1,}", "{a=1;}", JSON_OK);
    expect("[1 2]", "[1,2,]", JSON_OK);
}

TEST(broken_text_stops_where_it_breaks)
{
    expect("[1,{\"a\":2", "[1,{a=;},]", JSON_ENDED); /* more digits may have followed */
    expect("{\"a\":\"xy", "{a=;}", JSON_ENDED);
    expect("{\"a\"", "{}", JSON_ENDED);
    expect("{\"a\" 1}", "{}", JSON_BAD);
    expect("{1:2}", "{}", JSON_BAD);
    expect("[1}", "[1,]", JSON_BAD);
    expect("", "", JSON_ENDED);
    expect("{\"skip\":[\\]}", "{skip=;}", JSON_BAD);
}

TEST(a_million_brackets_are_refused)
{
    size_t n = 1000000;
    char *text = malloc(n + 10);
    memcpy(text, "{\"skip\":", 8);
    memset(text + 8, '[', n);
    enum json_fail fail;
    char *got = dump_text(text, n + 8, 0, &fail);
    assert_int_equal(fail, JSON_DEEP);
    mem_free(got);
    free(text);
}

TEST(long_strings_are_cut_in_bounded_memory)
{
    size_t n = 3000000;
    char *text = malloc(n + 16);
    text[0] = '[';
    text[1] = '"';
    memset(text + 2, 'x', n);
    strcpy(text + 2 + n, "\",7]");
    for (size_t chunk = 0; chunk < 3; chunk++) {
        enum json_fail fail;
        char *got = dump_text(text, n + 6, chunk * 1000, &fail);
        assert_int_equal(fail, JSON_OK);
        assert_int_equal(strlen(got), JSON_TEXT_MAX + 5);
        assert_string_equal(got + JSON_TEXT_MAX, "x,7,]");
        mem_free(got);
    }
    free(text);
}

/* 50 MB of one letter in a few kilobytes of gzip. */
TEST(huge_strings_in_gzip_are_skipped)
{
    size_t n = 50000000, packed_size = 8000000;
    unsigned char *packed = malloc(packed_size);
    char *text = malloc(n);
    memset(text, 'x', n);
    memcpy(text, "{\"skip\":\"", 9);
    memcpy(text + n - 8, "\",\"b\":2}", 8);
    struct isal_zstream z;
    isal_deflate_init(&z);
    z.gzip_flag = IGZIP_GZIP;
    z.end_of_stream = 1;
    z.next_in = (uint8_t *)text;
    z.avail_in = (uint32_t)n;
    z.next_out = packed;
    z.avail_out = (uint32_t)packed_size;
    assert_int_equal(isal_deflate(&z), COMP_OK);
    enum json_fail fail;
    char *got = dump_text((char *)packed, z.total_out, 0, &fail);
    assert_int_equal(fail, JSON_OK);
    assert_string_equal(got, "{skip=;b=2;}");
    mem_free(got);
    free(text);
    free(packed);
}

/* Inflates with new memory that holds `fill`, at most `step` bytes at a time. */
static size_t inflate_in_memory_of(int fill, size_t step, const unsigned char *packed, size_t n,
                                   char *out, size_t cap)
{
    struct dpro_error err;
    struct input in;
    size_t n_out = 0;
    mallopt(M_PERTURB, fill);
    input_open_memory(&in, packed, n, "damaged.gz");
    for (int64_t got; (got = input_read(&in, out + n_out, MIN(step, cap - n_out), &err)) > 0;)
        n_out += (size_t)got;
    input_close(&in);
    mallopt(M_PERTURB, 0);
    return n_out;
}

TEST(damaged_gzip_reads_the_same_each_time_and_in_blocks_of_any_size)
{
    enum { SIZE = 1 << 17 };
    static char text[SIZE], first[SIZE], second[SIZE];
    static unsigned char packed[2 * SIZE], damaged[2 * SIZE];
    uint32_t random = 1;
    for (size_t i = 0; i < SIZE; i++) {
        random = random * 1664525 + 1013904223;
        text[i] = "0123456789,\n"[(random >> 24) % 12];
    }
    struct isal_zstream z;
    isal_deflate_stateless_init(&z);
    z.gzip_flag = IGZIP_GZIP;
    z.next_in = (unsigned char *)text;
    z.avail_in = sizeof text;
    z.next_out = packed;
    z.avail_out = sizeof packed;
    z.end_of_stream = 1;
    assert_int_equal(isal_deflate_stateless(&z), COMP_OK);
    for (int seed = 0; seed < 300; seed++) {
        memcpy(damaged, packed, z.total_out);
        for (int i = 0; i < 5; i++) {
            random = random * 1664525 + 1013904223;
            damaged[18 + (random >> 8) % (z.total_out - 18)] ^= (unsigned char)(1 + (random & 127));
        }
        size_t step = 1 + (random >> 8) % (seed % 2 ? 97 : SIZE);
        size_t n = inflate_in_memory_of(0x55, SIZE, damaged, z.total_out, first, SIZE);
        assert_int_equal(inflate_in_memory_of(0xaa, step, damaged, z.total_out, second, SIZE), n);
        assert_memory_equal(first, second, n);
    }
}

TEST(decimals_are_exact)
{
    static const struct {
        const char *text;
        int scale;
        enum json_value rc;
        int64_t value;
    } cases[] = {
        {"4458676522690.655", 3, JSON_VALUE, 4458676522690655},
        {"1694128201435418", 3, JSON_VALUE, 1694128201435418000},
        {"0", 3, JSON_VALUE, 0},
        {"-0.5", 3, JSON_VALUE, -500},
        {"-17", 0, JSON_VALUE, -17},
        {"68.0", 3, JSON_VALUE, 68000},
        {"1.2345", 3, JSON_VALUE, 1235},
        {"1.2344999", 3, JSON_VALUE, 1234},
        {"1e3", 3, JSON_VALUE, 1000000},
        {"1.5E-2", 3, JSON_VALUE, 15},
        {"1.6941282014354180e15", 3, JSON_VALUE, 1694128201435418000},
        {"12345678", 0, JSON_VALUE, 12345678},
        {"1234567.25", 3, JSON_VALUE, 1234567250},
        {"9223372036854775807", 0, JSON_VALUE, INT64_MAX},
        {"9223372036854775808", 0, JSON_SATURATED, INT64_MAX},
        {"9223372036854776", 3, JSON_SATURATED, INT64_MAX},
        {"-1e300", 3, JSON_SATURATED, INT64_MIN},
        {"1e-300", 3, JSON_VALUE, 0},
        {"123456789012345678901234567890e-20", 0, JSON_VALUE, 1234567890},
        {"NaN", 3, JSON_NO_VALUE, 0},
        {"-Infinity", 3, JSON_NO_VALUE, 0},
        {"null", 3, JSON_NO_VALUE, 0},
        {"", 3, JSON_NO_VALUE, 0},
        {"1x", 3, JSON_NO_VALUE, 0},
        {"1e", 3, JSON_NO_VALUE, 0},
        {".", 3, JSON_NO_VALUE, 0},
        {"1.2.3", 3, JSON_NO_VALUE, 0},
        {"1234567:", 3, JSON_NO_VALUE, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t value = 0;
        enum json_value rc =
            json_decimal(cases[i].text, strlen(cases[i].text), cases[i].scale, &value);
        if (rc != cases[i].rc || (rc != JSON_NO_VALUE && value != cases[i].value))
            fail_msg("%s: %d, %lld", cases[i].text, (int)rc, (long long)value);
    }
}

/* Every place of digits and point against the slow obvious way. */
TEST(decimals_agree_with_long_arithmetic)
{
    uint64_t seed = 1;
    for (int i = 0; i < 200000; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        uint64_t whole = (seed >> 20) >> (seed % 40), thousandths = (seed >> 7) % 1000;
        char text[64];
        snprintf(text, sizeof text, "%llu.%03llu", (unsigned long long)whole,
                 (unsigned long long)thousandths);
        int64_t value;
        assert_int_equal(json_decimal(text, strlen(text), 3, &value), JSON_VALUE);
        assert_true(value == (int64_t)(whole * 1000 + thousandths));
    }
}

TEST(ids_reach_64_bits)
{
    uint64_t v;
    assert_int_equal(json_unsigned("18446744073709551615", 20, &v), JSON_VALUE);
    assert_true(v == UINT64_MAX);
    assert_int_equal(json_unsigned("18446744073709551616", 20, &v), JSON_SATURATED);
    assert_int_equal(json_unsigned("-1", 2, &v), JSON_NO_VALUE);
    assert_int_equal(json_unsigned("12.0", 4, &v), JSON_VALUE);
    assert_int_equal(v, 12);
}
