/* How texts begin and end. A length stands beside those that may lack a NUL. */
#pragma once

#include <stdbool.h>
#include <string.h>

static inline bool text_begins(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

static inline bool text_n_is(const char *text, size_t len, const char *word)
{
    return len == strlen(word) && memcmp(text, word, len) == 0;
}

static inline bool text_n_begins(const char *text, size_t len, const char *start)
{
    size_t n = strlen(start);
    return len >= n && memcmp(text, start, n) == 0;
}

static inline bool text_n_ends(const char *text, size_t len, const char *end)
{
    size_t n = strlen(end);
    return len >= n && memcmp(text + len - n, end, n) == 0;
}

static inline bool text_ends(const char *text, const char *end)
{
    return text_n_ends(text, strlen(text), end);
}

/* Whether it holds one of these words: text_n_holds(name, len, "send", "recv"). */
#define text_n_holds(text, len, ...)                                                               \
    text_n_holds_any((text), (len), (const char *const[]){__VA_ARGS__, NULL})
static inline bool text_n_holds_any(const char *text, size_t len, const char *const *words)
{
    while (*words && !memmem(text, len, *words, strlen(*words)))
        words++;
    return *words != NULL;
}

/* Whether the text is one of these words: text_is_one(flag, "bf16", "amx_bf16"). */
#define text_is_one(text, ...) text_is_in((text), (const char *const[]){__VA_ARGS__, NULL})
static inline bool text_is_in(const char *text, const char *const *words)
{
    while (*words && strcmp(text, *words) != 0)
        words++;
    return *words != NULL;
}
