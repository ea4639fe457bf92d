/* UTF-8 checking by the table of well-formed byte sequences (Unicode, chapter 3, table 3-7). */
#include "base/utf8.h"

size_t utf8_char(const char *text, size_t len)
{
    const unsigned char *s = (const unsigned char *)text;
    if (len == 0)
        return 0;
    if (s[0] < 0x80)
        return 1;
    size_t need;
    unsigned char low = 0x80, high = 0xBF;
    if (s[0] >= 0xC2 && s[0] <= 0xDF)
        need = 2;
    else if (s[0] >= 0xE0 && s[0] <= 0xEF)
        need = 3;
    else if (s[0] >= 0xF0 && s[0] <= 0xF4)
        need = 4;
    else
        return 0;
    if (s[0] == 0xE0)
        low = 0xA0; /* no overlong */
    else if (s[0] == 0xED)
        high = 0x9F; /* no surrogate */
    else if (s[0] == 0xF0)
        low = 0x90;
    else if (s[0] == 0xF4)
        high = 0x8F; /* not above U+10FFFF */
    if (len < need || s[1] < low || s[1] > high)
        return 0;
    for (size_t i = 2; i < need; i++)
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    return need;
}

size_t utf8_escape(char *out, size_t size, const char *text, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        char piece[8];
        size_t piece_len, step = utf8_char(text + i, len - i);
        unsigned char c = (unsigned char)text[i];
        if (step == 0) {
            memcpy(piece, "\xEF\xBF\xBD", 3);
            piece_len = 3;
            step = 1;
        } else if (c < 0x20 || c == 0x7F) {
            piece_len = (size_t)snprintf(piece, sizeof piece, "\\x%02x", c);
        } else if (c == 0xC2 && (unsigned char)text[i + 1] < 0xA0) {
            /* C1: U+009B starts an escape sequence as ESC [ does */
            piece_len =
                (size_t)snprintf(piece, sizeof piece, "\\x%02x", (unsigned char)text[i + 1]);
        } else {
            memcpy(piece, text + i, step);
            piece_len = step;
        }
        if (n + piece_len + 1 > size)
            break;
        memcpy(out + n, piece, piece_len);
        n += piece_len;
        i += step;
    }
    if (size > 0)
        out[n] = '\0';
    return n;
}
