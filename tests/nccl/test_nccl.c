/* NCCL's profiler plugin records every event with what it was, and harms nothing. The plugin to try
 * is the program's first argument, fake_nccl.so the second. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../tracer/read_log.h"
#include "../unit/case.h"
#include "../unit/temp_folder.h"
#include "host.h"

#define ALL_TYPES ((1 << (NCCL_CE_BATCH + 1)) - 1)

static const char *plugin_path, *fake_nccl_path, *program;
static struct plugin plugin;
static char path[96];

static int make_log_folder(void **state)
{
    int rc = make_folder(state);
    snprintf(path, sizeof path, "%s/nccl.log", folder);
    return rc;
}

static int remove_log_folder(void **state)
{
    plugin.stop();
    return remove_folder(state);
}

#define CASE(name) TEST_BETWEEN(name, make_log_folder, remove_log_folder)

/* ---- the log read back ---- */

struct found {
    struct record_nccl_event *events;
    size_t n_events;
    struct record_nccl_comm comms[4096]; /* by number, the last one of it */
    char strings[1024][48];              /* by number */
    size_t n_comms, n_strings, n_bytes;
    uint64_t n_lost[8];
};

static struct found *read_found(const char *log_path)
{
    struct log_file file;
    struct found *found = kept_memory(1, sizeof *found);
    assert_true(log_file_open(&file, log_path));
    assert_int_equal(file.header->kind, LOG_NCCL);
    assert_int_equal(file.header->pid, getpid());
    found->events = kept_memory(file.n_bytes / 56 + 1, sizeof *found->events);
    for (const struct record *r; (r = log_file_next(&file));) {
        if (r->type == RECORD_NCCL_EVENT) {
            assert_true(r->size_bytes <= 128 && r->size_bytes >= 56);
            memcpy(&found->events[found->n_events++], r, r->size_bytes);
        } else if (r->type == RECORD_NCCL_COMM) {
            const struct record_nccl_comm *c = (const void *)r;
            assert_in_range(c->comm, 1, 4095);
            found->n_comms += found->comms[c->comm].comm == 0;
            found->comms[c->comm] = *c;
        } else if (r->type == RECORD_STRING) {
            const struct record_string *s = (const void *)r;
            assert_in_range(s->string, 1, 1023);
            found->n_strings += found->strings[s->string][0] == '\0';
            memcpy(found->strings[s->string], s->text, sizeof s->text);
        } else if (r->type == RECORD_LOSS) {
            const struct record_loss *l = (const void *)r;
            found->n_lost[l->cause] = l->n_records;
        }
    }
    assert_true(log_file_whole(&file));
    found->n_bytes = file.n_bytes;
    log_file_close(&file);
    return found;
}

static struct found *stop_and_read(void)
{
    plugin.stop();
    return read_found(path);
}

static const struct record_nccl_event *find_event(const struct found *found, const void *handle)
{
    for (size_t i = 0; i < found->n_events; i++)
        if (found->events[i].event == (uint64_t)(uintptr_t)handle)
            return &found->events[i];
    return NULL;
}

static size_t count_of(const struct found *found, enum nccl_event type)
{
    size_t n = 0;
    for (size_t i = 0; i < found->n_events; i++)
        n += found->events[i].type == type;
    return n;
}

/* What the journal lacks of an event: times, and the numbers of its texts. */
#define AT(field) offsetof(struct record_nccl_event, field)
static const struct {
    uint8_t type;
    uint16_t at;
} times[] = {
    {NCCL_PROXY_OP, AT(proxy_op.posted_ns)},       {NCCL_PROXY_OP, AT(proxy_op.ready_ns)},
    {NCCL_PROXY_OP, AT(proxy_op.transmitted_ns)},  {NCCL_PROXY_OP, AT(proxy_op.done_ns)},
    {NCCL_PROXY_STEP, AT(proxy_step.gpu_wait_ns)}, {NCCL_PROXY_STEP, AT(proxy_step.peer_wait_ns)},
    {NCCL_PROXY_STEP, AT(proxy_step.net_wait_ns)}, {NCCL_PROXY_STEP, AT(proxy_step.flush_wait_ns)},
    {NCCL_PROXY_CTRL, AT(proxy_ctrl.idle_ns)},     {NCCL_PROXY_CTRL, AT(proxy_ctrl.active_ns)},
    {NCCL_PROXY_CTRL, AT(proxy_ctrl.sleep_ns)},    {NCCL_PROXY_CTRL, AT(proxy_ctrl.wakeup_ns)},
    {NCCL_PROXY_CTRL, AT(proxy_ctrl.append_ns)},   {NCCL_PROXY_CTRL, AT(proxy_ctrl.append_end_ns)},
    {NCCL_GROUP_CALL, AT(call.start_returned_ns)}, {NCCL_GROUP_CALL, AT(call.end_called_ns)},
};
#define TEXT(field) offsetof(struct expected, field)
static const struct {
    uint8_t type;
    uint16_t at, text;
} texts[] = {
    {NCCL_COLL, AT(coll.func), TEXT(func)},
    {NCCL_COLL, AT(coll.datatype), TEXT(datatype)},
    {NCCL_COLL, AT(coll.algorithm), TEXT(algorithm)},
    {NCCL_COLL, AT(coll.protocol), TEXT(protocol)},
    {NCCL_P2P, AT(p2p.func), TEXT(func)},
    {NCCL_P2P, AT(p2p.datatype), TEXT(datatype)},
    {NCCL_COLL_CALL, AT(call.func), TEXT(func)},
    {NCCL_COLL_CALL, AT(call.datatype), TEXT(datatype)},
    {NCCL_P2P_CALL, AT(call.func), TEXT(func)},
    {NCCL_P2P_CALL, AT(call.datatype), TEXT(datatype)},
    {NCCL_CE_COLL, AT(ce_coll.func), TEXT(func)},
    {NCCL_CE_COLL, AT(ce_coll.datatype), TEXT(datatype)},
    {NCCL_CE_COLL, AT(ce_coll.sync), TEXT(sync)},
};

