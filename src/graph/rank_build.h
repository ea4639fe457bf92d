/* The steps from a trace to the global data-flow graph.
 *
 * Each rank is built alone and in parallel (steps, ops, local). Then the ranks are joined
 * (collectives, clocks, messages, servers) and written into one struct dpro_graph (global).
 *
 * - A *slice* is one stretch of a track in which the same span is innermost.
 * - The *reference iteration* is the one whose slices become the graph's ops.
 * - An *op* is a slice of the reference iteration with the slices of the other measured iterations
 *   that are the same work. These are its *samples*. */
#pragma once

#include <dpro/graph.h>

#include "graph/graph.h"
#include "graph/ops/sequence_match.h"
#include "ingest/trace.h"

enum { LEFT_OUT_TEXT = 200 };

#define ABSENT INT64_MIN /* a time that was not measured */

/* Old traces count whole microseconds: a start and a duration, each rounded. */
enum { CLOCK_ROUNDING_NS = 2000 };

/* What an iteration of a rank holds. */
struct step_content {
    int64_t ns, cpu_ns;             /* how long it took; as the CPU's marks say */
    int64_t n_ops, n_works;         /* on CPU threads; on devices, of calls that were recorded */
    int64_t n_kernels;              /* of the latter */
    int64_t n_before, before_ns;    /* device work of calls made before the recording */
    int64_t n_lost;                 /* calls that launch, of which no device work was recorded */
    int64_t n_meetings;             /* collectives and optimizer steps */
    int64_t n_waits;                /* calls that wait for the GPU */
    int64_t n_collectives, left_ns; /* when the last of these ended */
};

/* One iteration of one rank in one window. Bounds are on the rank's clock. */
struct step {
    int64_t start_ns, end_ns;
    int64_t program_start_ns, program_end_ns; /* bounds of the main thread's part; they differ only
                                                 if it asks an engine for work */
    int64_t device_ns; /* its duration on the GPU, if iterations are measured there */
    int64_t before_ns; /* then, when that had done the work before it; ABSENT: not known */
    int64_t number;    /* the job's own number, or its position */
    uint16_t window;
    bool timed;   /* its times may be learnt from, as no execution trace was being recorded */
    bool follows; /* the step before it in the array is the iteration before it in the job */
    uint32_t n_micro_batches; /* backward passes before an update; 0: no update follows one */
    int64_t n_slices;
    uint64_t hash; /* of its slices, equal for iterations that ran the same */
    struct step_content holds;
};

/* An iteration that is left out, or would better be. */
struct left_out {
    int64_t number;
    uint32_t rank;   /* index of the rank that shows why */
    bool leads;      /* it leads up to the first iteration that is used */
    bool incomplete; /* it is nearly empty */
    bool kept;       /* it is used, as there is no other one */
    char reason[LEFT_OUT_TEXT];
};
typedef ARRAY(struct left_out) left_out_array;

/* Which part of its span a slice is. */
enum { SEGMENT_TAIL = (1 << 28) - 1 }; /* what remains of a blocking call once its work is done */

struct slice {
    int64_t start_ns, end_ns;
    uint32_t span;
    uint32_t segment : 28; /* 0, 1, ...: between the span's children; or SEGMENT_TAIL */
    uint32_t profiled_within : 2, profiled_before : 2; /* ops' starts and ends that the profiler
                         recorded in the slice, and between it and the one before on its thread */
    uint32_t launch; /* device work: the slice of the call that launched it; a call: its first
                        device work; NO_ID: none */
    uint32_t next;   /* device work: the next one of the same call; NO_ID: last */
};

/* Slices that are matched with each other between iterations: those of a CPU thread, of a stream,
 * or of all communication threads of a rank together, as it is chance which of them takes a
 * collective. */
struct track {
    uint8_t kind;    /* enum dpro_device_kind */
    uint32_t source; /* index into the trace's tracks; NO_ID: several */
    uint32_t *first; /* slices of step s are [first[s], first[s + 1]) */
};

