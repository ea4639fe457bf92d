/* libc's functions as the job sees them: each calls the next one of its name, and tells streams.c
 * what came of it. What is not a traced connection goes straight through.
 *
 * The next function is looked up when the library is loaded, or at the first call where that is
 * earlier (constructors of other libraries). */
#undef _FORTIFY_SOURCE
#undef _FILE_OFFSET_BITS /* both widths are hooked, each under its own name */

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "control.h"
#include "log.h"
#include "peers.h"
#include "streams.h"

#ifndef CLOSE_RANGE_CLOEXEC /* glibc before 2.34 */
#define CLOSE_RANGE_CLOEXEC (1U << 2)
#endif

#define EXPORT    __attribute__((visibility("default")))
#define LIKELY(x) __builtin_expect(!!(x), 1)

/* clang-format off */
#define HOOKS(HOOK) \
    HOOK(read) HOOK(__read_chk) HOOK(readv) HOOK(recv) HOOK(__recv_chk) HOOK(recvfrom) \
    HOOK(__recvfrom_chk) HOOK(recvmsg) HOOK(recvmmsg) HOOK(write) HOOK(writev) HOOK(send) \
    HOOK(sendto) HOOK(sendmsg) HOOK(sendmmsg) HOOK(sendfile) HOOK(sendfile64) HOOK(splice) \
    HOOK(close) HOOK(close_range) HOOK(closefrom) HOOK(fclose) HOOK(dup) HOOK(dup2) \
    HOOK(dup3) HOOK(fcntl) HOOK(fcntl64) HOOK(socket) HOOK(socketpair) HOOK(connect) \
    HOOK(accept) HOOK(accept4) HOOK(sched_yield)
/* clang-format on */

/* what the headers declare only with fortification, or not in every libc */
ssize_t __read_chk(int fd, void *buffer, size_t n, size_t size);
ssize_t __recv_chk(int fd, void *buffer, size_t n, size_t size, int flags);
ssize_t __recvfrom_chk(int fd, void *buffer, size_t n, size_t size, int flags,
                       __SOCKADDR_ARG address, socklen_t *address_size);
int close_range(unsigned int first, unsigned int last, int flags);
void closefrom(int first);

#define SLOT(name) static __typeof__(name) *_Atomic next_##name;
HOOKS(SLOT)
static void (*next_exit)(int), (*next_Exit)(int);

#define RESOLVE(name)                                                                              \
    atomic_store_explicit(&next_##name, (__typeof__(&name))dlsym(RTLD_NEXT, #name),                \
                          memory_order_relaxed);

#define NEXT(name)                                                                                 \
    ({                                                                                             \
        __typeof__(&name) found_ = atomic_load_explicit(&next_##name, memory_order_relaxed);       \
        if (!LIKELY(found_)) {                                                                     \
            RESOLVE(name)                                                                          \
            found_ = atomic_load_explicit(&next_##name, memory_order_relaxed);                     \
        }                                                                                          \
        found_;                                                                                    \
    })

/* ---- what this process does ---- */

enum { NET_NOT_READ, NET_READING, NET_OFF, NET_WINDOW, NET_ALL };
static _Atomic int net;
static struct log_options log_options;
static char all_path[PATH_MAX];
static _Atomic bool in_window;

static struct log_options options_of_environment(void)
{
    const char *megabytes = getenv("DPRO_NET_MAX_MB"), *keep = getenv("DPRO_NET_KEEP");
    struct log_options options = {
        .kind = LOG_TRANSPORT, .rank = -1, .on_segment = streams_write_connections};
    if (megabytes)
        options.max_bytes = (uint64_t)strtoull(megabytes, NULL, 10) << 20;
    options.keep_newest = keep && strcmp(keep, "newest") == 0;
    return options;
}

/* DPRO_NET=all: DPRO_OUT as it is now; the job may change its folder and its variables. */
static void find_all_path(void)
{
    const char *out = getenv("DPRO_OUT");
    char here[PATH_MAX] = "";
    if (!out || !*out)
        out = "dpro_trace";
    if (*out != '/' && syscall(SYS_getcwd, here, sizeof here) < 0)
        here[0] = '\0';
    snprintf(all_path, sizeof all_path, "%s%s%s", here, *out == '/' ? "" : "/", out);
}

static void make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0777);
        *slash = '/';
    }
}

