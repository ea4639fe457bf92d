/* What the library may do to a graph under construction beyond the public dpro_graph_builder_*
 * calls. Samples, collectives, tensors, clocks and measured times are set on the finished graph,
 * with memory from graph->arena. The builder's caller may change the graph until it hands it on. */
#pragma once

#include "graph/graph.h"

/* As dpro_graph_build, but takes the trace apart: what became ops is freed at once. */
int graph_build_from(struct dpro_trace *trace, const struct dpro_job_options *options,
                     struct dpro_graph **graph, struct dpro_error *err);

/* The public calls of these names without a memory scope of their own, for callers that are in
 * one. Lack of memory, or of room for more ops, ends that; what is negative is wrong usage. */
struct dpro_graph_builder *graph_builder_create(void);
int64_t graph_builder_add_device(struct dpro_graph_builder *builder, enum dpro_device_kind kind,
                                 int rank, const char *name);
int64_t graph_builder_add_op(struct dpro_graph_builder *builder, const struct dpro_op *op);
int graph_builder_add_edge(struct dpro_graph_builder *builder, dpro_op_id from, dpro_op_id to,
                           int next);
int graph_builder_finish(struct dpro_graph_builder *builder, struct dpro_graph **graph,
                         struct dpro_error *err);

/* The string id of a name. */
uint32_t graph_builder_add_name(struct dpro_graph_builder *builder, const char *name);
/* The same as graph_builder_add_op for a caller who has string ids already: name and tensor of *op
 * are ignored. */
int64_t graph_builder_add(struct dpro_graph_builder *builder, const struct dpro_op *op,
                          uint32_t name, uint32_t tensor);

/* enum graph_op_flag bits to add. A new op has GRAPH_OP_GPU if its device is a GPU stream, and
 * nothing else. A rank's last GRAPH_OP_BOUNDARY op becomes ranks[].boundary at finish; if the graph
 * has edges into the next iteration, finish adds one from there to each of the rank's ops that
 * would wait for nothing. */
void graph_builder_flag(struct dpro_graph_builder *builder, dpro_op_id op, uint8_t flags);
/* What the ends of ops may reach: sums of durations stop here instead of overflowing. */
#define GRAPH_TIME_MAX (INT64_MAX / 2)

static inline int64_t graph_clamp_ns(int64_t ns)
{
    return ns < 0 ? 0 : ns > GRAPH_TIME_MAX ? GRAPH_TIME_MAX : ns;
}

/* Fails with DPRO_EUSAGE where an op waits for itself within an iteration. */
int graph_check_acyclic(const struct dpro_graph *graph, struct dpro_error *err);
