/* ingest/part.h: what one file gives before the files are joined, and the table of readers. */
#ifndef INGEST_PART_H
#define INGEST_PART_H

#include "base/json.h"
#include "ingest/trace.h"

/* Spans come in blocks that are mapped on their own, so that a block's memory goes back to the
 * system the moment its spans have been copied to their final place. */
struct span_block {
    struct span_block *next;
    size_t map_bytes;
    uint32_t n, cap;
    struct trace_span at[];
};

struct part_track {
    struct trace_track track;
    uint32_t n_spans;
};

struct part_flow {
    int64_t ts_ns;
    uint64_t id;
    uint32_t track;
    bool start; /* 's', else 'f' */
};

/* A thread_name event. */
struct part_label {
    uint64_t pid;
    int64_t id;
    uint32_t name;
};

/* What had to be left out, for one warning line. */
struct part_losses {
    uint64_t n_no_time;  /* no or no valid ts */
    uint64_t n_no_dur;   /* no or no valid dur */
    uint64_t n_negative; /* dur < 0 */
    uint64_t n_overflow; /* beyond TRACE_TIME_MAX */
    uint64_t n_unpaired; /* B without E or E without B */
    uint64_t n_broken;   /* elements that are no events */
};

struct trace_part {
    struct strtab names;
    struct span_block *first_block, *last_block;
    uint64_t n_spans;
    ARRAY(struct part_track) tracks;
    ARRAY(struct trace_detail) details;
    ARRAY(struct part_flow) links;    /* fwdbwd */
    ARRAY(struct part_flow) launches; /* only while no span has a correlation */
    ARRAY(struct part_label) labels;
    ARRAY(struct trace_group) groups; /* ranks are in the arena */
    ARRAY(struct et_node) et_nodes;
    ARRAY(uint32_t) et_threads; /* per node: the writer's thread number */
    ARRAY(struct et_tensor) et_tensors;
    struct arena arena;
    bool has_rank;
    int rank, world_size;
    uint64_t pid;
    uint32_t host, backend;
    int64_t base_ns;          /* to be added to every time */
    int64_t start_ns, end_ns; /* without base_ns; only when n_spans > 0 */
    bool has_correlation, has_record_fn, external_is_op;
    uint64_t n_events;
    struct part_losses losses;
};

void part_fini(struct trace_part *part);
/* Adds a span and returns it, or NULL when memory runs out. */
struct trace_span *part_add_span(struct trace_part *part);
/* Frees all blocks of spans. */
void part_free_blocks(struct trace_part *part);

/* Readers take the whole document from js. They return 0 also when it ends early or is broken
 * further on: js->fail tells; the part then holds what is whole. Negative: out of memory. */
int kineto_read(struct json *js, struct trace_part *part, struct dpro_error *err);
int et_read(struct json *js, struct trace_part *part, struct dpro_error *err);

/* What a document is, from its first bytes. */
enum dpro_file_kind recognise(struct json *js);

#endif
