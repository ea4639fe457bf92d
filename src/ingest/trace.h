/* What every reader fills and the graph stage takes: spans per rank, in time order per track.
 *
 * A reader fills one struct trace_part per file, with its own string table, so that files are read
 * in parallel; rank_build joins the parts of a rank into one struct trace_rank whose ids all point
 * into the trace's string table. */
#pragma once

#include <dpro/trace.h>

#include "adapters/horovod/timeline.h"
#include "ingest/allocator_settings.h"
#include "ingest/arithmetic.h"
#include "ingest/rank_json.h"
#include "ingest/transport/transport.h"

#define NO_ID UINT32_MAX /* an index or id that is not there */

/* Starts and ends of spans lie within plus and minus this (146 years), so that the distance of any
 * two fits 64 bits. */
#define TRACE_TIME_MAX (INT64_MAX / 2)

static inline bool trace_time_fits(int64_t ns)
{
    return ns >= -TRACE_TIME_MAX && ns <= TRACE_TIME_MAX;
}

/* Whether a time is since the epoch (after 2001) rather than since some boot or start. */
static inline bool time_on_epoch(int64_t ns)
{
    return ns >= 1000000000LL * 1000000000;
}

/* No device holds more bytes: 256 TiB. */
#define TRACE_BYTES_MAX (INT64_C(1) << 48)

enum span_kind {
    SPAN_CPU_OP,     /* Operator, cpu_op: framework ops on a CPU thread */
    SPAN_ANNOTATION, /* user_annotation: ProfilerStep#N, Optimizer.step#..., nccl:all_reduce,
                        gloo:all_reduce, ... */
    SPAN_RUNTIME,    /* cuda_runtime, hip_runtime, cuda_driver, Runtime: a CPU call into the GPU's
                        runtime or driver */
    SPAN_KERNEL,     /* kernel, Kernel */
    SPAN_MEMCPY,     /* gpu_memcpy, Memcpy */
    SPAN_MEMSET,     /* gpu_memset, Memset */
    SPAN_GPU_ANNOTATION, /* gpu_user_annotation: shadows of CPU annotations on a stream; never work
                          */
    SPAN_SYNC,           /* cuda_sync: what a synchronize or stream wait waited for */
    SPAN_PYTHON,         /* python_function */
    SPAN_COLLECTIVE, /* a collective that a CPU thread ran, from its arrival to its end; `detail`
                        says which */
    SPAN_TRANSFER, /* what came from another process, from when it was asked for; `detail` says from
                      where and how much */
    SPAN_STEP,     /* an iteration as the job marked it; its number is in `sequence` */
    SPAN_OTHER,    /* overhead, Trace, ...; kept out of the graph */
};

/* One interval on one track, 64 bytes. */
struct trace_span {
    int64_t start_ns;     /* in the rank's clock */
    int64_t dur_ns;       /* >= 0 */
    uint64_t correlation; /* joins a runtime call with its device work; 0: none */
    uint32_t name;        /* string id */
    uint32_t track;       /* index into the rank's tracks */
    uint32_t external;    /* "External id"; 0: none. By file, of the CPU op that launched it, or the
                             correlation */
    uint32_t record_fn;   /* "Record function id" (an ET node's rf_id); 0: none */
    int32_t sequence;     /* autograd "Sequence number"; -1: none */
    uint32_t fwd_thread;  /* "Fwd thread id" (only > 0 on a backward op); 0: none */
    uint32_t detail;      /* index into the rank's details; NO_ID: none */
    uint16_t kind;        /* enum span_kind; no padding: spans are compared as bytes */
    uint16_t window;      /* index into the rank's windows */
    uint32_t parent;      /* index of the enclosing span on its track; NO_ID: none */
    uint32_t node; /* of the framework's graph that it ran, index into the rank's dfg_nodes; NO_ID:
                      none */
};

static inline int64_t span_end_ns(const struct trace_span *span)
{
    return span->start_ns + span->dur_ns;
}

