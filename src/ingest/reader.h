/* What a format gives to be read: struct reader, one row of the table in readers.h.
 *
 * A file goes through its reader in this order: its format is recognised, it is read into a part
 * with a payload of the format's own, its rank is found, and the payload is joined to the rank or
 * to the trace. A reader knows the files beside its own by sources.h only, never another format's
 * reader; what calls the hooks knows no format. */
#pragma once

#include "ingest/part.h"

struct rank_job;
struct trace_build;

struct reader_table {
    const struct reader *const *at;
    size_t n;
};

/* ---- recognising ---- */

/* One of an object's members, as far as it tells a format. A member "name" of "args" is
 * "args.name". */
struct head_field {
    const char *key, *text; /* text: "" where the value is no string */
};

enum head_piece {
    HEAD_BYTES,  /* how the file begins */
    HEAD_MEMBER, /* JSON: a member of the document, with the first object of a list in it */
    HEAD_EVENT,  /* JSON: an event of a Chrome trace */
    HEAD_END     /* a Chrome trace whose events were none that a reader knew */
};

/* A piece of a file's head. Each reader is shown one piece after the other until one knows it. */
struct head {
    enum head_piece piece;
    const char *bytes; /* HEAD_BYTES */
    size_t n_bytes;
    const char *key, *text; /* HEAD_MEMBER: text as in a field */
    const char *schema;     /* the member "schema" of the document so far; NULL: none */
    const struct head_field
        *fields; /* HEAD_EVENT: of the event; HEAD_MEMBER: of the first object */
    size_t n_fields;
    bool only_names; /* HEAD_END: the events only named processes and threads */
};

/* The text of a field; NULL: there is none. */
static inline const char *head_field(const struct head *head, const char *key)
{
    for (size_t i = 0; i < head->n_fields; i++)
        if (strcmp(head->fields[i].key, key) == 0)
            return head->fields[i].text;
    return NULL;
}

/* ---- joining ---- */

enum reader_flags {
    READER_TRANSPORT = 1,  /* what went over sockets: enough alone, if the caller says so */
    READER_ALL_RANKS = 2,  /* a file of no rank describes all of them */
    READER_RANK_0 = 4,     /* a file that does not tell its rank is of rank 0 */
    READER_VIEWED = 8,     /* a profile in Chrome trace JSON, which viewers show */
    READER_STRUCTURE = 16, /* says what ran rather than when: needs a profile beside it */
    READER_SEPARATE = 32,  /* what is in it is looked at with its rank only */
    READER_COPIED = 64,    /* much smaller than profiles, and looked at with all */
};

/* What is said of a file that lacks what it should hold. NULL: nothing. */
struct missing {
    const char *spans;    /* "PyTorch spans": there are none among its events */
    const char *question; /* "was the profiler active?" */
    const char *alone;    /* where no file holds a span: what is wrong, what to do */
};

/* Of a profile of any framework. */
#define NO_SPANS "no framework's spans in it; was the profiler active while the job trained?"

struct reader {
    const char *name;      /* in JSON output */
    const char *word;      /* in messages: "profile" */
    const char *encoding;  /* of what breaks at a byte: "JSON"; NULL: records or lines */
    const char *framework; /* whose format it is; NULL: PyTorch's or nobody's */
    unsigned flags;
    struct missing missing;
    const struct reader
        *export_of; /* a file of that format says the same in more detail; or NULL */

    /* What it is known by: how the file or its member "schema" begins, or by looking; NULL */
    const char *begins[2], *schemas[2];
    bool (*recognise)(const struct head *head);

    /* One of them: the first takes the whole document, the second the bytes. Both return 0 also
     * when the file ends early or is broken further on: js->fail, or part->damage.cut, tells; the
     * part then holds what is whole. Negative: a format of another version. */
    int (*read_json)(struct json *js, struct trace_part *part, struct dpro_error *err);
    int (*read_bytes)(struct bytes *bytes, struct trace_part *part, struct dpro_error *err);

    /* Hooks of joining, in the order in which they are called; NULL: nothing to do. Those that take
     * the build see all files and are called once. */
    void (*stand_alone)(struct trace_build *build);   /* there is no profile */
    void (*correct_ranks)(struct trace_build *build); /* those of profiles, once they are known */
    void (*complete)(struct trace_build *build);      /* parts, before ranks are */
    void (*describe)(struct trace_build *build, struct rank_job *job); /* a rank as a whole */
    void (*join_rank)(struct rank_job *job);   /* once spans are in place; one thread a rank */
    void (*match_graph)(struct rank_job *job); /* of a profile: sets span.node. NULL: by names */
    void (*join)(struct trace_build *build);   /* once all ranks are built */
};

/* recognise.c: the reader of a document, from its first bytes; NULL: none of the table's, and
 * *other is what it is instead, static text; NULL where that is not known, either. */
const struct reader *reader_recognise(const struct reader_table *table, struct json *js,
                                      const char **other);

/* other_formats.c: what a piece of a file's head, or its name, says that the file is, of what dpro
 * knows by sight only: "a Python pickle". Static text; NULL: nothing. */
const char *other_format(const struct head *head);
const char *other_format_by_name(const char *path);
