/* The profiler's spans around the calls of a communication library, by thread and time: what a log
 * says happened on that thread then belongs to that span.
 *
 * Spans stay in the process that read them, logs are joined by the first. So a run has all that is
 * asked of its span, and what the logs say of spans is listed. */
#pragma once

#include "base/base.h"

struct dpro_trace;
struct strtab;
struct trace_rank;

struct comm_run {
    int64_t start_ns, end_ns;
    int64_t thread;
    int64_t call_ns;            /* when the call that asked for it began; INT64_MAX: not known */
    uint64_t numel, size_bytes; /* of the tensor that it communicates; 0: not known */
    uint32_t span;
    uint32_t call; /* span of that call; NO_ID: not known */
    uint32_t unit; /* recorded_unit_of() the call */
    uint32_t peer; /* of a posted one, the rank; UINT32_MAX: not known */
    bool posted;   /* on a track of such */
    bool sends;
    bool tied; /* a log has it */
};
typedef ARRAY(struct comm_run) comm_run_array;

struct comm_runs {
    comm_run_array gloo, nccl; /* by thread, then start */
};

/* Where in the logs a rank's part in a collective of an iteration is. */
struct net_part {
    uint32_t log; /* number of the log: the trace's transports, then its NCCL logs; NO_ID: none */
    uint32_t collective; /* transport log: its collective; NCCL: the first operation of the
                            profile's span */
};

struct span_part {
    uint32_t span;
    struct net_part part;
};

struct span_move {
    uint32_t span;
    int64_t start_ns, end_ns;
};

/* What the logs say of a rank's spans. */
struct rank_logged {
    ARRAY(struct span_part) parts; /* of several of a span, the last counts */
    ARRAY(struct span_move) moves; /* to where their data were */
};

/* Lists those of a rank whose spans are here and in place. */
void runs_list(const struct strtab *names, struct trace_rank *rank);
/* The unit of a sharded model that a call is for, as the annotations around it name it: index into
 * the recording's buckets, NO_ID when there is none. */
uint32_t recorded_unit_of(const struct strtab *names, const struct trace_rank *rank, uint32_t span);
void comm_runs_fini(struct comm_runs *runs);
/* The one that was open on a thread at a time; NULL: none. */
struct comm_run *runs_at(const comm_run_array *runs, int64_t thread, int64_t time_ns);

/* What they say, once they are joined; of a rank whose spans are elsewhere, for that process. */
void logged_build(struct dpro_trace *trace);
/* Of a rank whose spans are here. */
void logged_move_spans(struct trace_rank *rank);
