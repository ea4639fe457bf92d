/* The connections of a process, and where in its bytes each call is.
 *
 * A stream is a connection as the kernel knows it; duplicated descriptors share it. Its bytes are
 * counted from its beginning whether or not anything is recorded, so that offsets are the same on
 * both ends. libc closes descriptors where nobody sees it, and so do some programs with raw system
 * calls: what socket(), accept() and the like return is therefore always new, and a call is
 * recorded only when the descriptor still is the socket that it was.
 *
 * The order of bytes. Two threads in a call on one stream at once: the kernel takes one after the
 * other, and nothing says which one was first. So a call owns its direction of the stream from just
 * before it to just after it, and another one waits its turn, as it would in the kernel. It waits
 * only so long (a call may sleep in the kernel, its thread may have been cancelled): then it goes
 * on as the owner. Who was not alone is found out by counting: a call is sure of its place when no
 * other one was under way when it ended, and none has moved bytes since it began. */
#include "streams.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "log.h"
#include "peers.h"

#define N_STREAMS 12288
#define FEW       256 /* slots that are used before others */
#define SPINS     100
/* How long a call waits for one that sleeps in the kernel: one that must not sleep itself, a
 * receive, a send (which would sleep as well). The last is also the limit for one that is on its
 * way. */
#define SHORT_NS 50000
#define LONG_NS  5000000
#define MOST_NS  1000000000

#ifndef SO_COOKIE
#define SO_COOKIE 57
#endif

struct flow {                 /* one direction */
    _Atomic uint64_t owner;   /* thread below, 0: none; a counter above */
    _Atomic uint32_t n_calls; /* under way */
    _Atomic uint32_t n_moves; /* calls that moved bytes, ever */
    _Atomic uint64_t n_bytes; /* moved so far: the next one's offset */
    struct decoder decoder;   /* its owner's */
};

struct stream {
    _Atomic uint32_t number; /* of the connection; 0: the slot is free, or being filled */
    _Atomic uint32_t n_fds;  /* descriptors that name it, and whoever is filling it */
    _Atomic bool kept;       /* recorded while the log is on */
    _Atomic bool announced;  /* its record_connection was written */
    bool has_ends;
    uint64_t cookie; /* the kernel's name of the socket */
    struct record_connection info;
    struct flow flows[2];
};

_Atomic uint32_t stream_fds[N_FDS];
void (*stream_first_kept)(void);
static struct stream streams[N_STREAMS];
static _Atomic uint32_t n_touched, n_used, cursor, last_number;
static _Atomic uint32_t highest_fd;
static _Atomic bool first_kept_seen;
static pid_t process;

/* ---- this process ---- */

void streams_init(void)
{
    process = (pid_t)syscall(SYS_getpid);
}

void streams_after_fork(void)
{
    uint32_t n = atomic_load_explicit(&n_touched, memory_order_relaxed);
    process = (pid_t)syscall(SYS_getpid);
    atomic_store(&first_kept_seen, false);
    for (uint32_t i = 0; i < n; i++) /* the threads that were in calls are not here */
        for (int d = 0; d < 2; d++) {
            atomic_store_explicit(&streams[i].flows[d].owner, 0, memory_order_relaxed);
            atomic_store_explicit(&streams[i].flows[d].n_calls, 0, memory_order_relaxed);
        }
}

bool streams_are_ours(void)
{
    return (pid_t)syscall(SYS_getpid) == process;
}

static bool vforked(void)
{
    return !streams_are_ours();
}

/* ---- slots ---- */

static struct stream *take_slot(void)
{
    uint32_t used = atomic_fetch_add_explicit(&n_used, 1, memory_order_relaxed);
    /* in turn, among not many more than are in use: a slot rests before it is used again, since
       records about it may still wait, and memory is not touched without need */
    uint32_t n = used < FEW / 2 ? FEW : 2 * used < N_STREAMS ? 2 * used : N_STREAMS;
    uint32_t at = atomic_fetch_add_explicit(&cursor, 1, memory_order_relaxed);
    for (uint32_t i = 0; i < n; i++) {
        struct stream *s = &streams[(at + i) % n];
        uint32_t free = 0;
        if (atomic_load_explicit(&s->n_fds, memory_order_relaxed) != 0 ||
            !atomic_compare_exchange_strong_explicit(&s->n_fds, &free, 1, memory_order_acquire,
                                                     memory_order_relaxed))
            continue;
        uint32_t index = (uint32_t)(s - streams), touched = atomic_load(&n_touched);
        while (touched < index + 1 &&
               !atomic_compare_exchange_weak(&n_touched, &touched, index + 1))
            ;
        return s;
    }
    atomic_fetch_sub_explicit(&n_used, 1, memory_order_relaxed);
    log_count(LOSS_NO_CONNECTION);
    return NULL;
}

