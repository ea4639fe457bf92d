/* Keeps threads' records and writes them to the log.
 *
 * Idea: all threads' records live in one pool of small chunks, so that memory is bounded for the
 * process, and whoever has a burst gets the room that idle threads do not use. A thread's queue is
 * a chain of chunks with one writer (the thread) and one reader (the flusher); the only words that
 * several threads change are the pool's list of free chunks and the owners of the queues.
 *
 * Between two flushes no file is open: a job that closes every descriptor it does not know can't
 * close the log's, and the log is never written into a descriptor that the job has reused. */
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define CHUNK_BYTES 8192
#define N_CHUNKS    1024 /* 8 MiB */
#define N_QUEUES    1024
#define HIGH_FD     500
#define FLUSH_NS    50000000 /* what a SIGKILL can cost */
#define SECOND_NS   1000000000
#define DEFAULT_MAX (512ull << 20)
#define TAIL_BYTES  1024 /* kept free below the bound for the last anchor and the losses */
#define N_PARTS     16   /* written at once; what is dropped at a bound is at most as much */
#define TLS_MODEL   __attribute__((tls_model("initial-exec")))

struct chunk {
    _Atomic uint32_t
        next; /* the chunk after this one of the same queue; in the pool: of the free list */
    _Atomic uint32_t committed; /* bytes of `data` that the flusher may read */
    char data[CHUNK_BYTES - 8];
};

/* Chunks are numbered from 1, so that zeroed memory is an empty log. */
struct queue {
    _Atomic uint32_t owner; /* thread id; 0: free */
    /* the owner's */
    _Atomic uint32_t busy; /* a record is reserved and not committed */
    uint32_t filling;      /* chunk */
    uint32_t used_bytes;   /* of it, the reserved record included */
    _Atomic uint64_t n_records;
    /* handed from the owner to the flusher */
    _Atomic uint32_t first;
    /* the flusher's */
    uint32_t reading;
    uint32_t read_bytes;
} __attribute__((aligned(64)));

enum state { STOPPED, STARTING, RUNNING, STOPPING };

/* One mapping that a forked child finds zeroed: its log is stopped, the queues cost it nothing. */
struct shared {
    _Atomic bool on;
    _Atomic bool full;          /* the file has reached its bound, and the oldest is kept */
    _Atomic uint32_t state;     /* futex: log_stop waits on it */
    _Atomic uint32_t wake;      /* futex: the flusher sleeps on it */
    _Atomic uint64_t free_list; /* chunk below, a tag against ABA above */
    _Atomic uint32_t n_touched; /* chunks used at least once */
    _Atomic uint32_t n_taken;
    _Atomic uint32_t n_owned;  /* queues with an owner */
    _Atomic uint32_t n_queues; /* highest queue ever owned, plus 1 */
    _Atomic uint64_t n_lost[N_LOSS_CAUSES];
    _Atomic uint64_t file_bytes;     /* of both segments */
    _Atomic uint64_t n_dead_records; /* of queues that were given back */

    /* the flusher's, and log_start's while there is none */
    struct log_options options;
    char path[PATH_MAX];
    int fd; /* open during a flush only */
    bool failed, loss_said;
    dev_t device;
    ino_t inode;
    uint32_t segment;
    uint64_t segment_bytes, old_bytes;     /* of PATH, of PATH.old */
    uint64_t segment_records, old_records; /* their transport or NCCL records */
    uint64_t losses_written[N_LOSS_CAUSES];
    struct iovec parts[N_PARTS];
    int n_parts;
    uint32_t read[N_PARTS]; /* chunks to give back once the parts are written */
    int n_read;
    size_t parts_bytes, parts_records;
    char direct[4096]; /* log_write_now's */
    size_t direct_bytes;

    struct queue queues[N_QUEUES];
    struct chunk chunks[N_CHUNKS];
};

static struct shared *_Atomic shared;
static bool wiped_on_fork;
static TLS_MODEL __thread struct queue *mine;
static TLS_MODEL __thread uint32_t my_thread;

/* ---- time, threads, messages ---- */

int64_t log_now(void)
{
    struct timespec t; /* through libc: whoever shifts the job's clock shifts its profile's alike */
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * SECOND_NS + t.tv_nsec;
}

