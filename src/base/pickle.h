/* Reading plain data that Python pickled: None, bools, numbers, texts, bytes, dicts, lists, tuples
 * and sets, in protocols 2 to 5. What would run code is refused.
 *
 * A pickle is a program for a machine with a stack: values stand before what takes them, parts
 * before their whole. Nothing is kept of a container but a number; who reads is told each member as
 * it goes into its container. Memory grows by 16 bytes for each value that waits on the stack or
 * may be asked for again, and by the different texts. */
#pragma once

#include "base/bytes.h"

enum pickle_kind {
    PICKLE_NONE,  /* None, and what is of no use: bytes, integers beyond 64 bits */
    PICKLE_BOOL,  /* in `integer` */
    PICKLE_INT,   /* in `integer` */
    PICKLE_FLOAT, /* in `real` */
    PICKLE_TEXT,  /* in `id`: of the reader's strings; longer ones are cut to PICKLE_TEXT_MAX */
    PICKLE_DICT,  /* in `id`: the container's number */
    PICKLE_LIST,  /* the same; sets, too */
    PICKLE_TUPLE, /* the same */
    PICKLE_MARK,  /* never seen outside */
};

enum { PICKLE_TEXT_MAX = 1 << 12 };

struct pickle_value {
    uint8_t kind; /* enum pickle_kind */
    union {
        int64_t integer;
        double real;
        uint32_t id;
    };
};

struct pickle_reader {
    struct bytes *bytes;
    struct strtab *strings; /* of the texts */
    void *arg;
    /* A member of a dict; an item of a list, set or tuple. Those of one container come in their
     * order, what lies in a member before the member. */
    void (*set)(void *arg, uint32_t dict, struct pickle_value key, struct pickle_value value);
    void (*append)(void *arg, struct pickle_value list, struct pickle_value item);

    const char *fail; /* why reading ended early, static text; NULL: it did not */
    uint64_t fail_offset;
};

/* Whether a file that begins so is a pickle. */
bool pickle_begins(const void *bytes, size_t n);

/* Reads it to its end, and gives what it is. False: reader->fail says why; members of containers
 * that were not whole may not have been told. */
bool pickle_read(struct pickle_reader *reader, struct pickle_value *whole);
