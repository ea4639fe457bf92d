/* Adding edges within a rank, and what the rules for them ask. */
#pragma once

#include "graph/ops/framework_graph.h"

/* When a predecessor ended, seen from `step`: in it, or in the one before. ABSENT: not measured. */
int64_t local_pred_end(const struct rank_build *rank, uint32_t step, uint32_t op, bool next);
/* The same of a device's work; in an iteration that lacks it, of the last before it on its track.
 */
int64_t local_work_end(const struct rank_build *rank, uint32_t step, uint32_t work, bool next);

/* Whether `to` started (or, with to_end, ended) after `from` had ended, wherever both were
 * measured. */
bool local_holds(const struct rank_build *rank, uint32_t from, uint32_t to, bool next, bool to_end);

void local_add_edge(struct rank_build *rank, uint32_t from, uint32_t to, bool next, bool soft);
/* Whether it holds, so that the edge was added. */
bool local_add_if_holds(struct rank_build *rank, uint32_t from, uint32_t to, bool next);

/* Adds an edge for a thread that waited for a collective on another thread. The running thread may
 * note the end only after the waiting one has gone on (milliseconds later if they share a core).
 * Then the transfer is cut to that moment. The edge is added if it holds in most iterations without
 * such cuts, or if it is `known`, as DDP's wait for each bucket. Returns whether it was added. */
bool local_add_completion(struct rank_build *rank, uint32_t transfer, uint32_t to, bool known);

/* `op` then ends when `after` begins, in every step. */
void local_cut_end(struct rank_build *rank, uint32_t op, uint32_t after);
/* Cuts a call that waits in every step to what comes after its work was over; where that work
 * was not recorded and the CPU runs ahead, as in the first step, to what usually comes. */
void local_cut_waiting(struct rank_build *rank, uint32_t call, uint32_t work, bool next);

/* The op that ends with the slice of `op`: for a collective its transfer. */
uint32_t local_end_op(const struct rank_build *rank, uint32_t op);

static inline int64_t local_start(const struct rank_build *rank, uint32_t op)
{
    return rank->start_ns[build_at(rank, rank->steps.reference, op)];
}

/* The first of a track's slices in a step that starts at `ns` or later; the end where none does. */
uint32_t local_first_from(const struct rank_build *rank, const struct track *track, uint32_t step,
                          int64_t ns);

/* Whether it is a slice of a CPU thread. */
static inline bool local_on_thread(const struct rank_build *rank, uint32_t op)
{
    uint32_t track = rank->ops.at[op].track;
    return track != NO_ID && rank->tracks.at[track].kind == DPRO_DEVICE_CPU_THREAD;
}

/* Whether a device is one of a pool of communication threads, on which order is chance. */
bool local_in_pool(const struct rank_build *rank, uint32_t device);

/* By op: the op before it on its device; NO_ID: none. The caller frees it. */
uint32_t *local_ops_before(const struct rank_build *rank);

/* Pairs span << 32 | op. */
typedef ARRAY(uint64_t) span_ops;

/* Adds the pairs of CPU ops found in `step`, not in order. */
void local_add_span_ops(const struct rank_build *rank, uint32_t step, span_ops *pairs);
/* First or last op of a span, by sorted pairs; NO_ID: none. */
uint32_t local_op_of_span(const span_ops *pairs, uint32_t span, bool want_last);

/* Whether the op is an update of a worker's own; these run in the order in which they are ready. */
bool local_is_update(const struct rank_build *rank, uint32_t op);
static inline bool local_is_in_turn(const struct rank_build *rank, uint32_t op)
{
    return rank->updates.in_turn && local_is_update(rank, op);
}

/* The op that takes the k-th of n reduced tensors. The optimizers of Horovod and BytePS for PyTorch
 * take them in the order in which they were handed over, each with a call of aten::set_. NO_ID:
 * there are not n calls. */
uint32_t local_nth_taken(const struct rank_build *rank, uint32_t k, uint32_t n);

/* Adds a tensor with its In op, after the op `from` (NO_ID: none), and its Out op, after `done`.
 * The result is borrowed until the next call. */
const struct local_tensor *local_add_tensor(struct rank_build *rank, struct local_tensor tensor,
                                            uint32_t from, uint32_t done);

/* A tensor that an op communicates, by the framework's graph. */
struct node_tensor {
    uint32_t name;       /* string id: of the node that made it */
    uint16_t output;     /* which of that node's */
    uint32_t from;       /* the op that made it; NO_ID: no op did */
    uint64_t size_bytes; /* 0: not known */
};
typedef ARRAY(struct node_tensor) node_tensors;

/* node_tensors.c: what a collective's node takes, and what was packed into that; none where the
 * graph does not say it. The caller frees it. */
node_tensors local_node_tensors(const struct rank_build *rank, uint32_t op);

/* ---- the rules by which ops of a rank wait for each other ----
 * One may change the times that it uses: a call that waited for work keeps only what came after. */
/* update_edges.c: matches a worker's own updates between steps; sets rank->updates. Then adds the
 * edges to them. */
void rule_sort_updates(struct rank_build *rank);
void rule_updates(struct rank_build *rank);

/* thread_edges.c: rank->op_of_slice, once slices are matched for good. Calls are over when their
 * work begins. */
void rule_index_slices(struct rank_build *rank);
void rule_trim_launches(struct rank_build *rank);
void rule_trim_copies(struct rank_build *rank);
/* Call -> the collective that it asked for; one op of a device after the other; a collective's
 * arrival -> its transfer. */
void rule_comm_launches(struct rank_build *rank);
void rule_device_order(struct rank_build *rank);
void rule_transfers(struct rank_build *rank);
/* The main thread's last op -> boundary -> its first op. */
void rule_thread_boundary(struct rank_build *rank);

/* comm_waits.c: a collective -> the call that waits for it. */
void rule_comm_waits(struct rank_build *rank);

/* handovers.c: an idle thread goes on when another one falls idle. */
void rule_handovers(struct rank_build *rank);

/* gpu_edges.c: launch -> work, stream waits, synchronization, blocking copies. */
void rule_gpu(struct rank_build *rank);

/* engine_edges.c: an engine's work -> the call that waits for it; gradient -> exchange with
 * servers; exchange -> the op that takes what was pulled. */
void rule_host_waits(struct rank_build *rank);
void rule_exchanges(struct rank_build *rank);
void rule_takers(struct rank_build *rank);
void rule_exchange_boundary(struct rank_build *rank);

/* executor_edges.c: how many ops a pool's threads ran at once at most: rank->n_slots. */
void rule_count_slots(struct rank_build *rank);
/* What begins and what ends an iteration, once all other edges are known. */
void rule_executor_boundary(struct rank_build *rank);

/* span_edges.c: forward -> backward as the profiler linked them; producer -> consumer by the
 * storages of the execution trace. */
void rule_links(struct rank_build *rank);
void rule_storages(struct rank_build *rank);

/* node_edges.c: producer -> consumer by the framework's own graph. */
void rule_nodes(struct rank_build *rank);
