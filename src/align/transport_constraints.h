/* What a job's processes sent each other, as constraints of their clocks. */
#pragma once

#include "ingest/trace.h"

enum constraint_source {
    CONSTRAINT_FROM_TRANSPORT,
    CONSTRAINT_FROM_NCCL,
    CONSTRAINT_FROM_COLLECTIVES
};

/* What happened at `from_ns` on a process was over by `to_ns` on another. */
struct clock_constraint {
    enum constraint_source source;
    uint32_t from, to; /* nodes */
    int64_t from_ns, to_ns;
};

/* One process, or several of one rank: what has a clock. */
struct clock_node {
    int rank;            /* or a process that is none (transport.h) */
    uint32_t rank_index; /* in the trace; NO_ID: it has no profile */
    const char *host;    /* its name; "": unknown */
    const char *boot_id; /* of its machine; "": unknown */
};

typedef ARRAY(struct clock_node) clock_nodes;

/* Ranks in ascending order, so that node r is not always rank r of the join, then processes that
 * are no ranks. */
void clock_nodes_list(const struct dpro_trace *trace, uint32_t n_ranks, clock_nodes *nodes);
uint32_t clock_node_of(const clock_nodes *nodes, int rank); /* NO_ID: none */

struct constraint_visitor {
    void (*before)(void *arg, const struct clock_constraint *constraint);
    /* two moments that were near each other; may be NULL */
    void (*near)(void *arg, uint32_t node, int64_t ns, uint32_t other, int64_t other_ns);
    void *arg;
};

/* Every send call with every receive call of the same bytes. */
void constraints_visit_transports(const struct dpro_trace *trace, const clock_nodes *nodes,
                                  const struct constraint_visitor *visitor);
/* Every step of NCCL's proxy threads that sent with the one that received. */
void constraints_visit_nccl(const struct dpro_trace *trace, const clock_nodes *nodes,
                            const struct constraint_visitor *visitor);
