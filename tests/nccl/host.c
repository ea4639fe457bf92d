#include "host.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const char *const host_funcs[8] = {"Broadcast", "Reduce",   "AllGather", "ReduceScatter",
                                   "AllReduce", "SendRecv", "Send",      "Recv"};
const char *const host_datatypes[12] = {"ncclInt8",     "ncclUint8",      "ncclInt32",
                                        "ncclUint32",   "ncclInt64",      "ncclUint64",
                                        "ncclFloat16",  "ncclFloat32",    "ncclFloat64",
                                        "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2"};
static const int datatype_bytes[12] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
const char *const host_algorithms[7] = {
    "TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"};
const char *const host_protocols[3] = {"LL", "LL128", "SIMPLE"};

bool plugin_load(struct plugin *plugin, const char *path)
{
    plugin->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!plugin->library) {
        fprintf(stderr, "%s\n", dlerror());
        return false;
    }
    *(void **)&plugin->start = dlsym(plugin->library, "dpro_nccl_start");
    *(void **)&plugin->stop = dlsym(plugin->library, "dpro_nccl_stop");
    *(void **)&plugin->mark = dlsym(plugin->library, "dpro_nccl_mark");
    *(void **)&plugin->stats = dlsym(plugin->library, "dpro_nccl_stats");
    return plugin->start && plugin->stop && plugin->mark && plugin->stats;
}

static void *table_of(const struct plugin *plugin, int version)
{
    char symbol[32];
    snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", version);
    return dlsym(plugin->library, symbol);
}

int plugin_version(const struct plugin *plugin, int nccl_knows)
{
    int version = nccl_knows;
    while (version > 0 && !table_of(plugin, version))
        version--;
    return version;
}

int64_t host_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void log_nothing(int level, unsigned long flags, const char *file, int line,
                        const char *format, ...)
{
    (void)level, (void)flags, (void)file, (void)line, (void)format;
}

int host_init(struct host_comm *c, const struct plugin *plugin, int version, int *mask)
{
    c->version = version;
    c->table = table_of(plugin, version);
    c->mask = mask;
    c->context = NULL;
    if (!c->table)
        return -1;
    switch (version) {
    case 1:
    case 2:
    case 3:
        return ((struct nccl_profiler_v1 *)c->table)->init(&c->context, mask);
    case 4:
        return ((struct nccl_profiler_v4 *)c->table)
            ->init(&c->context, mask, c->name, c->hash, c->n_nodes, c->n_ranks, c->rank,
                   log_nothing);
    default:
        return ((struct nccl_profiler_v6 *)c->table)
            ->init(&c->context, c->hash, mask, c->name, c->n_nodes, c->n_ranks, c->rank,
                   log_nothing);
    }
}

/* The tables differ in what their functions take; the places of the functions are the same. */
int host_finalize(struct host_comm *c)
{
    return ((struct nccl_profiler_v1 *)c->table)->finalize(c->context);
}

int host_raw_start(const struct host_comm *c, void *context, void **handle, void *descriptor)
{
    return ((struct nccl_profiler_v1 *)c->table)->start_event(context, handle, descriptor);
}

int host_raw_state(const struct host_comm *c, void *handle, int state, void *args)
{
    return ((struct nccl_profiler_v1 *)c->table)->record_state(handle, state, args);
}

int host_raw_stop(const struct host_comm *c, void *handle)
{
    return ((struct nccl_profiler_v1 *)c->table)->stop_event(handle);
}

bool host_knows(int version, enum nccl_event type)
{
    static const int types[] = {0,        NCCL_PROXY_CTRL, NCCL_PROXY_CTRL, NCCL_NET,
                                NCCL_NET, NCCL_LAUNCH,     NCCL_CE_BATCH};
    return (int)type <= types[version];
}

/* ---- descriptors ---- */

static struct nccl_proxy_op proxy_op_of(const struct facts *f)
{
    return (struct nccl_proxy_op){f->pid ? f->pid : getpid(),
                                  (uint8_t)f->channel,
                                  f->peer,
                                  f->n_steps,
                                  f->chunk_bytes,
                                  f->is_send};
}

#define DESCRIBE_PROXY(d, f)                                                                       \
    case NCCL_PROXY_OP:                                                                            \
        (d)->proxy_op = proxy_op_of(f);                                                            \
        break;                                                                                     \
    case NCCL_PROXY_STEP:                                                                          \
        (d)->proxy_step = (f)->step;                                                               \
        break;

#define DESCRIBE_NET(d, f)                                                                         \
    case NCCL_NET:                                                                                 \
        (d)->net = (struct nccl_net){(f)->net_plugin, (f)->net_data};                              \
        break;

