/* NCCL's profiler plugin: writes one record for each event that NCCL tells of, when it stops.
 *
 * Nothing on NCCL's paths allocates, locks or waits; communicators that come and go, and recording
 * that begins and ends, take one mutex. NCCL reads the activation mask, atomically and relaxed,
 * whenever an operation is enqueued: it is set only while there is a log to write to. What goes
 * wrong is never reported to NCCL, which would report it to the job. */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "log.h"
#include "nccl.h"
#include "nccl_abi.h"
#include "nccl_events.h"
#include "nccl_names.h"

#define EXPORT __attribute__((visibility("default")))

/* From here on NCCL counts a kernel's work on a channel only while kernel events are asked for, the
 * GPU always: asked for later, they are paired wrongly, and NCCL's thread waits for the last. */
#define NCCL_COUNTS_ONLY_WHEN_ASKED 23100

static _Atomic int own_pid;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* the following, and who is in comms */
static uint32_t n_comms_seen, n_comms;
static int asked_types = -1; /* DPRO_NCCL_EVENTS */
static bool in_window, from_start, full_said;
static _Atomic bool recording;
static int tried_pid; /* which process has begun, or failed to begin, its log by itself */

/* ---- what the types are made of ---- */

static uint64_t bytes_of(const char *datatype, uint64_t count)
{
    uint64_t bits = 0; /* the names have their width: ncclFloat32, ncclFloat8e4m3 */
    const char *p = datatype ? datatype + strcspn(datatype, "0123456789") : "";
    for (; *p >= '0' && *p <= '9' && bits < 1000; p++)
        bits = bits * 10 + (uint64_t)(*p - '0');
    return count * (bits / 8);
}

static uint64_t address(const void *pointer)
{
    return (uint64_t)(uintptr_t)pointer;
}

static void fill_coll(struct record_nccl_event *e, const struct nccl_coll_v4 *d)
{
    e->coll.sequence = d->sequence;
    e->coll.count = d->count;
    e->coll.size_bytes = bytes_of(d->datatype, d->count);
    e->coll.send_buffer = address(d->send_buffer);
    e->coll.recv_buffer = address(d->recv_buffer);
    e->coll.func = name_number(d->func);
    e->coll.datatype = name_number(d->datatype);
    e->coll.algorithm = name_number(d->algorithm);
    e->coll.protocol = name_number(d->protocol);
    e->coll.root = d->root;
    e->coll.n_channels = d->n_channels;
    e->coll.n_warps = d->n_warps;
}

static void fill_p2p(struct record_nccl_event *e, const struct nccl_p2p_v4 *d, uint32_t n_channels)
{
    e->p2p.count = d->count;
    e->p2p.size_bytes = bytes_of(d->datatype, d->count);
    e->p2p.buffer = address(d->buffer);
    e->p2p.func = name_number(d->func);
    e->p2p.datatype = name_number(d->datatype);
    e->p2p.peer = d->peer;
    e->p2p.n_channels = n_channels;
}

static void fill_proxy_op(struct record_nccl_event *e, const struct nccl_proxy_op *d)
{
    e->pid = (uint32_t)d->pid;
    e->flags |= d->is_send ? NCCL_SEND : NCCL_RECV;
    if (d->pid != atomic_load_explicit(&own_pid, memory_order_relaxed))
        e->flags |= NCCL_FOREIGN;
    e->proxy_op.peer = d->peer;
    e->proxy_op.channel = d->channel;
    e->proxy_op.n_steps = d->n_steps;
    e->proxy_op.chunk_bytes = (uint32_t)d->chunk_bytes;
}

static void fill_net(struct record_nccl_event *e, const struct nccl_net *d)
{
    e->net.plugin = (uint64_t)d->plugin;
    if (d->plugin == NCCL_NET_IB_V1 && d->data) {
        const struct nccl_net_ib *ib = d->data;
        if (ib->type == 1) {
            e->net.size_bytes = ib->work.size_bytes;
            e->net.request = ib->work.request;
            e->net.device = ib->work.device;
            e->net.op = ib->work.opcode;
            e->net.object = ib->work.queue_pair;
        }
    } else if (d->plugin == NCCL_NET_SOCKET_V1 && d->data) {
        const struct nccl_net_socket *socket = d->data;
        if (socket->type == 1) {
            e->net.size_bytes = socket->call.size_bytes;
            e->net.op = socket->call.op;
            e->net.object = socket->call.fd;
        }
    }
}