/* A span of which no more is known. */
static inline struct trace_span span_at(enum span_kind kind, uint32_t name, uint32_t track,
                                        int64_t start_ns, int64_t end_ns)
{
    return (struct trace_span){.start_ns = start_ns,
                               .dur_ns = end_ns - start_ns,
                               .name = name,
                               .track = track,
                               .sequence = -1,
                               .detail = NO_ID,
                               .kind = (uint16_t)kind,
                               .parent = NO_ID,
                               .node = NO_ID};
}

enum sync_kind { SYNC_NONE, SYNC_EVENT, SYNC_STREAM_WAIT_EVENT, SYNC_STREAM, SYNC_DEVICE };

/* What only some spans have: sizes, communication metadata, what a sync waited for. */
struct trace_detail {
    uint64_t bytes; /* memcpy, memset: bytes moved; 0: unknown */
    uint64_t numel; /* elements of the first tensor input ("Input Dims"); for a list of tensors,
                       their sum;     communication: "In msg nelems". 0: unknown. Only kept for
                       communication ops and DDP's     bucket copies */
    uint32_t dtype; /* string id of the element type ("float", "Float", "c10::Half"), 0: unknown */
    uint32_t collective;        /* string id of "Collective name" */
    uint32_t process_group;     /* string id of "Process Group Name" */
    uint32_t group_ranks;       /* string id of "Process Group Ranks" as written, "[0, 1]" */
    uint32_t group_description; /* string id of "Process Group Description" */
    int32_t group_size;         /* "Group size"; 0: unknown */
    int32_t peer;               /* "Src Rank" or "Dst Rank" of a point-to-point op; -1: none */
    uint32_t key;               /* 1 + the key of a key-value store that is exchanged; 0: none */
    uint32_t call;              /* 1 + number of the recorder's mark around the call that asked for
                                   it, or of the one that is waited for; 0: none */
    int64_t comm_sequence;      /* "Seq" of the collective in its group; -1: unknown */
    int32_t sync;               /* enum sync_kind */
    int64_t wait_stream;        /* cuda_sync: wait_on_stream; -1: none */
    uint64_t wait_correlation;  /* cuda_sync: wait_on_cuda_event_record_corr_id; 0: none */
    struct arithmetic work;
};

/* Initializers of a detail of which no more is known than the fields that follow. */
#define DETAIL_UNKNOWN .peer = -1, .comm_sequence = -1, .wait_stream = -1

struct trace_track {
    bool gpu;
    bool pool;      /* a thread of an executor's pool: which of them runs an op is chance */
    bool posted;    /* transfers that a thread asked for and then went on: they overlap */
    bool announced; /* of these: they begin when they were posted, as a log tells */
    bool serial;    /* a thread of one library that runs its collectives one after the other */
    uint64_t pid;   /* CPU: process id; GPU: device number */
    int64_t id;     /* CPU: thread id; GPU: stream number */
    uint32_t name;  /* string id: the thread's or stream's name as the file gives it, may be "" */
    uint32_t first, n; /* its spans are spans[first .. first + n), sorted by start, longer first
                        */
};

/* fwdbwd: forward op -> backward op, by span index. */
struct trace_link {
    uint32_t from, to;
};

struct trace_window {
    uint32_t file;                        /* index into the trace's files */
    int64_t start_ns, end_ns;             /* first start, last end */
    int64_t whole_start_ns, whole_end_ns; /* of a session's step: of all its processes */
    bool is_cut;                          /* its file is damaged: it may end within an iteration */
    bool has_execution_trace; /* an ET refers to this window's record function ids: structure yes,
                                 times no */
};

/* A process group of the rank, as distributedInfo's pg_config or rank.json lists it. */
struct trace_group {
    uint32_t name; /* string id */
    uint32_t description;
    uint32_t n_ranks;
    int32_t *ranks; /* may be empty: then all ranks */
};

/* ET: a tensor as a node's input or output lists it. */
struct et_tensor {
    uint64_t storage, offset, numel;
    uint32_t item_bytes;
    uint32_t device; /* string id, "cuda:0", "cpu" */
};

