/* Keeps NCCL's events from their start to their stop. */
#include "nccl_events.h"

#include <stdatomic.h>
#include <string.h>

#include "log.h"
#include "nccl_abi.h"
#include "nccl_names.h"

#define SLOT_BITS 14
#define N_SLOTS   (1 << SLOT_BITS)           /* 3 MB when all were used */
#define BUSY      ((uint64_t)1 << SLOT_BITS) /* never set in a handle */

struct slot {
    _Atomic uint64_t state; /* 0: free; its handle: open; the handle and BUSY: claimed */
    _Atomic uint32_t next;  /* free one after this, plus 1 */
    _Atomic uint32_t comm;
    uint64_t n_used;
    struct record_nccl_event event;
} __attribute__((aligned(64)));

static struct slot slots[N_SLOTS];
static _Atomic uint64_t free_slots; /* first one plus 1 below, a tag against ABA above */
static _Atomic uint32_t n_touched;  /* slots used at least once */

static struct slot *take_slot(void)
{
    uint64_t head = atomic_load_explicit(&free_slots, memory_order_acquire);
    while ((uint32_t)head != 0) {
        struct slot *s = &slots[(uint32_t)head - 1];
        uint64_t wanted =
            ((head >> 32) + 1) << 32 | atomic_load_explicit(&s->next, memory_order_relaxed);
        if (atomic_compare_exchange_weak_explicit(&free_slots, &head, wanted, memory_order_acquire,
                                                  memory_order_acquire))
            return s;
    }
    uint32_t n = atomic_load_explicit(&n_touched, memory_order_relaxed);
    do
        if (n == N_SLOTS)
            return NULL;
    while (!atomic_compare_exchange_weak_explicit(&n_touched, &n, n + 1, memory_order_relaxed,
                                                  memory_order_relaxed));
    return &slots[n];
}

static void give_slot(struct slot *s)
{
    uint32_t number = (uint32_t)(s - slots) + 1;
    uint64_t head = atomic_load_explicit(&free_slots, memory_order_relaxed), wanted;
    atomic_store_explicit(&s->state, 0, memory_order_relaxed);
    do {
        atomic_store_explicit(&s->next, (uint32_t)head, memory_order_relaxed);
        wanted = ((head >> 32) + 1) << 32 | number;
    } while (!atomic_compare_exchange_weak_explicit(&free_slots, &head, wanted,
                                                    memory_order_release, memory_order_relaxed));
}

static struct slot *slot_of(uint64_t handle)
{
    return &slots[handle % N_SLOTS];
}

/* NCCL tells it reliably of its operations and their proxies only; and up to interface 3 nothing
 * else tells it. A proxy's can be another process'. */
static int32_t rank_of(struct comm *c, uint64_t type, int told)
{
    int32_t own = c ? atomic_load_explicit(&c->rank, memory_order_relaxed) : -1;
    if (type & (1 << NCCL_PROXY_OP | 1 << NCCL_PROXY_STEP | 1 << NCCL_NET))
        return told;
    return own < 0 && type & (1 << NCCL_COLL | 1 << NCCL_P2P) ? told : own;
}

struct record_nccl_event *event_open(const void *context, uint64_t type, const void *parent,
                                     int rank)
{
    if (!log_on() || !type || (type & (type - 1)) || type > NCCL_TYPES_V6)
        return NULL;
    struct slot *s = take_slot();
    if (!s) {
        log_count(LOSS_NO_EVENT);
        return NULL;
    }
    struct comm *c = comm_of(context);
    uint64_t token = atomic_load_explicit(&process_token, memory_order_relaxed);
    memset(&s->event, 0, sizeof s->event);
    s->event.event =
        token << 48 | (++s->n_used & 0x1ffffffff) << (SLOT_BITS + 1) | (uint64_t)(s - slots);
    s->event.parent = (uint64_t)(uintptr_t)parent;
    s->event.comm = comm_number(c);
    s->event.rank = rank_of(c, type, rank);
    s->event.type = (uint8_t)__builtin_ctzll(type);
    s->event.start_ns = log_now();
    atomic_store_explicit(&s->comm, s->event.comm, memory_order_relaxed);
    return &s->event;
}

