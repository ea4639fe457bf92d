/* From traces to the global data-flow graph: iterations, ops, edges, collectives over ranks. */

#include "case.h"
#include "graph/names/names.h"
#include "graph/rank_build.h"
#include "stages_seen.h"
#include "trace_text.h"

#define US INT64_C(1000)

static struct dpro_op op_of(const struct dpro_graph *g, int rank, const char *name, int n)
{
    return dpro_graph_op(g, nth_op(g, rank, name, n));
}

/* ---- iterations ---- */

static uint32_t n_measured(const struct dpro_graph *g)
{
    uint32_t n;
    dpro_graph_measured_ns(g, &n);
    return n;
}

static int64_t measured_us(const struct dpro_graph *g, uint32_t i)
{
    uint32_t n;
    const int64_t *measured = dpro_graph_measured_ns(g, &n);
    assert_true(i < n);
    return measured[i] / US;
}

/* `n` iterations of `us` each. */
static void check_measured(const struct dpro_graph *g, uint32_t n, int64_t us)
{
    assert_int_equal(n_measured(g), n);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(measured_us(g, i), us);
}

TEST(an_iteration_reaches_to_the_next_mark)
{
    struct trace_text *t = trace_text_begin(0, 1);
    for (int i = 0; i < 3; i++) {
        trace_text_step(t, 7 + i, 1000 * i, 900 + i); /* the profiler takes what is left */
        trace_text_cpu(t, "cpu_op", "aten::mm", 1, 1000 * i + 10, 100, "");
    }
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(n_measured(g), 3);
    assert_int_equal(measured_us(g, 0), 1000);
    assert_int_equal(measured_us(g, 1), 1000);
    assert_int_equal(measured_us(g, 2), 902);
}

TEST(of_marks_that_lie_over_each_other_the_first_tell)
{
    struct trace_text *t = trace_text_begin(0, 1);
    for (int i = 0; i < 3; i++) {
        trace_text_step(t, 7 + i, 1000 * i, 1000);
        trace_text_step(t, 20 + i, 1000 * i + 20, 1010); /* the framework's own */
        for (int k = 0; k < 4; k++)
            trace_text_cpu(t, "cpu_op", "aten::mm", 1, 1000 * i + 100 + 200 * k, 100, "");
    }
    struct dpro_graph *g = trace_text_graph();
    check_measured(g, 3, 1000);
    assert_null(dpro_graph_warning(g, 0));
}

TEST(a_step_number_beyond_64_bits_is_no_trouble)
{
    struct trace_text *t = trace_text_begin(0, 1);
    for (int i = 0; i < 2; i++) {
        trace_text_cpu(t, "user_annotation", "ProfilerStep#99999999999999999999999", 1, 1000 * i,
                       900, "");
        trace_text_cpu(t, "cpu_op", "aten::mm", 1, 1000 * i + 10, 100, "");
    }
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(measured_us(g, 0), 900);
}

TEST(an_iteration_cut_short_is_left_out)
{
    for (int rank = 0; rank < 2; rank++) {
        struct trace_text *t = trace_text_begin(rank, 2);
        for (int i = 0; i < 4; i++) {
            trace_text_step(t, i, 1000 * i, 1000);
            for (int k = 0; k < (rank == 1 && i == 2 ? 3 : 8); k++)
                trace_text_cpu(t, "cpu_op", "aten::mm", 1, 1000 * i + 100 * k, 90 + i, "");
        }
    }
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(n_measured(g), 3);
    assert_true(has_warning(g, "cut short"));
    assert_true(has_warning(g, "rank 1"));
}

TEST(an_iteration_that_all_ranks_lack_is_left_out_once)
{
    for (int rank = 0; rank < 2; rank++) {
        struct trace_text *t = trace_text_begin(rank, 2);
        for (int i = 0; i < 4; i++) {
            trace_text_step(t, i, 1000 * i, 1000);
            for (int k = 0; k < (i == 2 ? 3 : 8); k++)
                trace_text_cpu(t, "cpu_op", "aten::mm", 1, 1000 * i + 100 * k, 90 + i, "");
        }
    }
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(dpro_graph_n_left_out(g), 1);
    assert_int_equal(dpro_graph_left_out(g, 0).number, 2);
}

TEST(marks_of_the_gpu_are_not_counted_twice)
{
    struct trace_text *t = trace_text_begin(0, 1);
    for (int i = 0; i < 2; i++) {
        trace_text_step(t, i, 1000 * i, 1000);
        trace_text_kernel(t, "gemm", 1, 1000 * i + 10, 5, 7, 1000 * i + 20, 100, "");
    }
    for (int i = 0; i < 2; i++)
        trace_text_cpu(t, "gpu_user_annotation", i ? "ProfilerStep#1" : "ProfilerStep#0", 7,
                       1000 * i + 20, 100, "");
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(n_measured(g), 2);
}

TEST(without_marks_the_optimizer_cuts_iterations)
{
    struct trace_text *t = trace_text_begin(0, 1);
    for (int i = 0; i < 4; i++) {
        trace_text_cpu(t, "user_annotation", "Optimizer.zero_grad#SGD.zero_grad", 1, 500 * i, 20,
                       "");
        trace_text_cpu(t, "cpu_op", "aten::mm", 1, 500 * i + 30, 100, "");
        trace_text_cpu(t, "user_annotation", "Optimizer.step#SGD.step", 1, 500 * i + 400, 50, "");
        trace_text_cpu(t, "cpu_op", "aten::add_", 1, 500 * i + 410, 30, "");
    }
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(n_measured(g), 4);
    assert_int_equal(measured_us(g, 1), 500);
    assert_true(has_warning(g, "optimizer"));
    assert_int_equal(op_of(g, 0, "aten::add_", 0).kind, DPRO_OP_UPDATE);
}

TEST(without_any_mark_the_period_of_the_ops_cuts_iterations)
{
    const char *const ops[] = {"aten::a", "aten::b", "aten::c", "aten::b"};
    struct trace_text *t = trace_text_begin(0, 1);
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 4; k++)
            trace_text_cpu(t, "cpu_op", ops[k], 1, 1000 * i + 100 * k, 90, "");
    struct dpro_graph *g = trace_text_graph();
    check_measured(g, 4, 1000);
    assert_true(has_warning(g, "period"));
}

