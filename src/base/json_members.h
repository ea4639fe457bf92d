/* Reading the objects of a JSON document by tables of their members. Keys come in any order; what
 * no table has is skipped. */
#pragma once

#include "base/json.h"
#include "base/strtab.h"

struct json_reader {
    struct json *js;
    struct strtab *strings; /* of the texts */
    void *arg;              /* for the functions of tables */
};

/* What a member is; a value of another kind leaves it as it was. */
enum json_member_type {
    JSON_TEXT,      /* uint32_t, a string id; 0: the value is no text */
    JSON_RAW,       /* the same; of what is no text that of the value as it is written */
    JSON_SIZE,      /* uint64_t */
    JSON_INT,       /* int64_t */
    JSON_TRUE,      /* bool; false: the value is anything else */
    JSON_NUMBER,    /* double, with up to nine decimals */
    JSON_OBJECT,    /* an object with members of the same struct */
    JSON_BY_READING /* by a function, which takes the value; the offset is for it to use */
};

struct json_member {
    const char *key; /* NULL ends a table */
    enum json_member_type type;
    size_t offset; /* in the struct */
    void (*read)(struct json_reader *r, void *out, size_t offset);
    const struct json_member *members;
};

/* What a function of a table need not know. */
#define UNUSED __attribute__((unused))
#define MEMBER(type, key, kind, member)                                                            \
    {                                                                                              \
        key, JSON_##kind, offsetof(type, member), NULL, NULL                                       \
    }
#define MEMBER_BY(key, function, offset)                                                           \
    {                                                                                              \
        key, JSON_BY_READING, offset, function, NULL                                               \
    }
#define MEMBER_IN(key, members)                                                                    \
    {                                                                                              \
        key, JSON_OBJECT, 0, NULL, members                                                         \
    }

/* Reads the next value, an object, into *out. Another value is skipped: false. */
bool json_read_object(struct json_reader *r, const struct json_member *members, void *out);
/* The same where its bracket has been taken; the value behind one key. */
void json_read_members(struct json_reader *r, const struct json_member *members, void *out);
void json_read_member(struct json_reader *r, const struct json_member *members, const char *key,
                      size_t len, void *out);
/* The next value, a text, as a string id; another one is skipped: 0. */
uint32_t json_read_text(struct json_reader *r);