struct et_node {
    uint32_t name;      /* string id */
    uint32_t record_fn; /* rf_id, 0: none */
    uint64_t id, parent;
    uint32_t first_input, n_inputs; /* into rank->et_tensors, tensors only, lists flattened */
    uint32_t first_output, n_outputs;
    uint32_t span;            /* the Kineto span it is, NO_ID when none was found */
    uint32_t thread;          /* as the execution trace numbers them, from 1; 0: unknown */
    uint32_t pointwise_batch; /* of a convolution with a kernel of one element and a stride of one:
                                 the samples of its input; 0: it is none, or shapes are not said */
    uint32_t n_heads;         /* of attention, that queries and keys have a multiple of; 0 */
    uint32_t text_inputs; /* of a node that names its group: string id of the raw JSON text of its
                             inputs' values; 0: none */
};

/* A node of the graph that a framework's executor runs: a partition graph of TensorFlow, an
 * executor of MXNet. */
struct dfg_node {
    uint32_t name;   /* string id: the framework's own, one node each in a rank's graph */
    uint32_t type;   /* string id of the kind of op: "MatMul", "_Recv", "_backward_Convolution" */
    uint32_t device; /* string id as the framework writes it; 0: not said */
    uint32_t key; /* string id: what both ends of a transfer, or all members of a collective, call
                     it; 0: none */
    uint32_t first_input, n_inputs; /* into the rank's dfg_inputs, in the order of its arguments */
    uint64_t size_bytes;            /* of the first tensor that it makes; 0: not known */
};

struct dfg_input {
    uint32_t node;   /* index into the rank's dfg_nodes */
    uint16_t output; /* which of the tensors that it makes, from 0 */
    bool control;    /* order only, no tensor */
};

/* A block of memory that a thread took, or gave back, as the profiler saw it. */
struct trace_allocation {
    int64_t ns;
    uint64_t address; /* 0: not said, as by profilers of 2021 */
    int64_t bytes;    /* above 0: taken; below: given back. The sum over a rank fits 64 bits, in any
                         order */
    uint32_t track;   /* of the thread; NO_ID: unknown */
    int32_t device;   /* number of the GPU; -1: memory of the CPU */
    uint32_t window;  /* NO_ID: in none; a snapshot also tells of the time between them */
    int64_t allocated_bytes, reserved_bytes; /* by the device's allocator, right after; -1: not
                                                said. Of a CPU, since the profiler began */
};

/* A module's forward, as dpro's recorder marked it. */
struct trace_module_call {
    int64_t start_ns, end_ns;
    uint32_t module; /* string id, "blocks.0"; "": the model itself */
    uint32_t track, window;
};

/* What memory.json of dpro's recorder says (doc/formats/trace-directory.md): what the rank held
 * when the execution trace began. */
struct held_block {
    uint8_t category; /* enum dpro_memory_category */
    uint32_t name;    /* string id: of the parameter, ...; "" */
    uint64_t address; /* 0: not known */
    uint64_t size_bytes;
};
struct held_allocated {
    uint64_t address, size_bytes;
};
struct held_module {
    uint32_t name, class; /* string ids: "blocks.0.norm1", "LayerNorm" */
};
struct held_memory {
    struct held_block *blocks;        /* an address once */
    struct held_module *modules;      /* in the model's order, outer ones first */
    struct held_allocated *allocated; /* blocks of the device's allocator as the last step begins;
                                         none: not known */
    uint32_t n_blocks, n_modules, n_allocated;
    int32_t device;                      /* number of the GPU; -1: the CPU */
    uint64_t capacity_bytes;             /* 0: not known */
    struct allocator_settings allocator; /* of a GPU */
    bool is_cut;                         /* the file is damaged: blocks may be missing */
    bool of_last_step; /* what was freed before the window's last step began is left out */
};

