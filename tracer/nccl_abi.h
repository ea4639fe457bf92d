/* NCCL's profiler plugin interface, versions 1 to 6, as far as memory goes.
 *
 * NCCL looks for the newest symbol `ncclProfiler_v<N>` it knows in the plugin; each is a table of
 * five functions. A version's events are described by a struct of a common head and a union by type
 * at the same place; members that are alike in several versions are declared once. Offsets are
 * asserted at the end. 2.23 knows version 1, 2.24 and 2.25 2, 2.26 3, 2.27 4, 2.28 5, and 2.29 and
 * later 6. Types are bits of the activation mask: 1 << enum nccl_event. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "record.h"

#define NCCL_SUCCESS 0 /* what every function returns: an event that can't be kept is no error */

/* Which types a version knows. */
#define NCCL_TYPES_V1 ((1 << (NCCL_PROXY_CTRL + 1)) - 1)
#define NCCL_TYPES_V3 ((1 << (NCCL_NET + 1)) - 1)
#define NCCL_TYPES_V5 ((1 << (NCCL_LAUNCH + 1)) - 1)
#define NCCL_TYPES_V6 ((1 << (NCCL_CE_BATCH + 1)) - 1)

enum nccl_state {
    NCCL_STATE_OP_SEND_POSTED = 0, /* 0 to 7: versions 1 to 3 */
    NCCL_STATE_OP_SEND_CLEAR = 1,  /* the peer can receive */
    NCCL_STATE_OP_SEND_TRANSMITTED = 2,
    NCCL_STATE_OP_SEND_DONE = 3,
    NCCL_STATE_OP_RECV_POSTED = 4,
    NCCL_STATE_OP_RECV_RECEIVED = 5,
    NCCL_STATE_OP_RECV_TRANSMITTED = 6,
    NCCL_STATE_OP_RECV_DONE = 7,
    NCCL_STATE_STEP_SEND_GPU = 8, /* each is what the step waits for from now on */
    NCCL_STATE_STEP_SEND_NET = 9,
    NCCL_STATE_STEP_RECV_NET = 10,
    NCCL_STATE_STEP_RECV_FLUSH = 11,
    NCCL_STATE_STEP_RECV_GPU = 12,
    NCCL_STATE_CTRL_IDLE = 13,
    NCCL_STATE_CTRL_ACTIVE = 14,
    NCCL_STATE_CTRL_SLEEP = 15,
    NCCL_STATE_CTRL_WAKEUP = 16,
    NCCL_STATE_CTRL_APPEND = 17,
    NCCL_STATE_CTRL_APPEND_END = 18,
    NCCL_STATE_OP_IN_PROGRESS = 19, /* 19 to 22: from version 4 */
    NCCL_STATE_STEP_SEND_PEER = 20,
    NCCL_STATE_NET_UPDATE = 21,
    NCCL_STATE_KERNEL_STOP = 22,
    NCCL_STATE_GROUP_START_RETURNED = 23, /* from version 5 */
    NCCL_STATE_GROUP_END_CALLED = 24,
};

/* Parts that several versions share. */
struct nccl_proxy_op {
    int pid; /* of the process that asked for it: `parent` is an address of that process */
    uint8_t channel;
    int peer;
    int n_steps;
    int chunk_bytes;
    int is_send;
};

struct nccl_kernel_ch {
    uint8_t channel;
    uint64_t timer; /* from version 4 */
};

struct nccl_net {
    int64_t plugin; /* kind << 16 | version of what data points to */
    void *data;
};

#define NCCL_NET_IB_V1     0x10001
#define NCCL_NET_SOCKET_V1 0x20001

struct nccl_net_ib {
    uint8_t type; /* 1: a work request on a queue pair */
    struct {
        int device;
        uint64_t request;
        int opcode;
        int queue_pair;
        size_t size_bytes;
    } work;
};

struct nccl_net_socket {
    uint8_t type; /* 1: a socket's call */
    struct {
        int fd;
        int op;
        size_t size_bytes;
    } call;
};

/* Descriptors. The type is one byte up to version 4, eight from 5. */
struct nccl_descr_v1 {
    uint8_t type;
    void *parent;
    int rank;
    union {
        struct {
            const char *comm_name;
            uint64_t comm_hash;
            uint64_t sequence;
            uint8_t func;
            const void *send_buffer;
            void *recv_buffer;
            size_t count;
            int root;
            uint8_t datatype;
            uint32_t op;
            size_t traffic_bytes;
            uint8_t n_channels, n_warps;
            uint8_t algorithm, protocol;
            int is_collnet, is_nvls;
        } coll;
        struct {
            const char *comm_name;
            uint64_t comm_hash;
            uint8_t func;
            void *buffer;
            uint8_t datatype;
            size_t count;
            int peer;
        } p2p;
        struct nccl_proxy_op proxy_op;
        int proxy_step;
    };
};

struct nccl_p2p_v2 { /* and 3 */
    const char *comm_name;
    uint64_t comm_hash;
    const char *func;
    void *buffer;
    const char *datatype;
    size_t count;
    int peer;
};

