/* graph/messages.h: the messages that a collective is made of (paper, section 3.1), as the
 * transport logs of its ranks show them. Each becomes a SEND on its sender's link and a RECV on its
 * receiver's.
 *
 * gloo's receivers give notice before each message that they are ready for it. Where a notice
 * shares its stream with data it stands behind that, which can take as long as a message does: then
 * notices are messages of the graph, too. */
#ifndef GRAPH_MESSAGES_H
#define GRAPH_MESSAGES_H

#include "graph/build.h"

struct join;

/* In a graph: messages (of three ops each), and these times iterations that are learnt from. */
enum { MOST_MESSAGES = 5000000, MOST_MESSAGE_TIMES = 50000000 };

/* Where the transport logs have a rank's part in a collective of an iteration. */
struct net_part {
    uint32_t transport; /* NO_ID: nowhere */
    uint32_t collective;
};

struct message {
    uint32_t joined;     /* index of its collective */
    uint32_t from, to;   /* members of it, from 0 */
    uint32_t tx, rx;     /* links */
    uint32_t notice;     /* the message that its sender waits for: the receiver is ready; NO_ID */
    bool is_notice;      /* carries no data */
    bool ends_sender;    /* its sender leaves the collective only after it has arrived */
    uint64_t size_bytes; /* of data */
};

struct message_time {
    int64_t start_ns;    /* its sender's first call with a byte of it begins */
    int64_t end_ns;      /* its receiver's last such call ends */
    int64_t received_ns; /* its receiver's first such call begins; ABSENT: unknown */
};

/* What a host's messages go out and come in through: known by its address. What stays within a host
 * does not share a link with anything but other such messages of the rank. */
struct link {
    uint32_t rank; /* the first that uses it, index */
    char name[NET_ADDRESS_TEXT];
};

struct messages {
    ARRAY(struct message) all;        /* by collective, then in the order in which they were sent */
    ARRAY(struct message_time) times; /* [message * n_samples + sample], on the common axis */
    ARRAY(struct link) links;
    uint32_t n_whole;  /* collectives that have logs, but must be taken as one op */
    uint32_t n_uneven; /* of these: whose messages differ between iterations */
    uint32_t n_beyond; /* of these: that the graph has no room for */
    uint8_t *lacks;    /* by rank: its log lacks some of what is needed */
};

/* Finds the rank's parts in what it ran; before the rank's items are forgotten. */
int build_parts(struct rank_build *rank, const struct dpro_trace *trace, struct dpro_error *err);

/* Takes apart those collectives all of whose ranks logged the same messages in every iteration that
 * is learnt from; what remains of their transfer op is the part after the last message. Needs all
 * times on the common axis. */
int join_messages(struct join *join, const struct dpro_trace *trace, struct dpro_error *err);

void messages_fini(struct messages *messages);

#endif