static int64_t monotonic_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * SECOND_NS + t.tv_nsec;
}

static uint64_t read_tsc(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#else
    return 0;
#endif
}

uint32_t log_thread(void)
{
    if (my_thread == 0)
        my_thread = (uint32_t)syscall(SYS_gettid);
    return my_thread;
}

void log_say(const char *format, ...)
{
    char line[400];
    va_list args;
    int saved = errno, n = snprintf(line, sizeof line, "dpro: ");
    va_start(args, format);
    n += vsnprintf(line + n, sizeof line - (size_t)n - 1, format, args);
    va_end(args);
    if (n > (int)sizeof line - 2)
        n = sizeof line - 2;
    line[n++] = '\n';
    syscall(SYS_write, STDERR_FILENO, line, n);
    errno = saved;
}

static void futex_wait(_Atomic uint32_t *word, uint32_t value, int64_t ns)
{
    struct timespec t = {ns / SECOND_NS, ns % SECOND_NS};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &t, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
    int saved = errno;
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    errno = saved;
}

/* ---- the pool ---- */

static void wake_flusher(struct shared *s)
{
    if (atomic_exchange_explicit(&s->wake, 1, memory_order_relaxed) == 0)
        futex_wake(&s->wake);
}

static struct chunk *chunk_of(struct shared *s, uint32_t number)
{
    return &s->chunks[number - 1];
}

/* 0 when all are in use. */
static uint32_t take_chunk(struct shared *s)
{
    uint32_t number = 0;
    uint64_t head = atomic_load_explicit(&s->free_list, memory_order_acquire);
    while ((uint32_t)head != 0) {
        uint32_t next =
            atomic_load_explicit(&chunk_of(s, (uint32_t)head)->next, memory_order_relaxed);
        uint64_t wanted = ((head >> 32) + 1) << 32 | next;
        if (atomic_compare_exchange_weak_explicit(&s->free_list, &head, wanted,
                                                  memory_order_acq_rel, memory_order_acquire)) {
            number = (uint32_t)head;
            break;
        }
    }
    if (number == 0) {
        uint32_t n = atomic_load_explicit(&s->n_touched, memory_order_relaxed);
        do
            if (n == N_CHUNKS)
                return 0;
        while (!atomic_compare_exchange_weak_explicit(&s->n_touched, &n, n + 1,
                                                      memory_order_relaxed, memory_order_relaxed));
        number = n + 1;
    }
    atomic_store_explicit(&chunk_of(s, number)->next, 0, memory_order_relaxed);
    atomic_store_explicit(&chunk_of(s, number)->committed, 0, memory_order_relaxed);
    /* a burst: the flusher comes early, asked once until it has come */
    if (atomic_fetch_add_explicit(&s->n_taken, 1, memory_order_relaxed) >= N_CHUNKS / 4)
        wake_flusher(s);
    return number;
}

static void give_chunk(struct shared *s, uint32_t number)
{
    uint64_t head = atomic_load_explicit(&s->free_list, memory_order_relaxed), wanted;
    do {
        atomic_store_explicit(&chunk_of(s, number)->next, (uint32_t)head, memory_order_relaxed);
        wanted = ((head >> 32) + 1) << 32 | number;
    } while (!atomic_compare_exchange_weak_explicit(&s->free_list, &head, wanted,
                                                    memory_order_acq_rel, memory_order_relaxed));
    atomic_fetch_sub_explicit(&s->n_taken, 1, memory_order_relaxed);
}

/* ---- the threads' side ---- */

bool log_on(void)
{
    struct shared *s = atomic_load_explicit(&shared, memory_order_acquire);
    return s && atomic_load_explicit(&s->on, memory_order_relaxed);
}

static void count_loss(struct shared *s, enum loss_cause cause, uint64_t n)
{
    atomic_fetch_add_explicit(&s->n_lost[cause], n, memory_order_relaxed);
}

void log_count(enum loss_cause cause)
{
    struct shared *s = atomic_load_explicit(&shared, memory_order_acquire);
    if (s)
        count_loss(s, cause, 1);
}