struct nccl_descr_v2 {
    uint8_t type;
    void *parent;
    int rank;
    union {
        struct {
            const char *comm_name;
            uint64_t comm_hash;
            uint64_t sequence;
            const char *func;
            const void *send_buffer;
            void *recv_buffer;
            size_t count;
            int root;
            const char *datatype;
            size_t traffic_bytes;
            uint8_t n_channels, n_warps;
            const char *algorithm, *protocol;
        } coll;
        struct nccl_p2p_v2 p2p;
        struct nccl_proxy_op proxy_op;
        int proxy_step;
    };
};

struct nccl_descr_v3 {
    uint8_t type;
    void *parent;
    int rank;
    union {
        struct {
            const char *comm_name;
            uint64_t comm_hash;
            uint64_t sequence;
            const char *func;
            const void *send_buffer;
            void *recv_buffer;
            size_t count;
            int root;
            const char *datatype;
            uint8_t n_channels, n_warps;
            const char *algorithm, *protocol;
        } coll;
        struct nccl_p2p_v2 p2p;
        struct nccl_proxy_op proxy_op;
        int proxy_step;
        struct nccl_kernel_ch kernel_ch; /* channel only: `timer` is not there */
        struct nccl_net net;
    };
};

struct nccl_coll_v4 {
    uint64_t sequence;
    const char *func;
    const void *send_buffer;
    void *recv_buffer;
    size_t count;
    int root;
    const char *datatype;
    uint8_t n_channels, n_warps;
    const char *algorithm, *protocol;
    void *group; /* from version 5, where `parent` is the call */
};

struct nccl_p2p_v4 {
    const char *func;
    void *buffer;
    const char *datatype;
    size_t count;
    int peer;
    uint8_t n_channels;
    void *group; /* from version 5 */
};

struct nccl_descr_v4 {
    uint8_t type;
    void *parent;
    int rank;
    union {
        struct nccl_coll_v4 coll; /* up to `group` */
        struct nccl_p2p_v4 p2p;   /* up to `group` */
        struct nccl_proxy_op proxy_op;
        int proxy_step;
        struct nccl_kernel_ch kernel_ch;
        struct nccl_net net;
    };
};

struct nccl_descr_v6 { /* 5 is the same without the copy engine's */
    uint64_t type;
    void *parent;
    int rank;
    union {
        struct {
            uint8_t is_captured; /* a bool, in the first 2.28 an int: its low byte */
            int depth;
        } group_call;
        struct {
            const char *func;
            size_t count;
            const char *datatype;
            int root;
            void *stream;
            uint8_t is_captured;
        } coll_call;
        struct {
            const char *func;
            size_t count;
            const char *datatype;
            void *stream;
            uint8_t is_captured;
        } p2p_call;
        struct {
            void *stream;
        } launch;
        struct nccl_coll_v4 coll;
        struct nccl_p2p_v4 p2p;
        struct nccl_proxy_op proxy_op;
        int proxy_step;
        struct nccl_kernel_ch kernel_ch;
        struct nccl_net net;
        struct {
            uint64_t sequence;
            const char *func;
            const void *send_buffer;
            void *recv_buffer;
            size_t count;
            int root;
            const char *datatype;
            const char *sync;
            uint8_t intra_batch_sync;
            uint32_t batch_size, n_batches;
            uint32_t ce_sequence;
            void *stream;
        } ce_coll;
        struct {
            uint8_t is_complete;
            int n_ranks;
        } ce_sync;
        struct {
            int n_ops;
            size_t size_bytes;
            uint8_t intra_sync;
        } ce_batch;
    };
};

/* What comes with a state; may be NULL. */
union nccl_state_args {
    struct {
        size_t transferred_bytes;
        int steps;
    } proxy_op; /* versions 1 to 3 */
    struct {
        size_t transferred_bytes;
    } proxy_step; /* from version 4 */
    struct {
        int n_appended;
    } proxy_ctrl;
    struct {
        void *data;
    } net;
    struct {
        uint64_t timer;
    } kernel_ch;
};

/* The tables. The functions' results are enum values, so ints. */
struct nccl_profiler_v1 {
    const char *name;
    int (*init)(void **context, int *mask);
    int (*start_event)(void *context, void **handle, struct nccl_descr_v1 *);
    int (*stop_event)(void *handle);
    int (*record_state)(void *handle, int state, union nccl_state_args *);
    int (*finalize)(void *context);
};

struct nccl_profiler_v2 {
    const char *name;
    int (*init)(void **context, int *mask);
    int (*start_event)(void *context, void **handle, struct nccl_descr_v2 *);
    int (*stop_event)(void *handle);
    int (*record_state)(void *handle, int state, union nccl_state_args *);
    int (*finalize)(void *context);
};

struct nccl_profiler_v3 {
    const char *name;
    int (*init)(void **context, int *mask);
    int (*start_event)(void *context, void **handle, struct nccl_descr_v3 *);
    int (*stop_event)(void *handle);
    int (*record_state)(void *handle, int state, union nccl_state_args *);
    int (*finalize)(void *context);
};

typedef void nccl_logger(int level, unsigned long flags, const char *file, int line,
                         const char *format, ...);

