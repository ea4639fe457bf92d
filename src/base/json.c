/* Scans JSON.
 *
 * The scanner's slow paths: the buffer's end, escapes, long strings, nesting. */
#include "base/json.h"

void json_fini(struct json *js)
{
    FREE_ALL(&js->buffer, &js->scratch);
    *js = (struct json){0};
}

void json_lend(struct json *js, char *text, size_t size, uint64_t offset, bool more)
{
    if (js->buffer != text)
        mem_free(js->buffer);
    js->buffer = text;
    js->p = text;
    js->end = text + size;
    memset(text + size, 0, JSON_PADDING);
    js->buffer_offset = offset;
    js->ended = !more;
    js->fail = JSON_OK;
}

void json_restart(struct json *js)
{
    json_lend(js, js->buffer, 0, 0, true);
    if (input_rewind(js->in, js->err) < 0)
        json_stop(js, JSON_IO);
}

bool json_stop(struct json *js, enum json_fail why)
{
    if (js->fail == JSON_OK)
        js->fail = why;
    /* the offset stays where it failed, the text is over */
    js->buffer_offset += (uint64_t)(js->p - js->buffer);
    memset(js->buffer, 0, JSON_PADDING);
    js->p = js->end = js->buffer;
    js->keep = NULL;
    js->ended = true;
    return false;
}

int json_result(const struct json *js, const char *why)
{
    if (js->fail == JSON_OK || js->fail == JSON_IO) /* whose message is there */
        return js->fail == JSON_OK ? 0 : DPRO_EIO;
    return dpro_error_set(js->err, DPRO_EFORMAT, "%s: byte %llu: %s", js->in->path,
                          (unsigned long long)json_offset(js),
                          js->fail == JSON_ENDED ? "the file ends too early" : why);
}

/* Drops what was read, except a kept token, and reads a chunk more. False at the end of the input.
 * Text after p is never dropped; p and keep move with the text. */
bool json_refill(struct json *js)
{
    if (js->ended)
        return false;
    const char *from = js->keep ? js->keep : js->p;
    if (js->keep && (size_t)(js->end - js->keep) >= JSON_TEXT_MAX) {
        memcpy(js->scratch, js->keep, JSON_TEXT_MAX);
        js->cut = true;
        js->keep = NULL;
        from = js->p;
    }
    size_t n_left = (size_t)(js->end - from), shift = (size_t)(from - js->buffer);
    memmove(js->buffer, from, n_left);
    js->buffer_offset += shift;
    js->p -= shift;
    if (js->keep)
        js->keep -= shift;
    js->end = js->buffer + n_left;
    if (js->limit && js->buffer_offset + n_left >= js->limit) {
        memset(js->buffer + n_left, 0, JSON_PADDING);
        js->ended = true;
        return false;
    }
    int64_t n = input_read(js->in, js->buffer + n_left, js->chunk, js->err);
    if (n < 0) {
        memset(js->buffer + n_left, 0, JSON_PADDING);
        return json_stop(js, JSON_IO);
    }
    js->end += n;
    memset(js->buffer + n_left + n, 0, JSON_PADDING);
    if (js->on_chunk)
        js->on_chunk(js->arg, js->in);
    if (n == 0)
        js->ended = true;
    return n > 0;
}

void json_skip_mark(struct json *js)
{
    js->keep = js->p;
    while (js->end - js->p < 3 && json_refill(js))
        ;
    js->keep = NULL;
    if (js->end - js->p >= 3 && memcmp(js->p, "\xEF\xBB\xBF", 3) == 0)
        js->p += 3;
}

int json_peek_slow(struct json *js)
{
    do {
        for (; js->p < js->end; js->p++)
            if ((unsigned char)*js->p > ' ')
                return (unsigned char)*js->p;
    } while (json_refill(js));
    return -1;
}

/* A key whose colon or value is not close by. The key may have to move out of the buffer. */
bool json_colon_slow(struct json *js, const char **key, size_t len)
{
    if (*key != js->scratch) {
        memcpy(js->scratch, *key, MIN(len, (size_t)JSON_TEXT_MAX));
        *key = js->scratch;
    }
    /* json_object_next took the colon already when it was right behind the key */
    if (js->p[-1] != ':') {
        int c = json_peek(js);
        if (c != ':')
            return json_stop(js, c < 0 ? JSON_ENDED : JSON_BAD);
        js->p++;
    }
    return json_peek(js) < 0 ? json_stop(js, JSON_ENDED) : true;
}

