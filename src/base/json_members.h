/* Reading JSON documents by tables of their members. Keys come in any order; what no table has is
 * skipped, unless the table refuses it. A value that may not be what it is ends reading with a
 * message that names its place: "'communication.buckets[3].partitions' has to be ...". */
#pragma once

#include "base/json.h"

enum { JSON_PLACES = 8 }; /* objects within each other; deeper ones count to the last */

struct json_reader {
    struct json *js;
    struct strtab *strings; /* of the texts */
    void *arg;              /* for the functions of tables */
    struct json_place {
        const char *key;
        size_t n; /* items begun, if it is a list */
    } places[JSON_PLACES];
    unsigned n_places;     /* behind the first, which is the document */
    struct dpro_error why; /* why reading was ended; code 0: it was not */
};

/* What a member is. A value of another kind leaves it as it was, or is refused. */
enum json_member_type {
    JSON_TEXT,      /* uint32_t, a string id; 0: the value is no text */
    JSON_RAW,       /* the same; of what is no text that of the value as it is written */
    JSON_SIZE,      /* uint64_t */
    JSON_INT,       /* int64_t */
    JSON_TRUE,      /* bool; false: the value is anything else */
    JSON_NUMBER,    /* double, with up to nine decimals */
    JSON_MS,        /* int64_t, ns of what is told in ms; not below 0 */
    JSON_WHOLE,     /* 32 bits, a whole number from `least` to `most`; else refused */
    JSON_WITHIN,    /* double, from `least` to `most`; else refused */
    JSON_NAMES,     /* ARRAY(uint32_t), to which the string ids of a list are added; else refused */
    JSON_OBJECT,    /* an object whose members' offsets are from this one's; refused if `must` */
    JSON_ANY,       /* skipped */
    JSON_BY_READING /* by a function, which takes the value; the offset is for it to use */
};

struct json_member {
    const char *key; /* NULL ends a table */
    enum json_member_type type;
    size_t offset; /* in the struct */
    void (*read)(struct json_reader *r, void *out, size_t offset);
    const struct json_member *members;
    double least, most;
    bool must, needed, once; /* refused if of another kind, missing, or there twice */
    const char *others; /* in the row that ends a table: what any other key is; NULL: skipped */
};

/* What a function of a table need not know. */
#define UNUSED __attribute__((unused))
#define MEMBER(struct_, key_, kind, member, ...)                                                   \
    {                                                                                              \
        .key = (key_), .type = JSON_##kind, .offset = offsetof(struct_, member), ##__VA_ARGS__     \
    }
#define MEMBER_BY(key_, function, offset_)                                                         \
    {                                                                                              \
        .key = (key_), .type = JSON_BY_READING, .offset = (offset_), .read = (function)            \
    }
#define MEMBER_IN(key_, members_, ...)                                                             \
    {                                                                                              \
        .key = (key_), .type = JSON_OBJECT, .members = (members_), ##__VA_ARGS__                   \
    }
#define FROM_TO(least_, most_) .least = (least_), .most = (most_)

/* Reads the next value, an object, into *out. Another value is skipped: false. */
bool json_read_object(struct json_reader *r, const struct json_member *members, void *out);
/* The same where its bracket has been taken; the value behind one key. */
void json_read_members(struct json_reader *r, const struct json_member *members, void *out);
void json_read_member(struct json_reader *r, const struct json_member *members, const char *key,
                      size_t len, void *out);
/* The next value, a list whose items are the members in their order; others are skipped. */
bool json_read_tuple(struct json_reader *r, const struct json_member *members, void *out);
/* The next value, a text, as a string id; another one is skipped: 0. */
uint32_t json_text_id(struct json *js, struct strtab *strings);
static inline uint32_t json_read_text(struct json_reader *r)
{
    return json_text_id(r->js, r->strings);
}
/* The next value, as JSON_NAMES. */
void json_read_names(struct json_reader *r, void *names);

/* while (...): each item of a list that json_must_open() opened, so that its place is known. */
bool json_next_item(struct json_reader *r);
/* Takes the bracket of a list; another value is refused: false. */
bool json_must_open(struct json_reader *r);
/* Ends reading with "'PLACE' TEXT", the first time. */
void json_refuse(struct json_reader *r, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* How reading ended: 0, or a code whose message has the file's path. `why`: what is said of text
 * that is no such document. */
int json_reader_result(const struct json_reader *r, const char *why);
/* Reads a file that holds one object; r->js is set meanwhile. */
int json_read_file(struct json_reader *r, const char *path, const struct json_member *members,
                   void *out, const char *why, struct dpro_error *err);
