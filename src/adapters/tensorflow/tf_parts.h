/* Tracks, details and spans of a part, and parts of their own for the processes or devices that one
 * file tells of. */
#pragma once

#include "base/protobuf.h"
#include "ingest/reader.h"

/* for (const struct trace_span *span: the part's spans) */
#define FOR_EACH_SPAN(part, span)                                                                  \
    for (const struct span_block *block_ = (part)->first_block; block_; block_ = block_->next)     \
        for (const struct trace_span *span = block_->at; span < block_->at + block_->n; span++)

/* The track of that number, added where there is none yet. */
uint32_t tf_track(struct trace_part *part, struct trace_track track);
uint32_t tf_detail(struct trace_part *part, const struct trace_detail *detail);
/* The string id of a field of a message that is in memory whole. */
uint32_t tf_intern(struct trace_part *part, const struct pb_field *field);

/* Tracks for spans that no file names threads for; zeroed. */
enum { TF_IDLE_TRACKS = 256 };
struct tf_idle_tracks {
    uint32_t n;
    int64_t end_ns[TF_IDLE_TRACKS];
    uint32_t tracks[TF_IDLE_TRACKS];
};

/* The place in `tracks` of the first one that is idle when a span begins; NO_ID stands there when
 * it is a new one, and the caller sets it. Spans come in order of their starts. */
uint32_t *tf_idle_track(struct tf_idle_tracks *idle, int64_t start_ns, int64_t end_ns);

struct trace_part *tf_device_part(const struct trace_part *from, uint64_t device);
/* *part becomes the first of a list of parts, which tells of the file what *part did. */
void tf_replace_part(struct trace_part *part, struct trace_part *list);

enum protobuf_file { PROTOBUF_OTHER, PROTOBUF_XPLANE, PROTOBUF_RUN_METADATA, PROTOBUF_GRAPH_DEF };
/* What a file is whose head is at hand. */
enum protobuf_file protobuf_recognise(const struct head *head);

/* ---- graphdef.c: a GraphDef wherever it stands in a protobuf file ---- */

/* The task of a device's name, "/job:worker/replica:0/task:1" of
 * "/job:worker/replica:0/task:1/device:CPU:0": its length; 0: none is named. */
size_t graphdef_task(const char *device, size_t len);

/* What both ends of a transfer call it, as the nodes' `key`; 0 when it is empty. */
uint32_t graphdef_key(struct trace_part *part, const char *tensor, const char *send_device,
                      const char *recv_device);

/* By string id of a name: the node of the graph at hand; NO_ID. Kept for the next graph. */
typedef ARRAY(uint32_t) graphdef_places;

/* Adds the nodes of the GraphDef at hand, entered already, to part->dfg_nodes, with ids into the
 * part's names. Inputs that no node of this graph is are left out. What is broken is in pb. */
void graphdef_read_nodes(struct pb *pb, struct trace_part *part, graphdef_places *places);

/* ---- what a step of a session ran, on all its processes (StepStats) ---- */

/* Adds the spans of the StepStats that the field is. */
void session_read_step(struct pb *pb, const struct pb_field *step, struct trace_part *part);

/* Once graphs and spans are read: names what was received after the nodes that receive, puts
 * kernels on threads, and leaves the part with one task and the others in a list behind it. */
void session_split(struct trace_part *part);

enum { SESSION_KEY_MAX = 1024 /* bytes of a transfer's key */ };

/* A thread of the executor that is idle when a span begins; spans come in order of their starts.
 * `pid` tells these tracks from others of the part. */
uint32_t session_track(struct tf_idle_tracks *idle, struct trace_part *part, uint64_t pid,
                       const struct trace_span *span);
/* The track of what came from the task that a transfer's key names. */
uint32_t session_inbox(struct trace_part *part, uint64_t pid, const char *key);
/* Extends a step's time in its client by that in another process. Where the two do not overlap, the
 * clocks differ too much. */
void session_extend(int64_t whole_ns[2], int64_t start_ns, int64_t end_ns);
/* Sets group and number of a collective by its key, "1 104", which is equal on all tasks. */
void session_name_group(struct trace_part *part, const char *key, struct trace_detail *detail);

/* ---- what TensorFlow's profiler (XPlane) notes of a session's runs in one of its processes ----
 */

struct payload_kind;
struct trace_build;
struct trace_part;

/* A run is one call of Session.run; all processes that take part know it by one number. */
enum session_moment_kind {
    MOMENT_RUN,      /* the process is told to begin */
    MOMENT_RUN_DONE, /* what it was to run is over */
    MOMENT_WORK,     /* a thread begins to run kernels for it */
    MOMENT_WAIT,     /* an asynchronous kernel was called */
    MOMENT_WAIT_DONE
};

struct session_moment {
    uint64_t run;
    int64_t ns;                    /* without the part's base_ns */
    uint32_t name;                 /* of the kernel's node, string id; 0: of the run itself */
    uint32_t track : 29, kind : 3; /* enum session_moment_kind */
};

struct session_profile {
    ARRAY(struct session_moment) moments; /* in no order */
};

extern const struct payload_kind session_payload;
/* The part's; NULL: it has none. */
struct session_profile *session_profile_of(const struct trace_part *part);

/* Once the ranks are known: cuts the profiles of a session's processes into the steps that all of
 * them have, each a window. What a task received gets its key from the task's graph, and its size
 * from the step whose RunMetadata has the graph. Where a task has no profile, the steps of the
 * RunMetadata are used. */
void session_profiles_join(struct trace_build *build);
