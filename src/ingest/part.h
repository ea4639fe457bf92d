/* What one file gives before the files are joined. */
#pragma once

#include "base/bytes.h"
#include "base/json_members.h"
#include "ingest/trace.h"

/* Spans come in blocks, so that a block's memory goes back to the system the moment its spans have
 * been copied to their final place. */
struct span_block {
    struct span_block *next;
    struct span_pages *pages; /* that the block is in */
    size_t n_bytes;           /* of these */
    uint32_t n, cap;
    struct trace_span at[];
};

struct part_track {
    struct trace_track track;
    uint32_t n_spans;
    uint32_t row; /* while it is read: 1 + that of the reader's whose kind is not known; 0: none */
};

/* A thread_name event. */
struct part_label {
    uint64_t pid;
    int64_t id;
    uint32_t name;
};

/* What had to be left out, for one warning line. */
struct part_losses {
    uint64_t n_broken;         /* spans without a start and a duration that make sense; no events */
    uint64_t n_unpaired;       /* B without E or E without B */
    uint64_t n_broken_records; /* of a log: records or lines that make no sense */
    uint64_t n_allocations;    /* without a time or a size that makes sense */
};

/* A stretch of the file that stands for a file of its own. */
struct part_cut {
    int64_t start_ns, end_ns;             /* first start, last end; without base_ns */
    int64_t whole_start_ns, whole_end_ns; /* of all the session's processes; with base_ns */
};

/* What only one format's reader and joining know of a file. */
struct payload_kind {
    size_t size_bytes;
    void (*fini)(void *payload); /* frees what it holds, not itself; NULL: that is its `arrays` */
    size_t n_at;   /* offset of the number of its entries, without which it is of no use; 0: none */
    bool of_spans; /* of use with the part's spans only */
    size_t arrays[8]; /* offsets of pointers, ARRAYs and maps */
};

/* How sure a framework's graph is; the lower the better. */
enum graph_state {
    GRAPH_AS_RUN,     /* what an executor ran */
    GRAPH_MIRRORED,   /* of its backward half, how it must look is all that is known */
    GRAPH_AS_WRITTEN, /* before the framework rewrote it */
};

struct part_process {
    bool has_rank;
    int rank, world_size;
    uint64_t pid;
    uint32_t host, backend, device_name; /* string ids */
    bool of_job;                         /* it describes the job, not a process */
    bool may_be_server; /* its name may say that it is of a process that is no rank */
    bool is_device;     /* the part is one device of the file */
    uint64_t device;    /* its number, as the file gives it */
};

/* Of a file of a session of several processes. */
struct part_session {
    bool is_step;                         /* the file is one step of it */
    int64_t whole_start_ns, whole_end_ns; /* of that step in all processes */
    ARRAY(struct part_cut) cuts; /* ascending; where there are any, spans' `window` counts them */
};

/* How reading ended too early. */
struct part_damage {
    bool cut;           /* a log that ends in the middle of a record or line */
    const char *broken; /* protobuf: why reading stopped, static text; NULL: it did not */
    uint64_t offset;    /* where */
};

struct missing;

struct trace_part {
    struct arena arena;
    struct strtab names;

    /* what it tells of the job */
    struct part_process process;
    struct part_session session;
    const char *framework;            /* as the file says, static text; NULL: its format says */
    const struct missing *missing;    /* what the file lacks; NULL: what its format says */
    const char *note;                 /* what else is to be said of it; NULL: nothing */
    ARRAY(struct trace_group) groups; /* ranks are in the arena */

    /* what ran when */
    struct span_block *first_block, *last_block;
    uint64_t n_spans;
    int64_t base_ns;                   /* to be added to every time */
    int64_t least_number, most_number; /* sequence numbers of ops, which a process counts up; 0 */
    int64_t start_ns, end_ns;          /* without base_ns; only when n_spans > 0 */
    ARRAY(struct part_track) tracks;
    ARRAY(struct trace_detail) details;
    ARRAY(struct part_label) labels;
    bool has_record_fn;
    bool adds_spans; /* to its rank, of what processes exchanged */

    /* in the file's order; times without base_ns, tracks of the part or NO_ID, windows unset */
    ARRAY(struct trace_allocation) allocations;

    /* the framework's graph */
    ARRAY(struct dfg_node) dfg_nodes;
    ARRAY(struct dfg_input) dfg_inputs;
    enum graph_state graph;

    /* what only the format's own reader knows; NULL: nothing */
    void *payload;
    const struct payload_kind *payload_kind;

    /* how reading went */
    uint64_t n_events;
    struct part_losses losses;
    struct part_damage damage;

    struct trace_part *next; /* of the same file, another process; owned */
};

