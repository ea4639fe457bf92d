/* Small jobs that test_tracer runs with the tracer preloaded. `traced NAME` does one thing, checks
 * what a job can see of it, and exits with 0, or with the line where something was wrong. */
#undef _FORTIFY_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
    do                                                                                             \
        if (!(condition)) {                                                                        \
            dprintf(STDERR_FILENO, "traced.c:%d: %s: %s\n", __LINE__, #condition,                  \
                    strerror(errno));                                                              \
            syscall(SYS_exit_group, 1);                                                            \
        }                                                                                          \
    while (0)

ssize_t __read_chk(int fd, void *buffer, size_t n, size_t size);
ssize_t __recv_chk(int fd, void *buffer, size_t n, size_t size, int flags);
ssize_t __recvfrom_chk(int fd, void *buffer, size_t n, size_t size, int flags, void *address,
                       socklen_t *address_size);

static const char *argument; /* the scenario's own, or NULL */
static int (*tracer_start)(const char *, int);
static void (*tracer_stop)(void);
static int (*tracer_stats)(uint64_t *);
static void (*tracer_ease)(const void *, size_t);

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- connections ---- */

union address {
    struct sockaddr any;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
};

static int listen_on(int family, union address *address, socklen_t *size)
{
    int fd = socket(family, SOCK_STREAM, 0);
    memset(address, 0, sizeof *address);
    address->any.sa_family = (sa_family_t)family;
    if (family == AF_INET6)
        address->in6.sin6_addr = in6addr_loopback;
    else
        address->in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    *size = family == AF_INET6 ? sizeof address->in6 : sizeof address->in;
    CHECK(fd >= 0 && bind(fd, &address->any, *size) == 0 && listen(fd, 100) == 0);
    CHECK(getsockname(fd, &address->any, size) == 0);
    return fd;
}