/* ---- starting: one function an interface ---- */

/* Members that interfaces have alike, at other places. */
#define FILL_PROXY(e, d)                                                                           \
    case NCCL_PROXY_OP:                                                                            \
        fill_proxy_op(e, &(d)->proxy_op);                                                          \
        break;                                                                                     \
    case NCCL_PROXY_STEP:                                                                          \
        (e)->proxy_step.step = (d)->proxy_step;                                                    \
        break;
#define FILL_DEVICE(e, d)                                                                          \
    case NCCL_KERNEL_CH:                                                                           \
        (e)->kernel_ch.channel = (d)->kernel_ch.channel;                                           \
        (e)->kernel_ch.gpu_start = (d)->kernel_ch.timer;                                           \
        break;                                                                                     \
    case NCCL_NET:                                                                                 \
        fill_net(e, &(d)->net);                                                                    \
        break;

static const char *name_of(const char *const *names, size_t n, unsigned number)
{
    return number < n ? names[number] : NULL;
}
#define NAME_OF(names, number) name_of(names, sizeof(names) / sizeof *(names), number)

static const char *const funcs_v1[] = {"Broadcast", "Reduce",   "AllGather", "ReduceScatter",
                                       "AllReduce", "SendRecv", "Send",      "Recv"};
static const char *const algorithms_v1[] = {
    "TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"};
static const char *const protocols_v1[] = {"LL", "LL128", "SIMPLE"};
static const char *const datatypes_v1[] = {"ncclInt8",     "ncclUint8",      "ncclInt32",
                                           "ncclUint32",   "ncclInt64",      "ncclUint64",
                                           "ncclFloat16",  "ncclFloat32",    "ncclFloat64",
                                           "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2"};

static void fill_v1(struct record_nccl_event *e, void *context, const struct nccl_descr_v1 *d)
{
    switch (e->type) {
    case NCCL_COLL: {
        struct nccl_coll_v4 coll = {.sequence = d->coll.sequence,
                                    .func = NAME_OF(funcs_v1, d->coll.func),
                                    .send_buffer = d->coll.send_buffer,
                                    .recv_buffer = d->coll.recv_buffer,
                                    .count = d->coll.count,
                                    .root = d->coll.root,
                                    .datatype = NAME_OF(datatypes_v1, d->coll.datatype),
                                    .n_channels = d->coll.n_channels,
                                    .n_warps = d->coll.n_warps,
                                    .algorithm = NAME_OF(algorithms_v1, d->coll.algorithm),
                                    .protocol = NAME_OF(protocols_v1, d->coll.protocol)};
        comm_learn(context, d->coll.comm_name, d->coll.comm_hash, d->rank);
        fill_coll(e, &coll);
        break;
    }
    case NCCL_P2P: {
        struct nccl_p2p_v4 p2p = {.func = NAME_OF(funcs_v1, d->p2p.func),
                                  .buffer = d->p2p.buffer,
                                  .datatype = NAME_OF(datatypes_v1, d->p2p.datatype),
                                  .count = d->p2p.count,
                                  .peer = d->p2p.peer};
        comm_learn(context, d->p2p.comm_name, d->p2p.comm_hash, d->rank);
        fill_p2p(e, &p2p, 0);
        break;
    }
        FILL_PROXY(e, d)
    }
}

static void fill_p2p_v2(struct record_nccl_event *e, void *context, const struct nccl_p2p_v2 *d,
                        int rank)
{
    struct nccl_p2p_v4 p2p = {.func = d->func,
                              .buffer = d->buffer,
                              .datatype = d->datatype,
                              .count = d->count,
                              .peer = d->peer};
    comm_learn(context, d->comm_name, d->comm_hash, rank);
    fill_p2p(e, &p2p, 0);
}

