/* What ranks push to parameter servers and pull from them, tensor by tensor. */
#pragma once

#include "graph/graph.h"

/* Fills in the exchanges of a graph that is otherwise complete: those that key-value stores have as
 * collectives, and the variables of a session. */
void exchanges_find(struct dpro_graph *graph);

/* Whether an op is bytes that arrive over a link: a push at a server, or a pull at a rank. */
bool exchange_arrives(const struct dpro_graph *graph, uint32_t op);
