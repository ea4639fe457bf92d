/* What ps-lite's nodes sent each other, as the transport logs show it: pushes and pulls of keys
 * between workers and servers (MXNet's dist kvstore, BytePS).
 *
 * A message is ZeroMQ's frames: meta data, keys, values, their lengths. A request and its answer
 * have the worker, the server and the timestamp in common: with key and direction that is the
 * transaction. */
#pragma once

#include "ingest/transport/transport.h"

struct dpro_trace;
struct trace_rank;

struct ps_key {
    uint64_t key, size_bytes; /* of one push, all servers together */
    uint32_t name;            /* string id of the parameter's; 0: unknown */
};
typedef ARRAY(struct ps_key) ps_keys;

/* byteps/wire.c: the exchanges of a worker of BytePS as spans of its rank, which no profile has,
 * and its messages' spans. */
void byteps_add_exchanges(struct dpro_trace *trace, struct net_transport *transport);
/* The same from the workers' own traces, where no transport log has them. */
void byteps_join(struct dpro_trace *trace);

/* mxnet/keys.c: finds the names of a worker's keys, which are sorted; where what is known of the
 * parameters is not of these keys it counts trace->n_misnamed. */
void mxnet_name_keys(struct dpro_trace *trace, const struct trace_rank *rank, ps_keys *keys);

/* ---- from frames to messages ---- */

struct ps_frame {
    uint64_t source;   /* equal for frames of one series: a stream's, or a socket's; not 0 */
    uint32_t stream;   /* NO_ID: unknown */
    uint64_t position; /* in the stream; where that is unknown 0 */
    uint64_t length;
    int64_t time_ns; /* INT64_MIN: unknown */
    uint32_t index;  /* in its message; NO_ID: unknown */
    bool received;   /* at this end */
    bool more;       /* another frame of the message follows */
    const uint8_t *body;
    size_t n_body; /* of it, the bytes that were kept */
};

struct ps_open { /* a message of which not all frames have come */
    struct net_message message;
    uint64_t next; /* where its next frame begins */
    uint32_t n_frames, channel;
    bool is_data;      /* so far: request or answer with keys */
    bool names_sender; /* the first frame did */
};

/* A node of the job by its place: who is where, as the scheduler tells everybody. */
struct ps_node {
    char host[64];
    uint32_t port;
    int32_t role, id; /* 0 server, 1 worker, 2 scheduler */
};

struct ps_assembler {   /* zeroed */
    struct map sources; /* -> index of its open message */
    ARRAY(struct ps_open) open;
    ARRAY(struct ps_node) nodes;
    struct net_transport *out;
};

/* "ps8": the peer, in the first frame of each message of a socket that has several. */
bool ps_is_identity(const struct ps_frame *frame);
void ps_add_frame(struct ps_assembler *a, const struct ps_frame *frame);
/* The source has no more frames of the message at hand. */
void ps_end_message(struct ps_assembler *a, uint64_t source);
/* Which process the owner of the connections is, as net_process numbers it; -1: unknown. */
int ps_own_process(const struct ps_assembler *a, const struct net_transport *transport);
void ps_assembler_fini(struct ps_assembler *a);

/* ---- of all processes ---- */

/* ps_spans.c: finds the spans of the profiles that messages are of. */
void ps_tie_spans(struct dpro_trace *trace);

/* server_profiles.c: gives the servers' profiles the numbers that their servers' logs have. */
void ps_assign_profiles(struct dpro_trace *trace);

/* ps_streams.c: of one process, finds the streams of messages that have none, and gives answers
 * that say no key that of their request. */
void ps_place_messages(struct net_transport *t);
void ps_find_keys(struct net_transport *t);

/* Finds the keys' own numbers, and which spans of the profiles messages are of. */
void ps_build(struct dpro_trace *trace);
