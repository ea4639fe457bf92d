/* ingest/part.h: what one file gives before the files are joined, and the table of readers. */
#ifndef INGEST_PART_H
#define INGEST_PART_H

#include "base/bytes.h"
#include "base/json.h"
#include "ingest/horovod/timeline.h"
#include "ingest/rank_json.h"
#include "ingest/trace.h"
#include "ingest/transport/nccl.h"
#include "ingest/transport/transport.h"

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
    uint64_t n_no_time;        /* no or no valid ts */
    uint64_t n_no_dur;         /* no or no valid dur */
    uint64_t n_negative;       /* dur < 0 */
    uint64_t n_overflow;       /* beyond TRACE_TIME_MAX */
    uint64_t n_unpaired;       /* B without E or E without B */
    uint64_t n_broken;         /* elements that are no events */
    uint64_t n_broken_records; /* of a log: records or lines that make no sense */
};

/* A stretch of the file that stands for a file of its own. */
struct part_cut {
    int64_t start_ns, end_ns;             /* first start, last end; without base_ns */
    int64_t whole_start_ns, whole_end_ns; /* of all the session's processes; with base_ns */
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
    ARRAY(struct dfg_node) dfg_nodes;
    ARRAY(struct dfg_input) dfg_inputs;
    struct arena arena;
    bool has_rank;
    int rank, world_size;
    const char *framework; /* that the file tells of, static; NULL: its kind tells */
    bool is_device;        /* the part is one of the devices that the file tells of */
    uint64_t device;       /* its number, as the file gives it */
    uint64_t pid;
    uint32_t host, backend;
    int64_t base_ns;          /* to be added to every time */
    int64_t start_ns, end_ns; /* without base_ns; only when n_spans > 0 */
    bool has_correlation, has_record_fn, external_is_op;
    uint64_t n_events;
    struct part_losses losses;
    struct recording *recording;     /* rank.json, job.json; else NULL */
    struct net_transport *transport; /* transport logs, binary or CSV; else NULL */
    struct nccl_log *nccl;           /* NCCL logs; else NULL */
    struct timeline *timeline;       /* communication timelines; else NULL */
    bool is_mirrored; /* the graph: of its backward half, how it must look is all that is known */
    bool cut;         /* a log that ends in the middle of a record or line */
    struct session_profile *session; /* see there; else NULL */
    ARRAY(struct part_cut) cuts; /* ascending; where there are any, spans' `window` counts them */
    struct trace_part *next;     /* what the same file tells of another process; owned */
    bool is_session_step;        /* the file is one step of a session of several processes */
    int64_t whole_start_ns, whole_end_ns; /* of that step in all of them */
    const char *broken; /* protobuf: why reading stopped, static text; NULL: it did not */
    uint64_t broken_offset;
};

void part_fini(struct trace_part *part);
/* Adds a span and returns it, or NULL when memory runs out. */
struct trace_span *part_add_span(struct trace_part *part);
/* The same, counted on its track and in the time that the part spans; false: no memory. */
bool part_place_span(struct trace_part *part, const struct trace_span *span);
/* Frees all blocks of spans. */
void part_free_blocks(struct trace_part *part);

/* The text that is next, as a string id; 0: it is none. Sets *no_memory when that runs out. */
uint32_t part_intern(struct trace_part *part, const char *text, size_t len, bool *no_memory);
uint32_t part_read_text(struct trace_part *part, struct json *js, bool *no_memory);
/* Calls read_event at each event of a Chrome trace, an array or an object with "traceEvents"; what
 * is no event is counted as broken. Ends early once *no_memory is set. */
void part_read_events(struct trace_part *part, struct json *js, void (*read_event)(void *reader),
                      void *reader, const bool *no_memory);

/* One reader a format. A JSON reader takes the whole document from js, another one the bytes. Both
 * return 0 also when the file ends early or is broken further on: js->fail, or part->cut, tells;
 * the part then holds what is whole. Negative: out of memory, or a format of another version. */
struct reader {
    enum dpro_file_kind kind;
    const char *word;       /* what the file is: "profile" */
    const char *one, *many; /* what it holds: "event", "events" */
    int (*read_json)(struct json *js, struct trace_part *part, struct dpro_error *err);
    int (*read_bytes)(struct bytes *bytes, struct trace_part *part, struct dpro_error *err);
};
const struct reader *reader_of(enum dpro_file_kind kind); /* NULL for DPRO_FILE_OTHER */

int kineto_read(struct json *js, struct trace_part *part, struct dpro_error *err);
int mxnet_read(struct json *js, struct trace_part *part, struct dpro_error *err);
int mxnet_text_read(struct bytes *bytes, struct trace_part *part, struct dpro_error *err);
int mxnet_symbol_read(struct json *js, struct trace_part *part, struct dpro_error *err);
int et_read(struct json *js, struct trace_part *part, struct dpro_error *err);
int recording_read(struct json *js, struct trace_part *part, struct dpro_error *err);
int timeline_read(struct json *js, struct trace_part *part, struct dpro_error *err);
int log_read(struct bytes *bytes, struct trace_part *part, struct dpro_error *err);
int xplane_read(struct bytes *bytes, struct trace_part *part, struct dpro_error *err);
int runmeta_read(struct bytes *bytes, struct trace_part *part, struct dpro_error *err);
int graphdef_read(struct bytes *bytes, struct trace_part *part, struct dpro_error *err);
int net_csv_read(struct bytes *bytes, struct trace_part *part, struct dpro_error *err);
enum { PART_RECORD_MAX = 1 << 16 }; /* the longest record or line that readers of bytes ask for */

/* What a protobuf file is, from its first bytes. */
enum dpro_file_kind protobuf_recognise(const unsigned char *p, size_t n);
/* Whether the list of nodes that is next is one of MXNet's symbols. */
bool mxnet_symbol_recognise(struct json *js);

/* What a document is, from its first bytes. */
enum dpro_file_kind recognise(struct json *js);

#endif
