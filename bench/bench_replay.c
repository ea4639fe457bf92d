/* Ops a second of CPU time of the replay engine, and bytes an op.
 *
 * The generated graph is what a GPU job's trace gives: on each rank a CPU thread launches kernels
 * onto a stream, and every so many kernels a bucket is reduced over all ranks on a third device.
 * About 1.6 edges an op. Usage: bench_replay [ops [ranks [rounds [run]]]]; with `run`, iterations
 * follow each other and the time is that of a whole dpro_replay_run with all its results.
 *
 * `bench_replay TRACE`: the graph of a recording, as many iterations of it as have 5 M ops. */
#include <ctype.h>
#include <dpro/job.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sort.h"
#include "cpu_seconds.h"
#include "graph_op.h"
#include "replay/chain.h"
#include "replay/replay.h"

enum { KERNELS_A_BUCKET = 12, OPS_A_BUCKET = 2 * KERNELS_A_BUCKET + 2 };

static uint64_t random_state = 1;

static uint32_t pick(uint32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % n);
}

static double status_bytes(const char *name)
{
    char line[256];
    double kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, name, strlen(name)) == 0)
            kib = strtod(line + strlen(name) + 1, NULL);
    if (f)
        fclose(f);
    return kib * 1024;
}

/* From here on VmHWM counts anew. */
static void reset_peak(void)
{
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (f) {
        fputs("5", f);
        fclose(f);
    }
}

static void check(int64_t rc)
{
    if (rc < 0) {
        fprintf(stderr, "bench_replay: error %d\n", (int)rc);
        exit(4);
    }
}

static uint32_t add(struct graph_builder *b, enum dpro_op_kind kind, uint32_t rank, uint32_t device,
                    const char *name, int64_t dur_ns)
{
    struct dpro_op op = {
        .kind = kind, .rank = (int)rank, .device = device, .name = name, .dur_ns = dur_ns};
    return add_op(b, &op, 0);
}

static struct dpro_graph *generate(uint32_t n_ops, uint32_t n_ranks, bool periodic)
{
    struct graph_builder *b = graph_builder_create();
    uint32_t n_buckets = n_ops / n_ranks / OPS_A_BUCKET, ops_a_rank = n_buckets * OPS_A_BUCKET;
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        graph_builder_add_device(b, DPRO_DEVICE_CPU_THREAD, (int)rank, "thread");
        graph_builder_add_device(b, DPRO_DEVICE_GPU_STREAM, (int)rank, "stream");
        graph_builder_add_device(b, DPRO_DEVICE_GPU_STREAM, (int)rank, "communication");
    }
    for (uint32_t rank = 0; rank < n_ranks; rank++)
        for (uint32_t bucket = 0; bucket < n_buckets; bucket++) {
            for (uint32_t i = 0; i < KERNELS_A_BUCKET; i++) {
                add(b, DPRO_OP_LAUNCH, rank, rank * 3, "launch", 4000 + pick(8000));
                add(b, DPRO_OP_BW, rank, rank * 3 + 1, "kernel", 2000 + pick(30000));
            }
            /* arrival and meeting in one op a rank; rank 0's is the meeting point of all */
            add(b, DPRO_OP_BARRIER, rank, DPRO_NO_DEVICE, "arrival", 0);
            add(b, DPRO_OP_COLLECTIVE, rank, rank * 3 + 2, "all_reduce", 50000);
        }
    for (uint32_t rank = 0; rank < n_ranks; rank++)
        for (uint32_t bucket = 0; bucket < n_buckets; bucket++) {
            uint32_t first = rank * ops_a_rank + bucket * OPS_A_BUCKET;
            uint32_t arrival = first + 2 * KERNELS_A_BUCKET, barrier = arrival - rank * ops_a_rank;
            for (uint32_t i = 0; i < KERNELS_A_BUCKET; i++) {
                uint32_t launch = first + 2 * i;
                graph_builder_add_edge(b, launch, launch + 1, 0);
                if (i + 1 < KERNELS_A_BUCKET) {
                    graph_builder_add_edge(b, launch, launch + 2, 0);
                    graph_builder_add_edge(b, launch + 1, launch + 3, 0);
                } else if (bucket + 1 < n_buckets) {
                    graph_builder_add_edge(b, launch, first + OPS_A_BUCKET, 0);
                    graph_builder_add_edge(b, launch + 1, first + OPS_A_BUCKET + 1, 0);
                }
            }
            for (uint32_t i = 0; i < 3; i++) /* the bucket's gradients come from several kernels */
                graph_builder_add_edge(b, arrival - 1 - 2 * i, arrival, 0);
            if (rank)
                graph_builder_add_edge(b, arrival, barrier, 0);
            graph_builder_add_edge(b, barrier, arrival + 1, 0);
        }
    for (uint32_t rank = 0; periodic && rank < n_ranks; rank++) {
        uint32_t first = rank * ops_a_rank, last = first + ops_a_rank - 1;
        graph_builder_add_edge(b, last, first, 1); /* the next one starts when all is reduced */
        for (uint32_t i = 1; i < 3; i++)
            graph_builder_add_edge(b, last - 1 - i, first, 1);
    }
    return graph_builder_finish(b);
}

