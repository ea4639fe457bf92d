/* Numbers and sentences for people. */
#pragma once

#include "base/writer.h"

/* Numbers as text, in a buffer that lives as long as the enclosing block. */
#define NUMBER_TEXT 32
/* Milliseconds with the digits a reader needs: "0.42 ms", "118.3 ms", "12.4 s". */
#define TIME(ns) words_time((char[NUMBER_TEXT]){""}, ns)
/* "12.3"; "?" if it is not known. */
#define NUMBER(value, digits) words_number((char[NUMBER_TEXT]){""}, value, digits)
/* "+12.3", "-0.4", "0.0". */
#define SIGNED(value) words_signed((char[NUMBER_TEXT]){""}, value)
/* "12.3", "12": three decimals, less the zeros at their end. */
#define TRIMMED(value) words_trimmed((char[NUMBER_TEXT]){""}, value)
/* "12.3" of 12,300,000 bytes. */
#define MEGABYTES(bytes) NUMBER((double)(bytes) / 1e6, 1)

/* The same with a unit, of which kB, MB, GB or TB a reader needs: "12.3 MB". */
#define BYTES_TEXT(bytes) words_bytes((char[NUMBER_TEXT]){""}, bytes)

const char *words_time(char out[NUMBER_TEXT], int64_t ns);
const char *words_number(char out[NUMBER_TEXT], double value, int digits);
const char *words_signed(char out[NUMBER_TEXT], double value);
const char *words_trimmed(char out[NUMBER_TEXT], double value);
const char *words_bytes(char out[NUMBER_TEXT], uint64_t bytes);

/* "s" of several. */
#define PLURAL(n) ((n) == 1 ? "" : "s")

/* A text that is put together; what does not fit is cut. */
struct words {
    char text[1000];
    size_t n;
};

/* Puts `separator` before it, unless it is the first. */
void words_add(struct words *words, const char *separator, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Defines a public function that writes a report of `struct of`, by one of its own. */
#define REPORT(name, of, write)                                                                    \
    int name(const struct of *report, FILE *out, struct dpro_error *err)                           \
    {                                                                                              \
        return writer_write_file(out, write, report, err);                                         \
    }

/* Sentences with titles, as a verdict consists of: a terminal, JSON and a page say the same. */
struct lines {
    struct {
        const char *title; /* static */
        struct words said;
    } at[16];
    size_t n;
};

void lines_say(struct lines *lines, const char *title, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
