/* What the transport logs say of a job: which socket calls moved which bytes of which connection,
 * and what the bytes were.
 *
 * A *stream* is one direction of a connection as one end saw it: stream 2c is what the owner of
 * connection c sent, 2c + 1 what it received. Bytes are numbered from the connection's first one,
 * at both ends alike: (connection, direction, range of bytes) is the transaction id of a byte
 * stream. A gloo *message* is a range of its own; a data message is one SEND at one end and one
 * RECV at the other. */
#pragma once

#include "base/base.h"

#include <dpro/trace.h>

struct payload_kind;
struct trace_build;
struct trace_rank;

struct net_address {
    uint8_t ip[16]; /* IPv4 as ::ffff:a.b.c.d; UNIX: the socket's number in the first eight */
    uint64_t zone;  /* loopback, link-local and UNIX addresses are unique within a machine's network
                       namespace only, and this is a number for that; 0: unknown, or not needed */
    uint16_t port;
    uint16_t family; /* AF_INET for both IPs, AF_UNIX */
    uint32_t reserved;
};

enum { NET_ADDRESS_TEXT = 80 };
/* "10.0.0.1:80", "[fe80::1]:80", "unix:1234"; "127.0.0.1%1f2e:80" with a zone (hexadecimal). */
bool net_address_parse(const char *text, size_t len, struct net_address *address);
void net_address_format(char out[NET_ADDRESS_TEXT], const struct net_address *address);
bool net_address_is_local(const struct net_address *address); /* needs a zone to be unique */
/* A number in lower-case digits; false: not one, or more than max. */
bool net_parse_number(const char *text, size_t len, unsigned base, uint64_t max, uint64_t *value);

/* Whether it is a time as logs tell it, since the epoch; half of 64 bits, as trace.h has it. */
static inline bool net_time_fits(int64_t ns)
{
    return ns >= 0 && ns <= INT64_MAX / 2;
}

/* The name of a call of tracer/record.h, static; "other" of 0 and what is not known; and back. */
const char *net_call_name(uint8_t call);
uint8_t net_call_find(const char *name, size_t len);

struct net_connection {
    uint32_t number; /* the process's own, in the order in which it made them */
    struct net_address local, remote;
    uint32_t peer, peer_connection; /* the other end: transport and connection; NO_ID: not here */
    bool whole; /* seen from its first byte; else its numbers are not those of the other end */
};
/* Initializers of a connection that is not tied to others yet. */
#define NET_UNTIED .peer = NO_ID, .peer_connection = NO_ID

struct net_transfer { /* one socket call that moved bytes */
    int64_t start_ns, end_ns;
    uint64_t offset; /* of its first byte in the stream */
    uint32_t bytes, requested;
    uint32_t stream, thread;
    uint8_t call; /* enum call_kind of tracer/record.h; 0: another one */
};

enum { GLOO_PREAMBLE_BYTES = 48 };
enum gloo_opcode { GLOO_DATA = 1, GLOO_SEND_READY = 2, GLOO_RECV_READY = 3 }; /* 0: not known */
enum { GLOO_ALL_GATHER = 2, GLOO_ALL_REDUCE = 4 };                            /* prefixes */

/* Who framed the bytes: gloo's preambles (or calls of both ends), ps-lite's frames of ZeroMQ,
 * writes of a ring over gRPC. */
enum net_protocol { NET_GLOO, NET_PS, NET_GRPC };

enum ps_flag {
    PS_REQUEST = 1, /* from a worker, else an answer */
    PS_PUSH = 2,
    PS_PULL = 4,    /* both: the answer to the push carries what a pull would */
    PS_BYTEPS = 8,  /* of its ps-lite */
    PS_KEYLESS = 16 /* an answer that says no key: its request does */
};