static void start_all(void)
{
    char path[PATH_MAX + 96], host[65] = "";
    int saved = errno;
    gethostname(host, sizeof host - 1);
    snprintf(path, sizeof path, "%s/net-%s-%ld.log", all_path, host, (long)syscall(SYS_getpid));
    make_folders(path);
    int error = log_start(path, &log_options);
    if (error < 0 && error != -EALREADY)
        log_say("%s: can't be made: %s; this process's connections are not recorded", path,
                strerror(-error));
    errno = saved;
}

static void decide(void)
{
    int not_read = NET_NOT_READ;
    if (!environ) /* so early that libc has not set itself up: decided later */
        return;
    if (!atomic_compare_exchange_strong(&net, &not_read, NET_READING))
        return;
    int saved = errno, decision = NET_OFF;
    const char *dpro = getenv("DPRO"), *value = getenv("DPRO_NET");
    if (dpro && strcmp(dpro, "1") == 0 && !getauxval(AT_SECURE) &&
        !(value && strcmp(value, "off") == 0))
        decision = value && strcmp(value, "all") == 0 ? NET_ALL : NET_WINDOW;
    if (decision != NET_OFF) {
        streams_init();
        peers_init();
        log_options = options_of_environment();
        pthread_atfork(NULL, NULL, streams_after_fork);
    }
    if (decision == NET_ALL) {
        find_all_path();
        stream_first_kept = start_all;
    }
    atomic_store(&net, decision);
    errno = saved;
}

/* Whether connections are traced in this process. */
static inline bool tracing(void)
{
    int now = atomic_load_explicit(&net, memory_order_acquire);
    if (now == NET_NOT_READ) {
        decide();
        now = atomic_load_explicit(&net, memory_order_acquire);
    }
    return now >= NET_WINDOW;
}

__attribute__((constructor)) static void loaded(void)
{
    int saved = errno;
    HOOKS(RESOLVE)
    next_exit = (void (*)(int))dlsym(RTLD_NEXT, "_exit");
    next_Exit = (void (*)(int))dlsym(RTLD_NEXT, "_Exit");
    tracing();
    errno = saved;
}

static void stop(void)
{
    streams_write_totals();
    log_stop();
}

__attribute__((destructor)) static void unloaded(void)
{
    if (log_on())
        stop();
}

/* ---- the functions that programs call ---- */

EXPORT int dpro_tracer_start(const char *path, int rank)
{
    if (!tracing())
        return -EPERM; /* DPRO is not 1, or DPRO_NET is off */
    struct log_options options = log_options;
    options.rank = rank;
    int error = log_start(path, &options);
    if (error == 0)
        atomic_store(&in_window, true);
    return error;
}

EXPORT void dpro_tracer_stop(void)
{
    if (atomic_exchange(&in_window, false))
        stop();
}

EXPORT void dpro_tracer_mark(const char *name)
{
    log_mark(name);
}

EXPORT int dpro_tracer_stats(uint64_t out[4])
{
    struct log_stats stats = log_stats();
    out[0] = stats.n_records;
    out[1] = stats.n_lost;
    out[2] = stats.file_bytes;
    out[3] = stats.memory_bytes + streams_memory();
    return 0;
}

/* ---- calls that move bytes ---- */

static inline bool traced(int fd)
{
    return !stream_is_other(fd) && tracing();
}

/* MSG_TRUNC throws the bytes away; out of band ones have no place among the others. */
static bool moves(int flags)
{
    return !(flags & (MSG_PEEK | MSG_ERRQUEUE));
}

