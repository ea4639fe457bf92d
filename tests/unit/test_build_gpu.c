/* What GPU jobs do, case by case: the edges that are made of it, that its replay gives back what
 * was measured, and that a delay reaches what has to wait for it. Iterations last 1000 us. */

#include "case.h"
#include "graph/graph.h"
#include "trace_text.h"

#define US INT64_C(1000)

enum { N = 4, STEP = 1000 };

static int64_t measured_us(const struct dpro_graph *g)
{
    uint32_t n;
    int64_t sum = 0;
    const int64_t *measured = dpro_graph_measured_ns(g, &n);
    for (uint32_t i = 0; i < n; i++)
        sum += measured[i];
    return sum / n / US;
}

static void runtime(struct trace_text *t, const char *name, int64_t start, int64_t dur,
                    int correlation)
{
    char args[64];
    snprintf(args, sizeof args, "\"correlation\": %d", correlation);
    trace_text_cpu(t, "cuda_runtime", name, 1, start, dur, args);
}

static void wait_record(struct trace_text *t, const char *kind, int stream, int64_t at,
                        int correlation, int on_stream, int on_record)
{
    char args[200];
    snprintf(args, sizeof args,
             "\"cuda_sync_kind\": \"%s\", \"stream\": %d, \"correlation\": %d, "
             "\"wait_on_stream\": %d, \"wait_on_cuda_event_record_corr_id\": %d",
             kind, stream, correlation, on_stream, on_record);
    trace_text_device(t, "cuda_sync", kind, stream, at, 1, args);
}

/* Names of calls, exchanges and collectives tell something on a CPU thread only. */
TEST(a_kernel_may_have_any_name)
{
    static const char *const names[] = {"KVStoreDist",      "KVStoreDistPushPull rccl Kernel",
                                        "BytePSPushPull.w", "NEGOTIATE_ALLREDUCE",
                                        "w.PUSH_PULL",      "FunctionRun",
                                        "MXNDArrayWaitAll", "c10d::allreduce_",
                                        "gloo:all_reduce",  "cudaMemcpyAsync"};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        struct trace_text *t = trace_text_begin(0, 1);
        for (int i = 0; i < N; i++) {
            trace_text_step(t, i, STEP * i, STEP);
            trace_text_spans(t, STEP * i, "10+5 >7 20+300 %s", names[n]);
        }
        struct dpro_graph *g = trace_text_graph();
        assert_int_equal(replay_us(g, NULL), measured_us(g));
    }
}

/* What one rank does: which edges are there, and how much longer it takes with delays. */
static const struct {
    const char *what, *spans, *edges, *delays;
} cases[] = {
    {"waiting again for the same work is no news",
     "10+5 >7 20+300 gemm; 25+2 cudaStreamWaitEvent; 30+5 >9 321+50 side;"
     "40+2 cudaStreamWaitEvent; 50+5 >9 372+50 side2",
     "gemm > side; gemm !> side2", NULL},
    {"a device wide wait is for every stream (820 us; or 40 + 900)",
     "10+5 >7 20+800 long; 30+5 >8 40+500 short; 50+780 cudaDeviceSynchronize",
     "long > cudaDeviceSynchronize; short > cudaDeviceSynchronize",
     "-: +0; short=+0.2: +0; short=+0.4: +120; long=+0.1: +100"},
    {"a copy that blocks waits for its stream and its end",
     "10+5 >7 20+500 gemm; 20+530 =1 cudaMemcpy;"
     ">7 521+20 =1 Memcpy DtoH (Device -> Pageable); 560+300 aten::after",
     NULL, "-: +0; gemm=+0.1: +100; gemm=0.5: -250; Memcpy DtoH (Device -> Pageable)=+0.05: +50"},
    {"a graph launch starts all its kernels on all their streams: a forks, c joins",
     "10+20 =1 cudaGraphLaunch; >7 40+100 =1 a; >7 141+200 =1 b1;>8 141+300 =1 b2;"
     ">7 442+100 =1 c; 50+500 cudaStreamSynchronize",
     "cudaGraphLaunch > a; cudaGraphLaunch > b2; a > b2; b2 > c",
     "-: +0; a=+0.1: +100; b1=+0.05: +0; b2=+0.1: +100; c=+0.1: +100"},
    {"a driver call inside a runtime call launches once",
     "10+30 =1 cudaLaunchKernel; 15+20 =1 cuLaunchKernel; >7 50+400 =1 gemm;"
     "60+400 cudaStreamSynchronize",
     "cuLaunchKernel > gemm", "-: +0; gemm=+0.1: +100"},
    {"a launch that encloses other calls still launches",
     "10+300 =1 cudaLaunchKernel; 15+200 =2 cuModuleLoadData; >7 320+400 =1 gemm;"
     "330+400 cudaStreamSynchronize",
     "cudaLaunchKernel#1 > gemm", "-: +0; cuModuleLoadData=+0.1: +100"},
    {"a loader thread works ahead: 300 us to spare",
     "5+30 ! enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__;"
     "40+900 aten::mm; 100+600 @3 aten::pin_memory",
     NULL, "-: +0; aten::mm=+0.1: +100; aten::pin_memory=+0.1: +0"},
};