static void check_text(const struct found *found, uint32_t number, const char *text)
{
    if (!text) {
        assert_int_equal(number, 0);
        return;
    }
    assert_in_range(number, 1, 1023);
    assert_string_equal(found->strings[number], text);
}

static void check_event(const struct found *found, const struct record_nccl_event *there,
                        const struct expected *x)
{
    struct record_nccl_event e = *there;
    const struct record_nccl_event *want = &x->record;
    assert_int_equal(e.type, want->type);
    assert_true(e.event == want->event);
    assert_true(e.parent == want->parent);
    if (want->rank == RANK_OR_UNKNOWN)
        assert_true(e.rank == -1 || e.rank == found->comms[e.comm].rank);
    else
        assert_int_equal(e.rank, want->rank);
    assert_int_equal(e.flags, want->flags);
    assert_int_equal(e.pid, want->pid);
    assert_true(x->start_after <= e.start_ns && e.start_ns <= e.stop_ns);
    assert_true(e.stop_ns <= x->stop_before);
    if (x->comm_hash) {
        assert_in_range(e.comm, 1, 4095);
        assert_true(found->comms[e.comm].hash == x->comm_hash);
    } else {
        assert_int_equal(e.comm, 0);
    }
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].type == e.type) {
            uint32_t *number = (void *)((char *)&e + texts[i].at);
            check_text(found, *number, *(const char *const *)((const char *)x + texts[i].text));
            *number = 0;
        }
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        int64_t *ns = (void *)((char *)&e + times[i].at);
        if (times[i].type == e.type && *ns != 0) {
            assert_true(*ns >= e.start_ns && *ns <= e.stop_ns);
            *ns = 1; /* as in the journal */
        }
    }
    assert_memory_equal(&e.coll, &want->coll,
                        sizeof e - ((const char *)&e.coll - (const char *)&e));
}

static int by_number(const void *a, const void *b)
{
    uint64_t x = ((const struct record_nccl_event *)a)->event;
    uint64_t y = ((const struct record_nccl_event *)b)->event;
    return x < y ? -1 : x > y;
}

static int by_expected_number(const void *a, const void *b)
{
    return by_number(&((const struct expected *)a)->record, &((const struct expected *)b)->record);
}

/* Exactly the journal's events are there, each as it has to be. */
static void check_journal(struct found *found, struct journal *journal)
{
    assert_int_equal(found->n_events, journal->n);
    qsort(found->events, found->n_events, sizeof *found->events, by_number);
    qsort(journal->events, journal->n, sizeof *journal->events, by_expected_number);
    for (size_t i = 0; i < journal->n; i++)
        check_event(found, &found->events[i], &journal->events[i]);
}

/* ---- a job: a thread a rank enqueues, another one is its proxy ---- */

#define N_JOB_RANKS 4
#define N_COLLS     24
#define N_CHANNELS  2
#define N_STEPS     6

struct task { /* an operation, between the two threads */
    void *handle;
    int number;
};

struct rank {
    struct host_comm *comm;
    struct journal *journal;
    pthread_mutex_t mutex;
    pthread_cond_t more;
    struct task tasks[2 * N_COLLS];
    int n_tasks;
    bool ended;
};

static void hand_over(struct rank *r, void *handle, int number)
{
    pthread_mutex_lock(&r->mutex);
    r->tasks[r->n_tasks++] = (struct task){handle, number};
    pthread_cond_signal(&r->more);
    pthread_mutex_unlock(&r->mutex);
}

static struct facts facts_of(struct rank *r, int number)
{
    return (struct facts){.sequence = (uint64_t)number,
                          .count = 1000 + (uint64_t)number,
                          .func = 4,
                          .datatype = number % 12,
                          .algorithm = number % 7,
                          .protocol = number % 3,
                          .root = number % 4,
                          .n_channels = N_CHANNELS,
                          .n_warps = 16,
                          .peer = (r->comm->rank + 1) % r->comm->n_ranks,
                          .stream = (void *)(uintptr_t)0x7000,
                          .send_buffer = (void *)(uintptr_t)(0x10000 + number),
                          .recv_buffer = (void *)(uintptr_t)(0x20000 + number),
                          .depth = 1 + number % 2,
                          .is_captured = number % 5 == 0};
}

static void *enqueue(void *arg)
{
    struct rank *r = arg;
    const struct host_comm *c = r->comm;
    struct journal *j = r->journal;
    for (int i = 0; i < N_COLLS; i++) {
        struct event group_call, call, group, coll, p2p, p2p_call, launch;
        struct facts f = facts_of(r, i);
        host_start(&group_call, c, NCCL_GROUP_CALL, NULL, &f);
        host_start(&call, c, NCCL_COLL_CALL, group_call.handle, &f);
        host_stop(&call, j);
        host_start(&p2p_call, c, NCCL_P2P_CALL, group_call.handle, &f);
        host_stop(&p2p_call, j);
        host_state(&group_call, NCCL_STATE_GROUP_START_RETURNED, 0);
        group_call.expected.record.call.start_returned_ns = 1;
        host_state(&group_call, NCCL_STATE_GROUP_END_CALLED, 0);
        group_call.expected.record.call.end_called_ns = 1;
        host_start(&group, c, NCCL_GROUP, NULL, &f);
        /* the parent has stopped; from interface 5 on it is the call */
        f.group = group.handle;
        host_start(&coll, c, NCCL_COLL, c->version >= 5 ? call.handle : group.handle, &f);
        struct facts send = f;
        send.func = 6;
        host_start(&p2p, c, NCCL_P2P, c->version >= 5 ? p2p_call.handle : group.handle, &send);
        host_start(&launch, c, NCCL_LAUNCH, group_call.handle, &f);
        host_stop(&launch, j);
        host_stop(&coll, j);
        host_stop(&p2p, j);
        host_stop(&group, j);
        host_stop(&group_call, j);
        hand_over(r, coll.handle, i);
        hand_over(r, p2p.handle, i);
    }
    pthread_mutex_lock(&r->mutex);
    r->ended = true;
    pthread_cond_signal(&r->more);
    pthread_mutex_unlock(&r->mutex);
    return NULL;
}

