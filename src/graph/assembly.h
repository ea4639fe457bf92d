/* graph/assembly.h: the graph under construction, between assemble.c, order.c and samples.c. */
#ifndef GRAPH_ASSEMBLY_H
#define GRAPH_ASSEMBLY_H

#include "graph/join.h"

struct edge {
    uint32_t from, to;
    bool next, soft; /* as in struct local_edge */
};

struct assembly {
    struct join *join;
    const struct dpro_trace *trace;
    uint32_t *first_op; /* a rank's first op; [n_ranks] is their number */
    uint32_t n_ops;
    uint32_t *meets;          /* op of each joined collective, or DPRO_NO_OP */
    uint32_t *first_device;   /* of each rank */
    ARRAY(struct edge) edges; /* by where they end, once they are ordered */
    uint32_t *order;          /* ops in topological order */
    uint32_t n_samples;
    struct dpro_graph *graph;
};

uint32_t assembly_rank_of(const struct assembly *a, uint32_t op);

/* Where a rank's times of an op in a step are. */
static inline size_t assembly_at(const struct rank_build *rank, uint32_t step, uint32_t local)
{
    return (size_t)step * rank->n_timed + local;
}

/* The rank's step that a sample is. */
static inline uint32_t assembly_step(const struct assembly *a, uint32_t rank, uint32_t sample)
{
    return a->join->ranks[rank].sample_step[sample];
}

/* to - from, 0 where that is negative, too large, or one of them was not measured. */
int64_t assembly_span(int64_t from, int64_t to);

/* order.c: all edges of all ranks and collectives, without cycles, and the ops' order by them.
 * Where edges close a cycle, those that were only read off the timeline are dropped; *dropped says
 * how many. -1: no memory. */
int assembly_order(struct assembly *a, uint32_t *dropped);

/* samples.c: durations and gaps of every op in every sample, and their means, into the graph. */
int assembly_time(struct assembly *a);

/* warnings.c: notes in the graph what was assumed, missing or left out, and tells the sink. */
int assembly_warn_clocks(struct assembly *a, const struct dpro_graph_options *options);
int assembly_warn(struct assembly *a, const struct dpro_graph_options *options, uint32_t dropped);

#endif