struct trace_rank {
    int rank;
    int world_size;   /* 0: the file does not say */
    uint64_t pid;     /* process id of the CPU side, 0: unknown */
    uint32_t host;    /* string id of host_name; 0: unknown */
    uint32_t backend; /* string id of distributedInfo.backend */
    uint32_t device;  /* string id of its GPU's name; 0: not known */
    bool in_session;  /* its windows are a session's steps, each of all processes together */
    struct trace_track *tracks;   /* a block of its own, as are all that RANK_PUSH() adds to */
    struct trace_window *windows; /* ascending in time */
    struct trace_span *spans;     /* by track, then start */
    struct trace_detail *details;
    struct trace_link *links; /* fwdbwd */
    struct trace_group *groups;
    struct et_node *et_nodes; /* in file order */
    bool et_is_cut;           /* their file is damaged: later ones may be missing */
    struct et_tensor *et_tensors;
    struct dfg_node *dfg_nodes;
    struct dfg_input *dfg_inputs;
    struct trace_allocation *allocations;         /* by time */
    struct trace_module_call *module_calls;       /* by start, outer ones first */
    struct held_memory *held;                     /* NULL: there is no memory.json */
    struct allocator_settings *snapshot_settings; /* NULL: there is no snapshot */
    struct recording *recording; /* what dpro's recorder wrote of the rank; NULL: nothing */
    struct timeline *timeline;   /* what its communication layer wrote; NULL: nothing */
    struct fused_rank fused;     /* where the trace has a fusion */
    struct comm_runs runs;       /* while it is loaded, where there are logs */
    struct rank_logged logged;
    uint32_t n_tracks, n_windows, n_spans, n_details, n_links, n_groups, n_et_nodes, n_et_tensors;
    bool links_tell_all; /* nothing waits for what no link or thread says */
    uint32_t n_dfg_nodes, n_dfg_inputs;
    uint32_t n_allocations, n_module_calls;
    int process; /* that has its spans and what else is the rank's alone; 0: this one */
};

struct dpro_trace {
    struct arena arena;
    struct strtab names;
    struct trace_rank *ranks; /* ascending */
    uint32_t n_ranks;
    struct trace_rank *servers; /* profiles of processes that are no ranks, numbered as
                                   net_process_* does; ascending */
    uint32_t n_servers;
    struct net_transport *transports; /* by rank, also of ranks that have no profile; then those of
                                         processes that are no ranks */
    uint32_t n_transports;
    struct dpro_transport_info transport_info;
    struct nccl_log **nccl_logs;
    uint32_t n_nccl_logs;
    struct fusion *fusion;      /* what Horovod fused; NULL: nothing tells */
    struct dpro_probes *probes; /* NULL: there are none */
    struct stage_table *stages; /* of a stage timeline; NULL: it is none */
    struct dpro_unprofiled unprofiled;
    struct slow_ones unprofiled_ones; /* of the same steps; where they recur, of the first rank's */
    struct dpro_file_info *files;
    uint32_t n_files;
    const char *framework;            /* static; NULL: the files' kinds tell */
    struct dpro_processes *processes; /* that have some of the ranks; NULL: all are here */
    int world_size;
    uint32_t n_misnamed; /* ranks whose keys are not the parameters that are known; the first */
    int first_misnamed;
    ARRAY(char *) warnings; /* in the arena */
};

void trace_free_spans(struct trace_rank *rank); /* and details */

/* Whether another process has its spans. */
static inline bool rank_is_elsewhere(const struct trace_rank *rank)
{
    return rank->process != 0;
}

/* The rank of that number; NULL: it has no profile. */
static inline struct trace_rank *trace_rank_of(const struct dpro_trace *trace, int number)
{
    for (uint32_t r = 0; r < trace->n_ranks; r++)
        if (trace->ranks[r].rank == number)
            return &trace->ranks[r];
    return NULL;
}

/* The window that a time lies in; NO_ID: none. */
static inline uint32_t trace_window_at(const struct trace_rank *rank, int64_t ns)
{
    for (uint32_t w = 0; w < rank->n_windows; w++)
        if (rank->windows[w].start_ns <= ns && ns <= rank->windows[w].end_ns)
            return w;
    return NO_ID;
}

/* A transfer's key, "edge_5_x /job:ps/... /job:worker/...": whether the two devices are of
 * different tasks. */
bool trace_key_leaves_task(const char *key);

/* Adds a line to the trace's warnings and to the sink. */
void trace_warn(struct dpro_trace *trace, const struct dpro_sink *sink, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