static void do_step(struct rank *r, struct event *op, int number, int step, bool is_send)
{
    struct event e, net;
    int v = r->comm->version;
    struct record_nccl_event *x = &e.expected.record;
    struct nccl_net_ib ib = {1, {2, (uint64_t)(number * 100 + step), 3, 77, 65536}};
    struct nccl_net_socket sock = {1, {11, is_send ? 0 : 1, 4096}};
    struct facts f = {.step = step,
                      .net_plugin = step % 3 == 0   ? NCCL_NET_IB_V1
                                    : step % 3 == 1 ? NCCL_NET_SOCKET_V1
                                                    : 0x70007,
                      .net_data = step % 3 == 0   ? (void *)&ib
                                  : step % 3 == 1 ? (void *)&sock
                                                  : (void *)1};
    uint64_t bytes = (uint64_t)(512 * (step + 1));
    host_start(&e, r->comm, NCCL_PROXY_STEP, op->handle, &f);
    if (is_send) {
        host_state(&e, NCCL_STATE_STEP_SEND_GPU, 999);
        if (v >= 4) {
            for (int i = 0; i < 3; i++) /* it polls */
                host_state(&e, NCCL_STATE_STEP_SEND_PEER, 999);
            x->proxy_step.peer_wait_ns = 1;
        }
        host_state(&e, NCCL_STATE_STEP_SEND_NET, bytes);
        x->proxy_step.gpu_wait_ns = x->proxy_step.net_wait_ns = 1;
        x->flags = NCCL_SEND;
    } else {
        host_state(&e, NCCL_STATE_STEP_RECV_NET, 999);
        host_state(&e, NCCL_STATE_STEP_RECV_FLUSH, bytes);
        host_state(&e, NCCL_STATE_STEP_RECV_GPU, 999);
        x->proxy_step.gpu_wait_ns = x->proxy_step.net_wait_ns = x->proxy_step.flush_wait_ns = 1;
        x->flags = NCCL_RECV;
    }
    x->proxy_step.size_bytes = v >= 4 ? bytes : 0;
    host_start(&net, r->comm, NCCL_NET, e.handle, &f);
    if (step % 2) {
        host_state(&net, NCCL_STATE_NET_UPDATE, 0);
        net.expected.record.net.n_updates = 1;
    }
    host_stop(&net, r->journal);
    host_stop(&e, r->journal);
}

static void do_op(struct rank *r, const struct task *task, int channel, bool is_send)
{
    struct event e;
    struct record_nccl_event *x = &e.expected.record;
    struct facts f = {.channel = channel,
                      .peer = (r->comm->rank + (is_send ? 1 : 3)) % r->comm->n_ranks,
                      .n_steps = N_STEPS,
                      .chunk_bytes = 1 << 19,
                      .is_send = is_send};
    host_start(&e, r->comm, NCCL_PROXY_OP, task->handle, &f);
    if (r->comm->version >= 4) {
        host_state(&e, NCCL_STATE_OP_IN_PROGRESS, 0);
        x->proxy_op.posted_ns = 1;
    }
    for (int step = 0; step < N_STEPS; step++) {
        do_step(r, &e, task->number, step, is_send);
        if (r->comm->version < 4) {
            int posted = is_send ? NCCL_STATE_OP_SEND_POSTED : NCCL_STATE_OP_RECV_POSTED;
            for (int i = 0; i < 4; i++)
                host_state(&e, posted + i, (uint64_t)(step + 1) * 100);
            x->proxy_op.posted_ns = x->proxy_op.ready_ns = 1;
            x->proxy_op.transmitted_ns = x->proxy_op.done_ns = 1;
            x->proxy_op.size_bytes = (uint64_t)(step + 1) * 100;
            x->proxy_op.steps_done = 3;
        }
    }
    host_stop(&e, r->journal);
}

static void do_kernel(struct rank *r, const struct task *task, int channel)
{
    struct event e;
    uint64_t now = (uint64_t)task->number * 1000000;
    struct facts f = {.channel = channel, .gpu_start = now + 5};
    host_start(&e, r->comm, NCCL_KERNEL_CH, task->handle, &f);
    if (r->comm->version >= 4) {
        host_state(&e, NCCL_STATE_KERNEL_STOP, now + 50);
        e.expected.record.kernel_ch.gpu_stop = now + 50;
    }
    host_stop(&e, r->journal);
}

static void do_control(struct rank *r, bool sleeps)
{
    struct event e;
    struct record_nccl_event *x = &e.expected.record;
    struct facts f = {0};
    host_start(&e, r->comm, NCCL_PROXY_CTRL, NULL, &f);
    host_stop(&e, NULL); /* without a state: not kept */
    host_start(&e, r->comm, NCCL_PROXY_CTRL, NULL, &f);
    if (sleeps) {
        host_state(&e, NCCL_STATE_CTRL_IDLE, 0);
        host_state(&e, NCCL_STATE_CTRL_SLEEP, 0);
        host_state(&e, NCCL_STATE_CTRL_WAKEUP, 0);
        host_state(&e, NCCL_STATE_CTRL_ACTIVE, 0);
        x->proxy_ctrl.idle_ns = x->proxy_ctrl.sleep_ns = 1;
        x->proxy_ctrl.wakeup_ns = x->proxy_ctrl.active_ns = 1;
    } else {
        host_state(&e, NCCL_STATE_CTRL_APPEND, 0);
        host_state(&e, NCCL_STATE_CTRL_APPEND_END, 7);
        x->proxy_ctrl.append_ns = x->proxy_ctrl.append_end_ns = 1;
        x->proxy_ctrl.n_appended = 7;
    }
    host_stop(&e, r->journal);
}

static void do_copy_engine(struct rank *r, int number)
{
    struct event coll, sync, batch;
    struct facts f = facts_of(r, number);
    f.is_complete = number % 2;
    f.n_ops = 3;
    host_start(&coll, r->comm, NCCL_CE_COLL, NULL, &f);
    host_start(&sync, r->comm, NCCL_CE_SYNC, coll.handle, &f);
    host_stop(&sync, r->journal);
    host_start(&batch, r->comm, NCCL_CE_BATCH, coll.handle, &f);
    host_stop(&batch, r->journal);
    host_stop(&coll, r->journal);
}