TEST(the_loops_head_is_where_it_is_usually_idle_not_where_it_was_once)
{
    const char *const ops[] = {"aten::a", "aten::b", "aten::c", "aten::b"};
    struct trace_text *t = trace_text_begin(0, 1);
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 4; k++) {
            int late = i == 0 && k >= 2 ? 350 : 0;
            trace_text_cpu(t, "cpu_op", ops[k], 1, 1000 * i + 100 * k + late, 90, "");
        }
    struct dpro_graph *g = trace_text_graph();
    check_measured(g, 4, 1000);
}

TEST(a_recording_without_period_is_one_iteration)
{
    struct trace_text *t = trace_text_begin(0, 1);
    trace_text_cpu(t, "cpu_op", "aten::a", 1, 100, 50, "");
    trace_text_cpu(t, "cpu_op", "aten::b", 1, 200, 70, "");
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(n_measured(g), 1);
    assert_int_equal(measured_us(g, 0), 170);
    assert_true(has_warning(g, "one iteration"));
}

TEST(ranks_learn_from_the_iterations_they_share)
{
    for (int rank = 0; rank < 2; rank++) {
        struct trace_text *t = trace_text_begin(rank, 2);
        for (int i = 0; i < 4; i++) { /* 5, 6, 7, 8 and 7, 8, 9, 10 */
            int number = 5 + 2 * rank + i;
            trace_text_step(t, number, 1000 * number, 900 + number);
            trace_text_cpu(t, "cpu_op", "aten::mm", 1, 1000 * number + 10, 100 * number, "");
        }
    }
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(n_measured(g), 2);
    assert_int_equal(op_of(g, 0, "aten::mm", 0).dur_ns, 750 * US);
    assert_int_equal(op_of(g, 1, "aten::mm", 0).dur_ns, 750 * US);
}

TEST(a_rank_without_iterations_among_others_is_named)
{
    for (int rank = 0; rank < 2; rank++) {
        struct trace_text *t = trace_text_begin(rank, 2);
        for (int i = 0; i < 3; i++) {
            if (rank == 0)
                trace_text_step(t, 5 + i, 1000 * i, 1000);
            trace_text_cpu(t, "cpu_op", "aten::mm", 1, 1000 * i + 10, 400, "");
        }
    }
    struct dpro_graph *g = trace_text_graph();
    assert_true(has_warning(g, "1 of 2 ranks (first: rank 1) have no iteration marks"));
    assert_true(has_warning(g, "1 of 2 ranks (first: rank 1) number their iterations otherwise"));
}

TEST(of_many_iterations_fifty_are_predicted)
{
    struct trace_text *t = trace_text_begin(0, 1);
    for (int i = 0; i < 120; i++) {
        trace_text_step(t, i, 100 * i, 100);
        trace_text_cpu(t, "cpu_op", "aten::mm", 1, 100 * i + 10, 50, "");
    }
    struct dpro_graph *g = trace_text_graph();
    struct dpro_validation validation;
    struct dpro_error err;
    assert_int_equal(dpro_replay_validate(g, NULL, &validation, &err), 0);
    assert_int_equal(validation.n, 50);
    assert_true(validation.max_abs_error_pct < 0.01);
}

TEST(reading_building_and_validating_tell_how_far_they_are)
{
    for (int rank = 0; rank < 3; rank++) {
        struct trace_text *t = trace_text_begin(rank, 3);
        for (int i = 0; i < 4; i++) {
            trace_text_step(t, i, 100 * i, 100);
            trace_text_cpu(t, "cpu_op", "aten::mm", 1, 100 * i + 10, 50, "");
        }
    }
    struct stages_seen seen = {.n_wrong = 0};
    struct dpro_graph *g = trace_text_graph_with(&(struct dpro_job_options){
        .size = sizeof(struct dpro_job_options), .sink = stages_sink(&seen)});
    struct dpro_replay_options options = {.threads = 1, .sink = stages_sink(&seen)};
    struct dpro_validation validation;
    struct dpro_error err;
    assert_int_equal(dpro_replay_validate(g, &options, &validation, &err), 0);
    assert_int_equal(validation.n, 4);
    assert_string_equal(seen.names, "join the files;build the graph;validate;");
    assert_int_equal(seen.n_wrong, 0);
}

TEST(times_as_far_apart_as_they_can_be_give_a_graph)
{
    struct trace_text *t = trace_text_begin(0, 1);
    trace_text_cpu(t, "cpu_op", "aten::a", 1, -4611686018427386, 1, "");
    for (int i = 0; i < 8; i++)
        trace_text_cpu(t, "cpu_op", i % 2 ? "aten::b" : "aten::c", 1, 100 * i, 50, "");
    trace_text_cpu(t, "cpu_op", "aten::a", 1, 4611686018427380, 5, "");
    trace_text_step(t, INT_MAX, 0, 800);
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(op_of(g, 0, "aten::b", 0).dur_ns, 50 * US);
    t = trace_text_begin(0, 1);
    trace_text_cpu(t, "cpu_op", "aten::a", 1, -4611686018427386, 1, "");
    trace_text_cpu(t, "cpu_op", "aten::b", 1, 4611686018427380, 5, "");
    g = trace_text_graph();
    assert_int_equal(op_of(g, 0, "aten::b", 0).gap_ns, INT64_C(9223372036854765) * US);
}

TEST(one_marked_iteration_lasts_from_its_first_op_to_its_last)
{
    struct trace_text *t = trace_text_begin(0, 1);
    trace_text_step(t, 1, 0, 1000);
    trace_text_cpu(t, "cpu_op", "aten::a", 1, 10, 400, "");
    trace_text_cpu(t, "cpu_op", "aten::b", 1, 500, 400, "");
    struct dpro_graph *g = trace_text_graph();
    struct dpro_replay *replay = replay_of(g, NULL);
    assert_int_equal(measured_us(g, 0), 890);
    assert_int_equal(dpro_replay_view(replay)->iteration_ns, 890 * US);
    assert_int_equal(dpro_replay_view(replay)->critical_ns, 890 * US);
}

/* ---- ops ---- */

TEST(a_parent_is_what_its_children_leave_of_it)
{
    struct trace_text *t = trace_text_begin(0, 1);
    trace_text_step(t, 1, 0, 200);
    trace_text_cpu(t, "cpu_op", "aten::linear", 1, 10, 100, "");
    trace_text_cpu(t, "cpu_op", "aten::t", 1, 20, 10, "");
    trace_text_cpu(t, "cpu_op", "aten::addmm", 1, 40, 60, "");
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(op_of(g, 0, "aten::linear", 0).dur_ns, 10 * US); /* before aten::t */
    assert_int_equal(op_of(g, 0, "aten::linear", 1).dur_ns, 10 * US); /* between */
    assert_int_equal(op_of(g, 0, "aten::linear", 2).dur_ns, 10 * US); /* after aten::addmm */
    assert_int_equal(op_of(g, 0, "aten::t", 0).dur_ns, 10 * US);
    assert_int_equal(op_of(g, 0, "aten::addmm", 0).dur_ns, 60 * US);
}