/* Interfaces 2 and 3 differ by a field in the middle of the collective. */
#define FILL_NAMED(e, context, d)                                                                  \
    case NCCL_COLL: {                                                                              \
        struct nccl_coll_v4 coll = {.sequence = (d)->coll.sequence,                                \
                                    .func = (d)->coll.func,                                        \
                                    .send_buffer = (d)->coll.send_buffer,                          \
                                    .recv_buffer = (d)->coll.recv_buffer,                          \
                                    .count = (d)->coll.count,                                      \
                                    .root = (d)->coll.root,                                        \
                                    .datatype = (d)->coll.datatype,                                \
                                    .n_channels = (d)->coll.n_channels,                            \
                                    .n_warps = (d)->coll.n_warps,                                  \
                                    .algorithm = (d)->coll.algorithm,                              \
                                    .protocol = (d)->coll.protocol};                               \
        comm_learn(context, (d)->coll.comm_name, (d)->coll.comm_hash, (d)->rank);                  \
        fill_coll(e, &coll);                                                                       \
        break;                                                                                     \
    }                                                                                              \
    case NCCL_P2P:                                                                                 \
        fill_p2p_v2(e, context, &(d)->p2p, (d)->rank);                                             \
        break;

static void fill_v2(struct record_nccl_event *e, void *context, const struct nccl_descr_v2 *d)
{
    switch (e->type) {
        FILL_NAMED(e, context, d)
        FILL_PROXY(e, d)
    }
}

static void fill_v3(struct record_nccl_event *e, void *context, const struct nccl_descr_v3 *d)
{
    switch (e->type) {
        FILL_NAMED(e, context, d)
        FILL_PROXY(e, d)
    case NCCL_KERNEL_CH:
        e->kernel_ch.channel = d->kernel_ch.channel;
        break;
    case NCCL_NET:
        fill_net(e, &d->net);
        break;
    }
}

static void fill_v4(struct record_nccl_event *e, const struct nccl_descr_v4 *d)
{
    switch (e->type) {
    case NCCL_COLL:
        fill_coll(e, &d->coll);
        break;
    case NCCL_P2P:
        fill_p2p(e, &d->p2p, d->p2p.n_channels);
        break;
        FILL_PROXY(e, d)
        FILL_DEVICE(e, d)
    }
}

static void fill_call(struct record_nccl_event *e, const char *func, const char *datatype,
                      uint64_t count, int root, const void *stream, bool is_captured)
{
    e->call.func = name_number(func);
    e->call.datatype = name_number(datatype);
    e->call.count = count;
    e->call.size_bytes = bytes_of(datatype, count);
    e->call.root = root;
    e->call.stream = address(stream);
    e->flags |= is_captured ? NCCL_CAPTURED : 0;
}

static void fill_ce(struct record_nccl_event *e, const struct nccl_descr_v6 *d)
{
    switch (e->type) {
    case NCCL_CE_COLL:
        e->ce_coll.sequence = d->ce_coll.sequence;
        e->ce_coll.count = d->ce_coll.count;
        e->ce_coll.size_bytes = bytes_of(d->ce_coll.datatype, d->ce_coll.count);
        e->ce_coll.send_buffer = address(d->ce_coll.send_buffer);
        e->ce_coll.recv_buffer = address(d->ce_coll.recv_buffer);
        e->ce_coll.stream = address(d->ce_coll.stream);
        e->ce_coll.func = name_number(d->ce_coll.func);
        e->ce_coll.datatype = name_number(d->ce_coll.datatype);
        e->ce_coll.sync = name_number(d->ce_coll.sync);
        e->ce_coll.root = d->ce_coll.root;
        e->ce_coll.batch_size = d->ce_coll.batch_size;
        e->ce_coll.n_batches = d->ce_coll.n_batches;
        break;
    case NCCL_CE_SYNC:
        e->ce_sync.n_ranks = d->ce_sync.n_ranks;
        e->ce_sync.complete = d->ce_sync.is_complete != 0;
        break;
    case NCCL_CE_BATCH:
        e->ce_batch.n_ops = d->ce_batch.n_ops;
        e->ce_batch.size_bytes = d->ce_batch.size_bytes;
        e->ce_batch.intra_sync = d->ce_batch.intra_sync != 0;
        break;
    }
}

