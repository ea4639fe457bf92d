/* A one-pass, pull-style JSON scanner over a streaming input.
 *
 * No tree is built: the caller walks into the objects and arrays it wants and skips the rest, which
 * costs a few bytes' work per 32 bytes of text. The text stays in one buffer; only the token being
 * read is kept whole when the buffer moves on, up to JSON_TEXT_MAX bytes, so memory is bounded
 * whatever the file holds.
 *
 * Lenient where writers are: commas too many or too few, NaN, raw control characters in strings.
 * When the text ends early, is broken, or is nested too deep, `fail` is set once and every loop
 * ends; what was read before is true. */
#pragma once

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/file.h"

enum {
    JSON_TEXT_MAX = 1 << 16, /* longer strings and captured values are cut here */
    JSON_DEPTH_MAX = 256,
    JSON_CHUNK = 1 << 18, /* read at a time: fits a core's own cache */
    JSON_PADDING = 64,    /* zero bytes after the text, so that wide loads need no check */
};

enum json_fail {
    JSON_OK,
    JSON_ENDED, /* in the middle of a value */
    JSON_BAD,   /* not JSON here */
    JSON_DEEP,  /* nested deeper than JSON_DEPTH_MAX */
    JSON_IO,    /* err is set */
};

struct json {
    const char *p, *end; /* unread text in the buffer; JSON_PADDING zero bytes follow */
    const char *keep;    /* a token begun here must stay whole over a refill; NULL: none */
    bool cut;            /* the kept token grew over JSON_TEXT_MAX; its start is in scratch */
    bool ended;          /* the input has no more */
    enum json_fail fail;
    char *buffer;
    size_t chunk;
    uint64_t limit;         /* stop reading behind this many bytes; 0: no limit */
    uint64_t buffer_offset; /* of buffer[0] in the (inflated) input */
    char *scratch;          /* JSON_TEXT_MAX bytes: unescaped strings, starts of cut ones */
    struct input *in;
    int threads; /* that may read it together; 0: one */
    struct dpro_error *err;
    void (*on_chunk)(void *arg, struct input *in); /* after every chunk; may be NULL */
    void *arg;
};

/* chunk = 0: JSON_CHUNK. Small chunks are for tests: the result is the same at any size. */
void json_init(struct json *js, struct input *in, size_t chunk, struct dpro_error *err);
void json_fini(struct json *js);

/* Goes on with `size` bytes at `text`, which begin at that offset, in place of what is in the
 * buffer; the input goes on behind them if there is `more`. The text is from mem_alloc() and is
 * js's from now on; behind it is room for JSON_PADDING bytes, with `more` also for a kept token and
 * a chunk. */
void json_lend(struct json *js, char *text, size_t size, uint64_t offset, bool more);
/* Goes back to the input's first byte. */
void json_restart(struct json *js);

/* How reading ended: 0, or a code whose message says where and `why` the text is broken. */
int json_result(const struct json *js, const char *why);

/* Takes a byte order mark, if the text begins with one. */
void json_skip_mark(struct json *js);

/* Byte offset of the next unread character in the inflated input. */
static inline uint64_t json_offset(const struct json *js)
{
    return js->buffer_offset + (uint64_t)(js->p - js->buffer);
}

/* Slow halves of the inline functions below. */
bool json_refill(struct json *js);
int json_peek_slow(struct json *js);
bool json_string_slow(struct json *js, const char **text, size_t *len);
bool json_number_slow(struct json *js, const char **text, size_t *len);
bool json_colon_slow(struct json *js, const char **key, size_t len);
bool json_skip_string(struct json *js);
bool json_skip_nested(struct json *js);
bool json_stop(struct json *js, enum json_fail why); /* always false */

/* Bit i: text[i] is a quote or a backslash, for 32 bytes. */
static inline uint32_t json_mask_quotes(const char *text)
{
#if defined(__SSE2__)
    const __m128i quote = _mm_set1_epi8('"'), slash = _mm_set1_epi8('\\');
    __m128i a = _mm_loadu_si128((const __m128i *)text);
    __m128i b = _mm_loadu_si128((const __m128i *)(text + 16));
    a = _mm_or_si128(_mm_cmpeq_epi8(a, quote), _mm_cmpeq_epi8(a, slash));
    b = _mm_or_si128(_mm_cmpeq_epi8(b, quote), _mm_cmpeq_epi8(b, slash));
    return (uint32_t)_mm_movemask_epi8(a) | (uint32_t)_mm_movemask_epi8(b) << 16;
#else
    uint32_t mask = 0;
    for (int i = 0; i < 32; i++)
        mask |= (uint32_t)(text[i] == '"' || text[i] == '\\') << i;
    return mask;
#endif
}

