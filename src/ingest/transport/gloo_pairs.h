/* gloo's messages of sends and receives, of which a pair of ranks exchanges one each. */
#pragma once

struct dpro_trace;
struct net_transport;
struct trace_rank;

/* Gives the messages of each send a tag of its own among all sends of the trace, the same at both
 * ends: as recorded, all that a program sends to a peer has the tag that the program gave it. */
void gloo_number_pairs(struct dpro_trace *trace);

/* Finds the spans of the collectives that are a send or a receive. Such a span begins when the
 * call has posted it and ends when it has been waited for; it is moved to where its data were. */
void gloo_tie_pairs(const struct dpro_trace *trace, struct trace_rank *rank,
                    struct net_transport *t);