static void fill_v6(struct record_nccl_event *e, const struct nccl_descr_v6 *d)
{
    switch (e->type) {
    case NCCL_COLL:
        fill_coll(e, &d->coll);
        e->coll.group = address(d->coll.group);
        break;
    case NCCL_P2P:
        fill_p2p(e, &d->p2p, d->p2p.n_channels);
        e->p2p.group = address(d->p2p.group);
        break;
        FILL_PROXY(e, d)
        FILL_DEVICE(e, d)
    case NCCL_GROUP_CALL:
        e->call.depth = d->group_call.depth;
        e->flags |= d->group_call.is_captured ? NCCL_CAPTURED : 0;
        break;
    case NCCL_COLL_CALL:
        fill_call(e, d->coll_call.func, d->coll_call.datatype, d->coll_call.count,
                  d->coll_call.root, d->coll_call.stream, d->coll_call.is_captured);
        break;
    case NCCL_P2P_CALL:
        fill_call(e, d->p2p_call.func, d->p2p_call.datatype, d->p2p_call.count, 0,
                  d->p2p_call.stream, d->p2p_call.is_captured);
        break;
    case NCCL_LAUNCH:
        e->call.stream = address(d->launch.stream);
        break;
    default:
        fill_ce(e, d);
    }
}

#define START(version, fill)                                                                       \
    static int start_##version(void *context, void **handle, struct nccl_descr_##version *d)       \
    {                                                                                              \
        struct record_nccl_event *e = event_open(context, d->type, d->parent, d->rank);            \
        if (e)                                                                                     \
            fill;                                                                                  \
        *handle = e ? event_publish(e, context) : NULL;                                            \
        return NCCL_SUCCESS;                                                                       \
    }
START(v1, fill_v1(e, context, d))
START(v2, fill_v2(e, context, d))
START(v3, fill_v3(e, context, d))
START(v4, fill_v4(e, d))
START(v6, fill_v6(e, d))

/* ---- states and stopping: alike in all interfaces ---- */

static void first_time(int64_t *time_ns)
{
    if (*time_ns == 0) /* NCCL says some of them again and again while it polls */
        *time_ns = log_now();
}

static void set_op_state(struct record_nccl_event *e, int state, const union nccl_state_args *args)
{
    switch (state) {
    case NCCL_STATE_OP_IN_PROGRESS:
        first_time(&e->proxy_op.posted_ns);
        return;
    case NCCL_STATE_OP_SEND_POSTED:
    case NCCL_STATE_OP_RECV_POSTED:
        first_time(&e->proxy_op.posted_ns);
        break;
    case NCCL_STATE_OP_SEND_CLEAR:
    case NCCL_STATE_OP_RECV_RECEIVED:
        first_time(&e->proxy_op.ready_ns);
        break;
    case NCCL_STATE_OP_SEND_TRANSMITTED:
    case NCCL_STATE_OP_RECV_TRANSMITTED:
        first_time(&e->proxy_op.transmitted_ns);
        break;
    case NCCL_STATE_OP_SEND_DONE:
    case NCCL_STATE_OP_RECV_DONE:
        first_time(&e->proxy_op.done_ns);
        if (args)
            e->proxy_op.steps_done = (uint32_t)args->proxy_op.steps;
        break;
    default:
        return;
    }
    if (args && args->proxy_op.transferred_bytes > e->proxy_op.size_bytes)
        e->proxy_op.size_bytes = args->proxy_op.transferred_bytes;
}

static void set_step_state(struct record_nccl_event *e, int state,
                           const union nccl_state_args *args)
{
    bool is_send = state == NCCL_STATE_STEP_SEND_GPU || state == NCCL_STATE_STEP_SEND_PEER ||
                   state == NCCL_STATE_STEP_SEND_NET;
    switch (state) {
    case NCCL_STATE_STEP_SEND_GPU:
    case NCCL_STATE_STEP_RECV_GPU:
        first_time(&e->proxy_step.gpu_wait_ns);
        break;
    case NCCL_STATE_STEP_SEND_PEER:
        first_time(&e->proxy_step.peer_wait_ns);
        break;
    case NCCL_STATE_STEP_SEND_NET:
    case NCCL_STATE_STEP_RECV_NET:
        first_time(&e->proxy_step.net_wait_ns);
        break;
    case NCCL_STATE_STEP_RECV_FLUSH:
        first_time(&e->proxy_step.flush_wait_ns);
        break;
    default:
        return;
    }
    e->flags |= is_send ? NCCL_SEND : NCCL_RECV;
    /* in the other states it is still that of the step before */
    if (args && (state == NCCL_STATE_STEP_SEND_NET || state == NCCL_STATE_STEP_RECV_FLUSH))
        e->proxy_step.size_bytes = args->proxy_step.transferred_bytes;
}

