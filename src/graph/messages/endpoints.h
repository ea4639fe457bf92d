/* graph/messages/endpoints.h: what the logs show of a collective's messages: each rank's own ends
 * of them.
 *
 * In a transport log, gloo's messages are ranges of a connection's bytes. In NCCL's log, the steps
 * of its proxy threads are chunks on a channel. Both ends of a message share its *transaction*: the
 * two ranks, and (connection, first byte), or (operation of the communicator, channel, step). */
#pragma once

#include "graph/collectives/match_collectives.h"

/* Where the logs have a rank's part in a collective of an iteration. */
struct net_part {
    uint32_t log;        /* number: the trace's transports, then its NCCL logs; NO_ID: nowhere */
    uint32_t collective; /* of a transport; NCCL: the first operation of the profile's span; of an
                            exchange with servers: its span */
};

struct endpoint {
    /* the transaction */
    uint32_t from, to; /* members, from 0; NO_ID: no log tells who is at the other end */
    uint32_t number;   /* gloo: within the collective, a ready message is for data of the same one;
                          NCCL:   of the operation */
    uint32_t stream;   /* gloo: the sender's; NCCL: the channel */
    uint64_t offset;   /* gloo: of its first byte; NCCL: the step */
    bool is_ready;     /* that the receiver is ready; carries no data */
    bool sends;        /* which end */
    uint32_t channel;  /* what came in on one goes out on it again; of gloo there is one, 0 */
    uint64_t size_bytes;                     /* of data */
    int64_t start_ns, end_ns;                /* on the common axis; ABSENT: not known */
    const struct net_connection *connection; /* NULL: NCCL's */
};
typedef ARRAY(struct endpoint) endpoint_array;

/* The logs' messages by collective. */
struct endpoint_log {
    const struct net_transport *transport; /* or */
    const struct nccl_log *nccl;
    uint32_t *leader;    /* NCCL: of each operation, the first of the same span; NO_ID */
    uint32_t *exchanged; /* ps-lite's messages that are of spans, by span; n_exchanged */
    uint32_t n_exchanged;
    uint32_t *first,
        *events; /* messages or steps of collective c: events[first[c] .. first[c + 1]) */
};

struct endpoints {
    const struct join *join;
    const struct dpro_trace *trace;
    struct endpoint_log *logs;
    uint32_t n_logs;
    bool has_gloo, has_nccl, has_ps; /* any message, any step */
    struct map comm_members;         /* of the collective at hand, by rank in NCCL's communicator */
    endpoint_array found;
};

/* Finds the rank's parts in what it ran; before the rank's slices are forgotten. */
void build_parts(struct rank_build *rank, const struct dpro_trace *trace);

void endpoints_index(struct endpoints *endpoints, const struct join *join,
                     const struct dpro_trace *trace);
void endpoints_fini(struct endpoints *endpoints);

const struct net_part *endpoints_part(const struct join *join, const struct member *member,
                                      uint32_t sample);

/* The ends of a collective's messages in an iteration, into endpoints->found, of those members for
 * which left_out says false. Returns whether all of them can be told. */
bool endpoints_find(struct endpoints *endpoints, const struct member *members, uint32_t n_members,
                    const bool *left_out, uint32_t sample, bool with_ready);

/* The same of an exchange with servers; which of them is at the other end, from n_members on. */
bool endpoints_find_exchange(struct endpoints *endpoints, const struct joined *joined,
                             uint32_t sample);

/* The algorithm that NCCL says it ran: "ring", ..., static; NULL: not known. */
const char *endpoints_algorithm(const struct endpoints *endpoints, const struct net_part *part);