static void *progress(void *arg)
{
    struct rank *r = arg;
    for (int next = 0;; next++) {
        pthread_mutex_lock(&r->mutex);
        while (next == r->n_tasks && !r->ended)
            pthread_cond_wait(&r->more, &r->mutex);
        bool any = next < r->n_tasks;
        struct task task = any ? r->tasks[next] : (struct task){0};
        pthread_mutex_unlock(&r->mutex);
        if (!any)
            return NULL;
        do_control(r, next % 2);
        for (int channel = 0; channel < N_CHANNELS; channel++) {
            do_op(r, &task, channel, true);
            do_op(r, &task, channel, false);
            do_kernel(r, &task, channel);
        }
        do_copy_engine(r, next);
    }
}

static void run_job(struct host_comm *comms, struct journal *journal)
{
    struct rank ranks[N_JOB_RANKS];
    pthread_t threads[2 * N_JOB_RANKS];
    memset(ranks, 0, sizeof ranks);
    for (int i = 0; i < N_JOB_RANKS; i++) {
        ranks[i].comm = &comms[i];
        ranks[i].journal = journal;
        pthread_mutex_init(&ranks[i].mutex, NULL);
        pthread_cond_init(&ranks[i].more, NULL);
        pthread_create(&threads[2 * i], NULL, enqueue, &ranks[i]);
        pthread_create(&threads[2 * i + 1], NULL, progress, &ranks[i]);
    }
    for (int i = 0; i < 2 * N_JOB_RANKS; i++)
        pthread_join(threads[i], NULL);
}

static void records_every_event(int version)
{
    int mask = -1;
    uint64_t first_hash = 0xabc000 + 16 * (uint64_t)version;
    struct host_comm comms[N_JOB_RANKS];
    struct journal journal = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    assert_int_equal(plugin.start(path, 5), 0);
    for (int i = 0; i < N_JOB_RANKS;
         i++) { /* two communicators of two ranks each, in one process */
        comms[i] = (struct host_comm){.rank = i % 2,
                                      .n_ranks = 2,
                                      .n_nodes = 1,
                                      .hash = first_hash + (uint64_t)(i / 2),
                                      .name = i < 2 ? "tensor parallel" : NULL};
        assert_int_equal(host_init(&comms[i], &plugin, version, &mask), 0);
        assert_non_null(comms[i].context);
    }
    for (int type = 0; type <= NCCL_CE_BATCH; type++)
        assert_int_equal((mask >> type) & 1, host_knows(version, type));
    run_job(comms, &journal);
    for (int i = 0; i < N_JOB_RANKS; i++)
        assert_int_equal(host_finalize(&comms[i]), 0);
    plugin.stop();
    assert_int_equal(mask, 0);

    struct found *found = read_found(path);
    check_journal(found, &journal);
    assert_int_equal(count_of(found, NCCL_COLL), N_JOB_RANKS * N_COLLS);
    assert_int_equal(count_of(found, NCCL_PROXY_OP), N_JOB_RANKS * N_COLLS * 2 * N_CHANNELS * 2);
    assert_int_equal(count_of(found, NCCL_PROXY_STEP),
                     N_JOB_RANKS * N_COLLS * 2 * N_CHANNELS * 2 * N_STEPS);
    assert_int_equal(count_of(found, NCCL_PROXY_CTRL), N_JOB_RANKS * N_COLLS * 2);
    assert_int_equal(count_of(found, NCCL_KERNEL_CH),
                     version >= 3 ? N_JOB_RANKS * N_COLLS * 2 * N_CHANNELS : 0);
    assert_int_equal(count_of(found, NCCL_COLL_CALL), version >= 5 ? N_JOB_RANKS * N_COLLS : 0);
    assert_int_equal(count_of(found, NCCL_CE_SYNC), version >= 6 ? N_JOB_RANKS * N_COLLS * 2 : 0);
    size_t n_named = 0;
    for (int i = 0; i < 4096; i++) {
        const struct record_nccl_comm *c = &found->comms[i];
        if (c->comm == 0 || c->hash < first_hash || c->hash > first_hash + 1)
            continue;
        assert_int_equal(c->interface, version);
        assert_int_equal(c->n_ranks, version >= 4 ? 2 : 0);
        assert_in_range(c->rank, 0, 1);
        assert_string_equal(c->name, c->hash == first_hash ? "tensor parallel" : "");
        n_named++;
    }
    assert_int_equal(n_named, N_JOB_RANKS);
    for (int cause = 0; cause < 8; cause++)
        assert_int_equal(found->n_lost[cause], 0);
    free(journal.events);
}

CASE(of_every_interface_every_event_is_recorded_with_all_its_fields)
{
    for (int version = 1; version <= N_VERSIONS; version++) {
        records_every_event(version);
        remove(path);
    }
}

/* ---- what is exported, asked for, and not asked for ---- */

CASE(each_nccl_finds_the_newest_interface_it_knows)
{
    for (int knows = 1; knows <= N_VERSIONS; knows++)
        assert_int_equal(plugin_version(&plugin, knows), knows);
    assert_int_equal(plugin_version(&plugin, 7), 6); /* 2.32 */
    for (int v = 1; v <= N_VERSIONS; v++) {
        char symbol[32];
        snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", v);
        assert_string_equal(*(const char **)dlsym(plugin.library, symbol), "dpro");
    }
    assert_null(dlsym(plugin.library, "log_start"));
    assert_null(dlsym(plugin.library, "event_open"));
}

static void init_one(struct host_comm *c, int version, int *mask)
{
    *c = (struct host_comm){.rank = 0, .n_ranks = 2, .n_nodes = 1, .hash = 0x77};
    assert_int_equal(host_init(c, &plugin, version, mask), 0);
}

static void begin_window(struct host_comm *c, int *mask)
{
    init_one(c, 6, mask);
    assert_int_equal(plugin.start(path, 0), 0);
}

static struct found *end_window(struct host_comm *c)
{
    host_finalize(c);
    return stop_and_read();
}

static void start_and_stop(struct event *e, const struct host_comm *c, enum nccl_event type,
                           void *parent, const struct facts *facts)
{
    host_start(e, c, type, parent, facts);
    host_stop(e, NULL);
}

