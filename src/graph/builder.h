/* Making a graph op by op. Samples, collectives, tensors, clocks and measured times are set on the
 * finished graph, with memory from graph->arena; whoever made it may change it until it is handed
 * on. Lack of memory, or of room for more ops, ends the caller's scope. */
#pragma once

#include "graph/graph.h"

/* As dpro_graph_build, but takes the trace apart: what became ops is freed at once. */
int graph_build_from(struct dpro_trace *trace, const struct dpro_job_options *options,
                     struct dpro_graph **graph, struct dpro_error *err);

/* Add devices first, then ops rank by rank, then edges, then finish. All ids are given out in order
 * from 0. */
struct graph_builder *graph_builder_create(void);
dpro_device_id graph_builder_add_device(struct graph_builder *builder, enum dpro_device_kind kind,
                                        int rank, const char *name);
/* What the ids of names are of; the graph's in the end. */
struct strtab *graph_builder_names(struct graph_builder *builder);
/* `rank` is its number in the job; the row's is not read. An op on a GPU's stream has GRAPH_OP_GPU,
 * too. A rank's last GRAPH_OP_BOUNDARY op is its boundary; if the graph has edges into the next
 * iteration, finish adds one from there to each of the rank's ops that would wait for nothing. */
dpro_op_id graph_builder_add(struct graph_builder *builder, int rank, const struct graph_op *row);
void graph_builder_add_edge(struct graph_builder *builder, dpro_op_id from, dpro_op_id to,
                            bool next);
/* The graph; the builder is gone then. No op may wait for itself within an iteration. */
struct dpro_graph *graph_builder_finish(struct graph_builder *builder);

/* What the ends of ops may reach: sums of durations stop here instead of overflowing. */
#define GRAPH_TIME_MAX (INT64_MAX / 2)

static inline int64_t graph_clamp_ns(int64_t ns)
{
    return ns < 0 ? 0 : ns > GRAPH_TIME_MAX ? GRAPH_TIME_MAX : ns;
}