TEST(python_time_between_ops_is_a_gap)
{
    struct trace_text *t = trace_text_begin(0, 1);
    for (int i = 0; i < 2; i++) {
        trace_text_step(t, i, 1000 * i, 1000);
        trace_text_cpu(t, "cpu_op", "aten::a", 1, 1000 * i + 100, 50, "");
        trace_text_cpu(t, "cpu_op", "aten::b", 1, 1000 * i + 170 + 20 * i, 50, "");
    }
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(op_of(g, 0, "aten::b", 0).gap_ns, 30 * US); /* mean of 20 and 40 */
    assert_int_equal(op_of(g, 0, "aten::a", 0).gap_ns, 100 * US);
}

/* ---- streams ---- */

TEST(a_kernel_follows_its_launch_and_its_stream)
{
    struct trace_text *t = trace_text_begin(0, 1);
    trace_text_step(t, 1, 0, 1000);
    trace_text_kernel(t, "gemm", 1, 10, 30, 7, 25, 500, ""); /* starts before the call returns */
    trace_text_kernel(t, "relu", 1, 50, 10, 7, 526, 100, "");
    struct dpro_graph *g = trace_text_graph();
    dpro_op_id launch = nth_op(g, 0, "cudaLaunchKernel", 0);
    dpro_op_id gemm = nth_op(g, 0, "gemm", 0), relu = nth_op(g, 0, "relu", 0);
    assert_true(edge_to(g, launch, gemm, 0));
    assert_true(edge_to(g, gemm, relu, 0));
    assert_int_equal(dpro_graph_op(g, launch).dur_ns, 15 * US); /* until the kernel starts */
    assert_int_equal(dpro_graph_op(g, gemm).gap_ns, 0);
    assert_int_equal(dpro_graph_op(g, relu).gap_ns, 1 * US);
}

TEST(a_synchronize_call_is_only_what_is_left_after_its_work)
{
    struct trace_text *t = trace_text_begin(0, 1);
    trace_text_step(t, 1, 0, 1000);
    trace_text_kernel(t, "gemm", 1, 10, 5, 7, 20, 600, "");
    trace_text_cpu(t, "cuda_runtime", "cudaStreamSynchronize", 1, 30, 595, "\"correlation\": 99");
    trace_text_cpu(t, "cpu_op", "aten::after", 1, 640, 10, "");
    struct dpro_graph *g = trace_text_graph();
    dpro_op_id sync = nth_op(g, 0, "cudaStreamSynchronize", 0);
    assert_true(edge_to(g, nth_op(g, 0, "gemm", 0), sync, 0));
    assert_int_equal(dpro_graph_op(g, sync).dur_ns, 5 * US);
    assert_int_equal(dpro_graph_op(g, sync).gap_ns, 0);
}

TEST(a_blocking_copy_holds_its_thread_until_it_is_done)
{
    struct trace_text *t = trace_text_begin(0, 1);
    trace_text_step(t, 1, 0, 1000);
    trace_text_kernel(t, "Memcpy DtoH (Device -> Pageable)", 1, 10, 110, 7, 30, 80, "");
    trace_text_cpu(t, "cpu_op", "aten::after", 1, 130, 10, "");
    struct dpro_graph *g = trace_text_graph();
    dpro_op_id copy = nth_op(g, 0, "Memcpy DtoH (Device -> Pageable)", 0);
    dpro_op_id tail = nth_op(g, 0, "cudaMemcpyAsync", 1);
    assert_true(edge_to(g, nth_op(g, 0, "cudaMemcpyAsync", 0), copy, 0));
    assert_true(edge_to(g, copy, tail, 0));
    assert_int_equal(dpro_graph_op(g, tail).dur_ns, 10 * US);
}

TEST(a_stream_wait_orders_work_of_two_streams)
{
    struct trace_text *t = trace_text_begin(0, 1);
    trace_text_step(t, 1, 0, 1000);
    trace_text_kernel(t, "gemm", 1, 10, 5, 7, 20, 300, "");
    trace_text_cpu(t, "cuda_runtime", "cudaEventRecord", 1, 20, 2, "\"correlation\": 98");
    trace_text_cpu(t, "cuda_runtime", "cudaStreamWaitEvent", 1, 25, 2, "\"correlation\": 99");
    trace_text_kernel(t, "side", 1, 30, 5, 9, 321, 50, "");
    trace_text_kernel(t, "more", 1, 40, 5, 7, 330, 50, "");
    trace_text_kernel(t, "free", 1, 50, 5, 9, 380, 50, "");
    struct dpro_graph *g = trace_text_graph();
    dpro_op_id side = nth_op(g, 0, "side", 0);
    assert_true(edge_to(g, nth_op(g, 0, "gemm", 0), side, 0));
    assert_int_equal(dpro_graph_op(g, side).gap_ns, 1 * US);
    assert_false(edge_to(g, nth_op(g, 0, "more", 0), nth_op(g, 0, "free", 0), 0));
}

/* A CPU that launches `n` kernels of 10 us an iteration, one a microsecond, until the queue of 1010
 * is full; from then on each call returns when the oldest kernel is done. */
static void write_full_queue(struct trace_text *t, int n, int iterations)
{
    int64_t *ends = kept_memory((size_t)(n * iterations), sizeof *ends), now = 0, gpu = 0;
    for (int k = 0; k < n * iterations; k++) {
        if (k % n == 0)
            trace_text_step(t, k / n, now, 1); /* reaches to the next mark */
        int64_t call = now++;
        if (k >= 1010 && ends[k - 1010] + 1 > now)
            now = ends[k - 1022] + 1;
        gpu = gpu > now + 1 ? gpu : now + 1;
        trace_text_kernel(t, "gemm", 1, call, now - call, 7, gpu, 10, "");
        gpu = ends[k] = gpu + 10;
    }
    trace_text_step(t, iterations, now, 1); /* cuts the last one */
    trace_text_cpu(t, "cpu_op", "aten::end", 1, now, 1, "");
}

