/* Between comm_timeline.c, which reads the events of a timeline's file, and timeline_runs.c, which
 * puts runs together from them. */
#pragma once

#include "adapters/horovod/timeline.h"
#include "ingest/part.h"

struct timeline_id {
    bool known;
    uint32_t name;   /* where it is one */
    uint64_t number; /* or that of the name */
};

struct timeline_time {
    bool known;
    int64_t ns;
};

/* An event of the file. */
struct timeline_event {
    char ph;
    uint32_t name, args_name, dtype, shape; /* string ids */
    struct timeline_id pid, tid;
    struct timeline_time start, dur, epoch; /* epoch: what the file's times count from */
};

/* A timeline that is being read; all but `part` zeroed at first. */
struct timeline_reading {
    struct trace_part *part;
    struct timeline *timeline;
    struct map tensors;                     /* numbers by pid (and BytePS's tid) */
    ARRAY(struct timeline_writing) writing; /* by tensor */
    ARRAY(struct whole_stage) whole_stages;
    bool known_writer;
};

void timeline_take_event(struct timeline_reading *r, const struct timeline_event *e);
/* Puts together what is left, and frees all but the timeline. */
void timeline_finish(struct timeline_reading *r);
