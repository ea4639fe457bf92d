/* What tests ask of a graph. */
#pragma once

#include <stdbool.h>

#include <dpro/dpro.h>

/* The n-th op (from 0) of that name on that rank; fails the test when there is none. */
dpro_op_id nth_op(const struct dpro_graph *graph, int rank, const char *name, int n);
/* Whether there is an edge, in the same iteration (next 0) or into the next (1). */
bool edge_to(const struct dpro_graph *graph, dpro_op_id from, dpro_op_id to, int next);
/* The same of the n-th ops of two names on one rank. */
bool has_edge(const struct dpro_graph *graph, int rank, const char *from, int from_n,
              const char *to, int to_n);
/* Whether a warning holds the word. */
bool has_warning(const struct dpro_graph *graph, const char *word);

/* Its replay, which is kept (case.h). */
struct dpro_replay *replay_of(const struct dpro_graph *graph,
                              const struct dpro_replay_options *options);
/* The model that is learnt of it and of all that its ranks communicate; kept. */
struct dpro_model *learn(const struct dpro_graph *graph);
/* The iteration as it is replayed with a delay (NULL: none), or with two; in whole microseconds. */
int64_t replay_ns(const struct dpro_graph *graph, const char *delay);
int64_t replay_us2(const struct dpro_graph *graph, const char *delay, const char *other);
int64_t replay_us(const struct dpro_graph *graph, const char *delay);
/* That the iteration takes `us`, and more or less with each delay, or with two at once: "-: +0;
 * gemm=+0.1: +100; SEND=2 & RECV=2: +300". */
void check_delays(const struct dpro_graph *graph, int64_t us, const char *delays);
/* That a rank has edges, or has not: "gemm > relu; relu#1 !> gemm"; #: the n-th of its name. */
void check_edges(const struct dpro_graph *graph, int rank, const char *edges);