static bool visible(int flags)
{
    return !(flags & (MSG_TRUNC | MSG_OOB));
}

static size_t bytes_of(const struct iovec *parts, size_t n_parts)
{
    size_t n = 0;
    for (size_t i = 0; i < n_parts; i++)
        n += parts[i].iov_len;
    return n;
}

#define AROUND(fd, direction, kind, flags, requested, parts, n_parts, expression)                  \
    struct call around_;                                                                           \
    call_begin(&around_, fd, direction, kind, flags);                                              \
    ssize_t result_ = expression;                                                                  \
    call_end(&around_, result_, requested, parts, n_parts);                                        \
    return result_

#define RECEIVE(kind, flags, buffer, n, expression)                                                \
    const struct iovec part_ = {buffer, n};                                                        \
    AROUND(fd, DIRECTION_RECEIVE, kind, flags, n, visible(flags) ? &part_ : NULL, 1, expression)

#define SEND(kind, flags, buffer, n, expression)                                                   \
    const struct iovec part_ = {(void *)(uintptr_t)(buffer), n};                                   \
    AROUND(fd, DIRECTION_SEND, kind, flags, n, &part_, 1, expression)

EXPORT ssize_t read(int fd, void *buffer, size_t n)
{
    if (LIKELY(!traced(fd)))
        return NEXT(read)(fd, buffer, n);
    RECEIVE(CALL_READ, 0, buffer, n, NEXT(read)(fd, buffer, n));
}

EXPORT ssize_t __read_chk(int fd, void *buffer, size_t n, size_t size)
{
    if (LIKELY(!traced(fd)))
        return NEXT(__read_chk)(fd, buffer, n, size);
    RECEIVE(CALL_READ, 0, buffer, n, NEXT(__read_chk)(fd, buffer, n, size));
}

EXPORT ssize_t readv(int fd, const struct iovec *parts, int n_parts)
{
    if (!traced(fd) || n_parts < 0)
        return NEXT(readv)(fd, parts, n_parts);
    AROUND(fd, DIRECTION_RECEIVE, CALL_READV, 0, bytes_of(parts, (size_t)n_parts), parts,
           (size_t)n_parts, NEXT(readv)(fd, parts, n_parts));
}

EXPORT ssize_t recv(int fd, void *buffer, size_t n, int flags)
{
    if (!traced(fd) || !moves(flags))
        return NEXT(recv)(fd, buffer, n, flags);
    RECEIVE(CALL_RECV, flags, buffer, n, NEXT(recv)(fd, buffer, n, flags));
}

EXPORT ssize_t __recv_chk(int fd, void *buffer, size_t n, size_t size, int flags)
{
    if (!traced(fd) || !moves(flags))
        return NEXT(__recv_chk)(fd, buffer, n, size, flags);
    RECEIVE(CALL_RECV, flags, buffer, n, NEXT(__recv_chk)(fd, buffer, n, size, flags));
}

EXPORT ssize_t recvfrom(int fd, void *buffer, size_t n, int flags, __SOCKADDR_ARG address,
                        socklen_t *address_size)
{
    if (!traced(fd) || !moves(flags))
        return NEXT(recvfrom)(fd, buffer, n, flags, address, address_size);
    RECEIVE(CALL_RECVFROM, flags, buffer, n,
            NEXT(recvfrom)(fd, buffer, n, flags, address, address_size));
}

EXPORT ssize_t __recvfrom_chk(int fd, void *buffer, size_t n, size_t size, int flags,
                              __SOCKADDR_ARG address, socklen_t *address_size)
{
    if (!traced(fd) || !moves(flags))
        return NEXT(__recvfrom_chk)(fd, buffer, n, size, flags, address, address_size);
    RECEIVE(CALL_RECVFROM, flags, buffer, n,
            NEXT(__recvfrom_chk)(fd, buffer, n, size, flags, address, address_size));
}

