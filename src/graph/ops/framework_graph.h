/* The graph that a framework recorded of what it runs. */
#pragma once

#include "graph/rank_build.h"

static inline const char *dfg_type(const struct rank_build *rank, uint32_t node)
{
    return strtab_get(rank->names, rank->trace->dfg_nodes[node].type);
}

static inline bool dfg_type_starts(const struct rank_build *rank, uint32_t node, const char *prefix)
{
    return text_begins(dfg_type(rank, node), prefix);
}

static inline uint32_t dfg_node_of(const struct rank_build *rank, uint32_t op)
{
    uint32_t slice = rank->ops.at[op].slice;
    return slice == NO_ID ? NO_ID : slice_span(rank, slice)->node;
}

/* By receiving node of a transfer within the rank: the node that sends; NO_ID: none. */
uint32_t *dfg_find_senders(const struct rank_build *rank, struct arena *arena);

/* What a node takes from, by i up to and with its number of inputs: the last one is its sender.
 * NO_ID: none. */
static inline uint32_t dfg_source(const struct rank_build *rank, const uint32_t *senders,
                                  uint32_t node, uint32_t i)
{
    const struct dfg_node *n = &rank->trace->dfg_nodes[node];
    return i < n->n_inputs ? rank->trace->dfg_inputs[n->first_input + i].node
           : senders       ? senders[node]
                           : NO_ID;
}

/* The nodes that take what node n makes: nodes[row[n] .. row[n + 1]). */
struct dfg_uses {
    uint32_t *row, *nodes;
};

/* `senders` may be NULL. */
struct dfg_uses dfg_find_uses(const struct rank_build *rank, const uint32_t *senders,
                              struct arena *arena);

/* node_phases.c: the phase (DPRO_OP_FW, ...) of each node. */
uint8_t *dfg_find_phases(const struct rank_build *rank, struct arena *arena);

/* Whether the ops of the rank's pools are ordered by the framework's graph; else by time. */
static inline bool dfg_is_known(const struct rank_build *rank)
{
    return rank->trace->n_dfg_nodes > 0;
}