static void connect_to(int listener, int family, const union address *address, socklen_t size,
                       int ends[2])
{
    int one = 1;
    ends[0] = socket(family, SOCK_STREAM, 0);
    CHECK(connect(ends[0], &address->any, size) == 0);
    ends[1] = accept(listener, NULL, NULL);
    CHECK(ends[1] >= 0);
    setsockopt(ends[0], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(ends[1], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

/* ends[0] connected, ends[1] accepted. */
static void connect_pair(int family, int ends[2])
{
    union address address;
    socklen_t size;
    if (family == AF_UNIX) {
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
        return;
    }
    int listener = listen_on(family, &address, &size);
    connect_to(listener, family, &address, size, ends);
    close(listener);
}

static void read_all(int fd, void *buffer, size_t n)
{
    while (n > 0) {
        ssize_t got = read(fd, buffer, n);
        CHECK(got > 0);
        buffer = (char *)buffer + got;
        n -= (size_t)got;
    }
}

/* ---- scenarios ---- */

static struct scenario {
    const char *name;
    void (*run)(void);
    struct scenario *next;
} * scenarios;

#define SCENARIO(what)                                                                             \
    static void what(void);                                                                        \
    __attribute__((constructor)) static void add_##what(void)                                      \
    {                                                                                              \
        static struct scenario this = {#what, what, NULL};                                         \
        this.next = scenarios;                                                                     \
        scenarios = &this;                                                                         \
    }                                                                                              \
    static void what(void)

/* Every call once, with sizes that tell them apart: sends 1000 and up, receives the same. */
static void every_call_on(int family)
{
    int e[2], pipes[2];
    char out[4000] = {0}, in[4000];
    connect_pair(family, e);
    char name[] = "/tmp/dpro-traced-XXXXXX";
    int file = mkstemp(name);
    CHECK(file >= 0 && write(file, out, sizeof out) == sizeof out && unlink(name) == 0);
    CHECK(pipe(pipes) == 0);
    struct iovec parts[2] = {{out, 500}, {out + 500, 510}}, into[2] = {{in, 600}, {in + 600, 600}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    struct msghdr answer = {.msg_iov = into, .msg_iovlen = 2};
    struct mmsghdr several[2] = {{.msg_hdr = message}, {.msg_hdr = message}},
                   got = {.msg_hdr = answer};

    CHECK(write(e[0], out, 1001) == 1001 && read(e[1], in, 1001) == 1001);
    CHECK(writev(e[0], parts, 2) == 1010 && readv(e[1], into, 2) == 1010);
    CHECK(send(e[0], out, 1002, 0) == 1002 && recv(e[1], in, 1002, MSG_WAITALL) == 1002);
    CHECK(sendto(e[0], out, 1003, 0, NULL, 0) == 1003);
    CHECK(recvfrom(e[1], in, 1003, 0, NULL, NULL) == 1003);
    CHECK(sendmsg(e[0], &message, 0) == 1010 && recvmsg(e[1], &answer, 0) == 1010);
    CHECK(sendmmsg(e[0], several, 2, 0) == 2 && several[0].msg_len == 1010);
    if (family == AF_UNIX) {
        read_all(e[1], in, 2020); /* a receive may end with what one send sent */
    } else {
        CHECK(recvmmsg(e[1], &got, 1, 0, NULL) == 1 && got.msg_len == 1200);
        read_all(e[1], in, 820);
    }
    off_t from = 0;
    CHECK(sendfile(e[0], file, &from, 1004) == 1004);
    CHECK(__read_chk(e[1], in, 1004, sizeof in) == 1004);
    CHECK(write(pipes[1], out, 1005) == 1005);
    CHECK(splice(pipes[0], NULL, e[0], NULL, 1005, 0) == 1005);
    CHECK(splice(e[1], NULL, pipes[1], NULL, 1005, 0) == 1005);
    CHECK(read(pipes[0], in, 1005) == 1005);
    CHECK(write(e[0], out, 1006) == 1006 && __recv_chk(e[1], in, 1006, sizeof in, 0) == 1006);
    CHECK(write(e[0], out, 1007) == 1007);
    CHECK(__recvfrom_chk(e[1], in, 1007, sizeof in, 0, NULL, NULL) == 1007);
    CHECK(write(e[1], out, 77) == 77 && read(e[0], in, sizeof in) == 77); /* the other way */
    close(e[0]);
    CHECK(read(e[1], in, sizeof in) == 0);
    close(e[1]);
    close(file);
    close(pipes[0]);
    close(pipes[1]);
}

SCENARIO(every_call)
{
    every_call_on(AF_INET);
    every_call_on(AF_INET6);
    every_call_on(AF_UNIX);
}

/* What moves no bytes: afterwards 300 of them were sent and received. */
SCENARIO(nothing_moved)
{
    int e[2];
    char bytes[300] = {0};
    connect_pair(AF_INET, e);
    CHECK(write(e[0], bytes, 100) == 100);
    CHECK(recv(e[1], bytes, 100, MSG_PEEK) == 100 && recv(e[1], bytes, 50, MSG_PEEK) == 50);
    CHECK(recv(e[1], bytes, 100, MSG_ERRQUEUE) < 0);
    struct iovec part = {bytes, 100};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    CHECK(recvmsg(e[1], &message, MSG_PEEK) == 100);
    CHECK(read(e[1], bytes, 0) == 0 && write(e[0], bytes, 0) == 0);
    CHECK(recv(e[1], bytes, 40, 0) == 40);
    CHECK(recv(e[1], NULL, 60, MSG_TRUNC) == 60); /* thrown away by the kernel */
    errno = 0;
    CHECK(recv(e[1], bytes, 100, MSG_DONTWAIT) < 0 && errno == EAGAIN);

    CHECK(write(e[0], bytes, 200) == 200);
    sleep_ms(10);
    errno = 77;
    CHECK(recv(e[1], bytes, 200, 0) == 200 && errno == 77);
    void *volatile nowhere = (void *)1;
    CHECK(write(e[0], nowhere, 10) < 0 && errno == EFAULT);
    CHECK(read(-1, bytes, 1) < 0 && errno == EBADF);
    CHECK(read(1 << 30, bytes, 1) < 0 && errno == EBADF);
    CHECK(close(-1) < 0 && close(1 << 30) < 0 && errno == EBADF);
}

SCENARIO(partial_writes)
{
    int e[2];
    static char bytes[1 << 20];
    size_t sent = 0, received = 0;
    connect_pair(AF_INET, e);
    fcntl(e[0], F_SETFL, O_NONBLOCK);
    fcntl(e[1], F_SETFL, O_NONBLOCK);
    while (received < 20u << 20) {
        ssize_t n = sent < 20u << 20 ? write(e[0], bytes, sizeof bytes) : 0;
        if (n > 0)
            sent += (size_t)n;
        n = read(e[1], bytes, sizeof bytes / 3);
        if (n > 0)
            received += (size_t)n;
    }
    while (received < sent) {
        ssize_t n = read(e[1], bytes, sizeof bytes);
        if (n > 0)
            received += (size_t)n;
    }
}

SCENARIO(duplicates)
{
    int e[2], d[5];
    char bytes[100] = {0};
    connect_pair(AF_INET, e);
    d[0] = dup(e[0]);
    d[1] = fcntl(e[0], F_DUPFD, 50);
    d[2] = fcntl(d[1], F_DUPFD_CLOEXEC, 60);
    d[3] = dup2(d[2], 70);
    d[4] = dup3(d[3], 71, O_CLOEXEC);
    CHECK(d[0] >= 0 && d[1] >= 50 && d[2] >= 60 && d[3] == 70 && d[4] == 71);
    for (int i = 0; i < 5; i++) {
        CHECK(write(d[i], bytes, 10) == 10);
        CHECK(close(i == 0 ? e[0] : d[i - 1]) == 0); /* the others stay the connection */
    }
    int file = open("/dev/null", O_RDWR);
    CHECK(dup2(file, d[4]) == d[4]); /* its last name is gone */
    CHECK(write(d[4], bytes, 33) == 33);
    CHECK(recv(e[1], bytes, 100, MSG_WAITALL) == 50);
}

/* libc closes a descriptor where nobody sees it, and the next socket gets its number. */
SCENARIO(reuse)
{
    int e[2], again[2];
    char bytes[100] = {0};
    FILE *file = fopen("/dev/null", "r");
    int number = fileno(file);
    CHECK(read(number, bytes, 1) == 0); /* known to be no socket */
    dlclose(dlopen(NULL, RTLD_NOW));
    syscall(SYS_close, number);
    connect_pair(AF_INET, e); /* the listener or an end has `number` now */
    CHECK(write(e[0], bytes, 10) == 10 && read(e[1], bytes, 10) == 10);
    /* a socket closed behind the tracer's back, then a file with its number */
    int first = e[0];
    syscall(SYS_close, e[0]);
    int other = open("/dev/null", O_RDWR);
    CHECK(other == (number < first ? number : first) || other == first);
    if (other != first)
        CHECK(dup2(other, first) == first);
    CHECK(write(first, bytes, 99) == 99);
    CHECK(read(e[1], bytes, 10) == 0);
    /* fclose of a stream over a socket */
    connect_pair(AF_INET, again);
    FILE *stream = fdopen(again[0], "r+");
    CHECK(write(again[0], bytes, 20) == 20 && fclose(stream) == 0);
    CHECK(read(again[1], bytes, 100) == 20 && read(again[1], bytes, 100) == 0);
}

SCENARIO(reuse_unseen)
{
    int e[2];
    char bytes[100] = {0};
    connect_pair(AF_INET, e);
    CHECK(write(e[0], bytes, 10) == 10 && read(e[1], bytes, 10) == 10);
    int number = e[0];
    int file = open("/dev/null", O_RDWR);
    /* closes the connection, unseen, and takes its number before the tracer's own thread can */
    CHECK(syscall(SYS_dup3, file, number, 0) == number);
    CHECK(write(number, bytes, 99) == 99);
    CHECK(read(e[1], bytes, 10) == 0);
}

SCENARIO(close_many)
{
    int e[2], more[2];
    char bytes[10] = {0};
    for (int i = 0; i < 3; i++) {
        connect_pair(AF_INET, e);
        CHECK(write(e[0], bytes, 10) == 10 && read(e[1], bytes, 10) == 10);
        if (i == 0)
            CHECK(close_range((unsigned int)e[0], (unsigned int)e[1], CLOSE_RANGE_CLOEXEC) == 0 &&
                  close_range(3, ~0u, 0) == 0);
        else if (i == 1)
            closefrom(3);
    }
    connect_pair(AF_INET, more);
    CHECK(write(more[0], bytes, 10) == 10 && read(more[1], bytes, 10) == 10);
}

/* Many threads write numbered messages into one connection; what arrives goes to the file
 * `argument`, for the log's order to be compared with. */
enum { N_WRITERS = 8, N_MESSAGES = 2000 };
struct message {
    uint32_t thread, number, filler[2];
};
static int shared_end;

static void *write_messages(void *nonblocking)
{
    struct message message = {.thread = (uint32_t)syscall(SYS_gettid)};
    for (uint32_t i = 0; i < N_MESSAGES; i++) {
        message.number = i;
        ssize_t n;
        while ((n = i % 3 == 0 ? send(shared_end, &message, sizeof message, 0)
                    : i % 3 == 1
                        ? write(shared_end, &message, sizeof message)
                        : writev(shared_end, &(struct iovec){&message, sizeof message}, 1)) < 0 &&
               errno == EAGAIN)
            poll(&(struct pollfd){shared_end, POLLOUT, 0}, 1, 10);
        CHECK(n == sizeof message);
    }
    return nonblocking;
}

static void writers(bool nonblocking)
{
    int e[2];
    pthread_t threads[N_WRITERS];
    static struct message all[N_WRITERS * N_MESSAGES];
    connect_pair(AF_INET, e);
    shared_end = e[0];
    if (nonblocking)
        fcntl(e[0], F_SETFL, O_NONBLOCK);
    for (int i = 0; i < N_WRITERS; i++)
        CHECK(pthread_create(&threads[i], NULL, write_messages, NULL) == 0);
    read_all(e[1], all, sizeof all);
    for (int i = 0; i < N_WRITERS; i++)
        pthread_join(threads[i], NULL);
    int file = open(argument, O_CREAT | O_TRUNC | O_WRONLY, 0644);
    CHECK(write(file, all, sizeof all) == sizeof all && close(file) == 0);
}

SCENARIO(writers_blocking)
{
    writers(false);
}

SCENARIO(writers_nonblocking)
{
    writers(true);
}

static void *read_one(void *arg)
{
    char byte;
    CHECK(read(*(int *)arg, &byte, 1) == 1);
    return NULL;
}

/* A thread that sleeps in the kernel does not hold up others. */
SCENARIO(sleeping_reader)
{
    int e[2];
    char bytes[8] = {0};
    pthread_t thread;
    connect_pair(AF_INET, e);
    CHECK(pthread_create(&thread, NULL, read_one, &e[1]) == 0);
    sleep_ms(50);
    int64_t start = now_ns();
    for (int i = 0; i < 1000; i++)
        CHECK(recv(e[1], bytes, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
    CHECK(now_ns() - start < 200000000); /* a fifth of a millisecond each, on a busy machine */
    start = now_ns();
    CHECK(write(e[1], bytes, 8) == 8 && read(e[0], bytes, 8) == 8); /* the other way is free */
    CHECK(now_ns() - start < 100000000);
    CHECK(write(e[0], bytes, 1) == 1);
    pthread_join(thread, NULL);
    CHECK(write(e[0], bytes, 5) == 5 && read(e[1], bytes, 8) == 5);
}

/* A thread that was cancelled in its call does not either. */
SCENARIO(cancelled_reader)
{
    int e[2];
    char bytes[8] = {0};
    pthread_t thread;
    connect_pair(AF_INET, e);
    CHECK(pthread_create(&thread, NULL, read_one, &e[1]) == 0);
    sleep_ms(50);
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, NULL) == 0);
    int64_t start = now_ns();
    for (int i = 0; i < 100; i++)
        CHECK(write(e[0], bytes, 3) == 3 && recv(e[1], bytes, 3, MSG_WAITALL) == 3);
    CHECK(now_ns() - start < 500000000);
}

static volatile sig_atomic_t n_signals;

static void write_in_handler(int number)
{
    int saved = errno;
    (void)number;
    if (write(shared_end, "signal", 6) == 6)
        n_signals++;
    errno = saved;
}

SCENARIO(signal_handlers)
{
    int e[2];
    static char bytes[1 << 16];
    size_t sent = 0, received = 0;
    struct sigaction action = {.sa_handler = write_in_handler, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
    connect_pair(AF_INET, e);
    shared_end = e[0];
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; i < 20000; i++) {
        ssize_t n = write(e[0], bytes, 10);
        CHECK(n == 10);
        sent += 10;
        if (i % 100 == 0) {
            n = recv(e[1], bytes, sizeof bytes, MSG_DONTWAIT);
            received += n > 0 ? (size_t)n : 0;
        }
    }
    setitimer(ITIMER_REAL, &never, NULL);
    sent += (size_t)n_signals * 6;
    while (received < sent) {
        ssize_t n = read(e[1], bytes, sizeof bytes);
        CHECK(n > 0);
        received += (size_t)n;
    }
    CHECK(n_signals > 0 && received == sent);
}

static void *talk(void *arg)
{
    int *e = arg;
    char bytes[16] = {0};
    for (int i = 0; i < 3000; i++)
        CHECK(write(e[0], bytes, 16) == 16 && recv(e[1], bytes, 16, MSG_WAITALL) == 16);
    return NULL;
}

/* Children of every kind while another thread talks; they use and close what they inherited. */
SCENARIO(children)
{
    int e[2], mine[2], status;
    char bytes[16] = {0};
    pthread_t thread;
    connect_pair(AF_INET, e);
    connect_pair(AF_INET, mine);
    CHECK(write(mine[0], bytes, 16) == 16 && read(mine[1], bytes, 16) == 16);
    CHECK(pthread_create(&thread, NULL, talk, e) == 0);
    for (int i = 0; i < 20; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            int own[2];
            connect_pair(AF_INET, own);
            CHECK(write(own[0], bytes, 5) == 5 && read(own[1], bytes, 5) == 5);
            close(mine[0]);
            close(e[0]);
            if (i % 2)
                exit(0);
            _exit(0);
        }
        CHECK(waitpid(pid, &status, 0) == pid && status == 0);
        pid = vfork();
        if (pid == 0) { /* shares our memory: what it closes, we have still */
            close(mine[0]);
            dup2(mine[1], 0);
            closefrom(3);
            _exit(0);
        }
        CHECK(waitpid(pid, &status, 0) == pid && status == 0);
        CHECK(system("exec 3<&-; true") == 0);
    }
    CHECK(write(mine[0], bytes, 16) == 16 && read(mine[1], bytes, 16) == 16);
    pthread_join(thread, NULL);
}

/* What an exec'ed program finds open. */
SCENARIO(inherit)
{
    int e[2];
    char bytes[16] = {0}, number[16], me[4096];
    connect_pair(AF_INET, e);
    CHECK(write(e[0], bytes, 16) == 16 && read(e[1], bytes, 16) == 16);
    pid_t pid = fork();
    if (pid == 0) {
        ssize_t n = readlink("/proc/self/exe", me, sizeof me - 1);
        me[n > 0 ? n : 0] = '\0';
        snprintf(number, sizeof number, "%d", e[0]);
        execl(me, "traced", "inherited", number, (char *)NULL);
        _exit(1);
    }
    int status;
    CHECK(recv(e[1], bytes, 9, MSG_WAITALL) == 9);
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

SCENARIO(inherited)
{
    CHECK(write(atoi(argument), "inherited", 9) == 9);
}

SCENARIO(pass_a_descriptor)
{
    int pair[2], e[2], got = -1, file = -2;
    char bytes[100] = {0};
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {.head = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    struct iovec part = {bytes, 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control.room};
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
    connect_pair(AF_INET, e);
    /* the number that it will get belonged to a file, closed where nobody saw it; now and then the
     * tracer opens a file of its own meanwhile, and has it */
    for (int i = 0; i < 100 && got != file; i++) {
        if (got >= 0)
            close(got);
        memcpy(CMSG_DATA(&control.head), &e[0], sizeof(int));
        CHECK(sendmsg(pair[0], &message, 0) == 1);
        file = open("/dev/null", O_RDONLY);
        CHECK(read(file, bytes, 1) == 0);
        syscall(SYS_close, file);
        CHECK(recvmsg(pair[1], &message, 0) == 1);
        memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof got);
    }
    CHECK(got == file && write(got, bytes, 44) == 44);
    CHECK(recv(e[1], bytes, 44, MSG_WAITALL) == 44);
}

static void *talk_on_own(void *arg)
{
    int e[2];
    char bytes[64] = {0};
    (void)arg;
    connect_pair(AF_INET, e);
    for (int i = 0; i < 50; i++)
        CHECK(write(e[0], bytes, 64) == 64 && recv(e[1], bytes, 64, MSG_WAITALL) == 64);
    close(e[0]);
    close(e[1]);
    return NULL;
}

SCENARIO(many_threads)
{
    pthread_t threads[200];
    talk_on_own(NULL); /* begins the recording; threads that talk while it begins are missed */
    for (int i = 0; i < 200; i++)
        CHECK(pthread_create(&threads[i], NULL, talk_on_own, NULL) == 0);
    for (int i = 0; i < 200; i++)
        pthread_join(threads[i], NULL);
}

SCENARIO(many_descriptors)
{
    static int ends[5000][2];
    struct rlimit limit = {10100, 10100};
    char bytes[8] = {0};
    uint64_t stats[4];
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
        exit(77);
    union address address;
    socklen_t size;
    int listener = listen_on(AF_INET, &address, &size);
    for (int i = 0; i < 5000; i++)
        connect_to(listener, AF_INET, &address, size, ends[i]);
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 5000; i++)
            CHECK(write(ends[i][0], bytes, 8) == 8 && read(ends[i][1], bytes, 8) == 8);
    CHECK(tracer_stats(stats) == 0 && stats[3] <= 16u << 20);
}

/* Connections that come and go: their slots are used again. */
SCENARIO(short_connections)
{
    char bytes[8] = {0};
    uint64_t stats[4];
    union address address;
    socklen_t size;
    int listener = listen_on(AF_INET, &address, &size);
    for (int i = 0; i < 7000; i++) {
        int e[2];
        connect_to(listener, AF_INET, &address, size, e);
        CHECK(write(e[0], bytes, 8) == 8 && read(e[1], bytes, 8) == 8);
        struct linger now = {1, 0}; /* no TIME_WAIT */
        setsockopt(e[0], SOL_SOCKET, SO_LINGER, &now, sizeof now);
        CHECK(close(e[0]) == 0);
        close(e[1]);
    }
    /* most is records on their way to the file, the more the busier the machine; 14,000 slots that
     * were not used again would be several times that */
    CHECK(tracer_stats(stats) == 0 && stats[3] <= 2u << 20);
}

static void put_preamble(uint64_t *words, uint64_t opcode, uint64_t slot, uint64_t length)
{
    memcpy(words, (uint64_t[6]){48 + (opcode <= 1 ? length : 0), opcode, slot, 0, length, 0}, 48);
}

/* gloo's messages as its TCP transport sends them; `argument`: a log that is begun in the middle of
 * a payload, to be ended before the last message. */
SCENARIO(gloo)
{
    int e[2];
    uint64_t preamble[12], sequence = 1;
    static char payload[100000];
    struct iovec parts[2] = {{preamble, 48}, {payload, 70000}};
    connect_pair(AF_INET, e);
    CHECK(write(e[0], &sequence, 8) == 8);
    put_preamble(preamble, 3, (uint64_t)4 << 56 | 1 << 24, 70000);
    CHECK(write(e[0], preamble, 48) == 48);
    put_preamble(preamble, 1, (uint64_t)4 << 56 | 1 << 24, 70000);
    CHECK(writev(e[0], parts, 2) == 70048);
    read_all(e[1], payload, 8 + 48 + 48 + 30000);
    CHECK(tracer_start(argument, 5) == 0);
    read_all(e[1], payload, 40000);
    put_preamble(preamble, 2, (uint64_t)4 << 56 | 2 << 24, 10);
    put_preamble(preamble + 6, 1, (uint64_t)4 << 56 | 2 << 24, 10);
    CHECK(write(e[0], preamble, 20) == 20); /* a preamble in two calls, then two in one */
    CHECK(write(e[0], (char *)preamble + 20, 76) == 76);
    CHECK(write(e[0], payload, 10) == 10);
    read_all(e[1], payload, 106);
    tracer_stop();
    put_preamble(preamble, 3, (uint64_t)4 << 56 | 3 << 24, 0);
    CHECK(write(e[0], preamble, 48) == 48);
    read_all(e[1], payload, 48);
}

/* Two ZeroMQ 4 peers: greetings, handshake, and one ps-lite push. */
SCENARIO(zeromq)
{
    int e[2];
    char in[4000];
    static const char greeting[64] = {
        [0] = '\xff', [8] = 1, [9] = 0x7f, [10] = 3, [12] = 'N', 'U', 'L', 'L'};
    static const char ready[] = "\4\6\5READY", meta[] = "\1\5hello", keys[16] = {1, 8};
    char values[9] = {3, 0, 0, 0, 0, 0, 0, 2, 0}; /* more, long; 512 bytes */
    connect_pair(AF_INET, e);
    CHECK(send(e[0], greeting, 10, 0) == 10 && send(e[1], greeting, 10, 0) == 10);
    read_all(e[0], in, 10);
    read_all(e[1], in, 10);
    CHECK(send(e[0], greeting + 10, 54, 0) == 54 && send(e[1], greeting + 10, 54, 0) == 54);
    CHECK(send(e[0], ready, 8, 0) == 8 && send(e[1], ready, 8, 0) == 8);
    read_all(e[0], in, 62);
    read_all(e[1], in, 62);
    CHECK(send(e[0], meta, 7, 0) == 7 && send(e[0], "\1\x10", 2, 0) == 2);
    CHECK(send(e[0], keys, 16, 0) == 16 && send(e[0], values, 9, 0) == 9);
    memset(in, 0, 512);
    CHECK(send(e[0], in, 512, 0) == 512 && send(e[0], "\0\4abcd", 6, 0) == 6);
    read_all(e[1], in, 7 + 18 + 9 + 512 + 6);
}

SCENARIO(talk_a_little)
{
    int e[2];
    char bytes[8] = {0};
    connect_pair(AF_INET, e);
    CHECK(write(e[0], bytes, 8) == 8 && read(e[1], bytes, 8) == 8);
}

SCENARIO(no_sockets)
{
    int pipes[2], e[2];
    char byte = 0;
    CHECK(pipe(pipes) == 0 && write(pipes[1], &byte, 1) == 1 && read(pipes[0], &byte, 1) == 1);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, e) == 0);
    CHECK(write(e[0], &byte, 1) == 1 && read(e[1], &byte, 1) == 1);
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, e) == 0);
    CHECK(write(e[0], &byte, 1) == 1 && read(e[1], &byte, 1) == 1);
}