struct local_op {
    uint32_t slice;  /* in the reference iteration; NO_ID for virtual ops */
    uint32_t name;   /* string id in the trace */
    uint32_t track;  /* NO_ID: none */
    uint32_t device; /* index into the rank's devices; NO_ID: virtual */
    uint8_t kind, phase, flags;
    uint8_t spare, profiled; /* as in struct dpro_graph */
    uint64_t size_bytes;
    uint32_t collective; /* index into the rank's collectives; NO_ID: none */
    uint32_t gather;     /* as in struct dpro_graph; units are the recording's buckets */
    uint32_t pass;       /* as in struct dpro_graph */
    uint32_t range,
        caller; /* string ids, 0: none: what the job says that it is at in the gap before
                   it, or around a call that waits for the GPU; the op that calls */
};

struct local_edge {
    uint32_t from, to;
    bool next; /* from the iteration before */
    bool soft; /* inferred from the timeline; dropped if it would close a cycle */
};

/* What goes to and comes from the peers of a kernel of several sends and receives. */
enum comm_passes {
    SENDS_TO_PEER = 1,
    RECEIVES_FROM_PEER = 2,
    SENDS_TO_SECOND = 4,
    RECEIVES_FROM_SECOND = 8
};

/* A rank's part in a collective. */
struct local_collective {
    uint32_t arrival, transfer; /* local ops */
    uint8_t kind;               /* enum dpro_collective_kind */
    uint32_t group;             /* string id, 0: not recorded */
    uint32_t group_ranks;       /* string id, "[0, 1]", 0: not recorded */
    uint32_t description;       /* string id of what the group is for, 0: not recorded */
    int32_t group_size;         /* 0: not recorded */
    int32_t peer;               /* point-to-point: the other rank; -1: not, or not recorded */
    int32_t second_peer;        /* of several calls in one kernel: another one; -1: there is none */
    uint8_t passes;             /* enum comm_passes, of several calls in one kernel */
    int64_t sequence;           /* -1: not recorded */
    uint32_t call;              /* as in struct trace_detail */
    uint32_t key;               /* 1 + its key in a key-value store; 0: none */
    uint64_t numel, size_bytes; /* 0: not recorded */
    uint32_t launch_span;       /* the framework's op that asked for it; NO_ID: unknown */
    uint32_t launch_name;       /* its name, a string id; 0: unknown */
    uint32_t launch_op;         /* its local op, where a CPU thread runs the collective; NO_ID */
    uint32_t bucket; /* the bucket that it carries, index into the recording's; NO_ID: unknown */
    uint8_t end;     /* enum comm_end */
    uint8_t phase; /* in which it was asked for: DPRO_OP_FW, BW, UPDATE, INPUT; BARRIER: unknown */
    uint32_t dimension; /* of the job's dimensions, once they are found; NO_ID: none */
    uint32_t members;   /* the ranks of its process group, of join.sets; NO_ID: unknown */
    uint32_t joined;    /* index of the job's collective, once the graph has them */
};

/* One end of a transfer between processes that the framework's graph lists: the op that makes or
 * takes it. */
struct local_transfer {
    uint32_t key; /* string id */
    uint32_t op;
};

struct local_tensor {
    uint32_t name;   /* string id, 0: none */
    uint32_t output; /* number of the named node's; without a name 1: a bucket as a whole */
    uint64_t size_bytes;
    uint64_t held_bytes; /* of the parameter, if its gradient is cast to be sent; else 0 */
    uint32_t in, out;    /* local ops */
    uint32_t collective; /* index into the rank's collectives */
};

/* What told where iterations begin; those behind RECORDED are guesses. */
enum step_source {
    STEPS_NONE,
    STEPS_MARKED,
    STEPS_SESSION,
    STEPS_RECORDED,
    STEPS_OPTIMIZER,
    STEPS_RANGES,
    STEPS_PASSES,
    STEPS_PERIOD
};

struct rank_build {
    const struct trace_rank *trace;
    const struct strtab *names; /* the trace's */
    const uint32_t *classes;    /* enum name_class of each string id */
    uint32_t all_classes;       /* what is not in it is no name's class */
    int threads;                /* that build it */