static struct queue *claim_queue(struct shared *s)
{
    /* many threads, most of them dead perhaps: the flusher looks */
    if (atomic_load_explicit(&s->n_owned, memory_order_relaxed) >= N_QUEUES / 2)
        wake_flusher(s);
    for (uint32_t i = 0; i < N_QUEUES; i++) {
        uint32_t free = 0;
        if (atomic_load_explicit(&s->queues[i].owner, memory_order_relaxed) != 0 ||
            !atomic_compare_exchange_strong_explicit(&s->queues[i].owner, &free, log_thread(),
                                                     memory_order_acquire, memory_order_relaxed))
            continue;
        atomic_fetch_add_explicit(&s->n_owned, 1, memory_order_relaxed);
        uint32_t n = atomic_load_explicit(&s->n_queues, memory_order_relaxed);
        while (n < i + 1 &&
               !atomic_compare_exchange_weak_explicit(&s->n_queues, &n, i + 1, memory_order_release,
                                                      memory_order_relaxed))
            ;
        return &s->queues[i];
    }
    return NULL;
}

static void *reserve(struct shared *s, struct queue *q, size_t size_bytes)
{
    if (q->filling == 0 || q->used_bytes + size_bytes > sizeof s->chunks->data) {
        uint32_t chunk = take_chunk(s);
        if (chunk == 0)
            return NULL;
        if (q->filling == 0)
            atomic_store_explicit(&q->first, chunk, memory_order_release);
        else
            atomic_store_explicit(&chunk_of(s, q->filling)->next, chunk, memory_order_release);
        q->filling = chunk;
        q->used_bytes = 0;
    }
    void *record = chunk_of(s, q->filling)->data + q->used_bytes;
    q->used_bytes += (uint32_t)size_bytes;
    return record;
}

void *log_reserve(size_t size_bytes)
{
    struct shared *s = atomic_load_explicit(&shared, memory_order_acquire);
    if (!s || !atomic_load_explicit(&s->on, memory_order_relaxed) || size_bytes > LOG_RECORD_MAX)
        return NULL;
    if (atomic_load_explicit(&s->full, memory_order_relaxed)) {
        count_loss(s, LOSS_LOG_FULL, 1);
        return NULL;
    }
    if (!mine && !(mine = claim_queue(s))) {
        count_loss(s, LOSS_NO_RING, 1);
        return NULL;
    }
    struct queue *q = mine;
    if (atomic_load_explicit(&q->busy, memory_order_relaxed)) {
        count_loss(s, LOSS_RING_FULL, 1);
        return NULL;
    }
    atomic_store_explicit(&q->busy, 1, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst);
    void *record = reserve(s, q, size_bytes);
    if (!record) {
        atomic_store_explicit(&q->busy, 0, memory_order_relaxed);
        count_loss(s, LOSS_RING_FULL, 1);
    }
    return record;
}

void log_commit(void)
{
    struct queue *q = mine;
    if (!q) /* forked in between, by a signal handler */
        return;
    struct shared *s = atomic_load_explicit(&shared, memory_order_relaxed);
    atomic_store_explicit(&chunk_of(s, q->filling)->committed, q->used_bytes, memory_order_release);
    atomic_store_explicit(&q->n_records,
                          atomic_load_explicit(&q->n_records, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    atomic_store_explicit(&q->busy, 0, memory_order_release);
}

struct record log_head(enum record_type type, size_t size_bytes)
{
    return (struct record){(uint8_t)type, 1, (uint16_t)size_bytes, log_thread()};
}

void log_mark(const char *name)
{
    struct record_mark *r = log_reserve(sizeof *r);
    if (!r)
        return;
    *r = (struct record_mark){log_head(RECORD_MARK, sizeof *r), log_now(), {0}};
    memcpy(r->name, name, strnlen(name, sizeof r->name - 1));
    log_commit();
}

/* ---- the flusher's side: the file ---- */

static void fail(struct shared *s, const char *what, int error)
{
    s->failed = true;
    atomic_store_explicit(&s->on, false, memory_order_relaxed);
    log_say("%s: %s: %s; nothing more is recorded there, the job goes on", s->path, what,
            strerror(error));
}

static void close_file(struct shared *s)
{
    if (s->fd > 0)
        syscall(SYS_close, s->fd);
    s->fd = 0;
}

/* A high descriptor where there may be one: low ones belong to the job, which may put a file of its
 * own at a certain number. */
static int open_path(const char *path, int flags)
{
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path,
                          flags | O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | O_NOFOLLOW, 0644);
    for (int lowest = HIGH_FD; fd >= 0 && fd < lowest; lowest = STDERR_FILENO + 1) {
        int higher = (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, lowest);
        if (higher < 0 && lowest == HIGH_FD)
            continue;
        int error = errno;
        syscall(SYS_close, fd);
        fd = higher;
        errno = error;
    }
    return fd;
}

/* 0 or -errno; -ESTALE: another file is there now. */
static int open_same_file(struct shared *s)
{
    struct stat st;
    int fd = open_path(s->path, O_APPEND);
    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) < 0 || st.st_dev != s->device || st.st_ino != s->inode) {
        syscall(SYS_close, fd);
        return -ESTALE;
    }
    s->fd = fd;
    return 0;
}

/* False: not now (too many files are open), or never again (s->failed). */
static bool open_for_flush(struct shared *s)
{
    int error = s->failed ? -ESTALE : open_same_file(s);
    if (error < 0 && !s->failed && error != -EMFILE && error != -ENFILE && error != -ENOMEM &&
        error != -EINTR)
        fail(s, "can't be opened", -error);
    return error == 0;
}

/* All or nothing, so that the file always ends with a whole record. */
static bool write_parts(struct shared *s, struct iovec *parts, int n_parts, size_t n_bytes)
{
    size_t written = 0;
    while (written < n_bytes) {
        ssize_t n = syscall(SYS_writev, s->fd, parts, n_parts);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            int error = n < 0 ? errno : ENOSPC;
            if (written > 0)
                syscall(SYS_ftruncate, s->fd, (off_t)s->segment_bytes);
            fail(s, "can't be written", error);
            return false;
        }
        written += (size_t)n;
        for (; n_parts > 0 && (size_t)n >= parts->iov_len; parts++, n_parts--)
            n -= (ssize_t)parts->iov_len;
        if (n_parts > 0) {
            parts->iov_base = (char *)parts->iov_base + n;
            parts->iov_len -= (size_t)n;
        }
    }
    s->segment_bytes += n_bytes;
    atomic_store_explicit(&s->file_bytes, s->segment_bytes + s->old_bytes, memory_order_relaxed);
    return true;
}

static void write_bytes(struct shared *s, const void *bytes, size_t n)
{
    struct iovec part = {(void *)(uintptr_t)bytes, n};
    if (s->fd > 0 && !s->failed)
        write_parts(s, &part, 1, n);
}

static void flush_direct(struct shared *s)
{
    write_bytes(s, s->direct, s->direct_bytes);
    s->direct_bytes = 0;
}

void log_write_now(const void *record, size_t size_bytes)
{
    struct shared *s = atomic_load_explicit(&shared, memory_order_relaxed);
    if (size_bytes > LOG_RECORD_MAX)
        return;
    if (s->direct_bytes + size_bytes > sizeof s->direct)
        flush_direct(s);
    memcpy(s->direct + s->direct_bytes, record, size_bytes);
    s->direct_bytes += size_bytes;
}

static void write_anchor(struct shared *s)
{
    struct record_anchor best = {{RECORD_ANCHOR, 1, sizeof best, 0}, 0, 0, 0};
    int64_t narrowest = INT64_MAX;
    for (int i = 0; i < 3; i++) { /* the one that nothing interrupted */
        int64_t before = monotonic_now();
        uint64_t tsc = read_tsc();
        int64_t real = log_now(), after = monotonic_now();
        if (after - before < narrowest) {
            narrowest = after - before;
            best.realtime_ns = real;
            best.monotonic_ns = before + narrowest / 2;
            best.tsc = tsc;
        }
    }
    write_bytes(s, &best, sizeof best);
}

/* Records that are not in the log. */
static uint64_t sum_of_losses(struct shared *s)
{
    uint64_t n = 0;
    for (int cause = LOSS_RING_FULL; cause <= LOSS_NO_EVENT; cause++)
        n += atomic_load_explicit(&s->n_lost[cause], memory_order_relaxed);
    return n;
}

