/* ingest/load.h: the steps between the files and the trace: finding files, joining parts by rank,
 * finding the spans of execution-trace nodes. */
#ifndef INGEST_LOAD_H
#define INGEST_LOAD_H

#include <stdatomic.h>
#include <sys/types.h>

#include "base/file.h"
#include "ingest/part.h"

/* One file of the input. */
struct source {
    char *path;
    bool named; /* by the caller, not found in a folder */
    enum dpro_file_kind kind;
    int rank;    /* -1: none; below: a process that is none (transport.h) */
    int attempt; /* of attempt<K>/ above it, 0 without one */
    struct trace_part part;
    uint32_t *names; /* string id of the part -> of the trace */
    int rc;          /* of reading it, with err */
    struct dpro_error err;
    enum json_fail fail;  /* how the JSON ended */
    const char *damage;   /* how the gzip stream ended; static text */
    uint64_t fail_offset; /* in the inflated text */
    uint64_t size_bytes, read_bytes, json_bytes;
    dev_t device;
    ino_t inode;
};

struct source_list {
    struct source *at;
    size_t n, cap;
};

struct loader {
    const struct dpro_trace_options *options;
    struct source_list list;
    struct dpro_trace *trace;
    atomic_uint_fast64_t bytes_done;
    uint64_t bytes_total;
    size_t n_timeline_runs; /* of all files: each may become spans of every rank */
};

/* load.c: whether there is something in the file to go on with. */
bool source_usable(const struct source *source);
/* Whether it says when what ran: a profile of any framework. */
bool source_is_profile(const struct source *source);
/* Whether it is one of TensorFlow's. */
bool source_is_protobuf(const struct source *source);

/* ranks.c: sets each usable source's rank. */
int sources_find_ranks(struct loader *loader, struct dpro_error *err);
/* Whether it tells of all workers alike. */
bool source_is_everyones(const struct source *source);

/* paths.c */
int sources_find(struct source_list *list, const char *const *paths, size_t n_paths,
                 struct dpro_error *err);
void sources_fini(struct source_list *list);
/* The rank in a file's name or its folder's, -1 when there is none. */
int path_rank(const char *path);
/* The number that its folder's name is, -1 when that is none: BytePS's <local rank>/comm.json. */
int path_folder_number(const char *path);
/* The process that is no rank by its file's name or its folder's, -1 when it has no role. */
int path_process(const char *path);

/* directory.c: what is peculiar to trace directories of dpro's own. Of a profile and its compressed
 * copy beside it one is taken; of a log and its CSV the log; of several attempts of a job the
 * newest that has all ranks; and what the recorder and the tracer say was left out is passed on. */
void sources_drop_copies(struct loader *loader);
void sources_drop_exports(struct loader *loader);
void sources_choose_attempt(struct loader *loader);
void sources_warn_recorded(struct loader *loader);
int sum_unprofiled(struct dpro_trace *trace, struct dpro_error *err);

/* epoch.c: puts profiles without a date on the recorder's clock; before anything is tied to logs.
 */
int epoch_build(struct dpro_trace *trace); /* -1: no memory */
bool rank_on_epoch(const struct trace_rank *rank);
/* Whether a time is since the epoch (after 2001) rather than since some boot or start. */
static inline bool time_on_epoch(int64_t ns)
{
    return ns >= 1000000000LL * 1000000000;
}
void rank_shift(struct trace_rank *rank, int64_t by_ns);

/* horovod/timeline_ranks.c: gives each timeline to its rank; timeline_alone.c: before that, makes
 * profiles of the timelines where there are no others. */
int timelines_stand_alone(struct loader *loader, struct dpro_error *err);
int timelines_build(struct loader *loader, struct dpro_error *err);

/* join.c: what one rank is made of, and where it goes. The arrays of *rank are allocated, as large
 * as they can get; counts are set here. */
struct rank_job {
    struct trace_rank *rank;
    struct source **windows; /* ascending in time */
    size_t n_windows;
    const struct strtab *names;         /* the trace's */
    struct source *execution_trace;     /* NULL: none */
    struct source *graph;               /* the framework's; NULL: none */
    struct source *shapes;              /* what it was made from, with sizes; NULL: none */
    uint64_t n_node_spans, n_unmatched; /* spans that should be nodes of it, and are not */
    uint32_t first_unmatched;           /* string id */
    uint32_t n_bulks;                   /* ops that stand for several nodes */
    uint32_t n_et_with_id, n_et_matched;
    const char *et_method;
    uint64_t n_duplicates;
    bool no_memory;
};
void rank_build(struct rank_job *job);

/* dfg.c: sets span.node. */
void rank_match_graph(struct rank_job *job);

/* mxnet/match.c: the same where spans bear the nodes' types only. */
void rank_match_types(struct rank_job *job);

/* pytorch/match.c: sets et_node.span and the windows' has_execution_trace. */
void rank_match_execution_trace(struct rank_job *job);

#endif
