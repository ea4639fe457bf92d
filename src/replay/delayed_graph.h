/* replay/delayed_graph.h: a graph in which some ops take longer or shorter: what `--delay` means to
 * a replay and to a model alike. */
#ifndef REPLAY_DELAYED_GRAPH_H
#define REPLAY_DELAYED_GRAPH_H

#include "graph/graph.h"

/* *delayed is `graph` with other durations, of the mean and of every measured iteration, as the
 * options say (struct dpro_replay_options). Whoever then takes its times for `pace` times as long
 * gets what options add in milliseconds as they say; else pace is 1. Its durations are the arena's;
 * all else is borrowed from `graph`, and it is not to be destroyed. */
int delayed_graph(const struct dpro_graph *graph, const char *const *options, size_t n, double pace,
                  struct arena *arena, struct dpro_graph *delayed, struct dpro_error *err);

#endif