struct nccl_profiler_v4 {
    const char *name;
    int (*init)(void **context, int *mask, const char *comm_name, uint64_t comm_hash, int n_nodes,
                int n_ranks, int rank, nccl_logger *);
    int (*start_event)(void *context, void **handle, struct nccl_descr_v4 *);
    int (*stop_event)(void *handle);
    int (*record_state)(void *handle, int state, union nccl_state_args *);
    int (*finalize)(void *context);
};

struct nccl_profiler_v6 { /* and 5 */
    const char *name;
    int (*init)(void **context, uint64_t comm_hash, int *mask, const char *comm_name, int n_nodes,
                int n_ranks, int rank, nccl_logger *);
    int (*start_event)(void *context, void **handle, struct nccl_descr_v6 *);
    int (*stop_event)(void *handle);
    int (*record_state)(void *handle, int state, union nccl_state_args *);
    int (*finalize)(void *context);
};

#define NCCL_AT(type, member, offset)                                                              \
    _Static_assert(offsetof(struct type, member) == (offset), #type "." #member)

NCCL_AT(nccl_descr_v1, parent, 8);
NCCL_AT(nccl_descr_v1, rank, 16);
NCCL_AT(nccl_descr_v1, coll.comm_name, 24);
NCCL_AT(nccl_descr_v1, coll.func, 48);
NCCL_AT(nccl_descr_v1, coll.send_buffer, 56);
NCCL_AT(nccl_descr_v1, coll.count, 72);
NCCL_AT(nccl_descr_v1, coll.datatype, 84);
NCCL_AT(nccl_descr_v1, coll.op, 88);
NCCL_AT(nccl_descr_v1, coll.n_channels, 104);
NCCL_AT(nccl_descr_v1, coll.protocol, 107);
NCCL_AT(nccl_descr_v1, coll.is_nvls, 112);
NCCL_AT(nccl_descr_v1, p2p.func, 40);
NCCL_AT(nccl_descr_v1, p2p.buffer, 48);
NCCL_AT(nccl_descr_v1, p2p.datatype, 56);
NCCL_AT(nccl_descr_v1, p2p.peer, 72);
NCCL_AT(nccl_descr_v1, proxy_op.channel, 28);
NCCL_AT(nccl_descr_v1, proxy_op.is_send, 44);
NCCL_AT(nccl_descr_v2, coll.func, 48);
NCCL_AT(nccl_descr_v2, coll.datatype, 88);
NCCL_AT(nccl_descr_v2, coll.n_channels, 104);
NCCL_AT(nccl_descr_v2, coll.algorithm, 112);
NCCL_AT(nccl_descr_v2, p2p.datatype, 56);
NCCL_AT(nccl_descr_v2, p2p.peer, 72);
NCCL_AT(nccl_descr_v3, coll.datatype, 88);
NCCL_AT(nccl_descr_v3, coll.n_channels, 96);
NCCL_AT(nccl_descr_v3, coll.protocol, 112);
NCCL_AT(nccl_descr_v3, net.data, 32);
NCCL_AT(nccl_descr_v4, coll.sequence, 24);
NCCL_AT(nccl_descr_v4, coll.root, 64);
NCCL_AT(nccl_descr_v4, coll.n_channels, 80);
NCCL_AT(nccl_descr_v4, coll.protocol, 96);
NCCL_AT(nccl_descr_v4, p2p.datatype, 40);
NCCL_AT(nccl_descr_v4, p2p.n_channels, 60);
NCCL_AT(nccl_descr_v4, kernel_ch.timer, 32);
NCCL_AT(nccl_descr_v6, coll.group, 104);
NCCL_AT(nccl_descr_v6, p2p.group, 64);
NCCL_AT(nccl_descr_v6, group_call.depth, 28);
NCCL_AT(nccl_descr_v6, coll_call.root, 48);
NCCL_AT(nccl_descr_v6, coll_call.is_captured, 64);
NCCL_AT(nccl_descr_v6, p2p_call.is_captured, 56);
NCCL_AT(nccl_descr_v6, ce_coll.sync, 80);
NCCL_AT(nccl_descr_v6, ce_coll.batch_size, 92);
NCCL_AT(nccl_descr_v6, ce_coll.stream, 104);
NCCL_AT(nccl_descr_v6, ce_sync.n_ranks, 28);
NCCL_AT(nccl_descr_v6, ce_batch.intra_sync, 40);
NCCL_AT(nccl_net_ib, work.request, 16);
NCCL_AT(nccl_net_ib, work.size_bytes, 32);
NCCL_AT(nccl_net_socket, call.size_bytes, 16);
_Static_assert(sizeof(struct nccl_descr_v1) == 120, "nccl_descr_v1");
_Static_assert(sizeof(struct nccl_descr_v2) == 128, "nccl_descr_v2");
_Static_assert(sizeof(struct nccl_descr_v3) == 120, "nccl_descr_v3");
_Static_assert(sizeof(struct nccl_descr_v6) == 112, "nccl_descr_v6");
_Static_assert(sizeof(struct nccl_profiler_v1) == 48, "nccl_profiler_v1");
#undef NCCL_AT