static struct stream *new_stream(int fd, uint8_t origin, uint8_t family, uint8_t flags)
{
    struct stream *s = take_slot();
    if (!s)
        return NULL;
    socklen_t size = sizeof s->cookie;
    struct stat st;
    s->cookie = 0;
    getsockopt(fd, SOL_SOCKET, SO_COOKIE, &s->cookie, &size);
    atomic_store_explicit(&s->kept, false, memory_order_relaxed);
    atomic_store_explicit(&s->announced, false, memory_order_relaxed);
    s->has_ends = false;
    s->info = (struct record_connection){.time_ns = log_now(),
                                         .fd = fd,
                                         .family = family,
                                         .origin = origin,
                                         .flags = flags,
                                         .inode = fstat(fd, &st) == 0 ? st.st_ino : 0};
    for (int d = 0; d < 2; d++) {
        struct flow *f = &s->flows[d];
        atomic_store_explicit(&f->n_calls, 0, memory_order_relaxed);
        atomic_store_explicit(&f->n_moves, 0, memory_order_relaxed);
        atomic_store_explicit(&f->n_bytes, 0, memory_order_relaxed);
        memset(&f->decoder, 0, offsetof(struct decoder, have));
    }
    s->info.connection = atomic_fetch_add(&last_number, 1) + 1;
    atomic_store_explicit(&s->number, s->info.connection, memory_order_release);
    return s;
}

static void write_total(struct stream *s, bool closed)
{
    if (!atomic_load_explicit(&s->announced, memory_order_relaxed))
        return;
    struct record_total *r = log_reserve(sizeof *r);
    if (!r)
        return;
    *r = (struct record_total){log_head(RECORD_TOTAL, sizeof *r),
                               log_now(),
                               atomic_load_explicit(&s->number, memory_order_relaxed),
                               closed,
                               atomic_load(&s->flows[DIRECTION_SEND].n_bytes),
                               atomic_load(&s->flows[DIRECTION_RECEIVE].n_bytes)};
    log_commit();
}

/* One name of the stream less. */
static void drop(struct stream *s)
{
    uint32_t n = atomic_load_explicit(&s->n_fds, memory_order_relaxed);
    while (n > 1)
        if (atomic_compare_exchange_weak(&s->n_fds, &n, n - 1))
            return;
    if (n == 0)
        return;
    if (log_on())
        write_total(s, true);
    atomic_store_explicit(&s->number, 0, memory_order_relaxed);
    atomic_store_explicit(&s->n_fds, 0, memory_order_release);
    atomic_fetch_sub_explicit(&n_used, 1, memory_order_relaxed);
}

/* ---- descriptors ---- */

static struct stream *stream_of(uint32_t word)
{
    return word >= FD_STREAM ? &streams[word - FD_STREAM] : NULL;
}

static uint32_t word_of(const struct stream *s)
{
    return (uint32_t)(s - streams) + FD_STREAM;
}

/* `s` has been counted as named by `fd` already. */
static void name(int fd, struct stream *s, uint32_t otherwise)
{
    if ((unsigned int)fd >= N_FDS) {
        log_count(LOSS_NO_CONNECTION);
        if (s)
            drop(s);
        return;
    }
    uint32_t highest = atomic_load_explicit(&highest_fd, memory_order_relaxed);
    while (highest < (uint32_t)fd &&
           !atomic_compare_exchange_weak(&highest_fd, &highest, (uint32_t)fd))
        ;
    uint32_t before =
        atomic_exchange_explicit(&stream_fds[fd], s ? word_of(s) : otherwise, memory_order_acq_rel);
    if (stream_of(before))
        drop(stream_of(before));
}