    struct {
        struct step *at; /* an array */
        size_t n, cap;
        enum step_source source;
        uint32_t mark;      /* string id of the mark, the optimizer's step or the range; 0: none */
        uint32_t n_updates; /* of each, if the optimizer's steps tell; 0: they don't, or some have
                               none */
        bool named;         /* the marks are those that --step-mark names */
        bool end_with_exchange; /* steps end where their last exchange begins */
        bool has_exchange;      /* of the first rank: servers answer in them */
        uint32_t n_beyond;      /* steps that were too many */
        uint32_t reference;     /* index of the reference iteration */
        uint32_t shown;         /* index of the one that is shown */
    } steps;
    uint32_t *sample_step; /* steps that every rank measured, in the job's order; from build.c */
    uint32_t n_samples;

    /* slices, until build_forget() */
    ARRAY(struct slice) slices;
    ARRAY(struct track) tracks;
    uint64_t *keys; /* by slice: equal for the same work, until slices are matched */
    uint32_t main_track;
    uint8_t *phases;         /* per span, see span_phases.c */
    struct map named_scopes; /* see comm_scopes.c */
    uint32_t *match;         /* slice of op o in step s at [s * n_timed + o]; NO_ID: absent */
    uint32_t *op_of_slice;   /* its reverse, while edges are searched; NO_ID: none */

    struct {
        uint32_t track; /* the stream that iterations are measured on; NO_ID: the CPU's marks */
        uint32_t first, last; /* local ops: the first and the last of an iteration on it */
        struct dpro_pace times;
    } pace;

    /* the local DFG */
    ARRAY(struct local_op) ops;
    ARRAY(struct local_edge) edges;
    ARRAY(struct graph_device) devices;
    ARRAY(struct local_collective) collectives;
    ARRAY(struct local_tensor) tensors;
    ARRAY(struct local_transfer) sends, receives;
    uint32_t boundary; /* local op */
    uint32_t n_timed;  /* ops that have times; virtual ones come after them */
    uint32_t n_slots;  /* the most ops that the pool's threads ran at once; 0: no pool */
    struct {
        uint32_t n;   /* updates of its own in an iteration; 0: servers update, or none */
        bool in_turn; /* they run in the order of their gradients, see update_edges.c */
    } updates;
    struct net_part *parts; /* see endpoints.h: of collective c in sample s at [c * n_samples + s];
                               NULL: no logs */

    /* times of op o in step s at [s * n_timed + o]; ABSENT: not measured */
    int64_t *start_ns, *end_ns;
    int64_t *free_ns; /* when the link of a session, Horovod's thread or that of the updates had
                         finished what came before the op; ABSENT: nothing did, or another kind of
                         op. NULL: no op has any */
    int64_t *seen_start_ns, *seen_end_ns; /* of op o in the iteration that is shown, uncut */

    uint32_t *unit_requests; /* by unit of the recording: the last op before its backward pass asks
                                for its parameters; NO_ID: it does not. NULL: no units */

    struct graph_memory *memory; /* see graph/memory; NULL: not known */

    struct family_work work[N_FAMILIES][N_PRECISIONS];

    bool in_16_bits;    /* see autocast_rules.c */
    bool lacks_strides; /* of convolutions, so that some of its work is not known */
    bool hides_phases;  /* of some kernels, as in CUDA graphs, nothing tells the phase: taken for
                         * forward
                         */
    bool lacks_gpu;     /* it launches kernels or calls NCCL, and no work of a GPU was recorded */
    ARRAY(struct grown_time)
    grown; /* what takes longer in a slow sample than usual; string ids are
              the trace's */

    /* for warnings */
    int64_t unmatched_ns; /* mean GPU work of an iteration that the reference iteration lacks */
    uint32_t n_bucket_conflicts; /* buckets on which recorder and profile disagree */
};

/* find_steps.c: finds the iterations. Steps come out ascending in time. */
void build_steps(struct rank_build *rank);

/* pulled_copies.c: finds MXNet's copies of pulled parameters. Adds to the map such a copy's span +
 * 1, and that of the exchange that it ends, each with the copy's end. */
void build_find_stores(const struct rank_build *rank, struct map *stored_ns);

/* step_contents.c: whether the work of the rank's GPU was left out of its recording. */
bool build_has_gpu(const struct trace_rank *trace); /* work of it was recorded */
/* It launches kernels or calls NCCL, and no work of a GPU was recorded. */
bool build_lacks_gpu(const struct trace_rank *trace, const struct strtab *names);

/* cut_slices.c: cuts the tracks into slices, track by track and step by step, and joins calls with
 * the device work they launch. Needs steps. */