struct run {
    const struct dpro_graph *g;
    int64_t end_ns;
};

static void open_copy(void *arg, uint32_t copy, const int64_t **dur_ns, const int64_t **gap_ns)
{
    (void)copy;
    struct run *run = arg;
    *dur_ns = run->g->dur_ns;
    *gap_ns = run->g->gap_ns;
}

static int64_t latest(const int64_t *end_ns, uint32_t n)
{
    int64_t latest_ns = 0;
    for (uint32_t op = 0; op < n; op++)
        latest_ns = end_ns[op] > latest_ns ? end_ns[op] : latest_ns;
    return latest_ns;
}

static void close_copy(void *arg, struct replay_copy *copy)
{
    struct run *run = arg;
    run->end_ns = latest(copy->end_ns, run->g->n_ops);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print(double *seconds, int rounds, double n_ops, double bytes, int64_t end_ns)
{
    qsort(seconds, (size_t)rounds, sizeof *seconds, compare);
    printf("event  best %.1f M ops/s, median %.1f M ops/s, %.1f bytes/op, makespan %.3f ms\n",
           n_ops / seconds[0] * 1e-6, n_ops / seconds[rounds / 2] * 1e-6, bytes / n_ops,
           (double)end_ns * 1e-6);
}

/* How long that many iterations take. */
static void measure(const struct dpro_graph *g, uint32_t n_copies, int rounds, double baseline)
{
    double n_ops = (double)dpro_graph_n_ops(g) * n_copies, start;
    double *seconds = calloc((size_t)rounds, sizeof *seconds);
    struct run run = {g, 0};
    struct replay_hooks hooks = {&run, open_copy, close_copy};
    struct event_options options = {.n_copies = n_copies};
    if (!seconds)
        exit(4);
    for (int i = 0; i < rounds; i++) {
        start = cpu_seconds();
        event_replay(g, &options, &hooks);
        seconds[i] = cpu_seconds() - start;
    }
    print(seconds, rounds, n_ops, status_bytes("VmHWM:") - baseline, run.end_ns);
    free(seconds);
}

static int measure_recorded(const char *path)
{
    enum { N_OPS = 5000000, ROUNDS = 5 };
    double baseline = status_bytes("VmRSS:");
    const struct dpro_graph *g;
    struct dpro_job *job;
    struct dpro_error err = {0};
    if (dpro_job_open(&path, 1, NULL, &job, &err) < 0 || dpro_job_graph(job, &g, &err) < 0) {
        fprintf(stderr, "bench_replay: %s\n", err.text);
        return 3;
    }
    printf("graph  %u ops, %.2f edges an op\n", g->n_ops, (double)dpro_graph_n_edges(g) / g->n_ops);
    measure(g, 2 + N_OPS / MAX(g->n_ops, 1), ROUNDS, baseline);
    dpro_job_close(job);
    return 0;
}

int main(int argc, char **argv)
{
    uint32_t n_ops = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 5000000;
    uint32_t n_ranks = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 64;
    int rounds = argc > 3 ? atoi(argv[3]) : 5;
    bool whole = argc > 4 && strcmp(argv[4], "run") == 0;
    if (argc == 2 && !isdigit((unsigned char)*argv[1]))
        return measure_recorded(argv[1]);
    if (rounds < 1 || n_ranks < 1 || n_ops / n_ranks < OPS_A_BUCKET)
        return 2;
    double baseline = status_bytes("VmRSS:"), start = cpu_seconds();
    struct dpro_graph *g = generate(n_ops, n_ranks, whole);
    n_ops = dpro_graph_n_ops(g);
    printf("graph  %u ops, %.2f edges an op, built in %.2f s, %.1f bytes/op (peak %.1f)\n", n_ops,
           (double)dpro_graph_n_edges(g) / n_ops, cpu_seconds() - start,
           (status_bytes("VmRSS:") - baseline) / n_ops,
           (status_bytes("VmHWM:") - baseline) / n_ops);
    reset_peak();
    struct dpro_error err;
    if (whole) {
        struct dpro_replay *replay;
        start = cpu_seconds();
        check(dpro_replay_run(g, NULL, &replay, &err));
        printf("run %.2f s, %.1f bytes/op at the peak, iteration %.3f ms\n", cpu_seconds() - start,
               (status_bytes("VmHWM:") - baseline) / n_ops,
               (double)dpro_replay_view(replay)->iteration_ns * 1e-6);
        dpro_replay_destroy(replay);
        dpro_graph_destroy(g);
        return 0;
    }
    measure(g, 1, rounds, baseline);
    dpro_graph_destroy(g);
    return 0;
}
