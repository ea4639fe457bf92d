/* Writes numbers and sentences for people. */
#include "report/words.h"

#include <assert.h>

#include "base/writer.h"

const char *words_time(char out[NUMBER_TEXT], int64_t ns)
{
    double ms = (double)ns / 1e6, size = fabs(ms);
    bool seconds = size >= 10000;
    int digits = seconds ? 2 : size >= 99.95 ? 1 : size >= 0.995 || ns == 0 ? 2 : 3;
    int n = writer_format_fixed(out, NUMBER_TEXT - 4, seconds ? ms / 1000 : ms, digits);
    strcpy(out + (n < 0 ? 0 : n), seconds ? " s" : " ms");
    return out;
}

const char *words_number(char out[NUMBER_TEXT], double value, int digits)
{
    if (writer_format_fixed(out, NUMBER_TEXT, value, digits) < 0)
        strcpy(out, "?");
    return out;
}

const char *words_signed(char out[NUMBER_TEXT], double value)
{
    snprintf(out, NUMBER_TEXT, "%s%.20s", value >= 0.05 ? "+" : "", NUMBER(value, 1));
    return out;
}

const char *words_trimmed(char out[NUMBER_TEXT], double value)
{
    words_number(out, value, 3);
    char *end = strchr(out, '.') ? out + strlen(out) : out;
    while (end > out && end[-1] == '0')
        *--end = '\0';
    if (end > out && end[-1] == '.')
        end[-1] = '\0';
    return out;
}

const char *words_bytes(char out[NUMBER_TEXT], uint64_t bytes)
{
    static const struct {
        uint64_t from;
        double size;
        const char *text;
    } units[] = {{10000000000000, 1e12, " TB"},
                 {10000000000, 1e9, " GB"},
                 {100000, 1e6, " MB"},
                 {1, 1e3, " kB"},
                 {0, 1e6, " MB"}};
    size_t i = 0;
    while (bytes < units[i].from)
        i++;
    double value = (double)bytes / units[i].size;
    int n = writer_format_fixed(out, NUMBER_TEXT - 4, value, 1);
    strcpy(out + (n < 0 ? 0 : n), units[i].text);
    return out;
}

static void words_put(struct words *words, const char *format, va_list args)
{
    size_t room = sizeof words->text - words->n;
    int n = vsnprintf(words->text + words->n, room, format, args);
    words->n += n < 0 ? 0 : (size_t)n < room ? (size_t)n : room - 1;
}

void words_add(struct words *words, const char *separator, const char *format, ...)
{
    size_t len = strlen(separator);
    va_list args;
    if (words->n > 0 && sizeof words->text - words->n > len) {
        strcpy(words->text + words->n, separator);
        words->n += len;
    }
    va_start(args, format);
    words_put(words, format, args);
    va_end(args);
}

void lines_say(struct lines *lines, const char *title, const char *format, ...)
{
    va_list args;
    assert(lines->n < sizeof lines->at / sizeof *lines->at);
    lines->at[lines->n].title = title;
    va_start(args, format);
    words_put(&lines->at[lines->n++].said, format, args);
    va_end(args);
}