static int64_t replayed_ns(const struct dpro_graph *g, const char *delay)
{
    struct dpro_replay_options options = {.delays = &delay, .n_delays = delay != NULL};
    return dpro_replay_view(replay_of(g, &options))->iterations_ns[4];
}

TEST(a_full_launch_queue_makes_the_cpu_as_slow_as_its_gpu)
{
    struct trace_text *t = trace_text_begin(0, 1);
    write_full_queue(t, 1200, 6);
    struct dpro_graph *g = trace_text_graph();
    /* waiting for room is no duration: the mean call is a microsecond of work */
    int64_t sum = 0;
    for (int i = 0; i < 1200; i++)
        sum += op_of(g, 0, "cudaLaunchKernel", i).dur_ns;
    assert_true(sum < 1200 * 2 * US);
    assert_in_range(replayed_ns(g, NULL), 11900 * US, 12100 * US);
    assert_in_range(replayed_ns(g, "GPU=2"), 23800 * US, 24200 * US);
    assert_in_range(replayed_ns(g, "GPU=0.5"), 5900 * US, 6200 * US);
}

TEST(backward_is_handed_to_its_thread_and_back)
{
    const char *bw = "autograd::engine::evaluate_function: MmBackward0";
    struct trace_text *t = trace_text_begin(0, 1);
    for (int i = 0; i < 2; i++) {
        int64_t at = 1000 * i;
        trace_text_step(t, i, at, 1000);
        trace_text_cpu(t, "cpu_op", "aten::mm", 1, at + 10, 200,
                       "\"Sequence number\": 5, \"Fwd thread id\": 0");
        trace_text_cpu(t, "cpu_op", bw, 2, at + 230, 400,
                       "\"Sequence number\": 5, \"Fwd thread id\": 1");
        trace_text_cpu(t, "cpu_op", "aten::clip", 1, at + 650, 40, "");
    }
    struct dpro_graph *g = trace_text_graph();
    dpro_op_id forward = nth_op(g, 0, "aten::mm", 0), backward = nth_op(g, 0, bw, 0);
    dpro_op_id after = nth_op(g, 0, "aten::clip", 0);
    assert_true(edge_to(g, forward, backward, 0));
    assert_true(edge_to(g, backward, after, 0));
    assert_int_equal(dpro_graph_op(g, forward).kind, DPRO_OP_FW);
    assert_int_equal(dpro_graph_op(g, backward).kind, DPRO_OP_BW);
    assert_int_equal(dpro_graph_op(g, after).kind, DPRO_OP_BW);
    assert_int_equal(dpro_graph_op(g, backward).gap_ns, 20 * US);
    assert_int_equal(dpro_graph_op(g, after).gap_ns, 20 * US);
}

/* ---- phases ---- */

static void cpu_op(struct trace_text *t, const char *name, int64_t start, int64_t dur, int sequence)
{
    char args[48];
    snprintf(args, sizeof args, "\"Sequence number\": %d, \"Fwd thread id\": 0", sequence);
    trace_text_cpu(t, "cpu_op", name, 1, start, dur, sequence > 0 ? args : "");
}

/* What autograd runs for the op of a sequence number, and within it an op. */
static void backward_op(struct trace_text *t, int thread, const char *name, int64_t start,
                        int64_t dur, int sequence)
{
    char args[48];
    snprintf(args, sizeof args, "\"Sequence number\": %d, \"Fwd thread id\": 1", sequence);
    trace_text_cpu(t, "cpu_op", "autograd::engine::evaluate_function: MmBackward0", thread, start,
                   dur, args);
    if (thread == 1)
        trace_text_cpu(t, "cpu_op", name, thread, start + 5, dur - 10, "");
}

static void accumulate_op(struct trace_text *t, int64_t start)
{
    trace_text_cpu(t, "cpu_op",
                   "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 1, start,
                   10, "");
}

static enum dpro_op_kind kind_of(const struct dpro_graph *g, const char *name, int n)
{
    return op_of(g, 0, name, n).kind;
}

TEST(passes_in_a_closure_of_the_optimizer_are_no_update)
{
    struct trace_text *t = trace_text_begin(0, 1);
    for (int i = 0; i < 3; i++) {
        int64_t at = 1000 * i;
        trace_text_step(t, i, at, 1000);
        trace_text_cpu(t, "user_annotation", "Optimizer.step#SGD.step", 1, at + 10, 900, "");
        trace_text_cpu(t, "user_annotation", "Optimizer.zero_grad#SGD.zero_grad", 1, at + 20, 50,
                       "");
        cpu_op(t, "aten::zero_", at + 30, 20, 0);
        cpu_op(t, "aten::randn", at + 100, 50, 0);
        cpu_op(t, "aten::to", at + 160, 30, 5 + 2 * i);
        cpu_op(t, "aten::linear", at + 200, 200, 5 + 2 * i);
        cpu_op(t, "aten::mm", at + 210, 150, 5 + 2 * i);
        backward_op(t, 1, "aten::bmm", at + 450, 200, 5 + 2 * i);
        cpu_op(t, "aten::norm", at + 700, 50, 0);
        cpu_op(t, "aten::sub_", at + 800, 50, 0);
        cpu_op(t, "custom::momentum", at + 870, 20, 0);
        cpu_op(t, "aten::item", at + 950, 20, 0);
    }
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(kind_of(g, "aten::zero_", 0), DPRO_OP_UPDATE);
    assert_int_equal(kind_of(g, "aten::randn", 0), DPRO_OP_FW);
    assert_int_equal(kind_of(g, "aten::to", 0), DPRO_OP_FW);
    assert_int_equal(kind_of(g, "aten::linear", 0), DPRO_OP_FW);
    assert_int_equal(kind_of(g, "aten::mm", 0), DPRO_OP_FW);
    assert_int_equal(kind_of(g, "aten::bmm", 0), DPRO_OP_BW);
    assert_int_equal(kind_of(g, "aten::norm", 0), DPRO_OP_UPDATE);
    assert_int_equal(kind_of(g, "aten::sub_", 0), DPRO_OP_UPDATE);
    assert_int_equal(kind_of(g, "custom::momentum", 0), DPRO_OP_UPDATE);
    assert_int_equal(kind_of(g, "aten::item", 0), DPRO_OP_UPDATE);
}

