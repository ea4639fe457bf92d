/* The files of the input, from which the trace is built. */
#pragma once

#include <sys/types.h>

#include "ingest/reader.h"

#define PROCESS_NONE (-1) /* nobody read it yet */

/* One file of the input, or one process of a file of several. */
struct source {
    char *path;
    bool named;                  /* by the caller, not found in a folder */
    const struct reader *reader; /* NULL: not a trace, or passed over */
    const char *other;           /* what it is else, static text; NULL: not known */
    int rank;                    /* -1: none; below: a process that is no rank (transport.h) */
    int attempt;                 /* of attempt<K>/ above it, 0 without one */
    struct trace_part part;
    uint32_t *names; /* string id of the part -> of the trace */
    uint32_t n_names;
    int rc; /* of reading it, with err */
    struct dpro_error err;
    enum json_fail fail;  /* how the JSON ended */
    const char *damage;   /* how the gzip stream ended; static text */
    uint64_t fail_offset; /* in the inflated text */
    uint64_t size_bytes, read_bytes, json_bytes;
    uint64_t ends;       /* share_files.c */
    int process;         /* that reads it; 0: this one */
    bool held_elsewhere; /* there is something in it to go on with, which that process has */
    bool first_sees;     /* the first process: it is there, too */
    bool is_copied;      /* and read, too */
    char *copy;          /* of one that it does not see, for that; NULL: there is none */
    size_t n_copy;
    dev_t device;
    ino_t inode;
};

struct source_list {
    struct source *at;
    size_t n, cap;
};

/* A trace that is being built from its files. */
struct trace_build {
    const struct dpro_job_options *options;
    const struct reader_table *table;
    struct source_list list;
    struct dpro_trace *trace;
    struct dpro_processes *processes; /* NULL: it is built here alone */
    bool has_logs;                    /* of what went over networks */
};

/* Whether there is something in the file to go on with. */
bool source_usable(const struct source *source);
/* Whether it says when what ran: a profile of any framework. */
bool source_is_profile(const struct source *source);
/* Whether it describes all ranks. */
bool source_is_everyones(const struct source *source);
/* Whether it ends early or is broken further on. */
bool source_is_damaged(const struct source *source);
/* The payload of a source that is not passed over, where it is of that kind; else NULL. */
void *source_payload(const struct source *source, const struct payload_kind *kind);

/* Frees all that the list holds. */
void sources_fini(struct source_list *list);

#define build_warn(build, ...) trace_warn((build)->trace, &(build)->options->sink, __VA_ARGS__)
