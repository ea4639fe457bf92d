/* The processes of a session while their profiles are cut into steps: session_profile.c finds the
 * steps, session_cut.c cuts. */
#pragma once

#include "adapters/tensorflow/session_profile.h"
#include "ingest/sources.h"

/* A run in a process. */
struct session_run {
    uint64_t id;
    uint32_t track;
    int64_t start_ns;
    bool done;
};

/* A stretch of a thread: until the next one begins there. */
struct session_work {
    uint32_t track;
    int64_t start_ns;
    uint64_t run;
};

struct session_mark {
    uint32_t track;
    bool runs; /* some began there in it: then others of the client fill queues */
    int64_t start_ns, end_ns;
    int32_t number;
};

struct session_process {
    struct source *profile, *graph;   /* graph: NULL where there is no RunMetadata at all */
    ARRAY(struct session_run) runs;   /* ascending */
    ARRAY(struct session_work) works; /* by track, ascending */
    ARRAY(struct session_mark) marks;
};

struct session_step {
    uint32_t n_processes; /* that have it whole */
    uint32_t last;        /* process counted, + 1 */
};

struct session_joiner {
    struct trace_build *build;
    struct arena arena; /* has processes and cuts */
    struct session_process *processes;
    size_t n;
    struct map step_of_run, step_of_number; /* index */
    ARRAY(struct session_step) steps;       /* in the client's order */
    uint32_t *cuts;                         /* by step; NO_ID: not whole */
    uint32_t n_cuts;
};

/* session_cut.c: cuts a process's spans into the steps. */
void session_cut_process(struct session_joiner *j, struct session_process *process);