static void look_for_descriptors(struct msghdr *message)
{
    int saved = errno;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || c->cmsg_len < CMSG_LEN(0))
            continue;
        for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            stream_received(fd);
        }
    }
    errno = saved;
}

static ssize_t receive_message(int fd, struct msghdr *message, int flags)
{
    if (!traced(fd) || !moves(flags))
        return NEXT(recvmsg)(fd, message, flags);
    AROUND(fd, DIRECTION_RECEIVE, CALL_RECVMSG, flags,
           bytes_of(message->msg_iov, message->msg_iovlen),
           visible(flags) ? message->msg_iov : NULL, message->msg_iovlen,
           NEXT(recvmsg)(fd, message, flags));
}

EXPORT ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    ssize_t n = receive_message(fd, message, flags);
    if (n >= 0 && message->msg_controllen > 0 && tracing())
        look_for_descriptors(message);
    return n;
}

static ssize_t moved_by(const struct mmsghdr *messages, int n_messages)
{
    ssize_t n = n_messages < 0 ? -1 : 0;
    for (int i = 0; i < n_messages; i++)
        n += messages[i].msg_len;
    return n;
}

static size_t asked_of(const struct mmsghdr *messages, unsigned int n_messages)
{
    size_t n = 0;
    for (unsigned int i = 0; i < n_messages; i++)
        n += bytes_of(messages[i].msg_hdr.msg_iov, messages[i].msg_hdr.msg_iovlen);
    return n;
}

static int receive_messages(int fd, struct mmsghdr *messages, unsigned int n, int flags,
                            struct timespec *timeout)
{
    struct call call;
    if (!traced(fd) || !moves(flags))
        return NEXT(recvmmsg)(fd, messages, n, flags, timeout);
    size_t requested = asked_of(messages, n);
    call_begin(&call, fd, DIRECTION_RECEIVE, CALL_RECVMMSG, flags);
    int result = NEXT(recvmmsg)(fd, messages, n, flags, timeout);
    call_end_messages(&call, moved_by(messages, result), requested,
                      visible(flags) ? messages : NULL, result);
    return result;
}

EXPORT int recvmmsg(int fd, struct mmsghdr *messages, unsigned int n, int flags,
                    struct timespec *timeout)
{
    int result = receive_messages(fd, messages, n, flags, timeout);
    for (int i = 0; i < result && tracing(); i++)
        if (messages[i].msg_hdr.msg_controllen > 0)
            look_for_descriptors(&messages[i].msg_hdr);
    return result;
}

EXPORT ssize_t write(int fd, const void *buffer, size_t n)
{
    if (LIKELY(!traced(fd)))
        return NEXT(write)(fd, buffer, n);
    SEND(CALL_WRITE, 0, buffer, n, NEXT(write)(fd, buffer, n));
}

EXPORT ssize_t writev(int fd, const struct iovec *parts, int n_parts)
{
    if (!traced(fd) || n_parts < 0)
        return NEXT(writev)(fd, parts, n_parts);
    AROUND(fd, DIRECTION_SEND, CALL_WRITEV, 0, bytes_of(parts, (size_t)n_parts), parts,
           (size_t)n_parts, NEXT(writev)(fd, parts, n_parts));
}

EXPORT ssize_t send(int fd, const void *buffer, size_t n, int flags)
{
    if (!traced(fd))
        return NEXT(send)(fd, buffer, n, flags);
    SEND(CALL_SEND, flags, buffer, n, NEXT(send)(fd, buffer, n, flags));
}

EXPORT ssize_t sendto(int fd, const void *buffer, size_t n, int flags, __CONST_SOCKADDR_ARG address,
                      socklen_t address_size)
{
    if (!traced(fd))
        return NEXT(sendto)(fd, buffer, n, flags, address, address_size);
    SEND(CALL_SENDTO, flags, buffer, n, NEXT(sendto)(fd, buffer, n, flags, address, address_size));
}