TEST(kernels_of_a_closure_are_of_the_phase_of_what_launched_them)
{
    struct trace_text *t = trace_text_begin(0, 1);
    for (int i = 0; i < 3; i++) {
        int64_t at = 1000 * i;
        trace_text_step(t, i, at, 1000);
        trace_text_cpu(t, "user_annotation", "Optimizer.step#SGD.step", 1, at + 10, 900, "");
        cpu_op(t, "aten::mm", at + 100, 50, 5 + i);
        trace_text_kernel(t, "gemm", 1, at + 110, 5, 7, at + 200, 100, "");
        backward_op(t, 2, "", at + 300, 200, 5 + i);
        trace_text_kernel(t, "gemm_nt", 2, at + 310, 5, 7, at + 400, 100, "");
        cpu_op(t, "aten::_foreach_add_", at + 600, 50, 0);
        trace_text_kernel(t, "multi_tensor_apply", 1, at + 610, 5, 7, at + 700, 100, "");
    }
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(kind_of(g, "gemm", 0), DPRO_OP_FW);
    assert_int_equal(kind_of(g, "gemm_nt", 0), DPRO_OP_BW);
    assert_int_equal(kind_of(g, "multi_tensor_apply", 0), DPRO_OP_UPDATE);
}

/* Iterations that begin with their backward pass. */
TEST(without_an_optimizer_nothing_is_an_update)
{
    struct trace_text *t = trace_text_begin(0, 1);
    for (int i = 0; i < 3; i++) {
        int64_t at = 1000 * i;
        trace_text_step(t, i, at, 1000);
        backward_op(t, 1, "aten::bmm", at + 10, 290, 5 + i);
        accumulate_op(t, at + 300);
        accumulate_op(t, at + 310);
        cpu_op(t, "aten::add_", at + 350, 10, 6 + i); /* a sum of losses */
        cpu_op(t, "aten::mm", at + 400, 100, 6 + i);
        cpu_op(t, "aten::item", at + 600, 100, 0);
    }
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(kind_of(g, "aten::bmm", 0), DPRO_OP_BW);
    assert_int_equal(kind_of(g, "aten::add_", 0), DPRO_OP_FW);
    assert_int_equal(kind_of(g, "aten::mm", 0), DPRO_OP_FW);
    assert_int_equal(kind_of(g, "aten::item", 0), DPRO_OP_FW);
}

TEST(ops_that_write_as_many_tensors_as_gradients_are_an_update)
{
    struct trace_text *t = trace_text_begin(0, 1);
    for (int i = 0; i < 3; i++) {
        int64_t at = 1000 * i;
        trace_text_step(t, i, at, 1000);
        cpu_op(t, "aten::mm", at + 10, 100, 5 + i);
        backward_op(t, 1, "aten::bmm", at + 200, 90, 5 + i);
        accumulate_op(t, at + 300);
        accumulate_op(t, at + 310);
        for (int p = 0; p < 2; p++) {
            cpu_op(t, "aten::mul", at + 400 + 100 * p, 40, 0);
            cpu_op(t, "aten::sub_", at + 450 + 100 * p, 40, 0);
        }
    }
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(kind_of(g, "aten::mm", 0), DPRO_OP_FW);
    assert_int_equal(kind_of(g, "aten::mul", 0), DPRO_OP_UPDATE);
    assert_int_equal(kind_of(g, "aten::sub_", 1), DPRO_OP_UPDATE);
}

TEST(in_inference_a_cache_is_no_optimizer)
{
    struct trace_text *t = trace_text_begin(0, 1);
    for (int i = 0; i < 3; i++) {
        int64_t at = 1000 * i;
        trace_text_step(t, i, at, 1000);
        cpu_op(t, "aten::mm", at + 10, 400, 0);
        cpu_op(t, "cache::kv_cache_update", at + 500, 100, 0);
        cpu_op(t, "aten::add_", at + 650, 100, 0);
    }
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(kind_of(g, "cache::kv_cache_update", 0), DPRO_OP_FW);
    assert_int_equal(kind_of(g, "aten::add_", 0), DPRO_OP_FW);
}

/* The second micro-batch computes its forward pass again within the backward pass. */
TEST(micro_batches_have_passes_of_their_own)
{
    struct trace_text *t = trace_text_begin(0, 1);
    for (int i = 0; i < 3; i++) {
        int64_t at = 1000 * i;
        trace_text_step(t, i, at, 1000);
        for (int m = 0; m < 2; m++) {
            int64_t begin = at + 400 * m;
            cpu_op(t, "aten::randn", begin + 10, 40, 0);
            cpu_op(t, "aten::mm", begin + 60, 100, 5 + 4 * i + 2 * m);
            backward_op(t, 1, "aten::bmm", begin + 200, 150, 5 + 4 * i + 2 * m);
            accumulate_op(t, begin + 360);
        }
        cpu_op(t, "aten::relu", at + 620, 20, 6 + 4 * i + 2);
        backward_op(t, 1, "aten::relu_backward", at + 780, 20, 6 + 4 * i + 2);
        trace_text_cpu(t, "user_annotation", "Optimizer.step#SGD.step", 1, at + 850, 100, "");
        cpu_op(t, "aten::sub_", at + 860, 80, 0);
    }
    struct dpro_graph *g = trace_text_graph();
    for (int m = 0; m < 2; m++) {
        assert_int_equal(kind_of(g, "aten::randn", m), DPRO_OP_FW);
        assert_int_equal(kind_of(g, "aten::mm", m), DPRO_OP_FW);
        assert_int_equal(kind_of(g, "aten::bmm", m), DPRO_OP_BW);
    }
    assert_int_equal(kind_of(g, "aten::relu", 0), DPRO_OP_BW);
    assert_int_equal(kind_of(g, "aten::sub_", 0), DPRO_OP_UPDATE);
    assert_int_equal(g->ranks[0].n_micro_batches, 2);
}

/* ---- over ranks ---- */

/* Two iterations; the rank computes for `busy` us, then enters a collective that ends at `end`. */
static void collective_rank(int rank, int world, int64_t busy, int64_t end, int64_t shift,
                            const char *kernel)
{
    struct trace_text *t = trace_text_begin(rank, world);
    for (int i = 0; i < 2; i++) {
        int64_t at = 1000 * i + shift;
        trace_text_step(t, i, at, 1000);
        trace_text_kernel(t, "gemm", 1, at + 1, 2, 7, at + 5, busy - 5, "");
        trace_text_kernel(t, kernel, 1, at + 4, 2, 20, at + busy, end - busy,
                          "\"In msg nelems\": 1000, \"dtype\": \"Float\"");
    }
}

static const char ALL_REDUCE[] = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)";
static const char ALL_GATHER[] = "ncclDevKernel_AllGather_RING_LL(ncclDevComm*)";

TEST(a_collective_is_waiting_then_transfer)
{
    collective_rank(0, 2, 100, 500, 0, ALL_REDUCE);
    collective_rank(1, 2, 450, 500, 0, ALL_REDUCE);
    struct dpro_graph *g = trace_text_graph();
    for (int rank = 0; rank < 2; rank++) {
        struct dpro_op transfer = op_of(g, rank, ALL_REDUCE, 0);
        assert_int_equal(transfer.kind, DPRO_OP_COLLECTIVE);
        assert_int_equal(transfer.dur_ns, 50 * US); /* not 400: the rest was waiting */
        assert_int_equal(transfer.gap_ns, 0);
        assert_int_equal(transfer.size_bytes, 4000);
        assert_true(transfer.transaction != 0);
    }
    dpro_op_id barrier = nth_op(g, 0, "all at all_reduce", 0);
    for (int rank = 0; rank < 2; rank++) {
        assert_true(edge_to(g, nth_op(g, rank, "arrival at all_reduce", 0), barrier, 0));
        assert_true(edge_to(g, barrier, nth_op(g, rank, ALL_REDUCE, 0), 0));
    }
}

TEST(a_clock_that_is_off_is_found_from_the_ends)
{
    collective_rank(0, 2, 100, 500, 0, ALL_REDUCE);
    collective_rank(1, 2, 450, 500, 7300, ALL_REDUCE);
    struct dpro_graph *g = trace_text_graph();
    assert_string_equal(dpro_graph_clock(g, 0).method, "reference");
    assert_int_equal(dpro_graph_clock(g, 0).segments[0].offset_ns, 0);
    assert_string_equal(dpro_graph_clock(g, 1).method, "collectives");
    assert_int_equal(dpro_graph_clock(g, 1).segments[0].offset_ns, -7300 * US);
    assert_int_equal(op_of(g, 0, ALL_REDUCE, 0).dur_ns, 50 * US);
}

TEST(collectives_that_disagree_are_not_joined)
{
    collective_rank(0, 2, 100, 500, 0, ALL_REDUCE);
    collective_rank(1, 2, 450, 500, 0, ALL_GATHER);
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(op_of(g, 0, ALL_REDUCE, 0).dur_ns, 400 * US); /* as measured */
    assert_true(has_warning(g, "no counterpart"));
}

TEST(what_one_rank_lost_does_not_unjoin_the_rest)
{
    for (int rank = 0; rank < 2; rank++) {
        struct trace_text *t = trace_text_begin(rank, 2);
        for (int i = 0; i < 2; i++) {
            trace_text_step(t, i, 1000 * i, 1000);
            for (int k = 0; k < 3; k++) {
                char args[80];
                snprintf(args, sizeof args, "\"In msg nelems\": %d, \"dtype\": \"Float\"", 10 + k);
                if (rank == 0 || k != 1) /* rank 1's second one is missing */
                    trace_text_kernel(t, ALL_REDUCE, 1, 1000 * i + 200 * k, 5, 20,
                                      1000 * i + 200 * k + 10 + 50 * rank, 100 - 50 * rank, args);
            }
        }
    }
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(op_of(g, 0, ALL_REDUCE, 0).dur_ns, 50 * US);  /* waited for rank 1 */
    assert_int_equal(op_of(g, 0, ALL_REDUCE, 1).dur_ns, 100 * US); /* as measured */
    assert_int_equal(op_of(g, 0, ALL_REDUCE, 2).dur_ns, 50 * US);
    assert_true(has_warning(g, "no counterpart"));
}

TEST(missing_ranks_are_said_to_be_assumed)
{
    collective_rank(3, 8, 100, 500, 0, ALL_REDUCE);
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(op_of(g, 3, ALL_REDUCE, 0).dur_ns, 400 * US);
    assert_true(has_warning(g, "1 of 8 ranks"));
}

/* ---- gradients ---- */

TEST(what_was_over_before_what_it_waits_for_is_held_up_in_one_gap_only)
{
    const char *in = "torch::distributed::reducer::mul_out";
    const char *out = "torch.distributed.ddp.reducer::copy_bucket_to_grad";
    for (int rank = 0; rank < 2; rank++) {
        struct trace_text *t = trace_text_begin(rank, 2);
        for (int i = 0; i < 5; i++) {
            /* in one iteration rank 0 came when rank 1 was through, if one believes the profiles */
            int64_t at = 2000 * i, late = i == 2 && rank == 0 ? 300 : 0;
            int64_t dur = i == 2 && rank == 1 ? 120 : 400 - late;
            trace_text_step(t, i, at, 2000);
            trace_text_cpu(t, "cpu_op", in, 1, at + 110 + late, 20, "\"Input Dims\": [[37]]");
            trace_text_cpu(t, "cpu_op", "c10d::allreduce_", 1, at + 170 + late, 10,
                           "\"Input Dims\": [[[37]], []], \"Input type\": [\"TensorList\"]");
            trace_text_cpu(t, "user_annotation", "gloo:all_reduce", 50, at + 180 + late, dur,
                           "\"Input Dims\": [[37]], \"Input type\": [\"float\"]");
            trace_text_cpu(t, "cpu_op", out, 1, at + 600, 1300, "\"Input Dims\": [[37]]");
        }
    }
    struct dpro_graph *g = trace_text_graph();
    const struct dpro_replay_view *r = dpro_replay_view(replay_of(g, NULL));
    assert_int_equal(r->n_iterations, 5);
    for (uint32_t i = 0; i < r->n_iterations; i++)
        assert_int_equal(r->iterations_ns[i], 2000 * US);
}