static void set_ctrl_state(struct record_nccl_event *e, int state,
                           const union nccl_state_args *args)
{
    switch (state) {
    case NCCL_STATE_CTRL_IDLE:
        first_time(&e->proxy_ctrl.idle_ns);
        break;
    case NCCL_STATE_CTRL_ACTIVE:
        first_time(&e->proxy_ctrl.active_ns);
        break;
    case NCCL_STATE_CTRL_SLEEP:
        first_time(&e->proxy_ctrl.sleep_ns);
        break;
    case NCCL_STATE_CTRL_WAKEUP:
        first_time(&e->proxy_ctrl.wakeup_ns);
        break;
    case NCCL_STATE_CTRL_APPEND:
        first_time(&e->proxy_ctrl.append_ns);
        break;
    case NCCL_STATE_CTRL_APPEND_END:
        first_time(&e->proxy_ctrl.append_end_ns);
        if (args)
            e->proxy_ctrl.n_appended = (uint32_t)args->proxy_ctrl.n_appended;
        break;
    }
}

static void set_state(struct record_nccl_event *e, int state, const union nccl_state_args *args,
                      bool step_has_size)
{
    switch (e->type) {
    case NCCL_PROXY_OP:
        set_op_state(e, state, args);
        break;
    case NCCL_PROXY_STEP:
        set_step_state(e, state, step_has_size ? args : NULL);
        break;
    case NCCL_PROXY_CTRL:
        set_ctrl_state(e, state, args);
        break;
    case NCCL_KERNEL_CH:
        if (state == NCCL_STATE_KERNEL_STOP && args)
            e->kernel_ch.gpu_stop = args->kernel_ch.timer;
        break;
    case NCCL_NET:
        e->net.n_updates += state == NCCL_STATE_NET_UPDATE;
        break;
    case NCCL_GROUP_CALL:
        if (state == NCCL_STATE_GROUP_START_RETURNED)
            first_time(&e->call.start_returned_ns);
        else if (state == NCCL_STATE_GROUP_END_CALLED)
            first_time(&e->call.end_called_ns);
        break;
    }
}

static int record_state(void *handle, int state, union nccl_state_args *args)
{
    struct record_nccl_event *e = event_claim(handle);
    if (e) {
        set_state(e, state, args, true);
        event_unclaim(e);
    }
    return NCCL_SUCCESS;
}

static int record_state_v1(void *handle, int state, union nccl_state_args *args)
{
    struct record_nccl_event *e = event_claim(handle);
    if (e) {
        set_state(e, state, args, false);
        event_unclaim(e);
    }
    return NCCL_SUCCESS;
}

static int stop_event(void *handle)
{
    struct record_nccl_event *e = event_claim(handle);
    if (e)
        event_close(e, log_now());
    return NCCL_SUCCESS;
}

/* ---- recording ---- */

/* Under the mutex. */
static void set_mask(struct comm *c)
{
    struct record_nccl_comm r;
    int types = recording ? c->types & asked_types : 0;
    if (!from_start && comm_read(c, &r) && r.nccl_version >= NCCL_COUNTS_ONLY_WHEN_ASKED)
        types &= ~(1 << NCCL_KERNEL_CH);
    if (c->mask)
        __atomic_store_n(c->mask, types, __ATOMIC_RELAXED);
}

static void set_masks(void)
{
    for (uint32_t i = 0; i < N_COMMS; i++)
        if (comm_at(i))
            set_mask(comm_at(i));
}

static uint64_t number_in(const char *variable, uint64_t otherwise)
{
    char *end;
    const char *text = getenv(variable);
    if (!text || !*text)
        return otherwise;
    unsigned long long value = strtoull(text, &end, 0);
    return *end ? otherwise : value;
}

static bool is_set_to(const char *variable, const char *value)
{
    const char *text = getenv(variable);
    return text && strcmp(text, value) == 0;
}

static void after_fork_in_child(void)
{
    pthread_mutex_init(&mutex, NULL);
    recording = in_window = false;
}

