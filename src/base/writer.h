/* Buffered output to a FILE, a file or a gzip file, and JSON on top of it.
 *
 * Writing never fails at once: the first error is kept, later output is dropped, and writer_finish
 * tells. A file is written beside its place and renamed by writer_commit, so that a full disk or a
 * broken run never leaves half a file; until then it has no name, where the file system has that.
 */
#pragma once

#include "base/base.h"

#include <dpro/error.h>
#include <dpro/log.h>

struct writer {
    FILE *file; /* borrowed; NULL when writing to `fd` */
    int fd;
    int failed; /* errno of the first failure, 0: none */
    bool need_comma;
    char *buf; /* 256 KiB */
    size_t n;
    struct writer_gzip *gzip; /* NULL: plain */
    char *path, *temp;        /* NULL: writing to `file`; temp is NULL once renamed */
    struct file_set *set;     /* that the file is one of; NULL: none */
};

/* Writes a whole file by one function: to `file`, which stays the caller's, or `path` as below. */
int writer_write_file(FILE *file, void (*write)(struct writer *writer, const void *arg),
                      const void *arg, struct dpro_error *err);
int writer_write_path(const char *path, bool gzip,
                      void (*write)(struct writer *writer, const void *arg), const void *arg,
                      struct dpro_error *err);

/* Several files of one result: all or none. The folder is made when missing; `what` is for the
 * message when its name is empty. Files without `write`, which come last, are removed then: an
 * earlier result left them there. */
struct set_file {
    const char *name;
    bool gzip;
    void (*write)(struct writer *writer, const void *arg);
    const void *arg;
};

int file_set_write(const char *folder, const char *what, const struct set_file *files, size_t n,
                   const struct dpro_sink *progress, struct dpro_error *err);

/* Writes to a temporary file beside `path`, gzip-compressed when `gzip`; straight to `path` where
 * that is a device or a FIFO. */
int writer_init_path(struct writer *writer, const char *path, bool gzip, struct dpro_error *err);
/* Writes out what is buffered; DPRO_EIO with the file's name and the reason if that failed. */
int writer_finish(struct writer *writer, struct dpro_error *err);
/* After writer_finish: puts the file in its place. Nothing to do for a FILE. */
int writer_commit(struct writer *writer, struct dpro_error *err);
/* Frees; removes the temporary file unless it was committed. A zeroed struct writer is fine. */
void writer_fini(struct writer *writer);

