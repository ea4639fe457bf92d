/* Text of a known width. Whatever bytes a trace holds, lines stay lines. */
#include "report/table.h"

#include "base/utf8.h"
#include "report/words.h"

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

/* Words of `text` from column `at`; the lines below the first begin at `indent`. */
static void write_words(struct writer *w, int at, int indent, const char *text)
{
    bool line_start = true;
    while (*text) {
        size_t len = strcspn(text, " ");
        char word[TABLE_COLUMNS * 4 + 1];
        size_t cut = len < TABLE_COLUMNS - (size_t)indent ? len : TABLE_COLUMNS - (size_t)indent;
        while (cut < len && cut > 1 && ((unsigned char)text[cut] & 0xC0) == 0x80)
            cut--;
        memcpy(word, text, cut);
        word[cut] = '\0';
        int columns = columns_of(word);
        if (!line_start && at + 1 + columns > TABLE_COLUMNS) {
            writer_printf(w, "\n%*s", indent, "");
            at = indent;
            line_start = true;
        }
        if (!line_start) {
            writer_text(w, " ");
            at++;
        }
        writer_text(w, word);
        at += columns;
        line_start = false;
        text += cut;
        while (*text == ' ')
            text++;
    }
    writer_text(w, "\n");
}

void table_wrapped(struct writer *w, const char *first, int indent, const char *text)
{
    int at = columns_of(first), pad = indent > at ? indent - at : 0;
    writer_printf(w, "%s%*s", first, pad, "");
    write_words(w, at + pad, indent, text);
}

void table_cell(struct table *t, const char *format, ...)
{
    struct table_cell c;
    va_list args;
    va_start(args, format);
    vsnprintf(c.text, sizeof c.text, format, args);
    va_end(args);
    array_push(&t->cells, c);
}

void table_put_cells(struct table *t, const char *const *texts, size_t n)
{
    for (size_t i = 0; i < n; i++)
        table_cell(t, "%s", texts[i]);
}

void table_fixed(struct table *t, double value, int digits, const char *unit)
{
    table_cell(t, "%s%s", NUMBER(value, digits), unit);
}

int table_widths(const struct table *t, int widths[TABLE_MOST])
{
    int total = 2 * t->n_cols;
    memset(widths, 0, TABLE_MOST * sizeof *widths);
    for (size_t i = 0; i < t->cells.n; i++) {
        int columns = columns_of(t->cells.at[i].text), c = (int)(i % (size_t)t->n_cols);
        if (columns > widths[c])
            widths[c] = columns;
    }
    for (int c = 0; c < t->n_cols; c++)
        total += widths[c];
    return total;
}

void table_write(struct writer *w, struct table *t)
{
    int widths[TABLE_MOST], blanks = 0, last = t->n_cols - 1;
    int indent = table_widths(t, widths) - widths[last]; /* of the last column */
    for (size_t i = 0; i < t->cells.n; i++) {
        int c = (int)(i % (size_t)t->n_cols);
        const char *text = t->cells.at[i].text;
        int pad = widths[c] - columns_of(text), before = t->left[c] ? 0 : pad;
        if (text[0] != '\0') /* no line ends with blanks */
            writer_printf(w, "%*s", blanks + 2 + before, "");
        if (c == last && t->left[c])
            write_words(w, indent, indent, text);
        else
            writer_printf(w, "%s%s", text, c == last ? "\n" : "");
        blanks = c == last ? 0 : text[0] == '\0' ? blanks + 2 + pad : pad - before;
    }
    array_fini(&t->cells);
}

void table_paragraph(struct writer *w, const char *first, int indent, const char *format, ...)
{
    char text[1500];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    table_wrapped(w, first, indent, text);
}

void table_escaped(struct writer *w, const char *first, int indent, const char *text)
{
    char safe[2048];
    utf8_escape(safe, sizeof safe, text, strlen(text));
    table_wrapped(w, first, indent, safe);
}