SCENARIO(not_allowed)
{
    CHECK(tracer_start(argument, 0) == -EPERM);
    talk_a_little();
}

SCENARIO(window)
{
    talk_a_little();
    CHECK(tracer_start(argument, 3) == 0 && tracer_start(argument, 3) == -EALREADY);
    talk_a_little();
    tracer_stop();
    tracer_stop();
    talk_a_little();
}

SCENARIO(leave_at_once)
{
    talk_a_little();
    _exit(0);
}

SCENARIO(wait_to_be_killed)
{
    talk_a_little();
    sleep_ms(300);
    CHECK(write(STDOUT_FILENO, "ready\n", 6) == 6);
    for (;;)
        talk_a_little();
}

SCENARIO(talk_long)
{
    int e[2];
    char bytes[8] = {0};
    connect_pair(AF_UNIX, e); /* where a busy machine is no slower */
    for (int i = 0; i < 30000; i++)
        CHECK(write(e[0], bytes, 8) == 8 && read(e[1], bytes, 8) == 8);
}

SCENARIO(library)
{
    void *handle = dlopen(argument, RTLD_NOW | RTLD_LOCAL);
    CHECK(handle);
    void (*send_from_library)(int, const char *, size_t) = NULL;
    *(void **)&send_from_library = dlsym(handle, "send_from_library");
    int e[2];
    char bytes[16];
    connect_pair(AF_INET, e);
    send_from_library(e[0], "from the library", 16);
    read_all(e[1], bytes, 16);
}

