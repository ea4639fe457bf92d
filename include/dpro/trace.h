/* Reading trace files of a job: folders, globs and lists of files, one or more a rank, and dpro's
 * own trace directories.
 *
 * A file is recognised by its content. Its rank comes from its metadata, else from its name. All
 * files of a rank share that rank's clock. Times are int64 nanoseconds since the Unix epoch where
 * the file says so, else since the file's own zero. */
#ifndef DPRO_TRACE_H
#define DPRO_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include <dpro/error.h>
#include <dpro/options.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dpro_trace; /* everything read from the input; owns its memory */

struct dpro_file_info {
    const char *path;    /* borrowed from the trace */
    const char *format;  /* "kineto", as in JSON output; NULL: not a trace, ignored. Static text */
    int chrome_trace;    /* 1: a profile in Chrome trace JSON, which viewers show */
    int rank;            /* -1: none (not a trace, the log of a server) */
    uint64_t size_bytes; /* on disk */
    uint64_t json_bytes; /* after inflating, as far as it was read */
    uint64_t n_events;   /* trace events, ET nodes, entries, records or lines */
    int truncated;       /* 1: only a part could be read, see the warnings */
    int64_t base_ns; /* Kineto: what the file's own times count from (baseTimeNanoseconds, or 0) */
    int64_t start_ns, end_ns; /* Kineto: first start, last end, in the rank's clock; equal: none */
};

/* Reads `n_paths` files, folders (not recursively into hidden ones) or glob patterns. On success
 * *trace is the caller's, to be freed with dpro_trace_destroy. Fails with DPRO_EEMPTY when no file
 * holds a usable trace, DPRO_EFORMAT when two files claim the same rank and overlap in time or
 * belong to different jobs, DPRO_EIO when a named path can't be read. */
DPRO_API int dpro_trace_load(const char *const *paths, size_t n_paths,
                             const struct dpro_job_options *options, struct dpro_trace **trace,
                             struct dpro_error *err);
DPRO_API void dpro_trace_destroy(struct dpro_trace *trace); /* NULL is fine */

DPRO_API size_t dpro_trace_n_files(const struct dpro_trace *trace);
DPRO_API struct dpro_file_info dpro_trace_file(const struct dpro_trace *trace, size_t file);
DPRO_API size_t dpro_trace_n_ranks(const struct dpro_trace *trace); /* ranks present */
DPRO_API int dpro_trace_rank(const struct dpro_trace *trace,
                             size_t index);                         /* ascending rank numbers */
DPRO_API int dpro_trace_world_size(const struct dpro_trace *trace); /* at least the ranks present */
/* "pytorch", "tensorflow", "mxnet" */
DPRO_API const char *dpro_trace_framework(const struct dpro_trace *trace);
DPRO_API uint64_t dpro_trace_n_spans(const struct dpro_trace *trace);
DPRO_API size_t dpro_trace_n_warnings(const struct dpro_trace *trace);
DPRO_API const char *dpro_trace_warning(const struct dpro_trace *trace,
                                        size_t index); /* borrowed, one line */

/* What the transport logs hold. A connection is *joined* when both ends are here; bytes are paired
 * when both ends saw them. */
struct dpro_transport_info {
    uint32_t n_processes;   /* processes with a transport log */
    uint32_t n_connections; /* joined ones */
    uint32_t n_one_sided;   /* connections with only one end recorded */
    uint64_t n_calls;
    uint64_t sent_bytes, received_bytes; /* over all connections */
    uint64_t paired_bytes;
    uint64_t unpaired_bytes; /* holes in one end's record that the other end filled */
    uint64_t n_messages;     /* gloo's */
    uint64_t n_zmtp_frames;  /* ZeroMQ's */
    uint64_t n_pushes;       /* messages with data to a parameter server, */
    uint64_t n_pulls;        /* and from one; each counted where it was sent */
    uint64_t n_collectives;  /* gloo's and key-value stores' spans in the profiles of these
                                processes */
    uint64_t n_tied;         /* of them: those whose messages were found */
    uint64_t n_checked;      /* of the tied ones: all-reduces and all-gathers of known size */
    uint64_t n_exact; /* of these: those whose bytes over all ranks are what their size implies */
    uint64_t n_in_buckets; /* collectives known to carry a certain bucket or unit of a sharded
                              model, so certain parameters */
    uint64_t n_lost;       /* records that the tracer could not keep */
};
DPRO_API struct dpro_transport_info dpro_trace_transport(const struct dpro_trace *trace);

/* From Horovod's timeline. A round is one reduction of every gradient. Which gradients travel
 * together differs between rounds; the groups are those of most rounds. */
struct dpro_fusion_info {
    uint32_t n_tensors; /* 0: there is no timeline */
    uint32_t n_groups, n_rounds;
    uint32_t n_alike; /* rounds that were fused in these groups */
    int64_t cycle_ns; /* of a cycle with nothing to do; 0: not marked */
};
DPRO_API struct dpro_fusion_info dpro_trace_fusion(const struct dpro_trace *trace);

/* Writes the transport logs as CSV, net_rank<R>.csv.gz or net_server<N>.csv.gz each, into `folder`,
 * which is made when missing. Fails with DPRO_EEMPTY when there are none, DPRO_EIO. */
DPRO_API int dpro_trace_export_net_csv(const struct dpro_trace *trace, const char *folder,
                                       struct dpro_error *err);

/* Steps of the job without a profiler, just before and after the recorded window, by dpro's own
 * clock; means over the ranks. The job's time rests on them. */
struct dpro_unprofiled {
    uint32_t n_steps;                   /* 0: not recorded */
    int64_t mean_ns, median_ns, std_ns; /* std_ns -1: one step */
    int64_t page_faults;                /* of a step on a rank, median; -1: not recorded */
    int64_t cpu_ns; /* of a rank's process in a step, median; -1: not recorded */
};
DPRO_API struct dpro_unprofiled dpro_trace_unprofiled(const struct dpro_trace *trace);

/* Times of the job's modules computed in other ways, measured by 'dpro profile --probe'. */
struct dpro_probes;
DPRO_API const struct dpro_probes *dpro_trace_probes(const struct dpro_trace *trace); /* borrowed;
                                                                              NULL: not measured */
/* Those of another run than the trace's, from its probes.json; *probes is the caller's. Fails with
 * DPRO_EFORMAT where the file can't be read or holds none. */
DPRO_API int dpro_probes_read(const char *path, const struct dpro_trace *trace,
                              struct dpro_probes **probes, struct dpro_error *err);
DPRO_API void dpro_probes_destroy(struct dpro_probes *probes); /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif
