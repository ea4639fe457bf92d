/* What a socket call costs, in nanoseconds of the process's CPU time, the thread that writes the
 * log included. Sends and receives a few bytes over a loopback connection to itself, in blocks that
 * alternate (A B B A) between a tracer that is idle and one that records; without a preloaded
 * tracer all blocks are alike and called "bare". tools/bench.py runs it both ways. */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BLOCKS = 32, PAIRS = 10000, SIZE_BYTES = 64 };

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void connect_to_itself(int fds[2])
{
    int one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    fds[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || fds[0] < 0 || bind(listener, (struct sockaddr *)&address, size) < 0 ||
        listen(listener, 1) < 0 || getsockname(listener, (struct sockaddr *)&address, &size) < 0 ||
        connect(fds[0], (struct sockaddr *)&address, size) < 0 ||
        (fds[1] = accept(listener, NULL, NULL)) < 0 ||
        setsockopt(fds[0], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) < 0)
        die("loopback connection");
    close(listener);
}

static double block_ns_per_call(const int fds[2])
{
    char data[SIZE_BYTES] = {0};
    struct timespec from, to;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
    for (int i = 0; i < PAIRS; i++) {
        if (send(fds[0], data, sizeof data, 0) != SIZE_BYTES)
            die("send");
        for (ssize_t n, got = 0; got < SIZE_BYTES; got += n)
            if ((n = recv(fds[1], data, sizeof data, 0)) <= 0)
                die("recv");
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
    double ns = 1e9 * (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec);
    return ns / (2.0 * PAIRS);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t n)
{
    qsort(values, n, sizeof *values, by_value);
    return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: bench_tracer LOG\n");
        return 2;
    }
    int (*start)(const char *, int);
    void (*stop)(void);
    void (*stats)(uint64_t[4]);
    *(void **)&start = dlsym(RTLD_DEFAULT, "dpro_tracer_start");
    *(void **)&stop = dlsym(RTLD_DEFAULT, "dpro_tracer_stop");
    *(void **)&stats = dlsym(RTLD_DEFAULT, "dpro_tracer_stats");
    bool preloaded = start != NULL && stop != NULL && stats != NULL;

    int fds[2];
    connect_to_itself(fds);
    block_ns_per_call(fds); /* warms up */
    double quiet[BLOCKS], recording[BLOCKS];
    size_t n_quiet = 0, n_recording = 0;
    for (int block = 0; block < BLOCKS; block++) {
        if (!preloaded || block % 4 == 0 || block % 4 == 3) {
            quiet[n_quiet++] = block_ns_per_call(fds);
        } else {
            int status = start(argv[1], 0);
            if (status < 0) {
                fprintf(stderr, "bench_tracer: %s: %s\n", argv[1], strerror(-status));
                return 1;
            }
            recording[n_recording++] = block_ns_per_call(fds);
            stop();
        }
    }
    printf("%s %.1f ns a call\n", preloaded ? "idle" : "bare", median(quiet, n_quiet));
    if (preloaded) {
        uint64_t out[4];
        stats(out);
        printf("recording %.1f ns a call\n", median(recording, n_recording));
        printf("%llu calls, %llu records, %llu lost, %llu bytes of log, %llu bytes of memory\n",
               2ull * PAIRS * n_recording, (unsigned long long)out[0], (unsigned long long)out[1],
               (unsigned long long)out[2], (unsigned long long)out[3]);
    }
    return 0;
}
