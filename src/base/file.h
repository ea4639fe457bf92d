/* Bytes of a file or of memory, inflated when they are gzip, front to back in bounded memory. */
#pragma once

#include "base/base.h"

#include <dpro/error.h>

struct input {
    const char *path; /* for messages; borrowed */
    int fd;           /* -1: memory */
    const unsigned char *memory;
    size_t memory_left;
    struct inflate_state *inflate; /* NULL: plain */
    unsigned char *packed;         /* what was read and not yet inflated */
    unsigned char *piece;          /* inflated and not yet handed out, where room was short */
    unsigned char *piece_at;
    size_t piece_left;
    bool inflated; /* all that can be */
    bool source_ended;
    bool ended;
    const char *damage;  /* why the gzip stream ended early, static text; NULL: it did not */
    uint64_t size_bytes; /* on disk */
    uint64_t read_bytes; /* taken from the source so far, packed */
    uint64_t out_bytes;  /* handed out so far */
};

/* Opens a regular file (anything else is an error: a FIFO would hang, a folder says so). */
int input_open(struct input *in, const char *path, struct dpro_error *err);
/* Reads from memory, which stays the caller's. */
void input_open_memory(struct input *in, const void *data, size_t size, const char *name);
/* Fills out[0..size) as far as there is input; returns the number of bytes, 0 at the end, or a
 * negative DPRO_E* code. A gzip stream that is cut or damaged ends where it stops being readable,
 * with in->damage saying why. */
int64_t input_read(struct input *in, void *out, size_t size, struct dpro_error *err);
/* Back to the first byte, for formats that name things behind their use. 0 or a negative code. */
int input_rewind(struct input *in, struct dpro_error *err);
void input_close(struct input *in);

/* The bytes of a file of the system's that is small, up to size - 1 of them, and a NUL behind; how
 * many there are, 0 where it can't be read. */
size_t file_read_small(const char *path, char *out, size_t size);

/* Like mkdir -p; `path` is written to and comes back as it was. `*first_made` is the length of the
 * outermost folder that had to be made, 0: none; it is set on failure, too. */
int folder_make(char *path, size_t *first_made, struct dpro_error *err);

/* Takes back what folder_make made; folders that have come to hold something stay. `path` is cut
 * short on the way. */
void folder_take_back(char *path, size_t first_made);