TEST(delays_reach_what_has_to_wait)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        print_message("%s\n", cases[i].what);
        struct dpro_graph *g = trace_text_one(N, STEP, cases[i].spans);
        if (cases[i].edges)
            check_edges(g, 0, cases[i].edges);
        if (cases[i].delays)
            check_delays(g, STEP, cases[i].delays);
    }
}

TEST(of_many_streams_the_last_to_end_were_waited_for)
{
    struct trace_text *t = trace_text_begin(0, 1);
    char name[16];
    trace_text_step(t, 1, 0, STEP);
    for (int i = 0; i < 30; i++)
        trace_text_spans(t, 10 * i, "0+5 >%d 7+100 k%d", 100 + i, i);
    trace_text_spans(t, 0, "400+2 cudaStreamWaitEvent; 410+5 >9 420+50 join");
    struct dpro_graph *g = trace_text_graph();
    int edges = 0;
    for (int i = 0; i < 30; i++) {
        snprintf(name, sizeof name, "k%d", i);
        edges += has_edge(g, 0, name, 0, "join", 0);
    }
    assert_true(has_edge(g, 0, "k29", 0, "join", 0));
    assert_in_range(edges, 1, 8);
}

TEST(an_event_waited_for_on_the_cpu_is_the_work_before_its_record)
{
    struct trace_text *t = trace_text_begin(0, 1);
    for (int i = 0; i < N; i++) {
        int64_t at = STEP * i;
        trace_text_step(t, i, at, STEP);
        trace_text_spans(t, at,
                         "10+5 >7 20+300 first; 30+5 >7 321+400 second;"
                         "330+100 aten::after; 440+290 cudaDeviceSynchronize");
        runtime(t, "cudaEventRecord", at + 20, 2, 1000 + 10 * i);
        runtime(t, "cudaEventSynchronize", at + 40, 283, 1001 + 10 * i);
        wait_record(t, "Event Sync", -1, at + 40, 1001 + 10 * i, 7, 1000 + 10 * i);
    }
    struct dpro_graph *g = trace_text_graph();
    check_edges(g, 0, "first > cudaEventSynchronize; second !> cudaEventSynchronize");
    assert_int_equal(dpro_graph_op(g, nth_op(g, 0, "cudaEventSynchronize", 0)).dur_ns, 3 * US);
    assert_int_equal(replay_us(g, NULL), measured_us(g));
    /* the CPU works while second runs: it has 290 us to spare */
    assert_int_equal(replay_us(g, "aten::after=+0.2"), STEP);
    assert_int_equal(replay_us(g, "first=+0.2"), STEP + 200);
}

/* A CPU that runs ahead of stream 7 waits for stream 9, which has nothing to do in the fourth step.
 */