static bool read_hex4(const char *at, const char *end, uint32_t *code)
{
    if (end - at < 4)
        return false;
    *code = 0;
    for (int i = 0; i < 4; i++) {
        unsigned c = (unsigned char)at[i], digit;
        if (c >= '0' && c <= '9')
            digit = c - '0';
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            digit = (c | 0x20) - 'a' + 10;
        else
            return false;
        *code = *code << 4 | digit;
    }
    return true;
}

static size_t put_utf8(char *out, uint32_t code)
{
    static const unsigned char marks[] = {0, 0, 0xC0, 0xE0, 0xF0}; /* by length */
    size_t n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, code >>= 6)
        out[i] = (char)(0x80 | (code & 0x3F));
    out[0] = (char)(marks[n] | code);
    return n;
}

/* Unescapes text[0..len) into out, which may be text itself: the result is never longer. A lone
 * surrogate becomes U+FFFD, an unknown escape its own character. */
static size_t json_unescape(char *out, const char *text, size_t len)
{
    static const char letters[] = "bfnrt", controls[] = "\b\f\n\r\t";
    size_t n = 0;
    const char *end = text + len;
    while (text < end) {
        if (*text != '\\') {
            out[n++] = *text++;
            continue;
        }
        if (++text == end)
            break;
        char c = *text++;
        const char *letter = memchr(letters, c, sizeof letters - 1);
        uint32_t code, low;
        if (c == 'u' && read_hex4(text, end, &code)) {
            text += 4;
            if (code >= 0xD800 && code < 0xDC00 && end - text >= 6 && text[0] == '\\' &&
                text[1] == 'u' && read_hex4(text + 2, end, &low) && low >= 0xDC00 && low < 0xE000) {
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
                text += 6;
            } else if (code >= 0xD800 && code < 0xE000) {
                code = 0xFFFD;
            }
            n += put_utf8(out + n, code);
        } else { /* also the quote, the slash and the backslash */
            out[n++] = letter ? controls[letter - letters] : c;
        }
    }
    return n;
}

/* Moves p behind the closing quote; p is behind the opening one or further in the string. *escaped
 * is set when a backslash was passed. */
static bool pass_string(struct json *js, bool *escaped)
{
    for (;;) {
        uint32_t mask;
        while ((mask = json_mask_quotes(js->p)) == 0 && js->p + 32 <= js->end)
            js->p += 32;
        if (mask) {
            js->p += __builtin_ctz(mask);
            if (*js->p == '"') {
                js->p++;
                return true;
            }
            *escaped = true;
            if (js->p + 1 < js->end) {
                js->p += 2;
                continue;
            }
            /* a backslash, and the character it escapes is not here yet */
            if (!json_refill(js))
                return json_stop(js, JSON_ENDED);
            continue;
        }
        js->p = js->end;
        if (!json_refill(js))
            return json_stop(js, JSON_ENDED);
    }
}

static void lend_kept(struct json *js, const char *end, const char **text, size_t *len)
{
    *text = js->cut ? js->scratch : js->keep;
    *len = js->cut ? JSON_TEXT_MAX : (size_t)(end - js->keep);
    js->keep = NULL;
}

bool json_string_slow(struct json *js, const char **text, size_t *len)
{
    bool escaped = false;
    js->keep = ++js->p;
    js->cut = false;
    if (!pass_string(js, &escaped))
        return false;
    lend_kept(js, js->p - 1, text, len);
    *len = MIN(*len, (size_t)JSON_TEXT_MAX);
    if (escaped) {
        *len = json_unescape(js->scratch, *text, *len);
        *text = js->scratch;
    }
    return true;
}

bool json_skip_string(struct json *js)
{
    bool escaped;
    js->p++;
    return pass_string(js, &escaped);
}

bool json_number_slow(struct json *js, const char **text, size_t *len)
{
    js->keep = js->p;
    js->cut = false;
    for (;;) {
        while (js->p < js->end && !(json_mask_ends(js->p) & 1))
            js->p++;
        if (js->p < js->end)
            break;
        if (!json_refill(js))
            return json_stop(js, JSON_ENDED); /* more digits may have followed */
    }
    lend_kept(js, js->p, text, len);
    return true;
}

/* Brackets, quotes and backslashes of 32 bytes. */
struct json_block {
    uint32_t opens, closes, quotes, slashes;
};

