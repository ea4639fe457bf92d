/* What the logs show of a collective's messages: each rank's own ends of them.
 *
 * In a transport log, gloo's messages are ranges of a connection's bytes. In NCCL's log, the steps
 * of its proxy threads are chunks on a channel. Both ends of a message share its *transaction*: the
 * two ranks, and (connection, first byte), or (operation of the communicator, channel, step). */
#pragma once

#include "graph/messages/find_messages.h"

struct endpoint {
    /* the transaction */
    uint32_t from, to; /* members, from 0; NO_ID: the other end is not known */
    uint32_t number; /* gloo: number of the data message, which a ready message shares; NCCL: of the
                        operation */
    uint32_t stream; /* gloo: the sender's; NCCL: the channel */
    uint64_t offset; /* gloo: of its first byte; NCCL: the step */
    bool is_ready;   /* a ready message of the receiver; carries no data */
    bool sends;      /* which end */
    uint32_t channel;         /* data that came in on a channel goes out on the same; gloo: 0 */
    uint64_t size_bytes;      /* of data */
    int64_t start_ns, end_ns; /* on the common axis; ABSENT: not known */
    const struct net_connection *connection; /* NULL: NCCL's */
};
typedef ARRAY(struct endpoint) endpoint_array;

struct endpoint_log {
    const struct net_transport *transport; /* or */
    const struct nccl_log *nccl;
    uint32_t *leader; /* NCCL: for each operation, the first of the same span; NO_ID */
    uint32_t *first,
        *events; /* messages or steps of collective c: events[first[c] .. first[c + 1]) */
};

/* A message in one iteration, from its ends. */
struct found {
    struct endpoint end; /* its sender's; its receiver's where the sender has no log */
    bool sent, received; /* by a rank with a log */
    struct message_time time;
    const struct net_connection *sender, *receiver; /* NULL: NCCL's */
};
typedef ARRAY(struct found) found_array;

struct endpoints {
    const struct join *join;
    const struct dpro_trace *trace;
    struct endpoint_log *logs;
    uint32_t n_logs;
    bool has_gloo, has_nccl, has_ps; /* any message, any step */
    struct map comm_members; /* members of the current collective, by rank in NCCL's communicator */
    bool with_ready;         /* ready messages are wanted, too */
    bool *unlogged;          /* by member of the collective at hand: it has no log */
    uint32_t nobody;         /* member that stands for all who have no log; NO_ID: there are none */
    endpoint_array ends;
    found_array found;
};

/* Finds the rank's parts in what it ran; before the rank's slices are forgotten. */
void build_parts(struct rank_build *rank);

void endpoints_index(struct endpoints *endpoints, const struct join *join,
                     const struct dpro_trace *trace);
void endpoints_fini(struct endpoints *endpoints);

const struct net_part *endpoints_part(const struct join *join, const struct member *member,
                                      uint32_t sample);

/* All messages of a collective in an iteration, into endpoints->found, by way and number: the data
 * before the ready messages. Returns whether none lacks an end that should be there. */
bool endpoints_pair(struct endpoints *endpoints, const struct joined *joined, uint32_t sample);
/* Those of one way and number from `first` on, data and ready messages: where they end. */
size_t found_run_end(const found_array *found, size_t first, size_t *n_data);

/* The algorithm that NCCL says it ran: "ring", ..., static; NULL: not known. */
const char *endpoints_algorithm(const struct endpoints *endpoints, const struct net_part *part);