EXPORT ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    if (!traced(fd))
        return NEXT(sendmsg)(fd, message, flags);
    AROUND(fd, DIRECTION_SEND, CALL_SENDMSG, flags, bytes_of(message->msg_iov, message->msg_iovlen),
           message->msg_iov, message->msg_iovlen, NEXT(sendmsg)(fd, message, flags));
}

EXPORT int sendmmsg(int fd, struct mmsghdr *messages, unsigned int n, int flags)
{
    struct call call;
    if (!traced(fd))
        return NEXT(sendmmsg)(fd, messages, n, flags);
    size_t requested = asked_of(messages, n);
    call_begin(&call, fd, DIRECTION_SEND, CALL_SENDMMSG, flags);
    int result = NEXT(sendmmsg)(fd, messages, n, flags);
    call_end_messages(&call, moved_by(messages, result), requested, messages, result);
    return result;
}

EXPORT ssize_t sendfile(int to, int from, off_t *offset, size_t n)
{
    if (!traced(to))
        return NEXT(sendfile)(to, from, offset, n);
    AROUND(to, DIRECTION_SEND, CALL_SENDFILE, 0, n, NULL, 0, NEXT(sendfile)(to, from, offset, n));
}

EXPORT ssize_t sendfile64(int to, int from, off64_t *offset, size_t n)
{
    if (!traced(to))
        return NEXT(sendfile64)(to, from, offset, n);
    AROUND(to, DIRECTION_SEND, CALL_SENDFILE, 0, n, NULL, 0, NEXT(sendfile64)(to, from, offset, n));
}

/* One of the two is a pipe. */
EXPORT ssize_t splice(int from, off64_t *from_offset, int to, off64_t *to_offset, size_t n,
                      unsigned int flags)
{
    if (!traced(from) && !traced(to))
        return NEXT(splice)(from, from_offset, to, to_offset, n, flags);
    struct call received, sent;
    int message_flags = flags & SPLICE_F_NONBLOCK ? MSG_DONTWAIT : 0;
    call_begin(&received, from, DIRECTION_RECEIVE, CALL_SPLICE, message_flags);
    call_begin(&sent, to, DIRECTION_SEND, CALL_SPLICE, message_flags);
    ssize_t result = NEXT(splice)(from, from_offset, to, to_offset, n, flags);
    call_end(&sent, result, n, NULL, 0);
    call_end(&received, result, n, NULL, 0);
    return result;
}

/* ---- descriptors ---- */

EXPORT int close(int fd)
{
    if (tracing())
        stream_closing(fd);
    return NEXT(close)(fd);
}

EXPORT int close_range(unsigned int first, unsigned int last, int flags)
{
    if (!NEXT(close_range)) {
        errno = ENOSYS;
        return -1;
    }
    if (tracing() && !(flags & CLOSE_RANGE_CLOEXEC))
        stream_closing_from(first, last);
    return NEXT(close_range)(first, last, flags);
}

EXPORT void closefrom(int first)
{
    if (!NEXT(closefrom)) {
        close_range(first > 0 ? (unsigned int)first : 0, UINT_MAX, 0);
        return;
    }
    if (tracing())
        stream_closing_from(first > 0 ? (unsigned int)first : 0, UINT_MAX);
    NEXT(closefrom)(first);
}

EXPORT int fclose(FILE *file)
{
    int fd = tracing() ? fileno(file) : -1;
    if (fd >= 0)
        stream_closing(fd);
    return NEXT(fclose)(file);
}

EXPORT int dup(int fd)
{
    if (!tracing())
        return NEXT(dup)(fd);
    stream_looked_at(fd);
    int result = NEXT(dup)(fd);
    if (result >= 0)
        stream_duplicated(fd, result);
    return result;
}