void build_slices(struct rank_build *rank);

/* gpu_pace.c: finds whether the CPU runs ahead of its GPU, so that iterations are measured on the
 * GPU. Needs slices. build_pace_ops then finds the ops with which an iteration begins there. */
void build_pace(struct rank_build *rank);
void build_pace_ops(struct rank_build *rank);

/* Whether neither the iteration before it nor the one after it was recorded with it. */
static inline bool step_is_alone(const struct rank_build *rank, size_t step)
{
    return !rank->steps.at[step].follows &&
           (step + 1 == rank->steps.n || !rank->steps.at[step + 1].follows);
}

/* Of a step that was recorded alone and is measured on the GPU: its before_ns; else ABSENT. */
static inline int64_t step_before(const struct rank_build *rank, size_t step)
{
    bool has = rank->pace.track != NO_ID && step_is_alone(rank, step);
    return has ? rank->steps.at[step].before_ns : ABSENT;
}

/* When a step began and how long it took, between marks or on the GPU. */
int64_t build_step_begin(const struct rank_build *rank, uint32_t step);
int64_t build_step_ns(const struct rank_build *rank, uint32_t step);

/* span_phases.c: the phase of each CPU span (DPRO_OP_FW, BW, UPDATE, INPUT), by annotations,
 * autograd and position. */
void build_phases(struct rank_build *rank);

/* step_contents.c: what each step holds, from which is chosen. Needs slices and pace. */
void build_contents(struct rank_build *rank);
/* Keys of its slices; the caller frees them. */
void build_find_keys(struct rank_build *rank);

/* rank_ops.c: the ops of the reference iteration, and where each was found in every step. */
void build_ops(struct rank_build *rank);

/* rank_work.c: what it computes in an iteration. Needs slices. */
void build_sum_work(struct rank_build *rank);

void build_alloc_free_ns(struct rank_build *rank);

/* Adds an op without device and times; returns it. */
uint32_t build_push_virtual(struct rank_build *rank, uint8_t kind, uint64_t size_bytes);

/* Fills in what is unknown of *c from a span and those around it: kind, sizes, group, peer. */
void build_learn_collective(const struct rank_build *rank, uint32_t span,
                            struct local_collective *c);

/* comm_scopes.c: device work that communicates, by its own name or by what launched it. Needs
 * slices. */
void build_find_scopes(struct rank_build *rank);
bool build_communicates(const struct rank_build *rank, uint32_t slice);

/* edge_rules.c: edges within a rank, kept only where every measured iteration agrees. */
void build_local_edges(struct rank_build *rank);

/* horovod_tensors.c: the same of what Horovod fused, on a rank that has its thread. */
void build_fused_tensors(struct rank_build *rank, const struct fusion *fusion);

/* bucket_tensors.c: gradients, their buckets, In and Out ops. */
void build_tensors(struct rank_build *rank);

/* unit_gathers.c: what FSDP does to gather the parameters of its units. Sets ops' `gather`. Needs
 * collectives. */
void build_gathers(struct rank_build *rank);
/* What a span, or one around it, gathers, as GATHER(); 0: nothing. */
uint32_t build_gather_of(const struct rank_build *rank, uint32_t span, bool *copies_out);
enum unit_mark { UNIT_FORWARD_ENDS, UNIT_PREFETCHED, UNIT_BACKWARD_BEGINS, N_UNIT_MARKS };
/* Whether a span is a mark of a unit (index into the recording's buckets). */
bool build_unit_mark(const struct rank_build *rank, uint32_t span, enum unit_mark *mark,
                     uint32_t *unit);

/* pass_marks.c: which pass of a pipeline's stage each op is in. Sets ops' `pass`. */
void build_passes(struct rank_build *rank);
uint32_t build_marked_pass(const char *name); /* what the name of an annotation says; 0: nothing */

/* comm_thread_queue.c: edges of collectives that waited in a queue for one of several threads. Adds
 * virtual ops. */
void build_pool(struct rank_build *rank);

/* slow_steps.c: fills rank->grown, of iterations that take longer than the others. Before ops are
 * forgotten. */
void slow_steps_find(struct rank_build *rank);

/* job_ranges.c: fills `range` and `caller` of its ops. Before ops are forgotten. */
void build_where(struct rank_build *rank);