CASE(nothing_is_asked_for_outside_of_windows)
{
    int first_mask = -1, second_mask = -1, later_mask = -1;
    struct host_comm first, second, later;
    struct event e;
    struct facts f = {.count = 1};
    init_one(&first, 6, &first_mask);
    init_one(&second, 3, &second_mask);
    assert_int_equal(first_mask, 0);
    assert_int_equal(second_mask, 0);
    host_start(&e, &first, NCCL_COLL, NULL, &f); /* asked for before, enqueued now */
    assert_null(e.handle);
    for (int window = 0; window < 3; window++) {
        assert_int_equal(plugin.start(path, 0), 0);
        assert_int_equal(plugin.start(path, 0), -EALREADY);
        assert_int_equal(first_mask, ALL_TYPES);
        assert_int_equal(second_mask, (1 << (NCCL_NET + 1)) - 1);
        init_one(&later, 5, &later_mask);
        assert_int_equal(later_mask, (1 << (NCCL_LAUNCH + 1)) - 1);
        host_start(&e, &first, NCCL_COLL, NULL, &f);
        assert_non_null(e.handle);
        host_stop(&e, NULL);
        plugin.stop();
        assert_int_equal(first_mask | second_mask | later_mask, 0);
        host_start(&e, &first, NCCL_COLL, NULL, &f);
        assert_null(e.handle);
        host_finalize(&later);
        later_mask = 5;
    }
    assert_int_equal(plugin.start(path, 0), 0);
    assert_int_equal(later_mask, 5); /* NCCL may be gone */
    plugin.stop();
    host_finalize(&first);
    host_finalize(&second);
    struct found *found = read_found(path); /* the same path: gone on with */
    assert_int_equal(found->n_events, 3);
}

CASE(only_the_events_of_DPRO_NCCL_EVENTS_are_asked_for)
{
    int mask = -1;
    struct host_comm c;
    init_one(&c, 4, &mask);
    setenv("DPRO_NCCL_EVENTS", "0x3a", 1);
    assert_int_equal(plugin.start(path, 0), 0);
    assert_int_equal(mask, 0x3a);
    plugin.stop();
    unsetenv("DPRO_NCCL_EVENTS");
    host_finalize(&c);
}

CASE(kernel_events_are_not_asked_for_in_windows_from_nccl_2_31_on)
{
    static const struct {
        int version, kernel_bit;
    } cases[] = {{22304, 1}, {23007, 1}, {23102, 0}, {23203, 0}};
    void *library = dlopen(fake_nccl_path, RTLD_NOW);
    assert_non_null(library);
    int *mask = dlsym(library, "mask_in_library"), *version = dlsym(library, "version_in_library");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct host_comm c;
        *version = cases[i].version;
        init_one(&c, 6, mask);
        assert_int_equal(plugin.start(path, 0), 0);
        assert_int_equal((*mask >> NCCL_KERNEL_CH) & 1, cases[i].kernel_bit);
        plugin.stop();
        host_finalize(&c);
        struct found *found = read_found(path);
        size_t n = 0;
        for (int k = 0; k < 4096; k++)
            n += found->comms[k].nccl_version == (uint32_t)cases[i].version;
        assert_int_equal(n, 1);
    }
    dlclose(library);
}

/* ---- abuse ---- */

CASE(wrong_handles_states_and_parents_are_harmless)
{
    int mask;
    struct host_comm c, gone;
    struct event e, child;
    struct facts f = {.func = 1, .step = 3};
    union nccl_state_args args = {0};
    init_one(&c, 6, &mask);
    init_one(&gone, 6, &mask);
    host_finalize(&gone);
    assert_int_equal(plugin.start(path, 0), 0);
    void *wrong[] = {NULL,       (void *)1,
                     (void *)-1, (void *)0x7fffffffffff0000,
                     &e,         (void *)(uintptr_t)0x123456789abcdef0};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(host_raw_stop(&c, wrong[i]), 0);
        for (int s = -2; s < 40; s++)
            assert_int_equal(host_raw_state(&c, wrong[i], s, &args), 0);
    }
    for (int type = 0; type <= NCCL_CE_BATCH; type++) { /* every state, with and without args */
        host_start(&e, &c, type, (void *)0x1234, &f);
        assert_non_null(e.handle);
        for (int s = -2; s < 40; s++) {
            assert_int_equal(host_raw_state(&c, e.handle, s, NULL), 0);
            assert_int_equal(host_raw_state(&c, e.handle, s, &args), 0);
        }
        host_stop(&e, NULL);
        host_stop(&e, NULL); /* stopped twice */
        host_raw_state(&c, e.handle, NCCL_STATE_STEP_SEND_NET, &args);
        host_start(&child, &c, NCCL_PROXY_STEP, e.handle, &f); /* of a stopped parent */
        assert_non_null(child.handle);
        assert_ptr_not_equal(child.handle, e.handle);
        host_stop(&e, NULL); /* its place is used again: not the child's */
        host_state(&child, NCCL_STATE_STEP_SEND_NET, 5);
        host_stop(&child, NULL);
    }
    struct nccl_descr_v6 unknown = {.type = 1 << 20};
    void *handle = &unknown;
    assert_int_equal(host_raw_start(&c, c.context, &handle, &unknown), 0);
    assert_null(handle);
    unknown.type = 3; /* two types */
    handle = &unknown;
    assert_int_equal(host_raw_start(&c, c.context, &handle, &unknown), 0);
    assert_null(handle);
    unknown.type = 1 << NCCL_GROUP;
    assert_int_equal(host_raw_start(&c, NULL, &handle, &unknown), 0); /* no communicator */
    assert_non_null(handle);
    host_raw_stop(&c, handle);
    unknown.type = 1 << NCCL_PROXY_STEP;
    unknown.rank = 3;
    assert_int_equal(host_raw_start(&c, gone.context, &handle, &unknown), 0); /* one that is gone */
    host_raw_stop(&c, handle);
    host_finalize(&gone); /* twice */
    assert_int_equal(host_raw_stop(&c, handle), 0);
    host_finalize(&c);
    host_finalize(&c);
    plugin.stop();
    struct found *found = stop_and_read();
    assert_int_equal(found->n_events, 2 * (NCCL_CE_BATCH + 1) + 2);
    assert_int_equal(find_event(found, handle)->comm, 0);
    assert_int_equal(find_event(found, handle)->rank, 3);
}

