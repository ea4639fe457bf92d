/* Between kineto.c, which reads the events of a profile, and kineto_events.c, which keeps what they
 * tell. */
#pragma once

#include "ingest/pytorch/kineto.h"

struct kineto_event {
    int64_t ts_ns, dur_ns;
    uint64_t pid, flow_id, correlation;
    int64_t tid;
    uint32_t name, external, record_fn, fwd_thread;
    int32_t sequence;
    uint8_t kind, flow;
    char ph;
    enum json_value ts, dur; /* JSON_NO_VALUE: none or not a number */
    bool has_name, has_detail, has_memory, on_stream;
    uint32_t label;    /* thread_name's or process_name's args.name, process_labels' args.labels */
    uint32_t category; /* of KINETO_OTHER_KIND: string id */
    uint64_t dims_numel;
    uint32_t dims_type;
    bool has_inputs, has_values; /* of ops that op_arithmetic() counts; values of peers, too */
    bool dims_blank,
        type_first; /* the first input: its dimensions are [], it has an element type */
};

extern const struct trace_detail kineto_no_detail;

/* A B event that waits for its E. */
struct kineto_open {
    struct kineto_event event;
    struct trace_detail detail;
};

struct kineto_events {
    struct trace_part *part;
    struct kineto_part *more;
    struct trace_detail detail; /* of the event being read; none unless detail_used */
    bool detail_used;
    struct op_shapes inputs, values; /* of the event being read; see has_inputs, has_values */
    struct kineto_memory memory;     /* of the instant being read */
    ARRAY(uint8_t) name_flags;       /* by name id */
    struct map tracks;               /* hash of (pid, tid, whether of a GPU) -> index */
    uint32_t last_track[2];          /* of the CPU, of the GPU */
    uint32_t call_name, wait_name;   /* of the recorder's marks, without what they tell; 0: none */
    ARRAY(struct kineto_open) open;  /* in the order in which they began */
};

void kineto_events_begin(struct kineto_events *to, struct trace_part *part);
/* An event that is whole; it may be changed. */
void kineto_take(struct kineto_events *to, struct kineto_event *ev);
/* Counts what was begun and did not end; frees all but the part. */
void kineto_events_end(struct kineto_events *to);

/* The part's track of a CPU thread or of a stream. */
uint32_t kineto_find_track(struct kineto_events *to, bool gpu, uint64_t pid, int64_t id);

/* The track on which spans wait whose kind is not known. */
uint32_t kineto_find_row(struct kineto_events *to, uint64_t pid, int64_t id, uint32_t category);

/* kineto_rows.c: what becomes of those spans once the whole file is read. */
void kineto_settle_rows(struct kineto_events *to);

enum kineto_name_flag {
    NAME_SEEN = 1,
    NAME_COMMUNICATION = 2,
    NAME_MODULE = 4,
    NAME_MEMORY = 8,
    NAME_ASKED = 16,   /* the recorder's mark around a call of a process group, or around a wait */
    NAME_POSTED = 32,  /* a transfer that goes on beside the thread which asked for it */
    NAME_COUNTED = 64, /* op_arithmetic() counts it */
    NAME_TO_PEER = 128 /* c10d's send or recv: its third input is the other rank in its group */
};

/* What a name is, looked at once. */
uint8_t kineto_learn_name(struct kineto_events *to, uint32_t name);
static inline uint8_t kineto_name_flags(struct kineto_events *to, uint32_t name)
{
    uint8_t flags = name < to->name_flags.n ? to->name_flags.at[name] : 0;
    return flags ? flags : kineto_learn_name(to, name);
}

/* kineto_pieces.c: one large profile, read by several threads. How a thread reads events, with what
 * it has learnt from those before. */
struct piece_reader {
    void *(*create)(struct json *js);
    /* Takes events up to the end of the text; false: it does not end between two events. */
    bool (*read)(void *reader, struct trace_part *part, struct kineto_events *to);
    void (*destroy)(void *reader);
};

/* Takes the array's events, the first of which is next in js, but for the last ones: these are left
 * in js. Whatever is read is the same as by one thread. False: the text can't be read in pieces;
 * it has to be read again from its start. */
bool kineto_read_pieces(const struct piece_reader *reader, struct json *js,
                        struct kineto_events *to);