static bool is_traced(int domain, int type)
{
    type &= ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
    return type == SOCK_STREAM &&
           (domain == AF_INET || domain == AF_INET6 || (domain == AF_UNIX && peers_unix()));
}

static uint8_t family_of(int domain)
{
    return domain == AF_INET ? FAMILY_IPV4 : domain == AF_INET6 ? FAMILY_IPV6 : FAMILY_UNIX;
}

/* ---- ends ---- */

/* An IPv4 address in an IPv6 socket is IPv4, as its other end sees it. */
static void set_end(struct record_connection *info, bool local, const struct sockaddr *address,
                    socklen_t size)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    uint8_t *bytes = local ? info->local : info->remote;
    uint16_t port = 0;
    memset(bytes, 0, sizeof info->local);
    if (size >= sizeof(struct sockaddr_in) && address->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)address;
        memcpy(bytes, &in->sin_addr, 4);
        port = ntohs(in->sin_port);
        info->family = FAMILY_IPV4;
    } else if (size >= sizeof(struct sockaddr_in6) && address->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const void *)address;
        bool four = memcmp(&in6->sin6_addr, mapped, sizeof mapped) == 0;
        memcpy(bytes, in6->sin6_addr.s6_addr + (four ? 12 : 0), four ? 4 : 16);
        port = ntohs(in6->sin6_port);
        info->scope = in6->sin6_scope_id;
        info->family = four ? FAMILY_IPV4 : FAMILY_IPV6;
    } else if (size > offsetof(struct sockaddr_un, sun_path) && address->sa_family == AF_UNIX) {
        const char *path = ((const struct sockaddr_un *)(const void *)address)->sun_path;
        size_t n = size - offsetof(struct sockaddr_un, sun_path);
        bool abstract = path[0] == '\0' && n > 1;
        if (!abstract)
            n = strnlen(path, n);
        size_t skip = n > sizeof info->local ? n - sizeof info->local : 0;
        memcpy(bytes, path + skip, n - skip);
        if (abstract && skip == 0)
            bytes[0] = '@';
    }
    *(local ? &info->local_port : &info->remote_port) = port;
}

static void keep(struct stream *s)
{
    atomic_store_explicit(&s->kept, true, memory_order_release);
    if (stream_first_kept && !atomic_exchange(&first_kept_seen, true))
        stream_first_kept();
}

/* Finds out where the stream goes, and whether it is kept. `remote` is used where the kernel does
 * not tell yet. False when it is not connected. */
static bool find_ends(struct stream *s, int fd, const struct sockaddr *remote,
                      socklen_t remote_size)
{
    union {
        struct sockaddr any;
        struct sockaddr_storage storage;
        struct sockaddr_un un;
    } address;
    socklen_t size = sizeof address;
    if (getpeername(fd, &address.any, &size) == 0)
        set_end(&s->info, false, &address.any, size < sizeof address ? size : sizeof address);
    else if (remote)
        set_end(&s->info, false, remote, remote_size);
    else
        return false;
    uint8_t family = s->info.family;
    size = sizeof address;
    if (getsockname(fd, &address.any, &size) == 0)
        set_end(&s->info, true, &address.any, size < sizeof address ? size : sizeof address);
    s->info.family = family;
    s->has_ends = true;
    if (peers_keep(&s->info))
        keep(s);
    return true;
}

/* ---- finding a call's stream ---- */

/* A descriptor that was not seen being made. */
static struct stream *find_stream(int fd)
{
    int type = 0, domain = 0, listens = 0;
    socklen_t size = sizeof type;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) < 0) {
        if (errno == ENOTSOCK)
            name(fd, NULL, FD_OTHER);
        return NULL;
    }
    size = sizeof domain;
    getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size);
    size = sizeof listens;
    getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size);
    if (!is_traced(domain, type)) {
        name(fd, NULL, FD_OTHER);
        return NULL;
    }
    struct stream *s = listens ? NULL : new_stream(fd, ORIGIN_FOUND, family_of(domain), 0);
    if (!s)
        return NULL;
    uint32_t unknown = FD_UNKNOWN, word = word_of(s);
    find_ends(s, fd, NULL, 0);
    if (atomic_compare_exchange_strong(&stream_fds[fd], &unknown, word)) {
        uint32_t highest = atomic_load(&highest_fd);
        while (highest < (uint32_t)fd &&
               !atomic_compare_exchange_weak(&highest_fd, &highest, (uint32_t)fd))
            ;
        return s;
    }
    drop(s); /* another thread was first */
    return stream_of(unknown);
}

