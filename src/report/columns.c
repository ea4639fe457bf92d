/* report/columns.c: text of a known width. */
#include "report/columns.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

/* Columns that a terminal gives to the character at text[0..len): CJK and emoji take two. */
static int char_columns(const char *text, size_t len)
{
    const unsigned char *s = (const unsigned char *)text;
    if (len < 3)
        return 1;
    unsigned c = len == 3 ? (s[0] & 15u) << 12 | (s[1] & 63u) << 6 | (s[2] & 63u)
                          : (s[0] & 7u) << 18 | (s[1] & 63u) << 12 | (s[2] & 63u) << 6;
    bool wide = (c >= 0x1100 && c <= 0x115F) || (c >= 0x2E80 && c <= 0xA4CF) ||
                (c >= 0xAC00 && c <= 0xD7A3) || (c >= 0xF900 && c <= 0xFAFF) ||
                (c >= 0xFE30 && c <= 0xFE6F) || (c >= 0xFF00 && c <= 0xFF60) || c >= 0x1F300;
    return wide ? 2 : 1;
}

int columns_of(const char *text)
{
    int columns = 0;
    size_t len = strlen(text);
    for (size_t i = 0; i < len;) {
        size_t step = utf8_char(text + i, len - i);
        columns += char_columns(text + i, step);
        i += step ? step : 1;
    }
    return columns;
}

void columns_shorten(char *out, size_t size, const char *text, int columns)
{
    char safe[2048];
    size_t len = utf8_escape(safe, sizeof safe, text, strnlen(text, 1000));
    if (columns_of(safe) <= columns && len < size) {
        memcpy(out, safe, len + 1);
        return;
    }
    int room = columns - 3, front = room / 2;
    size_t head = 0, tail = len;
    for (int used = 0; head < len;) {
        size_t step = utf8_char(safe + head, len - head);
        used += char_columns(safe + head, step);
        if (used > front)
            break;
        head += step;
    }
    while (tail > head) {
        size_t before = tail - 1;
        while (before > head && ((unsigned char)safe[before] & 0xC0) == 0x80)
            before--;
        if (columns_of(safe + before) > room - front)
            break;
        tail = before;
    }
    snprintf(out, size, "%.*s...%s", (int)head, safe, safe + tail);
}
