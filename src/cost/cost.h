/* cost/cost.h: from a recorded graph to a model (cost/model.h), inside the library. */
#ifndef COST_COST_H
#define COST_COST_H

#include "base/array.h"
#include "cost/model.h"
#include "graph/graph.h"

/* ---- measured_replay.c: the recorded iterations, replayed ---- */

struct measured_replay {
    const struct dpro_graph *graph;
    uint32_t n_copies, first, n; /* copies [first, first + n) are the measured iterations in their
                                    order, or of mean durations where there are no others */
    int64_t **end_ns;            /* [copy][op] */
    uint32_t **device_prev;      /* [copy][op] */
    const int64_t **dur_ns, **gap_ns; /* [copy][op]; borrowed from the graph, or
                                         shared_dur_ns[copy]; gap_ns[copy] may be NULL */
    int64_t **shared_dur_ns;          /* [copy]: as in struct replay_copy */
};

int measured_replay_run(const struct dpro_graph *graph, struct measured_replay *replay,
                        struct dpro_error *err);
void measured_replay_fini(struct measured_replay *replay);

static inline int64_t measured_start_ns(const struct measured_replay *r, uint32_t copy, uint32_t op)
{
    return r->end_ns[copy][op] - r->dur_ns[copy][op];
}

/* ---- check.c: what a model needs ---- */

/* A worker's push of a key to its server and the pull of it. */
bool is_exchange(const struct dpro_graph *graph, const struct graph_collective *collective);
/* Of the first rank, communicated with all others. */
bool is_gradient(const struct dpro_graph *graph, const struct graph_tensor *tensor);

/* ---- coarsen.c: a rank's ops as a program ---- */

/* Where a rank's computation meets communication: gradients get ready, or it waits for one. */
struct sync_point {
    uint32_t op;     /* NEED: that waits; else the tensor is ready after it */
    uint32_t tensor; /* of the model; NEED: first of the bucket */
    bool needs;
    int64_t when_ns; /* mean, to order them */
    bool next;       /* NEED: the op is of the iteration after */
};

/* What was seen between a sync point and the one before it, in one iteration. */
struct segment {
    int64_t elapsed_ns;    /* waiting left out */
    int64_t overlapped_ns; /* of these something was on the rank's wires */
};

struct coarse_rank {
    ARRAY(struct sync_point) sync_points; /* in the order in which they come */
    uint64_t *family;                     /* of the segment before each: the same work, if equal */
    struct segment *segments;             /* [iteration * sync_points.n + sync_point] */
    int64_t copy_back_ns; /* mean: work from the first wait to the last bucket's copying */
    bool drains;          /* it waits for all buckets one after the other, and for nothing
                             before the last gradient */
};

struct coarse {
    struct coarse_rank *ranks;
    uint32_t *bucket_of; /* by tensor: the graph's collective; of a session its own number */
    uint32_t *ready; /* [rank * n_tensors + tensor] the op after which it is; DPRO_NO_OP: none */
    uint32_t *server_of; /* of a session, by tensor; NULL: no session */
    int64_t *sent_ns;    /* of a session, as `ready`: see struct model_rank */
};

/* Finds the tensors of the model and what each rank does between them. */
int coarsen(const struct measured_replay *replay, struct dpro_model *model, struct coarse *coarse,
            struct dpro_error *err);
void coarse_fini(struct coarse *coarse, uint32_t n_ranks);

/* ---- session.c: the tensors of a session ---- */

bool session_is(const struct dpro_graph *graph);
/* Whether any variable goes to all ranks and back; -1: out of memory. */
int session_has_variables(const struct dpro_graph *graph);
/* Fills in the model's tensors, what coarse says of them, and 1 + the tensor for each op that pulls
 * one. -1: out of memory. */
int session_tensors(const struct measured_replay *replay, struct dpro_model *model,
                    struct coarse *coarse, uint32_t *is_transfer);

/* ---- servers.c: who the parameter servers are, and what they do ---- */

int fit_servers(const struct measured_replay *replay, const struct coarse *coarse,
                struct dpro_model *model);
int fit_session(const struct measured_replay *replay, struct dpro_model *model);
/* How a bucket of the graph went: in so many parts, the first of them to that server. */
void baseline_placement(const struct dpro_graph *graph, uint32_t collective,
                        struct strategy_bucket *bucket);

/* ---- reductions.c: what all-reduces cost that run one after the other ---- */

/* With those of Horovod's its cycles are known, too. 0: too few were seen; 1: they were enough; -1:
 * out of memory. */
int fit_reductions(const struct measured_replay *replay, const struct coarse *coarse,
                   const struct dpro_model *model, struct model_net *net);

/* ---- fit.c: what communicating costs ---- */

int fit_net(const struct measured_replay *replay, const struct coarse *coarse,
            struct dpro_model *model, struct dpro_error *err);

#endif
