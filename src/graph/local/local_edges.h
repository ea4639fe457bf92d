/* graph/local/local_edges.h: what local_edges.c, gpu_edges.c and storage_edges.c share. */
#ifndef GRAPH_LOCAL_EDGES_H
#define GRAPH_LOCAL_EDGES_H

#include "graph/names/span_names.h"
#include "graph/rank_build.h"

/* Old traces count whole microseconds: a start and a duration, each rounded. */
enum { LOCAL_ROUNDING_NS = 2000 };

/* When a predecessor ended, seen from `step`: in it, or in the one before. ABSENT: not measured. */
int64_t local_pred_end(const struct rank_build *rank, uint32_t step, uint32_t op, bool next);

/* Whether `to` started (or, with to_end, ended) after `from` had ended, wherever both were
 * measured. */
bool local_holds(const struct rank_build *rank, uint32_t from, uint32_t to, bool next, bool to_end);

int local_add_edge(struct rank_build *rank, uint32_t from, uint32_t to, bool next, bool soft);
int local_add_if_holds(struct rank_build *rank, uint32_t from, uint32_t to, bool next);

/* A thread waited for a collective that another thread ran. The running thread may note the end
 * only after the waiting one has gone on (when they share a core, milliseconds later): the transfer
 * is then cut to that moment. Kept if it holds in most iterations without that, or if it is
 * `known`, as DDP's wait for each bucket is. */
int local_add_completion(struct rank_build *rank, uint32_t transfer, uint32_t to, bool known);

/* The op whose end is the end of the slice that `op` stands for: a collective's transfer. */
uint32_t local_end_op(const struct rank_build *rank, uint32_t op);

/* Whether a device is one of a pool of communication threads, on which order is chance. */
bool local_in_pool(const struct rank_build *rank, uint32_t device);

/* Sorted pairs span << 32 | op of the CPU ops as found in `step`; the caller frees them. */
int local_span_ops(const struct rank_build *rank, uint32_t step, uint64_t **pairs, size_t *n_pairs);
uint32_t local_op_of_span(const uint64_t *pairs, size_t n, uint32_t span, bool want_last);

/* gpu_edges.c: launch -> work, stream waits, synchronization, blocking copies. */
int local_add_gpu_edges(struct rank_build *rank, const uint32_t *op_of_slice);

/* executor_edges.c: a framework's executor, whose pool of threads runs what is ready. */
bool local_has_executor(const struct rank_build *rank);
static inline bool local_is_pooled(const struct rank_build *rank, uint32_t op)
{
    uint32_t track = rank->ops.at[op].track;
    return track != NO_ID && build_is_pool(rank, &rank->tracks.at[track]);
}
/* How many ops its threads ran at once at most: rank->n_slots. */
int local_count_slots(struct rank_build *rank);
/* What begins and what ends an iteration, once all other edges are known. */
int local_add_executor_boundary(struct rank_build *rank);

/* framework_graph.c: producer -> consumer by the framework's own graph. */
int local_add_node_edges(struct rank_build *rank);

/* engine_edges.c: calls that wait for an engine's work, what exchanges with servers wait for, and
 * what waits for them. */
int local_add_engine_edges(struct rank_build *rank, const uint32_t *op_of_slice);
/* What ends an iteration that ends with an exchange. */
int local_add_exchange_boundary(struct rank_build *rank);

/* update_edges.c: finds which of a worker's own updates is which in every step; sets
 * rank->updates. */
int local_sort_updates(struct rank_build *rank);
/* Whether the op is one of them, which run in the order in which they are ready. */
bool local_is_in_turn(const struct rank_build *rank, uint32_t op);
/* What each of them waits for. */
int local_add_update_edges(struct rank_build *rank);

/* The optimizers of Horovod and BytePS for PyTorch take what was reduced in the order in which it
 * was handed over, each with a call of aten::set_: the k-th of n; NO_ID: the optimizer did not call
 * it n times. */
uint32_t local_nth_taken(const struct rank_build *rank, uint32_t k, uint32_t n);

/* storage_edges.c: producer -> consumer by the storages of the execution trace. */
int local_add_data_edges(struct rank_build *rank);

#endif
