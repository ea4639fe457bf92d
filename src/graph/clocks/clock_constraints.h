/* graph/clocks/clock_constraints.h: what a job's ranks, and the servers between them, sent each
 * other, as facts about their clocks. */
#ifndef GRAPH_CLOCK_CONSTRAINTS_H
#define GRAPH_CLOCK_CONSTRAINTS_H

#include "graph/collectives/match_collectives.h"

enum evidence_source { EVIDENCE_TRANSPORT, EVIDENCE_NCCL, EVIDENCE_COLLECTIVES };

/* What happened at `from_ns` on a process was over by `to_ns` on another. */
struct evidence {
    enum evidence_source source;
    uint32_t from, to; /* nodes */
    int64_t from_ns, to_ns;
    uint64_t mark;
};

/* One process, or several of one rank. */
struct evidence_node {
    int rank;            /* or a process that is none (transport.h) */
    uint32_t rank_index; /* in the join; NO_ID: it has no profile */
    const char *host;    /* its name; "": unknown */
    const char *boot_id; /* of its machine; "": unknown */
};

typedef ARRAY(struct evidence_node) evidence_nodes;

/* Ranks in ascending order, so that node r is not always rank r of the join, then processes that
 * are no ranks. -1: no memory. */
int evidence_list(const struct join *join, const struct dpro_trace *trace, evidence_nodes *nodes);
uint32_t evidence_node_of(const evidence_nodes *nodes, int rank); /* NO_ID: none */

struct evidence_visitor {
    int (*before)(void *arg, const struct evidence *evidence); /* -1 ends the visit */
    /* two moments that were near each other; may be NULL */
    int (*near)(void *arg, uint32_t node, int64_t ns, uint32_t other, int64_t other_ns);
    void *arg;
};

/* Every send call with every receive call of the same bytes. 0, or what the visitor said. */
int evidence_visit_transports(const struct dpro_trace *trace, const evidence_nodes *nodes,
                              const struct evidence_visitor *visitor);
/* Every step of NCCL's proxy threads that sent with the one that received. */
int evidence_visit_nccl(const struct dpro_trace *trace, const evidence_nodes *nodes,
                        const struct evidence_visitor *visitor);
/* No rank leaves a collective before the last one entered. */
int evidence_visit_collectives(const struct join *join, const evidence_nodes *nodes,
                               const struct evidence_visitor *visitor);

/* "bytes from 512 on of the connection ..., sent by rank 0 at ..." */
void evidence_describe(const struct join *join, const struct dpro_trace *trace,
                       enum evidence_source source, uint64_t mark, char *out, size_t size);

#endif