static struct stream *lookup(int fd)
{
    if ((unsigned int)fd >= N_FDS)
        return NULL;
    uint32_t word = atomic_load_explicit(&stream_fds[fd], memory_order_acquire);
    if (word != FD_UNKNOWN)
        return stream_of(word);
    return vforked() ? NULL : find_stream(fd);
}

static bool still_is(const struct stream *s, int fd)
{
    uint64_t cookie = 0;
    socklen_t size = sizeof cookie;
    return s->cookie == 0 ||
           (getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) == 0 && cookie == s->cookie);
}

/* ---- ownership ---- */

static int64_t monotonic(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static bool take(struct flow *f, uint64_t seen, uint64_t *mine)
{
    uint64_t wanted = ((seen >> 32) + 1) << 32 | log_thread();
    if (!atomic_compare_exchange_strong_explicit(&f->owner, &seen, wanted, memory_order_acquire,
                                                 memory_order_relaxed))
        return false;
    *mine = wanted;
    return true;
}

/* A thread that waits for a core, or for memory, is soon through its call; one that sleeps there
 * for the network is not. */
static enum { RUNS, SLEEPS, GONE } look_at_thread(uint32_t thread)
{
    char path[48], text[128];
    snprintf(path, sizeof path, "/proc/self/task/%u/stat", thread);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT && access("/proc/self/stat", F_OK) == 0 ? GONE : SLEEPS;
    ssize_t n = syscall(SYS_read, fd, text, sizeof text - 1);
    syscall(SYS_close, fd);
    text[n > 0 ? n : 0] = '\0';
    const char *name_end = strrchr(text, ')');
    if (!name_end || strlen(name_end) < 3)
        return SLEEPS;
    return strchr("RD", name_end[2]) ? RUNS : strchr("ZX", name_end[2]) ? GONE : SLEEPS;
}

/* Until the flow is free, or its owner has had its time; then it is ours. */
static uint64_t wait_and_own(struct flow *f, int64_t patience_ns)
{
    uint64_t mine, watched = 0;
    int64_t since = 0, begun = 0;
    for (int turn = 0;; turn++) {
        uint64_t seen = atomic_load_explicit(&f->owner, memory_order_relaxed);
        if ((uint32_t)seen == 0 || (uint32_t)seen == log_thread()) { /* we are its signal handler */
            if (take(f, seen, &mine))
                return mine;
            continue;
        }
        if (turn < SPINS) {
            relax();
            continue;
        }
        int64_t now = monotonic();
        if (begun == 0)
            begun = now;
        if (seen != watched) {
            watched = seen;
            since = now;
        }
        int64_t waited = now - since;
        if (waited < SHORT_NS) {
            syscall(SYS_sched_yield);
            continue;
        }
        int owner =
            waited >= patience_ns || waited >= LONG_NS ? look_at_thread((uint32_t)seen) : RUNS;
        if ((owner == GONE || (owner == SLEEPS && waited >= patience_ns) ||
             now - begun >= MOST_NS) &&
            take(f, seen, &mine)) {
            if (owner == GONE) /* cancelled, which the kernel does before bytes move */
                atomic_fetch_sub_explicit(&f->n_calls, 1, memory_order_relaxed);
            return mine;
        }
        syscall(SYS_nanosleep, &(struct timespec){0, waited < 8 * SHORT_NS ? SHORT_NS : waited / 8},
                NULL);
    }
}

static uint64_t own(struct flow *f, int fd, enum call_direction direction, int flags)
{
    uint64_t mine, seen = atomic_load_explicit(&f->owner, memory_order_relaxed);
    if ((uint32_t)seen == 0 && take(f, seen, &mine))
        return mine;
    /* where the descriptor never waits, an owner is soon through; where it does but this call does
       not, the owner may be asleep in the kernel */
    int status = flags & MSG_DONTWAIT ? (int)syscall(SYS_fcntl, fd, F_GETFL) : 0;
    bool alone = (flags & MSG_DONTWAIT) && status >= 0 && !(status & O_NONBLOCK);
    return wait_and_own(f, alone ? SHORT_NS : direction == DIRECTION_SEND ? MOST_NS : LONG_NS);
}

static void disown(struct flow *f, uint64_t mine)
{
    atomic_compare_exchange_strong_explicit(&f->owner, &mine, mine & ~(uint64_t)UINT32_MAX,
                                            memory_order_release, memory_order_relaxed);
}

/* ---- a call ---- */

void call_begin(struct call *c, int fd, enum call_direction direction, enum call_kind kind,
                int flags)
{
    int saved = errno;
    struct stream *s = c->stream = lookup(fd);
    if (!s) {
        errno = saved;
        return;
    }
    c->direction = (uint8_t)direction;
    c->kind = (uint8_t)kind;
    c->flags = (uint16_t)((flags & MSG_DONTWAIT ? CALL_DONTWAIT : 0) |
                          (flags & MSG_WAITALL ? CALL_WAITALL : 0));
    c->start_ns = 0;
    bool record = log_on();
    /* the framing of a known protocol shows by itself that a descriptor has become another one */
    if (record && s->info.protocol == PROTOCOL_UNKNOWN &&
        atomic_load_explicit(&s->kept, memory_order_relaxed) && !still_is(s, fd)) {
        if (!vforked())
            name(fd, NULL, FD_UNKNOWN);
        s = c->stream = lookup(fd);
        if (!s) {
            errno = saved;
            return;
        }
    }
    if (!s->has_ends)
        find_ends(s, fd, NULL, 0);
    struct flow *f = &s->flows[direction];
    c->number = atomic_load_explicit(&s->number, memory_order_relaxed);
    c->owner = own(f, fd, direction, flags);
    atomic_fetch_add_explicit(&f->n_calls, 1, memory_order_relaxed);
    c->moves = atomic_load_explicit(&f->n_moves, memory_order_relaxed);
    if (record)
        c->start_ns = log_now();
    errno = saved;
}

static void announce(struct stream *s)
{
    if (atomic_load_explicit(&s->announced, memory_order_relaxed))
        return;
    struct record_connection *r = log_reserve(sizeof *r);
    if (!r)
        return;
    *r = s->info;
    r->head = log_head(RECORD_CONNECTION, sizeof *r);
    atomic_store_explicit(&s->announced, true, memory_order_relaxed);
    log_commit();
}

struct stream_sink {
    struct decode_sink sink; /* first */
    struct stream *stream;
    bool may_emit;
};

static void recognised(struct decode_sink *sink, enum connection_protocol protocol)
{
    struct stream_sink *t = (struct stream_sink *)sink;
    struct stream *s = t->stream;
    s->info.protocol = (uint8_t)protocol;
    if (peers_keep_recognised())
        keep(s);
    if (!atomic_load_explicit(&s->kept, memory_order_relaxed) || !t->may_emit || !log_on())
        return;
    atomic_store_explicit(&s->announced, false,
                          memory_order_relaxed); /* again, with its protocol */
    announce(s);
    sink->emit = true;
}

static void decode_parts(struct decoder *d, const struct decoder *other, const struct iovec *parts,
                         size_t n_parts, size_t n, uint64_t offset, struct decode_sink *sink)
{
    if (!parts || d->skip >= n || d->phase == DECODE_UNKNOWN || d->phase == DECODE_BROKEN) {
        decode(d, other, NULL, n, offset, sink);
        return;
    }
    for (size_t i = 0; i < n_parts && n > 0; i++) {
        size_t part = parts[i].iov_len < n ? parts[i].iov_len : n;
        decode(d, other, parts[i].iov_base, part, offset, sink);
        offset += part;
        n -= part;
    }
}

static void write_call(const struct call *c, int64_t end_ns, uint64_t offset, size_t requested,
                       size_t returned)
{
    struct record_call *r = log_reserve(sizeof *r);
    if (!r)
        return;
    *r = (struct record_call){log_head(RECORD_CALL, sizeof *r),
                              c->number,
                              c->direction,
                              c->kind,
                              c->flags,
                              c->start_ns,
                              end_ns,
                              offset,
                              requested < UINT32_MAX ? (uint32_t)requested : UINT32_MAX,
                              returned < UINT32_MAX ? (uint32_t)returned : UINT32_MAX};
    log_commit();
}

struct moved { /* where a call's bytes lie */
    const struct iovec *parts;
    size_t n_parts;
    const struct mmsghdr *messages; /* or, of several messages */
    int n_messages;
};

static void account(struct call *c, struct flow *f, size_t n, size_t requested,
                    const struct moved *moved, int64_t end_ns, bool sure)
{
    struct stream *s = c->stream;
    const struct decoder *other = &s->flows[!c->direction].decoder;
    uint64_t offset = atomic_fetch_add_explicit(&f->n_bytes, n, memory_order_relaxed);
    struct stream_sink t = {{c->number, c->direction, false, recognised}, s, c->start_ns != 0};
    bool record = c->start_ns != 0 && atomic_load_explicit(&s->kept, memory_order_relaxed);
    if (record) {
        announce(s);
        t.sink.emit = true;
    }
    if (!sure) {
        c->flags |= CALL_ORDER_UNKNOWN;
        if (f->decoder.skip >= n)
            f->decoder.skip -= n;
        else
            decode_give_up(&f->decoder);
    } else if (moved->messages) {
        for (int i = 0; i < moved->n_messages; i++) {
            const struct msghdr *m = &moved->messages[i].msg_hdr;
            size_t length = moved->messages[i].msg_len;
            decode_parts(&f->decoder, other, m->msg_iov, m->msg_iovlen, length, offset, &t.sink);
            offset += length;
        }
        offset -= n;
    } else {
        decode_parts(&f->decoder, other, moved->parts, moved->n_parts, n, offset, &t.sink);
    }
    if (record || t.sink.emit)
        write_call(c, end_ns, offset, requested, n);
}

static void end(struct call *c, ssize_t result, size_t requested, const struct moved *moved)
{
    int saved = errno;
    struct flow *f = &c->stream->flows[c->direction];
    int64_t end_ns = c->start_ns != 0 ? log_now() : 0;
    if (atomic_load_explicit(&c->stream->number, memory_order_relaxed) != c->number) {
        disown(f, c->owner); /* closed meanwhile, and its slot may be another one's */
        errno = saved;
        return;
    }
    if (result > 0) {
        if (atomic_load_explicit(&f->owner, memory_order_relaxed) != c->owner)
            c->owner = wait_and_own(f, LONG_NS);
        bool sure = atomic_load_explicit(&f->n_calls, memory_order_acquire) == 1 &&
                    atomic_load_explicit(&f->n_moves, memory_order_relaxed) == c->moves;
        account(c, f, (size_t)result, requested, moved, end_ns, sure);
        atomic_fetch_add_explicit(&f->n_moves, 1, memory_order_relaxed);
    }
    atomic_fetch_sub_explicit(&f->n_calls, 1, memory_order_release);
    disown(f, c->owner);
    errno = saved;
}

void call_end(struct call *c, ssize_t result, size_t requested, const struct iovec *parts,
              size_t n_parts)
{
    if (c->stream)
        end(c, result, requested, &(struct moved){parts, n_parts, NULL, 0});
}

void call_end_messages(struct call *c, ssize_t result, size_t requested,
                       const struct mmsghdr *messages, int n_messages)
{
    if (c->stream)
        end(c, result, requested, &(struct moved){NULL, 0, messages, n_messages});
}

/* ---- descriptors that come and go ---- */

void stream_opened(int fd, int domain, int type)
{
    int saved = errno;
    if (!vforked()) {
        bool traced = is_traced(domain, type);
        name(fd,
             traced ? new_stream(fd, ORIGIN_CONNECT, family_of(domain), CONNECTION_WHOLE) : NULL,
             traced ? FD_UNKNOWN : FD_OTHER);
    }
    errno = saved;
}

void stream_paired(const int fds[2], int domain, int type)
{
    int saved = errno;
    struct stream *ends[2] = {NULL, NULL};
    if (vforked())
        return;
    for (int i = 0; i < 2 && is_traced(domain, type); i++)
        ends[i] = new_stream(fds[i], ORIGIN_PAIR, family_of(domain), CONNECTION_WHOLE);
    for (int i = 0; i < 2; i++) {
        if (ends[0] && ends[1]) {
            ends[i]->info.peer = ends[!i]->info.connection;
            find_ends(ends[i], fds[i], NULL, 0);
        }
        name(fds[i], ends[i], FD_OTHER);
    }
    errno = saved;
}

void stream_connected(int fd, const struct sockaddr *remote, socklen_t size)
{
    int saved = errno;
    if ((unsigned int)fd >= N_FDS || vforked())
        return;
    struct stream *s = stream_of(atomic_load(&stream_fds[fd]));
    if (!s || !still_is(s, fd)) { /* made where it was not seen: found when bytes move */
        name(fd, NULL, FD_UNKNOWN);
    } else {
        bool used = atomic_load(&s->flows[0].n_bytes) + atomic_load(&s->flows[1].n_bytes) > 0;
        if (used && (s = new_stream(fd, ORIGIN_CONNECT, s->info.family, CONNECTION_WHOLE)))
            name(fd, s, FD_UNKNOWN);
        if (s)
            find_ends(s, fd, remote, size);
    }
    errno = saved;
}

void stream_accepted(int fd)
{
    int saved = errno, domain = 0, type = 0;
    socklen_t size = sizeof domain;
    if (vforked())
        return;
    struct stream *s = NULL;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 &&
        getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && is_traced(domain, type))
        s = new_stream(fd, ORIGIN_ACCEPT, family_of(domain), CONNECTION_WHOLE);
    if (s)
        find_ends(s, fd, NULL, 0);
    name(fd, s, FD_OTHER);
    errno = saved;
}

