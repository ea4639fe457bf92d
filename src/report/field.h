/* report/field.h: a report as a table: a row a fact, with its key in JSON, its place in the struct
 * that the report is made from, its unit and, where it has one, its words in text. */
#ifndef REPORT_FIELD_H
#define REPORT_FIELD_H

#include "base/writer.h"
#include "report/words.h"

enum field_type {
    FIELD_OBJECT, /* 0: a value that is an object of the rows that follow, up to the next one; null
                     where `known` is 0 */
    FIELD_CALL,   /* `write` writes the value */
    FIELD_TEXT,   /* const char * */
    FIELD_CHARS,  /* char[]; "": null */
    FIELD_BOOL,   /* bool */
    FIELD_U32,    /* uint32_t */
    FIELD_U64,    /* uint64_t */
    FIELD_I64,    /* int64_t */
    FIELD_MS,     /* int64_t ns; negative: null */
    FIELD_MS_SET, /* the same; 0: null, too */
    FIELD_MIB,    /* uint64_t bytes */
    FIELD_REAL,   /* double, of `digits`; not finite: null */
};

struct field {
    const char *key; /* NULL: the end */
    enum field_type type;
    size_t at;        /* of the value in the struct */
    size_t known;     /* 1 + offset of a uint32_t that is 0 where the value is not known; 0: none */
    const char *text; /* for people, "%s" for the number; NULL: for programs only */
    double scale;     /* of the number in text, which is divided by it; 0: 1 */
    int digits;
    void (*write)(struct writer *writer, const void *of);
};

/* All rows, as fields of an open object. */
void fields_write(struct writer *writer, const struct field *fields, const void *of);
/* Rows whose value is not 0 or NULL: as fields of an open object; as text. */
void fields_write_set(struct writer *writer, const struct field *fields, const void *of);
void fields_say_set(struct words *words, const struct field *fields, const void *of);

#endif