struct net_message { /* one end of a message, or chunk of a ring, as it is on the wire */
    uint64_t offset, size_bytes;
    uint64_t length;          /* of the data it carries or announces */
    int64_t start_ns, end_ns; /* of the calls with its first and last byte at this end; INT64_MIN:
                                 not recorded */
    union {
        struct {
            uint32_t tag; /* the collective's number in its context */
            uint32_t delta;
        };
        uint64_t key; /* ps-lite: of the wire at first, then the program's own */
    };
    int64_t sent_ns; /* ps-lite: when the program passed it on, or got it; INT64_MIN: unknown */
    uint32_t stream; /* NO_ID: not found yet */
    union {
        uint32_t thread;  /* of the first call */
        uint32_t channel; /* while it has no stream: messages of one are in one, in this order */
    };
    uint32_t collective; /* index into the transport's collectives; NO_ID */
    int32_t timestamp;   /* ps-lite */
    uint8_t protocol;    /* enum net_protocol */
    uint8_t prefix;      /* gloo: which kind of collective */
    uint8_t opcode;      /* enum gloo_opcode */
    uint8_t flags;       /* ps-lite: enum ps_flag */
    uint8_t server;      /* ps-lite: which part of the keys' range, set with the key */
    bool received;       /* which end it is of that the channel is */
};
typedef ARRAY(struct net_message) net_message_array;

/* Initializers of a message of which only the place is known. */
#define NET_UNTIMED .start_ns = INT64_MIN, .end_ns = INT64_MIN, .collective = NO_ID

static inline uint64_t net_message_payload(const struct net_message *message)
{
    return message->opcode == GLOO_DATA ? message->length : 0;
}

/* ps-lite's messages with the data that a worker sends, or gets. Others carry none. */
static inline bool ps_is_push(const struct net_message *m)
{
    return (m->flags & (PS_REQUEST | PS_PUSH)) == (PS_REQUEST | PS_PUSH);
}
static inline bool ps_is_pull(const struct net_message *m)
{
    return (m->flags & (PS_REQUEST | PS_PULL)) == PS_PULL;
}

struct net_collective { /* one rank's part in a gloo collective; or an exchange with servers, of
                           which only the span is set */
    uint32_t tag;
    uint8_t prefix;
    bool exact; /* all its ranks are here and their bytes are those of its size */
    int64_t first_send_ns, last_ns;      /* first_send_ns INT64_MAX: it sent nothing */
    uint64_t sent_bytes, received_bytes; /* payload */
    uint64_t size_bytes;                 /* of the tensor, from the span; 0: unknown */
    uint32_t span;                       /* the rank's span that ran it; NO_ID */
    uint32_t bucket;                     /* index into the recording's buckets; NO_ID */
    uint32_t joint;                      /* equal on all ranks for one collective; NO_ID */
};
/* Initializers of a collective whose messages are not summed up yet. */
#define NET_UNSUMMED                                                                               \
    .first_send_ns = INT64_MAX, .last_ns = INT64_MIN, .span = NO_ID, .bucket = NO_ID

/* The process of a log: a rank, or another process such as a parameter server. Others are numbered
 * by role and number from INT_MIN on, so that as unsigned numbers they follow all ranks. -1: not
 * known. */
enum { NET_PROCESS_TEXT = 32, NET_MAX_PROCESSES = 1 << 20 /* ranks, or others of a role */ };
bool net_process_is(int64_t rank); /* whether a process can have that number */
char *net_process_format(char out[NET_PROCESS_TEXT], int rank); /* "rank 3", "server 0": out */
/* The same in room that lasts as long as the block. */
#define NET_PROCESS(rank) net_process_format((char[NET_PROCESS_TEXT]){0}, (rank))
int net_process_in(const char *name, size_t len); /* "net_server0.csv"; -1: no role in it */
int net_process_numbered(const char *role, int64_t number); /* "server", "ps", "scheduler"; -1 */

/* What the log of one process holds. It is read from one file, or from several segments;
 * transports_build() puts these together. */
struct net_transport {
    int rank;            /* or other process */
    uint32_t rank_index; /* into the trace's ranks; NO_ID: it has no profile */
    uint64_t pid;
    uint64_t zone;    /* for addresses without one */
    uint32_t segment; /* of the file */
    bool numbered;    /* a connection's number is all that is needed to know it again */
    char host[64], boot_id[40];
    ARRAY(struct net_connection) connections;
    ARRAY(struct net_transfer) transfers; /* by stream, then offset */
    net_message_array messages;           /* by stream, then offset */
    ARRAY(struct net_collective) collectives;
    uint32_t *first_transfer, *first_message; /* by stream, and one more; 2 * connections.n + 1 */
    bool has_ps;                              /* messages of ps-lite */
    uint64_t n_frames;                        /* of ZeroMQ */
    uint64_t n_lost;                          /* records that the tracer could not keep */
};

