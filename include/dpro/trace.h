/* trace.h: reading what people have: folders, globs and lists of trace files of a job, one or more
 * files a rank.
 *
 * A file is recognised by its content. Its rank comes from its metadata, else from its name. All
 * files of a rank share that rank's clock. Times are int64 nanoseconds since the Unix epoch where
 * the file says so, else since the file's own zero. */
#ifndef DPRO_TRACE_H
#define DPRO_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include <dpro/error.h>
#include <dpro/log.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dpro_trace; /* everything read from the input; owns its memory */

struct dpro_trace_options {
    const char *rank_regex; /* POSIX extended; its first group is the rank, taken from the file name
                               and preferred to the file's own metadata. NULL: metadata, else
                               rank<N>, rank_<N>, worker<N>, ..._<N>.json */
    int threads;            /* files read at once; 0: one a core */
    struct dpro_sink sink;
};

enum dpro_file_kind {
    DPRO_FILE_OTHER,           /* not a trace; ignored */
    DPRO_FILE_KINETO,          /* PyTorch profiler (Kineto), Chrome trace JSON */
    DPRO_FILE_EXECUTION_TRACE, /* PyTorch execution trace (ET), JSON */
};

struct dpro_file_info {
    const char *path; /* borrowed from the trace */
    enum dpro_file_kind kind;
    int rank;            /* -1: none (OTHER) */
    uint64_t size_bytes; /* on disk */
    uint64_t json_bytes; /* after inflating, as far as it was read */
    uint64_t n_events;   /* trace events, or ET nodes */
    int truncated;       /* 1: only a part could be read, see the warnings */
};

/* Reads `n_paths` files, folders (not recursively into hidden ones) or glob patterns. On success
 * *trace is the caller's, to be freed with dpro_trace_destroy. Fails with DPRO_EEMPTY when no file
 * holds a usable trace, DPRO_EFORMAT when two files claim the same rank and overlap in time or
 * belong to different jobs, DPRO_EIO when a named path can't be read. */
DPRO_API int dpro_trace_load(const char *const *paths, size_t n_paths,
                             const struct dpro_trace_options *options, struct dpro_trace **trace,
                             struct dpro_error *err);
DPRO_API void dpro_trace_destroy(struct dpro_trace *trace); /* NULL is fine */

DPRO_API size_t dpro_trace_n_files(const struct dpro_trace *trace);
DPRO_API struct dpro_file_info dpro_trace_file(const struct dpro_trace *trace, size_t file);
DPRO_API size_t dpro_trace_n_ranks(const struct dpro_trace *trace); /* ranks present */
DPRO_API int dpro_trace_rank(const struct dpro_trace *trace,
                             size_t index);                         /* ascending rank numbers */
DPRO_API int dpro_trace_world_size(const struct dpro_trace *trace); /* at least the ranks present */
DPRO_API const char *dpro_trace_framework(const struct dpro_trace *trace); /* "pytorch" */
DPRO_API uint64_t dpro_trace_n_spans(const struct dpro_trace *trace);
DPRO_API size_t dpro_trace_n_warnings(const struct dpro_trace *trace);
DPRO_API const char *dpro_trace_warning(const struct dpro_trace *trace,
                                        size_t index); /* borrowed, one line */

#ifdef __cplusplus
}
#endif
#endif