/* Bit i: text[i] ends a bare token (space, comma, closing bracket, padding), for 16 bytes. */
static inline uint32_t json_mask_ends(const char *text)
{
#if defined(__SSE2__)
    __m128i a = _mm_loadu_si128((const __m128i *)text);
    __m128i close = _mm_cmpeq_epi8(_mm_or_si128(a, _mm_set1_epi8(0x20)), _mm_set1_epi8('}'));
    __m128i comma = _mm_cmpeq_epi8(a, _mm_set1_epi8(','));
    __m128i space = _mm_cmpeq_epi8(_mm_min_epu8(a, _mm_set1_epi8(' ')), a);
    return (uint32_t)_mm_movemask_epi8(_mm_or_si128(_mm_or_si128(close, comma), space));
#else
    uint32_t mask = 0;
    for (int i = 0; i < 16; i++)
        mask |=
            (uint32_t)(text[i] == ',' || (text[i] | 0x20) == '}' || (unsigned char)text[i] <= ' ')
            << i;
    return mask;
#endif
}

/* The next character that is not white space, not taken; -1 at the end. */
static inline int json_peek(struct json *js)
{
    if ((unsigned char)js->p[0] > ' ')
        return (unsigned char)js->p[0];
    if ((unsigned char)js->p[1] > ' ' && js->p < js->end)
        return (unsigned char)*++js->p;
    return json_peek_slow(js);
}

/* The length of the text behind an opening quote, where the text is short and has no escapes; else
 * -1. */
static inline int json_short_string(const char *text)
{
    uint32_t mask = json_mask_quotes(text);
    int n = mask ? __builtin_ctz(mask) : 0;
    return text[n] == '"' ? n : -1;
}

/* The length of a bare token that is short, -1 for a longer one. */
static inline int json_short_token(const char *text)
{
    uint32_t mask = json_mask_ends(text);
    if (!mask) /* "4458676522690.655" is longer than 16 */
        mask = json_mask_ends(text + 16) << 16;
    return mask ? __builtin_ctz(mask) : -1;
}

/* Takes a string (its opening quote is next) and unescapes it where needed. The text is borrowed
 * until the next call. Longer ones are cut to JSON_TEXT_MAX. */
static inline bool json_string(struct json *js, const char **text, size_t *len)
{
    int n = json_short_string(js->p + 1);
    if (n >= 0) {
        *text = js->p + 1;
        *len = (size_t)n;
        js->p += n + 2;
        return true;
    }
    return json_string_slow(js, text, len);
}

/* Takes a number or a bare word (true, null, NaN) as it is written. */
static inline bool json_number(struct json *js, const char **text, size_t *len)
{
    int n = json_short_token(js->p);
    if (n >= 0 && js->p + n < js->end) {
        *text = js->p;
        *len = (size_t)n;
        js->p += n;
        return true;
    }
    return json_number_slow(js, text, len);
}

/* Inside an object (its '{' taken): takes the next key and its colon; false at the '}', which is
 * taken, and on failure. The key is borrowed until the next call. */
static inline bool json_object_next(struct json *js, const char **key, size_t *len)
{
    int c = json_peek(js);
    while (c == ',') {
        js->p++;
        c = json_peek(js);
    }
    if (c != '"') {
        if (c == '}')
            return js->p++, false;
        return json_stop(js, c < 0 ? JSON_ENDED : JSON_BAD);
    }
    if (!json_string(js, key, len))
        return false;
    if (js->p[0] == ':') {
        js->p++;
        if ((unsigned char)js->p[0] > ' ')
            return true;
        /* ": " by far the most common; the value is surely in the buffer only if it is past it */
        if ((unsigned char)js->p[1] > ' ' && js->p < js->end) {
            js->p++;
            return true;
        }
    }
    return json_colon_slow(js, key, *len);
}

/* Inside an array (its '[' taken): true when an element is next; false at the ']', which is taken,
 * and on failure. */
static inline bool json_array_next(struct json *js)
{
    int c = json_peek(js);
    while (c == ',') {
        js->p++;
        c = json_peek(js);
    }
    if (c == ']')
        return js->p++, false;
    if (c == '}' || c == ':')
        return json_stop(js, JSON_BAD);
    return c < 0 ? json_stop(js, JSON_ENDED) : true;
}