CASE(events_never_stopped_are_recorded_as_open)
{
    int mask;
    struct host_comm first, second;
    struct event of_first, of_second, after;
    struct facts f = {.step = 1};
    init_one(&first, 6, &mask);
    init_one(&second, 6, &mask);
    assert_int_equal(plugin.start(path, 0), 0);
    host_start(&of_first, &first, NCCL_PROXY_STEP, NULL, &f);
    host_start(&of_second, &second, NCCL_PROXY_STEP, NULL, &f);
    host_finalize(&first);
    host_stop(&of_first, NULL); /* too late */
    start_and_stop(&after, &second, NCCL_PROXY_STEP, NULL, &f);
    plugin.stop();
    host_stop(&of_second, NULL);
    assert_int_equal(plugin.start(path, 0), 0);
    host_stop(&of_second, NULL);
    host_finalize(&second);
    struct found *found = stop_and_read();
    assert_int_equal(found->n_events, 3);
    assert_int_equal(find_event(found, of_first.handle)->flags, NCCL_OPEN);
    assert_int_equal(find_event(found, of_first.handle)->stop_ns, 0);
    assert_int_equal(find_event(found, of_second.handle)->flags, NCCL_OPEN);
    assert_int_equal(find_event(found, after.handle)->flags, 0);
}

CASE(too_many_open_events_are_counted_and_the_table_recovers)
{
    int mask;
    struct host_comm c;
    struct facts f = {.step = 1};
    size_t n = 20000, n_kept = 0;
    uint64_t stats[4];
    struct event *events = calloc(n, sizeof *events), e;
    begin_window(&c, &mask);
    for (size_t i = 0; i < n; i++) {
        host_start(&events[i], &c, NCCL_PROXY_STEP, NULL, &f);
        n_kept += events[i].handle != NULL;
    }
    assert_int_equal(n_kept, 16384);
    for (size_t i = 0; i < n; i += 2)
        host_stop(&events[i], NULL);
    for (int i = 0; i < 1000; i++) {
        host_start(&e, &c, NCCL_PROXY_STEP, NULL, &f);
        assert_non_null(e.handle);
        host_stop(&e, NULL);
    }
    host_finalize(&c);
    plugin.stats(stats);
    assert_in_range(stats[3], 1, 16 << 20);
    struct found *found = stop_and_read();
    assert_int_equal(found->n_events, n_kept + 1000);
    assert_int_equal(found->n_lost[LOSS_NO_EVENT], n - n_kept);
    free(events);
}

CASE(proxy_ops_of_other_processes_name_them)
{
    int mask;
    struct host_comm c, elsewhere;
    struct event op, step;
    struct facts f = {.pid = 4242, .peer = 3, .channel = 9, .is_send = 1};
    init_one(&c, 6, &mask);
    elsewhere = c; /* its context is an address in the other process */
    elsewhere.context = (void *)(uintptr_t)0x55aa12345678;
    assert_int_equal(plugin.start(path, 0), 0);
    host_start(&op, &elsewhere, NCCL_PROXY_OP, (void *)(uintptr_t)0x55aa00001111, &f);
    start_and_stop(&step, &elsewhere, NCCL_PROXY_STEP, op.handle, &f);
    host_stop(&op, NULL);
    struct found *found = end_window(&c);
    const struct record_nccl_event *e = find_event(found, op.handle);
    assert_int_equal(e->flags, NCCL_FOREIGN | NCCL_SEND);
    assert_int_equal(e->pid, 4242);
    assert_int_equal(e->parent, 0x55aa00001111);
    assert_int_equal(e->comm, 0);
    assert_ptr_equal(find_event(found, step.handle)->parent, op.handle);
}

struct outcome {
    int status;
    char said[2000];
};

static struct outcome run_as(const char *role, const char *const *env);

CASE(contexts_of_two_processes_differ)
{
    struct outcome o[3]; /* two can be the same, once in 65536 */
    for (int i = 0; i < 3; i++) {
        o[i] = run_as("context", (const char *const[]){"DPRO=1", NULL});
        assert_int_equal(o[i].status, 0);
    }
    assert_true(strcmp(o[0].said, o[1].said) != 0 || strcmp(o[0].said, o[2].said) != 0);
}

CASE(a_state_told_again_keeps_its_first_time)
{
    int mask;
    struct host_comm c;
    struct event e;
    struct facts f = {.step = 1};
    begin_window(&c, &mask);
    host_start(&e, &c, NCCL_PROXY_STEP, NULL, &f);
    host_state(&e, NCCL_STATE_STEP_SEND_PEER, 0);
    int64_t after_first = host_now();
    host_state(&e, NCCL_STATE_STEP_SEND_PEER, 0);
    host_stop(&e, NULL);
    struct found *found = end_window(&c);
    assert_true(find_event(found, e.handle)->proxy_step.peer_wait_ns <= after_first);
}

/* ---- many threads, many communicators, many windows ---- */

#define N_CHAOS_HANDLES 64

static void *_Atomic shared_handles[N_CHAOS_HANDLES];
static _Atomic uint64_t n_started;
static _Atomic bool chaos_ends;
static struct host_comm chaos_comm;

/* Starts, updates and stops events that the other threads started, all at once. */
static void *make_chaos(void *arg)
{
    unsigned seed = (unsigned)(uintptr_t)arg;
    union nccl_state_args args = {0};
    while (!chaos_ends) {
        seed = seed * 1103515245 + 12345;
        void *_Atomic *place = &shared_handles[(seed >> 8) % N_CHAOS_HANDLES];
        int what = (int)((seed >> 20) % 4);
        if ((seed >> 5) % 64 == 0)
            usleep(100);
        if (what == 0) {
            struct event e;
            struct facts f = {.step = (int)(seed >> 16), .count = seed, .channel = 1};
            host_start(&e, &chaos_comm, (seed >> 24) % (NCCL_CE_BATCH + 1), *place, &f);
            if (e.handle) {
                n_started++;
                host_raw_stop(&chaos_comm, atomic_exchange(place, e.handle));
            }
        } else if (what == 1) {
            host_raw_stop(&chaos_comm, *place);
        } else {
            host_raw_state(&chaos_comm, *place, (int)((seed >> 24) % 26), &args);
        }
    }
    return NULL;
}