static void write_losses(struct shared *s)
{
    for (uint32_t cause = LOSS_RING_FULL; cause < N_LOSS_CAUSES; cause++) {
        struct record_loss r = {{RECORD_LOSS, 1, sizeof r, 0}, cause, 0, 0};
        r.n_records = atomic_load_explicit(&s->n_lost[cause], memory_order_relaxed);
        if (r.n_records == s->losses_written[cause])
            continue;
        s->losses_written[cause] = r.n_records;
        write_bytes(s, &r, sizeof r);
    }
}

static uint64_t inode_of(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? st.st_ino : 0;
}

static void fill_header(struct shared *s, struct log_header *h)
{
    *h = (struct log_header){.magic = LOG_MAGIC,
                             .version = LOG_VERSION,
                             .header_bytes = sizeof *h,
                             .kind = s->options.kind,
                             .pid = (uint32_t)syscall(SYS_getpid),
                             .rank = s->options.rank,
                             .segment = s->segment};
    h->net_ns = inode_of("/proc/self/ns/net");
    h->time_ns = inode_of("/proc/self/ns/time");
    int fd =
        (int)syscall(SYS_openat, AT_FDCWD, "/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t n = syscall(SYS_read, fd, h->boot_id, sizeof h->boot_id - 1);
        syscall(SYS_close, fd);
        h->boot_id[n > 0 && h->boot_id[n - 1] == '\n' ? n - 1 : n > 0 ? n : 0] = '\0';
    }
    gethostname(h->host, sizeof h->host - 1);
}

/* A new, empty PATH with its header; -errno when that can't be. It stays open. */
static int begin_segment(struct shared *s)
{
    struct stat st;
    struct log_header header;
    int fd = open_path(s->path, O_CREAT | O_TRUNC);
    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        syscall(SYS_close, fd);
        return -EINVAL;
    }
    s->fd = fd;
    s->device = st.st_dev;
    s->inode = st.st_ino;
    s->segment_bytes = s->segment_records = 0;
    fill_header(s, &header);
    ssize_t n = syscall(SYS_write, fd, &header, sizeof header);
    if (n == sizeof header) {
        s->segment_bytes = sizeof header;
        atomic_store_explicit(&s->file_bytes, s->segment_bytes + s->old_bytes,
                              memory_order_relaxed);
        return 0;
    }
    int error = n < 0 ? errno : ENOSPC;
    close_file(s);
    syscall(SYS_unlinkat, AT_FDCWD, s->path, 0);
    return -error;
}

static void tell_what_is_referred_to(struct shared *s)
{
    if (s->options.on_segment)
        s->options.on_segment();
    flush_direct(s);
}

/* PATH becomes PATH.old, whose records are gone. */
static void rotate(struct shared *s)
{
    char old[PATH_MAX + 8];
    snprintf(old, sizeof old, "%s.old", s->path);
    write_anchor(s);
    close_file(s);
    if (syscall(SYS_renameat, AT_FDCWD, s->path, AT_FDCWD, old) < 0) {
        fail(s, "can't be renamed to .old", errno);
        return;
    }
    count_loss(s, LOSS_LOG_FULL, s->old_records);
    s->old_records = s->segment_records;
    s->old_bytes = s->segment_bytes;
    s->segment++;
    int error = begin_segment(s);
    if (error < 0) {
        fail(s, "can't be opened", -error);
        return;
    }
    write_anchor(s);
    memset(s->losses_written, 0, sizeof s->losses_written);
    write_losses(s);
    tell_what_is_referred_to(s);
}

/* ---- the flusher's side: the queues ---- */

static uint64_t records_in(const char *bytes, size_t n)
{
    uint64_t count = 0;
    for (size_t at = 0; at + sizeof(struct record) <= n; count++) {
        const struct record *r = (const struct record *)(const void *)(bytes + at);
        if (r->size_bytes == 0)
            break;
        at += r->size_bytes;
    }
    return count;
}

static bool fits(struct shared *s)
{
    uint64_t bound = s->options.keep_newest ? s->options.max_bytes / 2 : s->options.max_bytes;
    return s->segment_bytes + s->parts_bytes + TAIL_BYTES <= bound;
}