void net_transport_fini(void *transport);
extern const struct payload_kind transport_payload;
/* What is said where there are no other files. */
#define TRANSPORT_ALONE                                                                            \
    "a transport log alone can't be replayed; add the profile of the same run ('dpro export "      \
    "--net-csv' shows what is in the log)"

/* The process at a stream's other end, and its stream of the same bytes; NULL: not recorded. */
const struct net_transport *net_peer(const struct dpro_trace *trace, const struct net_transport *t,
                                     uint32_t stream, uint32_t *peer_stream);

/* The call that moved a byte of a stream; NULL: not recorded. For bytes that are asked for in
 * order: *next, at first t->first_transfer[stream], keeps the place. */
const struct net_transfer *net_call_of_byte(const struct net_transport *t, uint32_t stream,
                                            uint64_t offset, uint32_t *next);

struct net_range {
    uint64_t start, end;
    int64_t first_ns, last_ns; /* of its first and its last call */
};
typedef ARRAY(struct net_range) net_range_array;
/* The bytes of a stream that were recorded, as ranges with holes between. */
void net_ranges(const struct net_transport *t, uint32_t stream, net_range_array *ranges);

/* connections.c: joins the ends of connections, whose transports are sorted; counts what both ends,
 * or one, recorded. */
void net_join_connections(struct dpro_trace *trace);
void net_count_bytes(const struct dpro_trace *trace, struct dpro_transport_info *info);

/* messages.c: sorts the messages by stream and offset, one for each place, and indexes them. What
 * has no place, or is of ps-lite and has no flags, is left out. */
void net_sort_messages(struct net_transport *t);
/* The first message of a stream at or behind an offset; NULL: none. */
struct net_message *net_message_from(const struct net_transport *t, uint32_t stream,
                                     uint64_t offset);
struct net_message *net_message_at(const struct net_transport *t, uint32_t stream, uint64_t offset);

/* What each collective's messages add up to, and when. */
void net_sum_collectives(struct net_transport *t);
/* A worker's exchange with servers that a span of its rank asked for: its number as a collective.
 */
uint32_t net_add_exchange(struct net_transport *t, uint32_t span);

/* Adds to each end the messages that only the other end's log has, and when they passed. */
void net_share_messages(struct dpro_trace *trace);

/* gloo.c: messages, contexts, collectives, and the spans and buckets they are. */
void gloo_build(struct dpro_trace *trace);

/* tensorflow/grpc_ring.c: the chunks of TensorFlow's rings, where no messages were logged. */
void ring_build(struct dpro_trace *trace);

/* transport.c: joins the parts' transports by rank and connection and ties messages to spans. Needs
 * the trace's ranks. */
void transports_build(struct trace_build *build);
/* Whether there is a log, of NCCL's, too. */
bool transports_are_logged(const struct trace_build *build);
/* Before: a role and number are one process. */
void transports_complete(struct trace_build *build);

/* gloo_pairs.c: gives the messages of each send a tag of its own among all sends of the trace, the
 * same at both ends: as recorded, all that a program sends to a peer has the tag that the program
 * gave it. */
void gloo_number_pairs(struct dpro_trace *trace);

/* Finds the spans of the collectives that are a send or a receive. Such a span begins when the
 * call has posted it and ends when it has been waited for; it is moved to where its data were. */
void gloo_tie_pairs(const struct dpro_trace *trace, struct trace_rank *rank,
                    struct net_transport *t);

/* ---- what the NCCL profiler plugin logged ----
 *
 * Communicators, the collectives and point-to-point calls of this process, and the steps of the
 * proxy's work for them, each one chunk that was sent or received on a channel. */

struct nccl_proxy_op;
struct dpro_error;

struct nccl_comm {
    uint32_t number; /* in the log */
    int32_t rank;
    uint64_t hash; /* equal on all its ranks */
};