/* Frees what only the rank itself needed, once its edges are known: slices, tracks, matches,
 * phases. */
void build_forget(struct rank_build *rank);

/* The innermost span whose name is of one of these classes, of the span and those around it; NO_ID:
 * none is. */
static inline uint32_t build_within(const struct rank_build *rank, uint32_t span, uint32_t classes)
{
    while (span != NO_ID && !(rank->classes[rank->trace->spans[span].name] & classes))
        span = rank->trace->spans[span].parent;
    return span;
}

/* A key that a call and its device work share. Correlations may start again in each window. */
static inline uint64_t build_correlation_key(uint64_t correlation, uint16_t window)
{
    return map_mix(map_mix(correlation) + window) | 1;
}

/* Whether the span is a collective that its thread ran. */
static inline bool build_runs_collective(const struct rank_build *rank,
                                         const struct trace_span *span)
{
    return span->kind == SPAN_COLLECTIVE ||
           (span->kind == SPAN_ANNOTATION && (rank->classes[span->name] & NAME_COMM_RUN));
}

/* Whether a track is a thread of an executor's pool. Which of them runs an op is chance. */
static inline bool build_is_pool(const struct rank_build *rank, const struct track *track)
{
    return track->kind == DPRO_DEVICE_CPU_THREAD && track->source != NO_ID &&
           rank->trace->tracks[track->source].pool;
}

/* Whether its slices are matched in any order: those of a pool, or what came in from another
 * process. */
static inline bool build_is_unordered(const struct rank_build *rank, const struct track *track)
{
    return build_is_pool(rank, track) || track->kind == DPRO_DEVICE_LINK_RX;
}

/* Whether an op is an exchange with servers, which no device runs. The name alone does not suffice,
 * as a kernel may have any. */
static inline bool build_is_exchange(const struct rank_build *rank, uint32_t op)
{
    return rank->ops.at[op].device == NO_ID &&
           (rank->classes[rank->ops.at[op].name] & NAME_EXCHANGE);
}

static inline size_t build_at(const struct rank_build *rank, uint32_t step, uint32_t op)
{
    return (size_t)step * rank->n_timed + op;
}
static inline size_t build_sample_at(const struct rank_build *rank, uint32_t sample, uint32_t op)
{
    return build_at(rank, rank->sample_step[sample], op);
}

/* An op's times in a step, and in a sample. */
static inline int64_t *step_start(const struct rank_build *rank, uint32_t step, uint32_t op)
{
    return &rank->start_ns[build_at(rank, step, op)];
}
static inline int64_t *step_end(const struct rank_build *rank, uint32_t step, uint32_t op)
{
    return &rank->end_ns[build_at(rank, step, op)];
}
static inline int64_t *build_start(const struct rank_build *rank, uint32_t sample, uint32_t op)
{
    return step_start(rank, rank->sample_step[sample], op);
}
static inline int64_t *build_end(const struct rank_build *rank, uint32_t sample, uint32_t op)
{
    return step_end(rank, rank->sample_step[sample], op);
}

/* What the iterations say of an edge. It holds where in nine of ten `after` came after `before`,
 * and in none so much earlier that the edge would delay it by what can be seen. */
struct agreement {
    uint32_t n_seen, n_held;
    bool is_broken;
};
static inline void agreement_see(struct agreement *a, int64_t before_ns, int64_t after_ns,
                                 int64_t most_ns)
{
    if (before_ns == ABSENT || after_ns == ABSENT)
        return;
    a->n_seen++;
    a->n_held += after_ns >= before_ns - CLOCK_ROUNDING_NS;
    a->is_broken |= before_ns > after_ns && before_ns - after_ns > most_ns;
}
static inline bool agreement_holds(const struct agreement *a)
{
    return !a->is_broken && a->n_seen > 0 && a->n_held * 10 >= a->n_seen * 9;
}
/* A thousandth of a step. */
static inline int64_t step_trifle(const struct rank_build *rank, uint32_t step)
{
    return (rank->steps.at[step].end_ns - rank->steps.at[step].start_ns) / 1000;
}

static inline const struct trace_span *slice_span(const struct rank_build *rank, uint32_t slice)
{
    return &rank->trace->spans[rank->slices.at[slice].span];
}