TEST(where_the_work_is_missing_a_wait_leaves_as_much_as_usual)
{
    struct trace_text *t = trace_text_begin(0, 1);
    for (int i = 0; i < 7; i++) {
        int64_t at = 500 * i;
        trace_text_step(t, i, at, 500);
        trace_text_spans(t, at, "10+5 >7 %d+600 gemm", 20 + 100 * i);
        if (i != 3)
            trace_text_spans(t, at, "30+5 >9 40+60 side");
        runtime(t, "cudaEventRecord", at + 37, 2, 1000 + 10 * i);
        runtime(t, "cudaEventSynchronize", at + 50, i == 3 ? 200 : 60, 1001 + 10 * i);
        wait_record(t, "Event Sync", -1, at + 50, 1001 + 10 * i, 9, 1000 + 10 * i);
    }
    struct dpro_graph *g = trace_text_graph();
    dpro_op_id waits = nth_op(g, 0, "cudaEventSynchronize", 0);
    assert_true(has_edge(g, 0, "side", 0, "cudaEventSynchronize", 0));
    assert_true(g->n_samples >= 5);
    for (uint32_t s = 0; s < g->n_samples; s++)
        assert_int_equal(g->sample_dur_ns[(size_t)s * g->n_ops + waits], 10 * US);
}

TEST(a_stream_wait_recorded_names_the_stream_and_the_event)
{
    struct trace_text *t = trace_text_begin(0, 1);
    trace_text_steps(t, 1, STEP,
                     "10+5 >7 20+100 a; 25+5 >7 121+100 b; 35+5 >8 45+100 c; 50+5 >9 300+100 d;"
                     "60+5 >10 300+100 e");
    runtime(t, "cudaEventRecord", 20, 2, 1000);
    runtime(t, "cudaStreamWaitEvent", 45, 2, 1001);
    wait_record(t, "Stream Wait Event", 9, 45, 1001, 7, 1000);
    struct dpro_graph *g = trace_text_graph();
    /* launched after the event another stream did not wait */
    check_edges(g, 0, "a > d; b !> d; c !> d; a !> e");
}

TEST(hip_calls_mean_what_their_cuda_names_do)
{
    struct dpro_graph *g = trace_text_one(
        N, STEP,
        "10+5 =1 hipLaunchKernel; >7 20+300 =1 Cijk_Ailk;"
        "20+330 =2 hipMemcpyWithStream; >7 321+20 =2 CopyDeviceToHost;"
        "360+5 =3 hipExtModuleLaunchKernel; >7 370+400 =3 relu; 380+400 hipStreamSynchronize");
    check_edges(g, 0,
                "hipLaunchKernel > Cijk_Ailk; CopyDeviceToHost > hipMemcpyWithStream#1; relu > "
                "hipStreamSynchronize");
    assert_int_equal(replay_us(g, NULL), STEP);
    assert_in_range(replay_us(g, "Cijk_Ailk=+0.1"), STEP + 99, STEP + 100);
    assert_int_equal(replay_us(g, "relu=+0.1"), STEP + 100);
}

TEST(a_kernel_seen_before_its_launch_does_not_upset_the_replay)
{
    struct trace_text *t = trace_text_begin(0, 1);
    for (int i = 0; i < N; i++) {
        int64_t at = STEP * i;
        trace_text_step(t, i, at, STEP);
        for (int k = 0; k < 8; k++) /* the GPU's clock is 3 us behind */
            trace_text_spans(t, at + 100 * k, "10+5 >7 7+90 gemm");
        trace_text_spans(t, at, "720+80 cudaStreamSynchronize");
    }
    struct dpro_graph *g = trace_text_graph();
    assert_in_range(replay_us(g, NULL), STEP - 3, STEP + 3);
    for (int k = 0; k < 8; k++)
        assert_true(has_edge(g, 0, "cudaLaunchKernel", k, "gemm", k));
}

/* ---- over ranks ---- */

/* A collective's kernel on stream `stream` of a group, as Kineto has recorded them since 2024. */
static void nccl(struct trace_text *t, const char *kind, const char *kernel, int64_t call,
                 int stream, int64_t start, int64_t dur, const char *group, const char *ranks,
                 int size, int sequence)
{
    trace_text_spans(t, call,
                     "0+4 >%d %d+%d %s{'Collective name': '%s', 'In msg nelems': 1000,"
                     "'dtype': 'Float', 'Process Group Name': '%s', 'Process Group Ranks': '%s',"
                     "'Group size': %d, '%s': %d}",
                     stream, (int)(start - call), (int)dur, kernel, kind, group, ranks, size,
                     sequence < 0 ? "x" : "Seq", sequence);
}