CASE(events_shared_by_eight_threads_are_each_recorded_once)
{
    int mask;
    pthread_t threads[8];
    n_started = 0;
    chaos_ends = false;
    memset(shared_handles, 0, sizeof shared_handles);
    init_one(&chaos_comm, 6, &mask);
    assert_int_equal(plugin.start(path, 0), 0);
    for (uintptr_t i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, make_chaos, (void *)(i * 7919));
    usleep(300000);
    chaos_ends = true;
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    plugin.stop();
    host_finalize(&chaos_comm);
    struct found *found = read_found(path);
    qsort(found->events, found->n_events, sizeof *found->events, by_number);
    size_t n_control = 0;
    for (size_t i = 0; i + 1 < found->n_events; i++)
        assert_true(found->events[i].event < found->events[i + 1].event);
    n_control = count_of(found, NCCL_PROXY_CTRL); /* of these some say nothing */
    uint64_t n_lost = 0;
    for (int cause = 0; cause < 8; cause++)
        n_lost += found->n_lost[cause];
    assert_true(found->n_events + n_lost <= n_started);
    assert_true(found->n_events + n_lost >= n_started - n_started / 10);
    assert_true(n_control < found->n_events);
}

CASE(windows_begin_and_end_while_eight_threads_record)
{
    int mask;
    pthread_t threads[8];
    chaos_ends = false;
    memset(shared_handles, 0, sizeof shared_handles);
    init_one(&chaos_comm, 6, &mask);
    for (uintptr_t i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, make_chaos, (void *)(i * 104729));
    for (int window = 0; window < 20; window++) {
        int other_mask;
        struct host_comm other;
        assert_int_equal(plugin.start(path, 0), 0);
        init_one(&other, 1 + window % 6, &other_mask);
        usleep(5000);
        host_finalize(&other);
        plugin.mark("a window");
        plugin.stop();
    }
    chaos_ends = true;
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    host_finalize(&chaos_comm);
    struct found *found = read_found(path);
    qsort(found->events, found->n_events, sizeof *found->events, by_number);
    for (size_t i = 0; i + 1 < found->n_events; i++)
        assert_true(found->events[i].event < found->events[i + 1].event);
    assert_true(found->n_events > 20);
}

CASE(communicators_come_and_go_without_end)
{
    int mask;
    struct host_comm many[1100], c;
    struct event e;
    struct facts f = {.count = 3};
    assert_int_equal(plugin.start(path, 0), 0);
    for (int i = 0; i < 2000; i++) {
        init_one(&c, 1 + i % 6, &mask);
        assert_non_null(c.context);
        start_and_stop(&e, &c, NCCL_COLL, NULL, &f);
        host_finalize(&c);
    }
    for (int i = 0; i < 1100; i++) { /* more at once than there is room for */
        init_one(&many[i], 6, &mask);
        assert_int_equal(many[i].context != NULL, i < 1024);
        host_start(&e, &many[i], NCCL_COLL, NULL, &f);
        assert_non_null(e.handle);
        host_stop(&e, NULL);
    }
    for (int i = 0; i < 1100; i++)
        host_finalize(&many[i]);
    init_one(&c, 6, &mask);
    assert_non_null(c.context);
    struct found *found = end_window(&c);
    assert_int_equal(found->n_events, 3100);
    size_t n_unknown = 0;
    for (size_t i = 0; i < found->n_events; i++)
        n_unknown += found->events[i].comm == 0;
    assert_int_equal(n_unknown, 76);
}

CASE(the_newest_part_of_a_bounded_log_says_what_it_refers_to)
{
    int mask;
    struct host_comm c;
    struct event e;
    struct stat st;
    char old[104];
    setenv("DPRO_NET_MAX_MB", "1", 1);
    setenv("DPRO_NET_KEEP", "newest", 1);
    begin_window(&c, &mask);
    unsetenv("DPRO_NET_MAX_MB");
    unsetenv("DPRO_NET_KEEP");
    for (int i = 0; i < 30000; i++) {
        struct facts f = {.count = (uint64_t)i, .func = i % 8, .datatype = i % 12};
        start_and_stop(&e, &c, NCCL_COLL, NULL, &f);
        if (i % 3000 == 0)
            usleep(60000);
    }
    host_finalize(&c);
    plugin.stop();
    snprintf(old, sizeof old, "%s.old", path);
    assert_int_equal(stat(old, &st), 0);
    struct found *found = read_found(path);
    assert_true(st.st_size + (off_t)found->n_bytes <= 1 << 20);
    assert_int_equal(found->events[found->n_events - 1].coll.count, 29999);
    for (size_t i = 0; i < found->n_events; i++) {
        const struct record_nccl_event *r = &found->events[i];
        check_text(found, r->coll.func, host_funcs[r->coll.count % 8]);
        check_text(found, r->coll.datatype, host_datatypes[r->coll.count % 12]);
        assert_int_equal(found->comms[r->comm].comm, r->comm);
    }
}

CASE(errno_is_kept)
{
    int mask;
    struct host_comm c;
    struct facts f = {.func = 2};
    struct event e;
    begin_window(&c, &mask);
    errno = 12345;
    host_start(&e, &c, NCCL_COLL, NULL, &f);
    host_state(&e, 3, 0);
    host_stop(&e, NULL);
    host_finalize(&c);
    init_one(&c, 6, &mask);
    assert_int_equal(errno, 12345);
    host_finalize(&c);
}

/* ---- whole processes: this program again, as a job ---- */

