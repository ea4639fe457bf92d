/* Reads a file's bytes through a window.
 *
 * The window moves on when what is asked for is not in it whole. */
#include "base/bytes.h"

enum { CHUNK = 1 << 17 };

void bytes_init(struct bytes *bytes, struct input *in, size_t chunk, size_t max,
                struct dpro_error *err)
{
    *bytes = (struct bytes){.chunk = chunk ? chunk : CHUNK, .max = max, .in = in, .err = err};
    bytes->buffer = mem_alloc(bytes->chunk + max);
    bytes->p = bytes->end = bytes->buffer;
}

void bytes_fini(struct bytes *bytes)
{
    mem_free(bytes->buffer);
    *bytes = (struct bytes){0};
}

int bytes_rewind(struct bytes *bytes)
{
    bytes->rc = input_rewind(bytes->in, bytes->err);
    bytes->p = bytes->end = bytes->buffer;
    bytes->buffer_offset = 0;
    bytes->ended = bytes->rc < 0;
    return bytes->rc;
}

bool bytes_fill(struct bytes *bytes, size_t n)
{
    size_t left = (size_t)(bytes->end - bytes->p);
    bytes->buffer_offset += (uint64_t)(bytes->p - bytes->buffer);
    memmove(bytes->buffer, bytes->p, left);
    while (left < n && n <= bytes->max && !bytes->ended) {
        int64_t got = input_read(bytes->in, bytes->buffer + left, bytes->chunk, bytes->err);
        if (got < 0)
            bytes->rc = (int)got;
        if (got <= 0)
            bytes->ended = true;
        else
            left += (size_t)got;
        if (bytes->on_chunk)
            bytes->on_chunk(bytes->arg, bytes->in);
    }
    bytes->p = bytes->buffer;
    bytes->end = bytes->buffer + left;
    return left >= n;
}

bool bytes_line(struct bytes *bytes, const char **line, size_t *len)
{
    size_t seen = 0;
    for (;;) {
        size_t there = (size_t)(bytes->end - bytes->p);
        there = there < bytes->max ? there : bytes->max;
        const unsigned char *nl = there > seen ? memchr(bytes->p + seen, '\n', there - seen) : NULL;
        if (nl || there == bytes->max || (bytes->ended && there > 0)) {
            *line = (const char *)bytes->p;
            *len = nl ? (size_t)(nl - bytes->p) : there;
            bytes->p += *len + (nl != NULL);
            if (nl && *len > 0 && nl[-1] == '\r')
                --*len;
            return true;
        }
        if (bytes->ended)
            return false;
        seen = there;
        bytes_fill(bytes, there + 1);
    }
}
