/* bench_nccl: nanoseconds that NCCL's profiler plugin takes for a proxy step: start, three states,
 * stop. Arguments: the plugin, threads (1), idle (not recording). */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "../tests/nccl/host.h"

#define N_EVENTS 50000 /* a thread and window: what the log's memory holds */
#define N_ROUNDS 20

static struct host_comm comm;
static pthread_barrier_t barrier;

static void *run(void *arg)
{
    int64_t *ns = arg;
    struct nccl_descr_v6 d = {.type = 1 << NCCL_PROXY_STEP};
    union nccl_state_args args = {.proxy_step = {65536}};
    pthread_barrier_wait(&barrier);
    int64_t before = host_now();
    for (int i = 0; i < N_EVENTS; i++) {
        void *handle = NULL;
        d.proxy_step = i;
        host_raw_start(&comm, comm.context, &handle, &d);
        host_raw_state(&comm, handle, NCCL_STATE_STEP_SEND_GPU, &args);
        host_raw_state(&comm, handle, NCCL_STATE_STEP_SEND_PEER, &args);
        host_raw_state(&comm, handle, NCCL_STATE_STEP_SEND_NET, &args);
        host_raw_stop(&comm, handle);
    }
    *ns = host_now() - before;
    return NULL;
}

int main(int argc, char **argv)
{
    struct plugin plugin;
    int mask = 0, n_threads = argc > 2 ? atoi(argv[2]) : 1;
    char path[64];
    double best = 1e18;
    if (argc < 2 || n_threads < 1 || n_threads > 64 || !plugin_load(&plugin, argv[1]))
        return 2;
    comm = (struct host_comm){.n_ranks = 2, .n_nodes = 1, .hash = 1};
    snprintf(path, sizeof path, "/tmp/bench-nccl-%d.log", (int)getpid());
    host_init(&comm, &plugin, 6, &mask);
    pthread_barrier_init(&barrier, NULL, (unsigned)n_threads);
    for (int round = 0; round < N_ROUNDS; round++) {
        pthread_t threads[64];
        int64_t ns[64], sum = 0;
        if (argc <= 3 && plugin.start(path, 0) != 0)
            return 1;
        for (int i = 0; i < n_threads; i++)
            pthread_create(&threads[i], NULL, run, &ns[i]);
        for (int i = 0; i < n_threads; i++) {
            pthread_join(threads[i], NULL);
            sum += ns[i];
        }
        plugin.stop();
        double mean = (double)sum / n_threads / N_EVENTS;
        best = mean < best ? mean : best;
    }
    unlink(path);
    printf("%.0f\n", best);
    return 0;
}