struct nccl_operation { /* a collective, or one send or recv */
    uint64_t event;
    int64_t start_ns;         /* of its enqueueing */
    uint64_t sequence;        /* collectives: in the communicator, per function */
    uint32_t comm;            /* index; NO_ID: unknown */
    uint32_t thread;          /* that called */
    uint32_t func, algorithm; /* string ids, of this log's table */
    bool point_to_point;
    uint32_t span; /* the profile's span around the call; NO_ID */
};

enum { NCCL_OP_SENDS = 1, NCCL_OP_RECEIVES = 2, NCCL_OP_FOREIGN = 8 }; /* as recorded */

struct nccl_step {      /* a chunk that the proxy sent or received */
    uint64_t parent;    /* number of its proxy op's event */
    uint32_t operation; /* index; NO_ID: not here */
    int32_t step, peer, channel;
    uint32_t flags; /* NCCL_OP_... */
    uint64_t size_bytes;
    int64_t start_ns, stop_ns;
    int64_t sent_ns, there_ns; /* its data were handed to the network; were there; 0: not seen */
};

struct nccl_log {
    int rank;
    struct strtab names;
    ARRAY(uint32_t) strings; /* the log's numbers -> ids in names */
    ARRAY(struct nccl_comm) comms;
    ARRAY(struct nccl_operation) operations;
    ARRAY(struct nccl_proxy_op) proxy_ops; /* until steps are joined to operations */
    ARRAY(struct nccl_step) steps;
    uint64_t n_others; /* events of other kinds */
    uint64_t n_lost;
};

extern const struct payload_kind nccl_payload;
/* Takes a record that NCCL logs only have; false: it is not valid. */
bool nccl_log_add(struct nccl_log *log, const unsigned char *at, size_t size);
/* Finds parents by their numbers, once all is read. */
void nccl_log_join(struct nccl_log *log);
/* Moves the logs to the trace and finds the spans of their operations. */
void nccl_build(struct trace_build *build);

/* ---- the profiler's spans around the calls of a communication library, by thread and time ----
 *
 * What a log says happened on that thread then belongs to that span. Spans stay in the process that
 * read them, logs are joined by the first. So a run has all that is asked of its span, and what the
 * logs say of spans is listed. */

struct dpro_trace;
struct strtab;

struct comm_run {
    int64_t start_ns, end_ns;
    int64_t thread;
    int64_t call_ns;            /* when the call that asked for it began; INT64_MAX: not known */
    uint64_t numel, size_bytes; /* of the tensor that it communicates; 0: not known */
    uint32_t span;
    uint32_t call; /* span of that call; NO_ID: not known */
    uint32_t unit; /* recorded_unit_of() the call */
    uint32_t peer; /* of a posted one, the rank; UINT32_MAX: not known */
    bool posted;   /* on a track of such */
    bool sends;
    bool tied; /* a log has it */
};
typedef ARRAY(struct comm_run) comm_run_array;

struct comm_runs {
    comm_run_array gloo, nccl; /* by thread, then start */
};

/* Where in the logs a rank's part in a collective of an iteration is. */
struct net_part {
    uint32_t log; /* number of the log: the trace's transports, then its NCCL logs; NO_ID: none */
    uint32_t collective; /* transport log: its collective; NCCL: the first operation of the
                            profile's span */
};

struct span_part {
    uint32_t span;
    struct net_part part;
};

struct span_move {
    uint32_t span;
    int64_t start_ns, end_ns;
};

/* What the logs say of a rank's spans. */
struct rank_logged {
    ARRAY(struct span_part) parts; /* of several of a span, the last counts */
    ARRAY(struct span_move) moves; /* to where their data were */
};

/* Lists those of a rank whose spans are here and in place. */
void runs_list(const struct strtab *names, struct trace_rank *rank);
/* The unit of a sharded model that a call is for, as the annotations around it name it: index into
 * the recording's buckets, NO_ID when there is none. */
uint32_t recorded_unit_of(const struct strtab *names, const struct trace_rank *rank, uint32_t span);
void comm_runs_fini(struct comm_runs *runs);
/* The one that was open on a thread at a time; NULL: none. */
struct comm_run *runs_at(const comm_run_array *runs, int64_t thread, int64_t time_ns);

/* What they say, once they are joined; of a rank whose spans are elsewhere, for that process. */
void logged_build(struct dpro_trace *trace);
/* Of a rank whose spans are here. */
void logged_move_spans(struct trace_rank *rank);
