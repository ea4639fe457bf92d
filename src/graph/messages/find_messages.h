/* The messages of a collective (paper, section 3.1), as the logs of its ranks show them. Each is a
 * SEND on its sender's link and a RECV on its receiver's. If one of the ranks has no log, it is the
 * other's op alone.
 *
 * gloo's receivers send a ready message before each message. Where that shares its stream with data
 * it may wait behind it as long as a message takes. Then ready messages are messages of the graph,
 * too. */
#pragma once

#include <sys/socket.h>

#include "graph/collectives/match_collectives.h"

/* Limits of a graph: messages (of three ops each), and messages times iterations. */
enum { MOST_MESSAGES = 5000000, MOST_MESSAGE_TIMES = 50000000 };

struct message {
    uint32_t joined;   /* index of its collective */
    uint32_t from, to; /* members, from 0; if several have no log, the first of them; servers from
                          n_members on */
    uint32_t tx, rx;   /* links; NO_ID: that member has no log, so there is no SEND, or no RECV */
    uint32_t stream; /* the stream that it shares with others from the same rank to the same rank */
    uint32_t channel;    /* data that came in on a channel goes out on the same; 0: no channels */
    uint32_t ready;      /* the ready message that its sender waits for; NO_ID */
    bool is_ready;       /* carries no data */
    bool is_last;        /* it is the last one with data in its stream */
    bool ends_sender;    /* its sender leaves the collective only after it has arrived */
    uint64_t size_bytes; /* of data */
};

struct message_time {
    int64_t start_ns;    /* the sender's first call with a byte of it begins; without a log, the
                            receiver's */
    int64_t end_ns;      /* the receiver's last such call ends; without a log, the sender's */
    int64_t received_ns; /* the receiver's first such call begins; ABSENT: unknown */
};

/* The link of a host, known by its address. Messages within a host share a link only with other
 * such messages of the rank. */
struct link {
    uint32_t rank; /* the first that uses it, index */
    char name[NET_ADDRESS_TEXT];
};

/* A key for an address without its port. */
static inline uint64_t message_address_key(const struct net_address *address)
{
    uint64_t words[2] = {0, 0};
    if (address->family != AF_UNIX)
        memcpy(words, address->ip, sizeof words);
    return map_mix(map_mix(map_mix(words[0]) ^ words[1]) + address->zone) | 1;
}

/* What is missing from a rank's logs. */
enum lacks {
    LACKS_WHOLE = 1, /* its part in a collective, which is therefore one op */
    LACKS_PART = 2,  /* its part in a collective that is known from the others' logs */
};

struct messages {
    ARRAY(struct message) all;        /* by collective, then in the order in which they were sent */
    ARRAY(struct message_time) times; /* see message_time_of(); on the common axis */
    uint32_t n_samples;
    ARRAY(struct link) links;
    uint32_t n_whole;   /* collectives with logs that must be taken as one op */
    uint32_t n_uneven;  /* of these: those whose messages differ between iterations */
    uint32_t n_beyond;  /* of these: those that the graph has no room for */
    uint32_t n_partial; /* collectives of which some members' logs lack their part */
    uint8_t *lacks;     /* by rank, enum lacks */
};

/* Decomposes the collectives whose ranks logged the same messages in every iteration that is learnt
 * from. Their transfer op keeps the part after the last message. Needs all times on the common
 * axis. */
void messages_find(struct messages *messages, struct join *join, const struct dpro_trace *trace);

/* transfer_rest.c: cuts transfers to what follows their messages. */
void messages_cut_transfers(struct messages *messages, struct join *join);

/* Whether a member's transfer waits for a message: it (or possibly it) received it (`receives`) or
 * sent it, or was passed its data, and it never left before. */
bool message_ends_member(const struct messages *messages, const struct join *join,
                         const struct joined *joined, uint32_t message, bool receives,
                         uint32_t member);

static inline struct message_time *message_time_of(const struct messages *messages,
                                                   uint32_t message, uint32_t sample)
{
    return &messages->times.at[(size_t)message * messages->n_samples + sample];
}

struct sent_message {
    int64_t start_ns;
    uint32_t message, sample;
};
/* All messages of n_samples samples, in the order in which they were sent. */
void messages_by_start(const struct messages *messages, uint32_t first_sample, uint32_t n_samples,
                       struct sent_message *sent);

void messages_fini(struct messages *messages);
