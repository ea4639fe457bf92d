/* The dimensions of parallelism of a job, found from its process groups and what they carry.
 *
 * Dimensions are factors of the number of ranks, dp 2 x tp 4, but for those that lie over others:
 * experts may be spread over ranks that also replicate the rest of the model. */
#ifndef DPRO_DIMENSIONS_H
#define DPRO_DIMENSIONS_H

#include <stdint.h>

#include <dpro/graph.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What the ranks of a group do. */
enum dpro_parallelism {
    DPRO_REPLICATES, /* "dp": all have the same parameters and sum their gradients */
    DPRO_SHARDS,     /* "fsdp": each keeps a part of the parameters, or of their gradients and
                        optimizer state */
    DPRO_CONTEXT,    /* "cp": each computes a part of the sequence */
    DPRO_EXPERTS, /* "ep": each has other experts, or embedding tables, and items are sent there */
    DPRO_TENSORS, /* "tp": each computes a part of every layer */
    DPRO_STAGES,  /* "pp": each has other layers */
    DPRO_N_PARALLELISMS
};
DPRO_API const char *dpro_parallelism_name(enum dpro_parallelism parallelism); /* "dp", ... */

/* The order of a pipeline's passes on each stage. */
enum dpro_schedule {
    DPRO_SCHEDULE_UNKNOWN,
    DPRO_SCHEDULE_GPIPE,       /* all forward passes, then all backward ones */
    DPRO_SCHEDULE_1F1B,        /* as few forward passes ahead as keep all stages busy, then turns */
    DPRO_SCHEDULE_INTERLEAVED, /* the same with several stages a rank */
    DPRO_SCHEDULE_ZERO_BUBBLE, /* weights' gradients are computed where a stage would wait */
    DPRO_N_SCHEDULES
};
/* "", "gpipe", "1f1b", "interleaved", "zero-bubble" */
DPRO_API const char *dpro_schedule_name(enum dpro_schedule schedule);

#define DPRO_NO_DIMENSION UINT32_MAX

/* Strings are borrowed from the graph. */
struct dpro_dimension {
    enum dpro_parallelism parallelism;
    const char *name;  /* dpro_parallelism_name() */
    uint32_t size;     /* ranks of a group */
    uint32_t n_groups; /* groups that are known; where the trace has some ranks only and the groups
                          form no grid, those of these ranks */
    int lies_over;     /* 1: over other dimensions, so no factor of the number of ranks */
    uint64_t n_per_rank;     /* communications of a rank in an iteration; 0: none was seen */
    uint64_t bytes_per_rank; /* that a rank puts in; 0: unknown */
    const char *evidence;    /* one line */
};

/* In the order dp, fsdp, cp, ep, tp, pp. None: one process, or nothing was recognised. */
DPRO_API uint32_t dpro_graph_n_dimensions(const struct dpro_graph *graph);
DPRO_API struct dpro_dimension dpro_graph_dimension(const struct dpro_graph *graph,
                                                    uint32_t dimension);
/* The ranks of a group, in ascending order, dpro_dimension.size of them; borrowed. */
DPRO_API const int *dpro_graph_dimension_group(const struct dpro_graph *graph, uint32_t dimension,
                                               uint32_t group);
/* The number of the dimension that an op communicates in; DPRO_NO_DIMENSION: none, or several. */
DPRO_API uint32_t dpro_graph_op_dimension(const struct dpro_graph *graph, dpro_op_id op);
/* The same of a collective (dpro_graph_collective). */
DPRO_API uint32_t dpro_graph_collective_dimension(const struct dpro_graph *graph,
                                                  uint32_t collective);
/* What is not known of the dimensions, and what can be answered nevertheless: one line; "": all is
 * known. Borrowed. */
DPRO_API const char *dpro_graph_dimensions_note(const struct dpro_graph *graph);

#ifdef __cplusplus
}
#endif
#endif