static struct outcome run_as(const char *role, const char *const *env)
{
    struct outcome o = {0};
    int pipe_fds[2];
    assert_int_equal(pipe(pipe_fds), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(pipe_fds[1], STDERR_FILENO);
        for (; *env; env++)
            putenv((char *)(uintptr_t)*env);
        execl(program, program, plugin_path, fake_nccl_path, role, (char *)NULL);
        _exit(127);
    }
    close(pipe_fds[1]);
    for (size_t n = 0; n < sizeof o.said - 1;) {
        ssize_t got = read(pipe_fds[0], o.said + n, sizeof o.said - 1 - n);
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    close(pipe_fds[0]);
    waitpid(pid, &o.status, 0);
    return o;
}

/* Two communicators one after the other, with the plugin closed in between as NCCL does; ends
 * without telling the plugin. */
static int be_a_job(void)
{
    struct event e;
    struct facts f = {.count = 8, .func = 4};
    for (int i = 0; i < 2; i++) {
        static int mask = -1; /* NCCL's is there until the end, too */
        struct host_comm c = {.rank = 1, .n_ranks = 2, .n_nodes = 1, .hash = 0x99};
        if (!plugin_load(&plugin, plugin_path))
            return 3;
        errno = 12345;
        if (host_init(&c, &plugin, 6, &mask) != 0 || errno != 12345)
            return 4;
        for (int k = 0; k < 10; k++) {
            start_and_stop(&e, &c, NCCL_COLL, NULL, &f);
        }
        fprintf(stderr, "mask %x\n", (unsigned)mask);
        if (plugin.start("/proc/nowhere/nccl.log", 0) == 0)
            return 5;
        plugin.stop(); /* a window's: the whole process' log goes on */
        if (i == 0) {
            host_finalize(&c);
            dlclose(plugin.library);
            usleep(120000); /* the log's thread comes by */
        }
    }
    return 0;
}

static int say_context(void)
{
    int mask;
    struct host_comm c = {.n_ranks = 2};
    if (!plugin_load(&plugin, plugin_path) || host_init(&c, &plugin, 6, &mask) != 0)
        return 3;
    fprintf(stderr, "%p", c.context);
    return 0;
}

static char *only_log(const char *where)
{
    static char found[400];
    DIR *dir = opendir(where);
    size_t n = 0;
    found[0] = '\0';
    for (struct dirent *d; dir && (d = readdir(dir));)
        if (d->d_name[0] != '.') {
            snprintf(found, sizeof found, "%s/%s", where, d->d_name);
            n++;
        }
    if (dir)
        closedir(dir);
    return n == 1 ? found : NULL;
}

CASE(DPRO_NET_all_records_a_whole_process)
{
    struct log_file file;
    char out[128], where[96];
    size_t n = 0;
    snprintf(where, sizeof where, "%s/a/b", folder); /* made */
    snprintf(out, sizeof out, "DPRO_OUT=%s", where);
    struct outcome o =
        run_as("job", (const char *const[]){"DPRO=1", "DPRO_NET=all", "RANK=6", out, NULL});
    assert_int_equal(o.status, 0);
    assert_string_equal(o.said, "mask 7fff\nmask 7fff\n");
    char *log_path = only_log(where);
    assert_non_null(log_path);
    assert_non_null(strstr(log_path, "/nccl-"));
    assert_true(log_file_open(&file, log_path));
    assert_int_equal(file.header->rank, 6);
    for (const struct record *r; (r = log_file_next(&file));)
        n += r->type == RECORD_NCCL_EVENT;
    assert_true(log_file_whole(&file));
    assert_int_equal(n, 20);
    log_file_close(&file);
}

CASE(without_DPRO_nothing_is_recorded)
{
    static const char *const settings[][3] = {{"DPRO=", "DPRO_NET=all", NULL},
                                              {"DPRO=1", "DPRO_NET=", NULL},
                                              {"DPRO=1", "DPRO_NET=off", NULL},
                                              {"DPRO=0", "DPRO_NET=all", NULL}};
    char out[128];
    snprintf(out, sizeof out, "DPRO_OUT=%s", folder);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        struct outcome o =
            run_as("job", (const char *const[]){settings[i][0], settings[i][1], out, NULL});
        assert_int_equal(o.status, 0);
        assert_string_equal(o.said, "mask 0\nmask 0\n");
        assert_null(only_log(folder));
    }
}

CASE(a_folder_that_cannot_be_made_is_said_once_and_the_job_goes_on)
{
    struct outcome o = run_as(
        "job", (const char *const[]){"DPRO=1", "DPRO_NET=all", "DPRO_OUT=/proc/nowhere", NULL});
    assert_int_equal(o.status, 0);
    char *line = strstr(o.said, "dpro: /proc/nowhere/nccl-");
    assert_non_null(line);
    assert_non_null(strstr(line, "the job goes on\n"));
    assert_null(strstr(line + 1, "dpro: "));
    assert_non_null(strstr(o.said, "mask 0\nmask 0\n"));
}

CASE(a_forked_child_records_nothing_and_its_parent_goes_on)
{
    int mask, status;
    struct host_comm c;
    struct event e;
    struct facts f = {.count = 3};
    begin_window(&c, &mask);
    pid_t pid = fork();
    if (pid == 0) {
        struct host_comm own = {.rank = 0, .n_ranks = 1, .n_nodes = 1, .hash = 1};
        int own_mask = -1;
        host_start(&e, &c, NCCL_COLL, NULL, &f);
        bool none = e.handle == NULL;
        host_init(&own, &plugin, 6, &own_mask);
        host_start(&e, &own, NCCL_COLL, NULL, &f);
        none = none && e.handle == NULL && own_mask == 0;
        host_finalize(&own);
        host_finalize(&c);
        exit(none ? 0 : 1);
    }
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
    start_and_stop(&e, &c, NCCL_COLL, NULL, &f);
    struct found *found = end_window(&c);
    assert_int_equal(found->n_events, 1);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: %s PLUGIN FAKE_NCCL\n", argv[0]);
        return 2;
    }
    program = argv[0];
    plugin_path = argv[1];
    fake_nccl_path = argv[2];
    if (argc > 3)
        return strcmp(argv[3], "job") == 0 ? be_a_job() : say_context();
    unsetenv("DPRO");
    unsetenv("DPRO_NET");
    if (!plugin_load(&plugin, plugin_path))
        return 1;
    return run_cases(NULL, NULL);
}