void stream_received(int fd)
{
    int saved = errno;
    if ((unsigned int)fd < N_FDS && atomic_load(&stream_fds[fd]) != FD_UNKNOWN && !vforked())
        name(fd, NULL, FD_UNKNOWN);
    errno = saved;
}

void stream_closing(int fd)
{
    if ((unsigned int)fd >= N_FDS)
        return;
    uint32_t word = atomic_load_explicit(&stream_fds[fd], memory_order_relaxed);
    if (word == FD_UNKNOWN)
        return;
    if (word == FD_OTHER) { /* in a vfork'ed child: forgotten by its parent, which finds it again */
        atomic_store_explicit(&stream_fds[fd], FD_UNKNOWN, memory_order_relaxed);
        return;
    }
    int saved = errno;
    if (!vforked())
        name(fd, NULL, FD_UNKNOWN);
    errno = saved;
}

void stream_closing_from(unsigned int first, unsigned int last)
{
    uint32_t highest = atomic_load_explicit(&highest_fd, memory_order_relaxed);
    int saved = errno;
    if (!vforked())
        for (unsigned int fd = first; fd <= last && fd <= highest; fd++)
            stream_closing((int)fd);
    errno = saved;
}

void stream_looked_at(int fd)
{
    int saved = errno;
    lookup(fd);
    errno = saved;
}