SCENARIO(connect_again)
{
    union address address, nowhere;
    socklen_t size, nowhere_size;
    char bytes[8] = {0};
    close(listen_on(AF_INET, &nowhere, &nowhere_size)); /* a port that nobody listens on */
    int listener = listen_on(AF_INET, &address, &size), fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(fd, &nowhere.any, nowhere_size) < 0 && errno == ECONNREFUSED);
    CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    CHECK(connect(fd, &address.any, size) == 0 || errno == EINPROGRESS);
    int end = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    CHECK(end >= 0 && poll(&(struct pollfd){fd, POLLOUT, 0}, 1, 1000) == 1);
    CHECK(write(fd, bytes, 8) == 8 && read(end, bytes, 8) == 8);
}

/* How often the thread slept: what only yields is still ready to run, however busy its core is. */
static long sleeps(void)
{
    struct rusage usage;
    CHECK(getrusage(RUSAGE_THREAD, &usage) == 0);
    return usage.ru_nvcsw;
}

enum { YIELDS = 20 };

static __attribute__((noinline, aligned(4096))) long restless(void)
{
    long before = sleeps();
    for (int i = 0; i < YIELDS; i++)
        CHECK(sched_yield() == 0);
    return sleeps() - before;
}

static __attribute__((noinline, aligned(4096))) long yield_elsewhere(void)
{
    long before = sleeps();
    for (int i = 0; i < YIELDS; i++)
        CHECK(sched_yield() == 0);
    return sleeps() - before;
}