#define DESCRIBE_DEVICE(d, f)                                                                      \
    case NCCL_KERNEL_CH:                                                                           \
        (d)->kernel_ch = (struct nccl_kernel_ch){(uint8_t)(f)->channel, (f)->gpu_start};           \
        break;                                                                                     \
        DESCRIBE_NET(d, f)

/* Of what all interfaces have, the first has numbers in place of texts. */
#define NUMBER(texts, n) ((uint8_t)(n))
#define TEXT(texts, n)   (texts[n])

#define DESCRIBE_COLL(d, f, AS)                                                                    \
    do {                                                                                           \
        (d)->coll.sequence = (f)->sequence;                                                        \
        (d)->coll.func = AS(host_funcs, (f)->func);                                                \
        (d)->coll.send_buffer = (f)->send_buffer;                                                  \
        (d)->coll.recv_buffer = (f)->recv_buffer;                                                  \
        (d)->coll.count = (f)->count;                                                              \
        (d)->coll.root = (f)->root;                                                                \
        (d)->coll.datatype = AS(host_datatypes, (f)->datatype);                                    \
        (d)->coll.n_channels = (uint8_t)(f)->n_channels;                                           \
        (d)->coll.n_warps = (uint8_t)(f)->n_warps;                                                 \
        (d)->coll.algorithm = AS(host_algorithms, (f)->algorithm);                                 \
        (d)->coll.protocol = AS(host_protocols, (f)->protocol);                                    \
    } while (0)

#define DESCRIBE_P2P(d, f, AS)                                                                     \
    do {                                                                                           \
        (d)->p2p.func = AS(host_funcs, (f)->func);                                                 \
        (d)->p2p.buffer = (f)->send_buffer;                                                        \
        (d)->p2p.datatype = AS(host_datatypes, (f)->datatype);                                     \
        (d)->p2p.count = (f)->count;                                                               \
        (d)->p2p.peer = (f)->peer;                                                                 \
    } while (0)

/* Up to interface 3 tasks name their communicator. */
#define DESCRIBE_NAMED(d, c, f, AS)                                                                \
    case NCCL_COLL:                                                                                \
        (d)->coll.comm_name = (c)->name;                                                           \
        (d)->coll.comm_hash = (c)->hash;                                                           \
        DESCRIBE_COLL(d, f, AS);                                                                   \
        break;                                                                                     \
    case NCCL_P2P:                                                                                 \
        (d)->p2p.comm_name = (c)->name;                                                            \
        (d)->p2p.comm_hash = (c)->hash;                                                            \
        DESCRIBE_P2P(d, f, AS);                                                                    \
        break;                                                                                     \
        DESCRIBE_PROXY(d, f)

static void describe_v1(struct nccl_descr_v1 *d, const struct host_comm *c, const struct facts *f)
{
    switch (__builtin_ctz(d->type)) {
        DESCRIBE_NAMED(d, c, f, NUMBER)
    }
}

static void describe_v2(struct nccl_descr_v2 *d, const struct host_comm *c, const struct facts *f)
{
    switch (__builtin_ctz(d->type)) {
        DESCRIBE_NAMED(d, c, f, TEXT)
    }
}

static void describe_v3(struct nccl_descr_v3 *d, const struct host_comm *c, const struct facts *f)
{
    switch (__builtin_ctz(d->type)) {
        DESCRIBE_NAMED(d, c, f, TEXT)
        DESCRIBE_NET(d, f)
    case NCCL_KERNEL_CH:
        d->kernel_ch.channel = (uint8_t)f->channel;
        break;
    }
}

static void describe_v4(struct nccl_descr_v4 *d, const struct facts *f)
{
    switch (__builtin_ctz(d->type)) {
    case NCCL_COLL:
        DESCRIBE_COLL(d, f, TEXT);
        break;
    case NCCL_P2P:
        DESCRIBE_P2P(d, f, TEXT);
        d->p2p.n_channels = (uint8_t)f->n_channels;
        break;
        DESCRIBE_PROXY(d, f)
        DESCRIBE_DEVICE(d, f)
    }
}

