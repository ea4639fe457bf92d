/* base/writer.h: buffered output to a FILE, a file or a gzip file, and JSON on top of it.
 *
 * Writing never fails at once: the first error is kept, later output is dropped, and writer_finish
 * tells. A file is written beside its place and renamed by writer_commit, so that a full disk or a
 * broken run never leaves half a file. */
#ifndef BASE_WRITER_H
#define BASE_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <dpro/error.h>

struct writer {
    FILE *file; /* borrowed; NULL when writing to `fd` */
    int fd;
    int failed; /* errno of the first failure, 0: none */
    bool need_comma;
    char *buf; /* 256 KiB */
    size_t n;
    struct writer_gzip *gzip; /* NULL: plain */
    char *path, *temp;        /* NULL: writing to `file`; temp is NULL once renamed */
};

/* `file` stays the caller's, who closes it. */
int writer_init_file(struct writer *writer, FILE *file, struct dpro_error *err);
/* Writes to a temporary file beside `path`, gzip-compressed when `gzip`; straight to `path` where
 * that is a device or a FIFO. */
int writer_init_path(struct writer *writer, const char *path, bool gzip, struct dpro_error *err);
/* Writes out what is buffered; DPRO_EIO with the file's name and the reason when anything failed.
 */
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
/* Nanoseconds as decimal milliseconds with 6 digits, microseconds with 3: exact, in any locale. */
void writer_ns_as_ms(struct writer *writer, int64_t ns);
void writer_ns_as_us(struct writer *writer, int64_t ns);
/* `value` with `digits` (0..9) decimals and a point, in any locale; false, and nothing written,
 * when it is not finite or too large. */
bool writer_fixed(struct writer *writer, double value, int digits);
/* The same into `out`; the length, or -1 when it can't be said or does not fit. */
int writer_format_fixed(char *out, size_t size, double value, int digits);

/* JSON. Commas are set between values; a key writes its colon. Strings come out as valid UTF-8
 * (U+FFFD for what is not) and can't end or open a <script> element that they are embedded in. */
void writer_open(struct writer *writer, char bracket);  /* '{' or '[' */
void writer_close(struct writer *writer, char bracket); /* '}' or ']' */
void writer_key(struct writer *writer, const char *key);
void writer_string(struct writer *writer, const char *text); /* NULL: null */
void writer_string_n(struct writer *writer, const char *text, size_t len);
void writer_null(struct writer *writer);
void writer_key_string(struct writer *writer, const char *key, const char *text); /* NULL: null */
void writer_key_int(struct writer *writer, const char *key, int64_t value);
void writer_key_ms(struct writer *writer, const char *key, int64_t ns);
void writer_key_fixed(struct writer *writer, const char *key, double value, int digits);
void writer_bool(struct writer *writer, bool value);
void writer_json_int(struct writer *writer, int64_t value);
void writer_json_ms(struct writer *writer, int64_t ns);
void writer_json_us(struct writer *writer, int64_t ns);
void writer_json_fixed(struct writer *writer, double value, int digits); /* not finite: null */
void writer_newline(struct writer *writer); /* a line break that the next comma precedes */

#endif
