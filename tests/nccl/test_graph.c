/* What the profiler plugin logged of a job becomes SENDs and RECVs of its graph. Four processes on
 * two nodes reduce on a ring over sockets, as NCCL's proxies do with a kernel on the GPU; they tell
 * the plugin, and write the profile that PyTorch would. The plugin is the program's first
 * argument. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <dpro/dpro.h>

#include "../unit/case.h"
#include "../unit/job_at.h"
#include "../unit/temp_folder.h"
#include "host.h"

enum { N_RANKS = 4, N_CHANNELS = 2, N_STEPS = 2 * (N_RANKS - 1), N_ITERATIONS = 6 };
enum { CHUNK_BYTES = 40000, MESSAGES = 2 * N_STEPS * N_CHANNELS };

static const char *plugin_path;

/* ---- one rank's process ---- */

struct rank {
    int rank, next, previous; /* sockets to the ranks beside it */
    struct host_comm comm;
    FILE *profile;
    int64_t called_ns, returned_ns; /* the collective's call in this iteration */
};

static void span(const struct rank *r, const char *category, const char *name, int pid, int thread,
                 int64_t start, int64_t end, const char *args)
{
    fprintf(
        r->profile,
        ",\n{\"ph\": \"X\", \"cat\": \"%s\", \"name\": \"%s\", \"pid\": %d, \"tid\": %d, \"ts\": "
        "%" PRId64 ".%03d, \"dur\": %" PRId64 ".%03d, \"args\": {%s}}",
        category, name, pid, thread, start / 1000, (int)(start % 1000), (end - start) / 1000,
        (int)((end - start) % 1000), args);
}

static void kernel(const struct rank *r, const char *name, int64_t call, int64_t start, int64_t end,
                   const char *args)
{
    static int correlation;
    char text[400];
    snprintf(text, sizeof text, "\"correlation\": %d", ++correlation);
    span(r, "cuda_runtime", "cudaLaunchKernel", 100, gettid(), call, call + 1000, text);
    snprintf(text, sizeof text, "\"device\": 0, \"stream\": 7, \"correlation\": %d%s", correlation,
             args);
    span(r, "kernel", name, 0, 7, start, end, text);
}

static void rest_us(int us)
{
    struct timespec time = {0, us * 1000L};
    nanosleep(&time, NULL);
}

static void move_chunk(int fd, bool is_send)
{
    static char chunk[CHUNK_BYTES];
    for (size_t done = 0; done < sizeof chunk;) {
        ssize_t n = is_send ? write(fd, chunk + done, sizeof chunk - done)
                            : read(fd, chunk + done, sizeof chunk - done);
        if (n <= 0)
            _exit(3);
        done += (size_t)n;
    }
}

/* One step of one channel; only what leaves the node goes through a proxy. */
static void step(struct rank *r, void *op, int number, bool is_send)
{
    struct event e;
    struct facts facts = {.step = number};
    int fd = is_send ? r->next : r->previous;
    if (!op) {
        move_chunk(fd, is_send);
        return;
    }
    host_start(&e, &r->comm, NCCL_PROXY_STEP, op, &facts);
    if (is_send)
        host_state(&e, NCCL_STATE_STEP_SEND_GPU, 0);
    host_state(&e, is_send ? NCCL_STATE_STEP_SEND_NET : NCCL_STATE_STEP_RECV_NET, CHUNK_BYTES);
    move_chunk(fd, is_send);
    if (!is_send) {
        host_state(&e, NCCL_STATE_STEP_RECV_FLUSH, CHUNK_BYTES);
        host_state(&e, NCCL_STATE_STEP_RECV_GPU, 0);
    }
    host_stop(&e, NULL);
}

