/* Writes the texts and communicators that NCCL's records refer to. */
#include "nccl_names.h"

#include <string.h>

#include "log.h"

#define N_STRINGS 512

struct string {
    _Atomic uint64_t hash; /* of the text, stands for it; 0: free */
    _Atomic bool written;
    _Atomic uint32_t log;
    char text[sizeof((struct record_string *)0)->text];
};

_Atomic uint64_t process_token;

static struct string strings[N_STRINGS];
static struct comm comms[N_COMMS];
static _Atomic uint32_t current_log; /* counted from 1 */

void names_in_new_log(void)
{
    atomic_fetch_add_explicit(&current_log, 1, memory_order_relaxed);
}

/* ---- texts ---- */

static void fill_string(struct record_string *r, uint32_t i)
{
    *r = (struct record_string){log_head(RECORD_STRING, sizeof *r), i + 1, 0, {0}};
    memcpy(r->text, strings[i].text, sizeof r->text);
}

static void tell_string(uint32_t i)
{
    struct string *s = &strings[i];
    uint32_t log = atomic_load_explicit(&current_log, memory_order_relaxed);
    if (atomic_load_explicit(&s->log, memory_order_relaxed) == log ||
        !atomic_load_explicit(&s->written, memory_order_acquire))
        return;
    struct record_string *r = log_reserve(sizeof *r);
    if (!r)
        return;
    fill_string(r, i);
    log_commit();
    atomic_store_explicit(&s->log, log, memory_order_relaxed);
}

uint32_t name_number(const char *text)
{
    if (!text || !*text)
        return 0;
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    size_t n = 0;
    for (; n < sizeof strings->text - 1 && text[n]; n++)
        hash = (hash ^ (unsigned char)text[n]) * 1099511628211u;
    hash += hash == 0;
    for (uint32_t i = 0; i < N_STRINGS; i++) {
        uint32_t at = (uint32_t)((hash + i) % N_STRINGS);
        struct string *s = &strings[at];
        uint64_t there = atomic_load_explicit(&s->hash, memory_order_relaxed);
        if (there == 0 && atomic_compare_exchange_strong_explicit(
                              &s->hash, &there, hash, memory_order_relaxed, memory_order_relaxed)) {
            memcpy(s->text, text, n);
            atomic_store_explicit(&s->written, true, memory_order_release);
            there = hash;
        }
        if (there == hash) {
            tell_string(at);
            return at + 1;
        }
    }
    return 0;
}

/* ---- communicators ---- */

bool comm_read(struct comm *c, struct record_nccl_comm *out)
{
    uint64_t words[COMM_WORDS];
    uint64_t context = atomic_load_explicit(&c->context, memory_order_acquire);
    for (size_t i = 0; i < COMM_WORDS; i++) /* acquire: `context` is looked at after them */
        words[i] = atomic_load_explicit(&c->words[i], memory_order_acquire);
    if (context == 0 || atomic_load_explicit(&c->context, memory_order_relaxed) != context)
        return false;
    memcpy(out, words, sizeof *out);
    return true;
}

static void write_comm(struct comm *c, const struct record_nccl_comm *r)
{
    uint64_t words[COMM_WORDS];
    memcpy(words, r, sizeof *r);
    for (size_t i = 0; i < COMM_WORDS; i++)
        atomic_store_explicit(&c->words[i], words[i], memory_order_release);
    atomic_store_explicit(&c->rank, r->rank, memory_order_relaxed);
    atomic_store_explicit(&c->log, 0, memory_order_relaxed);
}

struct comm *comm_add(const struct record_nccl_comm *r)
{
    uint64_t token = atomic_load_explicit(&process_token, memory_order_relaxed);
    for (uint32_t i = 0; i < N_COMMS; i++) {
        uint32_t at = (r->comm + i) % N_COMMS; /* the one that is gone for longest, mostly */
        struct comm *c = &comms[at];
        if (atomic_load_explicit(&c->live, memory_order_relaxed))
            continue;
        atomic_store_explicit(&c->context, 0, memory_order_relaxed);
        write_comm(c, r);
        atomic_store_explicit(&c->context, (token << 32 | r->comm) * N_COMMS + at,
                              memory_order_release);
        atomic_store_explicit(&c->live, true, memory_order_release);
        return c;
    }
    return NULL;
}

void comm_remove(struct comm *c)
{
    atomic_store_explicit(&c->live, false, memory_order_relaxed);
}

struct comm *comm_at(uint32_t i)
{
    struct comm *c = &comms[i];
    return atomic_load_explicit(&c->live, memory_order_acquire) ? c : NULL;
}

struct comm *comm_of(const void *context)
{
    uint64_t number = (uint64_t)(uintptr_t)context;
    struct comm *c = &comms[number % N_COMMS];
    return number && atomic_load_explicit(&c->context, memory_order_acquire) == number &&
                   atomic_load_explicit(&c->live, memory_order_relaxed)
               ? c
               : NULL;
}

void *comm_context(struct comm *c)
{
    return (void *)(uintptr_t)atomic_load_explicit(&c->context, memory_order_relaxed);
}

uint32_t comm_number(struct comm *c)
{
    return c ? (uint32_t)(atomic_load_explicit(&c->context, memory_order_relaxed) / N_COMMS) : 0;
}

void comm_learn(const void *context, const char *name, uint64_t hash, int rank)
{
    struct record_nccl_comm r;
    struct comm *c = comm_of(context);
    if (!c || atomic_load_explicit(&c->rank, memory_order_relaxed) == rank || !comm_read(c, &r))
        return;
    r.hash = hash;
    r.rank = rank;
    if (name)
        memcpy(r.name, name, strnlen(name, sizeof r.name - 1));
    write_comm(c, &r);
}

void comm_tell(struct comm *c)
{
    struct record_nccl_comm comm, *r;
    uint32_t log = atomic_load_explicit(&current_log, memory_order_relaxed);
    if (!c || atomic_load_explicit(&c->log, memory_order_relaxed) == log || !comm_read(c, &comm) ||
        !(r = log_reserve(sizeof *r)))
        return;
    comm.head = log_head(RECORD_NCCL_COMM, sizeof *r);
    *r = comm;
    log_commit();
    atomic_store_explicit(&c->log, log, memory_order_relaxed);
}

void names_tell_all(void)
{
    struct record_string text;
    struct record_nccl_comm comm;
    for (uint32_t i = 0; i < N_STRINGS; i++)
        if (atomic_load_explicit(&strings[i].written, memory_order_acquire)) {
            fill_string(&text, i);
            log_write_now(&text, sizeof text);
        }
    for (uint32_t i = 0; i < N_COMMS; i++)
        if (comm_read(&comms[i], &comm)) {
            comm.head = log_head(RECORD_NCCL_COMM, sizeof comm);
            log_write_now(&comm, sizeof comm);
        }
}