TEST(bucket_copies_give_each_gradient_its_bucket)
{
    const char *bw = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad";
    const char *in = "torch::distributed::reducer::mul_out";
    const char *out = "torch.distributed.ddp.reducer::copy_bucket_to_grad";
    struct trace_text *t = trace_text_begin(0, 1);
    for (int i = 0; i < 2; i++) {
        int64_t at = 2000 * i;
        trace_text_step(t, i, at, 2000);
        trace_text_cpu(t, "cpu_op", "aten::mm", 1, at + 10, 80, "");
        trace_text_cpu(t, "cpu_op", bw, 1, at + 100, 200, "");
        trace_text_cpu(t, "cpu_op", in, 1, at + 110, 20, "\"Input Dims\": [[10, 3]]");
        trace_text_cpu(t, "cpu_op", in, 1, at + 140, 20, "\"Input Dims\": [[7]]");
        trace_text_cpu(t, "cpu_op", "c10d::allreduce_", 1, at + 170, 20,
                       "\"Input Dims\": [[[37]], []], \"Input type\": [\"TensorList\"]");
        trace_text_cpu(t, "cpu_op", in, 1, at + 200, 20, "\"Input Dims\": [[5]]");
        trace_text_cpu(t, "cpu_op", "c10d::allreduce_", 1, at + 240, 20,
                       "\"Input Dims\": [[[5]], []], \"Input type\": [\"TensorList\"]");
        trace_text_cpu(t, "user_annotation", "gloo:all_reduce", 50, at + 180, 400,
                       "\"Input Dims\": [[37]], \"Input type\": [\"float\"]");
        trace_text_cpu(t, "user_annotation", "gloo:all_reduce", 51, at + 250, 600,
                       "\"Input Dims\": [[5]], \"Input type\": [\"float\"]");
        trace_text_cpu(t, "cpu_op", out, 1, at + 600, 10, "\"Input Dims\": [[10, 3]]");
        trace_text_cpu(t, "cpu_op", out, 1, at + 620, 10, "\"Input Dims\": [[7]]");
        trace_text_cpu(t, "cpu_op", out, 1, at + 870, 10, "\"Input Dims\": [[5]]");
    }
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(g->n_tensors, 3);
    /* 37 = 10 * 3 + 7 in the first bucket, 5 in the second */
    assert_int_equal(g->tensors[0].size_bytes, 120);
    assert_int_equal(g->tensors[1].size_bytes, 28);
    assert_int_equal(g->tensors[2].size_bytes, 20);
    assert_int_equal(g->tensors[0].collective, g->tensors[1].collective);
    assert_int_not_equal(g->tensors[0].collective, g->tensors[2].collective);
    dpro_op_id first_in = nth_op(g, 0, "In gradient 0", 0);
    assert_int_equal(first_in, g->tensors[0].in);
    assert_true(edge_to(g, nth_op(g, 0, in, 0), first_in, 0));
    assert_true(edge_to(g, first_in, nth_op(g, 0, "arrival at all_reduce", 0), 0));
    assert_true(edge_to(g, g->tensors[2].out, nth_op(g, 0, out, 2), 0));
    /* the wait for each bucket is explained: what is left is the thread's own time */
    assert_int_equal(op_of(g, 0, out, 0).gap_ns, 20 * US);
    assert_int_equal(op_of(g, 0, out, 2).gap_ns, 20 * US);
}

TEST(a_queued_collective_starts_when_either_thread_is_free)
{
    struct trace_text *t = trace_text_begin(0, 1);
    for (int i = 0; i < 4; i++) {
        int64_t at = 2000 * i, first = i % 2 ? 600 : 900, second = i % 2 ? 900 : 600;
        trace_text_step(t, i, at, 2000);
        for (int k = 0; k < 3; k++)
            trace_text_cpu(t, "cpu_op", "c10d::allreduce_", 1, at + 100 + 50 * k, 20,
                           "\"Input Dims\": [[[5]], []]");
        trace_text_cpu(t, "user_annotation", "gloo:all_reduce", 50, at + 130, first - 130,
                       "\"Input Dims\": [[5]]");
        trace_text_cpu(t, "user_annotation", "gloo:all_reduce", 51, at + 180, second - 180,
                       "\"Input Dims\": [[5]]");
        /* which of the two is over first changes from one iteration to the next */
        trace_text_cpu(t, "user_annotation", "gloo:all_reduce", i % 2 ? 50 : 51, at + 610, 400,
                       "\"Input Dims\": [[5]]");
    }
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(op_of(g, 0, "arrival at all_reduce", 2).gap_ns, 10 * US); /* not 410 */
    assert_int_equal(op_of(g, 0, "arrival at all_reduce", 0).gap_ns, 10 * US);
    dpro_op_id free = nth_op(g, 0, "a communication thread is free", 0);
    assert_true(edge_to(g, free, nth_op(g, 0, "arrival at all_reduce", 2), 0));
}

TEST(accumulated_gradients_stand_for_copies_where_there_are_none)
{
    const char *grad = "torch::autograd::AccumulateGrad";
    struct trace_text *t = trace_text_begin(0, 2);
    for (int i = 0; i < 2; i++) {
        int64_t at = 2000 * i;
        trace_text_step(t, i, at, 2000);
        trace_text_cpu(t, "cpu_op", grad, 1, at + 110, 20, "");
        trace_text_cpu(t, "cpu_op", grad, 1, at + 140, 20, "");
        trace_text_cpu(t, "user_annotation", "nccl:all_reduce", 1, at + 170, 20, "");
        trace_text_kernel(t, ALL_REDUCE, 1, at + 172, 5, 20, at + 180, 100, "");
        trace_text_cpu(t, "cpu_op", grad, 1, at + 200, 20, "");
        trace_text_cpu(t, "user_annotation", "nccl:all_reduce", 1, at + 230, 20, "");
        trace_text_kernel(t, ALL_REDUCE, 1, at + 232, 5, 20, at + 300, 100, "");
        trace_text_cpu(t, "cpu_op", "autograd::engine::evaluate_function: XBackward0", 1, at + 260,
                       20, "");
    }
    struct dpro_graph *g = trace_text_graph();
    assert_int_equal(g->n_tensors, 3);
    assert_int_equal(g->tensors[0].collective, g->tensors[1].collective);
    assert_int_not_equal(g->tensors[0].collective, g->tensors[2].collective);
    for (int i = 0; i < 3; i++)
        assert_true(edge_to(g, nth_op(g, 0, grad, i), g->tensors[i].in, 0));
}

/* ---- execution traces ---- */

/* Two ops on two threads, the second long after the first; `slow` stretches the first. */
static void window_of_two_ops(struct trace_text *t, int64_t at, int step, int64_t slow, int record)
{
    char args[80];
    trace_text_step(t, step, at, 1000 + slow);
    snprintf(args, sizeof args, "\"Record function id\": %d", record);
    trace_text_cpu(t, "cpu_op", "aten::mul", 1, at + 10, 100 + slow, args);
    snprintf(args, sizeof args, "\"Record function id\": %d", record + 1);
    trace_text_cpu(t, "cpu_op", "aten::sum", 3, at + 300 + slow, 50, args);
    trace_text_cpu(t, "cpu_op", "aten::neg", 1, at + 150 + slow, 40, ""); /* would be guessed */
    trace_text_cpu(t, "cpu_op", "aten::relu", 1, at + 200 + slow, 300, "");
}