static void know_this_process(void)
{
    static bool watches_forks;
    int pid = getpid();
    if (!watches_forks) {
        watches_forks = true;
        pthread_atfork(NULL, NULL, after_fork_in_child);
    }
    if (atomic_load_explicit(&own_pid, memory_order_relaxed) == pid)
        return;
    atomic_store_explicit(&own_pid, pid, memory_order_relaxed);
    atomic_store_explicit(&process_token,
                          ((uint64_t)log_now() / 1000 * 31 + (uint64_t)pid) & 0xffff,
                          memory_order_relaxed);
}

static int begin(const char *path, int rank)
{
    struct log_options options = {.kind = LOG_NCCL,
                                  .rank = rank,
                                  .max_bytes = number_in("DPRO_NET_MAX_MB", 0) << 20,
                                  .keep_newest = is_set_to("DPRO_NET_KEEP", "newest"),
                                  .on_segment = names_tell_all};
    names_in_new_log();
    int error = log_start(path, &options);
    if (error < 0)
        return error;
    asked_types = (int)number_in("DPRO_NCCL_EVENTS", (uint64_t)-1);
    recording = true;
    set_masks();
    return 0;
}

EXPORT int dpro_nccl_start(const char *path, int rank)
{
    pthread_mutex_lock(&mutex);
    know_this_process();
    int error = begin(path, rank);
    in_window = in_window || error == 0;
    pthread_mutex_unlock(&mutex);
    return error;
}

EXPORT void dpro_nccl_stop(void)
{
    pthread_mutex_lock(&mutex);
    if (in_window) {
        recording = in_window = false;
        set_masks();
        events_close(0, true);
        log_stop();
    }
    pthread_mutex_unlock(&mutex);
}

EXPORT void dpro_nccl_mark(const char *name)
{
    log_mark(name);
}

EXPORT int dpro_nccl_stats(uint64_t out[4])
{
    struct log_stats stats = log_stats();
    out[0] = stats.n_records;
    out[1] = stats.n_lost;
    out[2] = stats.file_bytes;
    out[3] = stats.memory_bytes + events_memory();
    return 0;
}

/* ---- communicators ---- */

static int make_folders(char *path)
{
    for (char *p = path + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        int error = mkdir(path, 0777) < 0 && errno != EEXIST ? -errno : 0;
        *p = '/';
        if (error < 0)
            return error;
    }
    return 0;
}

