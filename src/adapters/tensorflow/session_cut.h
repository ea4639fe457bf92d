/* The processes of a session while their profiles are cut into steps: session_profile.c finds the
 * steps, session_cut.c cuts. */
#pragma once

#include "adapters/tensorflow/session_profile.h"
#include "ingest/sources.h"

/* A run in a process. */
struct run {
    uint64_t id;
    uint32_t track;
    int64_t start_ns;
    bool done;
};

/* A stretch of a thread: until the next one begins there. */
struct work {
    uint32_t track;
    int64_t start_ns;
    uint64_t run;
};

struct mark {
    uint32_t track;
    bool runs; /* some began there in it: then others of the client fill queues */
    int64_t start_ns, end_ns;
    int32_t number;
};

struct process {
    struct source *profile, *graph; /* graph: NULL where there is no RunMetadata at all */
    ARRAY(struct run) runs;         /* ascending */
    ARRAY(struct work) works;       /* by track, ascending */
    ARRAY(struct mark) marks;
};

struct step {
    uint32_t n_processes; /* that have it whole */
    uint32_t last;        /* process counted, + 1 */
};

struct joiner {
    struct trace_build *build;
    struct arena arena; /* has processes and cuts */
    struct process *processes;
    size_t n;
    struct map step_of_run, step_of_number; /* index */
    ARRAY(struct step) steps;               /* in the client's order */
    uint32_t *cuts;                         /* by step; NO_ID: not whole */
    uint32_t n_cuts;
};

/* session_cut.c: cuts a process's spans into the steps. */
void session_cut_process(struct joiner *j, struct process *process);