void writer_put(struct writer *writer, const void *data, size_t len);
void writer_text(struct writer *writer, const char *text);
void writer_printf(struct writer *writer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void writer_int(struct writer *writer, int64_t value);
/* `value` with `digits` (0..9) decimals and a point, in any locale, into `out`; the length, or -1
 * when it is not finite, too large, or does not fit. */
int writer_format_fixed(char *out, size_t size, double value, int digits);

/* JSON. Commas are set between values; a key writes its colon. Strings come out as valid UTF-8
 * (U+FFFD for what is not) and can't end or open a <script> element that they are embedded in. */
void writer_open(struct writer *writer, char bracket);  /* '{' or '[' */
void writer_close(struct writer *writer, char bracket); /* '}' or ']' */
void writer_newline(struct writer *writer); /* a line break that the next comma precedes */
void writer_key(struct writer *writer, const char *key);
/* A value that is an object or a list: its key and opening bracket; and that on a new line. */
void writer_begin(struct writer *writer, const char *key, char bracket);
void writer_section(struct writer *writer, const char *key, char bracket);
/* A list under its key, with what the statement that follows writes for each i from 0 to n - 1, or
 * for each of the n elements at `at`; ROWS: on a new line. The statement must not leave the loop.
 */
#define WRITER_LIST(w, key, i, n) WRITER_LOOP_(w, writer_begin(w, key, '['), i, n)
#define WRITER_ROWS(w, key, i, n) WRITER_LOOP_(w, writer_section(w, key, '['), i, n)
#define WRITER_LIST_OF(w, key, type, x, at, n)                                                     \
    WRITER_LOOP_OF_(w, writer_begin(w, key, '['), type, x, at, n)
#define WRITER_ROWS_OF(w, key, type, x, at, n)                                                     \
    WRITER_LOOP_OF_(w, writer_section(w, key, '['), type, x, at, n)
#define WRITER_LOOP_(w, open, i, n)                                                                \
    for (__typeof__((n) + 0) i = (open, 0), i##_end_ = (n);                                        \
         i < i##_end_ || (writer_close(w, ']'), false); i++)
#define WRITER_LOOP_OF_(w, open, type, x, at, n)                                                   \
    for (type *x = (open, (at)), *x##_end_ = (n) > 0 ? x + (n) : x;                                \
         x < x##_end_ || (writer_close(w, ']'), false); x++)

/* An object in a list, on a new line. */
void writer_item(struct writer *writer);

void writer_string(struct writer *writer, const char *text); /* NULL: null */
void writer_string_n(struct writer *writer, const char *text, size_t len);
void writer_null(struct writer *writer);
void writer_json_int(struct writer *writer, int64_t value);
void writer_json_ms(struct writer *writer, int64_t ns);
/* Lists. */
void writer_json_ints(struct writer *writer, const int *values, size_t n);
void writer_json_times(struct writer *writer, const int64_t *ns, size_t n); /* as ms */
void writer_json_strings(struct writer *writer, const char *const *texts, size_t n);
void writer_json_fixed(struct writer *writer, double value, int digits); /* not finite: null */

/* Fields of an object, keys with values: writer_fields(w, TEXT("host", name), INT("rank", 3)). */
struct writer_field {
    const char *key, *text;
    int64_t number;
    double real;
    int digits;
    enum writer_kind {
        WRITER_TEXT,
        WRITER_INT,
        WRITER_BOOL,
        WRITER_MS,
        WRITER_US,
        WRITER_FIXED,
        WRITER_NULL
    } kind;
};
#define WRITER_FIELD(k, of, member, value)                                                         \
    ((struct writer_field){.key = (k), .kind = WRITER_##of, .member = (value)})
#define TEXT(key, value)          WRITER_FIELD(key, TEXT, text, value) /* NULL: null */
#define INT(key, value)           WRITER_FIELD(key, INT, number, (int64_t)(value))
#define BOOL(key, value)          WRITER_FIELD(key, BOOL, number, value)
#define MS(key, ns)               WRITER_FIELD(key, MS, number, ns)
#define US(key, ns)               WRITER_FIELD(key, US, number, ns)
#define NUL(key)                  WRITER_FIELD(key, NULL, number, 0)
#define FIXED(k, value, n_digits) /* not finite: null */                                           \
    ((struct writer_field){.key = (k), .kind = WRITER_FIXED, .real = (value), .digits = (n_digits)})
#define INT_IF(key, known, value)           ((known) ? INT(key, value) : NUL(key))
#define MS_IF(key, known, ns)               ((known) ? MS(key, ns) : NUL(key))
#define MS_KNOWN(key, ns)                   MS_IF(key, (ns) >= 0, ns) /* negative: null */
#define FIXED_IF(key, known, value, digits) ((known) ? FIXED(key, value, digits) : NUL(key))

void writer_put_fields(struct writer *writer, const struct writer_field *fields, size_t n);
#define WRITER_FIELDS(...)                                                                         \
    (const struct writer_field[]){__VA_ARGS__},                                                    \
        sizeof((const struct writer_field[]){__VA_ARGS__}) / sizeof(struct writer_field)
#define writer_fields(w, ...) writer_put_fields(w, WRITER_FIELDS(__VA_ARGS__))
/* The whole object; as the value of a key; in a list, on a new line. */
#define writer_object(w, ...)                                                                      \
    (writer_open(w, '{'), writer_fields(w, __VA_ARGS__), writer_close(w, '}'))
#define writer_object_at(w, key, ...) (writer_key(w, key), writer_object(w, __VA_ARGS__))
#define writer_row(w, ...)            (writer_newline(w), writer_object(w, __VA_ARGS__))
/* As the value of a key; null where it is not known. */
#define writer_object_if(w, key, known, ...)                                                       \
    ((known) ? writer_object_at(w, key, __VA_ARGS__) : writer_fields(w, NUL(key)))
