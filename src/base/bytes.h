/* A window that slides over an input, for formats that are read record by record or line by line.
 * Memory is bounded by the longest record that the caller asks for. */
#pragma once

#include "base/file.h"

struct bytes {
    const unsigned char *p, *end; /* unread, in the buffer */
    unsigned char *buffer;
    size_t chunk, max;      /* read at a time; most that can be asked for */
    uint64_t buffer_offset; /* of buffer[0] in the (inflated) input */
    bool ended;             /* the input has no more */
    int rc;                 /* of reading; err is set when negative */
    struct input *in;
    struct dpro_error *err;
    void (*on_chunk)(void *arg, struct input *in); /* after every chunk; may be NULL */
    void *arg;
};

/* chunk = 0: a good size. Small ones are for tests: the result is the same at any size. */
void bytes_init(struct bytes *bytes, struct input *in, size_t chunk, size_t max,
                struct dpro_error *err);
void bytes_fini(struct bytes *bytes);

/* Back to the first byte. 0 or a negative code, which is in err and bytes->rc. */
int bytes_rewind(struct bytes *bytes);

/* Slow half of bytes_need. */
bool bytes_fill(struct bytes *bytes, size_t n);

/* True when n (at most max) unread bytes are in the buffer; false: the input ends before. */
static inline bool bytes_need(struct bytes *bytes, size_t n)
{
    return (size_t)(bytes->end - bytes->p) >= n || bytes_fill(bytes, n);
}

/* Byte offset of p in the inflated input. */
static inline uint64_t bytes_offset(const struct bytes *bytes)
{
    return bytes->buffer_offset + (uint64_t)(bytes->p - bytes->buffer);
}

/* Takes a line without its end ("\n" or "\r\n"); the last one may have none. Borrowed until the
 * next call. One longer than max comes in parts. False at the end. */
bool bytes_line(struct bytes *bytes, const char **line, size_t *len);