SCENARIO(yields)
{
    CHECK(tracer_ease && restless() < YIELDS / 2);
    tracer_ease((const void *)(uintptr_t)restless, 512);
    errno = EXDEV;
    CHECK(restless() >= YIELDS && errno == EXDEV);
    CHECK(yield_elsewhere() < YIELDS / 2);
    tracer_ease(NULL, 0);
    CHECK(restless() < YIELDS / 2);
}

/* ---- before everything else ---- */

static int early_result;

/* Runs before the constructor of any library, the tracer's included. */
static void run_early(void)
{
    int e[2];
    char byte = 0;
    early_result = socketpair(AF_UNIX, SOCK_STREAM, 0, e) == 0 && write(e[0], &byte, 1) == 1 &&
                   read(e[1], &byte, 1) == 1 && close(e[0]) == 0 && close(e[1]) == 0;
}

__attribute__((section(".preinit_array"), used)) static void (*const early)(void) = run_early;

SCENARIO(constructors)
{
    CHECK(early_result);
    talk_a_little();
}

int main(int argc, char **argv)
{
    *(void **)&tracer_start = dlsym(RTLD_DEFAULT, "dpro_tracer_start");
    *(void **)&tracer_stop = dlsym(RTLD_DEFAULT, "dpro_tracer_stop");
    *(void **)&tracer_stats = dlsym(RTLD_DEFAULT, "dpro_tracer_stats");
    *(void **)&tracer_ease = dlsym(RTLD_DEFAULT, "dpro_tracer_ease");
    argument = argc > 2 ? argv[2] : NULL;
    for (struct scenario *s = scenarios; argc > 1 && s; s = s->next)
        if (strcmp(argv[1], s->name) == 0) {
            s->run();
            return 0;
        }
    return 2;
}