/* What was collected goes to the file; its chunks go back to the pool. */
static void flush_parts(struct shared *s)
{
    if (s->n_parts > 0) {
        if (!fits(s) && s->options.keep_newest && !s->failed)
            rotate(s);
        else if (!fits(s))
            atomic_store_explicit(&s->full, true, memory_order_relaxed);
        bool full = atomic_load_explicit(&s->full, memory_order_relaxed);
        if (full || s->failed || s->fd == 0 ||
            !write_parts(s, s->parts, s->n_parts, s->parts_bytes))
            count_loss(s, full ? LOSS_LOG_FULL : LOSS_WRITE_FAILED, s->parts_records);
        else
            s->segment_records += s->parts_records;
    }
    s->n_parts = 0;
    s->parts_bytes = s->parts_records = 0;
    while (s->n_read > 0)
        give_chunk(s, s->read[--s->n_read]);
}

static void drain_queue(struct shared *s, struct queue *q)
{
    if (q->reading == 0)
        q->reading = atomic_load_explicit(&q->first, memory_order_acquire);
    while (q->reading != 0) {
        struct chunk *c = chunk_of(s, q->reading);
        /* `next` before `committed`: what was committed before the owner went on is then seen */
        uint32_t next = atomic_load_explicit(&c->next, memory_order_acquire);
        uint32_t committed = atomic_load_explicit(&c->committed, memory_order_acquire);
        if (committed > q->read_bytes) {
            char *bytes = c->data + q->read_bytes;
            size_t n = committed - q->read_bytes;
            s->parts[s->n_parts++] = (struct iovec){bytes, n};
            s->parts_bytes += n;
            s->parts_records += records_in(bytes, n);
            q->read_bytes = committed;
        }
        if (next != 0) {
            s->read[s->n_read++] = q->reading;
            q->reading = next;
            q->read_bytes = 0;
        }
        if (s->n_parts == N_PARTS || s->n_read == N_PARTS)
            flush_parts(s);
        if (next == 0)
            break;
    }
}

/* Records that were late for the log before. */
static void pass_over_queue(struct shared *s, struct queue *q)
{
    if (q->reading == 0)
        q->reading = atomic_load_explicit(&q->first, memory_order_acquire);
    while (q->reading != 0) {
        struct chunk *c = chunk_of(s, q->reading);
        uint32_t next = atomic_load_explicit(&c->next, memory_order_acquire);
        q->read_bytes = atomic_load_explicit(&c->committed, memory_order_acquire);
        if (next == 0)
            break;
        give_chunk(s, q->reading);
        q->reading = next;
        q->read_bytes = 0;
    }
}

static void give_back_queues_of_dead_threads(struct shared *s)
{
    uint32_t n = atomic_load_explicit(&s->n_queues, memory_order_acquire);
    long pid = syscall(SYS_getpid);
    for (uint32_t i = 0; i < n; i++) {
        struct queue *q = &s->queues[i];
        uint32_t owner = atomic_load_explicit(&q->owner, memory_order_acquire);
        if (owner == 0 || syscall(SYS_tgkill, pid, owner, 0) == 0 || errno != ESRCH)
            continue;
        atomic_load_explicit(&q->busy, memory_order_acquire); /* pairs with its last commit */
        drain_queue(s, q);
        flush_parts(s);
        atomic_fetch_add_explicit(&s->n_dead_records,
                                  atomic_load_explicit(&q->n_records, memory_order_relaxed),
                                  memory_order_relaxed);
        if (q->reading != 0)
            give_chunk(s, q->reading);
        q->filling = q->used_bytes = q->reading = q->read_bytes = 0;
        atomic_store_explicit(&q->first, 0, memory_order_relaxed);
        atomic_store_explicit(&q->n_records, 0, memory_order_relaxed);
        atomic_store_explicit(&q->busy, 0, memory_order_relaxed);
        atomic_store_explicit(&q->owner, 0, memory_order_release);
        atomic_fetch_sub_explicit(&s->n_owned, 1, memory_order_relaxed);
    }
}

