/* ingest/horovod/timeline_building.h: a timeline while it is put together: comm_timeline.c reads
 * the events, timeline_runs.c makes runs of them. */
#ifndef INGEST_HOROVOD_TIMELINE_BUILDING_H
#define INGEST_HOROVOD_TIMELINE_BUILDING_H

#include "base/map.h"
#include "ingest/horovod/timeline.h"
#include "ingest/part.h"

enum { MAX_NESTED = 8 };

/* An event of the file. */
struct timeline_event {
    uint64_t pid; /* a number, or the hash of a name */
    uint64_t tid;
    char ph;
    bool has_pid, has_ts, has_dur, has_anchor;
    uint32_t pid_name; /* where it is one */
    uint32_t tid_name;
    uint32_t name, args_name, dtype, shape;
    int64_t ts_ns, dur_ns, anchor_us;
};

/* A tensor's B events that wait for their E, and the run that is being put together. */
struct timeline_writing {
    struct timeline_run run;
    bool any;       /* the run has a stage */
    uint8_t n_open; /* may pass MAX_NESTED: deeper ones are counted only */
    uint8_t outer;  /* how deep the event is that stands for the whole run, from 1; 0: none */
    uint8_t stages[MAX_NESTED]; /* enum timeline_stage; N_TIMELINE_STAGES: none of them */
};

/* BytePS: a stage of a partition; a file lists all of one stage before those of the next. */
struct timeline_whole_stage {
    int64_t start_ns, end_ns;
    uint32_t tensor, name;
    enum timeline_stage stage;
};

struct timeline_building {
    struct trace_part *part;
    struct timeline *timeline;
    struct map tensors;                     /* numbers by pid (and BytePS's tid) */
    ARRAY(struct timeline_writing) writing; /* by tensor */
    ARRAY(struct timeline_whole_stage) whole_stages;
    bool known_writer;
    bool no_memory;
};

/* These set no_memory. Once all events are taken timeline_finish() sorts what they gave. */
void timeline_take_event(struct timeline_building *b, const struct timeline_event *e);
void timeline_finish(struct timeline_building *b);

#endif