void stream_duplicated(int from, int to)
{
    int saved = errno;
    if (from == to || (unsigned int)from >= N_FDS || vforked())
        return;
    uint32_t word = atomic_load(&stream_fds[from]);
    struct stream *s = stream_of(word);
    if (s)
        atomic_fetch_add(&s->n_fds, 1);
    name(to, s, word);
    errno = saved;
}

/* ---- for the log ---- */

void streams_write_connections(void)
{
    uint32_t n = atomic_load(&n_touched);
    for (uint32_t i = 0; i < n; i++) {
        struct stream *s = &streams[i];
        uint32_t number = s->info.connection;
        if (!atomic_load(
                &s->announced)) /* closed ones included: calls on them may still be queued */
            continue;
        struct record_connection r = s->info;
        r.head = (struct record){RECORD_CONNECTION, 1, sizeof r, 0};
        atomic_thread_fence(memory_order_acquire);
        if (s->info.connection == number) /* not filled anew meanwhile */
            log_write_now(&r, sizeof r);
    }
}

void streams_write_totals(void)
{
    uint32_t n = atomic_load(&n_touched);
    for (uint32_t i = 0; i < n; i++)
        if (atomic_load(&streams[i].number) != 0)
            write_total(&streams[i], false);
}

uint64_t streams_memory(void)
{
    return atomic_load(&n_touched) * (uint64_t)sizeof(struct stream) +
           (atomic_load(&highest_fd) + 1) * (uint64_t)sizeof *stream_fds;
}
