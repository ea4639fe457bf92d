/* XSpace while it is read: what its planes call things, for xplane_names.c that reads the names and
 * xplane.c that reads the events. */
#pragma once

#include "adapters/tensorflow/tf_parts.h"
#include "adapters/tensorflow/xla.h"

enum { NO_META = UINT32_MAX, N_CACHED = 4096 };

/* Statistics that are wanted, by name. */
enum stat {
    STAT_OTHER,
    STAT_STEP_NUM,
    STAT_GROUP_KEY,
    STAT_INSTANCE_KEY,
    STAT_CORRELATION,
    STAT_MEMCPY,
    STAT_PROFILE_START,
    STAT_RUN,
    STAT_RUN_OF_WAIT,
    STAT_NAME,
    STAT_HLO_OP,
    STAT_DEVICE,
    STAT_PROGRAM,
    STAT_PROGRAM_RUN,
    N_STATS,
};

/* What an event is, by the name that its metadata gives it. */
enum use {
    USE_NOTHING,    /* plumbing */
    USE_OP,         /* node:Type */
    USE_RUN,        /* a call of the executor */
    USE_COLLECTIVE, /* node:CollectiveReduceV2 and kin */
    USE_MARK,       /* a range that the job drew; a step if it has a number */
    USE_MAYBE_CALL, /* plumbing, unless its statistics say that it is a call */
    USE_CALL,       /* into the GPU's driver: named for it, or for the kernel that it launches */
    USE_KERNEL,
    USE_MEMCPY,
    USE_MEMSET,
    USE_XLA,       /* of a device's own plane: what it is, its line tells */
    USE_RUN_WHOLE, /* of a session, by this process */
    USE_MOMENT,    /* of a run; plus an enum session_moment_kind */
};

struct xplane_meta {
    uint32_t name; /* string id: the node's, without its type */
    uint32_t type; /* string id; 0: none; of USE_XLA: the instruction's text */
    uint8_t use;
};

enum plane_kind {
    PLANE_OTHER,
    PLANE_HOST,
    PLANE_CALLS,
    PLANE_GPU,
    PLANE_XLA, /* a TPU */
    PLANE_TASK,
    PLANE_VERSIONS
};

struct xplane_plane {
    enum plane_kind kind;
    uint64_t device;       /* of a GPU or TPU */
    bool has_calls;        /* its events have correlation ids */
    bool in_session;       /* its process took part in runs of a session */
    struct map events;     /* mixed metadata id -> index into metas */
    struct map stats;      /* mixed metadata id -> enum stat */
    struct map stat_texts; /* mixed metadata id -> string id: values that are references */
};

/* Ids are small numbers in a row, as the profiler gives them. */
struct xplane_cached {
    uint64_t id;
    uint32_t plane; /* its number, + 1 */
    uint32_t meta;  /* index; NO_META: plumbing */
};

struct xplane {
    struct pb pb;
    struct trace_part *part;
    ARRAY(struct xplane_plane) planes; /* in file order */
    ARRAY(struct xplane_meta) metas;
    struct xplane_cached cache[N_CACHED]; /* at id % N_CACHED */
    struct xla xla;
    uint64_t n_ops; /* of TensorFlow's executor */
    uint32_t host;  /* string id */
    bool is_jax;
    bool has_devices; /* with planes of their own, that only XLA has programs for */
};

/* One event's own statistics. */
struct xplane_event {
    uint64_t offset_ps, dur_ps;
    uint64_t values[N_STATS];
    uint32_t texts[N_STATS]; /* string ids */
    bool has[N_STATS];
};

/* xplane_names.c: the first pass over a plane: what it is and what things are called in it. */
void xplane_read_names(struct xplane *x, const struct pb_field *message);