TEST(times_come_from_one_window_and_data_edges_from_the_other)
{
    struct trace_text *timing = trace_text_begin(0, 1);
    for (int i = 0; i < 3; i++)
        window_of_two_ops(timing, 1000 * i, i, 0, 0);
    struct trace_text *window = trace_text_window(0, 1, "rank0_with_et.json");
    window_of_two_ops(window, 90000, 7, 500, 11);
    struct trace_text *et = trace_text_execution("et_rank0.json");
    /* aten::mul writes storage 5, aten::sum reads it */
    trace_text_node(et, "{\"name\": \"aten::mul\", \"id\": 1, \"rf_id\": 11, \"parent\": 0, "
                        "\"inputs\": [[1, 4, 0, 10, 4, \"cpu\"]], "
                        "\"outputs\": [[2, 5, 0, 10, 4, \"cpu\"]]}");
    trace_text_node(et, ",{\"name\": \"aten::sum\", \"id\": 2, \"rf_id\": 12, \"parent\": 0, "
                        "\"inputs\": [[2, 5, 0, 10, 4, \"cpu\"]], "
                        "\"outputs\": [[3, 6, 0, 1, 4, \"cpu\"]]}");
    struct dpro_graph *g = trace_text_graph();
    check_measured(g, 3, 1000);
    dpro_op_id mul = nth_op(g, 0, "aten::mul", 0), sum = nth_op(g, 0, "aten::sum", 0);
    assert_int_equal(dpro_graph_op(g, mul).dur_ns, 100 * US);
    assert_true(edge_to(g, mul, sum, 0));
}

/* ---- alignment of iterations ---- */

enum { MOST_ALIGNED = 300 };

static uint32_t longest_common(const uint64_t *a, uint32_t n, const uint64_t *b, uint32_t m)
{
    static uint32_t table[MOST_ALIGNED + 1][MOST_ALIGNED + 1]; /* row and column 0 stay 0 */
    for (uint32_t i = 1; i <= n; i++)
        for (uint32_t k = 1; k <= m; k++) {
            uint32_t skip = table[i - 1][k] > table[i][k - 1] ? table[i - 1][k] : table[i][k - 1];
            table[i][k] = a[i - 1] == b[k - 1] ? table[i - 1][k - 1] + 1 : skip;
        }
    return table[n][m];
}

TEST(sequences_are_aligned_by_their_longest_common_part)
{
    srand(7);
    for (int round = 0; round < 5000; round++) {
        uint64_t a[MOST_ALIGNED], b[MOST_ALIGNED];
        uint32_t to[MOST_ALIGNED], most = round % 100 == 0 ? MOST_ALIGNED : 40, matched = 0;
        uint32_t n = (uint32_t)rand() % most, m = (uint32_t)rand() % most;
        int64_t last = -1;
        for (uint32_t i = 0; i < n; i++)
            a[i] = 1 + (uint64_t)rand() % 5;
        for (uint32_t i = 0; i < m; i++)
            b[i] = 1 + (uint64_t)rand() % 5;
        match_sequences(a, n, b, m, to);
        for (uint32_t i = 0; i < n; i++) {
            if (to[i] == NO_ID)
                continue;
            assert_true(to[i] < m && a[i] == b[to[i]] && (int64_t)to[i] > last);
            last = to[i];
            matched++;
        }
        assert_int_equal(matched, longest_common(a, n, b, m));
    }
}

TEST(sequences_too_different_for_that_still_go_forward)
{
    enum { N = 6000 };
    uint64_t *a = kept_memory(N, sizeof *a), *b = kept_memory(N, sizeof *b);
    uint32_t *to = kept_memory(N, sizeof *to), matched = 0;
    srand(3);
    for (int i = 0; i < N; i++) {
        a[i] = (uint64_t)rand() % 1000;
        b[i] = (uint64_t)rand() % 1000;
    }
    match_sequences(a, N, b, N, to);
    int64_t last = -1;
    for (int i = 0; i < N; i++) {
        if (to[i] == NO_ID)
            continue;
        assert_true(a[i] == b[to[i]] && (int64_t)to[i] > last);
        last = to[i];
        matched++;
    }
    assert_true(matched > 0);
}

TEST(names_tell_what_a_call_is)
{
    static const struct {
        const char *name;
        uint32_t class;
    } cases[] = {{"ProfilerStep#12", NAME_STEP},
                 {"cudaMemcpyAsync", NAME_COPY_CALL},
                 {"hipMemcpyWithStream", NAME_COPY_CALL},
                 {"hipDeviceSynchronize", NAME_DEVICE_SYNC},
                 {"cudaEventSynchronize", NAME_STREAM_SYNC},
                 {"cuStreamSynchronize", NAME_STREAM_SYNC},
                 {"musaStreamSynchronize", NAME_STREAM_SYNC},
                 {"aclrtSynchronizeStream", NAME_STREAM_SYNC},
                 {"cudaStreamWaitEvent", NAME_STREAM_WAIT},
                 {"gloo:all_reduce", NAME_COMM_RUN},
                 {"c10d::allreduce_", NAME_COMM_CALL},
                 {"nccl:all_reduce", NAME_COMM_PARAM},
                 {"record_param_comms", NAME_COMM_PARAM},
                 {"aten::mm", 0},
                 {"custom", 0}};
    /* names of kernels and of ranges around them: test_comm_names.c */
    const uint32_t others = NAME_COMM_KERNEL | NAME_COMM_SCOPE;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(name_classify(cases[i].name, strlen(cases[i].name)) & ~others,
                         cases[i].class);
    assert_int_equal(name_collective(ALL_REDUCE), DPRO_ALL_REDUCE);
    assert_int_equal(name_collective("ncclDevKernel_ReduceScatter_Sum_bf16"), DPRO_REDUCE_SCATTER);
    assert_int_equal(name_collective("nccl:all_to_all"), DPRO_ALL_TO_ALL);
    assert_int_equal(name_collective("c10d::_allgather_base_"), DPRO_ALL_GATHER);
    assert_int_equal(name_collective("aten::mm"), DPRO_NO_COLLECTIVE);
}