/* Takes one value of any kind, without looking into it. */
static inline bool json_skip(struct json *js)
{
    int c = json_peek(js);
    if (c == '"') {
        int n = json_short_string(js->p + 1);
        if (n < 0)
            return json_skip_string(js);
        js->p += n + 2;
        return true;
    }
    if (c == '{' || c == '[')
        return json_skip_nested(js);
    if (c < 0)
        return json_stop(js, JSON_ENDED);
    if (c == '}' || c == ']' || c == ',' || c == ':')
        return json_stop(js, JSON_BAD);
    const char *text;
    size_t len;
    return json_number(js, &text, &len);
}

/* Takes the bracket of an object or array that is next; what is none is skipped: false. */
static inline bool json_open(struct json *js, char bracket)
{
    if (json_peek(js) != bracket)
        return json_skip(js), false;
    js->p++;
    return true;
}

/* for (...): each element of the array that is next; what is none is skipped. */
#define JSON_EACH(js)                                                                              \
    for (bool JSON_IN(__LINE__) = json_open((js), '['); JSON_IN(__LINE__) && json_array_next(js);)
#define JSON_IN(line)      JSON_IN_LINE(line)
#define JSON_IN_LINE(line) in_##line
/* for (...): each member of an object, with its key; `opened` is whether its bracket was taken. */
#define JSON_KEYS(js, opened, key, len)                                                            \
    for (size_t len = 0, key##_once_ = (opened); key##_once_; key##_once_ = 0)                     \
        for (const char *key; json_object_next((js), &key, &len);)

/* Takes the bracket of a document that is an object; of another one js->fail says so: false. */
static inline bool json_open_document(struct json *js)
{
    json_skip_mark(js);
    int c = json_peek(js);
    if (c != '{')
        return json_stop(js, c < 0 ? JSON_ENDED : JSON_BAD);
    js->p++;
    return true;
}

/* Whether `len` characters (at most 48) are those at `text`; 48 can be read of both. The processor
 * need not wait for the answer: it goes on as if it were the usual one. */
static inline bool json_begins(const char *at, const char *text, unsigned len)
{
#if defined(__SSE2__)
    const __m128i *a = (const __m128i *)at, *b = (const __m128i *)text;
    uint64_t x = (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_loadu_si128(a), b[0]));
    uint64_t y = (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_loadu_si128(a + 1), b[1]));
    uint64_t z = (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_loadu_si128(a + 2), b[2]));
    return (unsigned)__builtin_ctzll(~(x | y << 16 | z << 32)) >= len;
#else
    return len <= 48 && memcmp(at, text, len) == 0;
#endif
}

/* Takes one value of any kind and lends its raw text, up to `limit` (<= JSON_TEXT_MAX) bytes; *cut
 * tells whether there was more. */
bool json_raw(struct json *js, size_t limit, const char **text, size_t *len, bool *cut);

enum json_value { JSON_NO_VALUE, JSON_VALUE, JSON_SATURATED };

/* A decimal text times 10^scale as an integer, rounded to nearest, halves away from zero; NaN,
 * Infinity, null and what is no number give JSON_NO_VALUE. No floating point. */
enum json_value json_decimal(const char *text, size_t len, int scale, int64_t *value);
/* An id: a non-negative integer up to 2^64 - 1 (more saturates, negatives give no value). */
enum json_value json_unsigned(const char *text, size_t len, uint64_t *value);

/* Takes a value that is a number, or a string that holds one. Other values are skipped:
 * JSON_NO_VALUE. Check js->fail as always. */
static inline bool json_scalar(struct json *js, const char **text, size_t *len)
{
    int c = json_peek(js);
    if (c == '"')
        return json_string(js, text, len);
    if (c == '{' || c == '[' || c == '}' || c == ']' || c == ',' || c == ':' || c < 0) {
        *text = "";
        *len = 0;
        return json_skip(js);
    }
    return json_number(js, text, len);
}

static inline enum json_value json_read_decimal(struct json *js, int scale, int64_t *value)
{
    const char *text;
    size_t len;
    return json_scalar(js, &text, &len) ? json_decimal(text, len, scale, value) : JSON_NO_VALUE;
}

static inline enum json_value json_read_unsigned(struct json *js, uint64_t *value)
{
    const char *text;
    size_t len;
    return json_scalar(js, &text, &len) ? json_unsigned(text, len, value) : JSON_NO_VALUE;
}

/* The same; 0: no value. */
static inline uint64_t json_u64(struct json *js)
{
    uint64_t value;
    return json_read_unsigned(js, &value) == JSON_VALUE ? value : 0;
}

/* True when the text is exactly the literal. */
#define json_is(text, len, literal)                                                                \
    ((len) == sizeof(literal) - 1 && memcmp((text), (literal), sizeof(literal) - 1) == 0)
