/* One table of options per command, from which parsing, --help and completion come.
 *
 * A command's values live in one struct; a table entry names the field by its offset and the
 * function that reads a value into it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* What a shell offers after the option. */
enum opt_complete { OPT_COMPLETE_NOTHING, OPT_COMPLETE_PATH, OPT_COMPLETE_FOLDER };

/* Reads `text` into the field at `field`; false when it can't. A flag gets NULL. */
typedef bool opt_read_fn(const char *text, void *field);

struct opt {
    const char *name;  /* long name, without dashes; NULL ends the table, whose `help` is then what
                          is said after an unknown option (default: see 'dpro help ...') */
    char letter;       /* short name; 0: none */
    bool repeats;      /* the field is a struct opt_list */
    const char *arg;   /* what --help calls the value; NULL: a flag */
    opt_read_fn *read; /* NULL: the field, an enum, becomes the number of the choice */
    size_t offset;
    const char *form;           /* what a value must look like, said when it does not; NULL: said
                                   from choices, or from least and most */
    const char *help;           /* lines parted by \n */
    const char *const *choices; /* the values that are accepted, NULL-terminated; NULL: many */
    uint64_t least, most;       /* of a whole number; most 0: the value is not one */
    enum opt_complete complete;
};

/* Rows of a table. Its file defines AT(member), the offset in its struct of values. */
#define OPT_FLAG(n, m, h)                                                                          \
    {                                                                                              \
        .name = (n), .read = opt_read_flag, .offset = AT(m), .help = (h)                           \
    }
#define OPT_SWITCH(n, m, h) /* of an int */                                                        \
    {                                                                                              \
        .name = (n), .read = opt_read_count, .offset = AT(m), .help = (h)                          \
    }
#define OPT_VALUE(n, a, r, m, f, h)                                                                \
    {                                                                                              \
        .name = (n), .arg = (a), .read = (r), .offset = AT(m), .form = (f), .help = (h)            \
    }
#define OPT_LIST(n, a, r, m, f, h)                                                                 \
    {                                                                                              \
        .name = (n), .repeats = true, .arg = (a), .read = (r), .offset = AT(m), .form = (f),       \
        .help = (h)                                                                                \
    }
#define OPT_PATH(n, a, m, f, h)                                                                    \
    {                                                                                              \
        .name = (n), .arg = (a), .read = opt_read_string, .offset = AT(m), .form = (f),            \
        .help = (h), .complete = OPT_COMPLETE_PATH                                                 \
    }
#define OPT_OUTPUT(h)                                                                              \
    {                                                                                              \
        .name = "output", .letter = 'o', .arg = "DIR", .read = opt_read_string,                    \
        .offset = AT(output), .form = "a folder", .help = (h), .complete = OPT_COMPLETE_FOLDER     \
    }
/* A whole number within limits. */
#define OPT_WHOLE(n, r, m, lo, hi, h)                                                              \
    {                                                                                              \
        .name = (n), .arg = "N", .read = (r), .offset = AT(m), .help = (h), .least = (lo),         \
        .most = (hi)                                                                               \
    }
/* One of a few words. */
#define OPT_CHOICE(n, a, r, m, c, h)                                                               \
    {                                                                                              \
        .name = (n), .arg = (a), .read = (r), .offset = AT(m), .help = (h), .choices = (c)         \
    }

struct opt_list { /* a repeated option's values, or the positional arguments; borrowed from argv */
    const char **items;
    size_t n;
};

/* Field types: the name says what the field is. */
bool opt_read_flag(const char *text, void *field);    /* bool: set */
bool opt_read_count(const char *text, void *field);   /* int: one more */
bool opt_read_string(const char *text, void *field);  /* const char *, not empty */
bool opt_read_regex(const char *text, void *field);   /* const char *, an ERE with a group */
bool opt_read_pattern(const char *text, void *field); /* needs no group */
bool opt_read_list(const char *text, void *field);    /* struct opt_list, not empty */
bool opt_read_u32(const char *text, void *field);     /* uint32_t */
bool opt_read_u64(const char *text, void *field);     /* uint64_t */
bool opt_read_int(const char *text, void *field);     /* int, 0 or more */

/* Reads a finite number that fills the whole of `text`. */
bool opt_number(const char *text, double *value);

/* The index of a word in a NULL-terminated list; -1: it is not there. */
int opt_find_word(const char *text, const char *const *words);

/* Where text could have been meant: the nearest of the names, NULL when none is near. `name` gives
 * the i-th, NULL at the end. */
const char *opt_nearest(const char *text, const char *(*name)(const void *names, size_t i),
                        const void *names);

/* Reads argv[1..] by the table into the struct at `values`; what is no option goes to *args, whose
 * items are the caller's to free. `command` is for messages. Returns 0, or the exit code after
 * having said what is wrong. */
int opt_parse(const char *command, const struct opt *opts, int argc, char **argv, void *values,
              struct opt_list *args);
/* Frees the lists among the values. */
void opt_free(const struct opt *opts, void *values);

/* The option part of a command's --help. */
void opt_help(const struct opt *opts, FILE *out);