static inline __attribute__((always_inline)) struct json_block look_at(const char *text)
{
    struct json_block block;
#if defined(__SSE2__)
    const __m128i fold = _mm_set1_epi8(0x20), open = _mm_set1_epi8('{'), close = _mm_set1_epi8('}'),
                  quote = _mm_set1_epi8('"'), slash = _mm_set1_epi8('\\');
    __m128i a = _mm_loadu_si128((const __m128i *)text);
    __m128i b = _mm_loadu_si128((const __m128i *)(text + 16));
    __m128i fa = _mm_or_si128(a, fold), fb = _mm_or_si128(b, fold);
#define MASK32(x, y, value)                                                                        \
    ((uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(x, value)) |                                       \
     (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(y, value)) << 16)
    block.opens = MASK32(fa, fb, open);
    block.closes = MASK32(fa, fb, close);
    block.quotes = MASK32(a, b, quote);
    block.slashes = MASK32(a, b, slash);
#undef MASK32
#else
    block = (struct json_block){0};
    for (int i = 0; i < 32; i++) {
        block.opens |= (uint32_t)((text[i] | 0x20) == '{') << i;
        block.closes |= (uint32_t)((text[i] | 0x20) == '}') << i;
        block.quotes |= (uint32_t)(text[i] == '"') << i;
        block.slashes |= (uint32_t)(text[i] == '\\') << i;
    }
#endif
    return block;
}

/* Bit i: an odd number of quotes up to and with i, so that a string's text and its opening quote
 * are set. */
static inline __attribute__((always_inline)) uint32_t inside_quotes(uint32_t quotes)
{
    quotes ^= quotes << 1;
    quotes ^= quotes << 2;
    quotes ^= quotes << 4;
    quotes ^= quotes << 8;
    return quotes ^ quotes << 16;
}

/* Passes one object or array by counting brackets, 32 bytes at a time, those in strings masked out.
 * No recursion, so that depth costs nothing but is checked all the same. */
bool json_skip_nested(struct json *js)
{
    uint32_t depth = 0, in_string = 0; /* all bits set inside a string */
    for (;;) {
        while (js->p < js->end) {
            struct json_block block = look_at(js->p);
            if (__builtin_expect(block.slashes != 0, 0)) {
                /* escapes: up to the first one as usual, then the string is passed whole */
                uint32_t before = (block.slashes & -block.slashes) - 1;
                block.opens &= before;
                block.closes &= before;
                block.quotes &= before;
            }
            uint32_t inside = inside_quotes(block.quotes) ^ in_string;
            uint32_t opens = block.opens & ~inside, closes = block.closes & ~inside;
            uint32_t n_opens = (uint32_t)__builtin_popcount(opens);
            if (depth <= (uint32_t)__builtin_popcount(closes) || depth + n_opens > JSON_DEPTH_MAX) {
                for (uint32_t all = opens | closes; all; all &= all - 1) {
                    uint32_t bit = all & -all;
                    if (opens & bit) {
                        if (++depth > JSON_DEPTH_MAX) {
                            js->p += __builtin_ctz(bit);
                            return json_stop(js, JSON_DEEP);
                        }
                    } else if (--depth == 0) {
                        js->p += __builtin_ctz(bit) + 1;
                        return true;
                    }
                }
            } else {
                depth += n_opens - (uint32_t)__builtin_popcount(closes);
            }
            if (__builtin_expect(block.slashes != 0, 0)) {
                bool escaped;
                js->p += __builtin_ctz(block.slashes);
                if (!(inside & block.slashes & -block.slashes))
                    return json_stop(js, JSON_BAD); /* an escape outside a string */
                if (!pass_string(js, &escaped))
                    return false;
                in_string = 0;
                continue;
            }
            in_string = (uint32_t)((int32_t)inside >> 31);
            js->p += 32;
        }
        js->p = js->end;
        if (!json_refill(js))
            return json_stop(js, JSON_ENDED);
    }
}

bool json_raw(struct json *js, size_t limit, const char **text, size_t *len, bool *cut)
{
    if (json_peek(js) < 0)
        return json_stop(js, JSON_ENDED);
    js->keep = js->p;
    js->cut = false;
    char first = *js->p;
    bool escaped;
    if (first == '"') {
        js->p++;
        if (!pass_string(js, &escaped))
            return false;
    } else if (first == '{' || first == '[') {
        if (!json_skip_nested(js))
            return false;
    } else {
        return *cut = false, json_number(js, text, len);
    }
    lend_kept(js, js->p, text, len);
    *cut = js->cut || *len > limit;
    *len = MIN(*len, limit);
    return true;
}

void json_init(struct json *js, struct input *in, size_t chunk, struct dpro_error *err)
{
    *js = (struct json){.in = in, .err = err, .chunk = chunk ? chunk : JSON_CHUNK};
    /* a kept token, one chunk, the padding */
    js->buffer = mem_alloc(JSON_TEXT_MAX + js->chunk + JSON_PADDING);
    js->scratch = mem_alloc(JSON_TEXT_MAX);
    memset(js->buffer, 0, JSON_PADDING);
    js->p = js->end = js->buffer;
}