static void all_reduce(struct rank *r, int number)
{
    struct event coll, ops[N_CHANNELS][2];
    bool sends = r->rank % 2 == 1; /* 0 and 1 are on a node, 2 and 3 on another */
    struct facts facts = {.sequence = (uint64_t)number,
                          .count = 1000,
                          .func = 4,
                          .datatype = 7,
                          .algorithm = 1,
                          .protocol = 2,
                          .n_channels = N_CHANNELS,
                          .depth = 1};
    r->called_ns = host_now();
    host_start(&coll, &r->comm, NCCL_COLL, NULL, &facts);
    host_stop(&coll, NULL);
    r->returned_ns = host_now();
    rest_us(1500); /* the kernel waits for what was computed before */
    int64_t start = host_now();
    for (int c = 0; c < N_CHANNELS; c++)
        for (int is_send = 0; is_send < 2; is_send++) {
            struct facts op = {.channel = c,
                               .peer = (r->rank + (is_send ? 1 : N_RANKS - 1)) % N_RANKS,
                               .n_steps = N_STEPS,
                               .chunk_bytes = CHUNK_BYTES,
                               .is_send = is_send};
            memset(&ops[c][is_send], 0, sizeof ops[c][is_send]);
            if (is_send == sends)
                host_start(&ops[c][is_send], &r->comm, NCCL_PROXY_OP, coll.handle, &op);
        }
    for (int k = 0; k < N_STEPS; k++)
        for (int phase = 0; phase < 2 * N_CHANNELS; phase++)
            step(r, ops[phase % N_CHANNELS][phase < N_CHANNELS].handle, k, phase < N_CHANNELS);
    for (int c = 0; c < N_CHANNELS; c++)
        host_stop(&ops[c][sends], NULL);
    int64_t end = host_now();
    kernel(r, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", r->called_ns, start, end,
           ", \"Collective name\": \"allreduce\", \"In msg nelems\": 1000, \"dtype\": \"Float\", "
           "\"Process Group Name\": \"0\", \"Group size\": 4");
    span(r, "user_annotation", "nccl:all_reduce", 100, gettid(), r->called_ns - 1000,
         r->returned_ns + 2000, "");
}

static int run_rank(int rank, int next, int previous)
{
    struct plugin plugin;
    char path[128];
    int mask = 0;
    struct rank r = {.rank = rank, .next = next, .previous = previous};
    r.comm = (struct host_comm){.rank = rank, .n_ranks = N_RANKS, .n_nodes = 2, .hash = 0xfeed};
    r.comm.name = "world";
    snprintf(path, sizeof path, "%s/nccl_rank%d.log", folder, rank);
    if (!plugin_load(&plugin, plugin_path) || plugin.start(path, rank) < 0 ||
        host_init(&r.comm, &plugin, plugin_version(&plugin, 6), &mask) != 0)
        return 2;
    snprintf(path, sizeof path, "%s/rank%d.json", folder, rank);
    r.profile = fopen(path, "w");
    if (!r.profile)
        return 2;
    fprintf(r.profile,
            "{\"schemaVersion\": 1, \"distributedInfo\": {\"backend\": \"nccl\", \"rank\": %d, "
            "\"world_size\": %d}, \"host_name\": \"node%d\", \"traceEvents\": [\n{\"ph\": \"M\", "
            "\"name\": \"process_name\", \"pid\": 100, \"tid\": 0, \"args\": {\"name\": "
            "\"python\"}}",
            rank, N_RANKS, rank / 2);
    int64_t begins = host_now();
    for (int i = 0; i < N_ITERATIONS; i++) {
        int64_t computes = host_now();
        rest_us(1000 + 300 * rank);
        int64_t computed = host_now();
        all_reduce(&r, i);
        kernel(&r, "gemm", computes, computes + 10000, computed, "");
        int64_t reduced = host_now();
        rest_us(1000);
        int64_t ends = host_now();
        kernel(&r, "relu", r.returned_ns + 3000, reduced, ends - 5000, "");
        span(&r, "cuda_runtime", "cudaDeviceSynchronize", 100, gettid(), r.returned_ns + 5000, ends,
             "\"correlation\": 0");
        int64_t next_begins = host_now();
        char name[32];
        snprintf(name, sizeof name, "ProfilerStep#%d", i);
        span(&r, "user_annotation", name, 100, gettid(), begins, next_begins, "");
        begins = next_begins;
    }
    fputs("\n]}\n", r.profile);
    int status = fclose(r.profile);
    host_finalize(&r.comm);
    plugin.stop();
    return status != 0;
}