static void describe_v6(struct nccl_descr_v6 *d, const struct facts *f)
{
    switch (__builtin_ctzll(d->type)) {
    case NCCL_GROUP_CALL:
        d->group_call.is_captured = (uint8_t)f->is_captured;
        d->group_call.depth = f->depth;
        break;
    case NCCL_COLL_CALL:
        d->coll_call.func = host_funcs[f->func];
        d->coll_call.count = f->count;
        d->coll_call.datatype = host_datatypes[f->datatype];
        d->coll_call.root = f->root;
        d->coll_call.stream = f->stream;
        d->coll_call.is_captured = (uint8_t)f->is_captured;
        break;
    case NCCL_P2P_CALL:
        d->p2p_call.func = host_funcs[f->func];
        d->p2p_call.count = f->count;
        d->p2p_call.datatype = host_datatypes[f->datatype];
        d->p2p_call.stream = f->stream;
        d->p2p_call.is_captured = (uint8_t)f->is_captured;
        break;
    case NCCL_LAUNCH:
        d->launch.stream = f->stream;
        break;
    case NCCL_COLL:
        DESCRIBE_COLL(d, f, TEXT);
        d->coll.group = f->group;
        break;
    case NCCL_P2P:
        DESCRIBE_P2P(d, f, TEXT);
        d->p2p.n_channels = (uint8_t)f->n_channels;
        d->p2p.group = f->group;
        break;
        DESCRIBE_PROXY(d, f)
        DESCRIBE_DEVICE(d, f)
    case NCCL_CE_COLL:
        d->ce_coll.sequence = f->sequence;
        d->ce_coll.func = host_funcs[f->func];
        d->ce_coll.send_buffer = f->send_buffer;
        d->ce_coll.recv_buffer = f->recv_buffer;
        d->ce_coll.count = f->count;
        d->ce_coll.root = f->root;
        d->ce_coll.datatype = host_datatypes[f->datatype];
        d->ce_coll.sync = "MC";
        d->ce_coll.batch_size = 4;
        d->ce_coll.n_batches = 2;
        d->ce_coll.stream = f->stream;
        break;
    case NCCL_CE_SYNC:
        d->ce_sync.is_complete = (uint8_t)f->is_complete;
        d->ce_sync.n_ranks = f->n_channels;
        break;
    case NCCL_CE_BATCH:
        d->ce_batch.n_ops = f->n_ops;
        d->ce_batch.size_bytes = f->count;
        d->ce_batch.intra_sync = (uint8_t)f->is_complete;
        break;
    }
}

/* ---- what has to be in the log ---- */

static uint64_t address(const void *pointer)
{
    return (uint64_t)(uintptr_t)pointer;
}

static void expect(struct expected *x, const struct host_comm *c, const struct facts *f)
{
    struct record_nccl_event *r = &x->record;
    int v = c->version;
    uint64_t size_bytes = f->count * (uint64_t)datatype_bytes[f->datatype];
    bool has_texts = r->type == NCCL_COLL || r->type == NCCL_P2P || r->type == NCCL_COLL_CALL ||
                     r->type == NCCL_P2P_CALL || r->type == NCCL_CE_COLL;
    x->comm_hash = c->hash;
    if (has_texts) {
        x->func = host_funcs[f->func];
        x->datatype = host_datatypes[f->datatype];
    }
    switch (r->type) {
    case NCCL_COLL:
        x->algorithm = host_algorithms[f->algorithm];
        x->protocol = host_protocols[f->protocol];
        r->coll.sequence = f->sequence;
        r->coll.count = f->count;
        r->coll.size_bytes = size_bytes;
        r->coll.send_buffer = address(f->send_buffer);
        r->coll.recv_buffer = address(f->recv_buffer);
        r->coll.group = v >= 5 ? address(f->group) : 0;
        r->coll.root = f->root;
        r->coll.n_channels = (uint16_t)f->n_channels;
        r->coll.n_warps = (uint16_t)f->n_warps;
        break;
    case NCCL_P2P:
        r->p2p.count = f->count;
        r->p2p.size_bytes = size_bytes;
        r->p2p.buffer = address(f->send_buffer);
        r->p2p.group = v >= 5 ? address(f->group) : 0;
        r->p2p.peer = f->peer;
        r->p2p.n_channels = v >= 4 ? (uint32_t)f->n_channels : 0;
        break;
    case NCCL_PROXY_OP:
        r->pid = (uint32_t)(f->pid ? f->pid : getpid());
        r->flags = (uint8_t)((f->is_send ? NCCL_SEND : NCCL_RECV) | (f->pid ? NCCL_FOREIGN : 0));
        r->proxy_op.peer = f->peer;
        r->proxy_op.channel = f->channel;
        r->proxy_op.n_steps = f->n_steps;
        r->proxy_op.chunk_bytes = (uint32_t)f->chunk_bytes;
        break;
    case NCCL_PROXY_STEP:
        r->proxy_step.step = f->step;
        break;
    case NCCL_KERNEL_CH:
        r->kernel_ch.channel = (uint32_t)f->channel;
        r->kernel_ch.gpu_start = v >= 4 ? f->gpu_start : 0;
        break;
    case NCCL_NET:
        r->net.plugin = (uint64_t)f->net_plugin;
        if (f->net_plugin == NCCL_NET_IB_V1) {
            const struct nccl_net_ib *ib = f->net_data;
            r->net.size_bytes = ib->work.size_bytes;
            r->net.request = ib->work.request;
            r->net.device = ib->work.device;
            r->net.op = ib->work.opcode;
            r->net.object = ib->work.queue_pair;
        } else if (f->net_plugin == NCCL_NET_SOCKET_V1) {
            const struct nccl_net_socket *socket = f->net_data;
            r->net.size_bytes = socket->call.size_bytes;
            r->net.op = socket->call.op;
            r->net.object = socket->call.fd;
        }
        break;
    case NCCL_COLL_CALL:
    case NCCL_P2P_CALL:
        r->call.count = f->count;
        r->call.size_bytes = size_bytes;
        r->call.root = r->type == NCCL_COLL_CALL ? f->root : 0;
        r->call.stream = address(f->stream);
        r->flags = f->is_captured ? NCCL_CAPTURED : 0;
        break;
    case NCCL_GROUP_CALL:
        r->call.depth = f->depth;
        r->flags = f->is_captured ? NCCL_CAPTURED : 0;
        break;
    case NCCL_LAUNCH:
        r->call.stream = address(f->stream);
        break;
    case NCCL_CE_COLL:
        x->sync = "MC";
        r->ce_coll.sequence = f->sequence;
        r->ce_coll.count = f->count;
        r->ce_coll.size_bytes = size_bytes;
        r->ce_coll.send_buffer = address(f->send_buffer);
        r->ce_coll.recv_buffer = address(f->recv_buffer);
        r->ce_coll.stream = address(f->stream);
        r->ce_coll.root = f->root;
        r->ce_coll.batch_size = 4;
        r->ce_coll.n_batches = 2;
        break;
    case NCCL_CE_SYNC:
        r->ce_sync.n_ranks = f->n_channels;
        r->ce_sync.complete = f->is_complete != 0;
        break;
    case NCCL_CE_BATCH:
        r->ce_batch.n_ops = f->n_ops;
        r->ce_batch.size_bytes = f->count;
        r->ce_batch.intra_sync = f->is_complete != 0;
        break;
    }
}

