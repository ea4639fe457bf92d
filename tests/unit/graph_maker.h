/* A model's global DFG under construction. Ops are noted first, then handed to the graph builder
 * place by place. */
#pragma once

#include <dpro/graph.h>

#include "cost/program/buckets.h"
#include "cost/program/server_placement.h"
#include "cost/program/sync.h"
#include "graph/graph.h"

/* Devices of a place. */
enum maker_device { COMPUTE, SENDS, RECEIVES, ADDS, N_DEVICES, NO_DEVICE = N_DEVICES };

struct node {
    struct dpro_op op;
    uint8_t flags, spare;
};

struct edge {
    uint32_t from, to;
    bool next;
};

/* What a node of a collective did last. */
struct station {
    uint32_t sent, received, added; /* ops; DPRO_NO_OP: none yet */
};

struct maker {
    const struct model_net *net;
    uint32_t n_nodes; /* ranks, then servers on hosts of their own, then other places */
    struct sync_messages messages;
    ARRAY(struct node) nodes;
    ARRAY(struct edge) edges;
    struct station *stations;
    uint32_t *ready; /* by message of the collective: the op with which it has arrived */
    size_t n_ready;
    uint64_t transaction;
    struct arena arena;
};

/* `n_more`: places behind the nodes of collectives. */
void maker_init(struct maker *m, const struct model_net *net, uint32_t n_more);
void maker_fini(struct maker *m);
/* Adds an op that waits for the op `after` (DPRO_NO_OP: for nothing yet); returns its number. */
uint32_t maker_op(struct maker *m, uint32_t after, enum dpro_op_kind kind, uint32_t rank,
                  enum maker_device device, const char *name, double dur_ns);
/* Adds one without a device. */
uint32_t maker_wait(struct maker *m, uint32_t after, uint32_t rank, const char *name,
                    double dur_ns);
/* Adds an edge: `to` waits for `from` of its iteration, or of the one before. None if one of them
 * is DPRO_NO_OP. */
void maker_edge(struct maker *m, uint32_t from, uint32_t to);
void maker_next(struct maker *m, uint32_t from, uint32_t to);
/* Adds a collective's messages after `barrier`; returns the op with which it has ended. */
uint32_t maker_collective(struct maker *m, uint32_t barrier, uint64_t size_bytes);
struct dpro_graph *maker_finish(struct maker *m);

/* ---- a job ---- */

/* The ends of a bucket on one rank, or of a collective on all. */
struct bucket_ends {
    uint32_t barrier, end; /* ops: launched, and back */
};

/* From a rank to a server or back. What it carries keeps its order. */
struct connection {
    struct server_route route;
    uint32_t first, sent, received[2]; /* ops: the first and the last one sent; the last received */
};

struct job {
    struct maker m;
    const struct dpro_model *model;
    const struct dpro_strategy *strategy;
    struct bucket_cost *buckets;
    struct bucket_ends *at; /* [bucket * n_ranks + rank] */
    uint32_t *bucket_of;    /* by tensor */
    uint32_t *ends;         /* collectives in their order */
    uint32_t n_ends;
    uint32_t n_servers;             /* parameter servers; 0: collectives */
    struct connection *connections; /* [rank * n_servers + server], then those back */
    double chunk_bytes;
    uint32_t begins, ends_step; /* of a session's step */
};

static inline struct bucket_ends *at(const struct job *j, uint32_t bucket, uint32_t rank)
{
    return &j->at[(size_t)bucket * j->model->net.collective.n_ranks + rank];
}

/* server_graph.c: what goes to parameter servers and back. */
void server_graph_init(struct job *j);
void server_graph_bucket(struct job *j, uint32_t bucket);
/* Once all buckets are there: what a session's step begins and ends with, and that connections keep
 * their order from one iteration to the next. */
void server_graph_finish(struct job *j);
