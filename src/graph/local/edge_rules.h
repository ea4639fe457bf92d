/* The rules by which ops of a rank wait for each other. A rule may change the times that it uses: a
 * call that waited for work keeps only what came after. */
#pragma once

#include "graph/rank_build.h"

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