static bool anything_waiting(struct shared *s)
{
    uint32_t n = atomic_load_explicit(&s->n_queues, memory_order_acquire);
    for (uint32_t i = 0; i < n; i++) {
        struct queue *q = &s->queues[i];
        uint32_t reading =
            q->reading != 0 ? q->reading : atomic_load_explicit(&q->first, memory_order_acquire);
        if (reading != 0 &&
            (atomic_load_explicit(&chunk_of(s, reading)->committed, memory_order_acquire) >
                 q->read_bytes ||
             atomic_load_explicit(&chunk_of(s, reading)->next, memory_order_acquire) != 0))
            return true;
    }
    return false;
}

static void drain(struct shared *s)
{
    uint32_t n = atomic_load_explicit(&s->n_queues, memory_order_acquire);
    for (uint32_t i = 0; i < n; i++)
        drain_queue(s, &s->queues[i]);
    flush_parts(s);
}

static void *flush_until_stopped(void *arg)
{
    struct shared *s = arg;
    int64_t next_second = monotonic_now() + SECOND_NS;
    bool stopping = false;
    if (open_for_flush(s)) {
        write_anchor(s);
        tell_what_is_referred_to(s);
        close_file(s);
    }
    while (!stopping) {
        futex_wait(&s->wake, 0, FLUSH_NS);
        atomic_store_explicit(&s->wake, 0, memory_order_seq_cst);
        stopping = atomic_load_explicit(&s->state, memory_order_acquire) == STOPPING;
        bool second = monotonic_now() >= next_second;
        if (!stopping && !second && !anything_waiting(s))
            continue;
        /* out of descriptors: what is queued waits, and is lost when there is no more room */
        if (!open_for_flush(s) && !s->failed && !stopping)
            continue;
        drain(s);
        if (second || stopping ||
            atomic_load_explicit(&s->n_owned, memory_order_relaxed) >= N_QUEUES / 2)
            give_back_queues_of_dead_threads(s);
        if (second || stopping) {
            if (stopping || !atomic_load_explicit(&s->full, memory_order_relaxed)) {
                write_anchor(s);
                write_losses(s);
            }
            next_second = monotonic_now() + SECOND_NS;
        }
        close_file(s);
    }
    atomic_store_explicit(&s->state, STOPPED, memory_order_release);
    futex_wake(&s->state);
    return NULL;
}

/* ---- start and stop ---- */

static void after_fork_in_child(void)
{
    struct shared *s = atomic_load_explicit(&shared, memory_order_relaxed);
    mine = NULL;
    my_thread = 0;
    if (s && !wiped_on_fork)
        memset(s, 0, offsetof(struct shared, chunks));
}

static struct shared *map_shared(void)
{
    struct shared *s = atomic_load_explicit(&shared, memory_order_acquire);
    if (s)
        return s;
    void *memory = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    bool wiped = madvise(memory, sizeof *s, MADV_WIPEONFORK) == 0;
    if (atomic_compare_exchange_strong(&shared, &s, memory)) {
        wiped_on_fork = wiped;
        pthread_atfork(NULL, NULL, after_fork_in_child);
        return memory;
    }
    munmap(memory, sizeof *s); /* another thread was first */
    return s;
}

static int start_flusher(struct shared *s)
{
    sigset_t all, before;
    pthread_attr_t attr;
    pthread_t thread;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, 256 << 10);
    sigfillset(&all); /* the job's handlers stay on the job's threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, &attr, flush_until_stopped, s);
    if (error == EINVAL) { /* so much static TLS in this process that the stack is too small */
        pthread_attr_setstacksize(&attr, 8 << 20);
        error = pthread_create(&thread, &attr, flush_until_stopped, s);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (error == 0)
        pthread_setname_np(thread, "dpro-log");
    return -error;
}

static int absolute_path(char *out, const char *path)
{
    size_t n = 0, len = strlen(path);
    if (path[0] != '/') {
        long got = syscall(SYS_getcwd, out, PATH_MAX);
        if (got < 0)
            return -errno;
        n = (size_t)got;
        out[n - 1] = '/';
    }
    if (len == 0 || n + len + 1 > PATH_MAX)
        return len == 0 ? -ENOENT : -ENAMETOOLONG;
    memcpy(out + n, path, len + 1);
    return 0;
}