static const char ALL_REDUCE[] = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)";
static const char ALL_GATHER[] = "ncclDevKernel_AllGather_RING_LL(ncclDevComm*)";
static const char REDUCE_SCATTER[] = "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevComm*)";
static const char SEND_RECV[] = "ncclDevKernel_SendRecv(ncclDevComm*)";

/* Ranks 0 and 1, and 2 and 3, reduce among themselves, then all four do. busy[] is how long each
 * computes first; the k-th of `sequences` ranks records its sequence numbers. */
static struct dpro_graph *subgroups(const int *busy, int n_with_sequence)
{
    for (int rank = 0; rank < 4; rank++) {
        struct trace_text *t = trace_text_begin(rank, 4);
        int pair = busy[rank] > busy[rank ^ 1] ? busy[rank] : busy[rank ^ 1];
        int all = 0;
        for (int r = 0; r < 4; r++)
            all = busy[r] > all ? busy[r] : all;
        for (int i = 0; i < N; i++) {
            int64_t at = STEP * i;
            int s = rank < n_with_sequence ? 10 + i : -1;
            trace_text_step(t, i, at, STEP);
            trace_text_spans(t, at,
                             "10+4 >7 20+%d gemm; 16+1 cudaStreamWaitEvent;"
                             "26+1 cudaStreamWaitEvent; 40+%d cudaDeviceSynchronize",
                             busy[rank], all + 140);
            nccl(t, "allreduce", ALL_REDUCE, at + 20, 20, at + 20 + busy[rank],
                 pair - busy[rank] + 50, rank < 2 ? "1" : "2", rank < 2 ? "[0, 1]" : "[2, 3]", 2,
                 s);
            nccl(t, "allreduce", ALL_REDUCE, at + 30, 21, at + 70 + pair, all - pair + 100, "0",
                 "[0, 1, 2, 3]", 4, s);
        }
    }
    return trace_text_graph();
}

static void check_subgroups(int n_with_sequence)
{
    struct dpro_graph *g = subgroups((const int[]){100, 200, 300, 400}, n_with_sequence);
    assert_false(has_warning(g, "disagree"));
    assert_false(has_warning(g, "missing"));
    for (int rank = 0; rank < 4; rank++) { /* no waiting is in a transfer */
        assert_int_equal(dpro_graph_op(g, nth_op(g, rank, ALL_REDUCE, 0)).dur_ns, 50 * US);
        assert_int_equal(dpro_graph_op(g, nth_op(g, rank, ALL_REDUCE, 1)).dur_ns, 100 * US);
    }
    uint64_t transaction[4];
    for (int rank = 0; rank < 4; rank++)
        transaction[rank] = dpro_graph_op(g, nth_op(g, rank, ALL_REDUCE, 0)).transaction;
    assert_true(transaction[0] == transaction[1] && transaction[2] == transaction[3] &&
                transaction[0] != transaction[2]);
    /* 200 us to spare for the world's */
    check_delays(g, STEP, "-: +0; gemm@3=+0.1: +100; gemm@1=+0.15: +0; gemm@1=+0.3: +100");
}

TEST(subgroups_wait_among_themselves_then_all_do)
{
    check_subgroups(4);
    check_subgroups(0);
}

TEST(sequence_numbers_that_one_rank_lacks_are_not_needed)
{
    check_subgroups(3);
}

TEST(sequence_numbers_that_no_two_ranks_share_are_counted_instead)
{
    for (int rank = 0; rank < 2; rank++) {
        struct trace_text *t = trace_text_begin(rank, 2);
        for (int i = 0; i < N; i++) { /* the ranks began to count at different times */
            int64_t at = STEP * i;
            trace_text_step(t, i, at, STEP);
            nccl(t, "allreduce", ALL_REDUCE, at + 10, 20, at + 100 + 200 * rank, 500 - 200 * rank,
                 "0", "[0, 1]", 2, 10 * rank + i);
        }
    }
    struct dpro_graph *g = trace_text_graph();
    for (int rank = 0; rank < 2; rank++)
        assert_int_equal(dpro_graph_op(g, nth_op(g, rank, ALL_REDUCE, 0)).dur_ns, 300 * US);
}