static void run_job(void)
{
    int pairs[N_RANKS][2]; /* from each rank to the next */
    pid_t ranks[N_RANKS];
    for (int r = 0; r < N_RANKS; r++)
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[r]), 0);
    fflush(NULL);
    for (int r = 0; r < N_RANKS; r++) {
        ranks[r] = fork();
        if (ranks[r] == 0)
            _exit(run_rank(r, pairs[r][0], pairs[(r + N_RANKS - 1) % N_RANKS][1]));
    }
    for (int r = 0; r < N_RANKS; r++) {
        int status;
        assert_int_equal(waitpid(ranks[r], &status, 0), ranks[r]);
        assert_int_equal(status, 0);
        close(pairs[r][0]);
        close(pairs[r][1]);
    }
}

/* ---- its graph ---- */

static double replay_ms(struct dpro_job *job, const char *delay)
{
    struct dpro_job_replay_options options = {
        .size = sizeof options, .delays = &delay, .n_delays = delay != NULL};
    struct dpro_report report;
    struct dpro_error err;
    if (dpro_job_replay(job, &options, &report, &err) < 0)
        fail_msg("%s", err.text);
    return (double)dpro_replay_view(report.replay)->iteration_ns / 1e6;
}

static double measured_ms(const struct dpro_graph *g)
{
    uint32_t n;
    double sum = 0;
    const int64_t *measured = dpro_graph_measured_ns(g, &n);
    for (uint32_t i = 0; i < n; i++)
        sum += (double)measured[i] / 1e6;
    return sum / n;
}

TEST_IN_FOLDER(steps_that_the_plugin_logged_are_sends_and_receives)
{
    run_job();
    struct dpro_job *job = job_at(folder);
    struct dpro_graph *g = job_graph(job);
    for (size_t w = 0; w < dpro_graph_n_warnings(g); w++)
        print_message("%s\n", dpro_graph_warning(g, w));
    assert_int_equal(dpro_graph_n_collectives(g), 1);
    struct dpro_collective c = dpro_graph_collective(g, 0);
    assert_int_equal(c.n_messages, MESSAGES);
    assert_string_equal(c.pattern, "ring");
    assert_int_equal(c.n_channels, N_CHANNELS);
    assert_int_equal(c.n_chunks, 1);
    uint64_t bytes[2] = {0, 0}, transactions[2] = {0, 0};
    for (dpro_op_id op = 0; op < dpro_graph_n_ops(g); op++) {
        struct dpro_op it = dpro_graph_op(g, op);
        if (it.kind != DPRO_OP_SEND && it.kind != DPRO_OP_RECV)
            continue;
        bytes[it.kind == DPRO_OP_RECV] += it.size_bytes;
        transactions[it.kind == DPRO_OP_RECV] += it.transaction;
        assert_int_equal(it.rank % 2, it.kind == DPRO_OP_SEND); /* no other leaves its node */
    }
    assert_int_equal(bytes[0], (uint64_t)MESSAGES * CHUNK_BYTES);
    assert_int_equal(bytes[1], bytes[0]);
    assert_int_equal(transactions[0], transactions[1]);
    /* one machine's clock: what is estimated of two is not far from none */
    struct dpro_alignment alignment = dpro_graph_alignment(g);
    assert_int_equal(alignment.violations_after, 0);
    assert_true(alignment.n_pairs >= (uint64_t)MESSAGES * N_ITERATIONS);
    double measured = measured_ms(g), predicted = replay_ms(job, NULL);
    print_message("measured %.3f ms, replayed %.3f ms\n", measured, predicted);
    /* with other work on the machine no iteration is like another */
    assert_true(fabs(predicted - measured) < 0.5 * measured);
    assert_true(replay_ms(job, "COMM=+50") > predicted + 30);
    assert_true(replay_ms(job, "gemm@2=+50") > predicted + 30);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s nccl_profiler.so\n", argv[0]);
        return 2;
    }
    plugin_path = argv[1];
    return run_cases(NULL, NULL);
}