void part_fini(struct trace_part *part);

/* Gives string ids those of another table: RENAME(names, &node->name, &node->type). */
#define RENAME(names, ...) rename_ids((names), (uint32_t *const[]){__VA_ARGS__, NULL})
static inline void rename_ids(const uint32_t *names, uint32_t *const *ids)
{
    for (; *ids; ids++)
        **ids = names[**ids];
}
/* Those of a detail. */
void trace_detail_rename(struct trace_detail *detail, const uint32_t *names);

/* The part's payload, made when there is none yet. */
void *part_make_payload(struct trace_part *part, const struct payload_kind *kind);
/* NULL: it has none of that kind. */
void *part_payload(const struct trace_part *part, const struct payload_kind *kind);
/* The same, from now on the caller's. */
void *part_take_payload(struct trace_part *part, const struct payload_kind *kind);
void part_free_payload(struct trace_part *part);
/* Frees one that was taken; NULL is fine. */
void payload_destroy(const struct payload_kind *kind, void *payload);

/* Adds a span and returns it. */
struct trace_span *part_add_span(struct trace_part *part);
/* Counts a span that was added and is filled in, on its track and in the time of the part. */
static inline void part_count_span(struct trace_part *part, const struct trace_span *span)
{
    int64_t end_ns = span->start_ns + span->dur_ns;
    part->tracks.at[span->track].n_spans++;
    if (span->kind == SPAN_CPU_OP && span->sequence > 0) {
        part->most_number = MAX(part->most_number, span->sequence);
        part->least_number =
            part->least_number > 0 ? MIN(part->least_number, span->sequence) : span->sequence;
    }
    if (part->n_spans == 1 || span->start_ns < part->start_ns)
        part->start_ns = span->start_ns;
    if (part->n_spans == 1 || end_ns > part->end_ns)
        part->end_ns = end_ns;
}
/* Adds an allocation; one that can't be is counted as lost. */
void part_add_allocation(struct trace_part *part, const struct trace_allocation *allocation);
/* Adds a copy of a span and counts it. */
void part_place_span(struct trace_part *part, const struct trace_span *span);
/* Frees all blocks of spans. */
void part_free_blocks(struct trace_part *part);
void span_block_free(struct span_block *block);
/* What the last block has room for besides its spans, as a block for another part; NULL: nothing.
 * Large pages are few faults, and threads that ask for pages keep each other waiting. */
struct span_block *part_take_rest(struct trace_part *part);

#define part_intern(part, text, len) strtab_add(&(part)->names, text, len)
#define part_name(part, ...)         strtab_format(&(part)->names, __VA_ARGS__)
/* The rank and the world size as the file gives them, where they make sense. */
void part_set_rank(struct trace_part *part, int64_t rank, int64_t world_size);

/* A process group, whose ranks are "ranks". */
void part_read_group(struct trace_part *part, struct json *js, const char *name_key,
                     const char *description_key);

/* A time or a duration of an event. */
struct part_time {
    enum json_value is;
    int64_t ns;
};
/* Whether a span can be so: with a start and a length that is not negative, within 64 bits. One
 * that can't is counted as broken. */
bool part_times_fit(struct trace_part *part, struct part_time start, struct part_time dur);

/* Functions of tables of an event's members: microseconds, a struct part_time; a phase, char, 0
 * where there is none. */
void part_read_time(struct json_reader *r, void *out, size_t offset);
void part_read_phase(struct json_reader *r, void *out, size_t offset);

/* How the events of a Chrome trace are read. */
struct part_events {
    const struct json_member *members;
    void *event;        /* to be filled */
    size_t size;        /* of it */
    bool may_stay_open; /* the array is the writer's to close: that it ends between two is no damage
                         */
    void (*take)(void *reader, const void *event);
};
/* Takes each event of an array, or of an object with "traceEvents", as `event` was at first but for
 * its members; what is no event is counted as broken, one that is cut off is left out. */
void part_read_events(struct trace_part *part, struct json *js, const struct part_events *how,
                      void *reader);

/* A field of a line of CSV. */
struct part_field {
    const char *text;
    size_t len;
};
enum { PART_FIELDS_MAX = 64 };
/* Returns how many fields there are, up to PART_FIELDS_MAX. Quotes around one are taken off. */
size_t part_split_line(const char *line, size_t len, struct part_field fields[PART_FIELDS_MAX]);
/* The next line with something in it; false: there is none. The last one without a line break is
 * cut: it may have lost digits and still looks like one. */
bool part_next_line(struct trace_part *part, struct bytes *bytes, const char **line, size_t *len);

enum { PART_RECORD_MAX = 1 << 16 }; /* the longest record or line that readers of bytes ask for */
