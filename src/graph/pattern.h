/* graph/pattern.h: which algorithm a collective ran, read from who sent to whom. */
#ifndef GRAPH_PATTERN_H
#define GRAPH_PATTERN_H

#include <stddef.h>
#include <stdint.h>

/* One message from a rank of the collective (from 0) to another. */
struct pattern_message {
    uint32_t from, to;
};

struct pattern {
    const char *name;  /* "ring", "halving-doubling", "tree", "direct", "mixed"; static */
    uint32_t n_chunks; /* that what goes over a connection at once is cut in: of a ring in each of
                          its steps, else all messages of the busiest connection */
};

/* n_passes: how often a ring passes everything around, 2 for an all-reduce, else 1. -1: no memory.
 */
int pattern_find(const struct pattern_message *messages, size_t n, uint32_t n_ranks,
                 uint32_t n_passes, struct pattern *pattern);

#endif