void host_start(struct event *e, const struct host_comm *c, enum nccl_event type, void *parent,
                const struct facts *f)
{
    union {
        struct nccl_descr_v1 v1;
        struct nccl_descr_v2 v2;
        struct nccl_descr_v3 v3;
        struct nccl_descr_v4 v4;
        struct nccl_descr_v6 v6;
    } d;
    /* NCCL leaves the rank out of some, and what an interface's struct has not is not there */
    bool has_rank = type == NCCL_COLL || type == NCCL_P2P || type == NCCL_PROXY_OP ||
                    type == NCCL_PROXY_STEP || type == NCCL_NET;
    memset(&d, 0xa5, sizeof d);
    memset(e, 0, sizeof *e);
    if (!host_knows(c->version, type))
        return;
    e->comm = c;
    e->expected.record.type = (uint8_t)type;
    e->expected.record.parent = address(parent);
    e->expected.record.rank = has_rank || c->version > 3 ? c->rank : RANK_OR_UNKNOWN;
    expect(&e->expected, c, f);
    if (c->version >= 5)
        d.v6.type = (uint64_t)1 << type;
    else
        d.v1.type = (uint8_t)(1 << type);
    d.v1.parent = parent;
    d.v1.rank = has_rank ? c->rank : 0;
    switch (c->version) {
    case 1:
        describe_v1(&d.v1, c, f);
        break;
    case 2:
        describe_v2(&d.v2, c, f);
        break;
    case 3:
        describe_v3(&d.v3, c, f);
        break;
    case 4:
        describe_v4(&d.v4, f);
        break;
    default:
        describe_v6(&d.v6, f);
    }
    e->expected.start_after = host_now();
    host_raw_start(c, c->context, &e->handle, &d);
    e->expected.record.event = address(e->handle);
}

void host_state(struct event *e, int state, uint64_t value)
{
    union nccl_state_args args;
    if (!e->handle)
        return;
    memset(&args, 0xa5, sizeof args);
    if (e->expected.record.type == NCCL_PROXY_OP && state <= NCCL_STATE_OP_RECV_DONE) {
        args.proxy_op.transferred_bytes = value;
        args.proxy_op.steps = 3;
    } else if (e->expected.record.type == NCCL_PROXY_CTRL) {
        args.proxy_ctrl.n_appended = (int)value;
    } else {
        args.kernel_ch.timer = value; /* any of the eight-byte ones */
    }
    host_raw_state(e->comm, e->handle, state, &args);
}

void host_stop(struct event *e, struct journal *journal)
{
    if (!e->handle)
        return;
    host_raw_stop(e->comm, e->handle);
    e->expected.stop_before = host_now();
    if (!journal)
        return;
    pthread_mutex_lock(&journal->mutex);
    if (journal->n == journal->room) {
        journal->room = journal->room ? 2 * journal->room : 1024;
        journal->events = realloc(journal->events, journal->room * sizeof *journal->events);
    }
    journal->events[journal->n++] = e->expected;
    pthread_mutex_unlock(&journal->mutex);
}
