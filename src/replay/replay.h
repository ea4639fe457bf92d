/* The parts of a replay, inside the library.
 *
 * The iterations of a job are replayed as copies 0, 1, ... of the graph, joined by its next-edges,
 * with device clocks that carry on. An engine asks for the durations of a copy when it first
 * touches the copy, and hands over the end times when its last op has run. Copies open and close
 * nearly in order, and few are open at once, so a thousand need no more memory than three. */
#pragma once

#include <dpro/replay.h>

#include "graph/graph.h"

/* A replayed copy; arrays by op id. start = end - dur. */
struct replay_copy {
    uint32_t number;
    int64_t *end_ns;
    uint32_t *device_prev;          /* the op its device ran before; NULL unless wanted */
    const int64_t *dur_ns, *gap_ns; /* as given when it was opened; gap_ns may be NULL */
    int64_t *shared_dur_ns; /* with shared links: the durations that sharing gave; dur_ns points to
                               it. Else NULL */
};

struct replay_hooks {
    void *arg;
    /* Lends a copy's durations until the copy is closed; *gap_ns may be left NULL: all zero. */
    void (*open)(void *arg, uint32_t copy, const int64_t **dur_ns, const int64_t **gap_ns);
    /* To keep end_ns, device_prev or shared_dur_ns, set the field NULL and free the array later. */
    void (*close)(void *arg, struct replay_copy *copy);
};

/* ---- event_engine.c ---- */

struct event_options {
    uint32_t n_copies;
    uint32_t n_needed;         /* the replay is over when so many are closed; 0: all */
    const int64_t *release_ns; /* by rank index: when the first copy's ops without predecessors are
                                  ready; NULL: 0 */
    uint32_t first_prev, end_prev; /* copies of which device_prev is wanted, the latter not included
                                    */
    uint32_t
        *order; /* out: the order of dispatch in copy 0; room for n_ops ids. NULL: not wanted */
};

void event_replay(const struct dpro_graph *graph, const struct event_options *options,
                  const struct replay_hooks *hooks);

/* Whether the edges have each device's ops, by id, in a chain; unless there is one copy only, it
 * goes on in the next. In the arena, with true behind the last for ops without a device. */
bool *edge_ordered_devices(const struct dpro_graph *graph, bool one_copy, struct arena *arena);

/* ---- delayed_graph.c: what `--delay` means to a replay and to a model alike ---- */

/* Copies the graph's durations into the arena, those of the mean and of each measured iteration,
 * and the gaps before ops where asked for, and has an iteration's changed at a time. */
typedef void times_change(void *arg, bool gaps, int64_t *ns);
void graph_change_times(struct dpro_graph *graph, bool gaps, times_change *change, void *arg,
                        struct arena *arena);
/* Makes *delayed of `graph` with other durations, of the mean and of every measured iteration, as
 * the options say (struct dpro_replay_options). `pace`: the caller will multiply all times by it,
 * so milliseconds of the options are divided by it; else 1. Its durations are in the arena; all
 * else is borrowed from `graph`, and it must not be destroyed. */
void delayed_graph(const struct dpro_graph *graph, const char *const *options, size_t n,
                   double pace, struct arena *arena, struct dpro_graph *delayed);

/* ---- critical.c ---- */

struct pull { /* edges by their target: predecessors of op i are pred[row[i] .. row[i + 1]) */
    uint32_t *row, *pred;
};
struct pull pull_make(uint32_t n, const uint32_t *row, const uint32_t *succ, struct arena *arena);

struct critical_span {
    const struct replay_copy *copies; /* by number; end_ns NULL where it was not kept */
    uint32_t n_copies;
    uint32_t copy, op; /* the path's last op */
    int64_t start_ns;  /* the path's start; it ends with the last op */
};

/* The path in `arena`, first op first, with times from span->start_ns. */
struct dpro_critical_op *critical_find(const struct dpro_graph *graph,
                                       const struct critical_span *span, struct arena *arena,
                                       uint32_t *n);

/* ---- breakdown.c ---- */

/* Whether its time counts as that of a transfer. */
bool breakdown_is_transfer(enum dpro_op_kind kind);

struct breakdown_span {
    const struct replay_copy *copies; /* by number; end_ns NULL where it was not kept */
    uint32_t n_copies;
    const int64_t *from_ns, *to_ns; /* by rank index: the time to account for */
    uint32_t n_iterations;          /* in that time: results are means over them */
    uint32_t first_iteration;       /* the copy that is the first of them */
    const int64_t *boundary_ns;     /* by copy and rank: its end; NULL: there is one iteration */
};

/* `dimensions`: of each rank 1 + the graph's number of dimensions; the first for communication that
 * is in none. lateness[iteration * n_ranks + rank], and of_iterations and waited_for_ns where they
 * are not NULL. */
void breakdown_fill(const struct dpro_graph *graph, const struct breakdown_span *span, int threads,
                    struct dpro_rank_time *ranks, struct dpro_dimension_time *dimensions,
                    struct dpro_lateness *lateness, struct dpro_rank_time *of_iterations,
                    int64_t *waited_for_ns);

/* ---- replay_memory.c ---- */

/* The memory of each rank, in `arena`, by when ops start and end. */
struct dpro_rank_memory *replay_memory(const struct dpro_graph *graph, const int64_t *start_ns,
                                       const int64_t *end_ns, struct arena *arena);

/* ---- reserved_memory.c ---- */

struct reserved_memory {
    uint64_t peak_bytes;    /* 0: not known */
    uint64_t refused_bytes; /* size of the first request that does not fit; 0: none */
    uint32_t refused_op;    /* DPRO_NO_OP: before the iteration */
};

/* The settings of a GPU's allocator. */
enum dpro_allocator_settings reserved_settings(const struct graph_memory *memory);
/* Those that are simulated: the defaults where they are not known. */
struct allocator_settings reserved_simulated(const struct graph_memory *memory);
/* What it reserves of the device, with the moments in the given order. */
struct reserved_memory reserved_memory(const struct dpro_graph *graph,
                                       const struct graph_memory *memory, const uint32_t *moments,
                                       uint32_t n);