static int start(struct shared *s, const char *path, const struct log_options *options)
{
    char absolute[PATH_MAX];
    int error = absolute_path(absolute, path);
    if (error < 0)
        return error;
    bool go_on = strcmp(absolute, s->path) == 0 && open_same_file(s) == 0;
    s->options = *options;
    if (s->options.max_bytes == 0)
        s->options.max_bytes = DEFAULT_MAX;
    s->failed = false;
    if (!go_on) {
        strcpy(s->path, absolute);
        s->loss_said = false;
        atomic_store_explicit(&s->full, false, memory_order_relaxed);
        s->segment = 0;
        s->old_bytes = s->old_records = 0;
        memset(s->losses_written, 0, sizeof s->losses_written);
        for (int cause = 0; cause < N_LOSS_CAUSES; cause++)
            atomic_store_explicit(&s->n_lost[cause], 0, memory_order_relaxed);
        error = begin_segment(s);
    }
    close_file(s);
    if (error < 0) {
        s->path[0] = '\0';
        return error;
    }
    uint32_t n = atomic_load_explicit(&s->n_queues, memory_order_acquire);
    for (uint32_t i = 0; i < n; i++)
        pass_over_queue(s, &s->queues[i]);
    atomic_store_explicit(&s->on, true, memory_order_relaxed);
    return 0;
}

int log_start(const char *path, const struct log_options *options)
{
    int saved = errno;
    struct shared *s = map_shared();
    if (!s)
        return -ENOMEM;
    uint32_t stopped = STOPPED;
    if (!atomic_compare_exchange_strong(&s->state, &stopped, STARTING))
        return -EALREADY;
    int error = start(s, path, options);
    if (error == 0) {
        atomic_store_explicit(&s->state, RUNNING, memory_order_release);
        error = start_flusher(s);
        if (error < 0)
            atomic_store_explicit(&s->on, false, memory_order_relaxed);
    }
    if (error < 0)
        atomic_store_explicit(&s->state, STOPPED, memory_order_release);
    errno = saved;
    return error;
}

void log_stop(void)
{
    struct shared *s = atomic_load_explicit(&shared, memory_order_acquire);
    uint32_t running = RUNNING;
    int saved = errno;
    if (!s || !atomic_compare_exchange_strong(&s->state, &running, STOPPING))
        return;
    atomic_store_explicit(&s->on, false, memory_order_relaxed);
    atomic_store_explicit(&s->wake, 1, memory_order_seq_cst);
    futex_wake(&s->wake);
    int64_t limit = monotonic_now() + SECOND_NS;
    while (atomic_load_explicit(&s->state, memory_order_acquire) == STOPPING) {
        int64_t left = limit - monotonic_now();
        if (left <= 0)
            break;
        futex_wait(&s->state, STOPPING, left);
    }
    uint64_t n_lost = sum_of_losses(s);
    if (n_lost > 0 && !s->loss_said) {
        s->loss_said = true;
        uint64_t causes[] = {s->n_lost[LOSS_RING_FULL] + s->n_lost[LOSS_NO_RING] +
                                 s->n_lost[LOSS_NO_EVENT],
                             s->n_lost[LOSS_LOG_FULL], s->n_lost[LOSS_WRITE_FAILED]};
        log_say("%s: %" PRIu64 " records were not kept (memory full: %" PRIu64
                ", log full: %" PRIu64 ", not writable: %" PRIu64 ")",
                s->path, n_lost, causes[0], causes[1], causes[2]);
    }
    errno = saved;
}

struct log_stats log_stats(void)
{
    struct shared *s = atomic_load_explicit(&shared, memory_order_acquire);
    struct log_stats stats = {0};
    if (!s)
        return stats;
    uint32_t n = atomic_load_explicit(&s->n_queues, memory_order_acquire);
    for (uint32_t i = 0; i < n; i++)
        stats.n_records += atomic_load_explicit(&s->queues[i].n_records, memory_order_relaxed);
    stats.n_records += atomic_load_explicit(&s->n_dead_records, memory_order_relaxed);
    stats.n_lost = sum_of_losses(s);
    stats.file_bytes = atomic_load_explicit(&s->file_bytes, memory_order_relaxed);
    stats.memory_bytes =
        offsetof(struct shared, queues) + n * sizeof(struct queue) +
        (uint64_t)atomic_load_explicit(&s->n_touched, memory_order_relaxed) * CHUNK_BYTES;
    return stats;
}