void *event_publish(struct record_nccl_event *e, const void *context)
{
    uint64_t handle = e->event;
    comm_tell(comm_of(context));
    atomic_store_explicit(&slot_of(handle)->state, handle, memory_order_release);
    return (void *)(uintptr_t)handle;
}

/* NCCL does one thing at a time with an event; who comes at the same time does so while recording
 * ends, or by mistake. */
static struct slot *claim(uint64_t handle)
{
    struct slot *s = slot_of(handle);
    if (handle == 0 || handle & BUSY)
        return NULL;
    for (int i = 0; i < 1000; i++) {
        uint64_t there = handle;
        if (atomic_compare_exchange_strong_explicit(&s->state, &there, handle | BUSY,
                                                    memory_order_acquire, memory_order_relaxed))
            return s;
        if (there != (handle | BUSY))
            return NULL;
    }
    return NULL;
}

struct record_nccl_event *event_claim(const void *handle)
{
    struct slot *s = claim((uint64_t)(uintptr_t)handle);
    return s ? &s->event : NULL;
}

void event_unclaim(struct record_nccl_event *e)
{
    atomic_store_explicit(&slot_of(e->event)->state, e->event, memory_order_release);
}

#define SIZE_WITH(member)                                                                          \
    (offsetof(struct record_nccl_event, coll) + sizeof(((struct record_nccl_event *)0)->member))

static const uint16_t sizes[] = {
    [NCCL_GROUP] = offsetof(struct record_nccl_event, coll),
    [NCCL_COLL] = SIZE_WITH(coll),
    [NCCL_P2P] = SIZE_WITH(p2p),
    [NCCL_PROXY_OP] = SIZE_WITH(proxy_op),
    [NCCL_PROXY_STEP] = SIZE_WITH(proxy_step),
    [NCCL_PROXY_CTRL] = SIZE_WITH(proxy_ctrl),
    [NCCL_KERNEL_CH] = SIZE_WITH(kernel_ch),
    [NCCL_NET] = SIZE_WITH(net),
    [NCCL_GROUP_CALL] = SIZE_WITH(call),
    [NCCL_COLL_CALL] = SIZE_WITH(call),
    [NCCL_P2P_CALL] = SIZE_WITH(call),
    [NCCL_LAUNCH] = SIZE_WITH(call),
    [NCCL_CE_COLL] = SIZE_WITH(ce_coll),
    [NCCL_CE_SYNC] = SIZE_WITH(ce_sync),
    [NCCL_CE_BATCH] = SIZE_WITH(ce_batch),
};

/* NCCL begins and ends one at every turn of its proxy's loop; only some of them have a state. */
static bool says_nothing(const struct record_nccl_event *e)
{
    return e->type == NCCL_PROXY_CTRL && !e->proxy_ctrl.idle_ns && !e->proxy_ctrl.active_ns &&
           !e->proxy_ctrl.sleep_ns && !e->proxy_ctrl.wakeup_ns && !e->proxy_ctrl.append_ns &&
           !e->proxy_ctrl.append_end_ns;
}

void event_close(struct record_nccl_event *e, int64_t stop_ns)
{
    size_t size = sizes[e->type];
    e->stop_ns = stop_ns;
    if (stop_ns == 0)
        e->flags |= NCCL_OPEN;
    struct record_nccl_event *r = says_nothing(e) ? NULL : log_reserve(size);
    if (r) {
        e->head = log_head(RECORD_NCCL_EVENT, size);
        memcpy(r, e, size);
        log_commit();
    }
    give_slot(slot_of(e->event));
}

void events_close(uint32_t comm, bool all)
{
    uint32_t n = atomic_load_explicit(&n_touched, memory_order_relaxed);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t handle = atomic_load_explicit(&slots[i].state, memory_order_relaxed) & ~BUSY;
        if (!all && atomic_load_explicit(&slots[i].comm, memory_order_relaxed) != comm)
            continue;
        struct slot *s = handle ? claim(handle) : NULL;
        if (s)
            event_close(&s->event, 0);
    }
}

size_t events_memory(void)
{
    return atomic_load_explicit(&n_touched, memory_order_relaxed) * sizeof(struct slot);
}