/* For programs without a recorder: a log of the whole process. */
static void begin_by_itself(void)
{
    static const char *const ranks[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
    char path[PATH_MAX], host[64] = "host";
    const char *folder = getenv("DPRO_OUT");
    int rank = -1;
    if (tried_pid == getpid() || !is_set_to("DPRO", "1") || !is_set_to("DPRO_NET", "all"))
        return;
    tried_pid = getpid();
    for (size_t i = 0; rank < 0 && i < sizeof ranks / sizeof *ranks; i++)
        rank = (int)number_in(ranks[i], (uint64_t)-1);
    gethostname(host, sizeof host - 1);
    int n = snprintf(path, sizeof path, "%s/nccl-%s-%d.log",
                     folder && *folder ? folder : "./dpro_trace", host, tried_pid);
    int error = n < (int)sizeof path ? make_folders(path) : -ENAMETOOLONG;
    if (error == 0)
        error = begin(path, rank);
    from_start = error == 0;
    if (error < 0 && error != -EALREADY)
        log_say("%s: %s; NCCL is not recorded, the job goes on", path, strerror(-error));
}

/* NCCL's version: of the library that `mask` is in, since a process can have several. */
static uint32_t nccl_version(int *mask)
{
    Dl_info info;
    int version = 0;
    if (!mask || !dladdr(mask, &info) || !info.dli_fname)
        return 0;
    void *library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (!library)
        return 0;
    int (*get_version)(int *);
    *(void **)&get_version = dlsym(library, "ncclGetVersion");
    if (get_version && get_version(&version) != NCCL_SUCCESS)
        version = 0;
    dlclose(library);
    return version > 0 ? (uint32_t)version : 0;
}

static int init(void **context, int *mask, uint32_t interface, int types, const char *name,
                uint64_t hash, int n_nodes, int n_ranks, int rank)
{
    struct record_nccl_comm r = {.rank = rank,
                                 .n_ranks = n_ranks,
                                 .n_nodes = n_nodes,
                                 .hash = hash,
                                 .nccl_version = nccl_version(mask),
                                 .interface = interface};
    int saved = errno;
    *context = NULL;
    if (name)
        memcpy(r.name, name, strnlen(name, sizeof r.name - 1));
    pthread_mutex_lock(&mutex);
    know_this_process();
    r.comm = ++n_comms_seen;
    begin_by_itself();
    struct comm *c = comm_add(&r);
    if (c) {
        n_comms++;
        c->mask = mask;
        c->types = types;
        *context = comm_context(c);
        set_mask(c);
        if (recording)
            comm_tell(c);
    } else if (!full_said) {
        full_said = true;
        log_say("more than %d NCCL communicators at once: events of further ones do not say whose "
                "they are",
                N_COMMS);
    }
    pthread_mutex_unlock(&mutex);
    errno = saved;
    return NCCL_SUCCESS;
}

static int init_v1(void **context, int *mask)
{
    return init(context, mask, 1, NCCL_TYPES_V1, NULL, 0, 0, 0, -1);
}

static int init_v2(void **context, int *mask)
{
    return init(context, mask, 2, NCCL_TYPES_V1, NULL, 0, 0, 0, -1);
}

static int init_v3(void **context, int *mask)
{
    return init(context, mask, 3, NCCL_TYPES_V3, NULL, 0, 0, 0, -1);
}

static int init_v4(void **context, int *mask, const char *name, uint64_t hash, int n_nodes,
                   int n_ranks, int rank, nccl_logger *logger)
{
    (void)logger;
    return init(context, mask, 4, NCCL_TYPES_V3, name, hash, n_nodes, n_ranks, rank);
}

static int init_v5(void **context, uint64_t hash, int *mask, const char *name, int n_nodes,
                   int n_ranks, int rank, nccl_logger *logger)
{
    (void)logger;
    return init(context, mask, 5, NCCL_TYPES_V5, name, hash, n_nodes, n_ranks, rank);
}

static int init_v6(void **context, uint64_t hash, int *mask, const char *name, int n_nodes,
                   int n_ranks, int rank, nccl_logger *logger)
{
    (void)logger;
    return init(context, mask, 6, NCCL_TYPES_V6, name, hash, n_nodes, n_ranks, rank);
}

static int finalize(void *context)
{
    pthread_mutex_lock(&mutex);
    struct comm *c = comm_of(context);
    if (c) {
        bool last = --n_comms == 0;
        events_close(comm_number(c), last);
        if (last && c->mask)
            __atomic_store_n(c->mask, 0, __ATOMIC_RELAXED);
        c->mask = NULL; /* NCCL may be unloaded after its last communicator */
        comm_remove(c);
    }
    pthread_mutex_unlock(&mutex);
    return NCCL_SUCCESS;
}

/* What was recorded until exit is written. NCCL may be gone: its masks stay as they are. Whoever
 * holds the mutex may be the one whose signal handler called exit. */
__attribute__((destructor)) static void at_exit(void)
{
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec++;
    if (!recording || pthread_mutex_timedlock(&mutex, &limit) != 0)
        return;
    events_close(0, true);
    log_stop();
    recording = false;
    pthread_mutex_unlock(&mutex);
}

EXPORT struct nccl_profiler_v1 ncclProfiler_v1 = {"dpro",     init_v1,         start_v1,
                                                  stop_event, record_state_v1, finalize};
EXPORT struct nccl_profiler_v2 ncclProfiler_v2 = {"dpro",     init_v2,         start_v2,
                                                  stop_event, record_state_v1, finalize};
EXPORT struct nccl_profiler_v3 ncclProfiler_v3 = {"dpro",     init_v3,         start_v3,
                                                  stop_event, record_state_v1, finalize};
EXPORT struct nccl_profiler_v4 ncclProfiler_v4 = {"dpro",     init_v4,      start_v4,
                                                  stop_event, record_state, finalize};
EXPORT struct nccl_profiler_v6 ncclProfiler_v5 = {"dpro",     init_v5,      start_v6,
                                                  stop_event, record_state, finalize};
EXPORT struct nccl_profiler_v6 ncclProfiler_v6 = {"dpro",     init_v6,      start_v6,
                                                  stop_event, record_state, finalize};