TEST(a_send_and_its_receive_meet)
{
    for (int rank = 0; rank < 2; rank++) {
        struct trace_text *t = trace_text_begin(rank, 2);
        for (int i = 0; i < N; i++) {
            int64_t at = STEP * i;
            trace_text_step(t, i, at, STEP);
            trace_text_spans(
                t, at,
                "10+4 >7 20+%d gemm; 16+1 cudaStreamWaitEvent; 20+4 >20 %d+%d %s"
                "{'Collective name': '%s', '%s': %d, 'In msg nelems': 7, 'dtype': 'Half',"
                "'Group size': 2}; 26+1 cudaStreamWaitEvent; 30+4 >7 420+300 relu;"
                "40+700 cudaDeviceSynchronize",
                rank ? 50 : 300, rank ? 70 : 320, rank ? 350 : 100, SEND_RECV,
                rank ? "recv" : "send", rank ? "Src Rank" : "Dst Rank", !rank);
        }
    }
    struct dpro_graph *g = trace_text_graph();
    struct dpro_op send = dpro_graph_op(g, nth_op(g, 0, SEND_RECV, 0));
    struct dpro_op recv = dpro_graph_op(g, nth_op(g, 1, SEND_RECV, 0));
    assert_int_equal(send.kind, DPRO_OP_SEND);
    assert_int_equal(recv.kind, DPRO_OP_RECV);
    assert_true(send.transaction != 0 && send.transaction == recv.transaction);
    assert_int_equal(send.dur_ns, 100 * US);
    assert_int_equal(recv.dur_ns, 100 * US); /* the other 250 were waiting for the sender */
    check_delays(g, STEP, "-: +0; gemm@0=+0.1: +100; gemm@1=+0.2: +0");
}

TEST(sharded_training_gathers_computes_and_scatters)
{
    for (int rank = 0; rank < 2; rank++) {
        struct trace_text *t = trace_text_begin(rank, 2);
        for (int i = 0; i < N; i++) {
            int64_t at = STEP * i;
            int late = 40 * rank;
            trace_text_step(t, i, at, STEP);
            nccl(t, "_allgather_base", ALL_GATHER, at + 5, 20, at + 12, 88, "0", "[0, 1]", 2,
                 20 * i);
            runtime(t, "cudaEventRecord", at + 11, 1, 10000 + 10 * i);
            runtime(t, "cudaStreamWaitEvent", at + 13, 1, 10001 + 10 * i);
            wait_record(t, "Stream Wait Event", 7, at + 13, 10001 + 10 * i, 20, 10000 + 10 * i);
            trace_text_spans(t, at, "16+4 >7 101+%d fw1; 31+4 >7 %d+200 fw2", 200 + late,
                             302 + late);
            nccl(t, "_allgather_base", ALL_GATHER, at + 21, 20, at + 101, 80, "0", "[0, 1]", 2,
                 20 * i + 1); /* ahead of need: hidden behind fw1 */
            runtime(t, "cudaEventRecord", at + 26, 1, 10002 + 10 * i);
            runtime(t, "cudaStreamWaitEvent", at + 28, 1, 10003 + 10 * i);
            wait_record(t, "Stream Wait Event", 7, at + 28, 10003 + 10 * i, 20, 10002 + 10 * i);
            runtime(t, "cudaEventRecord", at + 36, 1, 10004 + 10 * i);
            runtime(t, "cudaStreamWaitEvent", at + 38, 1, 10005 + 10 * i);
            wait_record(t, "Stream Wait Event", 20, at + 38, 10005 + 10 * i, 7, 10004 + 10 * i);
            nccl(t, "_reduce_scatter_base", REDUCE_SCATTER, at + 41, 20, at + 503 + late,
                 140 - late, "0", "[0, 1]", 2, 20 * i + 2);
            runtime(t, "cudaDeviceSynchronize", at + 50, 600, 10006 + 10 * i);
        }
    }
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(dpro_graph_op(g, nth_op(g, 0, REDUCE_SCATTER, 0)).dur_ns, 100 * US);
    check_delays(g, STEP,
                 "-: +0; fw1@1=+0.1: +100; fw1@0=+0.04: +0; "
                 "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevComm*)=+0.1: +100");
}

