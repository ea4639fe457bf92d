/* What NCCL does with a profiler plugin, without NCCL: loads it, finds an interface, and starts,
 * updates and stops events with that interface's own structs. Every event's record, as it has to be
 * in the log, is kept beside. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "nccl_abi.h"

#define N_VERSIONS 6
#define NAME_BYTES 32

struct plugin {
    void *library;
    int (*start)(const char *path, int rank);
    void (*stop)(void);
    void (*mark)(const char *name);
    int (*stats)(uint64_t out[4]);
};

/* One that the plugin is told of. */
struct host_comm {
    int version;
    void *table; /* ncclProfiler_v<version> */
    void *context;
    int *mask;
    int rank, n_ranks, n_nodes;
    uint64_t hash;
    const char *name;
};

/* What an event is about, for all interfaces and types; each takes what it knows. */
struct facts {
    uint64_t sequence, count;
    int func, datatype, algorithm, protocol; /* NCCL's own numbers */
    int root, n_channels, n_warps;
    int peer, channel, n_steps, chunk_bytes, is_send;
    int pid; /* 0: our own */
    int step;
    uint64_t gpu_start;
    int64_t net_plugin;
    void *net_data;
    void *group, *stream, *send_buffer, *recv_buffer;
    int depth, is_captured, is_complete, n_ops;
};

#define RANK_OR_UNKNOWN INT32_MIN /* up to interface 3, until an operation has told it */

struct expected {
    struct record_nccl_event record;
    const char *func, *datatype, *algorithm, *protocol, *sync;
    uint64_t comm_hash;
    int64_t start_after, stop_before;
};

struct journal { /* of all threads */
    pthread_mutex_t mutex;
    struct expected *events;
    size_t n, room;
};

struct event {
    const struct host_comm *comm;
    void *handle;
    struct expected expected;
};

extern const char *const host_funcs[8], *const host_datatypes[12], *const host_algorithms[7],
                                                                       *const host_protocols[3];

bool plugin_load(struct plugin *plugin, const char *path);
/* As NCCL of that version does: the newest that it and the plugin know. 0: none. */
int plugin_version(const struct plugin *plugin, int nccl_knows);

int host_init(struct host_comm *comm, const struct plugin *plugin, int version, int *mask);
int host_finalize(struct host_comm *comm);

int64_t host_now(void);
/* NULL handles, also as parents, are as NCCL has them when an event was not recorded. */
void host_start(struct event *event, const struct host_comm *comm, enum nccl_event type,
                void *parent, const struct facts *facts);
/* As it is, whatever it is. */
int host_raw_start(const struct host_comm *comm, void *context, void **handle, void *descriptor);
int host_raw_state(const struct host_comm *comm, void *handle, int state, void *args);
int host_raw_stop(const struct host_comm *comm, void *handle);
/* `value`: of the one argument that comes with the state. */
void host_state(struct event *event, int state, uint64_t value);
void host_stop(struct event *event, struct journal *journal);
bool host_knows(int version, enum nccl_event type);
