/* The profiler's spans around the calls of a communication library, by thread and time: what a log
 * says happened on that thread then belongs to that span. */
#pragma once

#include "ingest/trace.h"

struct run {
    int64_t start_ns, end_ns;
    int64_t thread;
    uint32_t span;
    uint32_t call; /* span of the call that asked for it; NO_ID: unknown */
    bool tied;     /* the caller's mark */
};
typedef ARRAY(struct run) run_array;

void runs_list(const struct dpro_trace *trace, const struct trace_rank *rank, const char *prefix,
               run_array *runs);
/* Finds the framework's calls, c10d::..., that asked for the runs, in the same order: the k-th of a
 * window asked for the k-th run. Sets run.call, NO_ID where the counts in a window differ. */
void runs_find_calls(const struct dpro_trace *trace, const struct trace_rank *rank,
                     run_array *runs);
/* The unit of a sharded model that a call is for, as the annotations around it name it: index into
 * the recording's buckets, NO_ID when there is none. */
uint32_t recorded_unit_of(const struct strtab *names, const struct trace_rank *rank, uint32_t span);

/* The bytes and elements of the tensor that a span communicates; 0: unknown. */
uint64_t runs_bytes(const struct dpro_trace *trace, const struct trace_rank *rank, uint32_t span,
                    uint64_t *numel);

/* The one that was open on a thread at a time; NULL: none. */
struct run *runs_at(const run_array *runs, int64_t thread, int64_t time_ns);
