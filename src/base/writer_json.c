/* JSON, and numbers in any locale, on top of a writer. */
#include <assert.h>

#include "base/utf8.h"
#include "base/writer.h"

/* Digits of `value` with the last `decimals` of them behind a point; returns the length. */
static int format_decimal(char out[32], bool negative, uint64_t value, int decimals)
{
    char reversed[32];
    int n = 0, len = 0;
    do {
        reversed[n++] = (char)('0' + value % 10);
        value /= 10;
        if (n == decimals)
            reversed[n++] = '.';
    } while (value > 0 || n < decimals || (decimals > 0 && n == decimals + 1));
    if (negative)
        out[len++] = '-';
    while (n > 0)
        out[len++] = reversed[--n];
    return len;
}

static void put_decimal(struct writer *w, int64_t value, int decimals)
{
    char text[32];
    uint64_t size = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    writer_put(w, text, (size_t)format_decimal(text, value < 0, size, decimals));
}

void writer_int(struct writer *w, int64_t value)
{
    put_decimal(w, value, 0);
}

int writer_format_fixed(char *out, size_t size, double value, int digits)
{
    double scale = 1;
    assert(digits >= 0 && digits <= 9);
    for (int i = 0; i < digits; i++)
        scale *= 10;
    double scaled = round(fabs(value) * scale);
    if (!(scaled < 1e18)) /* also when not a number */
        return -1;
    char text[32];
    int len = format_decimal(text, value < 0 && scaled > 0, (uint64_t)scaled, digits);
    if ((size_t)len + 1 > size)
        return -1;
    memcpy(out, text, (size_t)len);
    out[len] = '\0';
    return len;
}

static void json_comma(struct writer *w)
{
    if (w->need_comma)
        writer_put(w, ",", 1);
    w->need_comma = true;
}

void writer_open(struct writer *w, char bracket)
{
    json_comma(w);
    writer_put(w, &bracket, 1);
    w->need_comma = false;
}

void writer_close(struct writer *w, char bracket)
{
    writer_put(w, &bracket, 1);
    w->need_comma = true;
}

void writer_newline(struct writer *w)
{
    if (w->need_comma)
        writer_put(w, ",", 1);
    writer_put(w, "\n", 1);
    w->need_comma = false;
}

void writer_key(struct writer *w, const char *key)
{
    writer_string(w, key);
    writer_put(w, ":", 1);
    w->need_comma = false;
}

/* An HTML parser looks for "</script", "<!--" and "<script" inside a script element, whatever its
 * type; a "<" that can't begin one of these stays readable. */
static bool opens_markup(const char *text, size_t len)
{
    return len >= 2 && strchr("/!?sS", text[1]) != NULL && text[1] != '\0';
}

/* Printable ASCII that means nothing in a string: most of all text. */
static inline bool is_plain(unsigned char c)
{
    return c >= 0x20 && c < 0x7F && c != '"' && c != '\\' && c != '<';
}

void writer_string_n(struct writer *w, const char *text, size_t len)
{
    json_comma(w);
    writer_put(w, "\"", 1);
    size_t kept = 0; /* text[kept..i) is written as it is */
    for (size_t i = 0; i < len;) {
        unsigned char c = (unsigned char)text[i];
        if (is_plain(c)) {
            i++;
            continue;
        }
        size_t step = utf8_char(text + i, len - i);
        char piece[8];
        const char *as = piece;
        if (step == 0) {
            as = "\xEF\xBF\xBD";
            step = 1;
        } else if (c == '"' || c == '\\') {
            snprintf(piece, sizeof piece, "\\%c", c);
        } else if (c == '\n') {
            as = "\\n";
        } else if (c == '\t') {
            as = "\\t";
        } else if (c < 0x20 || c == 0x7F || (c == '<' && opens_markup(text + i, len - i))) {
            snprintf(piece, sizeof piece, "\\u%04x", c);
        } else {
            i += step;
            continue;
        }
        writer_put(w, text + kept, i - kept);
        writer_text(w, as);
        i += step;
        kept = i;
    }
    writer_put(w, text + kept, len - kept);
    writer_put(w, "\"", 1);
}

void writer_string(struct writer *w, const char *text)
{
    if (text)
        writer_string_n(w, text, strlen(text));
    else
        writer_null(w);
}

void writer_begin(struct writer *w, const char *key, char bracket)
{
    writer_key(w, key);
    writer_open(w, bracket);
}

void writer_section(struct writer *w, const char *key, char bracket)
{
    writer_newline(w);
    writer_begin(w, key, bracket);
}

void writer_item(struct writer *w)
{
    writer_newline(w);
    writer_open(w, '{');
}

static void put_word(struct writer *w, const char *word)
{
    json_comma(w);
    writer_text(w, word);
}

static void json_decimal(struct writer *w, int64_t value, int decimals)
{
    json_comma(w);
    put_decimal(w, value, decimals);
}

void writer_null(struct writer *w)
{
    put_word(w, "null");
}

void writer_json_int(struct writer *w, int64_t value)
{
    json_decimal(w, value, 0);
}

void writer_json_ms(struct writer *w, int64_t ns)
{
    json_decimal(w, ns, 6);
}

void writer_json_fixed(struct writer *w, double value, int digits)
{
    char text[32];
    put_word(w, writer_format_fixed(text, sizeof text, value, digits) < 0 ? "null" : text);
}

void writer_put_fields(struct writer *w, const struct writer_field *fields, size_t n)
{
    EACH_OF (const struct writer_field, field, fields, n) {
        writer_key(w, field->key);
        switch (field->kind) {
        case WRITER_TEXT:
            writer_string(w, field->text);
            break;
        case WRITER_INT:
            writer_json_int(w, field->number);
            break;
        case WRITER_BOOL:
            put_word(w, field->number ? "true" : "false");
            break;
        case WRITER_MS:
            writer_json_ms(w, field->number);
            break;
        case WRITER_US:
            json_decimal(w, field->number, 3);
            break;
        case WRITER_FIXED:
            writer_json_fixed(w, field->real, field->digits);
            break;
        case WRITER_NULL:
            writer_null(w);
            break;
        }
    }
}

void writer_json_ints(struct writer *w, const int *values, size_t n)
{
    writer_open(w, '[');
    for (size_t i = 0; i < n; i++)
        writer_json_int(w, values[i]);
    writer_close(w, ']');
}

void writer_json_times(struct writer *w, const int64_t *ns, size_t n)
{
    writer_open(w, '[');
    for (size_t i = 0; i < n; i++)
        writer_json_ms(w, ns[i]);
    writer_close(w, ']');
}

void writer_json_strings(struct writer *w, const char *const *texts, size_t n)
{
    writer_open(w, '[');
    for (size_t i = 0; i < n; i++)
        writer_string(w, texts[i]);
    writer_close(w, ']');
}