EXPORT int dup2(int fd, int to)
{
    if (!tracing())
        return NEXT(dup2)(fd, to);
    stream_looked_at(fd);
    int result = NEXT(dup2)(fd, to);
    if (result >= 0)
        stream_duplicated(fd, result);
    return result;
}

EXPORT int dup3(int fd, int to, int flags)
{
    if (!tracing())
        return NEXT(dup3)(fd, to, flags);
    stream_looked_at(fd);
    int result = NEXT(dup3)(fd, to, flags);
    if (result >= 0)
        stream_duplicated(fd, result);
    return result;
}

static int control(__typeof__(&fcntl) next, int fd, int command, void *argument)
{
    bool duplicates = (command == F_DUPFD || command == F_DUPFD_CLOEXEC) && tracing();
    if (duplicates)
        stream_looked_at(fd);
    int result = next(fd, command, argument);
    if (duplicates && result >= 0)
        stream_duplicated(fd, result);
    return result;
}

EXPORT int fcntl(int fd, int command, ...)
{
    va_list arguments;
    va_start(arguments, command);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    return control(NEXT(fcntl), fd, command, argument);
}

EXPORT int fcntl64(int fd, int command, ...)
{
    va_list arguments;
    va_start(arguments, command);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    return control(NEXT(fcntl64), fd, command, argument);
}

EXPORT int socket(int domain, int type, int protocol)
{
    int fd = NEXT(socket)(domain, type, protocol);
    if (fd >= 0 && tracing())
        stream_opened(fd, domain, type);
    return fd;
}

EXPORT int socketpair(int domain, int type, int protocol, int fds[2])
{
    int result = NEXT(socketpair)(domain, type, protocol, fds);
    if (result == 0 && tracing())
        stream_paired(fds, domain, type);
    return result;
}

EXPORT int connect(int fd, __CONST_SOCKADDR_ARG address, socklen_t size)
{
    int result = NEXT(connect)(fd, address, size);
    if ((result == 0 || errno == EINPROGRESS || errno == EINTR) && tracing())
        stream_connected(fd, address.__sockaddr__, size);
    return result;
}

EXPORT int accept(int fd, __SOCKADDR_ARG address, socklen_t *size)
{
    int result = NEXT(accept)(fd, address, size);
    if (result >= 0 && tracing())
        stream_accepted(result);
    return result;
}

EXPORT int accept4(int fd, __SOCKADDR_ARG address, socklen_t *size, int flags)
{
    int result = NEXT(accept4)(fd, address, size, flags);
    if (result >= 0 && tracing())
        stream_accepted(result);
    return result;
}

/* ---- a thread that never rests ---- */

static const int64_t EASED_NS = 1000000;
static _Atomic uintptr_t eased_from;
static _Atomic size_t eased_size;

EXPORT void dpro_tracer_ease(const void *function, size_t size)
{
    atomic_store(&eased_size, 0);
    atomic_store(&eased_from, (uintptr_t)function);
    atomic_store(&eased_size, size);
}

EXPORT int sched_yield(void)
{
    size_t size = atomic_load_explicit(&eased_size, memory_order_acquire);
    uintptr_t caller = (uintptr_t)__builtin_return_address(0);
    if (size == 0 || caller - atomic_load_explicit(&eased_from, memory_order_relaxed) >= size)
        return NEXT(sched_yield)();
    int saved = errno;
    nanosleep(&(struct timespec){.tv_nsec = EASED_NS}, NULL);
    errno = saved;
    return 0;
}

/* ---- the end ---- */

/* A vfork'ed child would stop its parent's log. */
__attribute__((noreturn)) static void leave(void (*next)(int), int status)
{
    if (log_on() && streams_are_ours())
        stop();
    if (next)
        next(status);
    for (;;)
        syscall(SYS_exit_group, status);
}

EXPORT void _exit(int status)
{
    leave(next_exit, status);
}

EXPORT void _Exit(int status)
{
    leave(next_Exit, status);
}