TEST(sends_that_cross_do_not_wait_for_their_receivers)
{
    for (int rank = 0; rank < 2; rank++) { /* both send, then both receive, on one stream */
        struct trace_text *t = trace_text_begin(rank, 2);
        for (int i = 0; i < N; i++) {
            int64_t at = STEP * i;
            trace_text_step(t, i, at, STEP);
            trace_text_spans(t, at, "10+4 >20 20+%d gemm; 40+500 cudaDeviceSynchronize",
                             rank ? 100 : 300);
            for (int k = 0; k < 2; k++)
                trace_text_spans(t, at + 10 * k,
                                 "20+4 >20 %d+%d %s{'Collective name': '%s', '%s Rank': %d,"
                                 "'In msg nelems': 7, 'dtype': 'Half', 'Group size': 2}",
                                 rank ? 120 : 320, k && rank ? 210 : 10, SEND_RECV,
                                 k ? "recv" : "send", k ? "Src" : "Dst", 1 - rank);
        }
    }
    struct dpro_graph *g = trace_text_graph();
    assert_false(has_warning(g, "contradict"));
    struct dpro_op recv = dpro_graph_op(g, nth_op(g, 1, SEND_RECV, 1));
    assert_int_equal(recv.kind, DPRO_OP_RECV);
    assert_int_equal(recv.dur_ns, 20 * US); /* from the late sender's start on */
    check_delays(g, STEP, "-: +0; gemm@0=+0.1: +100");
}

TEST(what_lies_between_two_contradictions_stays_joined)
{
    for (int rank = 0; rank < 2; rank++) {
        struct trace_text *t = trace_text_begin(rank, 2);
        trace_text_step(t, 1, 0, STEP);
        for (int k = 0; k < 5; k++) { /* A B C A B on one rank, B A C B A on the other */
            const char *group = k == 2 ? "c" : (k % 3 == 0) == (rank == 0) ? "a" : "b";
            nccl(t, "allreduce", ALL_REDUCE, 10 + 10 * k, 20, 100 + 100 * k, 50 + 10 * rank, group,
                 "[0, 1]", 2, -1);
        }
    }
    struct dpro_graph *g = trace_text_graph();
    assert_true(has_warning(g, "contradict"));
    uint32_t joined = 0;
    for (uint32_t c = 0; c < g->n_collectives; c++) {
        const struct graph_collective *coll = &g->collectives[c];
        int all = coll->barrier != DPRO_NO_OP;
        for (uint32_t m = coll->first_member; m < coll->first_member + coll->n_members && all; m++)
            all = edge_to(g, g->members[m].arrival, coll->barrier, 0) &&
                  edge_to(g, coll->barrier, g->members[m].transfer, 0);
        joined += (uint32_t)all;
    }
    assert_int_equal(joined, 1);
}

/* ---- iterations that are not all alike ---- */

TEST(a_checkpoint_now_and_then_stays_in_the_mean)
{
    struct trace_text *t = trace_text_begin(0, 1);
    int64_t at = 0;
    for (int i = 0; i < 8; i++) {
        int extra = i % 4 == 3 ? 800 : 0;
        trace_text_step(t, i, at, STEP + extra);
        trace_text_spans(t, at, "10+500 aten::mm; %d+400 aten::add_", 520 + extra);
        if (extra)
            trace_text_spans(t, at, "520+790 aten::save");
        at += STEP + extra;
    }
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(measured_us(g), STEP + 200);
    assert_in_range(replay_us(g, NULL), STEP + 195, STEP + 205);
    assert_in_range(replay_us(g, "aten::mm=+0.1"), STEP + 295, STEP + 305);
}
